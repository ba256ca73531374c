"""Seconds of work where weights stream to GPUs: compute as on any GPU, streams as on a wafer cluster.

ZeRO 3 with its parameters in an external store is weight streaming: MemoryX broadcasts a layer through
SwarmX, each GPU computes its slice of the batch, and gradients are summed on the way back.
"""

from __future__ import annotations

from perfsim.costs.gpu import GpuKernels
from perfsim.costs.price import Costs
from perfsim.costs.streams import StreamCosts
from perfsim.graph import Work
from perfsim.topology import WaferTree
from perfsim.transformer import Kernel
from perfsim.workload import TrainingRecipe


class StreamedGpuCosts(Costs):
    """Prices classes of work for one recipe on GPUs under a SwarmX tree."""

    def __init__(self, topology: WaferTree, recipe: TrainingRecipe) -> None:
        self.kernels = GpuKernels(topology.system, recipe, topology.num_devices)
        self.streams = StreamCosts(topology)

    def kernel_s(self, kernel: Kernel, /) -> float:
        """Seconds of one kernel on a GPU."""
        return self.kernels.kernel_s(kernel)

    def duration_s(self, work: Work) -> float:
        """Seconds of one task of this class. Zeros in weights save movement but no arithmetic."""
        moving_s = self.streams.duration_s(work)
        return work.share * self.kernels.compute_s(work) if moving_s is None else moving_s
