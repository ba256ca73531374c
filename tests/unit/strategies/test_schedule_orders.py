"""Schedules written out, and what is refused."""

from __future__ import annotations

import pytest

from perfsim.base.errors import LayoutError
from perfsim.strategies.schedules import SCHEDULES, schedule_called


@pytest.mark.parametrize(
    ("name", "sizes", "written"),
    [
        (
            "1f1b",
            (3, 1, 4),
            ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"],
        ),
        ("1f1b", (4, 1, 2), ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]),
        (
            "interleaved",
            (2, 2, 4),
            [
                "Fa0 Fa1 Fb0 Fb1 Fa2 Bb0 Fa3 Bb1 Fb2 Ba0 Fb3 Ba1 Bb2 Bb3 Ba2 Ba3",
                "Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3",
            ],
        ),
        (
            "zb1p",
            (3, 1, 4),
            [
                "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3",
                "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
                "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3",
            ],
        ),
        (
            "zb2p",
            (2, 1, 5),
            ["F0 F1 F2 B0 W0 F3 B1 W1 F4 B2 W2 B3 W3 B4 W4", "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 F4 B4 W2 W3 W4"],
        ),
        (
            "zbv",
            (2, 2, 3),
            [
                "Fa0 Fa1 Fa2 Fb0 Bb0 Wb0 Fb1 Bb1 Wb1 Ba0 Wa0 Fb2 Bb2 Wb2 Ba1 Wa1 Ba2 Wa2",
                "Fa0 Fb0 Fa1 Fb1 Bb0 Wb0 Fa2 Ba0 Wa0 Fb2 Bb1 Wb1 Ba1 Bb2 Ba2 Wa1 Wb2 Wa2",
            ],
        ),
    ],
)
def test_schedules_are_in_the_order_that_is_written_here(
    name: str, sizes: tuple[int, int, int], written: list[str]
) -> None:
    """Each stage as `F0 F1 B0 ...`, chunks as letters where there are several."""
    letters = "ab" if sizes[1] > 1 else ["", ""]
    for order, expected in zip(schedule_called(name).orders(*sizes), written, strict=True):
        slots = [f"{slot.which}{letters[slot.chunk]}{slot.microbatch}" for slot in order]
        assert " ".join(slots) == expected


def test_interleaved_holds_more_on_the_first_stage_by_the_published_factor() -> None:
    pipeline = 8
    virtual = 3
    factor = 1 + (pipeline - 1) / (pipeline * virtual)
    (held,) = SCHEDULES["interleaved"].in_flight(0, pipeline, virtual, 64)
    assert held.activations == pytest.approx(pipeline * factor)
    assert held.weight_inputs == 0


def test_an_unknown_schedule_lists_the_known_ones() -> None:
    with pytest.raises(
        LayoutError, match=f"unknown schedule 'dual'\n.*known: {', '.join(sorted(SCHEDULES))}"
    ):
        schedule_called("dual")
