"""Errors: of arithmetic, of many problems at once, and with the nearest name that exists."""

from collections.abc import Callable

import numpy as np
import pytest

from perfsim.base.errors import InputError, PerfsimError, Problem, within_floats


@pytest.mark.parametrize(
    "overflow",
    [
        lambda: np.float64(1e300) * np.array([1e300]),
        lambda: np.array([1.0]) / np.array([0.0]),
        lambda: np.array([np.inf]) - np.array([np.inf]),
        lambda: np.array([1e300]).astype(np.int64),
        lambda: 1.0 / 0.0,
        lambda: 10.0**400,
    ],
)
def test_arithmetic_without_a_result_is_an_error(overflow: Callable[[], object]) -> None:
    with pytest.raises(PerfsimError, match="leave the range of floating point"):
        within_floats(overflow)()


def test_an_error_shows_the_first_problems_and_counts_the_others() -> None:
    error = InputError([Problem(f"problem {number}") for number in range(16_000)])
    assert len(error.problems) == 16_000
    assert str(error).splitlines()[19:] == ["problem 19", "and 15,980 more"]
