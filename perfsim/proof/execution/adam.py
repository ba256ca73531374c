"""The optimizer of proofs: Adam [1412.6980] on flat vectors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfsim.proof.execution.layout import Array

LEARNING_RATE, BETA1, BETA2 = 1e-2, 0.9, 0.95
EPSILON = 1e-5
"""Large for Adam, so that gradients of pure rounding error hardly change their weights."""


class Moments(NamedTuple):
    """First and second moment, and the number of updates so far."""

    first: Array
    second: Array
    updates: int

    @classmethod
    def zero(cls, size: int) -> Moments:
        """The state before the first update."""
        return cls(np.zeros(size), np.zeros(size), 0)


def adam(weights: Array, gradient: Array, moments: Moments) -> tuple[Array, Moments]:
    """One update with bias correction."""
    first = BETA1 * moments.first + (1 - BETA1) * gradient
    second = BETA2 * moments.second + (1 - BETA2) * gradient * gradient
    updates = moments.updates + 1
    step = (first / (1 - BETA1**updates)) / (np.sqrt(second / (1 - BETA2**updates)) + EPSILON)
    return weights - LEARNING_RATE * step, Moments(first, second, updates)
