"""The parts of schedules: slots, what a rank holds between slots, pass times, and one order of all stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Ints
from perfsim.base.errors import DeadlockError

Numbers = NDArray[Any]
"""Numbers of many ranks or layouts, of shapes that broadcast."""

Pass = Literal["F", "B", "W"]
"""Forward, backward, weight gradients.

B computes gradients of inputs and weights, or only of inputs where the schedule has W passes.
"""


class Slot(NamedTuple):
    """One pass of one micro-batch through chunk `chunk` of pipeline rank `stage`."""

    which: Pass
    stage: int
    chunk: int
    microbatch: int


StageOrder = list[Slot]


class Held(NamedTuple):
    """What ranks hold at one moment, in micro-batches of the whole rank; numbers or arrays."""

    activations: Numbers
    """Held from forward to backward."""
    weight_inputs: Numbers = np.zeros(())
    """Inputs and output gradients of the weights, held from backward to weight gradients."""


class PassTimes(NamedTuple):
    """Seconds of one micro-batch through all chunks of ranks; numbers or arrays."""

    forward_s: Numbers
    backward_s: Numbers
    weights_s: Numbers = np.zeros(())

    @property
    def total_s(self) -> Numbers:
        return self.forward_s + self.backward_s + self.weights_s

    def of(self, rows: Ints | slice) -> PassTimes:
        return PassTimes(*(np.asarray(part)[rows] for part in self))


class PacedRanks(NamedTuple):
    """Pass times of the ranks of pipelines; the slowest rank sets the pace."""

    slowest: PassTimes
    others: PassTimes
    """Sum over all ranks except the slowest."""
    num_ranks: Numbers


# What a rank holds in flight, counted slot by slot over its order.


def held_at_peak(order: StageOrder, virtual: int) -> tuple[tuple[float, float], ...]:
    """Activations and weight inputs at the possible peaks of a rank, for an order with W slots.

    A forward adds activations, a backward turns these into inputs of weight gradients, and W frees them.
    Which moment is the peak depends on the bytes of both, so all that can be are returned: the corners of the
    convex hull of the moments.
    """
    activations = weight_inputs = 0
    most_inputs: dict[int, int] = {}
    for slot in order:
        activations += {"F": 1, "B": -1, "W": 0}[slot.which]
        weight_inputs += {"F": 0, "B": 1, "W": -1}[slot.which]
        most_inputs[activations] = max(most_inputs.get(activations, 0), weight_inputs)
    corners: list[tuple[int, int]] = []
    for count in sorted(most_inputs, reverse=True):
        moment = (count, most_inputs[count])
        if corners and moment[1] <= corners[-1][1]:
            continue
        while len(corners) > 1 and _is_inside(corners[-2], corners[-1], moment):
            corners.pop()
        corners.append(moment)
    return tuple((count / virtual, inputs / virtual) for count, inputs in corners)


def held_by_ranks(
    stage: Numbers,
    pipeline: Numbers,
    microbatches: Numbers,
    peaks: Callable[[int, int, int], tuple[tuple[float, float], ...]],
) -> tuple[Held, ...]:
    """What ranks hold at their possible peaks, given `peaks` of a rank, its pipeline and micro-batches.

    Ranks with fewer possible peaks repeat their first.
    """
    rank, width, count = np.broadcast_arrays(stage, pipeline, microbatches)
    most = int(max(width.max(initial=0), count.max(initial=0))) + 1
    keys, of_key = np.unique((rank * most + width) * most + count, return_inverse=True)
    found = [peaks(key // most**2, key // most % most, key % most) for key in keys.tolist()]
    moments = max(map(len, found), default=0)
    table = np.array([(*of_rank, *of_rank[:1] * (moments - len(of_rank))) for of_rank in found])
    at = of_key.reshape(rank.shape)
    return tuple(Held(table[at, number, 0], table[at, number, 1]) for number in range(moments))


def _is_inside(first: tuple[int, int], middle: tuple[int, int], last: tuple[int, int]) -> bool:
    """Whether the middle moment is on or below the line between the others, so it is never the peak alone."""
    rise = (last[1] - first[1]) * (first[0] - middle[0])
    return (middle[1] - first[1]) * (first[0] - last[0]) <= rise


# The placement of virtual stages on pipeline ranks.


@dataclass(frozen=True)
class Placement:
    """Virtual stages, numbered in the order of the forward pass, on the ranks of a pipeline.

    Chunk c of rank r is virtual stage c p + r. In a V, every other chunk is in reverse order: chunk 1 of
    rank r is virtual stage 2 p - 1 - r, so the last virtual stage is on the rank of the first.
    """

    pipeline: int
    virtual: int = 1
    v_shaped: bool = False

    @property
    def num_stages(self) -> int:
        return self.pipeline * self.virtual

    @property
    def last_rank(self) -> int:
        """The rank of the last virtual stage, with LM head and loss."""
        return self.rank(self.num_stages - 1)

    def virtual_stage(self, rank: int, chunk: int) -> int:
        """The virtual stage of a chunk of a rank."""
        return chunk * self.pipeline + self._turned(rank, chunk)

    def rank(self, number: int) -> int:
        """The rank of a virtual stage."""
        chunk, offset = divmod(number, self.pipeline)
        return self._turned(offset, chunk)

    def of_rank(self, rank: int) -> list[int]:
        """The virtual stages of a rank, by chunk."""
        return [self.virtual_stage(rank, chunk) for chunk in range(self.virtual)]

    def _turned(self, rank: int, chunk: int) -> int:
        return self.pipeline - 1 - rank if self.v_shaped and chunk % 2 else rank


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
    place = placement.virtual_stage(slot.stage, slot.chunk)
    last = placement.num_stages - 1
    which: Pass = "F" if slot.which == "F" or (slot.which == "B" and place == last) else "B"
    step = {"F": -1, "W": 0}.get(slot.which, 1 if place < last else 0)
    rank = placement.rank(place + step)
    chunk = placement.of_rank(rank).index(place + step)
    return Slot(which, rank, chunk, slot.microbatch)


def _named(slot: Slot, placement: Placement) -> str:
    chunk = f", chunk {slot.chunk}" if placement.virtual > 1 else ""
    return f"{IN_WORDS[slot.which]} of micro-batch {slot.microbatch}{chunk}"
