"""What differs between kinds of machine in a proof: small layouts, the executor of graphs, their prices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from perfsim.errors import InputError
from perfsim.graph import TaskGraph
from perfsim.proof.execution.adam import MAX_NORM
from perfsim.proof.execution.gpu import GpuCompiler
from perfsim.proof.execution.program import Compiler
from perfsim.proof.execution.serial import SmallTraining
from perfsim.proof.execution.wafer import WaferCompiler
from perfsim.proof.prices import GpuPrices, Prices, StreamingPrices
from perfsim.strategies.schedules import schedule_called
from perfsim.strategies.streaming.blocks import StreamingPlan
from perfsim.strategies.three_d.stages import ThreeDPlan, placement_of
from perfsim.workload import Layout, ParallelLayout, StreamingLayout

MOST_SEQUENCES = 2
"""In a micro-batch."""
FEW_LAYERS = 3
"""In a model without pipeline: more than the buffers that are used in turn."""
FEW_STAGES = 4
"""Up to this many stages, each has two layers."""


class Parts(NamedTuple):
    """What a small model has to divide into."""

    heads: int
    positions: int
    fused: bool = False
    """Whether attention has to be fused."""
    experts: int = 1
    """Ranks with different experts."""
    expert_peers: int = 1
    """Ranks that share every expert."""


class Prover(Protocol):
    """What differs between kinds of machine in a proof."""

    @property
    def system(self) -> str:
        """The system of catalogue proofs; it affects the simulated order, not the numbers."""

    @property
    def even_batches(self) -> bool:
        """Whether a batch has to be a multiple of the replicas' micro-batches."""

    def small_layout(self, layout: Any) -> Layout:
        """The layout with small micro-batches and few layers."""

    def small_layers(self, layout: Any, modules: int) -> int:
        """Layers of the small model, besides those of modules of multi-token prediction."""

    def without_experts(self, layout: Any) -> str:
        """Why a layout is not executed with experts, in words; empty where it is."""

    def without_modules(self, layout: Any) -> str:
        """Why multi-token prediction is not executed in a layout, in words; empty where it is."""

    def parts(self, layout: Any) -> Parts:
        """What the small model has to divide into."""

    def compiler(self, graph: TaskGraph, training: SmallTraining, plan: Any) -> Compiler:
        """The compiler of a graph into a program."""

    def prices(self, plan: Any) -> Prices:
        """How a plan's graph counts bytes and elements."""

    def max_norm(self, plan: Any) -> float:
        """The norm to which gradients are clipped; infinite where updates do not wait for all gradients."""

    def features(self, plan: Any) -> list[str]:
        """The features that a proof of a plan exercises, in words."""


class GpuProver:
    """Proofs of the strategies of GPU clusters."""

    system = "dgx-a100-80gb"
    even_batches = True

    def small_layout(self, layout: ParallelLayout) -> ParallelLayout:
        """Uneven stages stay uneven: none, one or two layers where there were none, one or more."""
        counts = layout.layers_per_stage
        layers = None if counts is None else tuple(min(2, count) for count in counts)
        size = min(MOST_SEQUENCES, layout.micro_batch_size)
        return replace(layout, micro_batch_size=size, layers_per_stage=layers)

    def small_layers(self, layout: ParallelLayout, modules: int) -> int:
        """Two per stage if there are few stages; one stage has few with its modules."""
        if layout.layers_per_stage is not None:
            return sum(layout.layers_per_stage)
        if layout.num_stages == 1:
            return FEW_LAYERS - min(1, modules)
        return layout.num_stages * (2 if layout.num_stages <= FEW_STAGES else 1)

    def without_experts(self, layout: ParallelLayout) -> str:
        """Groups of replicas that shard: their sums are told from those of experts by their ranks."""
        return "" if layout.shard_group is None else f"shard_group {layout.shard_group}"

    def without_modules(self, layout: ParallelLayout) -> str:
        """Graphs have no communication for tables of words that are on other ranks than a module."""
        if layout.tensor > 1:
            return "over tensor peers"
        return "" if placement_of(layout).last_rank == 0 else "over pipeline stages"

    def parts(self, layout: ParallelLayout) -> Parts:
        """Heads of each tensor peer, with an all-to-all also of each context rank; positions of each rank."""
        exchanges = layout.context_exchange == "all_to_all"
        heads = layout.tensor * (layout.context if exchanges else 1)
        halves = 2 if layout.context > 1 else 1
        positions = layout.tensor * layout.context * halves
        return Parts(heads, positions, layout.context > 1, layout.expert, layout.expert_tensor)

    def compiler(self, graph: TaskGraph, training: SmallTraining, plan: ThreeDPlan) -> Compiler:
        """The executor of GPU graphs."""
        return GpuCompiler(graph, training, plan.layout, plan.job.recipe)

    def prices(self, plan: ThreeDPlan) -> Prices:
        """How GPU graphs count bytes and elements."""
        return GpuPrices(plan)

    def max_norm(self, plan: ThreeDPlan) -> float:
        """Infinite under a skewed schedule: it checks the norm after the update [2401.10241 section 4]."""
        return math.inf if schedule_called(plan.layout.schedule).skewed else MAX_NORM

    def features(self, plan: ThreeDPlan) -> list[str]:
        """Sequence parallelism, ZeRO, overlap."""
        layout, words = plan.layout, []
        words += ["sequence parallel"] if layout.sequence_parallel else []
        words += [] if plan.job.model.experts is None else ["experts"]
        words += [] if plan.job.recipe.expert_capacity is None else ["tokens dropped"]
        keeps = layout.recompute == "full" and plan.job.recipe.recompute_keeps == "qkv"
        words += ["queries, keys and values kept"] if keeps else []
        words += [f"zero {layout.zero_stage}"] if layout.zero_stage else []
        overlaps = plan.job.recipe.overlap_grad_reduce and layout.replicas > 1
        words += ["reduction overlapped"] if overlaps else []
        gathers = plan.job.recipe.overlap_param_gather and layout.zero_stage in (1, 2)
        return [*words, "parameters gathered beside forwards"] if gathers else words


class StreamingProver:
    """Proofs of weight streaming."""

    system = "cs-2"
    even_batches = False

    def small_layout(self, layout: StreamingLayout) -> StreamingLayout:
        """The layout without stream chunks, which the executor does not support."""
        return replace(layout, micro_batch_size=min(MOST_SEQUENCES, layout.micro_batch_size), stream_chunks=1)

    def small_layers(self, layout: StreamingLayout, _: int) -> int:
        """More than one group of recomputed layers."""
        return max(FEW_LAYERS, layout.recompute_layers + 1)

    def without_experts(self, _: StreamingLayout) -> str:
        """All experts of a layer stream with it."""
        return ""

    def without_modules(self, _: StreamingLayout) -> str:
        """The tables of words are not on a wafer while the layer of a module is."""
        return "with streamed weights"

    def parts(self, layout: StreamingLayout) -> Parts:
        """No parts."""
        return Parts(layout.tensor, layout.tensor)

    def compiler(self, graph: TaskGraph, training: SmallTraining, plan: StreamingPlan) -> Compiler:
        """The executor of streamed graphs; a device holds as many layers as are prefetched."""
        system, blocks = plan.topology.system, plan.job.model.num_layers + 2
        slots = 1 + min(system.streaming.prefetch_depth, 2 * blocks - 1)
        return WaferCompiler(graph, training, plan.layout, slots, system.activation_servers.prefetch)

    def prices(self, plan: StreamingPlan) -> Prices:
        """How streamed graphs count bytes and elements."""
        return StreamingPrices(plan)

    def max_norm(self, _: StreamingPlan) -> float:
        """Infinite: MemoryX updates a layer as soon as its own gradient is complete."""
        return math.inf

    def features(self, plan: StreamingPlan) -> list[str]:
        """Experts, and the memory policy."""
        layout, words = plan.layout, []
        words += [] if plan.job.model.experts is None else ["experts"]
        words += [f"groups of {layout.recompute_layers}"] if layout.recompute_layers else []
        return [*words, "spilled"] if layout.spill else words


PROVERS: Mapping[str, Prover] = {"gpu-cluster": GpuProver(), "wafer-cluster": StreamingProver()}
"""By kind of machine."""


def prover(kind: str) -> Prover:
    """The prover for a kind of machine; InputError if there is none."""
    if kind not in PROVERS:
        raise InputError(f"graphs on a {kind} cannot be executed; proofs know {', '.join(sorted(PROVERS))}")
    return PROVERS[kind]
