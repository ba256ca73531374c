"""All stages' orders in one: the order in which a graph can be written."""

from __future__ import annotations

from itertools import islice

from perfsim.errors import LayoutError
from perfsim.strategies.schedules.placement import Placement
from perfsim.strategies.schedules.slot import Slot, StageOrder


def merged_order(orders: list[StageOrder], placement: Placement) -> list[Slot]:
    """All slots in one topological order: each after the slot whose output it reads.

    A forward follows the forward of the virtual stage before it, a backward the backward of the one
    after it (the last virtual stage's own forward), weight gradients their own backward.
    """
    places = [
        [placement.virtual_stage(rank, chunk) for chunk in range(placement.virtual)]
        for rank in range(placement.pipeline)
    ]
    last = placement.num_stages - 1
    done: set[tuple[str, int, int]] = set()
    position = [0] * len(orders)
    merged: list[Slot] = []
    total = sum(len(order) for order in orders)
    while len(merged) < total:
        before = len(merged)
        for stage, order in enumerate(orders):
            for slot in islice(order, position[stage], None):
                which, _, chunk, microbatch = slot
                place = places[stage][chunk]
                if which == "F":
                    ready = not place or ("F", place - 1, microbatch) in done
                elif which == "W":
                    ready = ("B", place, microbatch) in done
                else:
                    ready = (
                        ("B", place + 1, microbatch) if place < last else ("F", last, microbatch)
                    ) in done
                if not ready:
                    break
                done.add((which, place, microbatch))
                merged.append(slot)
                position[stage] += 1
        if len(merged) == before:
            raise LayoutError("the schedule deadlocks: no stage can run its next slot")
    return merged
