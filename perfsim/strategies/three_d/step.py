"""Writes the optimizer steps of a 3D plan: all slots of the schedule, gradient reduction, update."""

from __future__ import annotations

import math

from perfsim.costs.memory import reduced_grad_bytes
from perfsim.graph import (
    EMBEDDING_AND_HEAD,
    WHOLE_DEVICE,
    GraphBuilder,
    Kind,
    RankGroup,
    Template,
    TensorClass,
    Work,
)
from perfsim.graph.builder import Stamped
from perfsim.strategies.schedules import Pass, merged_order, schedule, schedule_called
from perfsim.strategies.stamping import Index, Passes, pipeline_slots
from perfsim.strategies.three_d.data import norm_work
from perfsim.strategies.three_d.pipeline import (
    Reduction,
    backward_template,
    dgrad_template,
    forward_template,
    wgrad_template,
)
from perfsim.strategies.three_d.stages import ThreeDPlan, placement_of, stages_of
from perfsim.strategies.three_d.virtual_stage import VirtualStage, tied_embedding_work
from perfsim.strategies.three_d.zero import IN_FLIGHT, SHARDED

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
        overlaps = plan.job.recipe.overlap_grad_reduce and not self.sharded
        self.overlap = overlaps and plan.layout.replicas > 1
        self.gathers_ahead = self.stages.replicas[0].gathers_ahead
        self.last_pass: Pass = "W" if self.schedule.splits_backward else "B"

    def write(self) -> None:
        """Write all steps."""
        layout, microbatches = self.plan.layout, self.plan.num_microbatches
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
        done, rest = [], replicas.held
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
        layout, last = self.plan.layout, self.placement.last_rank
        if last == 0 or not self.plan.job.model.tied_embeddings:
            return
        ends = RankGroup(0, last * layout.width, 2)
        group, replicas = self.stages.virtual[0].group, self.stages.replicas[0]
        grad_bytes = reduced_grad_bytes(self.plan.job.recipe) / replicas.gradient_shards
        reads = gradients[0] + gradients[last]
        work, stream = tied_embedding_work(group, ends, grad_bytes), f"{group.device}/send-previous"
        summed = self.builder.task(work, stream, reads, block=EMBEDDING_AND_HEAD).tensor
        gradients[0], gradients[last] = [summed], [summed]

    def _norm(self, gradients: list[list[int]]) -> list[int]:
        """The norm of all gradients: summed over the ranks that hold others, then over pipeline ranks.

        A single rank, or replicas with whole gradients, compute it alone, in the optimizer. Under a skewed
        schedule the norm is checked after the update [2401.10241 section 4].
        """
        layout, stages = self.plan.layout, self.stages
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
