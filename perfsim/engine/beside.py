"""Computation that slows down while communication runs beside it on the same device.

A communication kernel takes compute units and memory bandwidth from its device while it runs. A computation
of which compute units limit a share c of the time, and memory bandwidth a share m, then progresses at rate

    1 / (1 + c u / (1 - u) + m h / (1 - h))

where u and h are the shares of units and bandwidth that all communications on the device take together.
Rates are kept by chain of tasks, with the mean of its tasks' shares; tensor collectives inside a chain
stretch with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.engine.calendar import Calendar
from perfsim.graph.chains import Chains

Floats = NDArray[np.float64]

UNIT = 1 << 20
"""Shares are added as whole multiples of 1 / UNIT, so that what ends leaves exactly nothing behind."""
MOST_TAKEN = 0.9
"""Share of a device that communication takes at most."""
IDLE = (0.0, 0.0)
"""The additional times where nothing is taken."""


class Beside(NamedTuple):
    """What communication takes, and what limits computation, by work id; shape (works, 2).

    The columns are compute units and memory bandwidth.
    """

    taken: Floats
    """Shares of a device that a communication takes while it runs; 0 for computation."""
    bound: Floats
    """Shares of a computation's time that compute units and memory bandwidth limit; 0 for communication."""


def excess(taken: float) -> float:
    """Additional time of work, relative to its time alone, when a share of what limits it is taken."""
    taken = min(taken, MOST_TAKEN)
    return taken / (1.0 - taken)


class Points(NamedTuple):
    """Points in chains at which other chains may start, in seconds of progress; ascending in each chain."""

    first: list[int]
    """Number of the first point of each chain, and the end of the last."""
    after_s: list[float]
    chain: list[int]
    """The chain that waits for the point; -1 for the end of the chain itself."""


class Load(NamedTuple):
    """What a communication takes from devices while it runs, in 1 / UNIT."""

    devices: tuple[int, ...]
    units: int
    memory: int


class Running:
    """A chain of computation under way; progress is in seconds at full speed."""

    __slots__ = ("bound", "chain", "device", "due_s", "passed_s", "point", "progress_s", "rate", "since_s")

    def __init__(
        self, chain: int, device: int, bound: tuple[float, float], point: int, since_s: float
    ) -> None:
        self.chain, self.device, self.bound = chain, device, bound
        self.point, self.since_s = point, since_s
        self.progress_s = self.passed_s = 0.0
        self.rate = 1.0
        self.due_s = math.inf
        """When the next point is reached at the present rate."""

    def next_due_s(self, after_s: float, grid_s: float) -> float:
        """When a point is reached at the present rate."""
        due_s = self.since_s + (after_s - self.progress_s) / self.rate
        if self.progress_s or self.rate != 1.0:  # otherwise the sum is exact
            return math.ceil(due_s / grid_s) * grid_s
        return due_s


class Pace(NamedTuple):
    """From `since_s` on, a chain that has progressed by `progress_s` runs at `rate`."""

    chain: int
    since_s: float
    progress_s: float
    rate: float


class Devices:
    """Computations on devices, slowed by the communications that run there at the same time.

    `release` is called with each chain that waits for a point of a computation when the point is reached.
    """

    def __init__(
        self, calendar: Calendar, count: int, points: Points, release: Callable[[int], None], grid_s: float
    ) -> None:
        self.calendar, self.points, self.release, self.grid_s = calendar, points, release, grid_s
        self.paces: list[Pace] = []
        """Every change of a chain's rate."""
        self._taken = [[0, 0] for _ in range(count)]
        self._excess = [IDLE] * count
        self._running: list[dict[int, Running]] = [{} for _ in range(count)]
        self._changed: dict[int, None] = {}
        self._begun: list[Running] = []

    def take(self, load: Load, sign: int) -> None:
        """A communication starts now and takes its shares (`sign` 1), or ends and leaves them (-1)."""
        self._work_out_later()
        for device in load.devices:
            self._changed[device] = None
            taken = self._taken[device]
            taken[0] += sign * load.units
            taken[1] += sign * load.memory

    def begin(self, chain: int, device: int, bound: tuple[float, float]) -> None:
        """A computation starts now; its rate is known at the end of the instant."""
        self._work_out_later()
        running = Running(chain, device, bound, self.points.first[chain], self.calendar.now_s)
        self._running[device][chain] = running
        self._begun.append(running)

    def _work_out_later(self) -> None:
        if not self._changed and not self._begun:
            self.calendar.at_end_of_instant(self._work_out)

    def _work_out(self) -> None:
        """Set the rates of all computations that the starts and ends of this instant may change."""
        for device in self._changed:
            units, memory = self._taken[device]
            present = (excess(units / UNIT), excess(memory / UNIT)) if units or memory else IDLE
            if present != self._excess[device]:
                self._excess[device] = present
                for running in self._running[device].values():
                    if running.due_s < math.inf:  # others have just begun
                        self._set_rate(running)
        for running in self._begun:
            if self._excess[running.device] is not IDLE:
                self._set_rate(running)
            if running.due_s == math.inf:
                self._enter(running)
        self._changed.clear()
        self._begun.clear()

    def _set_rate(self, running: Running) -> None:
        """Give a computation its rate from now on."""
        units, memory = self._excess[running.device]
        rate = 1.0 / (1.0 + running.bound[0] * units + running.bound[1] * memory)
        if rate == running.rate:
            return
        now_s = self.calendar.now_s
        progress_s = running.progress_s + running.rate * (now_s - running.since_s)
        running.progress_s = max(progress_s, running.passed_s)  # rounding must not undo a point
        running.since_s, running.rate = now_s, rate
        self.paces.append(Pace(running.chain, now_s, running.progress_s, rate))
        if running.due_s < math.inf:
            self.calendar.take_back(running.due_s, running)
        self._enter(running)

    def _enter(self, running: Running) -> None:
        running.due_s = running.next_due_s(self.points.after_s[running.point], self.grid_s)
        self.calendar.at(running.due_s, running, self._reach)

    def _reach(self, running: Running) -> None:
        """Release the chains that wait for the point that is reached, and go on to the next one."""
        after_s, chain, point = self.points.after_s, self.points.chain, running.point
        running.passed_s = passed_s = after_s[point]
        last = self.points.first[running.chain + 1]
        while point < last and after_s[point] == passed_s:
            if chain[point] >= 0:
                self.release(chain[point])
            point += 1
        if point < last:
            running.point = point
            self._enter(running)
        else:
            del self._running[running.device][running.chain]


def slowed_times(paces: list[Pace], chains: Chains, ready_s: Floats, since_s: Floats, grid_s: float) -> Floats:
    """Times at which progress `since_s` is made, given by place in the chains that start at `ready_s`.

    They agree to the bit with the times at which `Devices` reaches its points.
    """
    of_place = np.repeat(np.arange(len(chains)), chains.length)
    times_s = ready_s[of_place] + since_s
    if not paces:
        return times_s
    chain, began_s, progress_s, rate = (np.array(column) for column in zip(*paces, strict=True))
    order = np.argsort(chain, kind="stable")
    chain, began_s, progress_s, rate = (column[order] for column in (chain, began_s, progress_s, rate))
    slowed = np.zeros(len(chains), dtype=bool)
    slowed[chain] = True
    places = np.flatnonzero(slowed[of_place])
    mine, asked_s = of_place[places], since_s[places]
    total_s = np.zeros(len(chains))
    total_s[slowed] = since_s[chains.first[1:][slowed] - 1]
    base_s = np.cumsum(total_s) - total_s
    pace = np.searchsorted(base_s[chain] + progress_s, base_s[mine] + asked_s) - 1
    # Sums over chains are rounded, so the pace may be off by some; compare within the chain.
    while True:
        late = (pace >= 0) & (chain[pace] == mine) & (progress_s[pace] >= asked_s)
        later = np.minimum(pace + 1, len(chain) - 1)
        early = ~late & (later > pace) & (chain[later] == mine) & (progress_s[later] < asked_s)
        if not late.any() and not early.any():
            break
        pace += early.astype(np.int64) - late.astype(np.int64)
    known = (pace >= 0) & (chain[pace] == mine)
    places, asked_s, pace = places[known], asked_s[known], pace[known]
    exact_s = began_s[pace] + (asked_s - progress_s[pace]) / rate[pace]
    times_s[places] = np.ceil(exact_s / grid_s) * grid_s
    return times_s
