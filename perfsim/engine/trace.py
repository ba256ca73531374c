"""The trace of a run: start and end of every task, and measures derived from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, pairwise
from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ids, Ints
from perfsim.base.groups import listed
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
        return {tasks.device: self._breakdown(tasks) for tasks in self._by_device()}

    def mean_breakdown(self) -> dict[str, float]:
        """Seconds by category, the mean over computing devices."""
        return self._mean(self.device_breakdowns())

    def mean_boundary(self) -> dict[str, float]:
        """Mean seconds by category before a device's first computation of the step and after its last one."""
        # On wafers this is the bubble between two steps: last gradient, its update, first weights.
        boundaries: dict[str, dict[str, float]] = {}
        for tasks in self._by_device():
            start_s, end_s = self._clipped(tasks)
            busy = tasks.computes & (end_s > start_s)
            first_s = start_s[busy].min(initial=tasks.high_s)
            last_s = end_s[busy].max(initial=max(first_s, tasks.low_s))
            head = self._breakdown(tasks._replace(high_s=first_s))
            tail = self._breakdown(tasks._replace(low_s=last_s))
            boundaries[tasks.device] = {name: head[name] + tail[name] for name in head}
        return self._mean(boundaries)

    @cached_property
    def hidden_share(self) -> float:
        """Share of the step in which a device computes while it communicates; the mean over devices."""
        graph = self.graph
        # Communication is what runs on a device's streams besides its compute. Streams of no device (weights
        # that a store sends to a wafer) do not count: they take nothing from a device's compute.
        owned = np.array([bool(devices) for devices in graph.stream_devices])[graph.stream]
        communicates = np.array([work.kind.is_communication for work in graph.works])[graph.work]
        low_s, high_s = self.step_window_s
        hidden_s: dict[str, dict[str, float]] = {}
        for tasks in self._by_device():
            start_s, end_s = self._clipped(tasks._replace(low_s=low_s, high_s=high_s))
            sends = communicates[tasks.task]
            counts = np.where(tasks.computes, ~sends, sends & owned[tasks.task])
            line = (~tasks.computes[counts]).astype(np.int64)
            under_way, lasts_s = _sweep(start_s[counts], end_s[counts], line)
            both = under_way.all(axis=0) & (len(under_way) > 1)
            hidden_s[tasks.device] = {"": float(np.bincount(both, lasts_s, minlength=2)[1])}
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

    def _by_device(self) -> Iterator[_DeviceTasks]:
        """The tasks of each computing device, and next to them the tasks of streams that no device owns."""
        graph = self.graph
        of_streams = list(enumerate(graph.stream_devices))
        mine = listed((device, stream) for stream, devices in of_streams for device in devices)
        common = [stream for stream, devices in of_streams if not devices]
        blocking = np.array([computes(name) for name in graph.streams])
        tasks = [graph.by_stream.values[a:b] for a, b in pairwise(graph.by_stream.start.tolist())]
        # In schedules with a skew between ranks, a device ends its step, and begins it, before the last one.
        ends_s = dict.fromkeys(mine, self.step_end_s[-1])
        if len(graph.step_ends) > 1:
            for device, own in mine.items():
                ends_s[device] = max(self.end_s[tasks[stream]].max() for stream in own if blocking[stream])
        latest_s = max(ends_s.values(), default=0.0)
        low_s, high_s = self.step_window_s
        for device, name in enumerate(graph.devices):
            task = np.concatenate([tasks[stream] for stream in (*mine[device], *common)])
            earlier_s = latest_s - ends_s[device]
            blocks = blocking[graph.stream[task]]
            yield _DeviceTasks(name, low_s - earlier_s, high_s - earlier_s, task, blocks)

    def _clipped(self, tasks: _DeviceTasks) -> tuple[Floats, Floats]:
        """Start and end of each task inside the window of the device."""
        start_s = np.maximum(self.start_s[tasks.task], tasks.low_s)
        end_s = np.minimum(self.end_s[tasks.task], tasks.high_s)
        return start_s, np.maximum(start_s, end_s)

    @cached_property
    def _categories(self) -> tuple[list[str], Ints]:
        """Categories in the order in which exposed time counts for them, and the category of each task."""
        named = {work.category for work in self.graph.works}
        ranked = [category for category in EXPOSED if category in named]
        names = ranked + sorted(named - set(ranked))
        return names, np.array([names.index(work.category) for work in self.graph.works])[self.graph.work]

    def _breakdown(self, tasks: _DeviceTasks) -> dict[str, float]:
        """Every second of the window of a device, by category."""
        names, of_task = self._categories
        width = len(names)
        category = of_task[tasks.task]
        start_s, end_s = self._clipped(tasks)
        computed_s = np.bincount(category, (end_s - start_s) * tasks.computes, minlength=width)
        present = np.bincount(category + width * tasks.computes, minlength=2 * width).reshape(2, width) > 0
        waited_for = np.flatnonzero(present[0])
        line = np.where(tasks.computes, 0, 1 + waited_for.searchsorted(category))
        under_way, lasts_s = _sweep(start_s, end_s, line)
        first = under_way.argmax(axis=0)
        waits = first > 0
        exposed_s = np.bincount(waited_for[first[waits] - 1], lasts_s[waits], minlength=width)
        total_s = dict(zip(names, (computed_s + exposed_s).tolist(), strict=True))
        idle_s = float(tasks.high_s - tasks.low_s - computed_s.sum() - exposed_s.sum())
        idle_s = 0.0 if idle_s < ROUNDING * (tasks.high_s - tasks.low_s) else idle_s
        computing, waiting = ([*compress(names, has)] for has in present.tolist()[::-1])
        return {name: total_s[name] for name in (*sorted(computing), *waiting)} | {"bubble": idle_s}


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


class _DeviceTasks(NamedTuple):
    """A computing device with its tasks."""

    device: str
    low_s: float
    """Start of its window; `high_s` is the end."""
    high_s: float
    task: Ids
    computes: Bools
    """Whether the stream of each task is the one on which the device computes."""


def _sweep(start_s: Floats, end_s: Floats, line: Ints) -> tuple[Bools, Floats]:
    """What is under way after each start and end, in the order of time.

    `line` is the line that each interval is on. Returns whether something is under way on each line, shape
    (lines, times), and how long that lasts.
    """
    lasting = np.flatnonzero(end_s > start_s)
    # Intervals that follow one another without a gap are one: most tasks of a compute stream.
    apart = np.ones(len(lasting) + 1, dtype=bool)
    apart[1:-1] = (end_s[lasting[:-1]] != start_s[lasting[1:]]) | (np.diff(line[lasting]) != 0)
    first = lasting[apart[:-1]]
    last = lasting[apart[1:]]
    row = np.concatenate([first, last])
    when_s = np.concatenate([start_s[first], end_s[last]])
    order = np.argsort(when_s, kind="stable")
    change = np.zeros((1 + line.max(initial=0), len(order)), dtype=np.int32)
    change[line[row[order]], np.arange(len(order))] = np.where(order < len(first), 1, -1)
    return change.cumsum(axis=1) > 0, np.diff(when_s[order], append=0.0)
