"""Zero bubble with two chunks per rank in a V (`zbv`) [2401.10241 section 6].

Data passes the ranks through chunk 0 in ascending order and through chunk 1 in descending order, so LM head
and embedding are both on rank 0. Every rank holds 2 p chunks of micro-batches, as much as the first stage
under 1F1B. If every pass takes one unit, the first micro-batch reaches chunk 0 of rank r at time r, chunk 1
at 2 p - 1 - r, and its backward at 2 p + r. The lengths of the phases below fill the time between these
arrivals. Then six passes per micro-batch repeat, and at the end the delayed W passes fill the drain.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from perfsim.strategies.schedules.slots import Held, Numbers, PacedRanks, Pass, Slot, StageOrder, held_at_peak

CHUNKS = 2
PASSES: dict[str, tuple[Pass, int]] = {
    "f": ("F", 0),
    "b": ("B", 0),
    "w": ("W", 0),
    "F": ("F", 1),
    "B": ("B", 1),
    "W": ("W", 1),
}
"""A letter for each pass: lower case for chunk 0, upper case for chunk 1."""


def order(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """The order of every rank; fewer than 2 p - 1 micro-batches use a part of the order for 2 p - 1."""
    return [_rank_order(rank, pipeline, microbatches) for rank in range(pipeline)]


def _rank_order(rank: int, pipeline: int, microbatches: int) -> StageOrder:
    enough = 2 * pipeline - 1
    next_of = dict.fromkeys(PASSES, 0)
    slots: StageOrder = []
    for letters, times in _phases(rank, pipeline, max(microbatches, enough) - enough):
        for letter in letters * times:
            which, chunk = PASSES[letter]
            if next_of[letter] < microbatches:
                slots.append(Slot(which, rank, chunk, next_of[letter]))
            next_of[letter] += 1
    return slots


def _phases(rank: int, pipeline: int, more: int) -> tuple[tuple[str, int], ...]:
    """Passes of each phase and repetitions, with `more` micro-batches than fill the pipeline."""
    nearer = pipeline - rank
    return (
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


def in_flight(stage: Numbers, pipeline: Numbers, _: Numbers, microbatches: Numbers) -> tuple[Held, ...]:
    """At most 2 p chunks; micro-batches beyond those that fill the pipeline do not change the peak."""
    enough = np.minimum(microbatches, 2 * pipeline)
    rank, width, count = np.broadcast_arrays(stage, pipeline, enough)
    most = int(max(width.max(initial=0), count.max(initial=0))) + 1
    keys, of_key = np.unique((rank * most + width) * most + count, return_inverse=True)
    peaks = [_peaks(key // most**2, key // most % most, key % most) for key in keys.tolist()]
    moments = max(map(len, peaks), default=0)
    table = np.array([(*own, *own[:1] * (moments - len(own))) for own in peaks])
    at = of_key.reshape(rank.shape)
    return tuple(Held(table[at, number, 0], table[at, number, 1]) for number in range(moments))


@lru_cache(maxsize=4096)
def _peaks(rank: int, pipeline: int, microbatches: int) -> tuple[tuple[float, float], ...]:
    """Activations and inputs of weight gradients at the possible peaks of a rank."""
    return held_at_peak(_rank_order(rank, pipeline, microbatches), CHUNKS)


def bubble_s(ranks: PacedRanks, _: Numbers, microbatches: Numbers, together: Numbers) -> Numbers:
    """(p - 1) (B - W), at least 0; larger where the micro-batches do not fill the pipeline.

    Derived from the phases: there is no bubble where B takes no longer than W. With few micro-batches, the
    first passes all ranks in both directions while F of the rest run: (p - 1) (F + B) - (m - 1) F.
    Where ranks end together, the late start of the last rank, (p - 1) F / 2, remains.
    """
    slowest = ranks.slowest
    others = ranks.others
    least = np.where(together, others.forward_s / CHUNKS, 0.0)
    steady = others.backward_s - (ranks.num_ranks - 1) * slowest.weights_s
    unfilled = others.forward_s + others.backward_s - (microbatches - 1) * slowest.forward_s
    return np.asarray(np.maximum(least, np.maximum(steady, unfilled)))
