"""The share of one layer that one rank computes under a layout."""

from __future__ import annotations

from perfsim.costs.memory import main_grad_bytes
from perfsim.strategies.three_d.zero import SHARDED
from perfsim.transformer import LayerSlice
from perfsim.workload import ContextExchange, Job, ParallelLayout, layer_kinds


def layer_slice(
    job: Job,
    tensor: int,
    micro_batch_size: int,
    *,
    sequence_parallel: bool,
    zero_stage: int = 0,
    context: int = 1,
    exchange: ContextExchange = "ring",
) -> LayerSlice:
    """One rank's share of a layer for one micro-batch."""
    recipe = job.recipe
    return LayerSlice(
        model=job.model,
        seq_length=recipe.seq_length,
        micro_batch_size=micro_batch_size,
        tensor=tensor,
        sequence_parallel=sequence_parallel,
        attention=recipe.attention,
        attention_length=recipe.attention_length,
        main_grad_bytes=main_grad_bytes(recipe),
        element_bytes=recipe.element_bytes,
        dropout=recipe.dropout,
        fused_cross_entropy=recipe.fused_cross_entropy,
        fused=() if recipe.framework is None else recipe.framework.fused,
        precisions=recipe.narrow_kernels,
        recompute_stops_early=zero_stage == SHARDED,
        context=context,
        context_exchange=exchange,
        kind=layer_kinds(job.model)[0],
    )


def slice_of(job: Job, layout: ParallelLayout) -> LayerSlice:
    """One rank's share of a layer under a layout."""
    return layer_slice(
        job,
        layout.tensor,
        layout.micro_batch_size,
        sequence_parallel=layout.sequence_parallel,
        zero_stage=layout.zero_stage,
        context=layout.context,
        exchange=layout.context_exchange,
    )


def head_positions(job: Job, context: int) -> int:
    """Positions of each sequence that reach the LM head on one of its context ranks."""
    return (job.recipe.lm_head_positions or job.recipe.seq_length) // context
