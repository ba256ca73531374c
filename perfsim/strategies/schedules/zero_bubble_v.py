"""Zero bubble with two chunks a rank in a V (`zbv`) [2401.10241 section 6].

Rank r runs chunk 0 on the way out and chunk 1 on the way back, so head and embedding share rank 0
and every rank holds 2 p chunks of micro-batches: what the first stage holds under 1F1B. If every
pass takes one unit, the first micro-batch reaches chunk 0 of rank r at time r, chunk 1 at
2 p - 1 - r, and its backward at 2 p + r. From that follow the phases below: their lengths fill the
time between those arrivals, then six passes a micro-batch repeat, then the W that the far ranks
put off fill the drain.
"""

from __future__ import annotations

from functools import lru_cache

from perfsim.strategies.schedules.liveness import held_at_peak
from perfsim.strategies.schedules.slot import Held, Pass, Ranks, Slot, StageOrder

CHUNKS = 2
PASSES: dict[str, tuple[Pass, int]] = {
    "f": ("F", 0),
    "b": ("B", 0),
    "w": ("W", 0),
    "F": ("F", 1),
    "B": ("B", 1),
    "W": ("W", 1),
}
"""A letter a pass: small on the way out (chunk 0), large on the way back (chunk 1)."""


def order(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """The order of every rank; fewer than 2 p - 1 micro-batches leave holes in that of 2 p - 1."""
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
    """What a rank runs, how often; `more` micro-batches than fill the pipeline."""
    nearer = pipeline - rank
    return (
        ("f", 2 * nearer - 1),  # until the first micro-batch comes back
        ("Ff", rank),  # until its backward comes
        ("FBW", nearer),  # the rank is full: each forward waits for a W
        ("fbwFBW", more + rank),  # the steady state
        ("bwFBW", nearer - 1),  # no more micro-batches go out
        ("bB", rank),  # no more come back; W is put off to let backwards go ahead
        ("bw", nearer),
        ("W", rank),
        ("w", rank),
    )


@lru_cache(maxsize=4096)
def in_flight(rank: int, pipeline: int, _: int, microbatches: int) -> tuple[Held, ...]:
    """At most 2 p chunks; micro-batches beyond those that fill the pipeline repeat the steady state."""
    return held_at_peak(_rank_order(rank, pipeline, min(microbatches, 2 * pipeline)), CHUNKS)


def bubble_s(ranks: Ranks, _: int, microbatches: int, together: bool) -> float:
    """(p - 1) (B - W), never negative; more where the micro-batches do not fill the pipeline.

    Derived from the phases: nothing idles while B takes no longer than W. With few micro-batches
    one passes all ranks both ways, and the F of the others fill that: (p - 1) (F + B) - (m - 1) F.
    Where ranks end together the last one's late start, (p - 1) F / 2, remains.
    """
    slowest, others = ranks.slowest, ranks.others
    least = others.forward_s / CHUNKS if together else 0.0
    steady = others.backward_s - (ranks.num_ranks - 1) * slowest.weights_s
    unfilled = others.forward_s + others.backward_s - (microbatches - 1) * slowest.forward_s
    return max(least, steady, unfilled)
