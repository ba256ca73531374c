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

from perfsim.strategies.schedules.liveness import held_at_peak
from perfsim.strategies.schedules.slot import Held, Ranks, Slot, StageOrder


def _order(ahead: int, pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    return [_stage_order(ahead, stage, pipeline, microbatches) for stage in range(pipeline)]


def _stage_order(ahead: int, stage: int, pipeline: int, microbatches: int) -> StageOrder:
    warm_up, delay = ahead * (pipeline - stage - 1), ahead * stage
    slots = [Slot("F", stage, 0, number) for number in range(min(warm_up, microbatches))]
    for number in range(microbatches + delay):
        if number + warm_up < microbatches:
            slots.append(Slot("F", stage, 0, number + warm_up))
        if number < microbatches:
            slots.append(Slot("B", stage, 0, number))
        if number >= delay:
            slots.append(Slot("W", stage, 0, number - delay))
    return slots


@lru_cache(maxsize=4096)
def _in_flight(ahead: int, stage: int, pipeline: int, _: int, microbatches: int) -> tuple[Held, ...]:
    """At most `ahead` (p - 1) + 1 micro-batches per stage; more micro-batches do not change the peak."""
    enough = ahead * pipeline + 1
    return held_at_peak(_stage_order(ahead, stage, pipeline, min(microbatches, enough)), 1)


def _bubble_s(ahead: int, ranks: Ranks, _: int, microbatches: int, together: bool) -> float:
    """(p - 1) (F + B - `ahead` W), with fewer W for few micro-batches, and at least 0 [section 2.3].

    Where stages end together, the late start of the last stage, (p - 1) F, remains.
    """
    filled = min(ahead * (ranks.num_ranks - 1), microbatches - 1) * ranks.slowest.weights_s
    least = ranks.others.forward_s if together else 0.0
    return max(least, ranks.others.forward_s + ranks.others.backward_s - filled)


order_1p, order_2p = partial(_order, 1), partial(_order, 2)
in_flight_1p, in_flight_2p = partial(_in_flight, 1), partial(_in_flight, 2)
bubble_1p_s, bubble_2p_s = partial(_bubble_s, 1), partial(_bubble_s, 2)
