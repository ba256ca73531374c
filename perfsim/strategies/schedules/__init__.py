"""Pipeline schedules as data: the order in which each stage runs its slots.

A slot is one pass of one micro-batch through one model chunk. Schedules do not depend on devices or models.
Their properties (each slot once, in order, bounded micro-batches in flight, the bubble for equal times) are
tested separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfsim.base.errors import LayoutError, Problem
from perfsim.base.text import did_you_mean
from perfsim.strategies.schedules import (
    controlled_memory,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
    zero_bubble_v,
)
from perfsim.strategies.schedules.slots import (
    Held,
    Numbers,
    PacedRanks,
    Pass,
    PassTimes,
    Placement,
    Slot,
    StageOrder,
    merged_order,
)

__all__ = [
    "SCHEDULES",
    "Held",
    "Numbers",
    "PacedRanks",
    "Pass",
    "PassTimes",
    "Placement",
    "Schedule",
    "Slot",
    "StageOrder",
    "bubble_s",
    "chunks_problem",
    "in_flight",
    "least_chunks",
    "merged_order",
    "placement",
    "schedule",
    "schedule_called",
]

OrderOf = Callable[[int, int, int], list[StageOrder]]
"""(pipeline, virtual, micro-batches): the order of every stage."""
InFlight = Callable[[Numbers, Numbers, Numbers, Numbers], tuple[Held, ...]]
"""(stage, pipeline, virtual, micro-batches), arrays that broadcast: what stages hold at their peak."""
Bubble = Callable[[PacedRanks, Numbers, Numbers, Numbers], Numbers]
"""(ranks, virtual, micro-batches, whether ranks end together): idle seconds of the slowest rank."""


@dataclass(frozen=True)
class Schedule:
    """A schedule: its order, and closed forms of what it holds in flight and of its bubble."""

    name: str
    order: OrderOf
    in_flight: InFlight
    bubble_s: Bubble
    chunks: int | None = 1
    """Chunks per rank; None: any number."""
    splits_backward: bool = False
    """Weight gradients are a separate pass."""
    tight: bool = False
    """A rank's next forward waits for a backward of its neighbour in the steady state: sends are exposed."""
    forwards_first: bool = False
    """All forwards run before the first backward."""
    v_shaped: bool = False
    skewed: bool = False
    """A rank updates without waiting for other ranks, so later stages run their whole steps later."""


SCHEDULES: dict[str, Schedule] = {
    known.name: known
    for known in (
        Schedule("1f1b", one_f_one_b.order, one_f_one_b.in_flight, one_f_one_b.bubble_s, tight=True),
        Schedule("gpipe", gpipe.order, gpipe.in_flight, one_f_one_b.bubble_s, forwards_first=True),
        Schedule("interleaved", interleaved.order, interleaved.in_flight, one_f_one_b.bubble_s, chunks=None),
        Schedule(
            "zb1p",
            zero_bubble.order_1p,
            zero_bubble.in_flight_1p,
            zero_bubble.bubble_1p_s,
            splits_backward=True,
            tight=True,
        ),
        Schedule(
            "zb2p",
            zero_bubble.order_2p,
            zero_bubble.in_flight_2p,
            zero_bubble.bubble_2p_s,
            splits_backward=True,
            skewed=True,
        ),
        Schedule(
            "zbv",
            zero_bubble_v.order,
            zero_bubble_v.in_flight,
            zero_bubble_v.bubble_s,
            chunks=zero_bubble_v.CHUNKS,
            splits_backward=True,
            v_shaped=True,
            skewed=True,
        ),
        *(
            Schedule(
                name,
                known.order,
                known.in_flight,
                known.bubble_s,
                chunks=controlled_memory.CHUNKS,
                splits_backward=True,
                v_shaped=True,
            )
            for name, known in (
                ("v-half", controlled_memory.V_HALF),
                ("v-min", controlled_memory.V_MIN),
            )
        ),
    )
}


def schedule_called(name: str) -> Schedule:
    """The schedule of that name; LayoutError lists the known schedules."""
    if name not in SCHEDULES:
        problem = Problem(f"unknown schedule {name!r}", help=did_you_mean(name, sorted(SCHEDULES)))
        raise LayoutError([problem])
    return SCHEDULES[name]


def schedule(name: str, pipeline: int, virtual: int, microbatches: int) -> list[StageOrder]:
    """The order of every stage. LayoutError for a number of chunks that the schedule cannot have."""
    chosen = schedule_called(name)
    problem = chunks_problem(chosen, virtual)
    if problem:
        raise LayoutError(problem)
    return chosen.order(pipeline, virtual, microbatches)


def chunks_problem(chosen: Schedule, virtual: int) -> str:
    """The problem with a number of chunks per rank; empty where there is none."""
    if chosen.chunks in (None, virtual):
        return ""
    if chosen.chunks == 1:
        return f"virtual_pipeline {virtual} needs schedule interleaved, not {chosen.name}"
    return f"schedule {chosen.name} needs virtual_pipeline {chosen.chunks}, not {virtual}"


def least_chunks(name: str) -> int:
    """The default number of chunks per rank of a schedule."""
    chosen = SCHEDULES.get(name)
    return (chosen.chunks if chosen else None) or 1


def placement(name: str, pipeline: int, virtual: int) -> Placement:
    """The placement of virtual stages on ranks under a schedule."""
    return Placement(pipeline, virtual, schedule_called(name).v_shaped)


def in_flight(
    name: str, stage: Numbers, pipeline: Numbers, virtual: Numbers, microbatches: Numbers
) -> tuple[Held, ...]:
    """What stages hold at their peak, in micro-batches of the whole stage; arguments broadcast.

    There are several candidates where the peak depends on the bytes of activations and of W's inputs.
    """
    return schedule_called(name).in_flight(stage, pipeline, virtual, microbatches)


def bubble_s(
    name: str, ranks: PacedRanks, virtual: Numbers, microbatches: Numbers, together: Numbers | None = None
) -> Numbers:
    """Idle seconds of the slowest rank: a step takes m times its pass times plus this bubble.

    `together` overrides whether all ranks end a step at the same time, as with a tied embedding.
    """
    chosen = schedule_called(name)
    if together is None:
        together = np.array(not chosen.skewed)
    return chosen.bubble_s(ranks, virtual, microbatches, together)
