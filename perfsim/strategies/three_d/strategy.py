"""3D parallelism: tensor, context, pipeline, data and expert parallelism composed, as Megatron composes them.

Ranks: tensor innermost, then context, then data, then pipeline. The graph is folded to one tensor peer of one
replica for each pipeline rank (`graph.symmetry`). The plain strategies `data`, `tensor`, `pipeline` and
`zero3` are this strategy with some degrees fixed at 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfsim.costs.memory import MemoryUse
from perfsim.costs.price import Costs
from perfsim.errors import LayoutError, MemoryCapacityError, Problem
from perfsim.graph import GraphBuilder
from perfsim.strategies.plan import check_runs_on
from perfsim.strategies.screening import MEMORY, Screening
from perfsim.strategies.three_d.columns import columns_of
from perfsim.strategies.three_d.estimate import estimate_steps_s
from perfsim.strategies.three_d.grid import Space
from perfsim.strategies.three_d.memory import peak_bytes, recomputed_share, stage_memory
from perfsim.strategies.three_d.nearest_fit import nearest_fit
from perfsim.strategies.three_d.offload import emit_offloaded, offload_problems
from perfsim.strategies.three_d.offload_space import (
    Places,
    estimate_offloaded_s,
    offloaded_layouts,
    offloaded_memory,
    offloaded_screening,
    tried_places,
)
from perfsim.strategies.three_d.routing import routing_notes
from perfsim.strategies.three_d.rules import layout_problems
from perfsim.strategies.three_d.space import indivisible_degrees, layout_space
from perfsim.strategies.three_d.stages import ThreeDPlan
from perfsim.strategies.three_d.step import StepWriter
from perfsim.topology import FatTree
from perfsim.workload import Job, ParallelLayout

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
        return "context" in self.free_degrees and job.recipe.attention == "flash"

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
        problems = layout_problems(job, topology, layout, self.name, self.free_degrees)
        problems += offload_problems(job, topology, layout)
        if problems:
            raise LayoutError([Problem(text) for text in problems])
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
