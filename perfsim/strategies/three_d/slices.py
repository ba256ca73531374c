"""The share of one layer that one rank computes under a layout."""

from __future__ import annotations

from typing import NamedTuple, get_args

from perfsim.costs.memory import main_grad_bytes
from perfsim.strategies.three_d.routing import expert_load
from perfsim.strategies.three_d.zero import SHARDED
from perfsim.transformer import LayerSlice
from perfsim.workload import PLAIN, ContextExchange, Job, LayerKind, ParallelLayout

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
        """A layout with these degrees."""
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
    recipe, experts = job.recipe, kind.experts
    return LayerSlice(
        model=job.model,
        seq_length=recipe.seq_length,
        micro_batch_size=layout.micro_batch_size,
        tensor=layout.tensor,
        sequence_parallel=layout.sequence_parallel,
        attention=recipe.attention,
        attention_length=recipe.attention_length,
        main_grad_bytes=main_grad_bytes(recipe),
        element_bytes=recipe.element_bytes,
        dropout=recipe.dropout,
        fused_cross_entropy=recipe.fused_cross_entropy,
        fused=() if recipe.framework is None else recipe.framework.fused,
        precisions=recipe.narrow_kernels,
        keeps=recipe.recompute_keeps,
        selective="core" if recipe.framework is None else recipe.framework.selective,
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
