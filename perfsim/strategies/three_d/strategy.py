"""3D parallelism: tensor, context, pipeline, data and expert parallelism composed, as Megatron composes them.

Ranks: tensor innermost, then context, then data, then pipeline. The graph is folded to one tensor peer of one
replica for each pipeline rank (`graph.symmetry`). The plain strategies `data`, `tensor`, `pipeline` and
`zero3` are this strategy with some degrees fixed at 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfsim.base.errors import LayoutError, MemoryCapacityError, Problem
from perfsim.costs.memory import MemoryUse, reduced_grad_bytes
from perfsim.costs.price import Costs
from perfsim.network import FatTree
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies.plan import check_runs_on
from perfsim.strategies.schedules import Pass, merged_order, schedule, schedule_called
from perfsim.strategies.screening import MEMORY, Screening
from perfsim.strategies.stamping import Index, Passes, pipeline_slots
from perfsim.strategies.three_d.closed_form import estimate_steps_s
from perfsim.strategies.three_d.data import IN_FLIGHT, SHARDED, norm_work
from perfsim.strategies.three_d.halves import routing_notes
from perfsim.strategies.three_d.legal import RefusedLayoutError, refusals_of
from perfsim.strategies.three_d.memory import peak_bytes, recomputed_share, stage_memory
from perfsim.strategies.three_d.nearest_fit import nearest_fit
from perfsim.strategies.three_d.offload import emit_offloaded
from perfsim.strategies.three_d.offload_space import (
    Places,
    estimate_offloaded_s,
    offloaded_layouts,
    offloaded_memory,
    offloaded_screening,
    tried_places,
)
from perfsim.strategies.three_d.pipeline import (
    Reduction,
    VirtualStage,
    backward_template,
    dgrad_template,
    forward_template,
    tied_embedding_work,
    wgrad_template,
)
from perfsim.strategies.three_d.space import Space, columns_of, indivisible_degrees, layout_space
from perfsim.strategies.three_d.stages import ThreeDPlan, placement_of, stages_of
from perfsim.work import (
    EMBEDDING_AND_HEAD,
    WHOLE_DEVICE,
    GraphBuilder,
    Kind,
    RankGroup,
    Template,
    TensorClass,
    Work,
)
from perfsim.work.builder import Stamped

# Writes the optimizer steps of a 3D plan: all slots of the schedule, gradient reduction, update.

SKEWED_STEPS = 2
"""Steps for skewed schedules; the second step is the steady state, where the skew costs nothing."""


class StepWriter:
    """Writes a plan as a graph."""

    def __init__(self, plan: ThreeDPlan, builder: GraphBuilder) -> None:
        self.plan = plan
        self.builder = builder
        self.schedule = schedule_called(plan.layout.schedule)
        self.placement = placement_of(plan.layout)
        self.stages = stages_of(plan.job, plan.layout)
        self.sharded = plan.layout.zero_stage == SHARDED
        self.scattered = self.stages.replicas[0].shards_gradients
        overlaps = plan.job.runtime.overlap_grad_reduce and not self.sharded
        self.overlap = overlaps and plan.layout.replicas > 1
        self.gathers_ahead = self.stages.replicas[0].gathers_ahead
        self.last_pass: Pass = "W" if self.schedule.splits_backward else "B"

    def write(self) -> None:
        """Write all steps."""
        layout = self.plan.layout
        microbatches = self.plan.num_microbatches
        orders = schedule(layout.schedule, layout.pipeline, layout.virtual_pipeline, microbatches)
        merged = merged_order(orders, self.placement)
        passes = self._passes()
        slots, index = pipeline_slots(merged, self.placement, passes, microbatches)
        self.builder.fold(layout.width)
        steps = max(self.plan.least_steps, SKEWED_STEPS if self.schedule.skewed else 1)
        for step in range(steps):
            stamped = self.builder.stamp(passes.templates, slots)
            gradients = [self._reduce(rank, stamped, index) for rank in range(layout.pipeline)]
            self._tie(gradients)
            self._update(gradients, final=step == steps - 1)
            self.builder.end_step()

    def _passes(self) -> Passes:
        """The templates of all passes; the last pass reduces gradients where reductions overlap."""
        stages = self.stages.virtual
        usual: dict[Pass, list[Template]] = {"F": [forward_template(self.builder, stage) for stage in stages]}
        if self.schedule.splits_backward:
            usual["B"] = [dgrad_template(self.builder, stage) for stage in stages]
        usual[self.last_pass] = self._last_passes(reduces=self.scattered, follows=self.scattered)
        special: dict[Pass, list[Template]] = {}
        if self.gathers_ahead:
            special["F"] = [
                forward_template(self.builder, stage, self.stages.replicas[stage.rank]) for stage in stages
            ]
        if self.overlap:
            special[self.last_pass] = self._last_passes(reduces=True)
        return Passes(usual, special, self.scattered and self.overlap)

    def _last_passes(self, *, reduces: bool, follows: bool = False) -> list[Template]:
        """The pass that completes the weight gradients, for every virtual stage."""
        write = wgrad_template if self.schedule.splits_backward else backward_template
        return [
            write(self.builder, stage, self._reduction(stage, follows and self.overlap) if reduces else None)
            for stage in self.stages.virtual
        ]

    def _reduction(self, stage: VirtualStage, follows: bool) -> Reduction:
        replicas = self.stages.replicas[stage.rank]

        def of_layers(layers: range) -> list[Work]:
            return replicas.reduce_works(stage.held_by(layers))

        if not self.scattered:
            per_bucket = replicas.layers_per_bucket(stage.largest_layer)
            return Reduction(of_layers, replicas.stream, per_bucket=per_bucket)
        stream = replicas.stream if self.overlap else stage.group.compute
        of_embedding_and_head = replicas.reduce_works(stage.embedding_and_head)
        return Reduction(of_layers, stream, of_embedding_and_head, IN_FLIGHT, follows)

    def _reduce(self, rank: int, stamped: Stamped, index: Index) -> list[int]:
        """Reduce the remaining gradients of a rank after its last micro-batch."""
        replicas = self.stages.replicas[rank]
        final = self.plan.num_microbatches - 1
        done = []
        rest = replicas.held
        for stage in self.stages.of_rank(rank):
            if stage.empty:
                continue
            slot = index.slot(self.last_pass, stage.number, final)
            done.append(stamped.tensor(slot, "weight_gradients"))
            if self.overlap or self.sharded or self.scattered:
                reduced = [stamped.tensor(slot, f"reduced{layer}") for layer in range(stage.num_layers)]
                done += dict.fromkeys(reduced)
                rest -= stage.held_by(range(stage.num_layers))
            if self.scattered and (stage.first or stage.last):
                done.append(stamped.tensor(slot, "reduced_embedding_and_head"))
        if self.sharded or self.scattered:
            return done
        block = EMBEDDING_AND_HEAD if self.overlap else WHOLE_DEVICE
        for work in replicas.reduce_works(rest):
            done = [self.builder.task(work, replicas.stream, done, block=block).tensor]
        return done

    def _tie(self, gradients: list[list[int]]) -> None:
        """Sum the gradient of a tied embedding over the first and last stage, which both wait for it."""
        layout = self.plan.layout
        last = self.placement.last_rank
        if last == 0 or not self.plan.job.model.tied_embeddings:
            return
        ends = RankGroup(0, last * layout.width, 2)
        group = self.stages.virtual[0].group
        replicas = self.stages.replicas[0]
        grad_bytes = reduced_grad_bytes(self.plan.job.recipe) / replicas.gradient_shards
        reads = gradients[0] + gradients[last]
        work = tied_embedding_work(group, ends, grad_bytes)
        stream = f"{group.device}/send-previous"
        summed = self.builder.task(work, stream, reads, block=EMBEDDING_AND_HEAD).tensor
        gradients[0], gradients[last] = [summed], [summed]

    def _norm(self, gradients: list[list[int]]) -> list[int]:
        """The norm of all gradients: summed over the ranks that hold others, then over pipeline ranks.

        A single rank, or replicas with whole gradients, compute it alone, in the optimizer. Under a skewed
        schedule the norm is checked after the update [2401.10241 section 4].
        """
        layout = self.plan.layout
        stages = self.stages
        peers = math.lcm(*(replicas.holders for replicas in stages.replicas))
        if self.schedule.skewed or peers * layout.pipeline == 1:
            return []
        norms = []
        for replicas, own in zip(stages.replicas, gradients, strict=True):
            work = norm_work(RankGroup(replicas.ranks.start, 1, peers) if peers > 1 else None)
            norms.append(self.builder.task(work, replicas.stream, own).tensor)
        if layout.pipeline == 1:
            return norms
        return [self.builder.task(norm_work(), f"{stages.replicas[0].device}/send-previous", norms).tensor]

    def _update(self, gradients: list[list[int]], *, final: bool) -> None:
        """Update the parameters of every rank with clipped gradients, and all-gather them under ZeRO."""
        norm = self._norm(gradients)
        for replicas, own in zip(self.stages.replicas, gradients, strict=True):
            compute = f"{replicas.device}/compute"
            updated = self.builder.task(replicas.optimizer_work(), compute, [*own, *norm]).tensor
            if self.gathers_ahead:
                if not final:  # the next step's gathers wait for the update
                    self.builder.task(_wait_work(), replicas.stream, [updated])
            elif (
                replicas.zero_stage and not self.sharded and (gathers := replicas.gather_works(replicas.held))
            ):
                for gather in gathers:
                    updated = self.builder.task(gather, replicas.stream, [updated]).tensor
                if not final:  # the next step's kernels wait for the parameters
                    self.builder.task(_wait_work(), compute, [updated])
            if self.sharded and not final:  # the next step's gathers wait too
                self.builder.task(_wait_work(), replicas.stream, [updated])


def _wait_work() -> Work:
    """No work: the stream waits for what it reads."""
    return Work("parameters.wait", Kind.COMP, "wait", "optimizer", writes=(TensorClass("parameters", 0.0),))


GIB = 2.0**30


@dataclass(frozen=True)
class ThreeD:
    """The strategy `3d`, or a plain strategy with some degrees fixed at 1."""

    name: str = "3d"
    free_degrees: tuple[str, ...] = ("tensor", "context", "pipeline", "data", "expert", "expert_tensor")
    summary: str = "tensor, context, pipeline, data and expert parallelism composed (Megatron)"
    system_kind: str = "gpu-cluster"
    zero_stage: int | None = None
    """The ZeRO stage of every layout; None: the layout's own."""

    def space(self, job: Job, topology: FatTree) -> Space:
        """All legal layouts of this strategy on all devices of the topology."""
        return layout_space(job, topology, self.free_degrees, self.zero_stage)

    def layouts(self, job: Job, topology: FatTree) -> Iterator[ParallelLayout]:
        """All legal layouts of this strategy on all devices of the topology; offloaded if none fits else."""
        space = self.space(job, topology)
        columns = space.rows()
        yield from (columns.layout(row) for row in range(len(columns)))
        if not (_memory_share(job, space, topology) <= 1.0).any():
            yield from offloaded_layouts(job, topology, columns)

    def screen(self, job: Job, topology: FatTree, costs: Costs) -> Screening:
        """Memory and closed-form step time of all layouts, as arrays."""
        space = self.space(job, topology)
        share = _memory_share(job, space, topology)
        if self._may_share_sequences(job) and not (share <= 1.0).any():
            space = layout_space(job, topology, self.free_degrees, self.zero_stage, shares_sequences=True)
            share = _memory_share(job, space, topology)
        fits = share <= 1.0
        kept = space.rows(fits)
        if not len(share):
            return Screening(np.zeros(0), np.zeros(0), kept.layout, 0, {})
        estimates = estimate_steps_s(job, kept, topology, costs) if len(kept) else np.zeros(0)
        too_large = len(share) - len(kept)
        refused = {MEMORY: too_large} if too_large else {}
        closest = space.layout(int(np.argmin(np.where(fits, np.inf, share)))) if too_large else None
        indivisible = indivisible_degrees(space, topology, self.free_degrees)
        found = Screening(estimates, share[fits], kept.layout, len(share), refused, closest, indivisible)
        if len(kept) or not tried_places(job, topology):
            return found
        return offloaded_screening(job, topology, costs, space.rows(), found)

    def _may_share_sequences(self, job: Job) -> bool:
        """Whether it has context degrees that the recipe's attention allows."""
        return "context" in self.free_degrees and job.runtime.attention == "flash"

    def plan(
        self, job: Job, topology: FatTree, layout: ParallelLayout, *, check_memory: bool = True
    ) -> ThreeDPlan:
        """Check one layout. Raises LayoutError or MemoryCapacityError with all reasons."""
        check_runs_on(self, topology.system)
        if self.zero_stage is not None:
            if layout.zero_stage not in (0, self.zero_stage):
                text = f"strategy {self.name} shards at ZeRO stage {self.zero_stage}, not {layout.zero_stage}"
                raise LayoutError([Problem(text, help="strategy 3d takes any stage")])
            layout = replace(layout, zero_stage=self.zero_stage)
        refusals = refusals_of(job, topology, layout, self.name, self.free_degrees)
        if refusals:
            raise RefusedLayoutError(refusals)
        memory = offloaded_memory(job, layout, topology, stage_memory(job, layout, topology.system))
        if check_memory:
            self._refuse_overflow(job, topology, layout, memory)
        microbatches = job.global_batch_size // (layout.data * layout.micro_batch_size)
        share = recomputed_share(columns_of(job, layout))
        notes = routing_notes(job, layout.expert)
        return ThreeDPlan(self.name, job, topology, layout, microbatches, memory, notes, share)

    def _refuse_overflow(
        self, job: Job, topology: FatTree, layout: ParallelLayout, memory: tuple[MemoryUse, ...]
    ) -> None:
        worst = max(memory, key=lambda use: use.total_bytes / use.capacity_bytes)
        if worst.fits:
            return
        part = worst.largest_part
        raise MemoryCapacityError(
            worst.total_bytes / worst.capacity_bytes,
            f"does not fit: {worst.place} needs {worst.total_bytes / GIB:.1f} GiB of "
            f"{worst.capacity_bytes / GIB:.0f} GiB ({part} {worst.parts_bytes[part] / GIB:.1f} GiB)",
            lambda: nearest_fit(job, topology, layout, part, self.free_degrees, self.zero_stage is None),
        )

    def emit(self, plan: ThreeDPlan, builder: GraphBuilder) -> None:
        """Write one optimizer step, or two under a skewed schedule."""
        if plan.layout.offloads:
            emit_offloaded(plan, builder, lambda inner: StepWriter(plan, inner).write())
        else:
            StepWriter(plan, builder).write()

    def estimate_s(self, plan: ThreeDPlan, costs: Costs) -> float:
        """Closed form of the step time, for screening."""
        columns = columns_of(plan.job, plan.layout)
        if plan.layout.offloads:
            places = Places.of(plan.layout)
            return float(estimate_offloaded_s(plan.job, columns, places, plan.topology, costs)[0])
        return float(estimate_steps_s(plan.job, columns, plan.topology, costs)[0])


def _memory_share(job: Job, space: Space, topology: FatTree) -> NDArray[np.float64]:
    """Share of its memory that the fullest device uses, of every layout."""
    peaks = (peak_bytes(job, grid, topology.system)[grid.all_legal()] for grid in space.grids)
    return np.concatenate([np.zeros(0), *peaks]) / topology.system.device.memory.capacity
