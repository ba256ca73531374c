"""The same layout on a small model: as many stages, ranks and micro-batches, few of everything else."""

from __future__ import annotations

from dataclasses import replace

from perfsim.proof.execution.serial import Lesson
from perfsim.strategies import Plan, Strategy
from perfsim.topology import Topology
from perfsim.workload import Job, ParallelLayout, TrainingRecipe, TransformerConfig

HEAD_SIZE = 4
LEAST_SEQUENCE, VOCABULARY = 4, 13
MOST_SEQUENCES = 2
"""Of a micro-batch."""
FEW_LAYERS = 3
"""Of a model without pipeline: more than the buffers that come round."""
STEPS = 2
"""The second one begins with what the first one updated."""


def small_model(model: TransformerConfig, layout: ParallelLayout) -> TransformerConfig:
    """A model of the same make that a layout can cut, with few layers, heads and words."""
    tensor = layout.tensor
    shared = min(2, model.num_attention_heads // model.query_groups)
    groups = tensor if shared > 1 else max(tensor, 2)
    hidden = groups * shared * HEAD_SIZE
    layers = small_layers(layout)
    return model.model_copy(
        update={
            "name": f"{model.name} made small",
            "num_layers": sum(layers) if layers else _count(layout),
            "num_attention_heads": groups * shared,
            "num_query_groups": groups if shared > 1 else None,
            "hidden_size": hidden,
            "ffn_hidden_size": 2 * hidden,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": small_sequence(layout),
        }
    )


def _count(layout: ParallelLayout) -> int:
    if layout.pipeline == 1 and layout.virtual_pipeline == 1:
        return max(FEW_LAYERS, layout.recompute_layers + 1)
    each = 2 if layout.num_stages <= LEAST_SEQUENCE else 1
    return each * layout.num_stages


def small_layers(layout: ParallelLayout) -> tuple[int, ...] | None:
    """Uneven stages stay uneven: none, one or two layers where there were none, one or more."""
    given = layout.layers_per_stage
    return None if given is None else tuple(min(2, count) for count in given)


def small_sequence(layout: ParallelLayout) -> int:
    """A few tokens, as many for each tensor peer."""
    return -(-LEAST_SEQUENCE // layout.tensor) * layout.tensor


def small_layout(layout: ParallelLayout) -> ParallelLayout:
    """The layout with small micro-batches; weights in one piece, which a wafer here needs whole."""
    size = min(MOST_SEQUENCES, layout.micro_batch_size)
    return replace(layout, micro_batch_size=size, layers_per_stage=small_layers(layout), stream_chunks=1)


def small_recipe(recipe: TrainingRecipe, layout: ParallelLayout) -> TrainingRecipe:
    """The recipe with a short sequence, of which half reaches the head where not all of it did."""
    length = small_sequence(layout)
    positions = length // 2 if recipe.lm_head_positions else None
    return recipe.model_copy(
        update={"seq_length": length, "lm_head_positions": positions, "recompute": "auto"}
    )


def small_plan(
    strategy: Strategy, job: Job, topology: Topology, layout: ParallelLayout, microbatches: int
) -> Plan:
    """A plan of the small model with as many micro-batches, to be written for two steps."""
    small = small_layout(layout)
    batch = small.data * small.micro_batch_size * microbatches
    model, recipe = small_model(job.model, layout), small_recipe(job.recipe, layout)
    plan = strategy.plan(Job(model, recipe, batch), topology, small, check_memory=False)
    return replace(plan, least_steps=STEPS)


def lesson_of(plan: Plan, seed: int) -> Lesson:
    """What a small plan's model is taught."""
    job = plan.job
    positions = job.recipe.lm_head_positions or job.seq_length
    return Lesson(job.model, job.seq_length, positions, job.global_batch_size, seed, STEPS)
