"""Interleaved 1F1B of Megatron [2104.04473 section 2.2]: each stage holds several chunks."""

from __future__ import annotations

import numpy as np

from perfsim.base.errors import LayoutError
from perfsim.strategies.schedules.slots import Held, Numbers, Pass, Slot, StageOrder


def order(pipeline: int, virtual: int, microbatches: int) -> list[StageOrder]:
    """Micro-batches run in groups of `pipeline`; their number must be a multiple of it."""
    if microbatches % pipeline:
        raise LayoutError(
            f"interleaved needs micro-batches ({microbatches}) in multiples of pipeline ({pipeline})"
        )
    return [_stage_order(stage, pipeline, virtual, microbatches) for stage in range(pipeline)]


def _stage_order(stage: int, pipeline: int, virtual: int, microbatches: int) -> StageOrder:
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


def in_flight(stage: Numbers, pipeline: Numbers, virtual: Numbers, microbatches: Numbers) -> tuple[Held, ...]:
    """At the first stage p (1 + (p - 1) / (p v)) micro-batches [2205.05198].

    With a single group of micro-batches all forwards run first, so every stage holds all of them.
    """
    warm_up = (pipeline - stage - 1) * 2 + (virtual - 1) * pipeline + 1
    held = np.minimum(warm_up, microbatches * virtual) / virtual
    return (Held(np.where(microbatches == pipeline, microbatches, held)),)
