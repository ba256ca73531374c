"""What a step is: a discrete-event simulation with SimPy, written to be read.

Every stream is a SimPy process. It carries out its tasks in program order and waits before each for the tasks
of other streams that the task needs. Most tasks take their own time. Two kinds take longer when others run:

- a *flow* first has a latency, in which it uses no link; then its bytes share links: all flows get max-min
  fair rates (`rules.fill`);
- a computation that compute units limit for a share c of its time, and memory bandwidth for a share m, while
  communication on its device takes the shares u of the units and h of the bandwidth, has the rate

      1 / (1 + c u / (1 - u) + m h / (1 - h)).

Rates change only when something starts or ends. All starts and ends of one instant are carried out first; one
event of low priority then sets the rates, so the result does not depend on the order within an instant.
`engine.core` is the same in compiled columns.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np
import simpy
from simpy.events import NORMAL, Event, EventPriority

from perfsim.base.arrays import Floats
from perfsim.base.limits import Limits
from perfsim.engine import rules
from perfsim.engine.tables import NONE, UNIT, Tables, excess, slowed_speed

Waits = Generator[Event, None, None]
CHECKED_EVERY = 4096
"""Ends of tasks between two looks at the limits."""
RATES_CHECKED_EVERY = 64
"""Instants at which rates are set between two looks at the time: many flows make one take milliseconds."""
_LAST = EventPriority(NORMAL + 1)
"""After all other events of the same time."""


class _EndOfInstant(Event):
    """An event that calls back once all other events of its time are done."""

    def __init__(self, env: simpy.Environment, call: Callable[[Event], None]) -> None:
        super().__init__(env)
        self.callbacks = [call]
        self._ok = True
        self._value = None


class _Activity:
    """A task at a rate that others may change; 1 is its rate alone."""

    def __init__(
        self, env: simpy.Environment, kind: int, duration_s: float, alone: Event | None = None
    ) -> None:
        self.env = env
        self.alone = alone
        """Its end if it begins at its rate alone and keeps it: one sum with a latency before, not two."""
        self.kind = kind
        self.left_s = duration_s
        self.rate = 0.0
        self.since_s = env.now
        self.done = env.event()
        self._alarm: Event | None = None

    def proceed(self, rate: float) -> None:
        """Run at this rate from now on."""
        if rate == self.rate:
            return
        now_s = self.env.now
        self.left_s -= (now_s - self.since_s) * self.rate
        self.since_s = now_s
        self.rate = rate
        self._alarm = None
        if rate == 1.0 and self.alone is not None:
            self._alarm = self.env.timeout(0.0) if self.alone.processed else self.alone
        elif rate > 0.0:
            self._alarm = self.env.timeout(max(0.0, self.left_s) / rate)
        self.alone = None
        if self._alarm is not None:
            self._alarm.callbacks.append(self._ring)

    def _ring(self, alarm: Event) -> None:
        # An alarm cannot be taken back from SimPy, so one that was set for an earlier rate rings in vain.
        if alarm is self._alarm:  # else the rate has changed since
            self.done.succeed()


def _in_lists(columns: Any) -> Any:
    """The same columns as lists, which are faster where elements are read one by one."""
    if isinstance(columns, tuple):
        return type(columns)(*map(_in_lists, columns))
    return columns.tolist() if isinstance(columns, np.ndarray) else columns


class _Links:
    """Flows under way, and the links that they share."""

    def __init__(self, env: simpy.Environment, tables: Tables) -> None:
        self.env = env
        self.tables: Tables = _in_lists(tables)
        self.shares: rules.Shares = _in_lists(rules.Shares.of(tables))
        self.under_way: list[dict[_Activity, None]] = [{} for _ in tables.bytes_per_s]
        self.changed: dict[int, None] = {}
        self.num_hot = 0
        self.hot_since_s = 0.0
        self.contended_s = 0.0

    def change(self, flow: int, activity: _Activity, sign: int) -> None:
        """A flow starts (`sign` 1) or ends (-1)."""
        self.shares.live[flow] += sign
        self.changed[flow] = None
        if sign > 0:
            self.under_way[flow][activity] = None
        else:
            del self.under_way[flow][activity]

    def set_rates(self) -> int:
        """Give all flows their fair rates; the number of rates that changed."""
        if not self.changed:
            return 0
        shares = self.shares
        changed: Any = list(self.changed)
        found, more_hot = rules.reached(self.tables, shares, changed)
        self.changed.clear()
        if not self.num_hot and more_hot:
            self.hot_since_s = self.env.now
        if self.num_hot and not self.num_hot + more_hot:
            self.contended_s += self.env.now - self.hot_since_s
        self.num_hot += more_hot
        joined = shares.touched[:found]
        rules.fill(self.tables, shares, joined)
        return sum(_proceed(self.under_way[flow], float(shares.fraction[flow])) for flow in joined)


def _proceed(activities: Iterable[_Activity], rate: float) -> int:
    changed = 0
    for activity in activities:
        changed += activity.rate not in (0.0, rate)
        activity.proceed(rate)
    return changed


class _Devices:
    """Computations under way, and what communication takes from their devices."""

    def __init__(self, env: simpy.Environment, tables: Tables) -> None:
        self.env = env
        self.occupied = [tables.occupied.row(kind) for kind in range(len(tables.taken))]
        self.takes = tables.taken.tolist()
        self.bound = tables.bound.tolist()
        self.taken = [[0, 0] for _ in range(tables.num_devices)]
        self.slowing = [(0.0, 0.0)] * tables.num_devices
        self.under_way: list[dict[_Activity, None]] = [{} for _ in range(tables.num_devices)]
        self.changed: dict[int, None] = {}
        self.begun: list[tuple[int, _Activity]] = []

    def take(self, kind: int, sign: int) -> None:
        """A communication starts and takes its shares (`sign` 1), or ends and leaves them (-1)."""
        units, memory = self.takes[kind]
        for device in self.occupied[kind]:
            self.taken[device][0] += sign * units
            self.taken[device][1] += sign * memory
            self.changed[device] = None

    def begin(self, device: int, activity: _Activity) -> None:
        """A computation starts; it has no rate before the end of the instant."""
        self.under_way[device][activity] = None
        self.begun.append((device, activity))

    def set_rates(self) -> int:
        """Give computations the rates that communication leaves them; the number of rates that changed."""
        changed = 0
        for device in self.changed:
            units, memory = (excess(taken / UNIT) for taken in self.taken[device])
            if (units, memory) == self.slowing[device]:
                continue
            self.slowing[device] = (units, memory)
            for activity in self.under_way[device]:
                changed += _proceed([activity], self._rate(device, activity.kind))
        for device, activity in self.begun:
            activity.proceed(self._rate(device, activity.kind))
        self.changed.clear()
        self.begun.clear()
        return changed

    def _rate(self, device: int, kind: int) -> float:
        units, memory = self.bound[kind]
        return slowed_speed(units, memory, *self.slowing[device])


class _Simulation:
    """One run: a process for every stream."""

    def __init__(self, tables: Tables, limits: Limits) -> None:
        self.env = simpy.Environment()
        self.tables = tables
        self.limits = limits
        self.ended = 0
        self._instants = 0
        self.links = _Links(self.env, tables)
        self.devices = _Devices(self.env, tables)
        self.changed_rates = 0
        self.start_s = [-1.0] * len(tables.duration_s)
        self.end_s = [-1.0] * len(tables.duration_s)
        self._is_closing = False
        followers = tables.waiting.values
        task = tables.waiting.row_of_value
        apart = tables.stream[task] != tables.stream[followers]
        self._ended = {before: self.env.event() for before in set(task[apart].tolist())}
        """The event of the end of each task that tasks of other streams wait for."""
        self._waits_for: dict[int, list[int]] = {}
        for before, follower in zip(task[apart].tolist(), followers[apart].tolist(), strict=True):
            self._waits_for.setdefault(follower, []).append(before)

    def run(self) -> None:
        """Run until nothing is left that can happen."""
        # Program order is the order of task ids, so a stable sort by stream keeps it.
        order = np.argsort(self.tables.stream, kind="stable")
        for tasks in np.split(order, np.flatnonzero(np.diff(self.tables.stream[order])) + 1):
            self.env.process(self._stream(tasks.tolist()))
        self.env.run()
        self.limits.check(self.ended, self.ended - self.ended % CHECKED_EVERY, len(self.end_s))
        if self.links.num_hot:
            self.links.contended_s += self.env.now - self.links.hot_since_s

    def _stream(self, tasks: list[int]) -> Waits:
        """Carry out the tasks of one stream, one after the other."""
        env = self.env
        columns: Any = self.links.tables
        for task in tasks:
            for before in self._waits_for.get(task, ()):
                yield self._ended[before]
            self.start_s[task] = env.now
            kind = columns.kind[task]
            duration_s = columns.duration_s[task]
            if self.devices.occupied[kind]:
                self.devices.take(kind, 1)
                self._close_instant()
            if (flow := columns.flow[kind]) != NONE:
                # It is sent over links that others may use, after the latency.
                latency_s = columns.latency_s[task]
                alone = None
                if latency_s > 0.0:
                    alone = env.timeout(duration_s)
                    yield env.timeout(latency_s)
                message = _Activity(env, kind, duration_s - latency_s, alone)
                self.links.change(flow, message, 1)
                self._close_instant()
                yield message.done
                self.links.change(flow, message, -1)
                self._close_instant()
            elif (device := columns.device[kind]) != NONE:
                # Communication may take something from the device.
                computation = _Activity(env, kind, duration_s)
                self.devices.begin(device, computation)
                self._close_instant()
                yield computation.done
                del self.devices.under_way[device][computation]
            else:
                yield env.timeout(duration_s)
            if self.devices.occupied[kind]:
                self.devices.take(kind, -1)
                self._close_instant()
            self.end_s[task] = env.now
            self.ended += 1
            if not self.ended % CHECKED_EVERY:
                self.limits.check(self.ended, self.ended - CHECKED_EVERY, len(self.end_s))
            if task in self._ended:
                self._ended[task].succeed()

    def _close_instant(self) -> None:
        """Have rates set once all else that happens now is done."""
        if not self._is_closing:
            self._is_closing = True
            self.env.schedule(_EndOfInstant(self.env, self._set_rates), _LAST)

    def _set_rates(self, _closing: Event) -> None:
        self._is_closing = False
        self._instants += 1
        if not self._instants % RATES_CHECKED_EVERY:
            total = len(self.end_s)
            self.limits.in_time(
                lambda: f"{self.ended:,} of {total:,} tasks of the present simulation had ended"
            )
        self.changed_rates += self.devices.set_rates()
        self.changed_rates += self.links.set_rates()


def run(tables: Tables, start_s: Floats, end_s: Floats, limits: Limits) -> tuple[int, float]:
    """Fill in the start and the end of every task; -1 for a task that never starts or ends.

    Returns the number of events (starts, ends, changes of a rate) and the seconds in which a link was
    contended. Raises LimitError if the run exceeds the limits.
    """
    simulation = _Simulation(tables, limits)
    simulation.run()
    start_s[:] = simulation.start_s
    end_s[:] = simulation.end_s
    started = int(np.count_nonzero(start_s >= 0.0))
    return started + simulation.ended + simulation.changed_rates, simulation.links.contended_s
