"""3D parallelism: tensor, pipeline and data parallelism composed, as Megatron composes them.

Ranks: tensor innermost, then data, then pipeline. One tensor peer of one replica is written for each
pipeline rank; it stands for all its like (`multiplicity`). The plain strategies `data`, `tensor`,
`pipeline` and `zero3` are this one with some degrees held at 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from perfsim.costs.memory import MemoryUse, main_grad_bytes, stage_parameters
from perfsim.errors import InputError, LayoutError, MemoryCapacityError, Problem
from perfsim.graph import GraphBuilder, RankGroup
from perfsim.graph.builder import Stamped
from perfsim.hardware import GpuClusterSpec
from perfsim.strategies.data import Replicas
from perfsim.strategies.pipeline import (
    LayerDone,
    VirtualStage,
    backward_template,
    emit_tied_embedding,
    forward_template,
    stamp_slots,
)
from perfsim.strategies.plan import Duration, Plan
from perfsim.strategies.rules import layout_problems, legal_layouts
from perfsim.strategies.schedules import merged_order, schedule
from perfsim.strategies.screening import estimate_step_s
from perfsim.strategies.stages import stage_memory, stages_of
from perfsim.strategies.zero import SHARDED
from perfsim.topology import Topology
from perfsim.workload import Job, ParallelLayout

GIB = 2.0**30


@dataclass(frozen=True)
class ThreeD:
    """The strategy `3d`, or a plain one when degrees are held at 1."""

    name: str = "3d"
    free_degrees: tuple[str, ...] = ("tensor", "pipeline", "data")
    summary: str = "tensor, pipeline and data parallelism composed (Megatron)"
    system_kind: str = "gpu-cluster"
    zero_stage: int | None = None
    """The ZeRO stage of every layout; None: the layout's own."""

    def layouts(self, job: Job, topology: Topology) -> Iterator[ParallelLayout]:
        """Every legal layout of this strategy on all devices of the topology."""
        for layout in legal_layouts(job, topology, self.free_degrees):
            yield layout if self.zero_stage is None else replace(layout, zero_stage=self.zero_stage)

    def plan(
        self, job: Job, topology: Topology, layout: ParallelLayout, *, check_memory: bool = True
    ) -> Plan:
        """Check one layout. Raises LayoutError or MemoryCapacityError with every reason."""
        system = topology.system
        if not isinstance(system, GpuClusterSpec):
            raise InputError(f"strategy {self.name} runs on GPU clusters; {system.name} is a {system.kind}")
        if self.zero_stage is not None:
            layout = replace(layout, zero_stage=self.zero_stage)
        problems = layout_problems(job, topology, layout, self.name, self.free_degrees)
        if problems:
            raise LayoutError([Problem(text) for text in problems])
        memory = stage_memory(job, layout, system)
        if check_memory:
            _refuse_overflow(memory, layout)
        microbatches = job.global_batch_size // (layout.data * layout.micro_batch_size)
        return Plan(self.name, job, topology, layout, microbatches, memory)

    def emit(self, plan: Plan, builder: GraphBuilder) -> None:
        """Write one optimizer step."""
        _Step(plan, builder).emit()

    def estimate_s(self, plan: Plan, duration: Duration) -> float:
        """Closed form of the step time, for screening."""
        stages = stages_of(plan.job, plan.layout)
        return estimate_step_s(plan, stages.virtual, stages.replicas, duration)


def _refuse_overflow(memory: tuple[MemoryUse, ...], layout: ParallelLayout) -> None:
    worst = max(memory, key=lambda use: use.total_bytes)
    if worst.fits:
        return
    part = worst.largest_part
    raise MemoryCapacityError(
        worst.total_bytes / worst.capacity_bytes,
        f"does not fit: {worst.place} needs {worst.total_bytes / GIB:.1f} GiB of "
        f"{worst.capacity_bytes / GIB:.0f} GiB ({part} {worst.parts_bytes[part] / GIB:.1f} GiB); "
        f"{_nearest_change(part, layout)}",
    )


def _nearest_change(part: str, layout: ParallelLayout) -> str:
    """The smallest change of a layout that shrinks the largest part."""
    if part in ("activations", "working set"):
        if layout.recompute == "none":
            return "try recompute selective or full"
        if layout.micro_batch_size > 1:
            return f"try micro_batch_size {layout.micro_batch_size} -> {layout.micro_batch_size // 2}"
        return f"try tensor {layout.tensor} -> {layout.tensor * 2}"
    if part == "optimizer" and layout.zero_stage == 0 and layout.data > 1:
        return "try zero_stage 0 -> 1"
    wider, deeper = layout.tensor * 2, layout.pipeline * 2
    return f"try tensor {layout.tensor} -> {wider} or pipeline {layout.pipeline} -> {deeper}"


class _Step:
    """One optimizer step being written."""

    def __init__(self, plan: Plan, builder: GraphBuilder) -> None:
        self.plan = plan
        self.builder = builder
        self.stages = stages_of(plan.job, plan.layout)
        self.sharded = plan.layout.zero_stage == SHARDED
        overlaps = plan.job.recipe.overlap_grad_reduce and not self.sharded
        self.overlap = overlaps and plan.layout.data > 1

    def emit(self) -> None:
        layout = self.plan.layout
        orders = schedule(
            layout.schedule, layout.pipeline, layout.virtual_pipeline, self.plan.num_microbatches
        )
        merged = merged_order(orders, layout.virtual_pipeline)
        forwards = [forward_template(self.builder, stage) for stage in self.stages.virtual]
        backwards = [backward_template(self.builder, stage) for stage in self.stages.virtual]
        last = [
            backward_template(self.builder, stage, self._layer_done(stage)) if self.overlap else template
            for stage, template in zip(self.stages.virtual, backwards, strict=True)
        ]
        stamped, index = stamp_slots(
            self.builder, merged, forwards, backwards, last, self.plan.num_microbatches
        )
        gradients = [self._reduce(rank, stamped, index) for rank in range(layout.pipeline)]
        self._tie(gradients)
        self._update(gradients)
        self.builder.end_step()

    def _replicas(self, stage: VirtualStage) -> Replicas:
        return self.stages.replicas[stage.number % len(self.stages.replicas)]

    def _layer_done(self, stage: VirtualStage) -> LayerDone:
        replicas = self._replicas(stage)
        body = stage_parameters(stage.group.part, 1, first=False, last=False)
        return LayerDone(replicas.reduce_work(body), replicas.stream)

    def _reduce(self, rank: int, stamped: Stamped, index: dict[tuple[str, int, int], int]) -> list[int]:
        """Reduce what is left of a rank's gradients once its last backward is done."""
        replicas = self.stages.replicas[rank]
        final = self.plan.num_microbatches - 1
        done, rest = [], replicas.num_parameters
        for stage in self.stages.of_rank(rank):
            slot = index["B", stage.number, final]
            done.append(stamped.tensor(slot, "weight_gradients"))
            if self.overlap or self.sharded:
                done += [stamped.tensor(slot, f"reduced{layer}") for layer in range(stage.num_layers)]
                rest -= stage_parameters(stage.group.part, stage.num_layers, first=False, last=False)
        if self.sharded or replicas.size == 1 or rest < 1:  # less than a parameter is rounding
            return done
        return [self.builder.task(replicas.reduce_work(rest), replicas.stream, done).tensor]

    def _tie(self, gradients: list[list[int]]) -> None:
        """Sum a tied embedding's gradient over the first and the last stage."""
        layout, model = self.plan.layout, self.plan.job.model
        if layout.pipeline == 1 or not model.tied_embeddings:
            return
        width = layout.tensor * layout.data
        ends = RankGroup(0, (layout.pipeline - 1) * width, 2)
        first = self.stages.virtual[0].group
        grad_bytes = main_grad_bytes(self.plan.job.recipe)
        summed = emit_tied_embedding(self.builder, first, ends, grad_bytes, gradients[0] + gradients[-1])
        gradients[0], gradients[-1] = [summed], [summed]

    def _update(self, gradients: list[list[int]]) -> None:
        """Every rank waits for all gradients (their norm), updates, and gathers under ZeRO."""
        everything = sorted({tensor for tensors in gradients for tensor in tensors})
        for replicas in self.stages.replicas:
            compute = f"{replicas.device}/compute"
            updated = self.builder.task(replicas.optimizer_work(), compute, everything).tensor
            if replicas.zero_stage and replicas.size > 1 and not self.sharded:
                gather = replicas.gather_work(replicas.num_parameters)
                self.builder.task(gather, replicas.stream, [updated])
