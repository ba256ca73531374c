"""Tensor parallelism: the work of one layer on one rank, and its collectives.

[1909.08053] Linear layers are split by output columns, then by rows; attention and MLP each end in an
all-reduce over the tensor group, forward and backward. With sequence parallelism [2205.05198] the all-reduce
is a reduce-scatter and an all-gather of the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from perfsim import transformer
from perfsim.graph import WHOLE_DEVICE, Kind, RankGroup, Template, TensorClass, Work
from perfsim.transformer import Kernel, LayerSlice

COMPUTE = "compute"
TENSOR_STREAM = "nccl-tensor"


@dataclass(frozen=True)
class LayerWorks:
    """Compute of one layer, attention and MLP, for one micro-batch on one rank."""

    attention_forward: Work
    mlp_forward: Work
    attention_recompute: Work | None
    mlp_recompute: Work | None
    mlp_backward: Work
    attention_backward: Work


def compute_work(
    name: str, category: str, kernels: tuple[Kernel, ...], writes: tuple[TensorClass, ...]
) -> Work:
    """A class of compute tasks on one rank."""
    return Work(name, Kind.COMP, name, category, kernels=kernels, writes=writes)


@lru_cache(maxsize=512)
def layer_works(part: LayerSlice, recompute: str) -> LayerWorks:
    """The compute of one layer under a recompute mode.

    full: attention and MLP run forward again before their backward; selective: only the attention core.
    """
    hidden = TensorClass("hidden", part.activation_bytes)
    saved = TensorClass("saved", transformer.layer_activation_bytes(part, recompute))
    attention = transformer.attention_forward(part)
    mlp = (*transformer.mlp_forward(part), *transformer.mlp_residual(part))
    recomputed: tuple[Kernel, ...] = ()
    if recompute == "selective":
        recomputed = transformer.attention_core(part)
    elif recompute == "full":
        recomputed = attention
    return LayerWorks(
        attention_forward=compute_work("attention.forward", "forward", attention, (hidden,)),
        mlp_forward=compute_work("mlp.forward", "forward", mlp, (hidden, saved)),
        attention_recompute=compute_work("attention.recompute", "recompute", recomputed, (hidden,))
        if recomputed
        else None,
        mlp_recompute=compute_work("mlp.recompute", "recompute", transformer.mlp_recompute(part), (hidden,))
        if recompute == "full"
        else None,
        mlp_backward=compute_work("mlp.backward", "backward", transformer.mlp_backward(part), (hidden,)),
        attention_backward=compute_work(
            "attention.backward", "backward", transformer.attention_backward(part), (hidden,)
        ),
    )


@dataclass(frozen=True)
class SplitWorks:
    """The backward of one layer where weight gradients are a separate pass."""

    mlp_dgrad: Work
    attention_dgrad: Work
    mlp_wgrad: Work
    attention_wgrad: Work


@lru_cache(maxsize=512)
def split_works(part: LayerSlice) -> SplitWorks:
    """Input gradients, which also write the inputs of weight gradients, and weight gradients."""
    hidden, done = TensorClass("hidden", part.activation_bytes), TensorClass("weight_gradient", 0.0)
    mlp = TensorClass("weight_inputs", transformer.mlp_weight_input_bytes(part))
    attention = TensorClass("weight_inputs", transformer.attention_weight_input_bytes(part))
    return SplitWorks(
        mlp_dgrad=compute_work("mlp.dgrad", "backward", transformer.mlp_dgrad(part), (hidden, mlp)),
        attention_dgrad=compute_work(
            "attention.dgrad", "backward", transformer.attention_dgrad(part), (hidden, attention)
        ),
        mlp_wgrad=compute_work("mlp.wgrad", "backward", transformer.mlp_wgrad(part), (done,)),
        attention_wgrad=compute_work(
            "attention.wgrad", "backward", transformer.attention_wgrad(part), (done,)
        ),
    )


@dataclass(frozen=True)
class TensorGroup:
    """The tensor-parallel group of one stage, seen from one of its ranks."""

    part: LayerSlice
    ranks: RankGroup
    device: str

    @property
    def compute(self) -> str:
        """The compute stream of the rank."""
        return f"{self.device}/{COMPUTE}"

    def all_reduce(self, template: Template, tensor: int, n_bytes: float | None = None) -> int:
        """Sum a hidden activation over the group; no task in a group of one rank."""
        for work in self.all_reduce_works(n_bytes):
            tensor = template.task(work, self._stream, [tensor]).tensor
        return tensor

    def all_reduce_works(self, n_bytes: float | None = None) -> list[Work]:
        """The collectives that sum an activation over the group; none in a group of one rank."""
        if self.ranks.size == 1:
            return []
        names = ("reduce_scatter", "all_gather") if self.part.sequence_parallel else ("all_reduce",)
        return [self._work(name, n_bytes) for name in names]

    def all_gather(self, template: Template, tensor: int) -> int:
        """All-gather a hidden activation that arrived split over the group."""
        for work in self.all_gather_works():
            tensor = template.task(work, self._stream, [tensor]).tensor
        return tensor

    def all_gather_works(self) -> list[Work]:
        """The collective that gathers a received activation; none in a group of one rank."""
        return [self._work("all_gather", None)] if self.ranks.size > 1 else []

    @property
    def _stream(self) -> str:
        return f"{self.device}/{TENSOR_STREAM}"

    def _work(self, op: str, n_bytes: float | None) -> Work:
        n_bytes = self.part.activation_bytes if n_bytes is None else n_bytes
        return Work(
            name=f"tensor.{op}",
            kind=Kind.COMM_COLL,
            op=op,
            category="tensor_communication",
            comm_bytes=n_bytes,
            group=self.ranks,
            writes=(TensorClass("hidden", self.part.activation_bytes),),
        )


def emit_layer_forward(
    template: Template,
    group: TensorGroup,
    recompute: str,
    hidden: int,
    weights: Sequence[int] = (),
    *,
    block: int = WHOLE_DEVICE,
) -> tuple[int, int]:
    """One layer forward; returns its output and the tensor saved for the backward.

    `weights` are the layer's parameters if they are gathered first; `block` is its number.
    """
    works = layer_works(group.part, recompute)
    attention = template.task(works.attention_forward, group.compute, [hidden, *weights], block=block).tensor
    attention = group.all_reduce(template, attention)
    mlp = template.task(works.mlp_forward, group.compute, [attention, hidden, *weights], block=block).tensor
    return group.all_reduce(template, mlp), mlp + 1


def emit_layer_backward(
    template: Template,
    group: TensorGroup,
    recompute: str,
    gradient: int,
    saved: int,
    weights: Sequence[int] = (),
    after: Sequence[int] = (),
    *,
    block: int = WHOLE_DEVICE,
) -> int:
    """One layer backward, after recomputation if the mode asks for it; returns the gradient of its input.

    `after` are tasks that must end first, such as those that free a buffer for its weight gradient.
    """
    works = layer_works(group.part, recompute)
    reads = _backward_reads(template, group, recompute, gradient, saved, weights, block)
    mlp = template.task(works.mlp_backward, group.compute, reads, after, block=block).tensor
    mlp = group.all_reduce(template, mlp)
    attention = template.task(works.attention_backward, group.compute, [mlp, saved], block=block).tensor
    return group.all_reduce(template, attention)


class WeightInputs(NamedTuple):
    """Handles of the inputs of a layer's weight gradients.

    Scale and shift of norms need the gradient that is summed over tensor peers.
    """

    mlp: int
    attention: int
    mlp_sum: int | None = None
    attention_sum: int | None = None


def emit_layer_dgrad(
    template: Template,
    group: TensorGroup,
    recompute: str,
    gradient: int,
    saved: int,
    *,
    block: int = WHOLE_DEVICE,
) -> tuple[int, WeightInputs]:
    """Input gradients of one layer, after recomputation; returns the input's gradient, and what W reads."""
    works = split_works(group.part)
    reads = _backward_reads(template, group, recompute, gradient, saved, (), block)
    mlp = template.task(works.mlp_dgrad, group.compute, reads, block=block).tensor
    summed = group.all_reduce(template, mlp)
    attention = template.task(works.attention_dgrad, group.compute, [summed, saved], block=block).tensor
    done = group.all_reduce(template, attention)
    if group.ranks.size == 1:
        return done, WeightInputs(mlp + 1, attention + 1)
    return done, WeightInputs(mlp + 1, attention + 1, summed, done)


def emit_layer_wgrad(
    template: Template,
    group: TensorGroup,
    inputs: WeightInputs,
    after: Sequence[int] = (),
    *,
    block: int = WHOLE_DEVICE,
) -> int:
    """Weight gradients of one layer, from tensors that its input gradients saved."""
    works = split_works(group.part)
    sums = [[] if tensor is None else [tensor] for tensor in (inputs.mlp_sum, inputs.attention_sum)]
    mlp = template.task(works.mlp_wgrad, group.compute, [inputs.mlp, *sums[0]], after, block=block).tensor
    reads = [inputs.attention, mlp, *sums[1]]
    return template.task(works.attention_wgrad, group.compute, reads, block=block).tensor


def _backward_reads(
    template: Template,
    group: TensorGroup,
    recompute: str,
    gradient: int,
    saved: int,
    weights: Sequence[int],
    block: int,
) -> list[int]:
    """The inputs of a layer's backward, after recomputation."""
    works = layer_works(group.part, recompute)
    reads = [gradient, saved, *weights]
    if works.attention_recompute is None:
        return reads
    inputs = [saved, gradient, *weights]
    recomputed = template.task(works.attention_recompute, group.compute, inputs, block=block).tensor
    if works.mlp_recompute is not None:
        recomputed = group.all_reduce(template, recomputed)
        recomputed = template.task(works.mlp_recompute, group.compute, [recomputed], block=block).tensor
        recomputed = group.all_reduce(template, recomputed)
    return [*reads, recomputed]
