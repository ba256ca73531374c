"""Computation that slows down while communication runs beside it on the same device.

A communication kernel takes compute units and memory bandwidth from its device while it runs. A computation
of which compute units limit a share c of the time, and memory bandwidth a share m, then progresses at rate

    1 / (1 + c u / (1 - u) + m h / (1 - h))

where u and h are the shares of units and bandwidth that all communications on the device take together. The
tasks of a chain are followed together: the time from one point of a chain to another is a sum over its tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.costs.price import MOST_TAKEN
from perfsim.engine.calendar import Calendar
from perfsim.graph.chains import Chains

Floats = NDArray[np.float64]

UNIT = 1 << 20
"""Shares are added as whole multiples of 1 / UNIT, so that what ends leaves exactly nothing behind."""


class Beside(NamedTuple):
    """What communication takes, and what limits computation, by work id; shape (works, 2).

    The columns are compute units and memory bandwidth.
    """

    taken: Floats
    """Shares of a device that a communication takes while it runs; 0 for computation."""
    bound: Floats
    """Shares of a computation's time that compute units and memory bandwidth limit; 0 for communication."""


class Load(NamedTuple):
    """What a communication takes from devices while it runs, in 1 / UNIT."""

    devices: tuple[int, ...]
    units: int
    memory: int


class Excess(NamedTuple):
    """Additional time of work that units, or memory bandwidth, limit, relative to its time alone."""

    units: float
    memory: float


IDLE = Excess(0.0, 0.0)
"""Nothing is taken."""


def excess(taken: float) -> float:
    """Additional time of work when a share of what limits it is taken."""
    taken = min(taken, MOST_TAKEN)
    return taken / (1.0 - taken)


class Progress(NamedTuple):
    """Seconds of the tasks of a chain alone, and those of them that units and memory bandwidth limit."""

    alone_s: float
    units_s: float
    memory_s: float

    def took_s(self, since: Progress, beside: Excess) -> float:
        """Time from an earlier progress to this one."""
        return (
            (self.alone_s - since.alone_s)
            + beside.units * (self.units_s - since.units_s)
            + beside.memory * (self.memory_s - since.memory_s)
        )


BEGIN = Progress(0.0, 0.0, 0.0)


class Points(NamedTuple):
    """Points in chains at which other chains may start, ascending in each chain."""

    first: Sequence[int]
    """Number of the first point of each chain, and the end of the last."""
    after_s: Sequence[float]
    """Seconds of the chain's tasks alone up to each point."""
    place: Sequence[int]
    """Place of the task that ends there, among all chains."""
    chain: Sequence[int]
    """The chain that waits for the point; -1 for the end of the chain itself."""


class Pace(NamedTuple):
    """From `since_s` on, a chain that has made some progress is slowed by `beside`."""

    chain: int
    since_s: float
    progress: Progress
    beside: Excess


class Running:
    """A chain of computation under way."""

    __slots__ = ("device", "due_s", "pace", "passed", "point")

    def __init__(self, device: int, pace: Pace, point: int) -> None:
        self.device, self.pace, self.point = device, pace, point
        self.passed = -1
        """Number of the last point that was reached; -1: none."""
        self.due_s = math.inf
        """When the next point is reached."""


class Devices:
    """Computations on devices, slowed by the communications that run there at the same time.

    `progress` has the progress at the end of every task, by place: three sequences. `release` is called with
    each chain that waits for a point of a computation when the point is reached.
    """

    def __init__(
        self,
        calendar: Calendar,
        count: int,
        points: Points,
        progress: Sequence[Sequence[float]],
        first_place: Sequence[int],
        release: Callable[[int], None],
        grid_s: float,
    ) -> None:
        self.calendar, self.points, self.release, self.grid_s = calendar, points, release, grid_s
        self.paces: list[Pace] = []
        """Every change of a chain's pace."""
        self._progress, self._first_place = progress, first_place
        self._taken = [[0, 0] for _ in range(count)]
        self._beside = [IDLE] * count
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

    def begin(self, chain: int, device: int) -> None:
        """A computation starts now; its pace is known at the end of the instant."""
        self._work_out_later()
        running = Running(device, Pace(chain, self.calendar.now_s, BEGIN, IDLE), self.points.first[chain])
        self._running[device][chain] = running
        self._begun.append(running)

    def _work_out_later(self) -> None:
        if not self._changed and not self._begun:
            self.calendar.at_end_of_instant(self._work_out)

    def _work_out(self) -> None:
        """Set the paces of all computations that the starts and ends of this instant may change."""
        for device in self._changed:
            units, memory = self._taken[device]
            beside = Excess(excess(units / UNIT), excess(memory / UNIT)) if units or memory else IDLE
            if beside != self._beside[device]:
                self._beside[device] = beside
                for running in self._running[device].values():
                    if running.due_s < math.inf:  # others have just begun
                        self._change(running, beside)
        for running in self._begun:
            beside = self._beside[running.device]
            if beside is IDLE:
                self._enter(running)
            else:
                self._change(running, beside)
        self._changed.clear()
        self._begun.clear()

    def _change(self, running: Running, beside: Excess) -> None:
        """Give a computation another pace from now on."""
        now_s, pace, passed = self.calendar.now_s, running.pace, running.passed
        progress = self._made(pace, now_s - pace.since_s) if now_s > pace.since_s else pace.progress
        if passed >= 0 and progress.alone_s < self.points.after_s[passed]:
            progress = self._at(self.points.place[passed])  # rounding must not undo a point
        running.pace = pace = Pace(pace.chain, now_s, progress, beside)
        self.paces.append(pace)
        if running.due_s < math.inf:
            self.calendar.take_back(running.due_s, running)
        self._enter(running)

    def _made(self, pace: Pace, elapsed_s: float) -> Progress:
        """Progress of a chain after some time at one pace."""
        begin, (units, memory) = pace.progress, pace.beside
        alone_s, units_s, memory_s = self._progress
        low, high = self._first_place[pace.chain], self._first_place[pace.chain + 1] - 1
        start = low
        while low < high:  # find the task that is under way; bisect with a key would take three times as long
            middle = (low + high) // 2
            took_s = alone_s[middle] - begin.alone_s
            took_s += units * (units_s[middle] - begin.units_s)
            took_s += memory * (memory_s[middle] - begin.memory_s)
            if took_s < elapsed_s:
                low = middle + 1
            else:
                high = middle
        since, end = self._at(low - 1) if low > start else BEGIN, self._at(low)
        if since.alone_s < begin.alone_s:
            since = begin
        whole_s = end.took_s(since, pace.beside)
        if whole_s <= 0.0:
            return end
        share = min(1.0, (elapsed_s - since.took_s(begin, pace.beside)) / whole_s)
        return Progress(
            since.alone_s + share * (end.alone_s - since.alone_s),
            since.units_s + share * (end.units_s - since.units_s),
            since.memory_s + share * (end.memory_s - since.memory_s),
        )

    def _at(self, place: int) -> Progress:
        alone_s, units_s, memory_s = self._progress
        return Progress(alone_s[place], units_s[place], memory_s[place])

    def _enter(self, running: Running) -> None:
        """Enter the next point of a computation in the calendar."""
        pace, point = running.pace, running.point
        if pace.beside is IDLE and pace.progress is BEGIN:
            running.due_s = pace.since_s + self.points.after_s[point]  # exact
        else:
            took_s = self._at(self.points.place[point]).took_s(pace.progress, pace.beside)
            running.due_s = math.ceil((pace.since_s + took_s) / self.grid_s) * self.grid_s
        self.calendar.at(running.due_s, running, self._reach)

    def _reach(self, running: Running) -> None:
        """Release the chains that wait for the point that is reached, and go on to the next one."""
        after_s, chain, point = self.points.after_s, self.points.chain, running.point
        running.passed = point
        passed_s, last = after_s[point], self.points.first[running.pace.chain + 1]
        while point < last and after_s[point] == passed_s:
            if chain[point] >= 0:
                self.release(chain[point])
            point += 1
        if point < last:
            running.point = point
            self._enter(running)
        else:
            del self._running[running.device][running.pace.chain]


class Stretched:
    """Times of the tasks of chains, some of which were slowed; they agree to the bit with `Devices`."""

    def __init__(self, paces: list[Pace], chains: Chains, ready_s: Floats, grid_s: float) -> None:
        self.chain_of_place = np.repeat(np.arange(len(chains)), chains.length)
        self.ready_s, self.grid_s = ready_s, grid_s
        rows = np.array([(pace.chain, pace.since_s, *pace.progress, *pace.beside) for pace in paces])
        rows = rows.reshape(-1, 7)
        columns = rows[np.argsort(rows[:, 0], kind="stable")].T
        self.chain, self.since_s = columns[0].astype(np.int64), columns[1]
        self.progress, self.beside = columns[2:5], columns[5:]

    def times_s(self, progress: Floats) -> Floats:
        """When each progress is made; `progress` has shape (3, tasks), by place."""
        alone_s = progress[0]
        times_s: Floats = self.ready_s[self.chain_of_place] + alone_s
        if not len(self.chain):
            return times_s
        slowed = np.zeros(len(self.ready_s), dtype=bool)
        slowed[self.chain] = True
        places = np.flatnonzero(slowed[self.chain_of_place])
        pace = self._pace(self.chain_of_place[places], alone_s[places])
        places, pace = places[pace >= 0], pace[pace >= 0]
        alone_s, units_s, memory_s = progress[:, places] - self.progress[:, pace]
        took_s = alone_s + self.beside[0, pace] * units_s + self.beside[1, pace] * memory_s
        times_s[places] = np.ceil((self.since_s[pace] + took_s) / self.grid_s) * self.grid_s
        return times_s

    def _pace(self, chain: NDArray[np.int64], alone_s: Floats) -> NDArray[np.int64]:
        """The last pace that began before a progress of its chain; -1 where there was none yet."""
        at_s = self.progress[0]
        apart_s = 2.0 * max(float(alone_s.max()), float(at_s.max())) + 1.0
        pace = np.searchsorted(self.chain * apart_s + at_s, chain * apart_s + alone_s) - 1
        while True:  # the sums are rounded, so compare again within the chain
            mine = (pace >= 0) & (self.chain[pace] == chain)
            late = mine & (at_s[pace] >= alone_s)
            later = np.minimum(pace + 1, len(self.chain) - 1)
            early = ~late & (later > pace) & (self.chain[later] == chain) & (at_s[later] < alone_s)
            if not late.any() and not early.any():
                return np.where(mine, pace, -1)
            pace += early.astype(np.int64) - late.astype(np.int64)
