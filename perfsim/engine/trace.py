"""The trace of a run: start and end of every task, and measures derived from them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ids, Ints
from perfsim.work import TaskGraph
from perfsim.work.graph import computes, owners_of


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a simulation consisted of."""

    events: int
    """Starts and ends of tasks, and changes of a rate."""
    flows: int
    """Communications on links that others may use at the same time."""
    links: int
    """Links that flows share."""
    contended_s: float
    """Time in which at least one link could not carry its flows at full speed."""
    engine: str = ""
    """`simpy` or `fast` of a step that is reported; empty where a search took either, to the same times."""
    tasks: int = 0
    """Tasks of the simulated graph."""


@dataclass(frozen=True)
class Trace:
    """Start and end of every task of `graph`, in seconds."""

    graph: TaskGraph
    start_s: Floats
    end_s: Floats
    simulated: Simulated | None = None
    """None: the times are the longest path's."""

    @cached_property
    def step_end_s(self) -> tuple[float, ...]:
        """When the last task of each optimizer step ended."""
        return tuple(float(self.end_s[a:b].max()) for a, b in pairwise((0, *self.graph.step_ends)))

    @property
    def step_time_s(self) -> float:
        """Time of one optimizer step: between the ends of the last two steps, or the end of a single one."""
        ends = self.step_end_s
        return ends[-1] - ends[-2] if len(ends) > 1 else ends[-1]

    @property
    def step_window_s(self) -> tuple[float, float]:
        """The interval that `step_time_s` measures."""
        return self.step_end_s[-1] - self.step_time_s, self.step_end_s[-1]

    @cached_property
    def waited_s(self) -> Floats:
        """How long the stream of each task was idle before the task began."""
        before = self.graph.stream_predecessor
        return self.start_s - np.where(before >= 0, self.end_s[before], 0.0)

    @cached_property
    def waited_for(self) -> Ids:
        """The task of another stream whose end each task's stream waited for; -1 where it did not wait."""
        deps = self.graph.dependencies
        task = deps.row_of_value
        # A task begins at the instant at which the last one that it needs ends, and both engines have the
        # same instants to the bit. Of several that end at once the last one written counts.
        ends_wait = (self.waited_s[task] > 0.0) & (self.end_s[deps.values] == self.start_s[task])
        last: Ids = np.full(len(self.graph), -1, dtype=np.int32)
        np.maximum.at(last, task[ends_wait], deps.values[ends_wait])
        return last

    def scaled(self, factor: float) -> Trace:
        """The same run with all times multiplied by `factor`."""
        if factor == 1.0:
            return self
        simulated = self.simulated
        if simulated is not None:
            simulated = replace(simulated, contended_s=simulated.contended_s * factor)
        return Trace(self.graph, self.start_s * factor, self.end_s * factor, simulated)

    def device_breakdowns(self) -> dict[str, dict[str, float]]:
        """Every second of the step window of each computing device, by category.

        The first part of a stream's name is its device, which computes if it has a stream `compute`. Time
        in which that stream is busy counts for the category of its task. Time in which only background
        streams are busy (other streams of the device; stores and networks, which no device owns) is
        *exposed* and counts for their category, in the order of `EXPOSED`. The rest is `bubble`.
        """
        return {
            device: seconds
            for rows in self._by_devices()
            for device, seconds in zip(rows.devices, self._breakdowns(rows), strict=True)
        }

    def mean_breakdown(self) -> dict[str, float]:
        """Seconds by category, the mean over computing devices."""
        return self._mean(self.device_breakdowns())

    def mean_boundary(self) -> dict[str, float]:
        """Mean seconds by category before a device's first computation of the step and after its last one."""
        # On wafers this is the bubble between two steps: last gradient, its update, first weights.
        boundaries: dict[str, dict[str, float]] = {}
        for rows in self._by_devices():
            start_s, end_s = self._clipped(rows)
            busy = rows.computes & (end_s > start_s)
            first_s = rows.high_s.copy()
            last_s = rows.low_s.copy()
            np.minimum.at(first_s, rows.device[busy], start_s[busy])
            np.maximum.at(last_s, rows.device[busy], end_s[busy])
            heads = self._breakdowns(rows._replace(high_s=first_s))
            tails = self._breakdowns(rows._replace(low_s=np.maximum(first_s, last_s)))
            for device, head, tail in zip(rows.devices, heads, tails, strict=True):
                boundaries[device] = {name: head[name] + tail[name] for name in head}
        return self._mean(boundaries)

    @cached_property
    def hidden_share(self) -> float:
        """Share of the step in which a device computes while it communicates; the mean over devices."""
        graph = self.graph
        # Communication is what runs on a device's streams besides its compute. Streams of no device (weights
        # that a store sends to a wafer) do not count: they take nothing from a device's compute.
        communicates = np.array([work.kind.is_communication for work in graph.works])[graph.work]
        computing = {owner for name in graph.streams if computes(name) for owner in owners_of(name)}
        owned = np.array([owners_of(name)[0] in computing for name in graph.streams])[graph.stream]
        hidden_s: dict[str, dict[str, float]] = {}
        for rows in self._by_devices():
            low_s, high_s = (np.full(len(rows.devices), bound_s) for bound_s in self.step_window_s)
            start_s, end_s = self._clipped(rows._replace(low_s=low_s, high_s=high_s))
            sends = communicates[rows.task]
            counts = np.where(rows.computes, ~sends, sends & owned[rows.task])
            line = (~rows.computes[counts]).astype(np.int64)
            device, under_way, lasts_s = _sweep(rows.device[counts], start_s[counts], end_s[counts], line)
            both = under_way.all(axis=0) & (len(under_way) > 1)
            seconds = np.bincount(device[both], lasts_s[both], minlength=len(rows.devices)).tolist()
            hidden_s |= {name: {"": share_s} for name, share_s in zip(rows.devices, seconds, strict=True)}
        return self._mean(hidden_s).get("", 0.0) / self.step_time_s

    def _mean(self, devices: dict[str, dict[str, float]]) -> dict[str, float]:
        """The mean over ranks: a device counts once for each rank it stands for; a missing category is 0."""
        ranks: dict[str, int] = {}
        for name, count in zip(self.graph.streams, self.graph.stands_for, strict=True):
            if computes(name):
                for owner in owners_of(name):
                    ranks[owner] = min(count, ranks.get(owner, count))
        # Without the common factor, so that rounding does not depend on the number of replicas.
        common = math.gcd(*ranks.values()) if ranks else 1
        total = sum(ranks[device] // common for device in devices)
        sums: dict[str, float] = {}
        for device, seconds in devices.items():
            for category, of_device_s in seconds.items():
                sums[category] = sums.get(category, 0.0) + ranks[device] // common * of_device_s
        return {category: sum_s / total for category, sum_s in sums.items()}

    def _by_devices(self) -> Iterator[_DeviceTasks]:
        """The tasks of all computing devices, as many devices at a time as have `ROWS_AT_ONCE` tasks."""
        streams = self.graph.streams
        owners = [owners_of(name) for name in streams]
        computing = [stream for stream, name in enumerate(streams) if computes(name)]
        mine: dict[str, list[int]] = {owner: [] for stream in computing for owner in owners[stream]}
        common = [stream for stream, names in enumerate(owners) if names[0] not in mine]
        for stream, names in enumerate(owners):
            for owner in names:
                if owner in mine:
                    mine[owner].append(stream)
        by_stream = self.graph.by_stream
        tasks = [by_stream.values[a:b] for a, b in pairwise(by_stream.start.tolist())]
        # In schedules with a skew between ranks, a device ends its step, and begins it, before the last one.
        ends_s = dict.fromkeys(mine, self.step_end_s[-1])
        if len(self.graph.step_ends) > 1:
            ends_s = dict.fromkeys(mine, 0.0)
            for stream in computing:
                for owner in owners[stream]:
                    ends_s[owner] = max(ends_s[owner], float(self.end_s[tasks[stream]].max()))
        latest_s = max(ends_s.values())
        low_s, high_s = self.step_window_s
        left = deque(mine)
        while left:
            devices: list[str] = []
            parts: list[tuple[int, int]] = []
            rows = 0
            while left and rows < ROWS_AT_ONCE:
                device = left.popleft()
                of_device = dict.fromkeys(mine[device] + common)
                parts += ((len(devices), stream) for stream in of_device)
                rows += sum(len(tasks[stream]) for stream in of_device)
                devices.append(device)
            lengths = [len(tasks[stream]) for _, stream in parts]
            earlier_s = latest_s - np.array([ends_s[device] for device in devices])
            yield _DeviceTasks(
                devices,
                low_s - earlier_s,
                high_s - earlier_s,
                np.repeat([number for number, _ in parts], lengths),
                np.concatenate([tasks[stream] for _, stream in parts]),
                np.repeat([computes(streams[stream]) for _, stream in parts], lengths),
            )

    def _clipped(self, rows: _DeviceTasks) -> tuple[Floats, Floats]:
        """Start and end of each row's task inside its device's window."""
        start_s = np.maximum(self.start_s[rows.task], rows.low_s[rows.device])
        end_s = np.minimum(self.end_s[rows.task], rows.high_s[rows.device])
        return start_s, np.maximum(start_s, end_s)

    def _breakdowns(self, rows: _DeviceTasks) -> list[dict[str, float]]:
        """Every second of the window of each device, by category."""
        # In the order in which exposed time counts for them.
        named = {work.category for work in self.graph.works}
        ranked = [category for category in EXPOSED if category in named]
        names = ranked + sorted(named - set(ranked))
        width = len(names)
        of_work = np.array([names.index(work.category) for work in self.graph.works])
        category = of_work[self.graph.work[rows.task]]
        start_s, end_s = self._clipped(rows)
        key = rows.device * width + category
        cells = len(rows.devices) * width
        computed_s = np.bincount(key, (end_s - start_s) * rows.computes, minlength=cells)
        present = np.bincount(key + cells * rows.computes, minlength=2 * cells).reshape(2, -1, width) > 0
        waited_for = np.flatnonzero(present[0].any(axis=0))
        line_of_category = 1 + waited_for.searchsorted(np.arange(width))
        line = np.where(rows.computes, 0, line_of_category[category])
        device, under_way, lasts_s = _sweep(rows.device, start_s, end_s, line)
        first = under_way.argmax(axis=0)
        waits = first > 0
        waited_key = device[waits] * width + waited_for[first[waits] - 1]
        exposed_s = np.bincount(waited_key, lasts_s[waits], minlength=cells)
        total_s = (computed_s + exposed_s).reshape(-1, width)
        idle_s = rows.high_s - rows.low_s
        for part_s in (computed_s, exposed_s):
            idle_s -= part_s.reshape(-1, width).sum(axis=1)
        idle_s[idle_s < ROUNDING * (rows.high_s - rows.low_s)] = 0.0
        seconds: list[dict[str, float]] = [{} for _ in rows.devices]
        for has, listed in ((present[1], sorted(names)), (present[0], names)):
            for name in listed:
                number = names.index(name)
                for index in np.flatnonzero(has[:, number]).tolist():
                    seconds[index][name] = float(total_s[index, number])
        for of_device, bubble_s in zip(seconds, idle_s.tolist(), strict=True):
            of_device["bubble"] = bubble_s
        return seconds


EXPOSED = (
    "tensor_communication",
    "context_communication",
    "expert_communication",
    "data_communication",
    "offload",
    "pipeline_communication",
    "weight_stream",
    "update",
    "gradient_stream",
    "spill",
    "input",
)
"""Category of exposed time if several streams are busy next to an idle device: the first one counts."""

ROUNDING = 1e-12
"""Of a window: idle time below it is what sums of times are rounded by."""
ROWS_AT_ONCE = 1 << 18
"""Tasks whose intervals are sorted together; bounds the memory of a breakdown."""


class _DeviceTasks(NamedTuple):
    """Some computing devices with their tasks, a row each; a task of several devices has several rows."""

    devices: list[str]
    low_s: Floats
    """Start of the window of each device; `high_s` is its end."""
    high_s: Floats
    device: Ints
    task: Ids
    computes: Bools
    """Whether the row's stream is the one on which its device computes."""


def _sweep(device: Ints, start_s: Floats, end_s: Floats, line: Ints) -> tuple[Ints, Bools, Floats]:
    """What is under way after each start and end on a device, in the order of devices and of time.

    `line` is the line that each interval is on. Returns the device of each of these times, whether something
    is under way on each line, shape (lines, times), and how long that lasts.
    """
    lasting = np.flatnonzero(end_s > start_s)
    # Intervals that follow one another without a gap are one: most tasks of a compute stream.
    apart = np.ones(len(lasting) + 1, dtype=bool)
    apart[1:-1] = end_s[lasting[:-1]] != start_s[lasting[1:]]
    for column in (device, line):
        apart[1:-1] |= np.diff(column[lasting]) != 0
    first = lasting[apart[:-1]]
    last = lasting[apart[1:]]
    row = np.concatenate([first, last])
    when_s = np.concatenate([start_s[first], end_s[last]])
    order = np.lexsort((when_s, device[row]))
    row = row[order]
    change = np.zeros((1 + line.max(initial=0), len(order)), dtype=np.int32)
    change[line[row], np.arange(len(order))] = np.where(order < len(first), 1, -1)
    return device[row], change.cumsum(axis=1) > 0, np.diff(when_s[order], append=0.0)
