"""Laying a job over the ranks of a layout: virtual stages, replicas, and what each rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from perfsim.costs.memory import (
    MemoryUse,
    main_grad_bytes,
    sharded_state_bytes,
    stage_activation_bytes,
    stage_parameters,
    stage_working_bytes,
    state_bytes,
)
from perfsim.graph import RankGroup
from perfsim.hardware import GpuClusterSpec
from perfsim.strategies.data import Replicas
from perfsim.strategies.pipeline import VirtualStage
from perfsim.strategies.schedules import in_flight
from perfsim.strategies.tensor import TensorGroup
from perfsim.strategies.zero import IN_FLIGHT, SHARDED, Shards
from perfsim.transformer import LayerSlice
from perfsim.workload import Job, ParallelLayout


def layer_slice(job: Job, layout: ParallelLayout) -> LayerSlice:
    """One rank's share of a layer under a layout."""
    recipe = job.recipe
    return LayerSlice(
        model=job.model,
        seq_length=recipe.seq_length,
        micro_batch_size=layout.micro_batch_size,
        tensor=layout.tensor,
        sequence_parallel=layout.sequence_parallel,
        attention=recipe.attention,
        main_grad_bytes=main_grad_bytes(recipe),
        dropout=recipe.dropout,
    )


def layers_of_virtual_stages(job: Job, layout: ParallelLayout) -> tuple[int, ...]:
    """Layers of each virtual stage in the order of the data."""
    if layout.layers_per_stage is not None:
        return layout.layers_per_stage
    return (job.model.num_layers // layout.num_stages,) * layout.num_stages


@dataclass(frozen=True)
class Stages:
    """Who computes what: the virtual stages of a plan and the replicas of each pipeline rank."""

    virtual: tuple[VirtualStage, ...]
    replicas: tuple[Replicas, ...]

    def of_rank(self, rank: int) -> list[VirtualStage]:
        """The chunks of one pipeline rank."""
        return [stage for stage in self.virtual if stage.number % len(self.replicas) == rank]


def stages_of(job: Job, layout: ParallelLayout) -> Stages:
    """Lay a job's layers over the ranks of a layout."""
    part = layer_slice(job, layout)
    layers = layers_of_virtual_stages(job, layout)
    width = layout.tensor * layout.data
    positions = job.recipe.lm_head_positions or job.recipe.seq_length
    replicas = tuple(_replicas(job, layout, part, rank) for rank in range(layout.pipeline))

    def group(rank: int) -> TensorGroup:
        return TensorGroup(part, RankGroup(rank * width, 1, layout.tensor), f"gpu{rank * width}")

    def towards(number: int, other: int) -> RankGroup | None:
        rank, neighbour = number % layout.pipeline, other % layout.pipeline
        if not 0 <= other < len(layers) or rank == neighbour:
            return None
        return RankGroup(rank * width, (neighbour - rank) * width, 2)

    virtual = tuple(
        VirtualStage(
            number=number,
            num_stages=len(layers),
            num_layers=count,
            group=group(number % layout.pipeline),
            next_ranks=towards(number, number + 1),
            previous_ranks=towards(number, number - 1),
            recompute=layout.recompute,
            head_positions=positions,
            shards=_shards(part, replicas[0], sum(layers)) if layout.zero_stage == SHARDED else None,
        )
        for number, count in enumerate(layers)
    )
    return Stages(virtual, replicas)


def _replicas(job: Job, layout: ParallelLayout, part: LayerSlice, rank: int) -> Replicas:
    width = layout.tensor * layout.data
    layers = layers_of_virtual_stages(job, layout)
    return Replicas(
        recipe=job.recipe,
        ranks=RankGroup(rank * width, layout.tensor, layout.data),
        device=f"gpu{rank * width}",
        num_parameters=_rank_parameters(part, layers, rank, layout.pipeline),
        zero_stage=layout.zero_stage,
    )


def _shards(part: LayerSlice, replicas: Replicas, num_layers: int) -> Shards:
    """ZeRO 3 has one stage, which holds everything."""
    body = stage_parameters(part, num_layers, first=False, last=False)
    return Shards(replicas, body / num_layers, replicas.num_parameters - body)


def _rank_parameters(part: LayerSlice, layers: tuple[int, ...], rank: int, pipeline: int) -> float:
    mine = range(rank, len(layers), pipeline)
    return stage_parameters(
        part, sum(layers[number] for number in mine), first=rank == 0, last=rank == pipeline - 1
    )


def stage_memory(job: Job, layout: ParallelLayout, system: GpuClusterSpec) -> tuple[MemoryUse, ...]:
    """Peak memory of one rank of each pipeline stage."""
    part = layer_slice(job, layout)
    layers = layers_of_virtual_stages(job, layout)
    microbatches = job.global_batch_size // (layout.data * layout.micro_batch_size)
    positions = job.recipe.lm_head_positions or job.recipe.seq_length
    uses = []
    for rank in range(layout.pipeline):
        count = sum(layers[rank :: layout.pipeline])
        parts = sharded_state_bytes(
            _rank_parameters(part, layers, rank, layout.pipeline),
            state_bytes(job.recipe),
            layout.zero_stage,
            layout.data,
        )
        held = in_flight(layout.schedule, rank, layout.pipeline, layout.virtual_pipeline, microbatches)
        parts["activations"] = held * stage_activation_bytes(part, layout, count)
        parts["working set"] = stage_working_bytes(part, layout, positions, rank == layout.pipeline - 1)
        if layout.zero_stage == SHARDED:
            whole = _shards(part, _replicas(job, layout, part, rank), count)
            gathered = IN_FLIGHT * whole.layer_parameters + whole.root_parameters
            parts["gathered parameters"] = gathered * state_bytes(job.recipe).parameters
        parts["reserved"] = system.device.memory.reserved
        uses.append(MemoryUse(f"stage {rank}", parts, system.device.memory.capacity))
    return tuple(uses)
