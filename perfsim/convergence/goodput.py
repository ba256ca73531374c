"""Wall time of a run that fails: checkpoints, lost work, restarts, and repairs where spares run out.

Rates were measured on clusters of 8-GPU nodes. No such data is known for wafer-scale systems: use the rate
of a node for a system, or none on either side, so that the comparison favours no machine.
"""

from __future__ import annotations

import math

import numpy as np

from perfsim.convergence.uncertain import FloatArray, require_positive

MOST_MTTFS = 60.0
"""Times between failures that one stretch of work may take: a cap of e^60, far beyond any run."""


def young_interval_s(write_s: float, mttf_s: float) -> float:
    """Checkpoint interval of least loss, to first order: sqrt(2 delta M) (Young 1974)."""
    require_positive(write_s=write_s, mttf_s=mttf_s)
    return math.sqrt(2 * write_s * mttf_s)


def failing_time_s(
    work_s: FloatArray | float,
    interval_s: FloatArray | float,
    write_s: FloatArray | float,
    restart_s: FloatArray | float,
    failures_per_s: FloatArray | float,
) -> FloatArray:
    """Expected seconds of a run of `work_s` that fails at random, exact for exponential failures.

    With M = 1 / `failures_per_s` the time between failures, which may also interrupt a restart or a write:

        T = work (M e^(R / M) (e^((tau + delta) / M) - 1)) / tau

    Work is lost back to the last checkpoint, and a restart of R seconds comes before it is done again. One
    stretch of work tau with its write delta takes M e^(R / M) (e^((tau + delta) / M) - 1) seconds on average
    (Daly 2006's form). Every value may be an array.
    """
    work, interval = np.asarray(work_s, dtype=np.float64), np.asarray(interval_s, dtype=np.float64)
    rate, write, restart = np.asarray(failures_per_s), np.asarray(write_s), np.asarray(restart_s)
    stretch_s = interval + write
    exponent = np.minimum(stretch_s * rate, MOST_MTTFS)
    # expm1(x) / x tends to 1 without failures.
    with np.errstate(invalid="ignore", divide="ignore"):
        growth = np.where(exponent > 0, np.expm1(exponent) / exponent, 1.0)
        stretches = np.where(work > 0, work / interval, 0.0)
    failing: FloatArray = stretches * stretch_s * growth * np.exp(np.minimum(restart * rate, MOST_MTTFS))
    return failing


def stopped_share(spares: int, repairing: FloatArray | float) -> FloatArray:
    """Share of the time in which a run stands still because no spare unit is left.

    `repairing` is failures a second times the seconds of a repair: the mean number of units in repair. A run
    with s spares stands still while s + 1 units are in repair, and does not fail meanwhile: Erlang's loss
    formula B(s + 1, `repairing`), whatever the distribution of repair times (Erlang 1917).
    """
    load = np.asarray(repairing, dtype=np.float64)
    blocked = np.ones_like(load)
    for units in range(1, spares + 2):
        blocked = load * blocked / (units + load * blocked)
    return blocked
