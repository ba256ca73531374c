"""Max-min fair sharing of links among the flows that cross them.

All flows with the same route and nominal speed form a *path class* (`path_class.py`): starting or ending
a flow changes only its weight. Only a link whose demand exceeds its capacity can slow a flow. All starts
and ends of one instant are solved together, for the classes that contended links connect to the changed
ones. Known future starts and ends wait in heaps, so SimPy is called once per instant, not once per flow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from operator import attrgetter

import numpy as np
import simpy
from numpy.typing import ArrayLike
from simpy.events import NORMAL, EventPriority

from perfsim.engine.max_min import TOLERANCE, fill, fill_one_link
from perfsim.engine.path_class import Flow, OnDone, PathClass
from perfsim.errors import GraphError

_INDEX = attrgetter("index")


class _EndOfInstant(simpy.Event):
    """An event at the present time, after all others of that time; set up like SimPy's own Timeout."""

    def __init__(self, env: simpy.Environment, callback: Callable[[simpy.Event], None]) -> None:
        super().__init__(env)
        self.callbacks = [callback]
        self._ok, self._value = True, None
        env.schedule(self, priority=EventPriority(NORMAL + 1))


class FairShare:
    """Active flows on shared links, in a SimPy environment.

    `capacities` are the links' bytes/s, by link id. With `grid_s`, a power of two, the ends of slowed
    flows are rounded up to its multiples: times stay on the grid, and their sums stay exact. A flow that
    was never slowed ends exactly at its start + `duration_s`: at `now_s`, which equals `env.now` on a grid
    and may differ from it by a rounding elsewhere.

    SimPy cannot cancel a timer, so a stale one may move `env.now` past the last real event: take the
    makespan from the ends, or from `last_end_s`.
    """

    def __init__(self, env: simpy.Environment, capacities: ArrayLike, *, grid_s: float = 0.0) -> None:
        self.env = env
        self.grid_s = grid_s
        self.now_s = float(env.now)
        self.last_end_s = 0.0
        self.live_flows = 0
        self.solves = 0
        self._capacity: list[float] = np.asarray(capacities, dtype=np.float64).tolist()
        self._limit = [capacity * (1 + TOLERANCE) for capacity in self._capacity]
        self._demand = [0.0] * len(self._capacity)
        self._hot = [False] * len(self._capacity)
        self._on_link: list[dict[PathClass, int]] = [{} for _ in self._capacity]
        self._classes: dict[tuple[tuple[int, ...], float], PathClass] = {}
        self._class_of: dict[int, tuple[Flow, PathClass]] = {}
        self._dirty: dict[PathClass, None] = {}
        self._starts: list[tuple[float, int, PathClass, float, int, OnDone]] = []
        self._ends: list[tuple[float, int, PathClass]] = []
        self._armed: list[float] = []
        self._wakes: list[Callable[[simpy.Event], None]] = [self._wake]
        self._number = 0
        self._inside = False

    # ----------------------------------------------------------------------------------- starts
    def start(self, flow: Flow, duration_s: float, on_done: OnDone) -> None:
        """Start a flow now; `on_done` is called when its last byte has left.

        It moves `duration_s * flow.bytes_per_s` bytes, `flow.weight` times. Raises GraphError for a
        duration that is negative or no number, an unknown link, or a speed or weight not above zero.
        """
        if not self._inside:
            self.now_s = max(self.now_s, float(self.env.now))
        self.start_at(self.now_s, flow, duration_s, on_done)

    def start_at(self, when_s: float, flow: Flow, duration_s: float, on_done: OnDone) -> None:
        """Start a flow at `when_s`, which is not in the past; otherwise like `start`."""
        if not 0 <= duration_s < math.inf:
            raise GraphError(f"a flow cannot take {duration_s} s")
        cached = self._class_of.get(id(flow))
        path = cached[1] if cached is not None else self._path_class(flow)
        self._number += 1
        if when_s > self.now_s:
            heappush(self._starts, (when_s, self._number, path, duration_s, flow.weight, on_done))
            if not self._inside:
                self._arm()
        else:
            self._begin(path, duration_s, flow.weight, on_done, self._number)

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

    def _begin(self, path: PathClass, duration_s: float, weight: int, on_done: OnDone, number: int) -> None:
        if not self._inside:
            self._touch(path)
        self._dirty[path] = None
        path.new.append((duration_s, number, weight, on_done))
        path.change += weight
        self.live_flows += 1

    def _touch(self, path: PathClass) -> None:
        # Rates are solved at the end of the instant, when all its starts and ends are known.
        if not self._dirty and not self._inside:
            _EndOfInstant(self.env, self._solve)
        self._dirty[path] = None

    # ---------------------------------------------------------------------------------- instants
    def _arm(self) -> None:
        """Have SimPy call `_wake` at the next known start or end."""
        # A class that was solved again has a new end; the old one is still in the heap.
        while self._ends and self._ends[0][0] != self._ends[0][2].next_s:
            heappop(self._ends)
        next_s = self._ends[0][0] if self._ends else math.inf
        if self._starts and self._starts[0][0] < next_s:
            next_s = self._starts[0][0]
        if next_s < math.inf and (not self._armed or next_s < self._armed[0]):
            heappush(self._armed, next_s)
            delay_s = next_s - self.env.now
            self.env.timeout(max(0.0, delay_s)).callbacks = self._wakes

    def _wake(self, _event: simpy.Event) -> None:
        """Process the starts and ends that are due, then have the rates solved."""
        due_s = heappop(self._armed)
        if due_s > self.now_s:
            self.now_s = due_s
        self._inside = True
        try:
            self._carry_out()
        finally:
            self._inside = False
        if self._dirty and self.env.peek() <= self.env.now:
            _EndOfInstant(self.env, self._solve)  # other events of this instant may still start flows
        elif self._dirty:
            self._solve(_event)
        else:
            self._arm()

    def _carry_out(self) -> None:
        """Process due ends, then due starts, until none is left at this instant."""
        starts, ends, now_s = self._starts, self._ends, self.now_s
        while True:
            if ends and ends[0][0] <= now_s:
                due_s, _, path = heappop(ends)
                if due_s == path.next_s:
                    self._finish(path)
            elif starts and starts[0][0] <= now_s:
                _, number, path, duration_s, weight, on_done = heappop(starts)
                self._begin(path, duration_s, weight, on_done, number)
            else:
                return

    def _finish(self, path: PathClass) -> None:
        path.next_s = math.inf  # until the class is settled
        done = path.take_done(self.now_s, self.grid_s)
        self.last_end_s = self.now_s
        self.live_flows -= len(done)
        self._touch(path)
        for _, _, weight, on_done in done:
            path.change -= weight
            on_done()

    # ------------------------------------------------------------------------- once per instant
    def _solve(self, _event: simpy.Event) -> None:
        """Set the rates of all classes that the starts and ends of this instant may change."""
        if not self._dirty:
            return
        self.solves += 1
        changed = [path for path in self._dirty if path.change]
        for path in changed:
            self._change_weight(path)
        if changed:
            self._solve_joined(changed)
        for path in self._dirty:
            if path.new or path.next_s == math.inf:  # as much weight started as ended: the rate stays
                self._settle(path, path.fraction)
        self._dirty.clear()
        self._arm()

    def _change_weight(self, path: PathClass) -> None:
        path.advance(self.now_s)
        change, path.change = path.change, 0
        path.weight += change
        for link, count in path.links:
            self._on_link[link][path] = count
            self._demand[link] += change * count * path.bytes_per_s

    def _solve_joined(self, changed: list[PathClass]) -> None:
        """Solve the shares of all classes that contended links connect to the changed ones."""
        paths, hot = self._touched(changed)
        if len(hot) == 1:
            [link] = hot
            on_link = self._on_link[link]
            sharing = [path for path in paths if path in on_link]
            units = [path.weight * on_link[path] for path in sharing]
            rates = fill_one_link(units, [path.bytes_per_s for path in sharing], self._capacity[link])
            paths = [path for path in paths if path not in on_link]
            for path, rate in zip(sharing, rates, strict=True):
                self._settle(path, rate / path.bytes_per_s)
        if len(hot) > 1:
            loads = [[(k, path.weight * count) for k, count in path.links if k in hot] for path in paths]
            rates = fill(loads, [path.bytes_per_s for path in paths], self._capacity)
            for path, rate in zip(paths, rates, strict=True):
                self._settle(path, rate / path.bytes_per_s)
        else:
            for path in paths:
                self._settle(path, 1.0)

    def _touched(self, changed: list[PathClass]) -> tuple[list[PathClass], set[int]]:
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
                self._hot[link] = is_hot
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

    def _settle(self, path: PathClass, fraction: float) -> None:
        if fraction == path.fraction and not path.new and path.next_s < math.inf:
            return
        before_s = path.next_s
        next_s = path.settle(fraction, self.now_s, self.grid_s)
        if next_s != before_s and next_s < math.inf:
            heappush(self._ends, (next_s, path.index, path))


__all__ = ["FairShare", "Flow", "PathClass"]
