"""What a run leaves: when each task started and ended, and the measures taken from that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import TaskGraph

Floats = NDArray[np.float64]


class Span(NamedTuple):
    """One task in time."""

    name: str
    stream: str
    category: str
    start_s: float
    end_s: float
    tag: int


@dataclass(frozen=True)
class Trace:
    """Start and end of every task of `graph`, in seconds."""

    graph: TaskGraph
    start_s: Floats
    end_s: Floats

    @cached_property
    def makespan_s(self) -> float:
        return float(self.end_s.max())

    @cached_property
    def step_end_s(self) -> tuple[float, ...]:
        """When the last task of each optimizer step ended."""
        bounds = (0, *self.graph.step_ends)
        return tuple(float(self.end_s[a:b].max()) for a, b in zip(bounds, bounds[1:], strict=False))

    @property
    def step_time_s(self) -> float:
        """Time of one optimizer step: between the ends of the last two steps, or the only one's end."""
        ends = self.step_end_s
        return ends[-1] - ends[-2] if len(ends) > 1 else ends[-1]

    @property
    def step_window_s(self) -> tuple[float, float]:
        """The interval that `step_time_s` measures."""
        return self.step_end_s[-1] - self.step_time_s, self.step_end_s[-1]

    def span(self, index: int) -> Span:
        task = self.graph.task(index)
        return Span(
            task.name,
            task.stream,
            task.work.category,
            float(self.start_s[index]),
            float(self.end_s[index]),
            task.tag,
        )

    def device_breakdowns(self, compute: str = "compute") -> dict[str, dict[str, float]]:
        """Every second of the step window on each device, by category, in order of precedence.

        A device is the first part of a stream's name. Time in which its `compute` stream is busy
        belongs to the category of that task; time in which only other streams are busy is *exposed*
        and belongs to theirs; the rest is `bubble`.
        """
        devices: dict[str, list[int]] = {}
        for stream, name in enumerate(self.graph.streams):
            devices.setdefault(name.split("/", 1)[0], []).append(stream)
        order = np.argsort(self.graph.stream, kind="stable")
        bounds = np.searchsorted(self.graph.stream[order], np.arange(len(self.graph.streams) + 1))
        result = {}
        for device, streams in devices.items():
            computes = [s for s in streams if self.graph.streams[s].endswith(f"/{compute}")]
            if not computes:
                continue
            others = [s for s in streams if s not in computes]
            tasks = [np.concatenate([order[bounds[s] : bounds[s + 1]] for s in group] or [order[:0]])
                     for group in (computes, others)]
            result[device] = self._breakdown(tasks)
        return result

    def _breakdown(self, by_precedence: list[NDArray[np.int64]]) -> dict[str, float]:
        low, high = self.step_window_s
        categories = np.array([work.category for work in self.graph.works])
        taken: list[Floats] = []
        seconds: dict[str, float] = {}
        for tasks in by_precedence:
            names = categories[self.graph.work[tasks]] if len(tasks) else np.array([], dtype=str)
            for category in np.unique(names):
                chosen = tasks[names == category]
                spans = np.stack([self.start_s[chosen], self.end_s[chosen]], axis=1).clip(low, high)
                before = union_length_s(taken)
                taken = [_merge(np.concatenate([*taken, spans]))]
                gained = union_length_s(taken) - before
                seconds[str(category)] = seconds.get(str(category), 0.0) + gained
        seconds["bubble"] = max(0.0, (high - low) - union_length_s(taken))
        return seconds


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


def union_length_s(parts: list[Floats]) -> float:
    """Total length of disjoint intervals."""
    return float(sum((part[:, 1] - part[:, 0]).sum() for part in parts))
