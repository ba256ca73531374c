"""Zero bubble with one chunk per rank: ZB-H1 (`zb1p`) and ZB-H2 (`zb2p`) [2401.10241 section 2].

1F1B in which stage i runs `ahead` (p - i - 1) forwards before its first pair, and W follows its B after
`ahead` i micro-batches. With `ahead` 1 every stage holds p micro-batches, as the first stage under 1F1B.
With `ahead` 2 it holds 2 p - 1, the first backward arrives when the forwards are done, and no stage idles
between its first and last slot. At the end, the delayed W passes fill the drain phase of 1F1B. A stage
starts and ends later than the previous stage, which costs nothing where the optimizer does not wait for
other stages (section 4: validation after the update).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from perfsim.strategies.schedules.slots import Held, Numbers, PacedRanks, Slot, StageOrder


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
