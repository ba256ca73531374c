"""A grid of times whose sums are exact, so that addition is associative and both engines agree bitwise.

Durations are whole ticks. A tick is a power of two, small enough to be negligible (2^-40 s for runs below
8,192 s) and large enough that every time of the run fits in 53 bits. The length of a run is known only at
its end, so a run that outgrows its grid is repeated on a coarser one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from perfsim.trace import Trace

MANTISSA_BITS = 53
FINEST_EXPONENT = -40

Floats = NDArray[np.float64]
Ticks = NDArray[np.int64]
Run = Callable[[Ticks, int], Trace]
"""A run with durations in ticks of 2^exponent s."""


def grid_exponent(horizon_s: float) -> int:
    """The exponent of the grid on which all times up to `horizon_s` are exact."""
    if horizon_s <= 0:
        return FINEST_EXPONENT
    return max(FINEST_EXPONENT, math.frexp(horizon_s)[1] - MANTISSA_BITS)


def in_ticks(duration_s: Floats, exponent: int) -> Ticks:
    """Durations as numbers of ticks of 2^exponent s, rounded to the nearest."""
    ticks = duration_s * 2.0**-exponent
    np.rint(ticks, out=ticks)
    return ticks.astype(np.int64)


def in_seconds(ticks: Ticks, exponent: int) -> Floats:
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
