"""Flows with the same route and nominal speed: they always run at one rate and share one clock.

A flow that was never slowed ends exactly at its start plus its duration; such ends have their own heap.
Once the class is slowed, a flow ends when the class's service clock, in seconds at nominal speed, reaches
the flow's mark.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import NamedTuple

OnDone = Callable[[], None]
Waiting = tuple[float, int, int, OnDone]
"""End of a flow (a time or a mark), its number, its weight and its callback."""


class Flow(NamedTuple):
    """The load of one communication on the network.

    `route` holds link ids, one entry each time a link is crossed. `bytes_per_s` is the nominal speed,
    reached when nothing else uses the links, and never exceeded. `weight` is how many identical flows
    this one stands for: each of them crosses the whole route at the rate of the class.
    """

    route: tuple[int, ...]
    bytes_per_s: float
    weight: int = 1


class PathClass:
    """The live flows of one class and their service clock."""

    __slots__ = (
        "bytes_per_s",
        "change",
        "ends",
        "fraction",
        "index",
        "links",
        "marks",
        "new",
        "next_s",
        "service_s",
        "since_s",
        "weight",
    )

    def __init__(self, index: int, route: Iterable[int], bytes_per_s: float) -> None:
        self.index = index
        self.links = tuple(sorted(Counter(route).items()))
        self.bytes_per_s = bytes_per_s
        self.fraction = 1.0
        self.weight = 0
        self.change = 0
        """Change of the weight at this instant, not yet applied."""
        self.new: list[tuple[float, int, int, OnDone]] = []
        """Flows that began at this instant: duration, number, weight, callback."""
        self.ends: list[Waiting] = []
        self.marks: list[Waiting] = []
        self.next_s = math.inf
        """When the next flow ends at the present rate."""
        self.service_s = 0.0
        self.since_s = 0.0

    def advance(self, now_s: float) -> None:
        """Advance the service clock to `now_s` at the present rate."""
        if now_s > self.since_s:
            self.service_s += self.fraction * (now_s - self.since_s)
            self.since_s = now_s

    def settle(self, fraction: float, now_s: float, grid_s: float) -> float:
        """Run at `fraction` of the nominal speed from now on; returns when the next flow will end."""
        self.advance(now_s)
        self.fraction = fraction
        if fraction < 1.0:
            service_s, marks = self.service_s, self.marks
            if self.ends:  # slowed for the first time: exact ends become marks of the service clock
                for end_s, number, weight, on_done in self.ends:
                    heappush(marks, (service_s + (end_s - now_s), number, weight, on_done))
                self.ends.clear()
            for duration_s, number, weight, on_done in self.new:
                heappush(marks, (service_s + duration_s, number, weight, on_done))
        else:
            for duration_s, number, weight, on_done in self.new:
                heappush(self.ends, (now_s + duration_s, number, weight, on_done))
        self.new.clear()
        next_s = self.ends[0][0] if self.ends else math.inf
        if self.marks and fraction > 0:
            mark_s = self._mark_s(grid_s)
            if mark_s < next_s:
                next_s = mark_s
        self.next_s = next_s
        return next_s

    def _mark_s(self, grid_s: float) -> float:
        """Time at which the service clock reaches the first mark at the present rate."""
        left_s = self.marks[0][0] - self.service_s
        end_s = self.since_s + left_s / self.fraction if left_s > 0.0 else self.since_s
        return math.ceil(end_s / grid_s) * grid_s if grid_s else end_s

    def take_done(self, now_s: float, grid_s: float) -> list[Waiting]:
        """Remove and return the flows that have ended; equal ends come in the order of their start."""
        done = []
        while self.ends and self.ends[0][0] <= now_s:
            done.append(heappop(self.ends))
        marks = self.marks
        if marks and self.fraction > 0:
            is_due = self._mark_s(grid_s) <= now_s  # before `advance`, whose rounding may miss the mark
            self.advance(now_s)
            if is_due:
                done.append(heappop(marks))
            while marks and marks[0][0] <= self.service_s:
                done.append(heappop(marks))
        return done
