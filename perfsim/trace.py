"""The trace of a run: start and end of every task, and measures derived from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import TaskGraph

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
    """Ends of chains of tasks, starts and ends of flows, and changes of a rate."""
    flows: int
    """Communications on links that others may use at the same time."""
    links: int
    """Links that flows share."""
    contended_s: float
    """Time in which at least one link could not carry its flows at full speed."""


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
            device: self._breakdown(compute, background, *window)
            for device, compute, background, window in self._device_tasks()
        }

    def mean_boundary(self) -> dict[str, float]:
        """Mean seconds by category before a device's first computation of the step and after its last one.

        On wafers this is the bubble between two steps: last gradient, its update, first weights.
        """
        boundaries: dict[str, dict[str, float]] = {}
        for device, compute, background, (low, high) in self._device_tasks():
            inside = (self.end_s[compute] > low) & (self.start_s[compute] < high)
            first = max(low, float(self.start_s[compute][inside].min(initial=high)))
            last = min(high, float(self.end_s[compute][inside].max(initial=low)))
            head, tail = (
                self._breakdown(_NONE, background, *ends) for ends in ((low, first), (max(first, last), high))
            )
            boundaries[device] = {name: head.get(name, 0.0) + tail.get(name, 0.0) for name in head | tail}
        return self._mean(boundaries)

    def _device_tasks(self) -> Iterator[tuple[str, Ints, Ints, tuple[float, float]]]:
        """Each computing device with its compute tasks, its background tasks and its step window."""
        owners = [name.split("/", 1)[0].split("+") for name in self.graph.streams]
        computing = dict.fromkeys(
            owner
            for names, stream in zip(owners, self.graph.streams, strict=True)
            if _computes(stream)
            for owner in names
        )
        tasks = self._tasks_of_streams()
        earlier_s = self._earlier_s(owners, tasks)
        for device in computing:
            mine = [s for s, names in enumerate(owners) if device in names or names[0] not in computing]
            compute = [tasks[s] for s in mine if _computes(self.graph.streams[s])]
            background = [tasks[s] for s in mine if not _computes(self.graph.streams[s])]
            low, high = (edge - earlier_s.get(device, 0.0) for edge in self.step_window_s)
            yield device, np.concatenate(compute), np.concatenate(background or [_NONE]), (low, high)

    def _earlier_s(self, owners: list[list[str]], tasks: list[Ints]) -> dict[str, float]:
        """How much earlier than the last device each one ends its step; empty for a graph of one step.

        In schedules with a skew between ranks, every device has its own step window.
        """
        if len(self.graph.step_ends) == 1:
            return {}
        ends: dict[str, float] = {}
        for names, stream, mine in zip(owners, self.graph.streams, tasks, strict=True):
            for owner in names if _computes(stream) else ():
                ends[owner] = max(ends.get(owner, 0.0), float(self.end_s[mine].max()))
        return {owner: max(ends.values()) - end_s for owner, end_s in ends.items()}

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
            if _computes(name):
                for owner in name.split("/", 1)[0].split("+"):
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

    def _tasks_of_streams(self) -> list[Ints]:
        order = np.argsort(self.graph.stream, kind="stable")
        bounds = np.searchsorted(self.graph.stream[order], np.arange(len(self.graph.streams) + 1))
        return [order[a:b] for a, b in pairwise(bounds)]

    def _breakdown(self, compute: Ints, background: Ints, low: float, high: float) -> dict[str, float]:
        of_work = self._category_of_work
        taken: Floats = np.empty((0, 2))
        seconds: dict[str, float] = {}
        for tasks, order in ((compute, sorted), (background, _exposed_order)):
            number = of_work[self.graph.work[tasks]]
            numbers = {self._categories[number]: number for number in set(number.tolist())}
            for category in order(numbers):
                chosen = tasks[number == numbers[category]]
                spans = np.stack([self.start_s[chosen], self.end_s[chosen]], axis=1).clip(low, high)
                # Only time that no earlier category has taken counts.
                merged = _merge(np.concatenate([taken, spans]))
                added_s = _length_s(merged) - _length_s(taken)
                seconds[category] = seconds.get(category, 0.0) + added_s
                taken = merged
        seconds["bubble"] = max(0.0, (high - low) - _length_s(taken))
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
    "data_communication",
    "pipeline_communication",
    "weight_stream",
    "update",
    "gradient_stream",
    "spill",
    "input",
)
"""Category of exposed time if several streams are busy beside an idle device: the first one counts."""

_NONE: Ints = np.empty(0, dtype=np.int64)


def _computes(stream: str) -> bool:
    return stream.endswith("/compute")


def _exposed_order(names: Iterable[str]) -> list[str]:
    present = set(names)
    ranked = [category for category in EXPOSED if category in present]
    return ranked + sorted(present - set(ranked))


def _merge(spans: Floats) -> Floats:
    """The union of intervals as disjoint intervals in order."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.concatenate([[True], spans[1:, 0] > reach[:-1]])
    starts = spans[first, 0]
    ends = reach[np.concatenate([np.flatnonzero(first)[1:] - 1, [len(spans) - 1]])]
    return np.stack([starts, ends], axis=1)


def _length_s(spans: Floats) -> float:
    """Total length of disjoint intervals."""
    return float((spans[:, 1] - spans[:, 0]).sum())
