"""A layer on one rank: its share of the work, its two halves, and the sums of the tensor group between them.

Attention and MLP are halves that write the same few passes, one task a pass. A half whose ranks exchange
something inside it overrides what it writes (`context.py`, `expert.py`).

Tensor parallelism [1909.08053]: linear layers are split by output columns, then by rows; attention and MLP
each end in an all-reduce over the tensor group, forward and backward. With sequence parallelism [2205.05198]
the all-reduce is a reduce-scatter and an all-gather of the same bytes. The collectives stand on the compute
stream: PyTorch's synchronous collectives, which Megatron-LM calls here, make it wait for them. A half of a
layer that computes each rank's own positions, as experts do, stands between the two.

Where communication overlaps products, a reduce-scatter runs next to the product whose result it sums, and an
all-gather next to the product that reads it. What the product hides is a matter of prices (`costs/gpu.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from perfsim.costs.memory import state_bytes
from perfsim.specs.layout import RECOMPUTED, ParallelLayout, Recompute
from perfsim.specs.model import PLAIN, LayerKind
from perfsim.specs.recipe import Job
from perfsim.strategies.three_d.data import SHARDED, collective
from perfsim.work import Kind, RankGroup, Template, TensorClass, Work, layer
from perfsim.work.builder import InBlock
from perfsim.work.counts import attention_weight_input_bytes, layer_activation_bytes, mlp_weight_input_bytes
from perfsim.work.graph import compute_stream
from perfsim.work.kernels import FULL, Kernel, LayerSlice

# How unevenly tokens are routed to the ranks that hold experts, and what a capacity limits of it.
#
# Every rank waits for the slowest in each layer, because its own tokens come back from all of them. So a
# layer takes as long as the rank with most rows lets it, and all ranks stay alike. The popularity of an
# expert is log-normal around equal shares, drawn with a fixed seed; a rank's is the mean of its experts, and
# the load is the mean over draws of the fullest rank's load. Routing that a run forces to be balanced has
# load 1, and a capacity factor limits the rows of an expert to a multiple of their equal share.

SEED = 2026
DRAWS = 256
"""Layers and steps over which the fullest rank is averaged."""


def expert_load(job: Job, ranks: int) -> float:
    """Rows that the fullest of the ranks of experts computes, over the mean of these ranks."""
    recipe = job.recipe
    experts = job.model.experts
    if experts is None or recipe.routing == "balanced":
        return 1.0
    load = _fullest_rank(experts.num_experts, ranks, recipe.routing_spread)
    return load if recipe.expert_capacity is None else min(load, recipe.expert_capacity)


@lru_cache(maxsize=1024)
def _fullest_rank(experts: int, ranks: int, spread: float) -> float:
    """The load of the fullest rank, the mean over draws; `spread` deviates the popularity of experts."""
    if ranks == 1 or spread == 0.0:
        return 1.0
    drawn = np.exp(spread * np.random.default_rng(SEED).standard_normal((DRAWS, experts)))
    by_rank = drawn.reshape(DRAWS, ranks, -1).mean(axis=2)
    return float((by_rank.max(axis=1) / by_rank.mean(axis=1)).mean())


# The share of one layer that one rank computes under a layout.


def slice_of(job: Job, layout: ParallelLayout, kind: LayerKind = PLAIN) -> LayerSlice:
    """One rank's share of a layer of one kind for one micro-batch."""
    experts = kind.experts
    return replace(
        LayerSlice.of(job, kind),
        micro_batch_size=layout.micro_batch_size,
        tensor=layout.tensor,
        sequence_parallel=layout.sequence_parallel,
        main_grad_bytes=state_bytes(job.recipe).gradients,
        recompute_stops_early=layout.zero_stage == SHARDED,
        context=layout.context,
        context_exchange=layout.context_exchange,
        expert=layout.expert if experts else 1,
        sends_tokens=experts and layout.expert > 1 and job.recipe.expert_dispatcher == "deepep",
        expert_tensor=layout.expert_tensor if experts else 1,
        expert_load=expert_load(job, layout.expert) if experts else 1.0,
    )


def head_positions(job: Job, context: int) -> int:
    """Positions of each sequence that reach the LM head on one of its context ranks."""
    return (job.recipe.lm_head_positions or job.recipe.seq_length) // context


Forward = Literal["forward", "recompute"]
Backward = Literal["backward", "dgrad"]
"""A backward, or its input gradients where the schedule splits it."""
HalfPass = Literal["forward", "recompute", "backward", "dgrad", "wgrad"]


def compute_work(name: str, which: HalfPass, kernels: layer.Kernels, *writes: TensorClass) -> Work:
    """A class of compute tasks on one rank, in one pass of a half, or of what is around layers."""
    category = which if which in ("forward", "recompute") else "backward"
    return Work(f"{name}.{which}", Kind.COMP, f"{name}.{which}", category, kernels=kernels, writes=writes)


_HALVES = {
    "attention": (layer.attention_kernels, layer.attention_recompute, attention_weight_input_bytes),
    **dict.fromkeys(("mlp", "experts"), (layer.mlp_kernels, layer.mlp_recompute, mlp_weight_input_bytes)),
}
"""Kernels of a half, kernels of its recompute, and bytes of the inputs of its weight gradients."""


@lru_cache(maxsize=8192)
def _half_work(half: str, part: LayerSlice, which: HalfPass, mode: Recompute = "none") -> Work:
    """The compute of a half; `mode` decides what a layer's forward keeps and a recompute runs again."""
    kernels_of, again, input_bytes = _HALVES[half]
    kernels = again(part, mode) if which == "recompute" else kernels_of(part, which)
    gradient = TensorClass("weight_gradient", 0.0)
    writes = [gradient if which == "wgrad" else TensorClass("hidden", part.activation_bytes)]
    if which == "dgrad":
        writes.append(TensorClass("weight_inputs", input_bytes(part)))
    elif which == "forward" and half == "mlp":
        kernels += layer.mlp_residual(part)
        writes.append(TensorClass("saved", layer_activation_bytes(part, mode)))
    return compute_work(half, which, kernels, *writes)


class Made(NamedTuple):
    """What a pass of a half makes, as handles."""

    output: int
    """The hidden activation, or the gradient of the half's input."""
    kept: int
    """What a later pass reads: the tensor that a forward saves, or the inputs of the weight gradients."""


@dataclass(frozen=True)
class Half:
    """Attention, or what follows it, of one layer on one rank: one task a pass, unless it overrides that."""

    name: ClassVar[str]
    """Its row of `_HALVES`."""
    divided: ClassVar[bool] = False
    """Whether each tensor peer computes its own positions, not a share of the sum for all of them."""
    part: LayerSlice
    device: str
    mode: Recompute

    @property
    def compute(self) -> str:
        return compute_stream(self.device)

    @cached_property
    def repeats(self) -> bool:
        """Whether the recompute mode runs some of it again before its backward."""
        _, again, _ = _HALVES[self.name]
        return bool(again(self.part, self.mode))

    def ring_terms(self) -> dict[str, Sequence[Work]]:
        """The works of attention in a ring by the prices that they add to; none without one."""
        return {}

    def works(self, which: Forward | Backward) -> Sequence[Work]:
        """The works of a pass that run one after the other; experts have their parts instead."""
        return [_half_work(self.name, self.part, which, self.mode)]

    @property
    def weights(self) -> Work:
        """The weight gradients of a split backward."""
        return _half_work(self.name, self.part, "wgrad")

    def forward(self, at: InBlock, which: Forward, reads: Sequence[int]) -> Made:
        """Write the forward or its repetition in the block of the layer."""
        return self._task(at, self.works(which)[0], reads)

    def backward(self, at: InBlock, which: Backward, reads: Sequence[int], after: Sequence[int] = ()) -> Made:
        """Write the backward.

        `reads` are the gradient of the half's output, what the layer's forward saved, and what was gathered
        or recomputed; `after` are tasks that must end first.
        """
        return self._task(at, self.works(which)[0], reads, after)

    def wgrad(self, at: InBlock, reads: Sequence[int], after: Sequence[int] = ()) -> int:
        """Write the weight gradients of a split backward; returns their tensor."""
        return self._task(at, self.weights, reads, after).output

    def _task(self, at: InBlock, work: Work, reads: Sequence[int], after: Sequence[int] = ()) -> Made:
        first = at.task(work, self.compute, reads, after)
        return Made(first, first + len(work.writes) - 1)


@dataclass(frozen=True)
class Attention(Half):
    """Attention of a rank that has all positions of its sequences."""

    name = "attention"

    def backward(self, at: InBlock, which: Backward, reads: Sequence[int], after: Sequence[int] = ()) -> Made:
        """Write the backward; what is recomputed ended before the gradient that it reads."""
        return super().backward(at, which, reads[:2], after)


@dataclass(frozen=True)
class Mlp(Half):
    """The MLP of a layer without experts."""

    name = "mlp"


# The sums of the tensor group, and the layer.


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
_OF_MODULE: Mapping[tuple[Forward | Literal["backward"], bool], Sequence[tuple[str, int]]] = {
    ("forward", False): (("all_reduce", 1), ("all_gather", 1)),
    ("recompute", False): (("all_gather", 1),),
    ("backward", False): (("all_reduce", 1), ("all_reduce", 2)),
    ("forward", True): (("reduce_scatter", 1), ("all_gather", 2), ("all_gather", 1), ("all_gather", 1)),
    ("recompute", True): (("all_gather", 2), ("all_gather", 1), ("all_gather", 1)),
    ("backward", True): (("reduce_scatter", 1), ("all_gather", 1), ("reduce_scatter", 2), ("all_gather", 1)),
}
"""What multi-token prediction exchanges besides, in hidden tensors, by pass and sequence parallelism.

Forward the embedding is summed, unless it is kept, and the columns of the projection are gathered; under
sequence parallelism also its two inputs, and what attention reads. Backward gradients of the LM head's input
and of both inputs are summed, and those of projection and embedding gathered where a forward scatters.
"""


@lru_cache(maxsize=4096)
def _products(part: LayerSlice, half: str) -> Mapping[str, Kernel]:
    """The matrix products of a half by name; with latent attention those up to all heads are its QKV."""
    works = (_half_work(half, part, which) for which in ("forward", "backward"))
    kernels = (kernel for work in works for kernel in work.kernels)
    products = {kernel.name: kernel for kernel in kernels if kernel.op == "gemm"}
    if "pair" in products:
        products |= {"qkv": products["pair"], "qkv.dgrad": products["pair.dgrad"]}
    return products


def _product(part: LayerSlice, name: str) -> Kernel | None:
    """The product of a layer with this name; of a layer with experts, the one of attention."""
    half = "mlp" if name.startswith("fc") else "attention"
    return None if half == "mlp" and part.kind.experts else _products(part, half).get(name)


@dataclass(frozen=True)
class TensorGroup:
    """The tensor-parallel group of one stage, seen from one of its ranks."""

    part: LayerSlice
    ranks: RankGroup
    device: str
    overlaps: bool = False
    """Whether its collectives overlap with products."""

    @property
    def compute(self) -> str:
        return compute_stream(self.device)

    def write(self, template: Template, tensor: int, works: Sequence[Work]) -> int:
        """Collectives of a tensor one after the other; returns what the last makes."""
        for work in works:
            tensor = template.task(work, self.compute, [tensor]).tensor
        return tensor

    def sum_into(self, template: Template, tensor: int, between: Between, *, divided: bool) -> int:
        """Sum what a half reads; a half that is `divided` gets the positions of its rank, others get all."""
        works = self.all_reduce_works(between)
        return self.write(template, tensor, works[:1] if divided else works)

    def sum_out_of(self, template: Template, tensor: int, between: Between, *, divided: bool) -> int:
        """Sum what a half made, or gather it if the half is `divided`; each rank then has all positions."""
        works = self.works("all_gather", between.after) if divided else self.all_reduce_works(between)
        return self.write(template, tensor, works)

    def all_reduce_works(self, between: Between = NOTHING, n_bytes: float | None = None) -> list[Work]:
        """The collectives that sum an activation over the group."""
        if not self.part.sequence_parallel:
            return self.works("all_reduce", n_bytes=n_bytes)
        pairs = zip(("reduce_scatter", "all_gather"), between, strict=True)
        return [work for op, product in pairs for work in self.works(op, product, n_bytes)]

    def module_works(self, which: Forward | Literal["backward"]) -> list[Work]:
        """The collectives of a layer of multi-token prediction that other layers have not."""
        if not self.part.kind.mtp:
            return []
        exchanges = _OF_MODULE[which, self.part.sequence_parallel]
        hidden = self.part.activation_bytes
        works = [work for op, count in exchanges for work in self.works(op, n_bytes=count * hidden)]
        positions = self.part.seq_length // self.part.context
        return works + (self.softmax_works(positions) if which == "forward" else [])

    def softmax_works(self, positions: int) -> list[Work]:
        """Sums over vocabulary shards of maximum, target and sum of exponentials of each token, in fp32."""
        return self.all_reduce_works(n_bytes=3 * FULL * self.part.micro_batch_size * positions)

    def works(self, op: str, product: str = "", n_bytes: float | None = None) -> list[Work]:
        """A collective of an activation, next to a product where they overlap; none in a group of one."""
        key = op, product, n_bytes
        if self.ranks.size > 1 and key not in self._works:
            made = TensorClass("hidden", self.part.activation_bytes)
            moved = made.n_bytes if n_bytes is None else n_bytes
            if op == "all_gather" and product:
                moved = layer.gathered_bytes(self.part, product)
            next_to = _product(self.part, product) if self.overlaps and product else None
            self._works[key] = [collective("tensor", op, moved, self.ranks, made, next_to=next_to)]
        return self._works.get(key, [])

    @cached_property
    def _works(self) -> dict[tuple[str, str, float | None], list[Work]]:
        return {}


class WeightInputs(NamedTuple):
    """Handles of the inputs of a layer's weight gradients; norms need those summed over tensor peers."""

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

    @cached_property
    def summed_again(self) -> tuple[Between, ...]:
        """The sums of a forward that a recompute makes again, for results that it makes again."""
        mode = self.mlp.mode
        if not self.mlp.repeats:
            return ()
        if self.mlp.part.repeats_layer(mode):
            return FORWARD
        return FORWARD[1:] if "mlp" in RECOMPUTED[mode] and not self.mlp.divided else ()

    def forward(self, at: InBlock, hidden: int, weights: Sequence[int] = ()) -> Made:
        """Write the forward; returns its output and the tensor saved for the backward.

        `weights` are the layer's parameters if they are gathered first.
        """
        hidden = self.group.write(at.template, hidden, self.group.module_works("forward"))
        attention = self.attention.forward(at, "forward", [hidden, *weights]).output
        attended = self.group.sum_into(at.template, attention, FORWARD[0], divided=self.mlp.divided)
        mlp = self.mlp.forward(at, "forward", [attended, hidden, *weights])
        summed = self.group.sum_out_of(at.template, mlp.output, FORWARD[1], divided=self.mlp.divided)
        return Made(summed, mlp.kept)

    def backward(
        self, at: InBlock, which: Backward, reads: Sequence[int], after: Sequence[int] = ()
    ) -> tuple[int, WeightInputs]:
        """Write the backward, after recomputation; returns the gradient of its input, and what `wgrad` reads.

        It reads the gradient of its output, the tensor that was saved, and gathered parameters. `after` are
        tasks that must end first, such as those that free a buffer for its weight gradient.
        """
        gradient, saved, *weights = reads
        template = at.template
        again: list[int] = []
        kept = saved
        inputs = [saved, gradient, *weights]
        if self.attention.repeats:
            redone = self.attention.forward(at, "recompute", inputs)
            again, kept = [redone.output], redone.kept
            if FORWARD[0] in self.summed_again:
                summed = self.group.write(template, redone.output, self.group.module_works("recompute"))
                inputs = [self.group.sum_into(template, summed, FORWARD[0], divided=self.mlp.divided)]
        if self.mlp.repeats:
            made = self.mlp.forward(at, "recompute", inputs).output
            if FORWARD[1] in self.summed_again:
                made = self.group.sum_out_of(template, made, FORWARD[1], divided=self.mlp.divided)
            again = [made]
        mlp = self.mlp.backward(at, which, [*reads, *again], after)
        mlp_sum = self.group.sum_out_of(template, mlp.output, BACKWARD[0], divided=self.mlp.divided)
        attention = self.attention.backward(at, which, [mlp_sum, saved, kept])
        below = self.group.sum_into(template, attention.output, BACKWARD[1], divided=self.divided_below)
        below = self.group.write(template, below, self.group.module_works("backward"))
        sums = (mlp_sum, below) if self.group.ranks.size > 1 else ()
        return below, WeightInputs(mlp.kept, attention.kept, *sums)

    def wgrad(self, at: InBlock, inputs: WeightInputs, after: Sequence[int] = ()) -> int:
        """Write the weight gradients, from tensors that the input gradients left."""
        sums = [[] if tensor is None else [tensor] for tensor in (inputs.mlp_sum, inputs.attention_sum)]
        mlp = self.mlp.wgrad(at, [inputs.mlp, *sums[0]], after)
        return self.attention.wgrad(at, [inputs.attention, mlp, *sums[1]])
