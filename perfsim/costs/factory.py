"""The cost model of a system."""

from __future__ import annotations

from perfsim.costs.gpu import GpuCosts
from perfsim.costs.price import Costs
from perfsim.costs.streamed_gpu import StreamedGpuCosts
from perfsim.costs.wafer import WaferCosts
from perfsim.errors import GraphError
from perfsim.topology import FatTree, Topology, WaferTree
from perfsim.workload import TrainingRecipe


def costs_for(topology: Topology, recipe: TrainingRecipe) -> Costs:
    """What prices work on a system."""
    if isinstance(topology, FatTree):
        return GpuCosts(topology, recipe)
    if not isinstance(topology, WaferTree):
        raise GraphError(f"{topology.system.name} has no cost model")
    if topology.system.device.kind == "gpu":
        return StreamedGpuCosts(topology, recipe)
    return WaferCosts(topology, recipe)
