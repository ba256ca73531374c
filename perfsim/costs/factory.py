"""The cost model of a system."""

from __future__ import annotations

from perfsim.costs.gpu import GpuCosts
from perfsim.costs.price import Costs
from perfsim.costs.streamed_gpu import StreamedGpuCosts
from perfsim.costs.wafer import WaferCosts
from perfsim.hardware import GpuClusterSpec
from perfsim.topology import Topology
from perfsim.workload import TrainingRecipe


def costs_for(topology: Topology, recipe: TrainingRecipe) -> Costs:
    """What prices work on a system."""
    if isinstance(topology.system, GpuClusterSpec):
        return GpuCosts(topology, recipe)
    if topology.system.device.kind == "gpu":
        return StreamedGpuCosts(topology, recipe)
    return WaferCosts(topology, recipe)
