"""The exact grid of time."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from perfsim.engine.calendar import FINEST_EXPONENT, in_seconds, in_ticks, on_exact_grid
from perfsim.engine.critical_path import longest_path
from perfsim.engine.trace import Trace


def test_every_sum_up_to_the_horizon_is_exact() -> None:
    durations = in_ticks(np.random.default_rng(0).uniform(0, 10.0, 500), FINEST_EXPONENT)
    seconds = in_seconds(durations, FINEST_EXPONENT)
    shuffled = np.random.default_rng(1).permutation(seconds)
    assert float(np.cumsum(seconds)[-1]) == float(np.cumsum(shuffled)[-1])


@pytest.mark.parametrize(("each_s", "exponent"), [(1.0, -40), (1e4, -39), (1e6, -32)])
def test_a_run_that_outgrows_its_grid_is_run_again_on_a_coarser_one(
    toys: ModuleType, each_s: float, exponent: int
) -> None:
    graph = toys.chain({"s": 4}, lambda builder, last: None)
    exponents: list[int] = []

    def run(took: np.ndarray, tried: int) -> Trace:
        exponents.append(tried)
        return longest_path(graph, took, tried)

    trace = on_exact_grid(run, np.full(4, each_s / 3))
    assert exponents[-1] == exponent
    assert all((end / 2.0**exponent).is_integer() for end in trace.end_s)
