"""The exact grid of time."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.engine.grid import FINEST_EXPONENT, grid_exponent, on_grid, quantize


@pytest.mark.parametrize(
    ("horizon_s", "exponent"), [(0.0, -40), (1e-3, -40), (8191.0, -40), (8192.0, -39), (1e9, -23)]
)
def test_the_grid_is_as_fine_as_53_bits_up_to_the_horizon_allow(horizon_s: float, exponent: int) -> None:
    assert grid_exponent(horizon_s) == exponent


def test_every_sum_up_to_the_horizon_is_exact() -> None:
    durations = quantize(np.random.default_rng(0).uniform(0, 1000.0, 500))
    shuffled = np.random.default_rng(1).permutation(durations)
    assert float(np.cumsum(durations)[-1]) == float(np.cumsum(shuffled)[-1])


def test_rounding_is_to_the_nearest_multiple() -> None:
    assert on_grid(np.array([0.3, 0.126, 0.125]), -2).tolist() == [0.25, 0.25, 0.0]


def test_what_is_on_the_grid_stays() -> None:
    durations = np.arange(10) * 2.0**FINEST_EXPONENT
    assert quantize(durations).tolist() == durations.tolist()
