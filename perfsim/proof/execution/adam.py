"""The optimizer of proofs: Adam [1412.6980] on flat vectors, with gradients clipped by their global norm."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfsim.proof.execution.layout import Array

LEARNING_RATE, BETA1, BETA2 = 1e-2, 0.9, 0.95
EPSILON = 1e-5
"""Large for Adam, so that gradients of pure rounding error hardly change their weights."""


MAX_NORM = 0.25
"""A limit that the gradients of small models exceed, each step by another factor."""


def clipping(squared_norm: float, max_norm: float) -> float:
    """The factor by which all gradients are multiplied [1211.5063; torch.nn.utils.clip_grad_norm_]."""
    return min(1.0, max_norm / (math.sqrt(squared_norm) + 1e-6))


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
