"""Pipeline schedules as data: the order in which each stage runs its slots.

A slot is one pass of one micro-batch through one model chunk. Schedules know nothing of devices or
models; what they promise (each slot once, in order, a bounded number in flight, the bubble of equal
times) is tested alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfsim.errors import LayoutError
from perfsim.strategies.schedules import (
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
    zero_bubble_v,
)
from perfsim.strategies.schedules.merge import merged_order
from perfsim.strategies.schedules.placement import Placement
from perfsim.strategies.schedules.slot import Held, Pass, PassTimes, Ranks, Slot, StageOrder

__all__ = [
    "SCHEDULES",
    "Held",
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
InFlight = Callable[[int, int, int, int], tuple[Held, ...]]
"""(stage, pipeline, virtual, micro-batches): what a stage holds when it holds most."""
Bubble = Callable[[Ranks, int, int, bool], float]
"""(ranks, virtual, micro-batches, whether ranks end together): idle seconds of the slowest rank."""


@dataclass(frozen=True)
class Schedule:
    """One schedule: its order, and in closed form what it holds and how long it idles."""

    name: str
    order: OrderOf
    in_flight: InFlight
    bubble_s: Bubble
    chunks: int | None = 1
    """Chunks a rank; None: as many as asked for."""
    splits_backward: bool = False
    """Weight gradients are a pass of their own."""
    v_shaped: bool = False
    skewed: bool = False
    """A rank updates without waiting for the others, so later stages run whole steps later."""


SCHEDULES: dict[str, Schedule] = {
    each.name: each
    for each in (
        Schedule("1f1b", one_f_one_b.order, one_f_one_b.in_flight, one_f_one_b.bubble_s),
        Schedule("gpipe", gpipe.order, gpipe.in_flight, one_f_one_b.bubble_s),
        Schedule("interleaved", interleaved.order, interleaved.in_flight, one_f_one_b.bubble_s, chunks=None),
        Schedule(
            "zb1p",
            zero_bubble.order_1p,
            zero_bubble.in_flight_1p,
            zero_bubble.bubble_1p_s,
            splits_backward=True,
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
    )
}


def schedule_called(name: str) -> Schedule:
    """The schedule of that name; LayoutError lists the known ones."""
    if name not in SCHEDULES:
        raise LayoutError(f"unknown schedule {name!r}; known: {', '.join(sorted(SCHEDULES))}")
    return SCHEDULES[name]


def schedule(name: str, pipeline: int, virtual: int, microbatches: int) -> list[StageOrder]:
    """The order of every stage. LayoutError for a number of chunks that the schedule cannot have."""
    chosen = schedule_called(name)
    problem = chunks_problem(chosen, virtual)
    if problem:
        raise LayoutError(problem)
    return chosen.order(pipeline, virtual, microbatches)


def chunks_problem(chosen: Schedule, virtual: int) -> str:
    """What is wrong with a number of chunks a rank; empty where nothing is."""
    if chosen.chunks in (None, virtual):
        return ""
    if chosen.chunks == 1:
        return f"virtual_pipeline {virtual} needs schedule interleaved, not {chosen.name}"
    return f"schedule {chosen.name} needs virtual_pipeline {chosen.chunks}, not {virtual}"


def least_chunks(name: str) -> int:
    """Chunks a rank of a schedule where the question names none."""
    chosen = SCHEDULES.get(name)
    return (chosen.chunks if chosen else None) or 1


def placement(name: str, pipeline: int, virtual: int) -> Placement:
    """Which virtual stage stands on which rank under a schedule."""
    return Placement(pipeline, virtual, schedule_called(name).v_shaped)


def in_flight(name: str, stage: int, pipeline: int, virtual: int, microbatches: int) -> tuple[Held, ...]:
    """What a stage holds when it holds most, in micro-batches of the whole stage.

    One moment, or several where it depends on the bytes of activations and of what W reads.
    """
    return schedule_called(name).in_flight(stage, pipeline, virtual, microbatches)


def bubble_s(
    name: str, ranks: Sequence[PassTimes], virtual: int, microbatches: int, *, together: bool | None = None
) -> float:
    """Idle seconds of the slowest rank in a step: the step is m times its pace, and this.

    `together` overrides whether all ranks end a step at the same time, as under a tied embedding.
    """
    chosen = schedule_called(name)
    if together is None:
        together = not chosen.skewed
    return chosen.bubble_s(Ranks.of(ranks), virtual, microbatches, together)
