"""An exact grid of time, so that adding durations is associative and engines agree bitwise.

Durations are rounded to multiples of a power of two small enough to be invisible (2^-40 s for
steps below 8,192 s) and large enough that every sum up to the horizon fits 53 bits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

MANTISSA_BITS = 53
FINEST_EXPONENT = -40


def grid_exponent(horizon_s: float) -> int:
    """The exponent of the grid on which all times up to `horizon_s` are exact."""
    if horizon_s <= 0:
        return FINEST_EXPONENT
    return max(FINEST_EXPONENT, math.frexp(horizon_s)[1] - MANTISSA_BITS)


def on_grid(duration_s: NDArray[np.float64], exponent: int) -> NDArray[np.float64]:
    """`duration_s` rounded to multiples of 2^exponent."""
    return np.asarray(np.ldexp(np.rint(np.ldexp(duration_s, -exponent)), exponent))


def quantize(duration_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Durations of tasks on the grid that their sum, an upper bound of the makespan, asks for."""
    return on_grid(duration_s, grid_exponent(float(duration_s.sum())))
