"""Maps a job to the ranks of a layout: virtual stages and replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perfsim.costs.memory import stage_parameters
from perfsim.graph import RankGroup
from perfsim.strategies.plan import Plan
from perfsim.strategies.schedules import Placement, placement
from perfsim.strategies.three_d.columns import division_of
from perfsim.strategies.three_d.context import ContextGroup
from perfsim.strategies.three_d.data import Replicas
from perfsim.strategies.three_d.slices import head_positions, slice_of
from perfsim.strategies.three_d.tensor import TensorGroup
from perfsim.strategies.three_d.virtual_stage import VirtualStage
from perfsim.strategies.three_d.zero import SHARDED, Shards
from perfsim.topology import FatTree
from perfsim.transformer import LayerSlice
from perfsim.workload import Job, ParallelLayout

ThreeDPlan = Plan[ParallelLayout, FatTree]
"""A plan of a strategy of this package."""


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
    part, places = slice_of(job, layout), placement_of(layout)
    layers = division_of(job, layout).layers
    framework = job.recipe.framework
    waits = framework is not None and framework.pass_s > 0
    width, positions = layout.width, head_positions(job, layout.context)
    replicas = tuple(
        _replicas(job, layout, rank, share.parameters(part))
        for rank, share in enumerate(_shares(job, layout))
    )

    def group(rank: int) -> TensorGroup:
        first, device = rank * width, f"gpu{rank * width}"
        shares = RankGroup(first, layout.tensor, layout.context)
        context = ContextGroup(part, shares, device) if layout.context > 1 else None
        return TensorGroup(part, RankGroup(first, 1, layout.tensor), device, context)

    def ranks_to(number: int, next_number: int) -> RankGroup | None:
        if not 0 <= next_number < len(layers) or places.rank(number) == places.rank(next_number):
            return None
        rank, neighbour = places.rank(number), places.rank(next_number)
        return RankGroup(rank * width, (neighbour - rank) * width, 2)

    def earlier_on_rank(number: int) -> int:
        own = places.of_rank(places.rank(number))
        return sum(layers[chunk] for chunk in own if chunk < number)

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
            recompute_every=layout.recompute_every,
            earlier_on_rank=sum(layers[number - layout.pipeline :: -layout.pipeline])
            if number >= layout.pipeline
            else 0,
            head_positions=positions,
            waits=layout.virtual_pipeline > 1 and waits,
            shards=_shards(part, replicas[0], sum(layers)) if layout.zero_stage == SHARDED else None,
        )
        for number, count in enumerate(layers)
    )
    return Stages(virtual, replicas)


def _replicas(job: Job, layout: ParallelLayout, rank: int, num_parameters: float) -> Replicas:
    first = rank * layout.width
    return Replicas(
        recipe=job.recipe,
        ranks=RankGroup(first, layout.tensor, layout.replicas),
        device=f"gpu{first}",
        num_parameters=num_parameters,
        zero_stage=layout.zero_stage,
        shard_group=layout.shard_group,
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
    places, layers = placement_of(layout), division_of(job, layout).layers
    last = places.last_rank
    return [
        _Share(sum(layers[number] for number in places.of_rank(rank)), first=rank == 0, last=rank == last)
        for rank in range(layout.pipeline)
    ]


def _shards(part: LayerSlice, replicas: Replicas, num_layers: int) -> Shards:
    """The shards of the single stage under ZeRO 3."""
    body = stage_parameters(part, num_layers, first=False, last=False)
    return Shards(replicas, body / num_layers, replicas.num_parameters - body)
