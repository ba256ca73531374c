"""Ranges, places and draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfsim.base.errors import InputError
from perfsim.convergence.uncertain import Z_90, Draws, Uncertain, interval, one_at, typical


@pytest.mark.parametrize("ends", [(0.5, 1.0, 4.0), (0.0, 10.0, 30.0), (2.0, 2.0, 2.0)])
def test_ends_and_middle_are_met_and_drawn(ends: tuple[float, float, float]) -> None:
    entry = Uncertain("x", *ends)
    assert entry.at(np.array([-Z_90, 0.0, Z_90])) == pytest.approx(ends)
    low, high = interval(entry.at(Draws(seed=1, count=20_000)("x")))
    assert (low, high) == pytest.approx((ends[0], ends[2]), rel=0.01, abs=0.01)


def test_a_value_that_can_be_zero_is_never_below_it() -> None:
    assert Uncertain("x", 0.0, 1.0, 2.0).at(-9.0) == 0.0


def test_equal_names_are_the_same_draws_and_others_independent() -> None:
    draws = Draws(seed=5, count=20_000)
    assert np.array_equal(draws("a"), Draws(seed=5, count=20_000)("a"))
    assert abs(np.corrcoef(draws("a"), draws("b"))[0, 1]) < 0.03
    assert not np.array_equal(draws("a"), Draws(seed=6, count=20_000)("a"))


def test_two_independent_factors_combine_in_quadrature_within_a_hundredth() -> None:
    draws = Draws(seed=0, count=20_000)
    product = Uncertain("a", 1 / 1.3, 1.0, 1.3).at(draws("a")) * Uncertain("b", 1 / 1.5, 1.0, 1.5).at(
        draws("b")
    )
    width = math.exp(math.hypot(math.log(1.3), math.log(1.5)))
    assert interval(product) == pytest.approx((1 / width, width), rel=0.01)


def test_one_input_is_moved_and_the_others_stay() -> None:
    place = one_at("a", 1.0)
    assert (place("a"), place("b"), typical("a")) == (1.0, 0.0, 0.0)


def test_a_range_out_of_order_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="price: low 2"):
        Uncertain("price", 2.0, 1.0, 3.0)
