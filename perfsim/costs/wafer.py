"""Seconds of work on a wafer-scale cluster.

Compute is FLOPs over the efficiency that a software release was measured to reach, plus movement over
the mesh of cores (`perfsim.costs.mesh`). Weights and gradients pass a tree at line rate: a layer
occupies MemoryX and the tree for its bytes over the slowest link, and its first byte takes one hop a
level.
"""

from __future__ import annotations

from perfsim.calibration import WaferCalibration
from perfsim.collectives import in_network
from perfsim.costs.gpu import peak_flop_per_s
from perfsim.costs.mesh import MeshCosts
from perfsim.errors import CatalogError, GraphError
from perfsim.graph import Work
from perfsim.hardware import WaferClusterSpec
from perfsim.topology import Topology
from perfsim.workload import TrainingRecipe


class WaferCosts:
    """Prices classes of work for one recipe on one wafer-scale cluster."""

    def __init__(self, topology: Topology, recipe: TrainingRecipe) -> None:
        system = topology.system
        if not isinstance(system, WaferClusterSpec):
            raise GraphError(f"{system.name} is not a wafer cluster")
        calibration = system.device.calibration
        if not isinstance(calibration, WaferCalibration):
            raise CatalogError(f"device {system.device.name} names no wafer calibration")
        self.system = system
        self.topology = topology
        self.release, self.note = nearest_release(
            recipe.software_release or system.software_release, calibration
        )
        self.flop_per_s = calibration.efficiency[self.release] * peak_flop_per_s(system, recipe)
        self.mesh = MeshCosts(
            flop_per_s=self.flop_per_s,
            link_s_per_element=calibration.link_s_per_element,
            cores=system.device.compute_units,
            sram_bytes_per_s=system.device.memory.bandwidth,
        )
        self.stream_bytes_per_s = min(
            system.memoryx.bandwidth, system.swarmx.bandwidth, system.io_bytes_per_s
        )

    def duration_s(self, work: Work) -> float:
        """Seconds of one task of this class."""
        match work.op:
            case "memoryx_read":
                return work.comm_bytes / self.stream_bytes_per_s
            case "broadcast":
                return self.tree_latency_s(work.comm_bytes)
            case "reduce":
                return work.comm_bytes / self.stream_bytes_per_s + self.tree_latency_s(work.comm_bytes)
            case "memoryx_update":
                return work.comm_bytes / self.system.memoryx.update_bandwidth
        return self.mesh.duration_s(work.kernels)

    def tree_latency_s(self, n_bytes: float) -> float:
        """First byte from MemoryX to a system, or back: a hop and a chunk a level of the tree."""
        tree, leaves = self.system.swarmx, self.topology.num_devices
        whole = in_network.time_s(n_bytes, leaves, tree.fan_out, tree.bandwidth, tree.hop_latency, tree.chunk)
        return float(whole) - n_bytes / tree.bandwidth


def nearest_release(wanted: str, calibration: WaferCalibration) -> tuple[str, str]:
    """The measured release to use for `wanted`, and a remark where it is another.

    Releases are ordered by number; an unknown one uses the nearest earlier, the earliest if none is.
    """
    known = sorted(calibration.efficiency, key=_number)
    if wanted in known:
        return wanted, ""
    earlier = [release for release in known if _number(release) <= _number(wanted)]
    chosen = earlier[-1] if earlier else known[0]
    return chosen, f"no measurement of software release {wanted}: efficiency of {chosen} used"


def _number(release: str) -> tuple[int, ...]:
    digits = release.lower().lstrip("r").split(".")
    try:
        return tuple(int(part) for part in digits)
    except ValueError:
        raise CatalogError(f"software release {release!r} is not of the form r2.0") from None
