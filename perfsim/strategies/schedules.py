"""Pipeline schedules as data: the order in which each stage runs its slots.

A slot is the forward or backward pass of one micro-batch through one model chunk. These functions
know nothing of time, devices or models; what they promise (each slot once, forward before backward,
a bounded number in flight) is tested alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from perfsim.errors import LayoutError

Pass = Literal["F", "B"]


class Slot(NamedTuple):
    """One pass of one micro-batch through virtual stage `chunk * pipeline + stage`."""

    which: Pass
    stage: int
    chunk: int
    microbatch: int


StageOrder = list[Slot]


def gpipe(pipeline: int, virtual: int, microbatches: int) -> list[StageOrder]:
    """All forwards, then all backwards (Huang et al. 2019)."""
    _refuse_virtual("gpipe", virtual)
    return [
        [Slot("F", stage, 0, number) for number in range(microbatches)]
        + [Slot("B", stage, 0, number) for number in range(microbatches)]
        for stage in range(pipeline)
    ]


def one_f_one_b(pipeline: int, virtual: int, microbatches: int) -> list[StageOrder]:
    """Non-interleaved 1F1B: p - i - 1 warm-up forwards on stage i, then one forward, one backward."""
    _refuse_virtual("1f1b", virtual)
    return [_one_f_one_b_stage(stage, pipeline, microbatches) for stage in range(pipeline)]


def _one_f_one_b_stage(stage: int, pipeline: int, microbatches: int) -> StageOrder:
    warm_up = min(pipeline - stage - 1, microbatches)
    slots = [Slot("F", stage, 0, number) for number in range(warm_up)]
    for number in range(microbatches - warm_up):
        slots += [Slot("F", stage, 0, number + warm_up), Slot("B", stage, 0, number)]
    slots += [Slot("B", stage, 0, number) for number in range(microbatches - warm_up, microbatches)]
    return slots


def interleaved(pipeline: int, virtual: int, microbatches: int) -> list[StageOrder]:
    """Interleaved 1F1B of Megatron [2104.04473 section 2.2]: each stage holds `virtual` chunks.

    Micro-batches go round in groups of `pipeline`; the number of micro-batches must be a multiple.
    """
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


def _refuse_virtual(name: str, virtual: int) -> None:
    if virtual != 1:
        raise LayoutError(
            f"schedule {name} has one chunk a stage, not virtual_pipeline {virtual}; use interleaved"
        )


SCHEDULES: dict[str, Callable[[int, int, int], list[StageOrder]]] = {
    "1f1b": one_f_one_b,
    "gpipe": gpipe,
    "interleaved": interleaved,
}


def schedule(name: str, pipeline: int, virtual: int, microbatches: int) -> list[StageOrder]:
    """The order of every stage under the schedule called `name`."""
    if name not in SCHEDULES:
        raise LayoutError(f"unknown schedule {name!r}; known: {', '.join(sorted(SCHEDULES))}")
    return SCHEDULES[name](pipeline, virtual, microbatches)


def in_flight(name: str, stage: int, pipeline: int, virtual: int, microbatches: int) -> float:
    """Micro-batches whose activations a stage holds at its peak, in units of the whole stage.

    1F1B: p - i on stage i; interleaved: p (1 + (p - 1) / (p v)) on the first [2205.05198], and all on
    every stage of a single group of micro-batches, which runs all forwards first; GPipe: all.
    """
    if name == "gpipe":
        return float(microbatches)
    if name == "interleaved":
        if microbatches == pipeline:
            return float(microbatches)
        warm_up = (pipeline - stage - 1) * 2 + (virtual - 1) * pipeline + 1
        return min(warm_up, microbatches * virtual) / virtual
    return float(min(pipeline - stage, microbatches))


def merged_order(orders: list[StageOrder], virtual: int) -> list[Slot]:
    """All slots in one topological order: each after the slot whose output it reads.

    A forward follows the forward of the virtual stage before it, a backward the backward of the one
    after it (the last virtual stage's own forward).
    """
    pipeline = len(orders)
    last = pipeline * virtual - 1
    done: set[tuple[str, int, int]] = set()
    position = [0] * pipeline
    merged: list[Slot] = []
    total = sum(len(order) for order in orders)
    while len(merged) < total:
        before = len(merged)
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                slot = order[position[stage]]
                place = slot.chunk * pipeline + stage
                needs = _needs(slot.which, place, last, slot.microbatch)
                if needs is not None and needs not in done:
                    break
                done.add((slot.which, place, slot.microbatch))
                merged.append(slot)
                position[stage] += 1
        if len(merged) == before:
            raise LayoutError("the schedule deadlocks: no stage can run its next slot")
    return merged


def _needs(which: str, place: int, last: int, microbatch: int) -> tuple[str, int, int] | None:
    if which == "F":
        return ("F", place - 1, microbatch) if place else None
    return ("B", place + 1, microbatch) if place < last else ("F", last, microbatch)
