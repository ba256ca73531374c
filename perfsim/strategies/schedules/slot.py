"""What schedules are made of: slots, and what a rank holds between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Pass = Literal["F", "B", "W"]
"""Forward, backward, weight gradients.

Where a schedule has no W, B makes the gradients of inputs and weights; else of inputs alone.
"""


class Slot(NamedTuple):
    """One pass of one micro-batch through chunk `chunk` of pipeline rank `stage`."""

    which: Pass
    stage: int
    chunk: int
    microbatch: int


StageOrder = list[Slot]


class Held(NamedTuple):
    """What a rank holds at one moment, in micro-batches of the whole rank."""

    activations: float
    """From the forward to the backward."""
    weight_inputs: float = 0.0
    """From the backward to the weight gradients: the inputs and output gradients of the weights."""


class PassTimes(NamedTuple):
    """Seconds of one micro-batch through all chunks of one rank."""

    forward_s: float
    backward_s: float
    weights_s: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(self)


class Ranks(NamedTuple):
    """The times of all ranks, seen from the slowest, which sets the pace."""

    slowest: PassTimes
    others: PassTimes
    """Summed over all ranks but the slowest."""
    num_ranks: int

    @classmethod
    def of(cls, ranks: Sequence[PassTimes]) -> Ranks:
        """Sort the ranks of a pipeline into the slowest and the others."""
        slowest = max(ranks, key=lambda each: each.total_s)
        sums = [sum(values) for values in zip(*ranks, strict=True)]
        return cls(slowest, PassTimes(*(a - b for a, b in zip(sums, slowest, strict=True))), len(ranks))
