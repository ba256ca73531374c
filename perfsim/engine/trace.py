"""The trace of a run: start and end of every task, and measures derived from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.work import TaskGraph
from perfsim.work.graph import computes, owners_of

Tasks = NDArray[np.int32] | Ints


class Span(NamedTuple):
    """One task in time."""

    name: str
    stream: str
    category: str
    start_s: float
    end_s: float
    tag: int


class Simulated(NamedTuple):
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
    """None: the times are those of the longest path."""

    @cached_property
    def makespan_s(self) -> float:
        """When the last task ends."""
        return float(self.end_s.max())

    @cached_property
    def step_end_s(self) -> tuple[float, ...]:
        """When the last task of each optimizer step ended."""
        bounds = (0, *self.graph.step_ends)
        return tuple(float(self.end_s[a:b].max()) for a, b in pairwise(bounds))

    @property
    def step_time_s(self) -> float:
        """Time of one optimizer step: between the ends of the last two steps, or the end of a single one."""
        ends = self.step_end_s
        return ends[-1] - ends[-2] if len(ends) > 1 else ends[-1]

    @property
    def step_window_s(self) -> tuple[float, float]:
        """The interval that `step_time_s` measures."""
        return self.step_end_s[-1] - self.step_time_s, self.step_end_s[-1]

    def scaled(self, factor: float) -> Trace:
        """The same run with all times multiplied by `factor`."""
        if factor == 1.0:
            return self
        simulated = self.simulated
        if simulated is not None:
            simulated = simulated._replace(contended_s=simulated.contended_s * factor)
        return Trace(self.graph, self.start_s * factor, self.end_s * factor, simulated)

    def span(self, index: int) -> Span:
        """One task with its times."""
        task = self.graph.task(index)
        return Span(
            task.name,
            task.stream,
            task.work.category,
            float(self.start_s[index]),
            float(self.end_s[index]),
            task.tag,
        )

    def device_breakdowns(self) -> dict[str, dict[str, float]]:
        """Every second of the step window of each computing device, by category.

        The first part of a stream's name is its device, which computes if it has a stream `compute`. Time
        in which that stream is busy counts for the category of its task. Time in which only background
        streams are busy (other streams of the device; stores and networks, which no device owns) is
        *exposed* and counts for their category, in the order of `EXPOSED`. The rest is `bubble`.
        """
        return {
            device: seconds
            for block in self._blocks()
            for device, seconds in zip(block.devices, self._breakdowns(block), strict=True)
        }

    def mean_boundary(self) -> dict[str, float]:
        """Mean seconds by category before a device's first computation of the step and after its last one.

        On wafers this is the bubble between two steps: last gradient, its update, first weights.
        """
        boundaries: dict[str, dict[str, float]] = {}
        for block in self._blocks():
            low_s = block.low_s
            high_s = block.high_s
            busy = self._spans(block, block.compute)
            first_s = high_s.copy()
            last_s = low_s.copy()
            np.minimum.at(first_s, busy.device, busy.start_s)
            np.maximum.at(last_s, busy.device, busy.end_s)
            heads = self._breakdowns(block.between(low_s, first_s))
            tails = self._breakdowns(block.between(np.maximum(first_s, last_s), high_s))
            for device, head, tail in zip(block.devices, heads, tails, strict=True):
                boundaries[device] = {name: head.get(name, 0.0) + tail.get(name, 0.0) for name in head | tail}
        return self._mean(boundaries)

    @cached_property
    def hidden_share(self) -> float:
        """Share of the step in which a device computes while it communicates; the mean over devices.

        Communication is what runs on a device's streams besides its compute. Streams of no device (weights
        that a store sends to a wafer) do not count: they take nothing from a device's compute.
        """
        graph = self.graph
        communicates = np.array([work.kind.is_communication for work in graph.works])[graph.work]
        computing = {owner for name in graph.streams if computes(name) for owner in owners_of(name)}
        owned = np.array([owners_of(name)[0] in computing for name in graph.streams])[graph.stream]
        hidden_s: dict[str, dict[str, float]] = {}
        for block in self._blocks():
            low_s, high_s = (np.full(len(block.devices), bound_s) for bound_s in self.step_window_s)
            window = block._replace(low_s=low_s, high_s=high_s)
            busy = self._spans(window, block.compute.chosen(~communicates)).union()
            sending = self._spans(window, block.background.chosen(communicates & owned)).union()
            shape = (len(block.devices), 1)
            either_s = busy.with_others(sending).union().seconds(shape)
            both_s = (busy.seconds(shape) + sending.seconds(shape) - either_s)[:, 0]
            both_s[both_s < ROUNDING * (high_s - low_s)] = 0.0
            hidden_s |= {
                name: {"": seconds} for name, seconds in zip(block.devices, both_s.tolist(), strict=True)
            }
        return self._mean(hidden_s).get("", 0.0) / self.step_time_s

    def _blocks(self) -> Iterator[_Block]:
        """The tasks of all computing devices, some devices at a time so that the tables stay small."""
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
        earlier_s = self._earlier_s(owners, tasks)
        low_s, high_s = self.step_window_s
        for devices in _in_blocks(mine, [len(stream) for stream in tasks], common):
            parts: tuple[list[tuple[int, Tasks]], ...] = ([], [])
            for number, device in enumerate(devices):
                for stream in dict.fromkeys(mine[device] + common):
                    parts[0 if computes(streams[stream]) else 1].append((number, tasks[stream]))
            earlier = np.array([earlier_s.get(device, 0.0) for device in devices])
            compute, background = (self._rows(part) for part in parts)
            yield _Block(devices, low_s - earlier, high_s - earlier, compute, background)

    def _earlier_s(self, owners: list[tuple[str, ...]], tasks: Sequence[Tasks]) -> dict[str, float]:
        """How much earlier than the last device each one ends its step; empty for a graph of one step.

        In schedules with a skew between ranks, every device has its own step window.
        """
        if len(self.graph.step_ends) == 1:
            return {}
        ends: dict[str, float] = {}
        for names, stream, mine in zip(owners, self.graph.streams, tasks, strict=True):
            for owner in names if computes(stream) else ():
                ends[owner] = max(ends.get(owner, 0.0), float(self.end_s[mine].max()))
        latest_s = max(ends.values())
        return {owner: latest_s - end_s for owner, end_s in ends.items()}

    def mean_breakdown(self) -> dict[str, float]:
        """Seconds by category, the mean over computing devices."""
        return dict(self._mean_breakdown)

    @cached_property
    def _mean_breakdown(self) -> dict[str, float]:
        return self._mean(self.device_breakdowns())

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
        categories = dict.fromkeys(category for seconds in devices.values() for category in seconds)
        return {
            category: sum(
                ranks[device] // common * seconds.get(category, 0.0) for device, seconds in devices.items()
            )
            / total
            for category in categories
        }

    def _rows(self, parts: Sequence[tuple[int, Tasks]]) -> _Rows:
        """The rows of these tasks of devices."""
        tasks = np.concatenate([tasks for _, tasks in parts] or [_NONE])
        devices = np.array([device for device, _ in parts], dtype=np.int64)
        category = self._category_of_work[self.graph.work[tasks]]
        return _Rows(devices.repeat([len(tasks) for _, tasks in parts]), tasks, category)

    def _spans(self, block: _Block, rows: _Rows) -> _Spans:
        """The part of each row's task inside its device's window."""
        start_s = np.maximum(self.start_s[rows.task], block.low_s[rows.device])
        end_s = np.minimum(self.end_s[rows.task], block.high_s[rows.device])
        return _Spans(rows.device, start_s, end_s, rows.category).lasting()

    def _breakdowns(self, block: _Block) -> list[dict[str, float]]:
        """Every second of the window of each device of a block, by category."""
        names = self._categories
        shape = (len(block.devices), len(self._categories))
        busy = self._spans(block, block.compute)
        computed_s = busy.seconds(shape)
        # On a clock that stands still while a device computes, exposed time is all that is left.
        waited = self._spans(block, block.background).outside(busy.union())
        exposed_s = np.zeros(shape)
        taken = _NO_SPANS
        for category in _exposed_order(names):
            number = names.index(category)
            joined = taken.with_others(waited.of_category(number)).union()
            exposed_s[:, number] = joined.seconds(shape).sum(axis=1) - taken.seconds(shape).sum(axis=1)
            taken = joined
        idle_s = block.high_s - block.low_s - computed_s.sum(axis=1) - exposed_s.sum(axis=1)
        idle_s[idle_s < ROUNDING * (block.high_s - block.low_s)] = 0.0
        return self._named(block, computed_s, exposed_s, idle_s)

    def _named(
        self, block: _Block, computed_s: Floats, exposed_s: Floats, idle_s: Floats
    ) -> list[dict[str, float]]:
        """The seconds of each device by name: of its categories, and its bubble."""
        names = self._categories
        total_s = computed_s + exposed_s
        seconds: list[dict[str, float]] = [{} for _ in block.devices]
        for rows, order in ((block.compute, sorted), (block.background, _exposed_order)):
            counts = np.bincount(rows.device * len(names) + rows.category, minlength=total_s.size)
            for name in order(names):
                number = names.index(name)
                for device in np.flatnonzero(counts[number :: len(names)]).tolist():
                    seconds[device][name] = float(total_s[device, number])
        for of_device, bubble_s in zip(seconds, idle_s.tolist(), strict=True):
            of_device["bubble"] = bubble_s
        return seconds

    @cached_property
    def _categories(self) -> list[str]:
        return list(dict.fromkeys(work.category for work in self.graph.works))

    @cached_property
    def _category_of_work(self) -> Ints:
        numbers = {category: number for number, category in enumerate(self._categories)}
        return np.array([numbers[work.category] for work in self.graph.works])


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
"""Category of exposed time if several streams are busy beside an idle device: the first one counts."""

ROUNDING = 1e-12
"""Of a window: idle time below it is what sums of times are rounded by."""
ROWS_AT_ONCE = 1 << 18
"""Tasks whose intervals are sorted together; bounds the memory of a breakdown."""

_NONE: Ints = np.empty(0, dtype=np.int64)


def _exposed_order(names: Iterable[str]) -> list[str]:
    present = set(names)
    ranked = [category for category in EXPOSED if category in present]
    return ranked + sorted(present - set(ranked))


class _Rows(NamedTuple):
    """Tasks of devices, by device; a task of several devices has a row for each of them."""

    device: Ints
    task: Tasks
    category: Ints

    def chosen(self, tasks: Bools) -> _Rows:
        """The rows of these tasks, given as a mask over all of them."""
        rows = tasks[self.task]
        return _Rows(self.device[rows], self.task[rows], self.category[rows])


class _Block(NamedTuple):
    """Some computing devices with their tasks; each device has a window of its own."""

    devices: list[str]
    low_s: Floats
    high_s: Floats
    compute: _Rows
    background: _Rows

    def between(self, low_s: Floats, high_s: Floats) -> _Block:
        """The same devices in other windows, in which they do not compute."""
        return self._replace(low_s=low_s, high_s=high_s, compute=_Rows(_NONE, _NONE, _NONE))


def _in_blocks(
    devices: Mapping[str, Sequence[int]], lengths: Sequence[int], common: Sequence[int]
) -> Iterator[list[str]]:
    """Devices, as many at a time as have `ROWS_AT_ONCE` tasks on their own and on common streams."""
    block: list[str] = []
    rows = 0
    shared = sum(lengths[stream] for stream in common)
    for device, streams in devices.items():
        rows += shared + sum(lengths[stream] for stream in streams)
        block.append(device)
        if rows >= ROWS_AT_ONCE:
            yield block
            block = []
            rows = 0
    if block:
        yield block


class _Spans(NamedTuple):
    """Intervals of time of devices, by device, each of one category."""

    device: Ints
    start_s: Floats
    end_s: Floats
    category: Ints

    def chosen(self, rows: Bools | Ints) -> _Spans:
        """The intervals of these rows."""
        return _Spans(self.device[rows], self.start_s[rows], self.end_s[rows], self.category[rows])

    def lasting(self) -> _Spans:
        """Without the empty ones."""
        lasts = self.end_s > self.start_s
        return self if lasts.all() else self.chosen(lasts)

    def of_category(self, number: int) -> _Spans:
        """The intervals of one category."""
        return self.chosen(self.category == number)

    def with_others(self, others: _Spans) -> _Spans:
        """These intervals and others."""
        return _Spans(
            np.append(self.device, others.device),
            np.append(self.start_s, others.start_s),
            np.append(self.end_s, others.end_s),
            np.append(self.category, others.category),
        )

    def seconds(self, shape: tuple[int, int]) -> Floats:
        """Seconds by device and category."""
        keys = self.device * shape[1] + self.category
        length_s = np.bincount(keys, self.end_s - self.start_s, minlength=shape[0] * shape[1])
        return np.asarray(length_s.reshape(shape), dtype=np.float64)

    def union(self) -> _Spans:
        """The same time of each device as disjoint intervals in order, all of category 0."""
        spans = self if self._in_order() else self.chosen(np.lexsort((self.start_s, self.device)))
        if not len(spans.device):
            return spans
        reach_s = spans.reach_s()
        begins = np.append(True, spans.start_s[1:] > reach_s[:-1])
        begins[1:] |= spans.device[1:] != spans.device[:-1]
        last = np.append(np.flatnonzero(begins)[1:], len(begins)) - 1
        category = np.zeros(len(last), dtype=np.int64)
        return _Spans(spans.device[begins], spans.start_s[begins], reach_s[last], category)

    def _in_order(self) -> bool:
        """Whether they are ordered by device and start."""
        further = self.device[1:] > self.device[:-1]
        later = (self.device[1:] == self.device[:-1]) & (self.start_s[1:] >= self.start_s[:-1])
        return bool((further | later).all())

    def reach_s(self) -> Floats:
        """The latest end on its device up to each interval, for intervals in order."""
        overlaps = (self.device[1:] == self.device[:-1]) & (self.start_s[1:] < self.end_s[:-1])
        if not overlaps.any():
            return self.end_s
        # Ends as ranks, above those of all earlier devices, so that one running maximum does for all.
        ends_s, rank = np.unique(self.end_s, return_inverse=True)
        floor = self.device * len(ends_s)
        return np.asarray(ends_s[np.maximum.accumulate(floor + rank) - floor])

    def outside(self, busy: _Spans) -> _Spans:
        """On each device's clock that stands still during disjoint intervals; those inside are left out."""
        if not len(busy.device):
            return self
        devices = np.arange(max(busy.device[-1], self.device.max(initial=0)) + 2)
        own, others = (spans.device.searchsorted(devices).tolist() for spans in (self, busy))
        start_s = self.start_s.copy()
        end_s = self.end_s.copy()
        for (first, end), (low, high) in zip(pairwise(own), pairwise(others), strict=True):
            clock = _StandingClock(busy.start_s[low:high], busy.end_s[low:high])
            begun = clock.begun(start_s[first:end])
            further = np.flatnonzero(end_s[first:end] > clock.next_s[begun])
            start_s[first:end] = clock.at(start_s[first:end], begun)
            begun[further] = clock.begun(end_s[first:end][further])
            end_s[first:end] = clock.at(end_s[first:end], begun)
        return _Spans(self.device, start_s, end_s, self.category).lasting()


class _StandingClock:
    """A clock that shows the time since 0 without that of disjoint intervals in order."""

    def __init__(self, starts_s: Floats, ends_s: Floats) -> None:
        self.starts_s = starts_s
        self.next_s = np.append(starts_s, np.inf)
        """Start of the next interval, by the number of intervals that have begun."""
        self.last_s = np.append(0.0, ends_s)
        self.shown_s = np.append(0.0, ends_s - (ends_s - starts_s).cumsum())
        """What the clock shows during the last interval that has begun."""

    def begun(self, when_s: Floats) -> Ints:
        """How many intervals have begun."""
        return self.starts_s.searchsorted(when_s, side="right")

    def at(self, when_s: Floats, begun: Ints) -> Floats:
        """What the clock shows; `begun` may leave out an interval that begins at `when_s`."""
        return np.asarray(self.shown_s[begun] + np.maximum(0.0, when_s - self.last_s[begun]))


_NO_SPANS = _Spans(_NONE, np.empty(0), np.empty(0), _NONE)
