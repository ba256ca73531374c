"""The parts of schedules: slots, what a rank holds between slots, and pass times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

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
    """What a rank holds at one moment, in micro-batches of the whole rank."""

    activations: float
    """Held from forward to backward."""
    weight_inputs: float = 0.0
    """Inputs and output gradients of the weights, held from backward to weight gradients."""


class PassTimes(NamedTuple):
    """Seconds of one micro-batch through all chunks of one rank."""

    forward_s: float
    backward_s: float
    weights_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of all passes."""
        return sum(self)


class Ranks(NamedTuple):
    """Pass times of all ranks; the slowest rank sets the pace."""

    slowest: PassTimes
    others: PassTimes
    """Sum over all ranks except the slowest."""
    num_ranks: int

    @classmethod
    def of(cls, ranks: Sequence[PassTimes]) -> Ranks:
        """The slowest rank of a pipeline, and the sum over the others."""
        slowest = max(ranks, key=lambda times: times.total_s)
        sums = [sum(values) for values in zip(*ranks, strict=True)]
        return cls(slowest, PassTimes(*(a - b for a, b in zip(sums, slowest, strict=True))), len(ranks))
