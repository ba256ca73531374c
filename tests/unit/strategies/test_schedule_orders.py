"""Schedules written out, and what is refused."""

from __future__ import annotations

import pytest

from perfsim.errors import LayoutError
from perfsim.strategies.schedules import in_flight, schedule


def text(name: str, pipeline: int, virtual: int, microbatches: int) -> list[str]:
    """Each stage as `F0 F1 B0 ...`, chunks as letters where there are several."""
    return [
        " ".join(f"{slot.which}{'ab'[slot.chunk] if virtual > 1 else ''}{slot.microbatch}" for slot in order)
        for order in schedule(name, pipeline, virtual, microbatches)
    ]


def test_gpipe_runs_all_forwards_first() -> None:
    assert text("gpipe", 2, 1, 2) == ["F0 F1 B0 B1"] * 2


def test_1f1b_warms_up_then_alternates() -> None:
    assert text("1f1b", 3, 1, 4) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_1f1b_with_fewer_micro_batches_than_stages_is_gpipe_on_the_first() -> None:
    assert text("1f1b", 4, 1, 2)[0] == "F0 F1 B0 B1"


def test_interleaved_goes_round_the_chunks_in_groups_of_the_pipeline() -> None:
    assert text("interleaved", 2, 2, 4) == [
        "Fa0 Fa1 Fb0 Fb1 Fa2 Bb0 Fa3 Bb1 Fb2 Ba0 Fb3 Ba1 Bb2 Bb3 Ba2 Ba3",
        "Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3",
    ]


def test_interleaved_holds_more_on_the_first_stage_by_the_published_factor() -> None:
    pipeline, virtual = 8, 3
    factor = 1 + (pipeline - 1) / (pipeline * virtual)
    assert in_flight("interleaved", 0, pipeline, virtual, 64) == pytest.approx(pipeline * factor)


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_chunks_need_the_interleaved_schedule(name: str) -> None:
    with pytest.raises(LayoutError, match="virtual_pipeline 2"):
        schedule(name, 2, 2, 4)


def test_interleaved_needs_whole_groups() -> None:
    with pytest.raises(LayoutError, match=r"micro-batches \(5\) in multiples of pipeline \(2\)"):
        schedule("interleaved", 2, 2, 5)


def test_an_unknown_schedule_lists_the_known_ones() -> None:
    with pytest.raises(LayoutError, match="unknown schedule 'zb1p'; known: 1f1b, gpipe, interleaved"):
        schedule("zb1p", 2, 1, 4)
