"""Pipeline schedules as data: the order in which each stage runs its slots, and what is known of it.

A slot is one pass of one micro-batch through one model chunk. Schedules do not depend on devices or models.
Each is one row of `SCHEDULES`: a function that writes the order of a rank, its bubble, the chunks of a rank,
and traits that the rest of the package asks about. What a rank holds in flight is counted over its order.
What every order must keep is checked where it is written; its bubble and what it holds are tested.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain, product
from typing import Literal, NamedTuple, get_args

from perfsim.base.errors import DeadlockError, GraphError, LayoutError
from perfsim.base.text import did_you_mean

Pass = Literal["F", "B", "W"]
"""Forward, backward, weight gradients.

B computes gradients of inputs and weights, or only of inputs where the schedule has W passes.
"""
PASSES: tuple[Pass, ...] = get_args(Pass)


class Slot(NamedTuple):
    """One pass of one micro-batch through a chunk of a pipeline rank."""

    which: Pass
    rank: int
    chunk: int
    microbatch: int
    joined: bool = False
    """Whether it is a forward that runs as one with the backward after it, in turns."""


RankOrder = list[Slot]


class Peak(NamedTuple):
    """What a rank holds at a moment that may be its peak, in micro-batches of all its layers."""

    activations: float
    """Held from forward to backward."""
    weight_inputs: float
    """Inputs and output gradients of the weights, held from backward to weight gradients."""


def held_at_peak(order: RankOrder, layers: Mapping[int, int]) -> tuple[Peak, ...]:
    """What a rank holds at its possible peaks, given the layers of each of its chunks.

    A forward adds activations, and a backward turns these into inputs of weight gradients, which W frees, or
    frees them where the order has no W. Which moment is the peak depends on the bytes of both, so all that
    can be are returned: the corners of the convex hull of the moments.
    """
    splits = any(slot.which == "W" for slot in order)
    adds: dict[Pass, tuple[int, int]] = {"F": (1, 0), "B": (-1, splits), "W": (0, -1)}
    activations = weight_inputs = 0
    most_inputs: dict[int, int] = {}
    for which, _, chunk, *_ in order:
        count = layers[chunk]
        activations += adds[which][0] * count
        weight_inputs += adds[which][1] * count
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
    whole = sum(layers.values())
    return tuple(Peak(count / whole, inputs / whole) for count, inputs in corners)


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
    def stages(self) -> list[list[int]]:
        """The virtual stage of every chunk, by rank."""
        return [
            [chunk * self.pipeline + self._turned(rank, chunk) for chunk in range(self.virtual)]
            for rank in range(self.pipeline)
        ]

    def _turned(self, rank: int, chunk: int) -> int:
        """The place of a rank in the order of a chunk's stages, which is its own inverse."""
        return self.pipeline - 1 - rank if self.v_shaped and chunk % 2 else rank

    def reads(self, slot: Slot) -> tuple[Pass, int, int] | None:
        """The pass, virtual stage and micro-batch whose output a slot reads; None of the first forward."""
        which, rank, chunk, microbatch, _ = slot
        stage = self.stages[rank][chunk]
        # A forward follows the forward of the previous virtual stage. A backward follows the backward of the
        # next stage, or on the last stage its own forward. Weight gradients follow their own backward.
        if which == "F":
            return ("F", stage - 1, microbatch) if stage else None
        if which == "B" and stage + 1 < self.num_stages:
            return "B", stage + 1, microbatch
        return ("F" if which == "B" else "B"), stage, microbatch

    def merged(self, orders: list[RankOrder]) -> list[Slot]:
        """All slots in one topological order; DeadlockError, with what each waits for, where none can run."""
        stages = self.stages
        waiting = [deque(order) for order in orders]
        done: set[tuple[Pass, int, int] | None] = {None}
        merged: list[Slot] = []
        while any(waiting):
            before = len(merged)
            for slots in waiting:
                # Joined slots are next to each other, behind what either of them reads.
                while slots and self.reads(slots[0]) in done:
                    if slots[0].joined and self.reads(slots[1]) not in done:
                        break
                    for _ in range(1 + slots[0].joined):
                        which, rank, chunk, microbatch, _ = slot = slots.popleft()
                        done.add((which, stages[rank][chunk], microbatch))
                        merged.append(slot)
            if len(merged) == before:
                stuck = [slots[0] for slots in waiting if slots]
                raise DeadlockError(self._deadlock(stuck, before, sum(map(len, orders))))
        return merged

    def _deadlock(self, stuck: Sequence[Slot], ran: int, total: int) -> str:
        """The message: the stuck slot of each rank and the slot that it waits for."""

        def named(which: Pass, chunk: int, microbatch: int) -> str:
            of_chunk = f", chunk {chunk}" if self.virtual > 1 else ""
            return f"{_IN_WORDS[which]} of micro-batch {microbatch}{of_chunk}"

        lines = [f"the schedule deadlocks: {total - ran} of {total} slots can never run"]
        for slot in stuck[:_MOST_STAGES]:
            if read := self.reads(slot):
                rank = self.rank(read[1])
                waits_for = named(read[0], self.stages[rank].index(read[1]), read[2])
                where = "itself" if rank == slot.rank else f"stage {rank}"
                own = named(slot.which, slot.chunk, slot.microbatch)
                lines.append(f"  stage {slot.rank}: {own} waits for {waits_for} of {where}")
        if len(stuck) > _MOST_STAGES:
            lines.append(f"  and {len(stuck) - _MOST_STAGES} more stages")
        return "\n".join(lines)


# One row of the table.

Order = Callable[[int, int, int, int], RankOrder]
"""(rank, pipeline, virtual, micro-batches): the order of a rank."""
Trait = Literal[
    "splits_backward",  # weight gradients are a separate pass
    "tight",  # a rank's next forward waits for a backward of its neighbour: sends are exposed
    "v_shaped",  # the second chunks of the ranks are in reverse order
    "skewed",  # a rank updates without waiting for others, so later stages run their whole steps later
    "in_groups",  # micro-batches are in multiples of the ranks, and chunks may hold different numbers of them
    "whole_passes",  # a rank takes each micro-batch forward and back before the next, as ZeRO 3 needs
    "counts_head",  # stages are also divided with the LM head counted as layers, as Megatron-Core can
    "fills_only",  # pipelines that micro-batches do not fill are not listed
    "joins",  # a forward and a backward run in turns: rows of one go to experts while the other computes
]
"""What a schedule needs and allows."""


def _is_whole(order: RankOrder, virtual: int, microbatches: int) -> bool:
    """Whether every pass runs once, and the gradients of a chunk are whole with its last micro-batch."""
    slots = {(slot.which, slot.chunk, slot.microbatch) for slot in order}
    kinds = {which for which, _, _ in slots} | {"F", "B"}
    last = {slot.chunk: slot.microbatch for slot in order if slot.which == order[-1].which}
    every = {*product(kinds, range(virtual), range(microbatches))}
    return slots == every and len(slots) == len(order) and {*last.values()} == {microbatches - 1}


@dataclass(frozen=True)
class Schedule:
    """One row of the table of schedules."""

    name: str
    order: Order
    bubble: float
    """Idle seconds of a rank in a step, with equal passes and enough micro-batches to fill the pipeline.

    As a share of the seconds in which one micro-batch passes all other ranks, over the chunks of a rank.
    """
    chunks: int | None
    """Chunks per rank; None: any number."""
    traits: tuple[Trait, ...] = ()
    fills: int | None = None
    """Micro-batches over ranks beyond which a rank holds no more; None: it holds all micro-batches."""

    def has(self, trait: Trait) -> bool:
        return trait in self.traits

    def chunks_problem(self, virtual: int) -> str:
        """The problem with a number of chunks per rank; empty where there is none."""
        if virtual == self.chunks or (self.chunks is None and virtual >= CHUNKS):
            return ""
        if self.chunks is None:
            return f"schedule {self.name} needs virtual_pipeline {CHUNKS} or more, not {virtual}"
        if self.chunks == 1:
            return f"virtual_pipeline {virtual} needs schedule interleaved, not {self.name}"
        return f"schedule {self.name} needs virtual_pipeline {self.chunks}, not {virtual}"

    def groups_problem(self, pipeline: int, microbatches: int) -> str:
        """The problem with a number of micro-batches; empty where there is none."""
        if not self.has("in_groups") or microbatches % pipeline == 0:
            return ""
        return f"interleaved needs micro-batches ({microbatches}) in multiples of pipeline {pipeline}"

    def orders(self, pipeline: int, virtual: int, microbatches: int) -> list[RankOrder]:
        """The order of every stage. LayoutError for chunks or micro-batches that it cannot have."""
        if problem := self.chunks_problem(virtual) or self.groups_problem(pipeline, microbatches):
            raise LayoutError(problem)
        orders = [self.order(rank, pipeline, virtual, microbatches) for rank in range(pipeline)]
        for rank, order in enumerate(orders):
            if not _is_whole(order, virtual, microbatches):
                words = "each pass of each chunk must run once for each micro-batch, last for the last one"
                raise GraphError(f"schedule {self.name}, rank {rank} of {pipeline}: {words}")
        return orders

    @lru_cache(maxsize=16)  # noqa: B019 (schedules are rows of a table, and layouts of one search share orders)
    def merged(self, pipeline: int, virtual: int, microbatches: int) -> Sequence[Slot]:
        """All slots in one topological order. Raises as `orders`, and DeadlockError where none can run."""
        return self.placement(pipeline, virtual).merged(self.orders(pipeline, virtual, microbatches))

    def placement(self, pipeline: int, virtual: int) -> Placement:
        return Placement(pipeline, virtual, self.has("v_shaped"))


@lru_cache(maxsize=16384)
def in_flight(
    schedule: Schedule, rank: int, pipeline: int, chunks: tuple[int, ...], microbatches: int
) -> tuple[Peak, ...]:
    """What a rank holds at its possible peaks; `chunks` are the layers of its chunks."""
    # Where chunks are not in groups they count alike, as the chunks of a rank without layers do.
    layers = chunks if schedule.has("in_groups") and any(chunks) else (1,) * len(chunks)
    order = schedule.order(rank, pipeline, len(chunks), microbatches)
    return held_at_peak(order, dict(enumerate(layers)))


# GPipe, 1F1B, and what is made of it.
#
# Forwards that are joined to backwards: while rows of one travel to experts, the other computes.
# Megatron-Core does so under 1F1B without a pipeline and under interleaved 1F1B, with one more forward before
# the first backward, so that no backward of a pair waits for its forward on another rank
# (`megatron/core/pipeline_parallel/combined_1f1b.py`).
#
# Zero bubble with one chunk per rank, ZB-H1 (`zb1p`) and ZB-H2 (`zb2p`) [2401.10241 section 2]: with `ahead`
# 1 every stage holds p micro-batches, as the first stage under 1F1B. With `ahead` 2 it holds 2 p - 1, the
# first backward arrives when the forwards are done, and no stage idles between its first and last slot. At
# the end, the delayed W passes fill the drain phase of 1F1B. A stage starts and ends later than the previous
# stage, which costs nothing where the optimizer does not wait for other stages (section 4: validation after
# the update).


def _gpipe(rank: int, _pipeline: int, _virtual: int, microbatches: int) -> RankOrder:
    """All forwards, then all backwards (Huang et al. 2019); a rank holds every micro-batch."""
    passes: tuple[Pass, Pass] = ("F", "B")
    return [Slot(which, rank, 0, number) for which in passes for number in range(microbatches)]


def _one_chunk(
    ahead: int, rank: int, pipeline: int, _: int, count: int, *, splits: bool = False, joins: bool = False
) -> RankOrder:
    """Rank i runs `ahead` (p - i - 1) warm-up forwards, then F and B in turn [1806.03377, 2104.04473].

    Where the backward `splits`, each W follows its B after `ahead` i of the `count` micro-batches. Where the
    schedule `joins` passes, one more forward runs first. Without W a rank holds one more than run first.
    """
    warm_up = ahead * (pipeline - rank - 1) + joins
    delay = ahead * rank if splits else 0
    slots = [Slot("F", rank, 0, number) for number in range(min(warm_up, count))]
    for number in range(count + delay):
        if number + warm_up < count:
            slots.append(Slot("F", rank, 0, number + warm_up, joins))
        if number < count:
            slots.append(Slot("B", rank, 0, number))
        if splits and number >= delay:
            slots.append(Slot("W", rank, 0, number - delay))
    return slots


def _interleaved(
    rank: int, pipeline: int, virtual: int, microbatches: int, *, joined: bool = False
) -> RankOrder:
    """Chunks of stages [2104.04473 section 2.2]; micro-batches run in groups of `pipeline`.

    The first rank holds p (1 + (p - 1) / (p v)) micro-batches [2205.05198]. With a single group all forwards
    run first, so every rank holds all of them. Where forwards are joined to backwards, one more runs first.
    """
    total = microbatches * virtual
    indices = [divmod(index, pipeline * virtual) for index in range(total)]
    turns = [(rest // pipeline, group * pipeline + rest % pipeline) for group, rest in indices]
    forwards = [Slot("F", rank, chunk, number) for chunk, number in turns]
    backwards = [Slot("B", rank, virtual - 1 - chunk, number) for chunk, number in turns]
    warm_up = total if microbatches == pipeline else (pipeline - rank - 1) * 2 + (virtual - 1) * pipeline
    warm_up = min(warm_up + joined, total)
    later = [slot._replace(joined=True) for slot in forwards[warm_up:]] if joined else forwards[warm_up:]
    steady = chain.from_iterable(zip(later, backwards, strict=False))
    return [*forwards[:warm_up], *steady, *backwards[total - warm_up :]]


# Two chunks per rank in a V: data passes the ranks through chunk 0 in ascending order and through chunk 1 in
# descending order, so LM head and embedding are both on rank 0.

CHUNKS = 2
"""Of a rank in a V; other schedules with chunks have as many or more."""


# Zero bubble in a V (`zbv`) [2401.10241 section 6].
#
# Every rank holds 2 p chunks of micro-batches, as much as the first stage under 1F1B. If every pass takes one
# unit, the first micro-batch reaches chunk 0 of rank r at time r, chunk 1 at 2 p - 1 - r, and its backward at
# 2 p + r. The lengths of the phases below fill the time between these arrivals. Then six passes per
# micro-batch repeat, and at the end the delayed W passes fill the drain.

_LETTERS: dict[str, tuple[Pass, int]] = {
    letter: (which, chunk) for which in PASSES for chunk, letter in enumerate((which.lower(), which))
}
"""A letter for each pass: lower case for chunk 0, upper case for chunk 1."""


def _zbv(rank: int, pipeline: int, _: int, microbatches: int) -> RankOrder:
    """The order of a rank; fewer than 2 p - 1 micro-batches use a part of the order for 2 p - 1."""
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
    return _lettered(rank, microbatches, phases)


def _lettered(rank: int, microbatches: int, phases: Sequence[tuple[str, int]]) -> RankOrder:
    """Passes by their letters: phases and how often each runs; `+` joins a forward to the backward behind."""
    letters = "".join(letters * times for letters, times in phases)
    next_of = dict.fromkeys(_LETTERS, 0)
    slots: RankOrder = []
    for letter, behind in zip(letters, f"{letters[1:]} ", strict=True):
        if letter in _LETTERS:
            which, chunk = _LETTERS[letter]
            slots.append(Slot(which, rank, chunk, next_of[letter], behind == "+"))
            next_of[letter] += 1
    later = [*slots[1:], None]
    return [
        slot._replace(joined=slot.joined and after is not None and after.microbatch < microbatches)
        for slot, after in zip(slots, later, strict=True)
        if slot.microbatch < microbatches
    ]


# DualPipeV, DualPipe [2412.19437 section 3.2.1] cut in half: two chunks of a rank in a V, forwards of one
# joined to backwards of the other while the pipeline is full. Every rank holds 2 p + 1 chunks of
# micro-batches. W directly follows a pair while the pipeline is full, and fills the drain.


def _dual_v(rank: int, pipeline: int, _: int, microbatches: int) -> RankOrder:
    """The order of a rank; fewer than 2 p micro-batches use a part of the order for 2 p."""
    nearer = pipeline - rank - 1
    full = max(microbatches, 2 * pipeline) - 2 * pipeline + rank
    # On the last rank the first backward reads the forward right before it.
    first = "f+BWF+bw" if nearer else "fBWF+bw"
    half, odd = divmod(rank + 1, 2)
    owed = "w" * odd + "Ww" * half + "w" * nearer
    return _lettered(
        rank,
        microbatches,
        (
            ("f", 2 * nearer),
            ("fF", rank + 1),
            ("BWF", nearer),
            (first, 1),
            ("f+BWF+bw", full),
            ("BWF+bw", nearer),
            ("BWbw", half),
            ("BWb", odd),
            ("Bb", half),
            ("".join(f"{letter}b" for letter in owed[:nearer]), 1),
            (owed[nearer:], 1),
        ),
    )


# Half (`v-half`) or a third (`v-min`) of the memory of 1F1B [2405.15362].
#
# Every pass of one rank begins a fixed number of units of time after its neighbour's (the offsets of
# the paper's building block), and the block repeats every six units, the six passes of a rank. What a rank
# holds follows from the offsets. Weight gradients fill the units in which a rank would wait, or has no memory
# for a forward.

_HALF = 2
_THIRD = 3
"""The part of 1F1B's memory that a schedule holds, as 1 over this."""
_OFFSETS = {_HALF: (1, 2, 1, 2), _THIRD: (1, 1, 1, 1)}
"""Units between neighbours in each of `_BLOCK`."""
_TURNS = {_HALF: (5, 2), _THIRD: (3, 1, 1)}
"""Units between forwards and backwards, the fewest with which no two passes of a rank have the same unit.

By the remainder of the number of ranks.
"""
_PERIOD = 6
"""Units of time of a rank's passes of one micro-batch."""
_BLOCK: tuple[tuple[Pass, int], ...] = (("F", 0), ("F", 1), ("B", 1), ("B", 0))
"""Pass and chunk, in the order in which a micro-batch runs them."""


@lru_cache(maxsize=256)
def _controlled(share: int, pipeline: int, microbatches: int) -> list[RankOrder]:
    """The order of every rank, as it results where every pass takes one unit."""
    waiting = [deque(slots) for slots in _blocks(share, pipeline, microbatches)]
    placement = Placement(pipeline, CHUNKS, v_shaped=True)
    most = CHUNKS * ((pipeline + 2 * (share - 1)) // share)
    orders: list[RankOrder] = [[] for _ in range(pipeline)]
    owed: list[deque[Slot]] = [deque() for _ in range(pipeline)]
    held = [0] * pipeline
    done: set[tuple[Pass, int, int] | None] = {None}
    # All ranks unit by unit: the next pass of its block if that can begin, else a weight gradient. A rank
    # holds at most (p + 2) // 2 micro-batches for half of the memory, (p + 4) // 3 for a third.
    while any(waiting) or any(owed):
        now: list[Slot] = []
        for rank, (order, ahead, weights) in enumerate(zip(orders, waiting, owed, strict=True)):
            full = held[rank] == most
            if ahead and not (full and ahead[0].which == "F") and placement.reads(ahead[0]) in done:
                now.append(ahead.popleft())
                order.append(now[-1])
                held[rank] += now[-1].which == "F"
            elif weights:
                order.append(weights.popleft())
                held[rank] -= 1
        for slot in now:
            done.add((slot.which, placement.stages[slot.rank][slot.chunk], slot.microbatch))
            if slot.which == "B":
                owed[slot.rank].append(slot._replace(which="W"))
    return orders


def _blocks(share: int, pipeline: int, microbatches: int) -> Iterator[list[Slot]]:
    """Forwards and backwards of every rank in the order of the repeated block."""
    down, up, back_down, back_up = _OFFSETS[share]
    last = pipeline - 1
    returned = (down + up) * last + 1
    turned = returned + _TURNS[share][pipeline % len(_TURNS[share])]
    for rank in range(pipeline):
        units = (
            down * rank,
            down * last + 1 + up * (last - rank),
            turned + back_down * rank,
            turned + back_down * last + 1 + back_up * (last - rank),
        )
        slots = [
            (unit + _PERIOD * number, Slot(which, rank, chunk, number))
            for number in range(microbatches)
            for unit, (which, chunk) in zip(units, _BLOCK, strict=True)
        ]
        yield [slot for _, slot in sorted(slots)]


def _in_given_memory(share: int, rank: int, pipeline: int, _: int, microbatches: int) -> RankOrder:
    """`v-half` or `v-min`."""
    return _controlled(share, pipeline, microbatches)[rank]


_SPLIT_V: tuple[Trait, ...] = ("splits_backward", "v_shaped")
# The bubbles of the first three are (p - 1) (F + B) / v [2104.04473 2.2].
_ROWS = (
    Schedule("1f1b", partial(_one_chunk, 1), 1.0, 1, ("tight", "whole_passes", "counts_head"), fills=1),
    Schedule("gpipe", _gpipe, 1.0, 1),
    Schedule("interleaved", _interleaved, 1.0, None, ("in_groups", "counts_head"), fills=3),
    Schedule("combined-1f1b", partial(_one_chunk, 2, joins=True), 1.0, 1, ("joins",), fills=2),
    Schedule(
        "combined-interleaved", partial(_interleaved, joined=True), 1.0, None, ("in_groups", "joins"), fills=3
    ),
    Schedule("zb1p", partial(_one_chunk, 1, splits=True), 1 / 3, 1, ("splits_backward", "tight"), fills=2),
    Schedule("zb2p", partial(_one_chunk, 2, splits=True), 0.0, 1, ("splits_backward", "skewed"), fills=2),
    Schedule("zbv", _zbv, 0.0, CHUNKS, (*_SPLIT_V, "skewed"), fills=2),
    Schedule("dualpipev", _dual_v, 1 / 3, CHUNKS, (*_SPLIT_V, "fills_only", "joins"), fills=2),
    # That more than 2 p micro-batches do not change their peaks was tried to 20 ranks.
    Schedule("v-half", partial(_in_given_memory, _HALF), 1.0, CHUNKS, (*_SPLIT_V, "fills_only"), fills=2),
    Schedule("v-min", partial(_in_given_memory, _THIRD), 4 / 3, CHUNKS, (*_SPLIT_V, "fills_only"), fills=2),
)
SCHEDULES: dict[str, Schedule] = {row.name: row for row in _ROWS}
JOINED = {"1f1b": "combined-1f1b", "interleaved": "combined-interleaved", "zbv": "dualpipev"}
"""The schedule that joins the passes of another."""


def schedule_called(name: str) -> Schedule:
    """The schedule of that name; LayoutError lists the known schedules."""
    if name not in SCHEDULES:
        raise LayoutError(f"unknown schedule {name!r}", did_you_mean(name, sorted(SCHEDULES)))
    return SCHEDULES[name]


def least_chunks(name: str) -> int:
    """The default number of chunks per rank of a schedule; 1 of an unknown one, which is refused later."""
    return (SCHEDULES[name].chunks or CHUNKS) if name in SCHEDULES else 1
