"""Computation that slows down while communication runs beside it on the same device.

A communication kernel takes compute units and memory bandwidth from its device while it runs. A computation
of which compute units limit a share c of the time, and memory bandwidth a share m, then progresses at rate

    1 / (1 + c u / (1 - u) + m h / (1 - h))

where u and h are the shares of units and bandwidth that all communications on the device take together. The
tasks of a chain are followed together: the time from one point of a chain to another is a sum over its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Floats
from perfsim.costs.price import MOST_TAKEN
from perfsim.engine.calendar import Calendar
from perfsim.work.graph import Chains

UNIT = 1 << 20
"""Shares are added as whole multiples of 1 / UNIT, so that what ends leaves exactly nothing behind."""


NOTHING = (0.0, 0.0)
"""What communication that takes nothing adds to the time of computation beside it."""


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


def excess(taken: float) -> float:
    """Additional time of work when a share of what limits it is taken, relative to its time alone."""
    taken = min(taken, MOST_TAKEN)
    return taken / (1.0 - taken)


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


Pace = tuple[int, float, float, float, float, float, float]
"""A chain; since when it has its pace; its progress until then, in seconds of its tasks alone, and of those
the seconds that units and memory bandwidth limit; and the additional time of both, as `excess` gives it."""


class _Running:
    """A chain of computation under way, and its `Pace`."""

    __slots__ = (
        "alone_s",
        "chain",
        "device",
        "due_s",
        "memory",
        "memory_s",
        "passed",
        "point",
        "since_s",
        "units",
        "units_s",
    )

    def __init__(self, device: int, chain: int, since_s: float, point: int) -> None:
        self.device = device
        self.chain = chain
        self.since_s = since_s
        self.point = point
        self.alone_s = self.units_s = self.memory_s = self.units = self.memory = 0.0
        self.passed = -1
        """Number of the last point that was reached; -1: none."""
        self.due_s = -1.0
        """When the next point is reached; -1: it has no pace yet."""


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
        self.calendar = calendar
        self.points = points
        self.release = release
        self.grid_s = grid_s
        self.paces: list[Pace] = []
        """Every change of a chain's pace."""
        self._progress = progress
        self._first_place = first_place
        self._taken = [(0, 0)] * count
        self._excess = {(0, 0): (0.0, 0.0)}
        self._beside = [(0.0, 0.0)] * count
        self._running: list[dict[int, _Running]] = [{} for _ in range(count)]
        self._changed: dict[int, None] = {}
        self._begun: list[_Running] = []

    def take(self, load: Load, sign: int) -> None:
        """A communication starts now and takes its shares (`sign` 1), or ends and leaves them (-1)."""
        changed = self._changed
        taken = self._taken
        if not changed and not self._begun:
            self.calendar.at_end_of_instant(self._work_out)
        devices, more_units, more_memory = load
        for device in devices:
            changed[device] = None
            units, memory = taken[device]
            taken[device] = (units + sign * more_units, memory + sign * more_memory)

    def begin(self, chain: int, device: int, now_s: float) -> None:
        """A computation starts now; its pace is known at the end of the instant."""
        if not self._changed and not self._begun:
            self.calendar.at_end_of_instant(self._work_out)
        running = _Running(device, chain, now_s, self.points.first[chain])
        self._running[device][chain] = running
        self._begun.append(running)

    def _work_out(self) -> None:
        """Set the paces of all computations that the starts and ends of this instant may change."""
        now_s = self.calendar.now_s
        for device in self._changed:
            taken = self._taken[device]
            beside = self._excess.get(taken)
            if beside is None:
                units, memory = taken
                beside = self._excess[taken] = (excess(units / UNIT), excess(memory / UNIT))
            if beside != self._beside[device]:
                self._beside[device] = beside
                for running in self._running[device].values():
                    if running.due_s >= 0.0:  # others have just begun
                        self._change(running, beside, now_s)
        for running in self._begun:
            beside = self._beside[running.device]
            if beside == NOTHING:
                self._enter(running)
            else:
                self._change(running, beside, now_s)
        self._changed.clear()
        self._begun.clear()

    def _change(self, running: _Running, beside: tuple[float, float], now_s: float) -> None:
        """Give a computation another pace from now on."""
        if now_s > running.since_s:
            self._advance(running, now_s - running.since_s)
            running.since_s = now_s
            passed = running.passed
            if passed >= 0 and running.alone_s < self.points.after_s[passed]:
                # Rounding must not undo a point.
                alone_s, units_s, memory_s = self._progress
                place = self.points.place[passed]
                running.alone_s = alone_s[place]
                running.units_s = units_s[place]
                running.memory_s = memory_s[place]
        if running.due_s >= 0.0:
            self.calendar.take_back(running.due_s, running)
        running.units, running.memory = units, memory = beside
        self.paces.append(
            (running.chain, now_s, running.alone_s, running.units_s, running.memory_s, units, memory)
        )
        self._enter(running)

    def _advance(self, running: _Running, elapsed_s: float) -> None:
        """Add the progress of some time at the present pace."""
        alone_s, units_s, memory_s = self._progress
        alone = running.alone_s
        units = running.units
        memory = running.memory
        begin_units = running.units_s
        begin_memory = running.memory_s
        start = low = self._first_place[running.chain]
        high = self._first_place[running.chain + 1] - 1
        while low < high:  # find the task that is under way; bisect with a key would take three times as long
            middle = (low + high) // 2
            took_s = alone_s[middle] - alone
            took_s += units * (units_s[middle] - begin_units)
            took_s += memory * (memory_s[middle] - begin_memory)
            if took_s < elapsed_s:
                low = middle + 1
            else:
                high = middle
        end_s = alone_s[low]
        end_units_s = units_s[low]
        end_memory_s = memory_s[low]
        since_s = since_units_s = since_memory_s = 0.0
        if low > start:
            since_s = alone_s[low - 1]
            since_units_s = units_s[low - 1]
            since_memory_s = memory_s[low - 1]
        more_s = end_s - since_s
        more_units_s = end_units_s - since_units_s
        more_memory_s = end_memory_s - since_memory_s
        whole_s = more_s + units * more_units_s + memory * more_memory_s
        share = 1.0
        if whole_s > 0.0:
            before_s = (since_s - alone) + units * (since_units_s - begin_units)
            before_s += memory * (since_memory_s - begin_memory)
            share = min(1.0, (elapsed_s - before_s) / whole_s)
        running.alone_s = since_s + share * more_s
        running.units_s = since_units_s + share * more_units_s
        running.memory_s = since_memory_s + share * more_memory_s

    def _enter(self, running: _Running) -> None:
        """Enter the next point of a computation in the calendar."""
        point = running.point
        if running.alone_s or running.units or running.memory:
            alone_s, units_s, memory_s = self._progress
            place = self.points.place[point]
            took_s = alone_s[place] - running.alone_s
            took_s += running.units * (units_s[place] - running.units_s)
            took_s += running.memory * (memory_s[place] - running.memory_s)
            due_s = ceil((running.since_s + took_s) / self.grid_s) * self.grid_s
        else:
            due_s = running.since_s + self.points.after_s[point]  # exact
        running.due_s = due_s
        self.calendar.at(due_s, running, self._reach)

    def _reach(self, running: _Running) -> None:
        """Release the chains that wait for the point that is reached, and go on to the next one."""
        first, after_s, _, chain = self.points
        point = running.passed = running.point
        passed_s = after_s[point]
        last = first[running.chain + 1]
        while point < last and after_s[point] == passed_s:
            if chain[point] >= 0:
                self.release(chain[point])
            point += 1
        if point < last:
            running.point = point
            self._enter(running)
        else:
            del self._running[running.device][running.chain]


class Stretched:
    """Times of the tasks of chains, some of which were slowed; they agree to the bit with `Devices`."""

    def __init__(self, paces: list[Pace], chains: Chains, ready_s: Floats, grid_s: float) -> None:
        self.chain_of_place = np.repeat(np.arange(len(chains)), chains.length)
        self.ready_s = ready_s
        self.grid_s = grid_s
        rows = np.array(paces).reshape(-1, 7)
        columns = rows[np.argsort(rows[:, 0], kind="stable")].T
        self.chain = columns[0].astype(np.int64)
        self.since_s = columns[1]
        self.progress = columns[2:5]
        self.beside = columns[5:]

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
        places = places[pace >= 0]
        pace = pace[pace >= 0]
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
