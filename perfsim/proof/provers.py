"""What differs between kinds of machine in a proof: small layouts, the executor of graphs, their prices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from perfsim.base.errors import InputError, Problem
from perfsim.network import Topology
from perfsim.proof.gpu_program import GpuCompiler
from perfsim.proof.program import Compiler
from perfsim.proof.promises import GpuPrices, Prices, StreamingPrices
from perfsim.proof.serial import MAX_NORM, STEPS, SmallTraining
from perfsim.proof.wafer_program import WaferCompiler
from perfsim.specs.layout import Layout, ParallelLayout
from perfsim.specs.model import Experts, LatentAttention, TransformerConfig
from perfsim.specs.optimizers import OPTIMIZERS
from perfsim.specs.recipe import Job, Recipe
from perfsim.specs.streaming_layout import StreamingLayout
from perfsim.strategies import Plan, Strategy
from perfsim.strategies.schedules import schedule_called
from perfsim.strategies.streaming.passes import StreamingPlan
from perfsim.strategies.three_d.emission import ThreeDPlan
from perfsim.work import TaskGraph

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


class _Prover(Protocol):
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


class _GpuProver:
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
        """Two a stage if there are few stages; a single stage has few layers with its modules."""
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
        places = schedule_called(layout.schedule).placement(layout.pipeline, layout.virtual_pipeline)
        return "" if places.last_rank == 0 else "over pipeline stages"

    def parts(self, layout: ParallelLayout) -> Parts:
        """Heads of each tensor peer, with an all-to-all also of each context rank; positions of each rank."""
        exchanges = layout.context_exchange == "all_to_all"
        heads = layout.tensor * (layout.context if exchanges else 1)
        halves = 2 if layout.context > 1 else 1
        positions = layout.tensor * layout.context * halves
        return Parts(heads, positions, layout.context > 1, layout.expert, layout.expert_tensor)

    def compiler(self, graph: TaskGraph, training: SmallTraining, plan: ThreeDPlan) -> Compiler:
        return GpuCompiler(graph, training, plan)

    def prices(self, plan: ThreeDPlan) -> Prices:
        return GpuPrices(plan)

    def max_norm(self, plan: ThreeDPlan) -> float:
        """Infinite under a skewed schedule: it checks the norm after the update [2401.10241 section 4]."""
        return math.inf if schedule_called(plan.layout.schedule).has("skewed") else MAX_NORM

    def features(self, plan: ThreeDPlan) -> list[str]:
        layout = plan.layout
        words = []
        words += ["sequence parallel"] if layout.sequence_parallel else []
        words += [] if plan.job.model.experts is None else ["experts"]
        words += [] if plan.job.recipe.expert_capacity is None else ["tokens dropped"]
        keeps = layout.recompute == "full" and plan.job.runtime.recompute_keeps == "qkv"
        words += ["queries, keys and values kept"] if keeps else []
        words += [f"zero {layout.zero_stage}"] if layout.zero_stage else []
        overlaps = plan.job.runtime.overlap_grad_reduce and layout.replicas > 1
        words += ["reduction overlapped"] if overlaps else []
        gathers = plan.job.runtime.overlap_param_gather and layout.zero_stage in (1, 2)
        return [*words, "parameters gathered beside forwards"] if gathers else words


class _StreamingProver:
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
        return Parts(layout.tensor, layout.tensor)

    def compiler(self, graph: TaskGraph, training: SmallTraining, plan: StreamingPlan) -> Compiler:
        """The executor of streamed graphs; a device holds as many layers as are prefetched."""
        system = plan.topology.system
        blocks = plan.job.model.num_layers + 2
        slots = 1 + min(system.streaming.prefetch_depth, 2 * blocks - 1)
        return WaferCompiler(graph, training, plan, slots)

    def prices(self, plan: StreamingPlan) -> Prices:
        return StreamingPrices(plan)

    def max_norm(self, _: StreamingPlan) -> float:
        """Infinite: MemoryX updates a layer as soon as its own gradient is complete."""
        return math.inf

    def features(self, plan: StreamingPlan) -> list[str]:
        layout = plan.layout
        words = []
        words += [] if plan.job.model.experts is None else ["experts"]
        words += [f"groups of {layout.recompute_layers}"] if layout.recompute_layers else []
        return [*words, "spilled"] if layout.spill else words


PROVERS: Mapping[str, _Prover] = {"gpu-cluster": _GpuProver(), "wafer-cluster": _StreamingProver()}
"""By kind of machine."""


def prover(kind: str) -> _Prover:
    """The prover for a kind of machine; InputError if there is none."""
    if kind not in PROVERS:
        raise InputError(f"graphs on a {kind} cannot be executed; proofs know {', '.join(sorted(PROVERS))}")
    return PROVERS[kind]


# Small plans: the stages, ranks and micro-batches of a plan, on a model small enough to execute.

HEAD_SIZE = 4
LEAST_SEQUENCE = 4
VOCABULARY = 13
EXPERTS_OF_RANK = 2
MOST_MODULES = 2
"""Of multi-token prediction."""
WINDOW = 3
"""Positions of a window: fewer than a sequence has."""


def small_model(
    model: TransformerConfig, parts: Parts, num_layers: int, modules: int = 0
) -> TransformerConfig:
    """A model with the same features and few layers, heads and words, divisible into the parts.

    It has so many `modules` of multi-token prediction, and nothing of `_not_executed`.
    """
    shared = min(2, model.num_attention_heads // model.query_groups)
    groups = parts.heads if shared > 1 else max(parts.heads, 2)
    hidden = groups * shared * HEAD_SIZE
    experts = None if model.experts is None else _small_experts(model.experts, parts)
    return model.model_copy(
        update={
            "name": f"{model.name} made small",
            "num_layers": num_layers,
            "num_attention_heads": groups * shared,
            "num_query_groups": groups if shared > 1 else None,
            "hidden_size": hidden,
            "ffn_hidden_size": 2 * hidden,
            "vocab_size": VOCABULARY,
            "experts": experts,
            "head_dim": None,
            "latent_attention": _small_latents(model.latent_attention),
            "sliding_window": WINDOW if model.sliding_window else None,
            "sliding_window_pattern": 2 if model.sliding_window_pattern else None,
            "qk_layernorm": model.qk_layernorm and model.latent_attention is None,
            "mtp_num_layers": modules,
            "max_position_embeddings": small_sequence(parts),
        }
    )


def _not_executed(job: Job, without_modules: str) -> tuple[str, ...]:
    """What of a job the small one does not have, in words."""
    model = job.model
    optimizer = job.recipe.optimizer
    others = () if OPTIMIZERS[optimizer].executed else (f"optimizer {optimizer}, in whose place is adam",)
    both = model.qk_layernorm and model.latent_attention is not None
    norms = ("norms of queries and keys beside latents",) if both else ()
    modules = (
        (f"multi-token prediction {without_modules}",) if model.mtp_num_layers and without_modules else ()
    )
    return (*others, *norms, *modules)


def _small_latents(latent: LatentAttention | None) -> LatentAttention | None:
    """Latents narrower than their heads, which are as wide as plain ones; values are narrower."""
    if latent is None:
        return None
    return LatentAttention(
        q_lora_rank=latent.q_lora_rank and HEAD_SIZE + 1,
        kv_lora_rank=HEAD_SIZE - 1,
        qk_nope_head_dim=HEAD_SIZE // 2,
        qk_rope_head_dim=HEAD_SIZE // 2,
        v_head_dim=HEAD_SIZE - 1,
    )


def _small_experts(experts: Experts, parts: Parts) -> Experts:
    """Two experts a rank, at most two for a token, behind a dense layer if some layers are dense."""
    dense = 1 if experts.first_dense_layers else 0
    return experts.model_copy(
        update={
            "num_experts": EXPERTS_OF_RANK * parts.experts,
            "top_k": min(2, experts.top_k),
            "ffn_hidden_size": 2 * parts.expert_peers,
            "shared_ffn_hidden_size": 3 * parts.heads if experts.shared_ffn_hidden_size else 0,
            "first_dense_layers": dense,
            "interval": 1 if dense else min(2, experts.interval),
            "groups": 1,
            "top_groups": 1,
        }
    )


def small_sequence(parts: Parts) -> int:
    """A few tokens, equally many in each part, and as many for every expert."""
    period = parts.positions * (EXPERTS_OF_RANK * parts.experts if parts.experts > 1 else 1)
    return -(-LEAST_SEQUENCE // period) * period


def _small_recipe(recipe: Recipe, parts: Parts) -> Recipe:
    """The recipe with a short sequence; half of it reaches the LM head if not all of it did."""
    length = small_sequence(parts)
    positions = length // 2 if recipe.lm_head_positions else None
    update = {"seq_length": length, "lm_head_positions": positions, "recompute": "auto"}
    update["routing"] = "balanced"
    attention = "flash" if parts.fused else recipe.runtime.attention
    return recipe.model_copy(update=update).ran_with(dispatcher="all_to_all", attention=attention)


def small_plan(strategy: Strategy, job: Job, topology: Topology, layout: Layout, microbatches: int) -> Plan:
    """A plan of the small model with the same number of micro-batches, for two steps."""
    of_kind = prover(topology.system.kind)
    layout = of_kind.small_layout(layout)
    if job.model.experts is not None and (beside := of_kind.without_experts(layout)):
        raise InputError(
            [
                Problem(
                    f"experts are not executed with {beside}",
                    help="prove it without",
                )
            ]
        )
    batch = layout.data * layout.micro_batch_size * microbatches
    parts = of_kind.parts(layout)
    without = of_kind.without_modules(layout)
    modules = 0 if without else min(MOST_MODULES, job.model.mtp_num_layers)
    model = small_model(job.model, parts, of_kind.small_layers(layout, modules), modules)
    small_job = Job(model, _small_recipe(job.recipe, parts), batch)
    plan: Plan = strategy.plan(small_job, topology, layout, check_memory=False)
    return replace(plan, least_steps=STEPS, notes=_not_executed(job, without))


def training_of(plan: Plan, seed: int) -> SmallTraining:
    """The small training of a plan."""
    job = plan.job
    positions = job.recipe.lm_head_positions or job.seq_length
    max_norm = prover(plan.system.kind).max_norm(plan)
    return SmallTraining(
        job.model,
        job.seq_length,
        positions,
        job.global_batch_size,
        seed,
        max_norm,
        job.recipe.expert_capacity,
    )
