"""Max-min fair sharing of links among the flows that cross them.

All flows with the same route and nominal speed form a *path class* (`path_class.py`): starting or ending
a flow changes only its weight. Only a link whose demand exceeds its capacity can slow a flow. All starts
and ends of one instant are solved together, for the classes that contended links connect to the changed
ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfsim.base.errors import GraphError
from perfsim.engine.calendar import Calendar

# Flows with the same route and nominal speed: they always run at one rate and share one clock.
#
# A flow that was never slowed ends exactly at its start plus its duration; such ends have their own heap.
# Once the class is slowed, a flow ends when the class's service clock, in seconds at nominal speed, reaches
# the flow's mark.

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
            service_s = self.service_s
            marks = self.marks
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


# Max-min fair rates: no rate can grow without lowering one that is no larger.
#
# Progressive filling raises all rates together and fixes the rate of a flow when it reaches its cap or
# when a link on its route is full. D. Bertsekas and R. Gallager, Data Networks, 2nd edition (1992), section
# 6.5.2.

Loads = Sequence[Sequence[tuple[int, int]]]
"""For each class: (link, load per unit of the class's rate), for links that may bind."""

TOLERANCE = 1e-9
"""A link is contended when its demand exceeds its capacity by more than this fraction."""
VECTOR_CLASSES = 64
"""From this many classes on NumPy is faster than a Python loop; both give bitwise equal rates."""


def fill(loads: Loads, caps: list[float], capacity: Sequence[float]) -> list[float]:
    """Rate of each class, given its loads and its cap, and the capacity of every link by id."""
    if len(loads) == 1:
        return [min([caps[0], *(capacity[link] / units for link, units in loads[0])])]
    if len(loads) < VECTOR_CLASSES:
        return fill_by_loop(loads, caps, capacity)
    return fill_by_numpy(loads, caps, capacity)


def fill_one_link(units: list[int], caps: list[float], capacity: float) -> list[float]:
    """`fill_by_loop` for one link: a class whose cap is below the equal share gets its cap."""
    rates = list(caps)
    live = list(range(len(caps)))
    while live:
        share = capacity / sum([units[c] for c in live])
        waiting = [c for c in live if caps[c] > share]
        if len(waiting) == len(live):
            for c in live:
                rates[c] = share
            break
        taken = 0.0  # a plain loop adds in the same order as `fill_by_loop`, so results are bitwise equal
        for c in live:
            if caps[c] <= share:
                taken += units[c] * caps[c]
        capacity = max(0.0, capacity - taken)
        live = waiting
    return rates


def fill_by_loop(loads: Loads, caps: list[float], capacity: Sequence[float]) -> list[float]:
    """Progressive filling, class by class.

    A round fixes a class at its cap, if no link allows it less, or at a link's equal share, if that is
    the tightest limit of every class on the link; so the shares of later rounds never shrink.
    """
    left = {link: capacity[link] for row in loads for link, _ in row}
    rates = list(caps)
    live = [c for c, row in enumerate(loads) if row]
    while live:
        load = dict.fromkeys(left, 0)
        for c in live:
            for link, units in loads[c]:
                load[link] += units
        share = {link: left[link] / units if units else math.inf for link, units in load.items()}
        limit = {c: min(caps[c], *(share[link] for link, _ in loads[c])) for c in live}
        tightest = dict.fromkeys(left, math.inf)
        for c in live:
            for link, _ in loads[c]:
                tightest[link] = min(tightest[link], limit[c])
        taken = dict.fromkeys(left, 0.0)
        waiting = []
        for c in live:
            if limit[c] < caps[c] and not any(limit[c] == share[k] == tightest[k] for k, _ in loads[c]):
                waiting.append(c)
                continue
            rates[c] = limit[c]
            for link, units in loads[c]:
                taken[link] += units * limit[c]
        left = {link: max(0.0, room - taken[link]) for link, room in left.items()}
        live = waiting
    return rates


def fill_by_numpy(loads: Loads, caps: list[float], capacity: Sequence[float]) -> list[float]:
    """`fill_by_loop` vectorised for many classes, with the same order of additions."""
    names = sorted({link for row in loads for link, _ in row})
    index = {link: i for i, link in enumerate(names)}
    left = np.array([capacity[link] for link in names], dtype=np.float64)
    cap = np.array(caps, dtype=np.float64)
    rates = cap.copy()
    owner = np.array([c for c, row in enumerate(loads) for _ in row], dtype=np.intp)
    link = np.array([index[name] for row in loads for name, _ in row], dtype=np.intp)
    units = np.array([unit for row in loads for _, unit in row], dtype=np.float64)
    while len(owner):
        load = np.bincount(link, weights=units, minlength=len(left))
        share = np.divide(left, load, out=np.full(len(left), np.inf), where=load > 0)
        limit = cap.copy()
        np.minimum.at(limit, owner, share[link])
        tightest = np.full(len(left), np.inf)
        np.minimum.at(tightest, link, limit[owner])
        settled = limit == cap
        binds = (limit[owner] == share[link]) & (share[link] == tightest[link])
        settled[owner[binds]] = True
        done = settled[owner]
        rates[owner[done]] = limit[owner[done]]
        taken = np.bincount(link[done], weights=units[done] * limit[owner[done]], minlength=len(left))
        left = np.maximum(0.0, left - taken)
        owner = owner[~done]
        link = link[~done]
        units = units[~done]
    return [float(rate) for rate in rates]


_INDEX = attrgetter("index")


class FairShare:
    """Active flows on shared links, on a calendar.

    `capacities` are the links' bytes/s, by link id. With `grid_s`, a power of two, the ends of slowed
    flows are rounded up to its multiples: times stay on the grid, and their sums stay exact. A flow that
    was never slowed ends exactly at its start + `duration_s`.
    """

    def __init__(self, calendar: Calendar, capacities: ArrayLike, *, grid_s: float = 0.0) -> None:
        self.calendar = calendar
        self.grid_s = grid_s
        self.last_end_s = 0.0
        self.solves = 0
        self.rate_changes = 0
        """Changes of the rate of a path class."""
        self._capacity: list[float] = np.asarray(capacities, dtype=np.float64).tolist()
        self._limit = [capacity * (1 + TOLERANCE) for capacity in self._capacity]
        self._demand = [0.0] * len(self._capacity)
        self._hot = [False] * len(self._capacity)
        self._num_hot = 0
        self._hot_since_s = 0.0
        self._contended_s = 0.0
        self._on_link: list[dict[PathClass, int]] = [{} for _ in self._capacity]
        self._classes: dict[tuple[tuple[int, ...], float], PathClass] = {}
        self._class_of: dict[int, tuple[Flow, PathClass]] = {}
        self._dirty: dict[PathClass, None] = {}
        self._number = 0

    @property
    def num_links(self) -> int:
        """How many links flows may share."""
        return len(self._capacity)

    @property
    def contended_s(self) -> float:
        """Time until now in which at least one link could not carry its flows at full speed."""
        since_s = self.calendar.now_s - self._hot_since_s if self._num_hot else 0.0
        return self._contended_s + since_s

    def start(self, flow: Flow, duration_s: float, on_done: OnDone) -> None:
        """Start a flow now; `on_done` is called when its last byte has left.

        It moves `duration_s * flow.bytes_per_s` bytes, `flow.weight` times. Raises GraphError for a
        duration that is negative or no number, an unknown link, or a speed or weight not above zero.
        """
        if not 0 <= duration_s < math.inf:
            raise GraphError(f"a flow cannot take {duration_s} s")
        known = self._class_of.get(id(flow))
        path = known[1] if known is not None else self._path_class(flow)
        self._number += 1
        self._touch(path)
        path.new.append((duration_s, self._number, flow.weight, on_done))
        path.change += flow.weight

    def _path_class(self, flow: Flow) -> PathClass:
        unknown = [link for link in flow.route if not 0 <= link < len(self._capacity)]
        if unknown:
            raise GraphError(f"a flow crosses link {unknown[0]}; there are {len(self._capacity)} links")
        if not 0 < flow.bytes_per_s < math.inf:
            raise GraphError(f"a flow cannot run at {flow.bytes_per_s} bytes/s")
        if flow.weight < 1:
            raise GraphError(f"a flow cannot stand for {flow.weight} flows")
        key = (tuple(sorted(flow.route)), flow.bytes_per_s)
        path = self._classes.get(key)
        if path is None:
            path = self._classes[key] = PathClass(len(self._classes), flow.route, flow.bytes_per_s)
        self._class_of[id(flow)] = (flow, path)  # keeps the flow alive, so that its id is not reused
        return path

    def _touch(self, path: PathClass) -> None:
        # Rates are solved at the end of the instant, when all its starts and ends are known.
        if not self._dirty:
            self.calendar.at_end_of_instant(self._solve)
        self._dirty[path] = None

    def _finish(self, path: PathClass) -> None:
        """End the flows of a class that are due now."""
        path.next_s = math.inf  # until the class is settled
        self.last_end_s = now_s = self.calendar.now_s
        done = path.take_done(now_s, self.grid_s)
        self._touch(path)
        for _, _, weight, on_done in done:
            path.change -= weight
            on_done()

    # ------------------------------------------------------------------------- once per instant
    def _solve(self) -> None:
        """Set the rates of all classes that the starts and ends of this instant may change."""
        self.solves += 1
        now_s = self.calendar.now_s
        changed = [path for path in self._dirty if path.change]
        for path in changed:
            self._change_weight(path, now_s)
        if changed:
            self._solve_joined(changed, now_s)
        for path in self._dirty:
            if path.new or path.next_s == math.inf:  # as much weight started as ended: the rate stays
                self._settle(path, path.fraction, now_s)
        self._dirty.clear()

    def _change_weight(self, path: PathClass, now_s: float) -> None:
        path.advance(now_s)
        change = path.change
        path.change = 0
        path.weight += change
        for link, count in path.links:
            self._on_link[link][path] = count
            self._demand[link] += change * count * path.bytes_per_s

    def _solve_joined(self, changed: list[PathClass], now_s: float) -> None:
        """Solve the shares of all classes that contended links connect to the changed ones."""
        paths, hot = self._touched(changed, now_s)
        if len(hot) == 1:
            [link] = hot
            on_link = self._on_link[link]
            sharing = [path for path in paths if path in on_link]
            units = [path.weight * on_link[path] for path in sharing]
            rates = fill_one_link(units, [path.bytes_per_s for path in sharing], self._capacity[link])
            paths = [path for path in paths if path not in on_link]
            for path, rate in zip(sharing, rates, strict=True):
                self._settle(path, rate / path.bytes_per_s, now_s)
        if len(hot) > 1:
            loads = [[(k, path.weight * count) for k, count in path.links if k in hot] for path in paths]
            rates = fill(loads, [path.bytes_per_s for path in paths], self._capacity)
            for path, rate in zip(paths, rates, strict=True):
                self._settle(path, rate / path.bytes_per_s, now_s)
        else:
            for path in paths:
                self._settle(path, 1.0, now_s)

    def _touched(self, changed: list[PathClass], now_s: float) -> tuple[list[PathClass], set[int]]:
        """The live classes to solve again, oldest first, and their contended links."""
        reached = dict.fromkeys(changed)
        seen: set[int] = set()
        hot: set[int] = set()
        stack = list(changed)
        while stack:
            for link, _ in stack.pop().links:
                if link in seen:
                    continue
                seen.add(link)
                was_hot = self._hot[link]
                is_hot = self._demand[link] > self._limit[link]
                if was_hot != is_hot:
                    self._count_hot(link, is_hot, now_s)
                if is_hot:
                    hot.add(link)
                if was_hot or is_hot:  # a link that is no longer contended frees the flows on it
                    new = [path for path in self._on_link[link] if path not in reached]
                    reached.update(dict.fromkeys(new))
                    stack.extend(new)
        for path in changed:
            if not path.weight:
                self._detach(path)
        return sorted((path for path in reached if path.weight), key=_INDEX), hot

    def _detach(self, path: PathClass) -> None:
        path.service_s = 0.0
        for link, _ in path.links:
            self._on_link[link].pop(path, None)
            if not self._on_link[link]:
                self._demand[link] = 0.0  # drop the rounding error of sums and differences

    def _count_hot(self, link: int, is_hot: bool, now_s: float) -> None:
        """Note that a link is contended from now on, or no longer."""
        self._hot[link] = is_hot
        before = self._num_hot
        self._num_hot = self._num_hot + (1 if is_hot else -1)
        if not before:
            self._hot_since_s = now_s
        elif not self._num_hot:
            self._contended_s += now_s - self._hot_since_s

    def _settle(self, path: PathClass, fraction: float, now_s: float) -> None:
        if fraction == path.fraction and not path.new and path.next_s < math.inf:
            return
        self.rate_changes += fraction != path.fraction
        before_s = path.next_s
        next_s = path.settle(fraction, now_s, self.grid_s)
        if next_s != before_s:
            if before_s < math.inf:
                self.calendar.take_back(before_s, path)
            if next_s < math.inf:
                self.calendar.at(next_s, path, self._finish)
