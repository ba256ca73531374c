"""Numbers and names as people read them."""

import math

import pytest

from perfsim.base.text import number
from perfsim.base.units import YEAR_S
from perfsim.engine.trace import Simulated
from perfsim.report import text
from perfsim.report.draw import log_axis

COUNTS = Simulated(events=1200, flows=784, links=1, contended_s=0.012)
UNLINKED = Simulated(events=1200, flows=0, links=0, contended_s=0.0, engine="simpy")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (number(0.0), "0"),
        (number(31.25), "31.2"),
        (number(1234.5), "1,230"),
        (number(0.00012345), "0.000123"),
        (number(-2.0), "-2.00"),
        (number(999.9), "1,000"),
        (number(0.9996), "1.00"),
        (number(9.996), "10.0"),
        (number(math.inf), "n/a"),
        (number(math.nan), "n/a"),
        (text.duration(3.2e-5), "32.0 µs"),
        (text.duration(0.25), "250 ms"),
        (text.duration(76.06), "76.1 s"),
        (text.duration(1200), "20.0 min"),
        (text.duration(86400), "24.0 h"),
        (text.duration(32 * 86400), "32.0 days"),
        (text.duration(3 * YEAR_S), "3.00 years"),
        (text.duration(0.0), "0 s"),
        (text.duration(math.inf), "n/a"),
        (text.TIME.text(32 * 86400, (86400, 64 * 86400)), "32.0 days (1.00 to 64.0)"),
        (text.TIME.text(math.inf), "n/a"),
        (text.LARGE.text(2.43e7, (6.69e6, 4.1e7)), "24.3 million (6.69 to 41)"),
        (text.SHARE.text(0.5, (0.25, 0.75)), "50.0 % (25.0 % to 75.0 %)"),
        (text.MEMORY.of([80 * 2**30]).text(33.7 * 2**30), "33.7 GiB"),
        (text.MEMORY.of([183359 * 2**20]).text(33.7 * 2**30), "33.7 GiB"),  # as a B200 has them
        (text.MEMORY.of([40e9]).text(31.7e9), "31.7 GB"),
        (text.MEMORY.of([math.nan]).text(5e9), "5.00 GB"),
        (text.large(4e11), "400 billion"),
        (text.large(2.43e7), "24.3 million"),
        (text.large(1536), "1,536"),
        (text.layout_short({"tensor": 8, "pipeline": 1, "micro_batch_size": 4}), "tp8 mbs4"),
        (text.layout_short({"context": 2, "virtual_pipeline": 2, "expert": 8}), "cp2 vpp2 ep8"),
        (text.layout_short({"tensor": 1, "pipeline": 1, "data": 16}), "dp16"),
        (text.layout_short({"data": 2, "zero_stage": 1, "offload_optimizer": "cpu"}), "dp2 zero1 offload"),
        (text.layout_short({"data": 2, "offload_optimizer": "none"}), "dp2"),
        (text.layout_short({}), ""),
        (text.layout_long({"data": 2, "zero_stage": 0, "recompute": "full"}), "dp2, recompute full"),
        (text.layout_long({"tensor": 8, "sequence_parallel": True}), "tp8, sequence parallel"),
        (text.layout_long({"pipeline": 2, "layers_per_stage": (23, 21)}), "pp2, layers per stage 23-21"),
        (text.simulated(COUNTS), "1,200 events; 784 flows on 1 link, contended for 12.0 ms"),
        (text.simulated(UNLINKED), "1,200 events (simpy); no link is short of bandwidth"),
    ],
)
def test_a_quantity_has_three_digits_and_a_unit_and_a_layout_what_is_on(written: str, expected: str) -> None:
    assert written == expected


def test_durations_shown_together_share_the_unit_of_their_middle() -> None:
    assert text.TIME.of([20 * 86400, 40 * 86400, math.inf]).name == "days"
    assert text.TIME.of([]).name == "s"


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
def test_ticks_of_a_log_axis_are_written_out(values: tuple[float, float], written: list[str] | None) -> None:
    axis = log_axis("x", values)
    ticks = axis["tickvals"]
    assert len(ticks) <= 8
    assert ticks == sorted(set(ticks))
    assert ticks[0] <= values[0] * 1.0001
    if written is not None:
        assert axis["ticktext"] == written


@pytest.mark.parametrize(("columns", "width"), [("20", 40), ("60", 60), ("132", 132), ("", 100)])
def test_tables_fill_the_terminal_or_40(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.__stdout__", None)  # a pipe
    assert text.terminal_width() == width


def test_lines_break_at_hyphens_only_in_words_that_are_wider() -> None:
    words = "on 2024-04-24 with combined-interleaved, 28.8 days"
    assert text.paragraphs(words, width=21) == ["on 2024-04-24 with", "combined-interleaved,", "28.8 days"]
    assert text.paragraphs("a-word-that-is-wide", width=8) == ["a-word-", "that-is-", "wide"]
    assert "2024\u201104\u201124 with combined-" in text.unbroken(words), "a page breaks at other hyphens"
