"""The parts of schedules: slots, what a rank holds between slots, and pass times."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

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


class PassTimes(NamedTuple):
    """Seconds of one micro-batch through all chunks of ranks; numbers or arrays."""

    forward_s: Numbers
    backward_s: Numbers
    weights_s: Numbers = np.zeros(())

    @property
    def total_s(self) -> Numbers:
        """Seconds of all passes."""
        return self.forward_s + self.backward_s + self.weights_s

    def of(self, rows: NDArray[np.int64] | slice) -> PassTimes:
        """The rows at these indices."""
        return PassTimes(*(np.asarray(part)[rows] for part in self))


class PacedRanks(NamedTuple):
    """Pass times of the ranks of pipelines; the slowest rank sets the pace."""

    slowest: PassTimes
    others: PassTimes
    """Sum over all ranks except the slowest."""
    num_ranks: Numbers
