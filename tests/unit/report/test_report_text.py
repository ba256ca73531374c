"""Numbers and names as people read them."""

from __future__ import annotations

import math

import pytest

from perfsim.engine.trace import Simulated
from perfsim.report import text
from perfsim.report.draw import log_axis
from perfsim.studies.answers import StudyResult


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"),
        (31.25, "31.2"),
        (1234.5, "1,230"),
        (0.00012345, "0.000123"),
        (-2.0, "-2.00"),
        (999.9, "1,000"),
        (0.9996, "1.00"),
        (9.996, "10.0"),
        (math.inf, "n/a"),
        (math.nan, "n/a"),
    ],
)
def test_a_number_has_three_significant_digits_and_no_exponent(value: float, written: str) -> None:
    assert text.number(value) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (3.2e-5, "32.0 µs"),
        (0.25, "250 ms"),
        (76.06, "76.1 s"),
        (1200, "20.0 min"),
        (86400, "24.0 h"),
        (32 * 86400, "32.0 days"),
        (3 * text.YEAR_S, "3.00 years"),
        (0.0, "0 s"),
        (math.inf, "n/a"),
    ],
)
def test_a_duration_is_in_the_unit_a_person_would_choose(seconds: float, written: str) -> None:
    assert text.duration(seconds) == written


def test_durations_shown_together_share_the_unit_of_their_middle() -> None:
    assert text.TIME.of([20 * 86400, 40 * 86400, math.inf]).name == "days"
    assert text.TIME.of([]).name == "s"


def test_a_band_is_in_the_unit_of_its_value() -> None:
    assert text.TIME.text(32 * 86400, (86400, 64 * 86400)) == "32.0 days (1.00 to 64.0)"
    assert text.LARGE.text(2.43e7, (6.69e6, 4.1e7)) == "24.3 million (6.69 to 41)"
    assert text.SHARE.text(0.5, (0.25, 0.75)) == "50.0 % (25.0 % to 75.0 %)"
    assert text.TIME.text(math.inf) == "n/a"


def test_a_capacity_keeps_the_unit_in_which_it_was_stated() -> None:
    assert text.MEMORY.of([80 * 2**30]).text(33.7 * 2**30) == "33.7 GiB"
    assert text.MEMORY.of([40e9]).text(31.7e9) == "31.7 GB"
    assert text.MEMORY.of([math.nan]).text(5e9) == "5.00 GB"


def test_large_counts_are_said_in_words() -> None:
    assert [text.large(value) for value in (4e11, 2.02e10, 2.43e7, 1536)] == [
        "400 billion",
        "20.2 billion",
        "24.3 million",
        "1,536",
    ]


def test_a_layout_is_short_and_leaves_out_degrees_of_one() -> None:
    short = "tp8 dp16 mbs4"
    assert text.layout_short({"tensor": 8, "pipeline": 1, "data": 16, "micro_batch_size": 4}) == short
    assert text.layout_short({"tensor": 8, "pipeline": 4, "virtual_pipeline": 2}) == "tp8 pp4 vpp2"
    assert text.layout_short({"tensor": 1, "pipeline": 1, "data": 16}) == "dp16"
    assert text.layout_short({}) == ""


def test_the_long_form_of_a_layout_names_only_what_is_switched_on() -> None:
    layout = {"tensor": 8, "data": 2, "sequence_parallel": True, "zero_stage": 0, "recompute": "full"}
    assert text.layout_long(layout) == "tp8 dp2, sequence parallel, recompute full"
    assert text.layout_long({"pipeline": 2, "layers_per_stage": (23, 21)}) == "pp2, layers per stage 23-21"


def test_candidates_of_one_name_are_numbered(result: StudyResult) -> None:
    twins = [result.candidates[0], result.candidates[0]]
    names = [name for name, _ in text.named(twins)]
    assert names == ["128 A100-80GB (16 DGX), 3d", "128 A100-80GB (16 DGX), 3d (2)"]


def test_one_of_anything_is_singular() -> None:
    counts = Simulated(events=1200, flows=784, links=1, contended_s=0.012)
    assert text.simulated(counts) == "1,200 events; 784 flows on 1 link, contended for 12.0 ms"
    counts = Simulated(events=1200, flows=0, links=0, contended_s=0.0, engine="simpy")
    assert text.simulated(counts).startswith("1,200 events (simpy); no link")


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ((21, 328), ["20", "50", "100", "200", "500"]),
        ((8, 1024), ["3", "10", "30", "100", "300", "1,000", "3,000"]),
        ((98304, 3.1e7), ["30 k", "0.1 M", "0.3 M", "1 M", "3 M", "10 M", "30 M", "100 M"]),
        ((10.2, 14.9), ["10", "15"]),
        ((1e-3, 1e6), None),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_written_out(
    values: tuple[float, float], written: list[str] | None
) -> None:
    axis = log_axis("x", values)
    ticks = axis["tickvals"]
    assert len(ticks) <= 8
    assert ticks == sorted(set(ticks))
    assert ticks[0] <= values[0] * 1.0001
    if written is not None:
        assert axis["ticktext"] == written
