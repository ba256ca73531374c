"""Pipeline schedules as data: the order in which each stage runs its slots, and what is known of it.

A slot is one pass of one micro-batch through one model chunk. Schedules do not depend on devices or models.
Their properties (each slot once, in order, bounded micro-batches in flight, the bubble for equal times) are
tested separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfsim.base.errors import LayoutError, Problem
from perfsim.base.text import did_you_mean
from perfsim.strategies.schedules import controlled_memory, pipelined, zero_bubble
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
    "least_chunks",
    "merged_order",
    "schedule",
    "schedule_called",
]


@dataclass(frozen=True)
class Schedule:
    """One row of the table of schedules: its order, closed forms, and what it needs and allows."""

    name: str
    order: Callable[[int, int, int], list[StageOrder]]
    """(pipeline, virtual, micro-batches): the order of every stage."""
    in_flight: Callable[[Numbers, Numbers, Numbers, Numbers], tuple[Held, ...]]
    """(stage, pipeline, virtual, micro-batches), arrays that broadcast: what stages hold at their peak.

    In micro-batches of the whole stage. There are several candidates where the peak depends on the bytes of
    activations and of the inputs of weight gradients.
    """
    bubble_s: Callable[[PacedRanks, Numbers, Numbers, Numbers], Numbers]
    """(ranks, virtual, micro-batches, whether ranks end together): idle seconds of the slowest rank.

    A step takes m times the pass times of that rank plus this bubble.
    """
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
    in_groups: bool = False
    """Micro-batches are in multiples of the ranks, and chunks may hold different numbers of them."""
    whole_passes: bool = False
    """A rank takes each micro-batch forward and back before the next, as ZeRO 3 needs."""
    counts_head: bool = False
    """Stages are also divided with the LM head counted as layers, as Megatron-Core can."""
    fills_only: bool = False
    """The closed form is of pipelines that micro-batches fill; others are not listed."""

    def chunks_problem(self, virtual: int) -> str:
        """The problem with a number of chunks per rank; empty where there is none."""
        if self.chunks in (None, virtual):
            return ""
        if self.chunks == 1:
            return f"virtual_pipeline {virtual} needs schedule interleaved, not {self.name}"
        return f"schedule {self.name} needs virtual_pipeline {self.chunks}, not {virtual}"

    def placement(self, pipeline: int, virtual: int) -> Placement:
        """The placement of virtual stages on ranks."""
        return Placement(pipeline, virtual, self.v_shaped)


SCHEDULES: dict[str, Schedule] = {
    known.name: known
    for known in (
        Schedule(
            "1f1b",
            pipelined.one_f_one_b,
            pipelined.one_f_one_b_in_flight,
            pipelined.bubble_s,
            tight=True,
            whole_passes=True,
            counts_head=True,
        ),
        Schedule(
            "gpipe", pipelined.gpipe, pipelined.gpipe_in_flight, pipelined.bubble_s, forwards_first=True
        ),
        Schedule(
            "interleaved",
            pipelined.interleaved,
            pipelined.interleaved_in_flight,
            pipelined.bubble_s,
            chunks=None,
            in_groups=True,
            counts_head=True,
        ),
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
            zero_bubble.order_v,
            zero_bubble.in_flight_v,
            zero_bubble.bubble_v_s,
            chunks=zero_bubble.CHUNKS,
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
                fills_only=True,
            )
            for name, known in (("v-half", controlled_memory.V_HALF), ("v-min", controlled_memory.V_MIN))
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
    if problem := chosen.chunks_problem(virtual):
        raise LayoutError(problem)
    return chosen.order(pipeline, virtual, microbatches)


def least_chunks(name: str) -> int:
    """The default number of chunks per rank of a schedule; 1 of an unknown one, which is refused later."""
    chosen = SCHEDULES.get(name)
    return (chosen.chunks if chosen else None) or 1
