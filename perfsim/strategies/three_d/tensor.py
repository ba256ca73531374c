"""Tensor parallelism: a layer on one rank, its two halves and the sums of the tensor group between them.

[1909.08053] Linear layers are split by output columns, then by rows; attention and MLP each end in an
all-reduce over the tensor group, forward and backward. With sequence parallelism [2205.05198] the all-reduce
is a reduce-scatter and an all-gather of the same bytes. The collectives stand on the compute stream:
PyTorch's synchronous collectives, which Megatron-LM calls here, make it wait for them. A half of a layer that
computes each rank's own positions, as experts do, stands between the two.

Where communication overlaps products, a reduce-scatter is exchanged beside the product whose result it sums,
and an all-gather beside the one that reads it. What the product hides is a matter of prices (`costs/gpu.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from perfsim.strategies.three_d.halves import (
    COMPUTE,
    Backward,
    Half,
    HalfPass,
    Made,
    attention_work,
    mlp_work,
)
from perfsim.work import WHOLE_DEVICE, Kind, RankGroup, Template, TensorClass, Work
from perfsim.work.kernels import Kernel, LayerSlice


class Between(NamedTuple):
    """The products between which a tensor is summed over the group and gathered, by their names; "": none."""

    before: str = ""
    after: str = ""


NOTHING = Between()
EMBEDDED = Between(after="qkv")
FROM_HEAD = Between(after="fc2.dgrad")
"""Sums of the embedding, and of the gradient that comes back from the LM head."""
FORWARD = (Between("projection", "fc1"), Between("fc2", "qkv"))
"""Sums after attention and after the MLP."""
BACKWARD = (Between("fc1.dgrad", "projection.dgrad"), Between("qkv.dgrad", "fc2.dgrad"))
"""Sums of gradients after the MLP and after attention."""


@lru_cache(maxsize=512)
def _products(part: LayerSlice) -> Mapping[str, Kernel]:
    """The matrix products of a layer by name; with latent attention those up to all heads are its QKV."""
    passes: tuple[HalfPass, ...] = ("forward", "backward")
    blocks = [attention_work, mlp_work]
    if part.kind.experts:  # its sums are those of attention
        part = replace(part, kind=replace(part.kind, experts=False))
        blocks = blocks[:1]
    kernels = (kernel for block in blocks for which in passes for kernel in block(part, which).kernels)
    products = {kernel.name: kernel for kernel in kernels if kernel.op == "gemm"}
    if "pair" in products:
        products |= {"qkv": products["pair"], "qkv.dgrad": products["pair.dgrad"]}
    return products


@dataclass(frozen=True)
class TensorGroup:
    """The tensor-parallel group of one stage, seen from one of its ranks."""

    part: LayerSlice
    ranks: RankGroup
    device: str
    overlaps: bool = False
    """Whether its collectives are exchanged beside products."""

    @property
    def compute(self) -> str:
        return f"{self.device}/{COMPUTE}"

    def all_reduce(
        self, template: Template, tensor: int, between: Between = NOTHING, n_bytes: float | None = None
    ) -> int:
        """Sum a hidden activation over the group; no task in a group of one rank."""
        return self._emit(template, tensor, self.all_reduce_works(between, n_bytes))

    def all_gather(self, template: Template, tensor: int) -> int:
        """All-gather a hidden activation that arrived split over the group."""
        return self._emit(template, tensor, self.all_gather_works())

    def sum_for(self, template: Template, tensor: int, between: Between, *, divided: bool) -> int:
        """Sum a tensor; each rank then has all positions, or if `divided` its own."""
        works = self.all_reduce_works(between)
        return self._emit(template, tensor, works[:1] if divided else works)

    def sum_of(self, template: Template, tensor: int, between: Between, *, divided: bool) -> int:
        """Give each rank all positions of a tensor, of which it has a summand, or if `divided` its own."""
        works = self.all_gather_works(between.after) if divided else self.all_reduce_works(between)
        return self._emit(template, tensor, works)

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

    def all_gather_works(self, product: str = "") -> list[Work]:
        """The collective that gathers a received activation; none in a group of one rank."""
        return [self._work("all_gather", product, None)] if self.ranks.size > 1 else []

    def _emit(self, template: Template, tensor: int, works: list[Work]) -> int:
        for work in works:
            tensor = template.task(work, self.compute, [tensor]).tensor
        return tensor

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
