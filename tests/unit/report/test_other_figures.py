"""Figures for sweeps and validations, drawn from tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perfsim.report.draw import heat_map
from perfsim.report.sweep_figures import cost_curve, efficiency_curve, scaling_curve
from perfsim.report.table import Cell, Table
from perfsim.report.text import COUNT, NONE, SHARE, Unit
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


def scaling(points: Sequence[Sequence[Cell | str | float]], third: str = "time") -> Table:
    unit = Unit("days") if third == "time" else SHARE
    fourth = "efficiency" if third == "time" else "in time to the target"
    return Table.of({"series": None, "devices": COUNT, third: unit, fourth: SHARE, "layout": None}, points)


def runs(cases: Sequence[tuple[object, ...]]) -> tuple[Table, Any]:
    names = ("id", "family", "evidence", "measured_s", "predicted_s", "error", "band_s")
    return residuals(dict(zip(names, case, strict=True)) for case in cases)


def cells(*rows: Sequence[float | None]) -> Table:
    columns = {"y": None} | {str(index): Unit() for index in range(len(rows[0]))}
    return Table.of(columns, ([f"row {index}", *row] for index, row in enumerate(rows)))


def test_a_cell_without_a_plan_stays_empty_and_colours_are_logarithmic_only_over_decades() -> None:
    table = cells((1.0, None), (None, 4.0))
    (drawn,) = heat_map(table, "Time (days)", "x").data
    assert [list(row) for row in drawn.z] == [[1.0, None], [None, 4.0]]
    assert [list(row) for row in drawn.text] == [["1.00", ""], ["", "4.00"]]
    assert table.shown()[1] == ["row 1", NONE, "4.00"]
    assert heat_map(cells((None,)), "z", "x").data[0].z[0][0] is None
    assert list(heat_map(cells((1.0, 1000.0)), "z", "x").data[0].z[0]) == [0.0, 3.0]
    assert list(heat_map(cells((1.0, 20.0)), "z", "x").data[0].z[0]) == [1.0, 20.0]


def test_runs_are_listed_the_worst_first_and_drawn_by_family_the_closest_first() -> None:
    table, figure = runs(CASES)
    errors = [(row[0], row[5]) for row in table.shown()]
    assert errors == [("b", "-30.0 %"), ("a", "+10.0 %"), ("c", "+1.0 %")]
    drawn, middles = figure.data
    assert list(middles.y) == ["megatron (2)", "mlperf (1)"]
    assert sorted(drawn.x) == pytest.approx([-30.0, 1.0, 10.0])
    assert list(middles.x) == pytest.approx([5.5, -30.0])
    said = {words.partition("<br>")[0]: words for words in drawn.customdata}
    assert said["<b>a</b>"] == "<b>a</b><br>measured: 10.0 s<br>predicted: 11.0 s<br>error: +10.0 %"


def test_a_family_has_the_errors_that_its_bands_allow_and_a_run_outside_its_band_a_diamond() -> None:
    banded = [
        ("in", "megatron", "A", 10.0, 11.0, 0.1, (8.8, 13.75)),
        ("out", "megatron", "C", 20.0, 14.0, -0.3, (11.2, 17.5)),
    ]
    bands, inside, outside, _ = runs(banded)[1].data
    assert list(bands.base) == pytest.approx([-20.0])
    assert list(bands.x) == pytest.approx([45.0])
    assert sorted([*inside.marker.symbol, *outside.marker.symbol]) == ["circle", "diamond-open"]
    assert (inside.name, outside.name) == ("a run", "a run outside its band")


def test_points_that_are_not_worth_taking_have_open_marks_and_no_star() -> None:
    points = [("gpu", "8", 1.0, Cell(9.0, mark=True)), ("gpu", "4", 2.0, 9.5)]
    columns = {"series": None, "machine": None, "time to the target": Unit("days"), "cost": Unit("EUR")}
    (line,) = cost_curve(Table.of(columns, points)).data
    assert list(line.marker.symbol) == ["circle", "circle-open"]
    assert line.customdata[0] == "<b>8</b><br>time to the target: 1.00 days<br>cost: 9.00 EUR"


def test_names_stand_at_lines_where_they_have_room_and_in_a_legend_elsewhere() -> None:
    apart = scaling_curve(scaling(POINTS)).layout
    assert not apart.showlegend
    assert [note.text for note in apart.annotations] == ["gpu", "wafer"]
    crowd = [(f"{name} {number}", *rest) for number in range(5) for name, *rest in POINTS]
    assert scaling_curve(scaling(crowd)).layout.showlegend


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


def test_efficiency_in_time_is_drawn_only_where_it_differs() -> None:
    same = [("gpu", 8, 1.0, 1.0, ""), ("gpu", 16, 0.9, 0.9, "")]
    unlike = [("wafer", 1, 1.0, 1.0, ""), ("wafer", 64, 0.9, 0.5, "")]
    figure = efficiency_curve(scaling([*same, *unlike], "in throughput"))
    solid, other, dashed = figure.data
    assert [trace.line.dash for trace in (solid, other, dashed)] == ["solid", "solid", "dash"]
    assert list(dashed.y) == [1.0, 0.5]
    assert list(figure.layout.xaxis.ticktext) == ["1", "8", "16", "64"]
