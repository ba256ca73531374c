"""GPipe: all forwards, then all backwards (Huang et al. 2019)."""

from __future__ import annotations

import numpy as np

from perfsim.strategies.schedules.slots import Held, Numbers, Slot, StageOrder


def order(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """All forwards, then all backwards."""
    return [
        [Slot("F", stage, 0, number) for number in range(microbatches)]
        + [Slot("B", stage, 0, number) for number in range(microbatches)]
        for stage in range(pipeline)
    ]


def in_flight(
    stage: Numbers, _pipeline: Numbers, _virtual: Numbers, microbatches: Numbers
) -> tuple[Held, ...]:
    """Every micro-batch."""
    return (Held(microbatches + np.zeros_like(stage)),)
