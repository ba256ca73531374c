"""Small plans: the stages, ranks and micro-batches of a plan, on a model small enough to execute."""

from __future__ import annotations

from dataclasses import replace

from perfsim.proof.execution.serial import STEPS, SmallTraining
from perfsim.proof.provers import prover
from perfsim.strategies import Plan, Strategy
from perfsim.topology import Topology
from perfsim.workload import Job, Layout, TrainingRecipe, TransformerConfig

HEAD_SIZE = 4
LEAST_SEQUENCE, VOCABULARY = 4, 13


def small_model(model: TransformerConfig, tensor: int, num_layers: int) -> TransformerConfig:
    """A model with the same features and few layers, heads and words, divisible by the tensor degree."""
    shared = min(2, model.num_attention_heads // model.query_groups)
    groups = tensor if shared > 1 else max(tensor, 2)
    hidden = groups * shared * HEAD_SIZE
    return model.model_copy(
        update={
            "name": f"{model.name} made small",
            "num_layers": num_layers,
            "num_attention_heads": groups * shared,
            "num_query_groups": groups if shared > 1 else None,
            "hidden_size": hidden,
            "ffn_hidden_size": 2 * hidden,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": small_sequence(tensor),
        }
    )


def small_sequence(tensor: int) -> int:
    """A few tokens, equally many for each tensor peer."""
    return -(-LEAST_SEQUENCE // tensor) * tensor


def small_recipe(recipe: TrainingRecipe, tensor: int) -> TrainingRecipe:
    """The recipe with a short sequence; half of it reaches the LM head if not all of it did."""
    length = small_sequence(tensor)
    positions = length // 2 if recipe.lm_head_positions else None
    return recipe.model_copy(
        update={"seq_length": length, "lm_head_positions": positions, "recompute": "auto"}
    )


def small_plan(strategy: Strategy, job: Job, topology: Topology, layout: Layout, microbatches: int) -> Plan:
    """A plan of the small model with the same number of micro-batches, for two steps."""
    of_kind = prover(topology.system.kind)
    layout = of_kind.small_layout(layout)
    batch = layout.data * layout.micro_batch_size * microbatches
    model = small_model(job.model, layout.tensor, of_kind.small_layers(layout))
    small_job = Job(model, small_recipe(job.recipe, layout.tensor), batch)
    plan: Plan = strategy.plan(small_job, topology, layout, check_memory=False)
    return replace(plan, least_steps=STEPS)


def training_of(plan: Plan, seed: int) -> SmallTraining:
    """The small training of a plan."""
    job = plan.job
    positions = job.recipe.lm_head_positions or job.seq_length
    max_norm = prover(plan.system.kind).max_norm(plan)
    return SmallTraining(job.model, job.seq_length, positions, job.global_batch_size, seed, max_norm)
