"""Schedules without a split backward: GPipe, 1F1B and interleaved 1F1B."""

from __future__ import annotations

import numpy as np

from perfsim.base.errors import LayoutError
from perfsim.strategies.schedules.slots import Held, Numbers, PacedRanks, Pass, Slot, StageOrder


def gpipe(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """All forwards, then all backwards (Huang et al. 2019)."""
    return [
        [Slot("F", stage, 0, number) for number in range(microbatches)]
        + [Slot("B", stage, 0, number) for number in range(microbatches)]
        for stage in range(pipeline)
    ]


def gpipe_in_flight(
    stage: Numbers, _pipeline: Numbers, _virtual: Numbers, microbatches: Numbers
) -> tuple[Held, ...]:
    """Every micro-batch."""
    return (Held(microbatches + np.zeros_like(stage)),)


def one_f_one_b(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """Stage i runs p - i - 1 warm-up forwards, then alternates [1806.03377, 2104.04473]."""
    return [_one_f_one_b_stage(stage, pipeline, microbatches) for stage in range(pipeline)]


def _one_f_one_b_stage(stage: int, pipeline: int, microbatches: int) -> StageOrder:
    warm_up = min(pipeline - stage - 1, microbatches)
    slots = [Slot("F", stage, 0, number) for number in range(warm_up)]
    for number in range(microbatches - warm_up):
        slots += [Slot("F", stage, 0, number + warm_up), Slot("B", stage, 0, number)]
    slots += [Slot("B", stage, 0, number) for number in range(microbatches - warm_up, microbatches)]
    return slots


def one_f_one_b_in_flight(
    stage: Numbers, pipeline: Numbers, _: Numbers, microbatches: Numbers
) -> tuple[Held, ...]:
    """Stage i holds p - i micro-batches."""
    return (Held(np.minimum(pipeline - stage, microbatches)),)


def bubble_s(ranks: PacedRanks, virtual: Numbers, _microbatches: Numbers, _together: Numbers) -> Numbers:
    """(p - 1) (F + B) / v: one micro-batch fills and drains the other ranks [2104.04473 2.2]."""
    return ranks.others.total_s / virtual


def interleaved(pipeline: int, virtual: int, microbatches: int) -> list[StageOrder]:
    """Chunks of stages [2104.04473 section 2.2]; micro-batches run in groups of `pipeline`."""
    if microbatches % pipeline:
        raise LayoutError(
            f"interleaved needs micro-batches ({microbatches}) in multiples of pipeline ({pipeline})"
        )
    return [_interleaved_stage(stage, pipeline, virtual, microbatches) for stage in range(pipeline)]


def _interleaved_stage(stage: int, pipeline: int, virtual: int, microbatches: int) -> StageOrder:
    total = microbatches * virtual
    group = pipeline * virtual

    def slot(which: Pass, index: int) -> Slot:
        chunk = index % group // pipeline
        if which == "B":
            chunk = virtual - 1 - chunk
        return Slot(which, stage, chunk, index // group * pipeline + index % pipeline)

    warm_up = total if microbatches == pipeline else (pipeline - stage - 1) * 2 + (virtual - 1) * pipeline
    warm_up = min(warm_up, total)
    slots = [slot("F", index) for index in range(warm_up)]
    for index in range(total - warm_up):
        slots += [slot("F", index + warm_up), slot("B", index)]
    slots += [slot("B", index) for index in range(total - warm_up, total)]
    return slots


def interleaved_in_flight(
    stage: Numbers, pipeline: Numbers, virtual: Numbers, microbatches: Numbers
) -> tuple[Held, ...]:
    """At the first stage p (1 + (p - 1) / (p v)) micro-batches [2205.05198].

    With a single group of micro-batches all forwards run first, so every stage holds all of them.
    """
    warm_up = (pipeline - stage - 1) * 2 + (virtual - 1) * pipeline + 1
    held = np.minimum(warm_up, microbatches * virtual) / virtual
    return (Held(np.where(microbatches == pipeline, microbatches, held)),)
