"""Maps a job to the ranks of a layout: virtual stages and replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from perfsim.costs.memory import stage_parameters
from perfsim.network import FatTree
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import PLAIN, LayerKind, layer_kinds
from perfsim.specs.recipe import Job
from perfsim.strategies.plan import Plan
from perfsim.strategies.schedules import Placement, schedule_called
from perfsim.strategies.three_d.context import ContextGroup
from perfsim.strategies.three_d.data import SHARDED, Held, Replicas, Shards
from perfsim.strategies.three_d.expert import ExpertGroup
from perfsim.strategies.three_d.halves import Attention, Mlp, head_positions, slice_of, waits_for_rows
from perfsim.strategies.three_d.pipeline import VirtualStage
from perfsim.strategies.three_d.space import division_of
from perfsim.strategies.three_d.tensor import Layer, TensorGroup
from perfsim.work import RankGroup

ThreeDPlan = Plan[ParallelLayout, FatTree]
"""A plan of a strategy of this package."""


def placement_of(layout: ParallelLayout) -> Placement:
    """The placement of a layout's virtual stages on ranks."""
    return schedule_called(layout.schedule).placement(layout.pipeline, layout.virtual_pipeline)


@dataclass(frozen=True)
class _Stages:
    """The virtual stages of a plan and the replicas of each pipeline rank."""

    virtual: tuple[VirtualStage, ...]
    replicas: tuple[Replicas, ...]

    def of_rank(self, rank: int) -> list[VirtualStage]:
        return [stage for stage in self.virtual if stage.rank == rank]


def stages_of(job: Job, layout: ParallelLayout) -> _Stages:
    """Map a job's layers to the ranks of a layout."""
    places = placement_of(layout)
    kinds = layer_kinds(job.model)
    layers = division_of(job, layout).layers
    framework = job.runtime.stack
    waits = framework is not None and framework.pass_s > 0
    spans = [(sum(layers[:number]), count) for number, count in enumerate(layers)]
    # Layers of multi-token prediction are with the LM head.
    spans[-1] = spans[-1][0], len(kinds) - spans[-1][0]

    def layers_of(number: int) -> Iterator[Layer]:
        (first, count), rank = spans[number], places.rank(number)
        earlier = sum(layers[chunk] for chunk in places.of_rank(rank) if chunk < number)
        for layer in range(count):
            kind = kinds[first + layer]
            below = kinds[first + layer - 1] if first + layer else PLAIN
            redone = (earlier + layer) % layout.recompute_every == 0
            mode = layout.recompute if redone else "none"
            yield layer_of(job, layout, rank, kind, mode, divided_below=kind.experts and below.experts)

    def ranks_to(number: int, next_number: int) -> RankGroup | None:
        if not 0 <= next_number < len(layers) or places.rank(number) == places.rank(next_number):
            return None
        rank = places.rank(number)
        neighbour = places.rank(next_number)
        return RankGroup(rank * layout.width, (neighbour - rank) * layout.width, 2)

    virtual = [
        VirtualStage(
            number=number,
            num_stages=len(layers),
            rank=places.rank(number),
            first_layer=first,
            group=group_of(job, layout, places.rank(number)),
            layers=tuple(layers_of(number)),
            next_ranks=ranks_to(number, number + 1),
            previous_ranks=ranks_to(number, number - 1),
            head_positions=head_positions(job, layout.context),
            waits=layout.virtual_pipeline > 1 and waits,
        )
        for number, (first, _) in enumerate(spans)
    ]
    replicas = [_replicas(job, layout, virtual, rank, places.last_rank) for rank in range(layout.pipeline)]
    if layout.zero_stage == SHARDED:
        for number, stage in enumerate(virtual):
            of_layers = tuple(stage.held_by(range(index, index + 1)) for index in range(stage.num_layers))
            shards = Shards(replicas[0], of_layers, stage.embedding_and_head)
            virtual[number] = replace(stage, shards=shards)
    return _Stages(tuple(virtual), tuple(replicas))


def group_of(job: Job, layout: ParallelLayout, rank: int, kind: LayerKind = PLAIN) -> TensorGroup:
    """The tensor group of the first rank of a stage."""
    first = rank * layout.width
    overlaps = job.runtime.overlap_tensor and layout.sequence_parallel
    part = slice_of(job, layout, kind)
    ranks = RankGroup(first, 1, layout.tensor)
    return TensorGroup(part, ranks, f"gpu{first}", overlaps)


def layer_of(
    job: Job,
    layout: ParallelLayout,
    rank: int,
    kind: LayerKind,
    mode: str = "none",
    *,
    divided_below: bool = False,
) -> Layer:
    """A layer of one kind under a recompute mode on the first rank of a stage."""
    group = group_of(job, layout, rank, kind)
    of_rank = group.part, group.device, mode
    attention: Attention = Attention(*of_rank)
    if layout.context > 1:
        attention = ContextGroup(*of_rank, RankGroup(group.ranks.start, layout.tensor, layout.context))
    mlp = experts_of(job, layout, group, mode) if kind.experts else Mlp(*of_rank)
    return Layer(group, attention, mlp, divided_below)


def experts_of(job: Job, layout: ParallelLayout, group: TensorGroup, mode: str = "none") -> ExpertGroup:
    """The experts of a layer on the first rank of a stage."""
    first = group.ranks.start
    recipe = job.recipe
    ranks = RankGroup(first, layout.expert_tensor, layout.expert)
    shares = RankGroup(first, 1, layout.expert_tensor)
    waits = waits_for_rows(recipe)
    return ExpertGroup(group.part, group.device, mode, ranks, shares, recipe.expert_dispatcher, waits)


def _replicas(job: Job, layout: ParallelLayout, stages: list[VirtualStage], rank: int, last: int) -> Replicas:
    """The replicas of a pipeline rank, and those of its experts; rank `last` has the LM head."""
    # On a rank with both, embedding and LM head may be one tensor.
    held = Held(stage_parameters(slice_of(job, layout), 0, first=rank == 0, last=rank == last))
    held = sum((stage.held_by(range(stage.num_layers)) for stage in stages if stage.rank == rank), held)
    first = rank * layout.width
    holds = layout.expert * layout.expert_tensor
    replicas = Replicas(
        recipe=job.recipe,
        ranks=RankGroup(first, layout.tensor, layout.replicas),
        device=f"gpu{first}",
        num_parameters=held.rest,
        zero_stage=layout.zero_stage,
        shard_group=layout.shard_group,
        model=job.model,
    )
    if not held.apart:
        return replicas
    ranks = RankGroup(first, holds, layout.expert_replicas)
    apart = replace(replicas, ranks=ranks, num_parameters=held.apart, shard_group=None)
    return replace(replicas, apart=apart)
