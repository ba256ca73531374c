"""Two chunks per rank in a V with half (`v-half`) or a third (`v-min`) of the memory of 1F1B [2405.15362].

A micro-batch passes chunk 0 of the ranks in ascending order, chunk 1 in descending order, and returns the
same way. Every pass of one rank begins a fixed number of units of time after that of its neighbour (the
offsets of the paper's building block), and the block repeats every six units, the six passes of a rank. What
a rank holds follows from the offsets. Weight gradients fill the units in which a rank would wait, or has no
memory for a forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfsim.strategies.schedules.slots import (
    Held,
    Numbers,
    PacedRanks,
    Pass,
    Placement,
    Slot,
    StageOrder,
    held_at_peak,
    held_by_ranks,
)

CHUNKS = 2
HALF = 2
THIRD = 3
PERIOD = 6
"""Units of time of a rank's passes of one micro-batch."""
PASSES: tuple[tuple[Pass, int], ...] = (("F", 0), ("F", 1), ("B", 1), ("B", 0))
"""Pass and chunk, in the order in which a micro-batch runs them."""
Counts = tuple[Numbers | float, Numbers | float, Numbers | float]
"""Numbers of F, B and W on a path through a step."""


@dataclass(frozen=True)
class _VSchedule:
    """A schedule by the offsets of its building block: units between neighbours in each of `PASSES`."""

    offsets: tuple[int, int, int, int]
    share: int
    """The part of 1F1B's memory that it holds, as 1 over this."""

    def __hash__(self) -> int:
        """By the share, because orders are cached."""
        return self.share

    def limit(self, pipeline: int) -> int:
        """Micro-batches that a rank holds at most: (p + 2) // 2 for half, (p + 4) // 3 for a third."""
        return (pipeline + 2 * (self.share - 1)) // self.share

    def order(self, pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
        """The order of every rank, as it results where every pass takes one unit."""
        return _order(self, pipeline, microbatches)

    def in_flight(
        self, stage: Numbers, pipeline: Numbers, _: Numbers, microbatches: Numbers
    ) -> tuple[Held, ...]:
        """What ranks hold; more than p + 1 micro-batches do not change the peak (tried for 1 to 20 ranks)."""

        def peaks(rank: int, width: int, count: int) -> tuple[tuple[float, float], ...]:
            return _peaks(self, width, count)[rank]

        return held_by_ranks(stage, pipeline, np.minimum(microbatches, pipeline + 1), peaks)

    def bubble_s(self, ranks: PacedRanks, _: Numbers, microbatches: Numbers, _together: Numbers) -> Numbers:
        """The longest of the paths through a step, less the passes of a rank.

        The paths are counted on orders for 2 to 16 ranks. With equal passes the bubble is 4 p - 5 units
        (4 p - 3 where 3 divides p) of `v-min` and 3 p - 4 (3 p - 3 where p is even) of `v-half`; the paper
        has about 2/3 and 1/2 of p micro-batches, of six units each. Where passes differ, a bubble recurs in
        every micro-batch: the longest pass sets the pace of all forwards and backwards of `v-min`. `v-half`
        has none while F <= B and 2 B <= 2 F + W (the paper: 2 F <= 2 B + W and 2 B <= 2 F + W).
        """
        p = ranks.num_ranks
        paced_s = microbatches * ranks.slowest.total_s
        alike = np.maximum(1, p - 1) * CHUNKS
        times = [np.asarray(part) / alike for part in ranks.others]

        def path_s(counts: Counts) -> Numbers:
            return np.asarray(sum(count * time for count, time in zip(counts, times, strict=True)))

        steady, *recurring = _long_paths(self.share, p)
        idle = [path_s(fixed) + microbatches * path_s(more) - paced_s for fixed, more in recurring]
        filled = np.maximum.reduce(np.broadcast_arrays(path_s(steady[0]), *idle))
        first = path_s((2 * p, 2 * p, 1)) - paced_s
        unfilled = first + (microbatches - 1) * path_s((2, 2, 0.5)) + times[2] / 2
        longest = np.where(microbatches > 1, np.maximum(filled, unfilled), first)
        return np.where(p > 1, np.maximum(0.0, longest), 0.0)


def _long_paths(share: int, p: Numbers) -> tuple[tuple[Counts, Counts], ...]:
    """Possible longest paths of p filled ranks: what does not depend on micro-batches, and what they add.

    Micro-batches add the six passes of a rank to the first.
    """
    if share == HALF:
        even = 1 - p % 2
        return (
            ((p - 1 + 2 * even, 3 * p - 3, -p - even), (2, 2, 2)),
            ((2 * p + 3 * even, 2 * p - 4 - even, -((p + 2) // 2)), (0, 4, 1)),
            ((2 * p - 4 - even, 2 * p + 3 * even, -p - even), (4, 0, 2)),
        )
    longer = 1 * (p % 3 == 0)
    two = 1 * (p == 2)
    even = 2 * p - 3 + longer
    late = 2 * p + 4 * longer
    early = 2 * p - 6 - 2 * longer
    return (
        ((even, even, 1), (2, 2, 2)),
        ((1, 1, 1), (3, 3, 0)),
        ((late, early, 1), (two, 6 - 2 * two, two)),
        ((early, late, 1), (6 - 2 * two, two, two)),
    )


@lru_cache(maxsize=256)
def _order(schedule: _VSchedule, pipeline: int, microbatches: int) -> list[StageOrder]:
    """Runs all ranks unit by unit: the next pass of its block if that can begin, else a weight gradient."""
    waiting = [deque(slots) for slots in _blocks(schedule, pipeline, microbatches)]
    placed = Placement(pipeline, CHUNKS, v_shaped=True)
    places = [placed.of_rank(rank) for rank in range(pipeline)]
    last = CHUNKS * pipeline - 1
    most = CHUNKS * schedule.limit(pipeline)
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


def _blocks(schedule: _VSchedule, pipeline: int, microbatches: int) -> Iterator[list[Slot]]:
    """Forwards and backwards of every rank in the order of the repeated block."""
    turn = 1
    while any(
        len({unit % PERIOD for unit in units}) < len(PASSES) for units in _units(schedule, pipeline, turn)
    ):
        turn += 1  # until no two passes of a rank have the same unit
    for rank, units in enumerate(_units(schedule, pipeline, turn)):
        slots = [
            (unit + PERIOD * number, Slot(which, rank, chunk, number))
            for number in range(microbatches)
            for unit, (which, chunk) in zip(units, PASSES, strict=True)
        ]
        yield [slot for _, slot in sorted(slots)]


def _units(schedule: _VSchedule, pipeline: int, turn: int) -> list[tuple[int, ...]]:
    """The unit in which every rank begins each of `PASSES`; `turn` is between forwards and backwards."""
    down, up, back_down, back_up = schedule.offsets
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


@lru_cache(maxsize=1024)
def _peaks(schedule: _VSchedule, pipeline: int, microbatches: int) -> list[tuple[tuple[float, float], ...]]:
    """Activations and inputs of weight gradients at the possible peaks of every rank."""
    return [held_at_peak(order, CHUNKS) for order in _order(schedule, pipeline, microbatches)]


V_HALF = _VSchedule((1, 2, 1, 2), HALF)
V_MIN = _VSchedule((1, 1, 1, 1), THIRD)
