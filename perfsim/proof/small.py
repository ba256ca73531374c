"""The same layout on a small model: as many stages, ranks and micro-batches, few of everything else."""

from __future__ import annotations

from dataclasses import replace

from perfsim.proof.execution.serial import Lesson
from perfsim.proof.provers import prover
from perfsim.strategies import Plan, Strategy
from perfsim.topology import Topology
from perfsim.workload import Job, Layout, TrainingRecipe, TransformerConfig

HEAD_SIZE = 4
LEAST_SEQUENCE, VOCABULARY = 4, 13
STEPS = 2
"""The second one begins with what the first one updated."""


def small_model(model: TransformerConfig, tensor: int, num_layers: int) -> TransformerConfig:
    """A model of the same make that so many tensor peers can cut, with few layers, heads and words."""
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
    """A few tokens, as many for each tensor peer."""
    return -(-LEAST_SEQUENCE // tensor) * tensor


def small_recipe(recipe: TrainingRecipe, tensor: int) -> TrainingRecipe:
    """The recipe with a short sequence, of which half reaches the head where not all of it did."""
    length = small_sequence(tensor)
    positions = length // 2 if recipe.lm_head_positions else None
    return recipe.model_copy(
        update={"seq_length": length, "lm_head_positions": positions, "recompute": "auto"}
    )


def small_plan(strategy: Strategy, job: Job, topology: Topology, layout: Layout, microbatches: int) -> Plan:
    """A plan of the small model with as many micro-batches, to be written for two steps."""
    own = prover(topology.system.kind)
    small = own.small_layout(layout)
    batch = small.data * small.micro_batch_size * microbatches
    model = small_model(job.model, small.tensor, own.small_layers(small))
    small_job = Job(model, small_recipe(job.recipe, small.tensor), batch)
    plan: Plan = strategy.plan(small_job, topology, small, check_memory=False)
    return replace(plan, least_steps=STEPS)


def lesson_of(plan: Plan, seed: int) -> Lesson:
    """What a small plan's model is taught."""
    job = plan.job
    positions = job.recipe.lm_head_positions or job.seq_length
    return Lesson(job.model, job.seq_length, positions, job.global_batch_size, seed, STEPS)
