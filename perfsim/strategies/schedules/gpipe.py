"""GPipe: all forwards, then all backwards (Huang et al. 2019)."""

from __future__ import annotations

from perfsim.strategies.schedules.slot import Held, Slot, StageOrder


def order(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """All forwards, then all backwards."""
    return [
        [Slot("F", stage, 0, number) for number in range(microbatches)]
        + [Slot("B", stage, 0, number) for number in range(microbatches)]
        for stage in range(pipeline)
    ]


def in_flight(_stage: int, _pipeline: int, _virtual: int, microbatches: int) -> tuple[Held, ...]:
    """Every micro-batch."""
    return (Held(float(microbatches)),)
