"""Tensor parallelism: the work of one layer on one rank, and its collectives.

[1909.08053] Linear layers are split by output columns, then by rows; attention and MLP each end in an
all-reduce over the tensor group, forward and backward. With sequence parallelism [2205.05198] the all-reduce
is a reduce-scatter and an all-gather of the same bytes. The collectives stand on the compute stream:
PyTorch's synchronous collectives, which Megatron-LM calls here, make it wait for them. A block with experts
computes a rank's own positions, so it stands between the two.

Where communication overlaps products, a reduce-scatter is exchanged beside the product whose result it sums,
and an all-gather beside the one that reads it. What the product hides is a matter of prices (`costs/gpu.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from perfsim.graph import WHOLE_DEVICE, Kind, RankGroup, Template, TensorClass, Work
from perfsim.strategies.three_d.context import ContextGroup, Forward
from perfsim.strategies.three_d.expert import ExpertGroup
from perfsim.strategies.three_d.works import COMPUTE, layer_works, split_works
from perfsim.transformer import Kernel, LayerSlice


class Between(NamedTuple):
    """The products between which a tensor is summed over the group and gathered, by their names; "": none."""

    before: str = ""
    after: str = ""


NOTHING = Between()
EMBEDDED, FROM_HEAD = Between(after="qkv"), Between(after="fc2.dgrad")
"""Sums of the embedding, and of the gradient that comes back from the LM head."""
FORWARD = (Between("projection", "fc1"), Between("fc2", "qkv"))
"""Sums after attention and after the MLP."""
BACKWARD = (Between("fc1.dgrad", "projection.dgrad"), Between("qkv.dgrad", "fc2.dgrad"))
"""Sums of gradients after the MLP and after attention."""


@lru_cache(maxsize=512)
def _products(part: LayerSlice) -> Mapping[str, Kernel]:
    """The matrix products of a layer by name; with latent attention those up to all heads are its QKV."""
    works = layer_works(part, "none")
    blocks = (works.attention_forward, works.mlp_forward, works.mlp_backward, works.attention_backward)
    products = {kernel.name: kernel for work in blocks for kernel in work.kernels if kernel.op == "gemm"}
    if "pair" in products:
        products |= {"qkv": products["pair"], "qkv.dgrad": products["pair.dgrad"]}
    return products


@dataclass(frozen=True)
class TensorGroup:
    """The tensor-parallel group of one stage, seen from one of its ranks."""

    part: LayerSlice
    ranks: RankGroup
    device: str
    context: ContextGroup | None = None
    """The ranks that share its sequences, if there are any."""
    experts: ExpertGroup | None = None
    """The ranks with the experts of the layer, if it has some in place of the MLP."""
    split_below: bool = False
    """Whether the layer below takes the gradient of its own positions only."""
    overlaps: bool = False
    """Whether its collectives are exchanged beside products."""

    @property
    def compute(self) -> str:
        """The compute stream of the rank."""
        return f"{self.device}/{COMPUTE}"

    def all_reduce(
        self, template: Template, tensor: int, between: Between = NOTHING, n_bytes: float | None = None
    ) -> int:
        """Sum a hidden activation over the group; no task in a group of one rank."""
        for work in self.all_reduce_works(between, n_bytes):
            tensor = template.task(work, self.compute, [tensor]).tensor
        return tensor

    def all_reduce_works(self, between: Between = NOTHING, n_bytes: float | None = None) -> list[Work]:
        """The collectives that sum an activation over the group; none in a group of one rank."""
        if self.ranks.size == 1:
            return []
        if not self.part.sequence_parallel:
            return [self._work("all_reduce", "", n_bytes)]
        return [
            self._work(name, product, n_bytes)
            for name, product in zip(("reduce_scatter", "all_gather"), between, strict=True)
        ]

    def sum_below(self, template: Template, tensor: int) -> int:
        """Sum the gradient of the layer's input over the group."""
        return (self.reduce_scatter if self.split_below else self.all_reduce)(template, tensor, BACKWARD[1])

    def reduce_scatter(self, template: Template, tensor: int, between: Between = NOTHING) -> int:
        """Sum a hidden activation over the group, for each rank its own positions."""
        for work in self.all_reduce_works(between)[:1]:
            tensor = template.task(work, self.compute, [tensor]).tensor
        return tensor

    def all_gather(self, template: Template, tensor: int, product: str = "") -> int:
        """All-gather a hidden activation that arrived split over the group, for a product."""
        for work in self.all_gather_works(product):
            tensor = template.task(work, self.compute, [tensor]).tensor
        return tensor

    def all_gather_works(self, product: str = "") -> list[Work]:
        """The collective that gathers a received activation; none in a group of one rank."""
        return [self._work("all_gather", product, None)] if self.ranks.size > 1 else []

    def _work(self, op: str, product: str, n_bytes: float | None) -> Work:
        n_bytes = self.part.activation_bytes if n_bytes is None else n_bytes
        return Work(
            name=f"tensor.{op}",
            kind=Kind.COMM_COLL,
            op=op,
            category="tensor_communication",
            comm_bytes=n_bytes,
            group=self.ranks,
            writes=(TensorClass("hidden", self.part.activation_bytes),),
            beside=_products(self.part).get(product) if self.overlaps else None,
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
    attention, _ = _attention(template, group, works.attention_forward, "forward", [hidden, *weights], block)
    if group.experts is not None:
        reads = [group.reduce_scatter(template, attention, FORWARD[0]), hidden, *weights]
        done = group.experts.forward(template, "forward", reads, block, recompute)
        return group.all_gather(template, done, FORWARD[1].after), done + 1
    attention = group.all_reduce(template, attention, FORWARD[0])
    mlp = template.task(works.mlp_forward, group.compute, [attention, hidden, *weights], block=block).tensor
    return group.all_reduce(template, mlp, FORWARD[1]), mlp + 1


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
    reads, kept = _backward_reads(template, group, recompute, gradient, saved, weights, block)
    if group.experts is not None:
        mlp, _ = group.experts.backward(template, "backward", reads, block, after)
        mlp = group.all_gather(template, mlp, BACKWARD[0].after)
    else:
        mlp = template.task(works.mlp_backward, group.compute, reads, after, block=block).tensor
        mlp = group.all_reduce(template, mlp, BACKWARD[0])
    if group.context is None:
        attention = template.task(works.attention_backward, group.compute, [mlp, saved], block=block).tensor
    else:
        attention = group.context.backward(template, "backward", mlp, saved, kept, block)
    return group.sum_below(template, attention)


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
    reads, kept = _backward_reads(template, group, recompute, gradient, saved, (), block)
    if group.experts is not None:
        done, mlp = group.experts.backward(template, "dgrad", reads, block)
        summed = group.all_gather(template, done, BACKWARD[0].after)
    else:
        mlp = template.task(works.mlp_dgrad, group.compute, reads, block=block).tensor
        summed = group.all_reduce(template, mlp, BACKWARD[0])
    if group.context is None:
        attention = template.task(works.attention_dgrad, group.compute, [summed, saved], block=block).tensor
    else:
        attention = group.context.backward(template, "dgrad", summed, saved, kept, block)
    done = group.sum_below(template, attention)
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
    read = [inputs.mlp, *sums[0]]
    if group.experts is not None:
        mlp = group.experts.weights(template, read, block, after)
    else:
        mlp = template.task(works.mlp_wgrad, group.compute, read, after, block=block).tensor
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
) -> tuple[list[int], int]:
    """The inputs of a layer's backward, after recomputation, and the tensor with its keys and values."""
    works = layer_works(group.part, recompute)
    reads = [gradient, saved, *weights]
    if works.attention_recompute is None:
        return reads, saved
    inputs = [saved, gradient, *weights]
    recomputed, kept = _attention(template, group, works.attention_recompute, "recompute", inputs, block)
    if works.mlp_recompute is not None and group.experts is not None:
        recomputed = group.reduce_scatter(template, recomputed, FORWARD[0])
        recomputed = group.experts.forward(template, "recompute", [recomputed], block)
        recomputed = group.all_gather(template, recomputed, FORWARD[1].after)
    elif works.mlp_recompute is not None:
        recomputed = group.all_reduce(template, recomputed, FORWARD[0])
        recomputed = template.task(works.mlp_recompute, group.compute, [recomputed], block=block).tensor
        recomputed = group.all_reduce(template, recomputed, FORWARD[1])
    return [*reads, recomputed], kept


def _attention(
    template: Template,
    group: TensorGroup,
    work: Work,
    which: Forward,
    reads: Sequence[int],
    block: int,
) -> tuple[int, int]:
    """An attention block; returns its output, and the tensor with its keys and values."""
    if group.context is not None:
        return group.context.forward(template, which, reads, block)
    attention = template.task(work, group.compute, reads, block=block).tensor
    return attention, attention
