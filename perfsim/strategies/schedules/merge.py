"""The orders of all stages merged into one, in which a graph can be written."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.errors import DeadlockError
from perfsim.strategies.schedules.placement import Placement
from perfsim.strategies.schedules.slot import Pass, Slot, StageOrder

MOST_STAGES = 8
"""Stages that a deadlock message lists."""
IN_WORDS: dict[Pass, str] = {"F": "forward", "B": "backward", "W": "weight gradients"}


def merged_order(orders: list[StageOrder], placement: Placement) -> list[Slot]:
    """All slots in one topological order, where each slot follows the slot whose output it reads.

    A forward follows the forward of the previous virtual stage. A backward follows the backward of the next
    stage, or on the last stage its own forward. Weight gradients follow their own backward. Raises
    DeadlockError where no stage can proceed, with the slot that each stage waits for.
    """
    places = [
        [placement.virtual_stage(rank, chunk) for chunk in range(placement.virtual)]
        for rank in range(placement.pipeline)
    ]
    last = placement.num_stages - 1
    count = 1 + max((slot.microbatch for order in orders for slot in order), default=0)
    # Whether micro-batches have passed each place; forwards have passed the one before the first.
    forwards = bytearray(b"\x01" * count + bytes(count * (last + 1)))
    backwards = bytearray(count * (last + 1))
    position = [0] * len(orders)
    merged: list[Slot] = []
    total = sum(len(order) for order in orders)
    while len(merged) < total:
        before = len(merged)
        for stage, order in enumerate(orders):
            for index in range(position[stage], len(order)):  # a slice or `islice` would read what is done
                which, _, chunk, microbatch = slot = order[index]
                at = places[stage][chunk] * count + microbatch
                if which == "F":
                    if not forwards[at]:
                        break
                    forwards[at + count] = 1
                elif which == "B":
                    above = at + count
                    if not (backwards[above] if above < len(backwards) else forwards[above]):
                        break
                    backwards[at] = 1
                elif not backwards[at]:
                    break
                merged.append(slot)
                position[stage] += 1
        if len(merged) == before:
            raise DeadlockError(_deadlock(orders, placement, position))
    return merged


def _deadlock(orders: Sequence[StageOrder], placement: Placement, position: Sequence[int]) -> str:
    """The message: the stuck slot of each stage and the slot that it waits for."""
    left = [order[reached] for order, reached in zip(orders, position, strict=True) if reached < len(order)]
    total = sum(len(order) for order in orders)
    lines = [f"the schedule deadlocks: {total - sum(position)} of {total} slots can never run"]
    for slot in left[:MOST_STAGES]:
        waits_for = _read_by(slot, placement)
        where = "itself" if waits_for.stage == slot.stage else f"stage {waits_for.stage}"
        lines.append(
            f"  stage {slot.stage}: {_named(slot, placement)} waits for {_named(waits_for, placement)} "
            f"of {where}"
        )
    if len(left) > MOST_STAGES:
        lines.append(f"  and {len(left) - MOST_STAGES} more stages")
    return "\n".join(lines)


def _read_by(slot: Slot, placement: Placement) -> Slot:
    """The slot whose output a stuck slot reads."""
    place, last = placement.virtual_stage(slot.stage, slot.chunk), placement.num_stages - 1
    which: Pass = "F" if slot.which == "F" or (slot.which == "B" and place == last) else "B"
    step = {"F": -1, "W": 0}.get(slot.which, 1 if place < last else 0)
    rank = placement.rank(place + step)
    chunk = placement.of_rank(rank).index(place + step)
    return Slot(which, rank, chunk, slot.microbatch)


def _named(slot: Slot, placement: Placement) -> str:
    chunk = f", chunk {slot.chunk}" if placement.virtual > 1 else ""
    return f"{IN_WORDS[slot.which]} of micro-batch {slot.microbatch}{chunk}"
