"""What differs between kinds of machine in a proof: small layouts, the executor of graphs, their prices."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from perfsim.base.errors import InputError
from perfsim.network import Topology
from perfsim.proof.promises import GpuPrices, StreamingPrices
from perfsim.proof.serial import MAX_NORM, STEPS, SmallTraining
from perfsim.specs.layout import ParallelLayout, StreamingLayout
from perfsim.specs.model import LatentAttention, TransformerConfig
from perfsim.specs.optimizers import OPTIMIZERS
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, Strategy
from perfsim.strategies.schedules import schedule_called
from perfsim.strategies.streaming.passes import StreamingPlan
from perfsim.strategies.three_d.data import has_owners
from perfsim.strategies.three_d.emission import ThreeDPlan

MOST_SEQUENCES = 2
"""In a micro-batch."""
FEW_LAYERS = 3
"""In a model without pipeline: more than the buffers that are used in turn."""
FEW_STAGES = 4
"""Up to this many stages, each has two layers."""
HEAD_SIZE = 4
LEAST_SEQUENCE = 4
VOCABULARY = 13
EXPERTS_OF_RANK = 2
WINDOW = 3
"""Positions of a window: fewer than a sequence has."""


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

    @property
    def sequence(self) -> int:
        """A few tokens, equally many in each part, and as many for every expert."""
        period = self.positions * (EXPERTS_OF_RANK * self.experts if self.experts > 1 else 1)
        return -(-LEAST_SEQUENCE // period) * period

    def model(self, model: TransformerConfig, num_layers: int, modules: int = 0) -> TransformerConfig:
        """A model with the same features and few layers, heads and words, divisible into the parts.

        It has so many `modules` of multi-token prediction. Latents are narrower than their heads, which are
        as wide as plain ones; values are narrower. Routed experts are two a rank, at most two for a token,
        behind a dense layer if some layers are dense.
        """
        shared = min(2, model.num_attention_heads // model.query_groups)
        groups = self.heads if shared > 1 else max(self.heads, 2)
        hidden = groups * shared * HEAD_SIZE
        latent = model.latent_attention and LatentAttention(
            q_lora_rank=model.latent_attention.q_lora_rank and HEAD_SIZE + 1,
            kv_lora_rank=HEAD_SIZE - 1,
            qk_nope_head_dim=HEAD_SIZE // 2,
            qk_rope_head_dim=HEAD_SIZE // 2,
            v_head_dim=HEAD_SIZE - 1,
        )
        update = {
            "name": f"{model.name} made small",
            "num_layers": num_layers,
            "num_attention_heads": groups * shared,
            "num_query_groups": groups if shared > 1 else None,
            "hidden_size": hidden,
            "ffn_hidden_size": 2 * hidden,
            "vocab_size": VOCABULARY,
            "head_dim": None,
            "latent_attention": latent,
            "sliding_window": WINDOW if model.sliding_window else None,
            "sliding_window_pattern": 2 if model.sliding_window_pattern else None,
            "qk_layernorm": model.qk_layernorm and latent is None,
            "mtp_num_layers": modules,
            "max_position_embeddings": self.sequence,
        }
        if experts := model.experts:
            dense = 1 if experts.first_dense_layers else 0
            of_experts = {
                "num_experts": EXPERTS_OF_RANK * self.experts,
                "top_k": min(2, experts.top_k),
                "ffn_hidden_size": 2 * self.expert_peers,
                "shared_ffn_hidden_size": 3 * self.heads if experts.shared_ffn_hidden_size else 0,
                "first_dense_layers": dense,
                "interval": 1 if dense else min(2, experts.interval),
                "groups": 1,
                "top_groups": 1,
            }
            update["experts"] = experts.model_copy(update=of_experts)
        return model.model_copy(update=update)


class _GpuProver:
    """Proofs of the strategies of GPU clusters."""

    system = "dgx-a100-80gb"
    """The system of catalogue proofs; it affects the simulated order, not the numbers."""
    even_batches = True
    """Whether a batch has to be a multiple of the replicas' micro-batches."""
    prices = GpuPrices
    """How a plan's graph counts bytes and elements."""

    def small_layout(self, layout: ParallelLayout) -> ParallelLayout:
        """The layout with small micro-batches and few layers."""
        counts = layout.layers_per_stage
        # Uneven stages stay uneven: none, one or two layers where there were none, one or more.
        layers = None if counts is None else tuple(min(2, count) for count in counts)
        size = min(MOST_SEQUENCES, layout.micro_batch_size)
        return replace(layout, micro_batch_size=size, layers_per_stage=layers)

    def small_layers(self, layout: ParallelLayout, modules: int) -> int:
        """Layers of the small model without modules: two a stage if these are few, a few in a single one."""
        if layout.layers_per_stage is not None:
            return sum(layout.layers_per_stage)
        if layout.num_stages == 1:
            return FEW_LAYERS - min(1, modules)
        return layout.num_stages * (2 if layout.num_stages <= FEW_STAGES else 1)

    def without_modules(self, layout: ParallelLayout) -> str:
        """Why multi-token prediction is not executed in a layout, in words; empty where it is."""
        # Graphs write what a module exchanges around its tasks, not between the parts that execute.
        if layout.tensor > 1:
            return "over tensor peers"
        placement = schedule_called(layout.schedule).placement(layout.pipeline, layout.virtual_pipeline)
        return "" if placement.last_rank == 0 else "over pipeline stages"

    def parts(self, layout: ParallelLayout) -> Parts:
        """What the small model has to divide into."""
        # Heads of each tensor peer, with an all-to-all also of each context rank; positions of each rank.
        heads = layout.tensor * (layout.context if layout.context_exchange == "all_to_all" else 1)
        divided = layout.context > 1
        positions = layout.tensor * layout.context * (2 if divided else 1)
        return Parts(heads, positions, divided, layout.expert, layout.expert_tensor)

    def max_norm(self, plan: ThreeDPlan) -> float:
        """The norm to which gradients are clipped; infinite where updates do not wait for all of them."""
        # A skewed schedule checks the norm after the update [2401.10241 section 4].
        return math.inf if schedule_called(plan.layout.schedule).has("skewed") else MAX_NORM

    def features(self, plan: ThreeDPlan) -> Mapping[str, bool]:
        """Features in words, and whether a proof of a plan exercises them."""
        layout = plan.layout
        runtime = plan.job.runtime
        return {
            "sequence parallel": layout.sequence_parallel,
            "experts": plan.job.model.experts is not None,
            "tokens dropped": plan.job.recipe.expert_capacity is not None,
            "queries, keys and values kept": layout.recompute == "full" and runtime.recompute_keeps == "qkv",
            f"zero {layout.zero_stage}": layout.zero_stage > 0,
            "states broadcast by their owners": layout.zero_stage == 1 and has_owners(runtime),
            "reduction overlapped": runtime.overlap_grad_reduce and layout.replicas > 1,
            "parameters gathered beside forwards": runtime.overlap_param_gather
            and layout.zero_stage in (1, 2),
        }


class _StreamingProver:
    """Proofs of weight streaming."""

    system = "cs-2"
    even_batches = False
    prices = StreamingPrices

    def small_layout(self, layout: StreamingLayout) -> StreamingLayout:
        """The layout without stream chunks, which the executor does not support."""
        return replace(layout, micro_batch_size=min(MOST_SEQUENCES, layout.micro_batch_size), stream_chunks=1)

    def small_layers(self, layout: StreamingLayout, _: int) -> int:
        """More than one group of recomputed layers."""
        return max(FEW_LAYERS, layout.recompute_layers + 1)

    def without_modules(self, _: StreamingLayout) -> str:
        """The tables of words are not on a wafer while the layer of a module is."""
        return "with streamed weights"

    def parts(self, _: StreamingLayout) -> Parts:
        """Everything is whole."""
        return Parts(1, 1)

    def max_norm(self, _: StreamingPlan) -> float:
        """Infinite: an update waits for the gradients of its block alone."""
        return math.inf

    def features(self, plan: StreamingPlan) -> Mapping[str, bool]:
        layout = plan.layout
        return {
            "experts": plan.job.model.experts is not None,
            f"groups of {layout.recompute_layers}": layout.recompute_layers > 0,
            "spilled": layout.spill,
        }


_Prover = _GpuProver | _StreamingProver
PROVERS: Mapping[str, _Prover] = {"gpu-cluster": _GpuProver(), "wafer-cluster": _StreamingProver()}
"""By kind of machine."""


def prover(kind: str) -> _Prover:
    """The prover for a kind of machine; InputError if there is none."""
    if kind not in PROVERS:
        raise InputError(f"graphs on a {kind} cannot be executed; proofs know {', '.join(sorted(PROVERS))}")
    return PROVERS[kind]


MOST_MODULES = 2
"""Of multi-token prediction."""


def small_plan(strategy: Strategy, job: Job, topology: Topology, layout: Any, microbatches: int) -> Plan:
    """A plan of the small model with the same number of micro-batches, for two steps."""
    of_kind = prover(topology.system.kind)
    model = job.model
    layout = of_kind.small_layout(layout)
    group = layout.shard_group if isinstance(layout, ParallelLayout) else None
    if model.experts is not None and group is not None:
        # Sums over groups are told from sums of experts by their ranks.
        raise InputError(f"experts are not executed with shard_group {group}", "prove it without")
    parts = of_kind.parts(layout)
    without = of_kind.without_modules(layout)
    modules = 0 if without else min(MOST_MODULES, model.mtp_num_layers)
    small = parts.model(model, of_kind.small_layers(layout, modules), modules)
    length = parts.sequence
    # Its recipe has a short sequence, half of which reaches the LM head if not all of it did.
    update = {
        "seq_length": length,
        "lm_head_positions": length // 2 if job.recipe.lm_head_positions else None,
        "recompute": "auto",
        "routing": "balanced",
    }
    attention = "flash" if parts.fused else job.runtime.attention
    recipe = job.recipe.model_copy(update=update).ran_with(dispatcher="all_to_all", attention=attention)
    batch = layout.data * layout.micro_batch_size * microbatches
    plan: Plan = strategy.plan(Job(small, recipe, batch), topology, layout, check_memory=False)
    optimizer = job.recipe.optimizer
    # What of the job it does not execute.
    notes = {
        f"optimizer {optimizer}, in whose place is adam": not OPTIMIZERS[optimizer].executed,
        "norms of queries and keys beside latents": model.qk_layernorm and model.latent_attention is not None,
        f"multi-token prediction {without}": model.mtp_num_layers > 0 and bool(without),
    }
    return replace(plan, least_steps=STEPS, notes=tuple(note for note, holds in notes.items() if holds))


def training_of(plan: Plan[Any, Any], seed: int) -> SmallTraining:
    """The small training of a plan."""
    job = plan.job
    return SmallTraining(
        job.model,
        job.seq_length,
        job.recipe.lm_head_positions or job.seq_length,
        job.global_batch_size,
        seed,
        prover(plan.system.kind).max_norm(plan),
        job.recipe.expert_capacity,
    )
