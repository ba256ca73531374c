"""Writes the optimizer steps of a 3D plan: all slots of the schedule, gradient reduction, update.

A job's layers are first mapped to the ranks of the layout, as virtual stages and replicas.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfsim.base.arrays import Bools, Ints
from perfsim.costs.memory import shares_words, stage_parameters
from perfsim.network import FatTree
from perfsim.specs.layout import ParallelLayout, Recompute
from perfsim.specs.model import PLAIN, LayerKind, layer_kinds
from perfsim.specs.recipe import Job
from perfsim.strategies.plan import Plan
from perfsim.strategies.schedules import PASSES, Pass, Placement, Slot, schedule_called
from perfsim.strategies.three_d.context import ContextGroup
from perfsim.strategies.three_d.data import SHARDED, WAIT, Held, Replicas, norm_works
from perfsim.strategies.three_d.division import Division
from perfsim.strategies.three_d.expert import ExpertGroup
from perfsim.strategies.three_d.layers import Attention, Layer, Mlp, TensorGroup, head_positions, slice_of
from perfsim.strategies.three_d.pipeline import StagePass, VirtualStage
from perfsim.work import EMBEDDING_AND_HEAD, WHOLE_DEVICE, GraphBuilder, RankGroup, Slots, Template, Work
from perfsim.work.builder import Stamped
from perfsim.work.graph import compute_stream

ThreeDPlan = Plan[ParallelLayout, FatTree]


def _stages_of(job: Job, layout: ParallelLayout, division: Division) -> tuple[list[VirtualStage], list[int]]:
    """A job's layers on the ranks of a layout, and the first virtual stage that each stage is like.

    Stages that are alike differ in their numbers and the numbers of their layers.
    """
    placement = division.placement
    kinds = layer_kinds(job.model)
    recomputed = division.recomputed(layout.recompute_every)
    stack = job.runtime.stack
    waits = stack is not None and stack.pass_s > 0

    def ranks_to(number: int, next_number: int) -> RankGroup | None:
        """The ends of a message between virtual stages; None within a rank and beyond the pipeline's ends."""
        rank = placement.rank(number)
        exists = 0 <= next_number < len(division.stages)
        hop = placement.rank(next_number) - rank if exists else 0
        return RankGroup(rank * layout.width, hop * layout.width, 2) if hop else None

    def traits(layer: int) -> tuple[LayerKind, Recompute, bool]:
        kind = kinds[layer]
        mode: Recompute = layout.recompute if recomputed[layer] else "none"
        return kind, mode, layer > 0 and kind.experts and kinds[layer - 1].experts

    first: dict[Hashable, VirtualStage] = {}
    virtual = []
    alike = []
    for number, stage in enumerate(division.stages):
        share = RankShare(job, layout, placement.rank(number))
        is_end = number in (0, len(division.stages) - 1)
        neighbours = ranks_to(number, number + 1), ranks_to(number, number - 1)
        layers = tuple(map(traits, stage))
        like = share.rank, number if is_end else None, neighbours, layers
        if like not in first:
            first[like] = VirtualStage(
                number=number,
                num_stages=len(division.stages),
                rank=share.rank,
                first_layer=stage.start,
                group=share.group(),
                layers=tuple(map({of: share.layer(*of) for of in set(layers)}.__getitem__, layers)),
                next_ranks=neighbours[0],
                previous_ranks=neighbours[1],
                head_positions=head_positions(job, layout.context),
                waits=layout.virtual_pipeline > 1 and waits,
            )
        virtual.append(replace(first[like], number=number, first_layer=stage.start))
        alike.append(first[like].number)
    return virtual, alike


@dataclass(frozen=True)
class RankShare:
    """What the first device of a pipeline rank has of a job."""

    job: Job
    layout: ParallelLayout
    rank: int = 0

    @property
    def first(self) -> int:
        return self.rank * self.layout.width

    def group(self, kind: LayerKind = PLAIN) -> TensorGroup:
        """Its tensor group, with a layer of one kind."""
        overlaps = self.job.recipe.overlaps_tensor and self.layout.sequence_parallel
        part = slice_of(self.job, self.layout, kind)
        return TensorGroup(part, RankGroup(self.first, 1, self.layout.tensor), f"gpu{self.first}", overlaps)

    def layer(self, kind: LayerKind, mode: Recompute = "none", divided_below: bool = False) -> Layer:
        """A layer of one kind under a recompute mode."""
        group = self.group(kind)
        of_rank = group.part, group.device, mode
        attention: Attention = Attention(*of_rank)
        if self.layout.context > 1:
            attention = ContextGroup(*of_rank, RankGroup(self.first, self.layout.tensor, self.layout.context))
        mlp = self.experts(kind, mode) if kind.experts else Mlp(*of_rank)
        return Layer(group, attention, mlp, divided_below)

    def experts(self, kind: LayerKind, mode: Recompute = "none") -> ExpertGroup:
        """The experts of a layer; the host waits to learn how many rows go where, unless that is fixed."""
        recipe = self.job.recipe
        stack = recipe.runtime.stack
        fixed = recipe.expert_capacity is not None
        waits = not fixed and stack is not None and not stack.cuda_graph and stack.expert_pass_s > 0
        group = self.group(kind)
        ranks = RankGroup(self.first, self.layout.expert_tensor, self.layout.expert)
        shares = RankGroup(self.first, 1, self.layout.expert_tensor)
        joins = schedule_called(self.layout.schedule).has("joins")
        of_rank = group.part, group.device, mode, ranks, shares, group
        return ExpertGroup(*of_rank, recipe.expert_dispatcher, waits, joins)

    def replicas(self, stages: list[VirtualStage], last_rank: int) -> Replicas:
        """Its replicas, and the replicas of its experts; `last_rank` has the LM head."""
        layout = self.layout
        # On a rank with both, embedding and LM head may be one tensor.
        ends = {"first": self.rank == 0, "last": self.rank == last_rank}
        held = Held(stage_parameters(slice_of(self.job, layout), 0, **ends, apart=self.rank > 0))
        for stage in stages:
            if stage.rank == self.rank:
                held += stage.held_by(range(stage.num_layers))
        replicas = Replicas(
            recipe=self.job.recipe,
            ranks=RankGroup(self.first, layout.tensor, layout.replicas),
            device=f"gpu{self.first}",
            num_parameters=held.rest,
            zero_stage=layout.zero_stage,
            shard_group=layout.shard_group,
            model=self.job.model,
            alone=layout.zero_stage == SHARDED,
        )
        return replicas.with_experts(layout.expert * layout.expert_tensor, held.apart)


# The slots of the schedule.

FREED = ("freed0", "freed1", "freed2")
"""Outputs whose tasks free gradient buffers: see `StagePass`."""


@dataclass(frozen=True)
class _Templates:
    """The templates of each pass, one for all virtual stages that are alike."""

    written: dict[tuple[Pass, bool], list[Template]]
    """By pass, and whether they are of the last micro-batch (the first forward) where it differs.

    They are also of the first pass on a rank where `first_is_special`.
    """
    of_stage: Ints
    """Index of the template of each virtual stage among the templates of a pass."""
    later: Ints
    """How many layers after its template each virtual stage begins."""
    first_is_special: bool = False

    @cached_property
    def templates(self) -> list[Template]:
        return [template for of_pass in self.written.values() for template in of_pass]

    def first(self, which: Pass, *, special: bool) -> int:
        """Index of the first template of a pass in `templates`; 0 of a pass that there is not."""
        keys = list(self.written)
        wanted = (which, special and (which, True) in keys)
        return keys.index(wanted) * len(self.written["F", False]) if wanted in keys else 0

    def ports(self, which: Pass) -> set[str]:
        found = (templates for (name, _), templates in self.written.items() if name == which)
        return {port for templates in found for template in templates for port in template.ports}


def _pipeline_slots(
    merged: Sequence[Slot], placement: Placement, passes: _Templates, num_microbatches: int
) -> tuple[Slots, Ints]:
    """All slots of a step, and the slot of each pass, virtual stage and micro-batch."""
    count = placement.num_stages
    stage_of = np.array(placement.stages)
    names, *columns, _ = zip(*merged, strict=True)
    passed = np.array([*map(PASSES.index, names)])
    rank, chunk, microbatch = map(np.array, columns)
    stage = stage_of[rank, chunk]
    number = np.full((len(PASSES), count + 1, num_microbatches), -1, dtype=np.int64)  # stage -1: none
    number[passed, stage, microbatch] = np.arange(len(merged))
    forward = passed == PASSES.index("F")
    final = np.where(forward, microbatch == 0, microbatch == num_microbatches - 1)
    template, freed = _of_slots(passes, passed, rank, stage, final)

    def where(which: Pass, source: Pass, shift: int = 0) -> Ints:
        """For slots of pass `which`, the slot of pass `source`, `shift` virtual stages further; else -1."""
        slots = number[PASSES.index(source), stage + shift, microbatch]
        return np.where(passed == PASSES.index(which), slots, -1)

    # A forward reads the activation of the previous virtual stage. A backward reads the gradient of the next
    # stage and what its own forward saved. W reads what its own backward saved.
    activation = where("F", "F", -1)
    gradient = where("B", "B", 1)
    sources = {name: (where("W", "B"), name) for name in passes.ports("W")}
    sources |= {name: (where("B", "F"), name) for name in passes.ports("B")}
    sources |= {name: (freed, name) for name in FREED}
    sources |= {"activation": (activation, "activation"), "gradient": (gradient, "gradient")}
    return Slots(template, microbatch, sources, passes.later[stage]), number


def _of_slots(passes: _Templates, passed: Ints, rank: Ints, stage: Ints, final: Bools) -> tuple[Ints, Ints]:
    """The template of each slot, and the latest slot before it on its rank that frees gradient buffers."""
    first = np.array([[passes.first(which, special=kind) for kind in (False, True)] for which in PASSES])
    usual = first[passed, 0] + passes.of_stage[stage]
    special = first[passed, 1] + passes.of_stage[stage]
    frees = np.array(["freed0" in template.outputs for template in passes.templates])
    template = np.where(final, special, usual)
    freed = np.full(len(passed), -1, dtype=np.int64)
    for number in range(rank.max() + 1):
        slots = np.flatnonzero(rank == number)
        if passes.first_is_special:
            until = np.argmax(frees[special[slots]]) if frees[special[slots]].any() else len(slots)
            early = np.where(passed[slots] == PASSES.index("F"), final[slots], np.arange(len(slots)) <= until)
            template[slots] = np.where(early, special[slots], usual[slots])
        latest = np.maximum.accumulate(np.where(frees[template[slots]], slots, -1))
        freed[slots[1:]] = latest[:-1]
    return template, freed


SKEWED_STEPS = 2
"""Steps for skewed schedules; the second step is the steady state, where the skew costs nothing."""


class StepWriter:
    """Writes a plan as a graph."""

    def __init__(self, plan: ThreeDPlan, builder: GraphBuilder) -> None:
        self.plan = plan
        self.builder = builder
        self.schedule = schedule_called(plan.layout.schedule)
        division = Division.of(plan.job, plan.layout)
        self.placement = division.placement
        self.stages, self.alike = _stages_of(plan.job, plan.layout, division)
        ranks = (RankShare(plan.job, plan.layout, rank) for rank in range(plan.layout.pipeline))
        self.replicas = [rank.replicas(self.stages, self.placement.last_rank) for rank in ranks]
        self.sharded = plan.layout.zero_stage == SHARDED
        self.scattered = self.replicas[0].shards_gradients
        overlaps = plan.job.runtime.overlap_grad_reduce and not self.sharded
        self.overlap = overlaps and plan.layout.replicas > 1
        self.gathers_ahead = self.replicas[0].gathers_ahead
        self.splits = self.schedule.has("splits_backward")
        self.last_pass: Pass = "W" if self.splits else "B"

    def write(self) -> None:
        layout = self.plan.layout
        microbatches = self.plan.num_microbatches
        merged = self.schedule.merged(layout.pipeline, layout.virtual_pipeline, microbatches)
        passes = self._passes()
        slots, number = _pipeline_slots(merged, self.placement, passes, microbatches)
        joined = [place for place, slot in enumerate(merged) if slot.joined]
        self.builder.fold(layout.width)
        steps = max(self.plan.least_steps, SKEWED_STEPS if self.schedule.has("skewed") else 1)
        for step in range(steps):
            stamped = self.builder.stamp(passes.templates, slots, joined, "expert_communication")
            gradients = [self._reduce(rank, stamped, number) for rank in range(layout.pipeline)]
            last = self.placement.last_rank
            if last and shares_words(self.plan.job.model):
                # The first and last stage both wait for the sum of the gradient of their embedding.
                first = self.stages[0]
                work = first.tied_embedding(self.replicas[0], last)
                stream = f"{first.group.device}/send-previous"
                reads = gradients[0] + gradients[last]
                summed = self.builder.task(work, stream, reads, block=EMBEDDING_AND_HEAD).tensor
                gradients[0], gradients[last] = [summed], [summed]
            self._update(gradients, final=step == steps - 1)
            self.builder.end_step()

    def _passes(self) -> _Templates:
        """The templates of all passes; the last pass reduces gradients where reductions overlap."""
        distinct, of_stage = np.unique(self.alike, return_inverse=True)
        first_layer = np.array([stage.first_layer for stage in self.stages])

        def passes(**reductions: bool) -> list[StagePass]:
            """The writers of a pass of all virtual stages that differ."""
            return [
                StagePass(self.builder, stage, self.replicas[stage.rank], overlaps=self.overlap, **reductions)
                for stage in map(self.stages.__getitem__, distinct)
            ]

        def last(**reductions: bool) -> list[Template]:
            """The pass that completes the weight gradients."""
            return [of.wgrad() if self.splits else of.backward() for of in passes(**reductions)]

        templates: dict[tuple[Pass, bool], list[Template]] = {("F", False): [of.forward() for of in passes()]}
        if self.splits:
            templates["B", False] = [of.backward("dgrad") for of in passes()]
        follows = self.scattered and self.overlap
        templates[self.last_pass, False] = last(reduces=self.scattered, follows=follows)
        if self.gathers_ahead:
            templates["F", True] = [of.forward(gathers=True) for of in passes()]
        if self.overlap:
            templates[self.last_pass, True] = last(reduces=True)
        later = first_layer - first_layer[distinct][of_stage]
        return _Templates(templates, of_stage, later, follows)

    def _reduce(self, rank: int, stamped: Stamped, slots: Ints) -> list[int]:
        """Reduce the remaining gradients of a rank after its last micro-batch."""
        replicas = self.replicas[rank]
        final = self.plan.num_microbatches - 1
        done = []
        rest = replicas.held
        in_passes = self.sharded or self.scattered
        for stage in self.stages:
            if stage.rank != rank or stage.empty:
                continue
            slot = int(slots[PASSES.index(self.last_pass), stage.number, final])
            done.append(stamped.tensor(slot, "weight_gradients"))
            if self.overlap or in_passes:
                reduced = [stamped.tensor(slot, f"reduced{layer}") for layer in range(stage.num_layers)]
                done += dict.fromkeys(reduced)
                rest -= stage.held_by(range(stage.num_layers))
            if in_passes and (stage.first or stage.last):
                done.append(stamped.tensor(slot, "reduced_embedding_and_head"))
        if in_passes:
            return done
        block = EMBEDDING_AND_HEAD if self.overlap else WHOLE_DEVICE
        for work in replicas.reduce_works(rest):
            done = [self.builder.task(work, replicas.stream, done, block=block).tensor]
        return done

    def _norm(self, gradients: list[list[int]]) -> list[int]:
        """The norm of all gradients, of every pipeline rank or of all; none where no update needs others'."""
        layout = self.plan.layout
        # The norm is checked after the update [2401.10241 section 4].
        if self.schedule.has("skewed"):
            return []
        peers = math.lcm(*(replicas.holders for replicas in self.replicas))
        norms = []
        over_stages: tuple[Work, ...] = ()
        for replicas, reduced in zip(self.replicas, gradients, strict=True):
            works = norm_works(replicas.ranks.start, layout.tensor, peers, layout.width, layout.pipeline)
            norms += [self.builder.task(work, replicas.stream, reduced).tensor for work in works[:1]]
            over_stages = works[1:]
        stream = f"{self.replicas[0].device}/send-previous"
        return [self.builder.task(work, stream, norms).tensor for work in over_stages] or norms

    def _update(self, gradients: list[list[int]], *, final: bool) -> None:
        """Update the parameters of every rank with clipped gradients, and all-gather them under ZeRO."""
        norm = self._norm(gradients)
        for replicas, reduced in zip(self.replicas, gradients, strict=True):
            updated = self._updated(replicas, [*reduced, *norm], final)
            if self.gathers_ahead:
                if not final:  # the next step's gathers wait for the update
                    self.builder.task(WAIT, replicas.stream, [updated])
            elif replicas.zero_stage and not self.sharded:
                gathers = replicas.gather_works(replicas.held)
                for gather in gathers:
                    updated = self.builder.task(gather, replicas.stream, [updated]).tensor
                if gathers and not final:  # the next step's kernels wait for the parameters
                    self.builder.task(WAIT, compute_stream(replicas.device), [updated])
            if self.sharded and not final:  # the next step's gathers wait too
                self.builder.task(WAIT, replicas.stream, [updated])

    def _updated(self, replicas: Replicas, reads: Sequence[int], _final: bool, /) -> int:
        """Write the update of a rank, of the last step or an earlier one; the tensor of its parameters."""
        return self.builder.task(replicas.optimizer_work(), compute_stream(replicas.device), reads).tensor
