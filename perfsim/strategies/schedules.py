"""Pipeline schedules as data: the order in which each stage runs its slots, and what is known of it.

A slot is one pass of one micro-batch through one model chunk. Schedules do not depend on devices or models.
Each is one row of `SCHEDULES`: a function that writes the order of every stage, one that counts what stages
hold in flight, its bubble, the chunks of a rank, and traits that the rest of the package asks about.
Their properties (each slot once, in order, bounded micro-batches in flight, the bubble for equal times) are
tested separately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.errors import DeadlockError, LayoutError, Problem
from perfsim.base.text import did_you_mean

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
        inputs = most_inputs[count]
        if corners and inputs <= corners[-1][1]:
            continue
        while len(corners) > 1:
            (first, first_inputs), (middle, middle_inputs) = corners[-2:]
            rise = (inputs - first_inputs) * (first - middle)
            if (middle_inputs - first_inputs) * (first - count) > rise:
                break
            corners.pop()  # on or below the line between the others, so never the peak alone
        corners.append((count, inputs))
    return tuple((count / virtual, inputs / virtual) for count, inputs in corners)


# The placement of virtual stages on pipeline ranks.


_MOST_STAGES = 8
"""Stages that a deadlock message lists."""
_IN_WORDS: dict[Pass, str] = {"F": "forward", "B": "backward", "W": "weight gradients"}


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

    def rank(self, number: int) -> int:
        """The rank of a virtual stage."""
        chunk, offset = divmod(number, self.pipeline)
        return self._turned(offset, chunk)

    @cached_property
    def places(self) -> list[list[int]]:
        """The virtual stages of every rank, by chunk."""
        return [
            [chunk * self.pipeline + self._turned(rank, chunk) for chunk in range(self.virtual)]
            for rank in range(self.pipeline)
        ]

    def _turned(self, rank: int, chunk: int) -> int:
        return self.pipeline - 1 - rank if self.v_shaped and chunk % 2 else rank

    def merged(self, orders: list[StageOrder]) -> list[Slot]:
        """All slots in one topological order, where each slot follows the slot whose output it reads.

        A forward follows the forward of the previous virtual stage. A backward follows the backward of the
        next stage, or on the last stage its own forward. Weight gradients follow their own backward. Raises
        DeadlockError where no stage can proceed, with the slot that each stage waits for.
        """
        places = self.places
        last = self.num_stages - 1
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
                for index in range(
                    position[stage], len(order)
                ):  # a slice or `islice` would read what is done
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
                raise DeadlockError(self._deadlock(orders, position))
        return merged

    def _deadlock(self, orders: Sequence[StageOrder], position: Sequence[int]) -> str:
        """The message: the stuck slot of each stage and the slot that it waits for."""
        left = [
            order[reached] for order, reached in zip(orders, position, strict=True) if reached < len(order)
        ]
        total = sum(len(order) for order in orders)
        last = self.num_stages - 1

        def named(which: Pass, chunk: int, microbatch: int) -> str:
            of_chunk = f", chunk {chunk}" if self.virtual > 1 else ""
            return f"{_IN_WORDS[which]} of micro-batch {microbatch}{of_chunk}"

        lines = [f"the schedule deadlocks: {total - sum(position)} of {total} slots can never run"]
        for which, stage, chunk, microbatch in left[:_MOST_STAGES]:
            place = self.places[stage][chunk]
            read: Pass = "F" if which == "F" or (which == "B" and place == last) else "B"
            place += {"F": -1, "W": 0}.get(which, 1 if place < last else 0)
            rank = self.rank(place)
            waits_for = named(read, self.places[rank].index(place), microbatch)
            where = "itself" if rank == stage else f"stage {rank}"
            lines.append(
                f"  stage {stage}: {named(which, chunk, microbatch)} waits for {waits_for} of {where}"
            )
        if len(left) > _MOST_STAGES:
            lines.append(f"  and {len(left) - _MOST_STAGES} more stages")
        return "\n".join(lines)


# One row of the table.

Order = Callable[[int, int, int], list[StageOrder]]
"""(pipeline, virtual, micro-batches): the order of every stage."""
InFlight = Callable[[Numbers, Numbers, Numbers, Numbers], tuple[Held, ...]]
"""(stage, pipeline, virtual, micro-batches), arrays that broadcast: what stages hold at their peak.

In micro-batches of the whole stage. There are several candidates where the peak depends on the bytes of
activations and of the inputs of weight gradients.
"""
Trait = Literal[
    "splits_backward",  # weight gradients are a separate pass
    "tight",  # a rank's next forward waits for a backward of its neighbour: sends are exposed
    "forwards_first",  # all forwards run before the first backward
    "v_shaped",  # the second chunks of the ranks are in reverse order
    "skewed",  # a rank updates without waiting for others, so later stages run their whole steps later
    "in_groups",  # micro-batches are in multiples of the ranks, and chunks may hold different numbers of them
    "whole_passes",  # a rank takes each micro-batch forward and back before the next, as ZeRO 3 needs
    "counts_head",  # stages are also divided with the LM head counted as layers, as Megatron-Core can
    "fills_only",  # pipelines that micro-batches do not fill are not listed
]
"""What a schedule needs and allows."""


@dataclass(frozen=True)
class Schedule:
    """One row of the table of schedules."""

    name: str
    order: Order
    in_flight: InFlight
    bubble: float
    """Idle seconds of a rank in a step, with equal passes and enough micro-batches to fill the pipeline.

    As a share of the seconds in which one micro-batch passes all other ranks, over the chunks of a rank.
    """
    chunks: int | None
    """Chunks per rank; None: any number."""
    traits: tuple[Trait, ...] = ()

    def has(self, trait: Trait) -> bool:
        """Whether the schedule has a trait."""
        return trait in self.traits

    def __reduce__(self) -> tuple[Callable[..., Schedule], tuple[object, ...]]:
        """A row of the table travels to other processes by its name, another schedule by its fields."""
        if SCHEDULES.get(self.name) is self:
            return schedule_called, (self.name,)
        return Schedule, tuple(getattr(self, known.name) for known in fields(self))

    def chunks_problem(self, virtual: int) -> str:
        """The problem with a number of chunks per rank; empty where there is none."""
        if self.chunks in (None, virtual):
            return ""
        if self.chunks == 1:
            return f"virtual_pipeline {virtual} needs schedule interleaved, not {self.name}"
        return f"schedule {self.name} needs virtual_pipeline {self.chunks}, not {virtual}"

    def orders(self, pipeline: int, virtual: int, microbatches: int) -> list[StageOrder]:
        """The order of every stage. LayoutError for a number of chunks that it cannot have."""
        if problem := self.chunks_problem(virtual):
            raise LayoutError(problem)
        return self.order(pipeline, virtual, microbatches)

    def placement(self, pipeline: int, virtual: int) -> Placement:
        """The placement of virtual stages on ranks."""
        return Placement(pipeline, virtual, self.has("v_shaped"))


# Without a split backward: GPipe, 1F1B and interleaved 1F1B.


def _gpipe(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """All forwards, then all backwards (Huang et al. 2019); a stage holds every micro-batch."""
    passes: tuple[Pass, Pass] = ("F", "B")
    return [
        [Slot(which, stage, 0, number) for which in passes for number in range(microbatches)]
        for stage in range(pipeline)
    ]


def _one_f_one_b(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """Stage i runs p - i - 1 warm-up forwards, then alternates [1806.03377, 2104.04473]; it holds p - i."""
    return [_alternating(stage, microbatches, pipeline - stage - 1) for stage in range(pipeline)]


def _alternating(stage: int, microbatches: int, warm_up: int, delay: int | None = None) -> StageOrder:
    """Warm-up forwards, then F and B in turn, and each W so many micro-batches after B; None: no W."""
    slots = [Slot("F", stage, 0, number) for number in range(min(warm_up, microbatches))]
    for number in range(microbatches + (delay or 0)):
        if number + warm_up < microbatches:
            slots.append(Slot("F", stage, 0, number + warm_up))
        if number < microbatches:
            slots.append(Slot("B", stage, 0, number))
        if delay is not None and number >= delay:
            slots.append(Slot("W", stage, 0, number - delay))
    return slots


def _interleaved(pipeline: int, virtual: int, microbatches: int) -> list[StageOrder]:
    """Chunks of stages [2104.04473 section 2.2]; micro-batches run in groups of `pipeline`."""
    if microbatches % pipeline:
        raise LayoutError(
            f"interleaved needs micro-batches ({microbatches}) in multiples of pipeline ({pipeline})"
        )
    total = microbatches * virtual
    indices = [divmod(index, pipeline * virtual) for index in range(total)]
    turns = [(rest // pipeline, group * pipeline + rest % pipeline) for group, rest in indices]
    orders: list[StageOrder] = []
    for stage in range(pipeline):
        forwards = [Slot("F", stage, chunk, number) for chunk, number in turns]
        backwards = [Slot("B", stage, virtual - 1 - chunk, number) for chunk, number in turns]
        warm_up = total if microbatches == pipeline else (pipeline - stage - 1) * 2 + (virtual - 1) * pipeline
        warm_up = min(warm_up, total)
        steady = chain.from_iterable(zip(forwards[warm_up:], backwards, strict=False))
        orders.append([*forwards[:warm_up], *steady, *backwards[total - warm_up :]])
    return orders


def _interleaved_in_flight(
    stage: Numbers, pipeline: Numbers, virtual: Numbers, microbatches: Numbers
) -> tuple[Held, ...]:
    """At the first stage p (1 + (p - 1) / (p v)) micro-batches [2205.05198].

    With a single group of micro-batches all forwards run first, so every stage holds all of them.
    """
    warm_up = (pipeline - stage - 1) * 2 + (virtual - 1) * pipeline + 1
    held = np.minimum(warm_up, microbatches * virtual) / virtual
    return (Held(np.where(microbatches == pipeline, microbatches, held)),)


# Zero bubble with one chunk per rank: ZB-H1 (`zb1p`) and ZB-H2 (`zb2p`) [2401.10241 section 2].
#
# 1F1B in which stage i runs `ahead` (p - i - 1) forwards before its first pair, and W follows its B after
# `ahead` i micro-batches. With `ahead` 1 every stage holds p micro-batches, as the first stage under 1F1B.
# With `ahead` 2 it holds 2 p - 1, the first backward arrives when the forwards are done, and no stage idles
# between its first and last slot. At the end, the delayed W passes fill the drain phase of 1F1B. A stage
# starts and ends later than the previous stage, which costs nothing where the optimizer does not wait for
# other stages (section 4: validation after the update).


def _zero_bubble_in_flight(
    ahead: int, stage: Numbers, pipeline: Numbers, _: Numbers, microbatches: Numbers
) -> tuple[Held, ...]:
    """At most `ahead` (p - 1) + 1 micro-batches per stage, as activations or as inputs of delayed W passes.

    With `before` = `ahead` (p - i - 1) forwards before the first pair and W `delay` = `ahead` i behind B, the
    peak is after a forward of the steady state, after a backward, or where the last forwards are done.
    """
    before = ahead * (pipeline - stage - 1)
    delay = ahead * stage
    delayed = np.minimum(microbatches, delay + 1)
    return (
        Held(
            np.minimum(before + 1, microbatches), np.minimum(np.maximum(microbatches - before - 1, 0), delay)
        ),
        Held(
            np.minimum(before, microbatches - 1), np.minimum(np.maximum(microbatches - before, 1), delay + 1)
        ),
        Held(np.minimum(before, microbatches - delayed), delayed),
    )


# Two chunks per rank in a V: data passes the ranks through chunk 0 in ascending order and through chunk 1 in
# descending order, so LM head and embedding are both on rank 0. What a rank holds is counted slot by slot.

CHUNKS = 2


def _held_in(order: Callable[[int, int, int], StageOrder], enough: Callable[[Numbers], Numbers]) -> InFlight:
    """What ranks hold at the possible peaks of their `order` of two chunks (rank, pipeline, micro-batches).

    Micro-batches beyond those that are `enough` for a number of ranks do not change the peak. Ranks with
    fewer possible peaks repeat their first.
    """

    @lru_cache(maxsize=4096)
    def peaks(rank: int, pipeline: int, microbatches: int) -> tuple[tuple[float, float], ...]:
        return held_at_peak(order(rank, pipeline, microbatches), CHUNKS)

    def in_flight(stage: Numbers, pipeline: Numbers, _: Numbers, microbatches: Numbers) -> tuple[Held, ...]:
        rank, width, count = np.broadcast_arrays(stage, pipeline, np.minimum(microbatches, enough(pipeline)))
        most = int(max(width.max(initial=0), count.max(initial=0))) + 1
        keys, of_key = np.unique((rank * most + width) * most + count, return_inverse=True)
        found = [peaks(key // most**2, key // most % most, key % most) for key in keys.tolist()]
        moments = max(map(len, found), default=0)
        table = np.array([(*of_rank, *of_rank[:1] * (moments - len(of_rank))) for of_rank in found])
        at = of_key.reshape(rank.shape)
        return tuple(Held(table[at, number, 0], table[at, number, 1]) for number in range(moments))

    return in_flight


# Zero bubble in a V (`zbv`) [2401.10241 section 6].
#
# Every rank holds 2 p chunks of micro-batches, as much as the first stage under 1F1B. If every pass takes one
# unit, the first micro-batch reaches chunk 0 of rank r at time r, chunk 1 at 2 p - 1 - r, and its backward at
# 2 p + r. The lengths of the phases below fill the time between these arrivals. Then six passes per
# micro-batch repeat, and at the end the delayed W passes fill the drain.

_LETTERS: dict[str, tuple[Pass, int]] = {
    "f": ("F", 0),
    "b": ("B", 0),
    "w": ("W", 0),
    "F": ("F", 1),
    "B": ("B", 1),
    "W": ("W", 1),
}
"""A letter for each pass: lower case for chunk 0, upper case for chunk 1."""


def _zbv(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """The order of every rank; fewer than 2 p - 1 micro-batches use a part of the order for 2 p - 1."""
    return [_zbv_rank(rank, pipeline, microbatches) for rank in range(pipeline)]


def _zbv_rank(rank: int, pipeline: int, microbatches: int) -> StageOrder:
    nearer = pipeline - rank
    more = max(0, microbatches - (2 * pipeline - 1))
    phases = (
        ("f", 2 * nearer - 1),  # until the first micro-batch returns
        ("Ff", rank),  # until its backward arrives
        ("FBW", nearer),  # the rank is full: each forward waits for a W
        ("fbwFBW", more + rank),  # the steady state
        ("bwFBW", nearer - 1),  # no new micro-batches
        ("bB", rank),  # no more return; W is delayed in favour of backwards
        ("bw", nearer),
        ("W", rank),
        ("w", rank),
    )
    next_of = dict.fromkeys(_LETTERS, 0)
    slots: StageOrder = []
    for letters, times in phases:
        for letter in letters * times:
            which, chunk = _LETTERS[letter]
            if next_of[letter] < microbatches:
                slots.append(Slot(which, rank, chunk, next_of[letter]))
            next_of[letter] += 1
    return slots


# Half (`v-half`) or a third (`v-min`) of the memory of 1F1B [2405.15362].
#
# Every pass of one rank begins a fixed number of units of time after that of its neighbour (the offsets of
# the paper's building block), and the block repeats every six units, the six passes of a rank. What a rank
# holds follows from the offsets. Weight gradients fill the units in which a rank would wait, or has no memory
# for a forward.

_HALF = 2
_THIRD = 3
"""The part of 1F1B's memory that a schedule holds, as 1 over this."""
_OFFSETS = {_HALF: (1, 2, 1, 2), _THIRD: (1, 1, 1, 1)}
"""Units between neighbours in each of `_BLOCK`."""
_PERIOD = 6
"""Units of time of a rank's passes of one micro-batch."""
_BLOCK: tuple[tuple[Pass, int], ...] = (("F", 0), ("F", 1), ("B", 1), ("B", 0))
"""Pass and chunk, in the order in which a micro-batch runs them."""


@lru_cache(maxsize=256)
def _controlled(share: int, pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """The order of every rank, as it results where every pass takes one unit.

    Runs all ranks unit by unit: the next pass of its block if that can begin, else a weight gradient. A rank
    holds at most (p + 2) // 2 micro-batches for half of the memory, (p + 4) // 3 for a third.
    """
    waiting = [deque(slots) for slots in _blocks(share, pipeline, microbatches)]
    places = Placement(pipeline, CHUNKS, v_shaped=True).places
    last = CHUNKS * pipeline - 1
    most = CHUNKS * ((pipeline + 2 * (share - 1)) // share)
    orders: list[StageOrder] = [[] for _ in range(pipeline)]
    owed: list[deque[Slot]] = [deque() for _ in range(pipeline)]
    held = [0] * pipeline
    done = set[tuple[Pass, int, int]]()
    while any(waiting) or any(owed):
        now: list[Slot] = []
        for rank, (order, ahead, weights) in enumerate(zip(orders, waiting, owed, strict=True)):
            if ahead and not (ahead[0].which == "F" and held[rank] == most):
                which, _, chunk, microbatch = ahead[0]
                before = places[rank][chunk] + (-1 if which == "F" else 1)
                read: Pass = "F" if which == "F" or before > last else "B"
                if before < 0 or (read, min(before, last), microbatch) in done:
                    now.append(ahead.popleft())
                    order.append(now[-1])
                    held[rank] += which == "F"
                    continue
            if weights:
                order.append(weights.popleft())
                held[rank] -= 1
        for slot in now:
            done.add((slot.which, places[slot.stage][slot.chunk], slot.microbatch))
            if slot.which == "B":
                owed[slot.stage].append(slot._replace(which="W"))
    return orders


def _blocks(share: int, pipeline: int, microbatches: int) -> Iterator[list[Slot]]:
    """Forwards and backwards of every rank in the order of the repeated block."""
    turn = 1
    while any(
        len({unit % _PERIOD for unit in units}) < len(_BLOCK) for units in _units(share, pipeline, turn)
    ):
        turn += 1  # until no two passes of a rank have the same unit
    for rank, units in enumerate(_units(share, pipeline, turn)):
        slots = [
            (unit + _PERIOD * number, Slot(which, rank, chunk, number))
            for number in range(microbatches)
            for unit, (which, chunk) in zip(units, _BLOCK, strict=True)
        ]
        yield [slot for _, slot in sorted(slots)]


def _units(share: int, pipeline: int, turn: int) -> list[tuple[int, ...]]:
    """The unit in which every rank begins each pass of a block; `turn` is between forwards and backwards."""
    down, up, back_down, back_up = _OFFSETS[share]
    last = pipeline - 1
    returned = (down + up) * last + 1
    backward = returned + turn + back_down * last + 1
    return [
        (
            down * rank,
            down * last + 1 + up * (last - rank),
            returned + turn + back_down * rank,
            backward + back_up * (last - rank),
        )
        for rank in range(pipeline)
    ]


def _in_controlled_memory(name: str, share: int, bubble: float) -> Schedule:
    """`v-half` or `v-min`; more than p + 1 micro-batches do not change the peak (tried to 20 ranks)."""
    order = partial(_controlled, share)
    in_flight = _held_in(
        lambda rank, pipeline, microbatches: order(pipeline, CHUNKS, microbatches)[rank],
        lambda pipeline: pipeline + 1,
    )
    return Schedule(name, order, in_flight, bubble, CHUNKS, ("splits_backward", "v_shaped", "fills_only"))


def _zero_bubble_row(name: str, ahead: int, bubble: float, trait: Trait) -> Schedule:
    """`zb1p` or `zb2p`."""

    def order(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
        warm_ups = [(stage, ahead * (pipeline - stage - 1)) for stage in range(pipeline)]
        return [_alternating(stage, microbatches, warm_up, ahead * stage) for stage, warm_up in warm_ups]

    in_flight = partial(_zero_bubble_in_flight, ahead)
    return Schedule(name, order, in_flight, bubble, 1, ("splits_backward", trait))


_ROWS = (
    Schedule(
        "1f1b",
        _one_f_one_b,
        lambda stage, pipeline, _, microbatches: (Held(np.minimum(pipeline - stage, microbatches)),),
        1.0,  # (p - 1) (F + B) / v [2104.04473 2.2]
        1,
        ("tight", "whole_passes", "counts_head"),
    ),
    Schedule(
        "gpipe",
        _gpipe,
        lambda stage, _pipeline, _virtual, microbatches: (Held(microbatches + np.zeros_like(stage)),),
        1.0,  # (p - 1) (F + B) / v [2104.04473 2.2]
        1,
        ("forwards_first",),
    ),
    Schedule("interleaved", _interleaved, _interleaved_in_flight, 1.0, None, ("in_groups", "counts_head")),
    _zero_bubble_row("zb1p", 1, 1 / 3, "tight"),
    _zero_bubble_row("zb2p", 2, 0.0, "skewed"),
    Schedule(
        "zbv",
        _zbv,
        _held_in(_zbv_rank, lambda pipeline: 2 * pipeline),
        0.0,
        CHUNKS,
        ("splits_backward", "v_shaped", "skewed"),
    ),
    _in_controlled_memory("v-half", _HALF, 1.0),
    _in_controlled_memory("v-min", _THIRD, 4 / 3),
)
SCHEDULES: dict[str, Schedule] = {row.name: row for row in _ROWS}


def schedule_called(name: str) -> Schedule:
    """The schedule of that name; LayoutError lists the known schedules."""
    if name not in SCHEDULES:
        problem = Problem(f"unknown schedule {name!r}", help=did_you_mean(name, sorted(SCHEDULES)))
        raise LayoutError([problem])
    return SCHEDULES[name]


def least_chunks(name: str) -> int:
    """The default number of chunks per rank of a schedule; 1 of an unknown one, which is refused later."""
    return (SCHEDULES[name].chunks or 1) if name in SCHEDULES else 1
