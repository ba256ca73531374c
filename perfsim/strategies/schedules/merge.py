"""All stages' orders in one: the order in which a graph can be written."""

from __future__ import annotations

from perfsim.errors import LayoutError
from perfsim.strategies.schedules.placement import Placement
from perfsim.strategies.schedules.slot import Slot, StageOrder


def merged_order(orders: list[StageOrder], placement: Placement) -> list[Slot]:
    """All slots in one topological order: each after the slot whose output it reads.

    A forward follows the forward of the virtual stage before it, a backward the backward of the one
    after it (the last virtual stage's own forward), weight gradients their own backward.
    """
    last = placement.num_stages - 1
    done: set[tuple[str, int, int]] = set()
    position = [0] * len(orders)
    merged: list[Slot] = []
    total = sum(len(order) for order in orders)
    while len(merged) < total:
        before = len(merged)
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                slot = order[position[stage]]
                place = placement.virtual_stage(stage, slot.chunk)
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
    if which == "W":
        return ("B", place, microbatch)
    return ("B", place + 1, microbatch) if place < last else ("F", last, microbatch)
