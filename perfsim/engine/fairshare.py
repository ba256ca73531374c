"""Links shared max-min fairly by the flows that cross them.

All flows with one route and one nominal speed run at one rate, always: they form a *path class*,
and a start or an end changes one number of it. A class keeps a service clock, in seconds at nominal
speed, and a heap of the readings at which its flows are done. Only links whose demand exceeds their
capacity can slow anybody; a start or an end re-solves the classes that such links join to it, once
for all that happens at one instant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import simpy
from numpy.typing import ArrayLike
from simpy.events import NORMAL, EventPriority

from perfsim.engine.max_min import TOLERANCE, Floats, fill, max_min_rates
from perfsim.errors import GraphError


class Flow(NamedTuple):
    """What a communication puts on the network.

    `route` holds link ids, one entry each time a link is crossed. `bytes_per_s` is the nominal speed,
    reached when nothing else uses the links, and never exceeded. `weight` is how many identical flows
    this one stands for: each of them crosses the whole route at the rate of the class.
    """

    route: tuple[int, ...]
    bytes_per_s: float
    weight: int = 1


class LinkBytes(NamedTuple):
    """Bytes by link: integrated from the rates, and asked for by the flows that were started."""

    carried_bytes: Floats
    asked_bytes: Floats


class _EndOfInstant(simpy.Event):
    """Comes now, but after all else that happens now; made as SimPy makes its own Timeout."""

    def __init__(self, env: simpy.Environment, callback: Callable[[simpy.Event], None]) -> None:
        super().__init__(env)
        self.callbacks = [callback]
        self._ok, self._value = True, None
        env.schedule(self, priority=EventPriority(NORMAL + 1))


class _Transfer:
    """One flow under way. Until something slows it, its own timer ends it."""

    __slots__ = ("duration_s", "end_s", "on_done", "slowed", "weight")

    def __init__(self, duration_s: float, weight: int, on_done: Callable[[], None]) -> None:
        self.duration_s = duration_s
        self.weight = weight
        self.on_done = on_done
        self.end_s = math.inf
        self.slowed = False


class _PathClass:
    """Live flows of one route and nominal speed, and the clock of the service that each received."""

    __slots__ = (
        "asked_s",
        "bytes_per_s",
        "fraction",
        "free",
        "index",
        "links",
        "marks",
        "new",
        "service_s",
        "since_s",
        "timer",
        "version",
        "weight",
        "weighted_service_s",
    )

    def __init__(self, index: int, route: Iterable[int], bytes_per_s: float) -> None:
        self.index = index
        self.links = sorted(Counter(route).items())
        self.bytes_per_s = bytes_per_s
        self.fraction = 1.0
        self.weight = 0
        self.new: list[_Transfer] = []
        self.free: dict[_Transfer, None] = {}
        self.marks: list[tuple[float, int, _Transfer]] = []
        self.service_s = 0.0
        self.since_s = 0.0
        self.timer: tuple[float, float] | None = None
        self.version = 0
        self.weighted_service_s = 0.0
        self.asked_s = 0.0

    def advance(self, now_s: float) -> None:
        """Credit every live flow with what it received since the last call."""
        if now_s > self.since_s:
            served_s = self.fraction * (now_s - self.since_s)
            self.service_s += served_s
            self.weighted_service_s += self.weight * served_s
            self.since_s = now_s


class FairShare:
    """Flows under way on shared links, in a SimPy environment.

    `capacities` are the links' bytes/s, by link id. With `grid_s`, a power of two, the ends of slowed
    flows are rounded up to its multiples: times that start on the grid stay on it, and sums of them
    stay exact. A flow that nothing ever slowed ends at its start + `duration_s` to the bit.

    SimPy cannot cancel a timer, so a stale one may move `env.now` past the last real event: take the
    makespan from the ends, or from `last_end_s`.
    """

    def __init__(self, env: simpy.Environment, capacities: ArrayLike, *, grid_s: float = 0.0) -> None:
        self.env = env
        self.grid_s = grid_s
        self.last_end_s = 0.0
        self.live_flows = 0
        self.solves = 0
        self._capacity: list[float] = np.asarray(capacities, dtype=np.float64).tolist()
        self._limit = [capacity * (1 + TOLERANCE) for capacity in self._capacity]
        self._demand = [0.0] * len(self._capacity)
        self._hot = [False] * len(self._capacity)
        self._on_link: list[dict[_PathClass, int]] = [{} for _ in self._capacity]
        self._classes: dict[tuple[tuple[int, ...], float], _PathClass] = {}
        self._dirty: dict[_PathClass, None] = {}
        self._marked = 0

    def start(self, flow: Flow, duration_s: float, on_done: Callable[[], None]) -> None:
        """Start a flow now; `on_done` is called when its last byte has left.

        It moves `duration_s * flow.bytes_per_s` bytes, `flow.weight` times. Raises GraphError for a
        duration that is negative or no number, an unknown link, or a speed or weight not above zero.
        """
        if not 0 <= duration_s < math.inf:
            raise GraphError(f"a flow cannot take {duration_s} s")
        path = self._classes.get(flow[:2]) or self._new_class(flow)
        if flow.weight < 1:
            raise GraphError(f"a flow cannot stand for {flow.weight} flows")
        path.new.append(_Transfer(duration_s, flow.weight, on_done))
        path.asked_s += flow.weight * duration_s
        self.live_flows += 1
        self._change_weight(path, flow.weight)

    def link_bytes(self) -> LinkBytes:
        """What each link carried until now, and what it will have carried when every flow is done."""
        carried, asked = np.zeros(len(self._capacity)), np.zeros(len(self._capacity))
        for path in self._classes.values():
            path.advance(self.env.now)
            for link, count in path.links:
                carried[link] += count * path.bytes_per_s * path.weighted_service_s
                asked[link] += count * path.bytes_per_s * path.asked_s
        return LinkBytes(carried, asked)

    def _new_class(self, flow: Flow) -> _PathClass:
        unknown = [link for link in flow.route if not 0 <= link < len(self._capacity)]
        if unknown:
            raise GraphError(f"a flow crosses link {unknown[0]}; there are {len(self._capacity)} links")
        if not 0 < flow.bytes_per_s < math.inf:
            raise GraphError(f"a flow cannot run at {flow.bytes_per_s} bytes/s")
        path = _PathClass(len(self._classes), flow.route, flow.bytes_per_s)
        self._classes[flow[:2]] = path
        return path

    def _change_weight(self, path: _PathClass, by: int) -> None:
        """Note that flows of a class began or ended now, and have the solver run after this instant."""
        path.advance(self.env.now)
        path.weight += by
        for link, count in path.links:
            self._on_link[link][path] = count
            self._demand[link] += by * count * path.bytes_per_s
        if not self._dirty:
            _EndOfInstant(self.env, self._solve)
        self._dirty[path] = None

    # ------------------------------------------------------------------------- once per instant
    def _solve(self, _event: simpy.Event) -> None:
        """Settle the rates of all classes that this instant's starts and ends can have changed."""
        paths = self._touched()
        loads = [
            [(link, path.weight * count) for link, count in path.links if self._hot[link]] for path in paths
        ]
        self._dirty.clear()
        self.solves += 1
        rates = fill(loads, [path.bytes_per_s for path in paths], self._capacity)
        for path, rate in zip(paths, rates, strict=True):
            self._set_fraction(path, rate / path.bytes_per_s)

    def _touched(self) -> list[_PathClass]:
        """The live classes that contended links join to the changed ones, oldest first."""
        reached = dict(self._dirty)
        seen: set[int] = set()
        stack = list(self._dirty)
        while stack:
            for link, _ in stack.pop().links:
                if link in seen:
                    continue
                seen.add(link)
                was_hot, self._hot[link] = self._hot[link], self._demand[link] > self._limit[link]
                if was_hot or self._hot[link]:
                    new = [path for path in self._on_link[link] if path not in reached]
                    reached.update(dict.fromkeys(new))
                    stack.extend(new)
        for path in self._dirty:
            if not path.weight:
                self._detach(path)
        return sorted((path for path in reached if path.weight), key=lambda path: path.index)

    def _detach(self, path: _PathClass) -> None:
        path.service_s = 0.0
        for link, _ in path.links:
            del self._on_link[link][path]
            if not self._on_link[link]:
                self._demand[link] = 0.0  # forget what rounding left of sums and differences

    def _set_fraction(self, path: _PathClass, fraction: float) -> None:
        """Let a class run at `fraction` of its nominal speed from now on, and arm its timers."""
        now = self.env.now
        path.advance(now)
        path.fraction = fraction
        if fraction < 1.0:
            for transfer in path.free:
                self._mark(path, transfer, transfer.end_s - now)
            path.free.clear()
        for transfer in path.new:
            if fraction < 1.0:
                self._mark(path, transfer, transfer.duration_s)
            else:
                transfer.end_s = now + transfer.duration_s
                path.free[transfer] = None
                self._after(transfer.duration_s, partial(self._free_done, path, transfer))
        path.new.clear()
        self._arm(path)

    def _mark(self, path: _PathClass, transfer: _Transfer, left_s: float) -> None:
        """Have the class's service clock end a flow that still needs `left_s` at nominal speed."""
        transfer.slowed = True
        self._marked += 1
        heappush(path.marks, (path.service_s + left_s, self._marked, transfer))

    def _arm(self, path: _PathClass) -> None:
        """Set a timer for the first mark, unless the one that is set is still right."""
        want = (path.marks[0][0], path.fraction) if path.marks and path.fraction > 0 else None
        if want == path.timer:
            return
        path.timer = want
        path.version += 1
        if want is not None:
            delay_s = max(0.0, self._end_s(path, want[0]) - self.env.now)
            self._after(delay_s, partial(self._marked_done, path, path.version))

    def _end_s(self, path: _PathClass, mark: float) -> float:
        """When the service clock, last read at `since_s`, comes to `mark` at the present rate."""
        end_s = path.since_s + max(0.0, mark - path.service_s) / path.fraction
        return math.ceil(end_s / self.grid_s) * self.grid_s if self.grid_s else end_s

    def _after(self, delay_s: float, callback: Callable[[simpy.Event], None]) -> None:
        timer = self.env.timeout(delay_s)
        timer.callbacks = [callback]

    # ------------------------------------------------------------------------------------- ends
    def _free_done(self, path: _PathClass, transfer: _Transfer, _event: simpy.Event) -> None:
        if not transfer.slowed:
            del path.free[transfer]
            self._finish(path, [transfer])

    def _marked_done(self, path: _PathClass, version: int, _event: simpy.Event) -> None:
        if version != path.version:
            return
        path.advance(self.env.now)
        path.timer = None
        path.version += 1
        done = [heappop(path.marks)[2]]
        while path.marks and self._end_s(path, path.marks[0][0]) <= self.env.now:
            done.append(heappop(path.marks)[2])
        self._finish(path, done)

    def _finish(self, path: _PathClass, done: list[_Transfer]) -> None:
        self.last_end_s = self.env.now
        self.live_flows -= len(done)
        self._change_weight(path, -sum(transfer.weight for transfer in done))
        for transfer in done:
            transfer.on_done()


__all__ = ["FairShare", "Flow", "LinkBytes", "max_min_rates"]
