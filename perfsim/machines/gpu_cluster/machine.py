"""The kind `gpu-cluster`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from perfsim.costs.gpu import GpuCosts
from perfsim.errors import InputError
from perfsim.hardware import GpuClusterSpec
from perfsim.machines.gpu_cluster.explanation import GpuExplanation
from perfsim.machines.gpu_cluster.network import FatTreeNetwork
from perfsim.machines.machine import Machine
from perfsim.strategies import Plan
from perfsim.strategies.schedules import least_chunks
from perfsim.strategies.three_d.stages import ThreeDPlan
from perfsim.topology import FatTree, LinkHealth
from perfsim.workload import ParallelLayout, TrainingRecipe


class GpuCluster(Machine):
    """Nodes of GPUs under a fat tree."""

    kind = "gpu-cluster"
    system_type = GpuClusterSpec
    layout_type = ParallelLayout
    explanation = GpuExplanation()
    default_strategy = "3d"

    def topology(self, system: GpuClusterSpec, num_devices: int) -> FatTree:
        """Nodes under leaf and spine switches."""
        return FatTree(system, num_devices)

    def costs(self, topology: FatTree, recipe: TrainingRecipe) -> GpuCosts:
        """Kernels, launches and collectives."""
        return GpuCosts(topology, recipe)

    def network(self, topology: FatTree, health: LinkHealth, /) -> FatTreeNetwork:
        """NICs and uplinks."""
        return FatTreeNetwork(topology, health)

    def _completed(self, given: dict[str, Any], devices: int) -> ParallelLayout:
        """A missing `dp` is what the devices leave, a schedule what `vpp` asks for."""
        layout = ParallelLayout(**given)
        if layout.virtual_pipeline > 1 and "schedule" not in given:
            layout = replace(layout, schedule="interleaved")
        if "virtual_pipeline" not in given:
            layout = replace(layout, virtual_pipeline=least_chunks(layout.schedule))
        if "data" not in given:
            layout = replace(layout, data=max(1, devices // (layout.tensor * layout.pipeline)))
        return layout


def gpu_plan(plan: Plan) -> ThreeDPlan:
    """A plan on this kind of machine, as one; InputError where it runs on another."""
    if not isinstance(plan.topology, FatTree):
        raise InputError(f"{plan.system.name} is no GPU cluster")
    return cast(ThreeDPlan, plan)
