"""Seconds of work on a wafer cluster.

Compute takes its FLOPs at the measured efficiency of a software release, plus movement over the mesh of
cores (`perfsim.costs.mesh`); movement around a wafer is priced by `perfsim.costs.streams`.
"""

from __future__ import annotations

import math

from perfsim.calibration import WaferCalibration
from perfsim.costs.gpu import peak_flop_per_s
from perfsim.costs.mesh import MeshCosts
from perfsim.costs.price import Costs
from perfsim.costs.streams import StreamCosts
from perfsim.errors import CatalogError
from perfsim.graph import Work
from perfsim.topology import WaferTree
from perfsim.transformer import Kernel
from perfsim.workload import TrainingRecipe

PEAK = "peak"
"""The software release of an ideal machine."""


LAST_MINOR = {1: 9, 2: 10}
"""The last minor release of each major one so far [tags of the Cerebras Model Zoo, 2022-10 to 2026-03]."""


class WaferCosts(Costs):
    """Prices classes of work for one recipe on one wafer cluster."""

    def __init__(self, topology: WaferTree, recipe: TrainingRecipe) -> None:
        system = topology.system
        calibration = system.device.calibration
        if not isinstance(calibration, WaferCalibration):
            raise CatalogError(f"device {system.device.name} names no wafer calibration")
        self.release = nearest_release(recipe.software_release or system.software_release, calibration)
        peak = self.release == PEAK
        efficiency = 1.0 if peak else calibration.efficiency[self.release]
        self.flop_per_s = efficiency * peak_flop_per_s(system, recipe)
        self.mesh = MeshCosts(
            flop_per_s=self.flop_per_s,
            link_s_per_element=0.0 if peak else calibration.link_s_per_element,
            cores=system.device.compute_units,
            sram_bytes_per_s=system.device.memory.bandwidth,
        )
        self.zeros_saved = system.streaming.sparse_harvest * recipe.weight_sparsity
        self.streams = StreamCosts(topology)

    def duration_s(self, work: Work) -> float:
        """Seconds of one task of this class."""
        moving_s = self.streams.duration_s(work)
        if moving_s is not None:
            return moving_s
        return work.share * (self.mesh.duration_s(work.kernels) - self._harvested_s(work))

    def kernel_s(self, kernel: Kernel, /) -> float:
        """Seconds of one kernel on a wafer."""
        return self.mesh.kernel_s(kernel)

    def movement_s(self, work: Work, /) -> float:
        """Seconds of a task of this class to move operands and partial sums over the mesh."""
        return work.share * sum(self.mesh.movement_s(kernel) for kernel in work.kernels)

    def fixed_s(self, work: Work, /) -> float:
        """Seconds to move weights and their gradients over the mesh."""
        return work.share * self.mesh.weights_s(work.kernels)

    def arithmetic_flop_per_s(self, _work: Work, /) -> float:
        """FLOP/s of matrix products, the same for all."""
        return self.flop_per_s

    def _harvested_s(self, work: Work) -> float:
        """Seconds of arithmetic saved by zeros in a layer's sparse matrices; movement is unchanged."""
        if not self.zeros_saved or not work.op.startswith("layer."):
            return 0.0
        matrices = sum(kernel.flop for kernel in work.kernels if kernel.partition == "streamed")
        return self.zeros_saved * matrices / self.flop_per_s


def nearest_release(wanted: str, calibration: WaferCalibration) -> str:
    """The measured release to use for `wanted`.

    Releases are ordered by number; an unmeasured release uses the nearest earlier release, or the earliest.
    `peak` is an upper bound for all releases: efficiency 1, a mesh without delay.
    """
    measured = sorted(calibration.efficiency, key=_number)
    if wanted == PEAK or wanted in measured:
        return wanted
    earlier = [release for release in measured if _number(release) <= _number(wanted)]
    return earlier[-1] if earlier else measured[0]


def place_of(release: str) -> int:
    """The place of a release in their order, in which r2.0 comes next to r1.9.

    Raises CatalogError for a name that is not of the form r2.0.
    """
    major, minor = (*_number(release), 0)[:2]
    return minor + sum(LAST_MINOR.get(earlier, 0) + 1 for earlier in range(1, major))


def growth_per_release(calibration: WaferCalibration) -> float:
    """Mean growth of the log efficiency per release, from the oldest measured one to the newest."""
    places = {place_of(release): math.log(value) for release, value in calibration.efficiency.items()}
    oldest, newest = min(places), max(places)
    return (places[newest] - places[oldest]) / (newest - oldest) if newest > oldest else 0.0


def _number(release: str) -> tuple[int, ...]:
    digits = release.lower().lstrip("r").split(".")
    try:
        return tuple(int(part) for part in digits)
    except ValueError:
        raise CatalogError(f"software release {release!r} is not of the form r2.0") from None
