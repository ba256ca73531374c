"""Half-widths of bands by unlikeness."""

from __future__ import annotations

import math

import pytest

from perfsim.prediction.bands import UNKNOWN, BandWidths

WIDTHS = BandWidths(base=0.1, slope=0.05, unshared=0.6)


def test_a_band_widens_with_every_point_of_unlikeness() -> None:
    errors = [WIDTHS.error(points) for points in (0.0, 0.1, 1.0, 2.0, 5.0)]
    assert errors == sorted(set(errors))
    assert errors[0] == pytest.approx(math.expm1(0.1))
    assert errors[3] == pytest.approx(math.expm1(math.hypot(0.1, 0.1)))


def test_the_unshared_part_is_smaller_than_the_whole_and_never_nothing() -> None:
    for points in (0.0, 3.0):
        assert 0.0 < WIDTHS.unshared_error(points) < WIDTHS.error(points)


def test_a_record_of_widths_is_read_back() -> None:
    assert BandWidths(**WIDTHS.as_dict()) == WIDTHS


def test_without_runs_a_step_time_is_known_to_a_factor_of_two() -> None:
    assert UNKNOWN.error(7.0) == pytest.approx(1.0)
