"""The halves of a layer, attention and MLP, on one rank: each writes the same few passes.

Here are those that a rank computes in one task a pass. A half whose ranks exchange something inside it
overrides what it writes (`context.py`, `expert.py`); `layer.py` joins two halves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np

from perfsim.costs.memory import main_grad_bytes
from perfsim.specs.layout import ContextExchange, ParallelLayout
from perfsim.specs.model import PLAIN, LayerKind
from perfsim.specs.recipe import Job, Recipe
from perfsim.strategies.three_d.data import SHARDED
from perfsim.work import Kind, Template, TensorClass, Work
from perfsim.work.counts import (
    attention_weight_input_bytes,
    layer_activation_bytes,
    mlp_weight_input_bytes,
)
from perfsim.work.kernels import LayerSlice
from perfsim.work.layer import Kernels, attention_kernels, mlp_kernels, mlp_residual
from perfsim.work.recompute import attention_recompute, mlp_recompute

# How unevenly tokens are routed to the ranks that hold experts, and what a capacity limits of it.
#
# Every rank waits for the slowest in each layer, because its own tokens come back from all of them. So a
# layer takes as long as the rank with most rows lets it, and all ranks stay alike. The popularity of an
# expert is log-normal around equal shares, drawn with a fixed seed; a rank's is the mean of its experts, and
# the load is the mean over draws of that of the fullest rank. Routing that a run forces to be balanced has
# load 1, and a capacity factor limits the rows of an expert to so many times their equal share.

SEED = 2026
DRAWS = 256
"""Layers and steps over which the fullest rank is averaged."""


def expert_load(job: Job, ranks: int) -> float:
    """Rows that the fullest of so many ranks computes, over the mean of all."""
    recipe = job.recipe
    experts = job.model.experts
    if experts is None or recipe.routing == "balanced":
        return 1.0
    load = fullest_rank(experts.num_experts, ranks, recipe.routing_spread)
    return load if recipe.expert_capacity is None else min(load, recipe.expert_capacity)


def routing_notes(job: Job, ranks: int) -> tuple[str, ...]:
    """What uneven routing costs, in words; nothing where it is balanced."""
    load = expert_load(job, ranks)
    if load == 1.0:
        return ()
    more = f"{load - 1:.1%}"
    saved = f"{1 - 1 / load:.1%}"
    text = (
        f"the fullest of {ranks} ranks has {more} more rows of experts than the mean, and all wait for it; "
    )
    return (text + f"balanced routing would save {saved} of the time of experts and of their rows",)


@lru_cache(maxsize=1024)
def fullest_rank(experts: int, ranks: int, spread: float) -> float:
    """Mean over draws of the load of the fullest rank, whose experts' popularity has this deviation."""
    if ranks == 1 or spread == 0.0:
        return 1.0
    drawn = np.exp(spread * np.random.default_rng(SEED).standard_normal((DRAWS, experts)))
    by_rank = drawn.reshape(DRAWS, ranks, -1).mean(axis=2)
    return float((by_rank.max(axis=1) / by_rank.mean(axis=1)).mean())


def waits_for_rows(recipe: Recipe) -> bool:
    """Whether the host must learn how many rows go where: not with a fixed capacity or in a CUDA graph."""
    framework = recipe.runtime.stack
    if framework is None or framework.cuda_graph or recipe.expert_capacity is not None:
        return False
    return framework.expert_pass_s > 0


# The share of one layer that one rank computes under a layout.

EXCHANGES: tuple[ContextExchange, ...] = get_args(ContextExchange)


class Degrees(NamedTuple):
    """What of a layout decides the share of a layer that a rank computes."""

    tensor: int
    sequence_parallel: bool | int
    micro_batch: int
    context: int = 1
    exchange: int = 0
    """Index into `EXCHANGES`."""
    expert: int = 1
    expert_tensor: int = 1

    @property
    def layout(self) -> ParallelLayout:
        return ParallelLayout(
            tensor=self.tensor,
            sequence_parallel=bool(self.sequence_parallel),
            micro_batch_size=self.micro_batch,
            context=self.context,
            context_exchange=EXCHANGES[self.exchange],
            expert=self.expert,
            expert_tensor=self.expert_tensor,
        )


def slice_of(job: Job, layout: ParallelLayout, kind: LayerKind = PLAIN) -> LayerSlice:
    """One rank's share of a layer of one kind for one micro-batch."""
    recipe = job.recipe
    experts = kind.experts
    return LayerSlice(
        model=job.model,
        seq_length=recipe.seq_length,
        micro_batch_size=layout.micro_batch_size,
        tensor=layout.tensor,
        sequence_parallel=layout.sequence_parallel,
        attention=recipe.runtime.attention,
        attention_length=recipe.runtime.attention_length,
        main_grad_bytes=main_grad_bytes(recipe),
        element_bytes=recipe.element_bytes,
        dropout=recipe.dropout,
        fused_cross_entropy=recipe.runtime.fused_cross_entropy,
        fused=() if recipe.runtime.stack is None else recipe.runtime.stack.fused,
        precisions=recipe.narrow_kernels,
        keeps=recipe.runtime.recompute_keeps,
        selective="core" if recipe.runtime.stack is None else recipe.runtime.stack.selective,
        recompute_stops_early=layout.zero_stage == SHARDED,
        context=layout.context,
        context_exchange=layout.context_exchange,
        kind=kind,
        expert=layout.expert if experts else 1,
        expert_tensor=layout.expert_tensor if experts else 1,
        expert_load=expert_load(job, layout.expert) if experts else 1.0,
    )


def head_positions(job: Job, context: int) -> int:
    """Positions of each sequence that reach the LM head on one of its context ranks."""
    return (job.recipe.lm_head_positions or job.recipe.seq_length) // context


COMPUTE = "compute"
"""The compute stream of a device."""
Forward = Literal["forward", "recompute"]
Backward = Literal["backward", "dgrad"]
"""A backward, or its input gradients where the schedule splits it."""
HalfPass = Literal["forward", "recompute", "backward", "dgrad", "wgrad"]


def compute_work(name: str, category: str, kernels: Kernels, writes: tuple[TensorClass, ...]) -> Work:
    """A class of compute tasks on one rank."""
    return Work(name, Kind.COMP, name, category, kernels=kernels, writes=writes)


def half_work(name: str, which: HalfPass, kernels: Kernels, *writes: TensorClass) -> Work:
    """Compute of a half, or of a part of it, in one pass."""
    category = which if which in ("forward", "recompute") else "backward"
    return compute_work(f"{name}.{which}", category, kernels, writes)


@lru_cache(maxsize=4096)
def attention_work(part: LayerSlice, which: HalfPass, mode: str = "none") -> Work:
    """The compute of an attention block; `mode` decides what its recompute runs again."""
    kernels = attention_recompute(part, mode) if which == "recompute" else attention_kernels(part, which)
    writes = _written(part, which)
    if which == "dgrad":
        writes.append(TensorClass("weight_inputs", attention_weight_input_bytes(part)))
    return half_work("attention", which, kernels, *writes)


@lru_cache(maxsize=4096)
def mlp_work(part: LayerSlice, which: HalfPass, mode: str = "none") -> Work:
    """The compute of an MLP block; `mode` decides what its forward keeps and its recompute runs again."""
    kernels = mlp_recompute(part, mode) if which == "recompute" else mlp_kernels(part, which)
    writes = _written(part, which)
    if which == "forward":
        kernels += mlp_residual(part)
        writes.append(TensorClass("saved", layer_activation_bytes(part, mode)))
    elif which == "dgrad":
        writes.append(TensorClass("weight_inputs", mlp_weight_input_bytes(part)))
    return half_work("mlp", which, kernels, *writes)


def _written(part: LayerSlice, which: HalfPass) -> list[TensorClass]:
    name, n_bytes = ("weight_gradient", 0.0) if which == "wgrad" else ("hidden", part.activation_bytes)
    return [TensorClass(name, n_bytes)]


class Made(NamedTuple):
    """What a pass of a half makes, as handles."""

    output: int
    """The hidden activation, or the gradient of the half's input."""
    kept: int
    """What a later pass reads: the tensor that a forward saves, or the inputs of the weight gradients."""


@dataclass(frozen=True)
class Half(ABC):
    """Attention, or what follows it, of one layer on one rank: one task a pass, unless it overrides that."""

    part: LayerSlice
    device: str
    mode: str
    """The recompute mode of the layer."""

    @property
    def compute(self) -> str:
        return f"{self.device}/{COMPUTE}"

    @property
    def divided(self) -> bool:
        """Whether each tensor peer computes its own positions, not a share of the sum for all of them."""
        return False

    @property
    def repeats(self) -> bool:
        """Whether the recompute mode runs it again before its backward."""
        return self.mode != "none"

    @abstractmethod
    def works(self, which: HalfPass) -> Sequence[Work]:
        """The works of a pass that run one after the other."""

    def forward(self, template: Template, which: Forward, reads: Sequence[int], block: int) -> Made:
        """Write the forward or its repetition; `block` is the number of the layer."""
        return self._task(template, self.works(which)[0], reads, block)

    def backward(
        self, template: Template, which: Backward, reads: Sequence[int], block: int, after: Sequence[int] = ()
    ) -> Made:
        """Write the backward.

        `reads` are the gradient of the half's output, what the layer's forward saved, and what was gathered
        or recomputed; `after` are tasks that must end first.
        """
        return self._task(template, self.works(which)[0], reads, block, after)

    def wgrad(self, template: Template, reads: Sequence[int], block: int, after: Sequence[int] = ()) -> int:
        """Write the weight gradients of a split backward; returns their tensor."""
        return self._task(template, self.works("wgrad")[0], reads, block, after).output

    def _task(
        self, template: Template, work: Work, reads: Sequence[int], block: int, after: Sequence[int] = ()
    ) -> Made:
        first = template.task(work, self.compute, reads, after, block=block).tensor
        return Made(first, first + len(work.writes) - 1)


@dataclass(frozen=True)
class Attention(Half):
    """Attention of a rank that has all positions of its sequences."""

    def works(self, which: HalfPass) -> Sequence[Work]:
        return [attention_work(self.part, which, self.mode)]

    def backward(
        self, template: Template, which: Backward, reads: Sequence[int], block: int, after: Sequence[int] = ()
    ) -> Made:
        """Write the backward; what is recomputed ended before the gradient that it reads."""
        return super().backward(template, which, reads[:2], block, after)


@dataclass(frozen=True)
class Mlp(Half):
    """The MLP of a layer without experts."""

    @property
    def repeats(self) -> bool:
        """Whether the recompute mode runs some of it again."""
        return bool(mlp_recompute(self.part, self.mode))

    def works(self, which: HalfPass) -> Sequence[Work]:
        return [mlp_work(self.part, which, self.mode)]
