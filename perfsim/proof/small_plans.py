"""Small plans: the stages, ranks and micro-batches of a plan, on a model small enough to execute."""

from __future__ import annotations

from dataclasses import replace

from perfsim.errors import InputError, Problem
from perfsim.proof.execution.serial import STEPS, SmallTraining
from perfsim.proof.provers import Parts, prover
from perfsim.strategies import Plan, Strategy
from perfsim.topology import Topology
from perfsim.workload import Experts, Job, LatentAttention, Layout, TrainingRecipe, TransformerConfig

HEAD_SIZE = 4
LEAST_SEQUENCE, VOCABULARY = 4, 13
EXPERTS_OF_RANK = 2
MOST_MODULES = 2
"""Of multi-token prediction."""
WINDOW = 3
"""Positions of a window: fewer than a sequence has."""


def small_model(
    model: TransformerConfig, parts: Parts, num_layers: int, modules: int = 0
) -> TransformerConfig:
    """A model with the same features and few layers, heads and words, divisible into the parts.

    It has so many `modules` of multi-token prediction, and nothing of `not_executed`.
    """
    shared = min(2, model.num_attention_heads // model.query_groups)
    groups = parts.heads if shared > 1 else max(parts.heads, 2)
    hidden = groups * shared * HEAD_SIZE
    experts = None if model.experts is None else small_experts(model.experts, parts)
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
            "latent_attention": small_latents(model.latent_attention),
            "sliding_window": WINDOW if model.sliding_window else None,
            "sliding_window_pattern": 2 if model.sliding_window_pattern else None,
            "qk_layernorm": model.qk_layernorm and model.latent_attention is None,
            "mtp_num_layers": modules,
            "max_position_embeddings": small_sequence(parts),
        }
    )


def not_executed(model: TransformerConfig, without_modules: str) -> tuple[str, ...]:
    """Parts of a model that its small one does not have, in words."""
    both = model.qk_layernorm and model.latent_attention is not None
    norms = ("norms of queries and keys beside latents",) if both else ()
    modules = (
        (f"multi-token prediction {without_modules}",) if model.mtp_num_layers and without_modules else ()
    )
    return (*norms, *modules)


def small_latents(latent: LatentAttention | None) -> LatentAttention | None:
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


def small_experts(experts: Experts, parts: Parts) -> Experts:
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


def small_recipe(recipe: TrainingRecipe, parts: Parts) -> TrainingRecipe:
    """The recipe with a short sequence; half of it reaches the LM head if not all of it did."""
    length = small_sequence(parts)
    positions = length // 2 if recipe.lm_head_positions else None
    update = {"seq_length": length, "lm_head_positions": positions, "recompute": "auto"}
    update |= {"routing": "balanced", "dispatcher": "all_to_all"}
    return recipe.model_copy(update={**update, **({"attention": "flash"} if parts.fused else {})})


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
    small_job = Job(model, small_recipe(job.recipe, parts), batch)
    plan: Plan = strategy.plan(small_job, topology, layout, check_memory=False)
    return replace(plan, least_steps=STEPS, notes=not_executed(job.model, without))


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
