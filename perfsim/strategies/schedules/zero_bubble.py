"""Zero bubble with one chunk per rank: ZB-H1 (`zb1p`) and ZB-H2 (`zb2p`) [2401.10241 section 2].

1F1B in which stage i runs `ahead` (p - i - 1) forwards before its first pair, and W follows its B after
`ahead` i micro-batches. With `ahead` 1 every stage holds p micro-batches, as the first stage under 1F1B.
With `ahead` 2 it holds 2 p - 1, the first backward arrives when the forwards are done, and no stage idles
between its first and last slot. At the end, the delayed W passes fill the drain phase of 1F1B. A stage
starts and ends later than the previous stage, which costs nothing where the optimizer does not wait for
other stages (section 4: validation after the update).
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from perfsim.strategies.schedules.slots import (
    Held,
    Numbers,
    PacedRanks,
    Pass,
    Slot,
    StageOrder,
    held_at_peak,
    held_by_ranks,
)


def _order(ahead: int, pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    return [_stage_order(ahead, stage, pipeline, microbatches) for stage in range(pipeline)]


def _stage_order(ahead: int, stage: int, pipeline: int, microbatches: int) -> StageOrder:
    warm_up = ahead * (pipeline - stage - 1)
    delay = ahead * stage
    slots = [Slot("F", stage, 0, number) for number in range(min(warm_up, microbatches))]
    for number in range(microbatches + delay):
        if number + warm_up < microbatches:
            slots.append(Slot("F", stage, 0, number + warm_up))
        if number < microbatches:
            slots.append(Slot("B", stage, 0, number))
        if number >= delay:
            slots.append(Slot("W", stage, 0, number - delay))
    return slots


def _in_flight(
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


def _bubble_s(ahead: int, ranks: PacedRanks, _: Numbers, microbatches: Numbers, together: Numbers) -> Numbers:
    """(p - 1) (F + B - `ahead` W), with fewer W for few micro-batches, and at least 0 [section 2.3].

    A step ends with the W of a rank that is not the slowest. Where stages end together, the late start of the
    last stage, (p - 1) F, remains.
    """
    others = ranks.others
    weights_s = ranks.slowest.weights_s
    filled = np.minimum(ahead * (ranks.num_ranks - 1), microbatches - 1) * weights_s
    filled = filled + np.maximum(0.0, weights_s - others.weights_s / np.maximum(1, ranks.num_ranks - 1))
    least = np.where(together, others.forward_s, 0.0)
    return np.asarray(np.maximum(least, others.forward_s + others.backward_s - filled))


order_1p = partial(_order, 1)
order_2p = partial(_order, 2)
in_flight_1p = partial(_in_flight, 1)
in_flight_2p = partial(_in_flight, 2)
bubble_1p_s = partial(_bubble_s, 1)
bubble_2p_s = partial(_bubble_s, 2)

# Zero bubble with two chunks per rank in a V (`zbv`) [2401.10241 section 6].
#
# Data passes the ranks through chunk 0 in ascending order and through chunk 1 in descending order, so LM head
# and embedding are both on rank 0. Every rank holds 2 p chunks of micro-batches, as much as the first stage
# under 1F1B. If every pass takes one unit, the first micro-batch reaches chunk 0 of rank r at time r, chunk 1
# at 2 p - 1 - r, and its backward at 2 p + r. The lengths of the phases below fill the time between these
# arrivals. Then six passes per micro-batch repeat, and at the end the delayed W passes fill the drain.

CHUNKS = 2
LETTERS: dict[str, tuple[Pass, int]] = {
    "f": ("F", 0),
    "b": ("B", 0),
    "w": ("W", 0),
    "F": ("F", 1),
    "B": ("B", 1),
    "W": ("W", 1),
}
"""A letter for each pass: lower case for chunk 0, upper case for chunk 1."""


def order_v(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """The order of every rank; fewer than 2 p - 1 micro-batches use a part of the order for 2 p - 1."""
    return [_rank_order(rank, pipeline, microbatches) for rank in range(pipeline)]


def _rank_order(rank: int, pipeline: int, microbatches: int) -> StageOrder:
    enough = 2 * pipeline - 1
    next_of = dict.fromkeys(LETTERS, 0)
    slots: StageOrder = []
    for letters, times in _phases(rank, pipeline, max(microbatches, enough) - enough):
        for letter in letters * times:
            which, chunk = LETTERS[letter]
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


def in_flight_v(stage: Numbers, pipeline: Numbers, _: Numbers, microbatches: Numbers) -> tuple[Held, ...]:
    """At most 2 p chunks; micro-batches beyond those that fill the pipeline do not change the peak."""
    return held_by_ranks(stage, pipeline, np.minimum(microbatches, 2 * pipeline), _peaks)


@lru_cache(maxsize=4096)
def _peaks(rank: int, pipeline: int, microbatches: int) -> tuple[tuple[float, float], ...]:
    """Activations and inputs of weight gradients at the possible peaks of a rank."""
    return held_at_peak(_rank_order(rank, pipeline, microbatches), CHUNKS)


def bubble_v_s(ranks: PacedRanks, _: Numbers, microbatches: Numbers, together: Numbers) -> Numbers:
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
