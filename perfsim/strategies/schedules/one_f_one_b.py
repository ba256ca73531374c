"""1F1B without interleaving [1806.03377, 2104.04473]."""

from __future__ import annotations

import numpy as np

from perfsim.strategies.schedules.slots import Held, Numbers, PacedRanks, Slot, StageOrder


def order(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """Stage i runs p - i - 1 warm-up forwards, then alternates one forward and one backward."""
    return [_stage_order(stage, pipeline, microbatches) for stage in range(pipeline)]


def _stage_order(stage: int, pipeline: int, microbatches: int) -> StageOrder:
    warm_up = min(pipeline - stage - 1, microbatches)
    slots = [Slot("F", stage, 0, number) for number in range(warm_up)]
    for number in range(microbatches - warm_up):
        slots += [Slot("F", stage, 0, number + warm_up), Slot("B", stage, 0, number)]
    slots += [Slot("B", stage, 0, number) for number in range(microbatches - warm_up, microbatches)]
    return slots


def in_flight(stage: Numbers, pipeline: Numbers, _: Numbers, microbatches: Numbers) -> tuple[Held, ...]:
    """Stage i holds p - i micro-batches."""
    return (Held(np.minimum(pipeline - stage, microbatches)),)


def bubble_s(ranks: PacedRanks, virtual: Numbers, _microbatches: Numbers, _together: Numbers) -> Numbers:
    """(p - 1) (F + B) / v: one micro-batch fills and drains the other ranks [2104.04473 2.2]."""
    return ranks.others.total_s / virtual
