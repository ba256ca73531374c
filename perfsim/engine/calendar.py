"""The calendar of a run: acts at given times, for which SimPy's clock is advanced once per instant.

All acts of one instant are carried out together, in the order in which they were entered. What depends on
the sum of them, such as rates, is worked out at the end of the instant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Any

import numpy as np
import simpy
from simpy.events import NORMAL, EventPriority

from perfsim.base.arrays import Floats, Ints
from perfsim.engine.trace import Trace

# A grid of times whose sums are exact, so that addition is associative and both engines agree bitwise.
#
# Durations are whole ticks. A tick is a power of two, small enough to be negligible (2^-40 s for runs below
# 8,192 s) and large enough that every time of the run fits in 53 bits. The length of a run is known only at
# its end, so a run that outgrows its grid is repeated on a coarser one.

MANTISSA_BITS = 53
FINEST_EXPONENT = -40

Run = Callable[[Ints, int], Trace]
"""A run with durations in ticks of 2^exponent s."""


def grid_exponent(horizon_s: float) -> int:
    """The exponent of the grid on which all times up to `horizon_s` are exact."""
    if horizon_s <= 0:
        return FINEST_EXPONENT
    return max(FINEST_EXPONENT, math.frexp(horizon_s)[1] - MANTISSA_BITS)


def in_ticks(duration_s: Floats, exponent: int) -> Ints:
    """Durations as numbers of ticks of 2^exponent s, rounded to the nearest."""
    ticks = duration_s * 2.0**-exponent
    np.rint(ticks, out=ticks)
    return ticks.astype(np.int64)


def in_seconds(ticks: Ints, exponent: int) -> Floats:
    """Ticks of 2^exponent s in seconds, exactly."""
    return np.asarray(ticks * 2.0**exponent)


def on_exact_grid(run: Run, duration_s: Floats) -> Trace:
    """Run on the finest grid on which all times of the run are exact."""
    duration_s = np.asarray(duration_s, dtype=np.float64)
    exponent = grid_exponent(float(duration_s.max(initial=0.0)))
    while True:
        trace = run(in_ticks(duration_s, exponent), exponent)
        needed = grid_exponent(trace.makespan_s)
        if needed <= exponent:
            return trace
        exponent = needed  # rounding to a coarser grid can lengthen the run, so check again


Act = Callable[[Any], None]
"""An act of an instant; it gets its key."""

_LAST = EventPriority(NORMAL + 1)
"""After all other events of the same time, since these may enter more acts."""


class _Wake(simpy.Event):
    """An event whose outcome is known, set up like SimPy's own Timeout."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None


class Calendar:
    """Acts by time and key, in a SimPy environment.

    An act that is taken back leaves no event behind, unless SimPy was called for it from outside a run.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.instants = 0
        self._now_s = float(env.now)
        self._acts: dict[float, dict[Hashable, Act]] = {}
        self._times: list[float] = []
        self._armed: list[float] = []
        self._at_end: list[Callable[[], None]] = []
        self._inside = False
        self._calls: list[Callable[[simpy.Event], None]] = [self._instant]

    @property
    def now_s(self) -> float:
        """The present instant; equals `env.now` on a grid, and may differ by a rounding elsewhere."""
        return self._now_s if self._inside else max(self._now_s, float(self.env.now))

    def at(self, when_s: float, key: Hashable, act: Act) -> None:
        """Enter an act; its key must be unlike those of other acts of the same time."""
        acts = self._acts.get(when_s)
        if acts is None:
            self._acts[when_s] = {key: act}
            heappush(self._times, when_s)
            if not self._inside:
                self._arm(when_s)
        else:
            acts[key] = act

    def take_back(self, when_s: float, key: Hashable) -> None:
        """Remove an act that has not been carried out."""
        acts = self._acts[when_s]
        del acts[key]
        if not acts:
            del self._acts[when_s]

    def at_end_of_instant(self, act: Callable[[], None]) -> None:
        """Carry out an act once all others of the present instant are done."""
        self._at_end.append(act)
        if not self._inside:
            self._arm(self.now_s)

    def _arm(self, when_s: float) -> None:
        """Have SimPy call at a time, unless it calls earlier anyway."""
        if not self._armed or when_s < self._armed[0]:
            self._schedule(_Wake(self.env), when_s)

    def _schedule(self, event: simpy.Event, when_s: float) -> None:
        heappush(self._armed, when_s)
        event.callbacks = self._calls
        self.env.schedule(event, _LAST, max(0.0, when_s - self.env.now))

    def _instant(self, event: simpy.Event) -> None:
        """Carry out all that is due."""
        acts = self._acts
        times = self._times
        armed = self._armed
        now_s = self._now_s = max(self._now_s, heappop(armed))
        self.instants += 1
        self._inside = True
        while True:
            while times and times[0] <= now_s:
                due = acts.pop(heappop(times), None)
                if due is not None:
                    for key, act in due.items():
                        act(key)
            if not self._at_end:
                break
            at_end = self._at_end
            self._at_end = []
            for work_out in at_end:
                work_out()
        self._inside = False
        while times and times[0] not in acts:
            heappop(times)
        if times and (not armed or times[0] < armed[0]):
            self._schedule(event, times[0])  # the event has been processed, so it can be used again
