"""Figures for sweeps and validations."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perfsim.report.figures.scaling import (
    ScalingPoint,
    ValidationPoint,
    efficiency_curve,
    heat_map,
    heat_map_table,
    residuals,
    scaling_curve,
    scaling_table,
    validation_table,
)
from perfsim.report.figures.time import worth_taking

POINTS = [
    ScalingPoint("gpu", 128, 10.0, 0.8, "tp8"),
    ScalingPoint("gpu", 64, 16.0, 1.0),
    ScalingPoint("wafer", 1, 90.0, 1.0),
    ScalingPoint("wafer", 4, 30.0, 0.75),
]
CASES = [
    ValidationPoint("a", "megatron", 10.0, 11.0, 0.1),
    ValidationPoint("b", "mlperf", 20.0, 14.0, -0.3),
    ValidationPoint("c", "megatron", 30.0, 30.3, 0.01),
]


def test_the_ideal_time_halves_with_twice_the_devices() -> None:
    real, ideal = scaling_curve(POINTS).data[:2]
    assert list(real.x) == [64, 128]
    assert list(ideal.y) == [16.0, 8.0]


def test_the_ideal_rate_doubles_with_twice_the_devices() -> None:
    rates = [ScalingPoint("gpu", 64, 16.0, 1.0), ScalingPoint("gpu", 128, 24.0, 0.75)]
    figure = scaling_curve(rates, quantity="throughput", unit="tokens/s", better="higher")
    assert list(figure.data[1].y) == [16.0, 32.0]
    assert figure.layout.title.text == "Throughput (tokens/s) by number of devices"


def test_the_scaling_table_has_the_scaling_efficiency_of_every_point() -> None:
    rows = scaling_table(POINTS).rows
    assert [row[3] for row in rows] == ["100.0 %", "80.0 %", "100.0 %", "75.0 %"]
    assert rows[1] == ["gpu", "128", "10.0", "80.0 %", "tp8"]


def test_a_cell_without_a_feasible_plan_stays_empty() -> None:
    z = [[1.0, None], [math.nan, 4.0]]
    (cells,) = heat_map(["a", "b"], ["c", "d"], z, x_name="x", y_name="y", z_name="Time", unit="days").data
    assert [list(row) for row in cells.z] == [[1.0, None], [None, 4.0]]
    assert [list(row) for row in cells.text] == [["1.00", ""], ["", "4.00"]]
    assert heat_map_table(["a", "b"], ["c", "d"], z, x_name="x", y_name="y").rows[1] == [
        "d",
        "\N{EN DASH}",
        "4.00",
    ]


def test_colours_are_logarithmic_only_where_values_span_decades() -> None:
    def colours(*values: float) -> list[float]:
        figure = heat_map(range(2), ["y"], [list(values)], x_name="x", y_name="y", z_name="z", unit="s")
        return list(figure.data[0].z[0])

    assert colours(1.0, 1000.0) == [0.0, 3.0]
    assert colours(1.0, 20.0) == [1.0, 20.0]


def test_an_empty_heat_map_can_be_drawn() -> None:
    figure = heat_map(["a"], ["b"], [[None]], x_name="x", y_name="y", z_name="z", unit="s")
    assert figure.data[0].z[0][0] is None


def test_every_run_is_in_the_row_of_its_family_and_the_closest_family_comes_first() -> None:
    runs, middles = residuals(CASES).data
    assert list(middles.y) == ["megatron (2)", "mlperf (1)"]
    assert dict(zip(runs.customdata, runs.x, strict=True)).keys() >= set(runs.customdata)
    assert sorted(runs.x) == pytest.approx([-30.0, 1.0, 10.0])
    assert list(middles.x) == pytest.approx([5.5, -30.0])
    assert "a</b><br>measured 10.0 s, predicted 11.0 s<br>error +10.0 %" in runs.customdata[0]


def test_a_family_has_the_errors_that_its_bands_allow_and_a_run_outside_its_band_a_diamond() -> None:
    banded = [
        ValidationPoint("in", "megatron", 10.0, 11.0, 0.1, "A", (8.8, 13.75)),
        ValidationPoint("out", "megatron", 20.0, 14.0, -0.3, "C", (11.2, 17.5)),
    ]
    bands, runs, _ = residuals(banded).data
    assert list(bands.base) == pytest.approx([-20.0])
    assert list(bands.x) == pytest.approx([45.0])
    assert sorted(runs.marker.symbol) == ["circle", "diamond-open"]


def test_a_point_is_worth_taking_unless_another_is_as_fast_and_cheaper() -> None:
    assert worth_taking([(1.0, 9.0), (2.0, 3.0), (2.0, 4.0), (3.0, 3.0)]) == [True, True, False, False]


def test_names_stand_beside_lines_where_they_have_room_and_in_a_legend_elsewhere() -> None:
    apart = scaling_curve(POINTS).layout
    assert not apart.showlegend
    assert ["gpu" in note.text for note in apart.annotations] == [True, False]
    crowd = [replace(point, series=f"{point.series} {number}") for number in range(5) for point in POINTS]
    assert scaling_curve(crowd).layout.showlegend


def test_a_band_is_an_area_around_its_line() -> None:
    banded = [replace(point, band=(0.9 * point.value, 1.2 * point.value)) for point in POINTS[:2]]
    *_, area = scaling_curve(banded).data
    assert list(area.x) == [64, 128, 128, 64]
    assert list(area.y) == pytest.approx([19.2, 12.0, 9.0, 14.4])


def test_efficiency_in_time_is_drawn_only_where_it_differs() -> None:
    same = [ScalingPoint("gpu", 8, 1.0, 1.0), ScalingPoint("gpu", 16, 0.9, 0.9)]
    unlike = [ScalingPoint("wafer", 1, 1.0, 1.0), ScalingPoint("wafer", 64, 0.9, 0.5)]
    solid, other, dashed = efficiency_curve([*same, *unlike]).data
    assert [trace.line.dash for trace in (solid, other, dashed)] == ["solid", "solid", "dash"]
    assert list(dashed.y) == [100.0, 50.0]
    ticks = efficiency_curve([*same, *unlike]).layout.xaxis
    assert list(ticks.ticktext) == ["1", "8", "16", "64"]


def test_the_validation_table_begins_with_the_worst_case() -> None:
    assert [(row[0], row[-1]) for row in validation_table(CASES).rows] == [
        ("b", "-30.0 %"),
        ("a", "+10.0 %"),
        ("c", "+1.0 %"),
    ]
