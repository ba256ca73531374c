"""The passes of one layer on one rank: its two halves, and the sums of the tensor group between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perfsim.strategies.three_d.halves import Backward, Half, Made
from perfsim.strategies.three_d.tensor import BACKWARD, FORWARD, TensorGroup
from perfsim.work import WHOLE_DEVICE, Template


class WeightInputs(NamedTuple):
    """Handles of the inputs of a layer's weight gradients.

    Scale and shift of norms need the gradient that is summed over tensor peers.
    """

    mlp: int
    attention: int
    mlp_sum: int | None = None
    attention_sum: int | None = None


@dataclass(frozen=True)
class Layer:
    """One layer on one rank."""

    group: TensorGroup
    attention: Half
    mlp: Half
    """The MLP, or the experts in its place."""
    divided_below: bool = False
    """Whether the layer below takes the gradient of a rank's own positions only."""

    def forward(
        self, template: Template, hidden: int, weights: Sequence[int] = (), *, block: int = WHOLE_DEVICE
    ) -> Made:
        """Write the forward; returns its output and the tensor saved for the backward.

        `weights` are the layer's parameters if they are gathered first; `block` is its number.
        """
        attention = self.attention.forward(template, "forward", [hidden, *weights], block).output
        attended = self.group.sum_for(template, attention, FORWARD[0], divided=self.mlp.divided)
        mlp = self.mlp.forward(template, "forward", [attended, hidden, *weights], block)
        return Made(self.group.sum_of(template, mlp.output, FORWARD[1], divided=self.mlp.divided), mlp.kept)

    def backward(
        self,
        template: Template,
        which: Backward,
        gradient: int,
        saved: int,
        weights: Sequence[int] = (),
        after: Sequence[int] = (),
        *,
        block: int = WHOLE_DEVICE,
    ) -> tuple[int, WeightInputs]:
        """Write the backward, after recomputation; returns the gradient of its input, and what `wgrad` reads.

        `after` are tasks that must end first, such as those that free a buffer for its weight gradient.
        """
        again, kept = self._recomputed(template, [saved, gradient, *weights], block)
        mlp = self.mlp.backward(template, which, [gradient, saved, *weights, *again], block, after)
        mlp_sum = self.group.sum_of(template, mlp.output, BACKWARD[0], divided=self.mlp.divided)
        attention = self.attention.backward(template, which, [mlp_sum, saved, kept], block)
        below = self.group.sum_for(template, attention.output, BACKWARD[1], divided=self.divided_below)
        sums = (mlp_sum, below) if self.group.ranks.size > 1 else ()
        return below, WeightInputs(mlp.kept, attention.kept, *sums)

    def wgrad(
        self,
        template: Template,
        inputs: WeightInputs,
        after: Sequence[int] = (),
        *,
        block: int = WHOLE_DEVICE,
    ) -> int:
        """Write the weight gradients, from tensors that the input gradients left."""
        sums = [[] if tensor is None else [tensor] for tensor in (inputs.mlp_sum, inputs.attention_sum)]
        mlp = self.mlp.wgrad(template, [inputs.mlp, *sums[0]], block, after)
        return self.attention.wgrad(template, [inputs.attention, mlp, *sums[1]], block)

    def _recomputed(self, template: Template, reads: Sequence[int], block: int) -> tuple[list[int], int]:
        """Repeat what the mode does not keep; returns the last result, and what attention keeps."""
        if not self.attention.repeats:
            return [], reads[0]
        attention = self.attention.forward(template, "recompute", reads, block)
        if not self.mlp.repeats:
            return [attention.output], attention.kept
        attended = self.group.sum_for(template, attention.output, FORWARD[0], divided=self.mlp.divided)
        mlp = self.mlp.forward(template, "recompute", [attended], block)
        summed = self.group.sum_of(template, mlp.output, FORWARD[1], divided=self.mlp.divided)
        return [summed], attention.kept
