"""Figures for sweeps and validations, drawn from tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perfsim.report.sweep import scaling_curve
from perfsim.report.table import Cell, Table
from perfsim.report.text import COUNT, SHARE, Unit
from perfsim.report.validation import residuals

POINTS = [
    ("gpu", 128, 10.0, 0.8, "tp8"),
    ("gpu", 64, 16.0, 1.0, ""),
    ("wafer", 1, 90.0, 1.0, ""),
    ("wafer", 4, 30.0, 0.75, ""),
]
CASES = [
    ("a", "megatron", "", 10.0, 11.0, 0.1, None),
    ("b", "mlperf", "", 20.0, 14.0, -0.3, None),
    ("c", "megatron", "", 30.0, 30.3, 0.01, None),
]


def scaling(points: Sequence[Sequence[Cell | str | float]]) -> Table:
    units = {"series": None, "devices": COUNT, "time": Unit("days"), "efficiency": SHARE, "layout": None}
    return Table.of(units, points)


def runs(cases: Sequence[tuple[object, ...]]) -> tuple[Table, Any]:
    names = ("id", "family", "evidence", "measured_s", "predicted_s", "error", "band_s")
    return residuals(dict(zip(names, case, strict=True)) for case in cases)


def test_runs_are_listed_the_worst_first_and_drawn_by_family_the_closest_first() -> None:
    table, figure = runs(CASES)
    errors = [(row[0], row[5]) for row in table.shown()]
    assert errors == [("b", "-30.0 %"), ("a", "+10.0 %"), ("c", "+1.0 %")]
    (drawn,) = figure.data
    assert list(figure.layout.yaxis.categoryarray) == ["megatron (2)", "mlperf (1)"]
    assert sorted(drawn.x) == pytest.approx([-30.0, 1.0, 10.0])
    said = {words.partition("<br>")[0]: words for words in drawn.customdata}
    assert said["<b>a</b>"] == "<b>a</b><br>measured: 10.0 s<br>predicted: 11.0 s<br>error: +10.0 %"


def test_a_run_outside_its_band_has_a_diamond() -> None:
    banded = [
        ("in", "megatron", "A", 10.0, 11.0, 0.1, (8.8, 13.75)),
        ("out", "megatron", "C", 20.0, 14.0, -0.3, (11.2, 17.5)),
    ]
    inside, outside = runs(banded)[1].data
    assert sorted([*inside.marker.symbol, *outside.marker.symbol]) == ["circle", "diamond-open"]
    assert (inside.name, outside.name) == ("a run", "a run outside its band")


def test_a_band_is_an_area_around_its_line_and_the_ideal_time_halves_with_twice_the_devices() -> None:
    banded = [
        (name, devices, Cell(value, (0.9 * value, 1.2 * value)), *rest)
        for name, devices, value, *rest in POINTS[:2]
    ]
    area, *_ = scaling_curve(scaling(banded)).data
    real, ideal = scaling_curve(scaling(POINTS)).data[:2]
    assert list(real.x) == [64, 128]
    assert list(ideal.y) == [16.0, 8.0]
    assert list(area.x) == [64, 128, 128, 64]
    assert list(area.y) == pytest.approx([19.2, 12.0, 9.0, 14.4])
