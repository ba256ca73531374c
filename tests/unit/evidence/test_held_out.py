"""Bands from few runs that were left out of the fit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from perfsim.evidence.left_out import FEWEST, LeavingOut
from perfsim.evidence.score import Scored, summary


def runs(errors: list[float]) -> list[Scored]:
    return [Scored(f"r{i}", "f", "A", None, "", 1.0, 1.0 + error) for i, error in enumerate(errors)]


def test_few_errors_give_students_band_in_place_of_a_percentile() -> None:
    errors = [0.1, -0.1, 0.1, -0.1, 0.1]
    expected = stats.t.ppf(0.95, 5) * 0.1 * np.sqrt(1.2)
    assert LeavingOut("release", (), tuple(runs(errors))).summary["p90_ape"] == pytest.approx(expected)
    assert expected > 2 * summary(runs(errors))["p90_ape"]


def test_many_errors_keep_their_percentile() -> None:
    many = runs([0.01 * number for number in range(FEWEST)])
    assert LeavingOut("release", (), tuple(many)).summary == summary(many)
