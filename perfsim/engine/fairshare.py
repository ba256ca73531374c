"""Max-min fair sharing of links among the flows that cross them.

All flows with the same route and nominal speed form a *path class* (`path_class.py`): starting or ending
a flow changes only its weight. Only a link whose demand exceeds its capacity can slow a flow. All starts
and ends of one instant are solved together, for the classes that contended links connect to the changed
ones.
"""

from __future__ import annotations

import math
from operator import attrgetter

import numpy as np
from numpy.typing import ArrayLike

from perfsim.engine.calendar import Calendar
from perfsim.engine.max_min import TOLERANCE, fill, fill_one_link
from perfsim.engine.path_class import Flow, OnDone, PathClass
from perfsim.errors import GraphError

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
        change, path.change = path.change, 0
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
                was_hot, is_hot = self._hot[link], self._demand[link] > self._limit[link]
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
        before, self._num_hot = self._num_hot, self._num_hot + (1 if is_hot else -1)
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


__all__ = ["FairShare", "Flow", "PathClass"]
