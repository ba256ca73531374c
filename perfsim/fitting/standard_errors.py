"""Standard errors of constants fitted to measurements.

The sandwich estimator of a robust fit, H^-1 (sum over clusters of squared scores) H^-1, times c / (c - p)
(Huber 1967, White 1980; errors within a cluster are correlated: Liang and Zeger 1986). A constant whose
relative standard error exceeds a third is not determined: it is held fixed, which is an assumption, and the
others are estimated without it. A constant that decides an argmin has no derivative; `profile` compares
losses instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfsim.calibration import MOST_STANDARD_ERROR
from perfsim.fitting.fit_tables import rounded

Array = NDArray[np.float64]

_STEP = 1e-4
_WIDTHS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.33)


@dataclass(frozen=True)
class Account:
    """Relative standard errors of determined constants, and the reasons for the values of the others."""

    errors: dict[str, float] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)

    def with_prefix(self, prefix: str) -> Account:
        """The account with the reasons under their paths in a calibration file."""
        return Account(self.errors, {f"{prefix}.{name}": reason for name, reason in self.assumed.items()})


@dataclass(frozen=True)
class Loss:
    """A loss at its optimum, by row: slope and curvature in the log error, and the cluster."""

    slope: Array
    curvature: Array
    cluster: NDArray[np.intp]

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return int(self.cluster.max()) + 1

    def summed(self, scores: Array) -> Array:
        """Rows of `scores` summed over each cluster."""
        total = np.zeros((self.clusters, scores.shape[1]))
        np.add.at(total, self.cluster, scores)
        return total


def cluster_of(*columns: Array) -> NDArray[np.intp]:
    """The same number for rows that are equal in all columns."""
    _, index = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return np.asarray(index.ravel(), dtype=np.intp)


def log_jacobian(predict: Callable[[Array], Array], logs: Array) -> Array:
    """Derivative of log seconds by log constant, by central differences; one column per constant."""
    columns = []
    for axis in range(logs.size):
        shift = np.zeros(logs.size)
        shift[axis] = _STEP
        columns.append((predict(logs + shift) - predict(logs - shift)) / (2 * _STEP))
    return np.stack(columns, axis=1)


def account(names: Sequence[str], jacobian: Array, loss: Loss) -> Account:
    """Standard errors by the sandwich estimator; constants above a third are held, the worst first."""
    running = [axis for axis in range(len(names)) if np.abs(jacobian[:, axis]).max() > 1e-9]
    idle = set(range(len(names))) - set(running)
    assumed = {
        names[axis]: "no row of the table depends on it: near where the fit started" for axis in sorted(idle)
    }
    while running:
        errors = _sandwich(jacobian[:, running], loss)
        worst = int(np.argmax(errors))
        if errors[worst] < MOST_STANDARD_ERROR:
            break
        share = "over 10 times" if errors[worst] > 10 else f"{errors[worst]:.0%} of"
        # One at a time: holding one constant may determine another that was correlated with it.
        name = names[running.pop(worst)]
        assumed[name] = (
            f"not determined by the table (standard error {share} the value): held where the fit ended"
        )
    determined = _sandwich(jacobian[:, running], loss).tolist() if running else []
    return Account(
        {names[axis]: rounded(error, 2) for axis, error in zip(running, determined, strict=True)}, assumed
    )


def profile(losses: Callable[[float], Array], cluster: NDArray[np.intp]) -> float:
    """The log step of a constant at which its loss has grown by one standard error of that growth.

    `losses` gives the rows' losses for a step; the wider of both directions counts, inf beyond a third.
    """
    best = losses(0.0)
    return max(_one_way(losses, best, cluster, sign) for sign in (1.0, -1.0))


def _one_way(losses: Callable[[float], Array], best: Array, cluster: NDArray[np.intp], sign: float) -> float:
    for width in _WIDTHS:
        growth = np.bincount(cluster, losses(sign * width) - best)
        if growth.sum() > np.sqrt((growth**2).sum()) > 0:
            return width
    return float("inf")


def _sandwich(jacobian: Array, loss: Loss) -> Array:
    scores = loss.summed(jacobian * loss.slope[:, None])
    inverse = np.linalg.pinv((jacobian * loss.curvature[:, None]).T @ jacobian, hermitian=True)
    spare = max(loss.clusters - jacobian.shape[1], 1)
    covariance = inverse @ (scores.T @ scores) @ inverse * loss.clusters / spare
    return np.asarray(np.sqrt(np.diag(covariance)))
