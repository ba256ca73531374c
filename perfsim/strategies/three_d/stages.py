"""Maps a job to the ranks of a layout: virtual stages, replicas, and the memory of each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perfsim.costs.memory import (
    MemoryUse,
    main_grad_bytes,
    sharded_state_bytes,
    stage_activation_bytes,
    stage_parameters,
    stage_weight_input_bytes,
    stage_working_bytes,
    state_bytes,
)
from perfsim.graph import RankGroup
from perfsim.hardware import GpuClusterSpec
from perfsim.strategies.plan import Plan
from perfsim.strategies.schedules import Placement, in_flight, placement, schedule_called
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, Replicas
from perfsim.strategies.three_d.tensor import TensorGroup
from perfsim.strategies.three_d.virtual_stage import VirtualStage
from perfsim.strategies.three_d.zero import IN_FLIGHT, SHARDED, Shards
from perfsim.topology import FatTree
from perfsim.transformer import LayerSlice
from perfsim.workload import Job, ParallelLayout

ThreeDPlan = Plan[ParallelLayout, FatTree]
"""A plan of a strategy of this package."""


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
        element_bytes=recipe.element_bytes,
        dropout=recipe.dropout,
        recompute_stops_early=layout.zero_stage == SHARDED,
    )


def layers_of_virtual_stages(job: Job, layout: ParallelLayout) -> tuple[int, ...]:
    """Number of layers of each virtual stage, in the order of the forward pass."""
    if layout.layers_per_stage is not None:
        return layout.layers_per_stage
    return (job.model.num_layers // layout.num_stages,) * layout.num_stages


def placement_of(layout: ParallelLayout) -> Placement:
    """The placement of a layout's virtual stages on ranks."""
    return placement(layout.schedule, layout.pipeline, layout.virtual_pipeline)


@dataclass(frozen=True)
class Stages:
    """The virtual stages of a plan and the replicas of each pipeline rank."""

    virtual: tuple[VirtualStage, ...]
    replicas: tuple[Replicas, ...]

    def of_rank(self, rank: int) -> list[VirtualStage]:
        """The chunks of one pipeline rank."""
        return [stage for stage in self.virtual if stage.rank == rank]


def stages_of(job: Job, layout: ParallelLayout) -> Stages:
    """Map a job's layers to the ranks of a layout."""
    part, places = layer_slice(job, layout), placement_of(layout)
    layers = layers_of_virtual_stages(job, layout)
    width = layout.tensor * layout.data
    positions = job.recipe.lm_head_positions or job.recipe.seq_length
    replicas = tuple(
        _replicas(job, layout, rank, share.parameters(part))
        for rank, share in enumerate(_shares(job, layout))
    )

    def group(rank: int) -> TensorGroup:
        return TensorGroup(part, RankGroup(rank * width, 1, layout.tensor), f"gpu{rank * width}")

    def ranks_to(number: int, next_number: int) -> RankGroup | None:
        if not 0 <= next_number < len(layers) or places.rank(number) == places.rank(next_number):
            return None
        rank, neighbour = places.rank(number), places.rank(next_number)
        return RankGroup(rank * width, (neighbour - rank) * width, 2)

    virtual = tuple(
        VirtualStage(
            number=number,
            num_stages=len(layers),
            rank=places.rank(number),
            num_layers=count,
            first_layer=sum(layers[:number]),
            group=group(places.rank(number)),
            next_ranks=ranks_to(number, number + 1),
            previous_ranks=ranks_to(number, number - 1),
            recompute=layout.recompute,
            head_positions=positions,
            shards=_shards(part, replicas[0], sum(layers)) if layout.zero_stage == SHARDED else None,
        )
        for number, count in enumerate(layers)
    )
    return Stages(virtual, replicas)


def _replicas(job: Job, layout: ParallelLayout, rank: int, num_parameters: float) -> Replicas:
    width = layout.tensor * layout.data
    return Replicas(
        recipe=job.recipe,
        ranks=RankGroup(rank * width, layout.tensor, layout.data),
        device=f"gpu{rank * width}",
        num_parameters=num_parameters,
        zero_stage=layout.zero_stage,
    )


class _Share(NamedTuple):
    """The share of the model on one rank."""

    layers: int
    first: bool
    last: bool

    def parameters(self, part: LayerSlice) -> float:
        return stage_parameters(part, self.layers, self.first, self.last)


def _shares(job: Job, layout: ParallelLayout) -> list[_Share]:
    """The share of the model on each pipeline rank."""
    places, layers = placement_of(layout), layers_of_virtual_stages(job, layout)
    last = places.last_rank
    return [
        _Share(sum(layers[number] for number in places.of_rank(rank)), first=rank == 0, last=rank == last)
        for rank in range(layout.pipeline)
    ]


def _shards(part: LayerSlice, replicas: Replicas, num_layers: int) -> Shards:
    """The shards of the single stage under ZeRO 3."""
    body = stage_parameters(part, num_layers, first=False, last=False)
    return Shards(replicas, body / num_layers, replicas.num_parameters - body)


def stage_memory(job: Job, layout: ParallelLayout, system: GpuClusterSpec) -> tuple[MemoryUse, ...]:
    """Peak memory of one rank of each pipeline stage."""
    part, memory = layer_slice(job, layout), system.device.memory
    uses = []
    for rank, share in enumerate(_shares(job, layout)):
        parts = _rank_bytes(job, layout, part, rank, share) | {"reserved": memory.reserved}
        uses.append(MemoryUse(f"stage {rank}", parts, memory.capacity))
    return tuple(uses)


def _rank_bytes(
    job: Job, layout: ParallelLayout, part: LayerSlice, rank: int, share: _Share
) -> dict[str, float]:
    """Peak memory of one rank, by part."""
    states = state_bytes(job.recipe)
    positions = job.recipe.lm_head_positions or job.recipe.seq_length
    num_parameters = share.parameters(part)
    parts = sharded_state_bytes(num_parameters, states, layout.zero_stage, layout.data)
    parts |= _held_bytes(job, layout, part, rank, share)
    parts["working set"] = stage_working_bytes(part, layout, positions, share.last)
    layer = stage_parameters(part, 1, first=False, last=False)
    whole = IN_FLIGHT * layer + num_parameters - share.layers * layer
    if layout.zero_stage == SHARDED:
        parts["gathered parameters"] = whole * states.parameters
    if layout.zero_stage >= GRADIENTS_SHARDED and layout.data > 1:
        parts["gradient buckets"] = whole * states.gradients
    return parts


def _held_bytes(
    job: Job, layout: ParallelLayout, part: LayerSlice, rank: int, share: _Share
) -> dict[str, float]:
    """Peak memory of the micro-batches in flight on a rank."""
    microbatches = job.global_batch_size // (layout.data * layout.micro_batch_size)
    moments = in_flight(layout.schedule, rank, layout.pipeline, layout.virtual_pipeline, microbatches)
    activations = stage_activation_bytes(part, layout, share.layers)
    if not schedule_called(layout.schedule).splits_backward:
        return {"activations": max(moment.activations for moment in moments) * activations}
    positions = job.recipe.lm_head_positions or job.recipe.seq_length
    inputs = stage_weight_input_bytes(part, share.layers, positions, share.first, share.last)
    held = max(moments, key=lambda moment: moment.activations * activations + moment.weight_inputs * inputs)
    return {
        "activations": held.activations * activations,
        "weight gradient inputs": held.weight_inputs * inputs,
    }
