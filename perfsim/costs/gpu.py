"""Seconds of work on a GPU cluster.

A compute task takes as long as its kernels on the GPU, but at least as long as the host takes to launch
them (a smooth maximum, since the host can run ahead only so far). The time of a collective follows from its
algorithm and the links that its group spans.

A collective kernel occupies compute units and reads and writes device memory, so compute beside it is slower.
The part of a task that units limit (matrix products, fused attention) and the part that memory limits
(element-wise kernels) get longer as what is left to them shrinks; latencies and launches do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from perfsim.calibration import (
    CollectiveOp,
    CommunicationConstants,
    FrameworkCalibration,
    GpuCalibration,
)
from perfsim.collectives import CollectiveModel, ring
from perfsim.costs.gemm import GemmModel
from perfsim.costs.price import NONE, Costs, Shares
from perfsim.errors import CatalogError, GraphError
from perfsim.graph import RankGroup, Work
from perfsim.hardware import SystemSpec
from perfsim.topology import FatTree, Group
from perfsim.transformer import Kernel
from perfsim.workload import TrainingRecipe

MATRIX_CORE_ROW_BYTES = 16
"""Matrix cores need rows of 16 bytes: a 16-bit product uses them only if n and k are multiples of 8 (NVIDIA,
Matrix Multiplication Background User's Guide)."""
COLLECTIVE_LAUNCHES = 3
"""Host launches of one collective: a wait on the communication stream, the kernel, the wait for it."""


class GpuKernels:
    """Prices the compute of the slowest of `devices` GPUs under one recipe; prices are cached."""

    def __init__(self, system: SystemSpec, recipe: TrainingRecipe, devices: int = 1) -> None:
        self.recipe = recipe
        self.framework = _framework(recipe)
        self.gpu = _calibration(system)
        self.peak_flop_per_s = peak_flop_per_s(system, recipe)
        self.gemm = GemmModel.from_calibration(
            self.gpu,
            self.peak_flop_per_s,
            system.device.memory.bandwidth,
            system.device.compute_units,
            recipe.element_bytes,
            slowest_ceiling(self.gpu, devices),
        )
        self.vector_flop_per_s = system.device.vector_peak.get(recipe.precision)
        self.cache_bytes = system.device.memory.cache
        self.memory_bytes_per_s = self.gpu.memory.fraction * system.device.memory.bandwidth
        self._kernels: dict[Kernel, float] = {}

    def compute_s(self, work: Work) -> float:
        """Seconds of the kernels of one task, at least the time of the host to launch them."""
        device_s = sum(self.kernel_s(kernel) for kernel in work.kernels)
        return self._with_host(device_s, work.launches)

    def price_gemms(self, works: Iterable[Work]) -> None:
        """Price all matrix products of some works at once, as arrays; later prices find them in the cache."""
        kernels = {
            kernel: None
            for work in works
            for kernel in work.kernels
            if kernel.op == "gemm" and kernel not in self._kernels
        }
        if not kernels:
            return
        shapes = np.array([(kernel.m, kernel.n, kernel.k, kernel.batch) for kernel in kernels], dtype=float)
        distinct, of_kernel = np.unique(shapes, axis=0, return_inverse=True)
        seconds = self.gemm.time_s(*distinct.T, sustained=True)[of_kernel.ravel()]
        for kernel, gemm_s in zip(kernels, seconds.tolist(), strict=True):
            self._kernels[kernel] = self._gemm_s(kernel, gemm_s)

    def bound_of(self, work: Work) -> Shares:
        """Shares of the time of a compute task that units and memory limit.

        Where the host takes part of the time, the device counts by the slope of the smooth maximum.
        """
        seconds = self.compute_s(work)
        if seconds <= 0.0:
            return NONE
        units_s = sum(self.kernel_s(kernel) for kernel in work.kernels if kernel.op != "elementwise")
        moving = [kernel for kernel in work.kernels if kernel.op == "elementwise"]
        latency_s = self.gpu.kernel_latency_s * sum(kernel.launches for kernel in moving)
        moving_s = sum(self.kernel_s(kernel) for kernel in moving)
        slope = 1.0
        if not self.recipe.host_blocking:
            slope = ((units_s + moving_s) / seconds) ** (self.framework.overlap_sharpness - 1)
        return Shares(slope * units_s / seconds, slope * (moving_s - latency_s) / seconds)

    def _with_host(self, device_s: float, launches: int) -> float:
        """Device and host time combined: the longer of the two, or their sum where the host blocks."""
        host_s = launches * self.framework.host_s_per_kernel
        if self.recipe.host_blocking:
            return device_s + host_s + launches * self.framework.host_blocking_s_per_kernel
        return smooth_maximum(device_s, host_s, self.framework.overlap_sharpness)

    def kernel_s(self, kernel: Kernel) -> float:
        """Seconds of one kernel on the device."""
        seconds = self._kernels.get(kernel)
        if seconds is None:
            seconds = self._kernels[kernel] = self._kernel_s(kernel)
        return seconds

    def _kernel_s(self, kernel: Kernel) -> float:
        if kernel.op == "elementwise":
            moving_s = self._uncached_bytes(kernel) / self.memory_bytes_per_s
            return kernel.launches * self.gpu.kernel_latency_s + moving_s
        moving_s = kernel.bytes_accessed / self.memory_bytes_per_s
        if kernel.op == "attention":
            return self.gpu.kernel_latency_s + max(moving_s, self._attention_s(kernel))
        return self._gemm_s(
            kernel, self.gemm.time_s(kernel.m, kernel.n, kernel.k, kernel.batch, sustained=True)
        )

    def _gemm_s(self, kernel: Kernel, seconds: float) -> float:
        """Seconds of a matrix product from those of its shape."""
        seconds *= self.gpu.wgrad_factor if kernel.weight_gradient else 1.0
        return max(seconds, self._vector_s(kernel))

    def _vector_s(self, kernel: Kernel) -> float:
        """Seconds of a product that cannot use matrix cores; 0 where it can, or no vector peak is known."""
        sides = (kernel.n, kernel.k)
        aligned = all(side * kernel.element_bytes % MATRIX_CORE_ROW_BYTES == 0 for side in sides)
        if aligned or self.vector_flop_per_s is None:
            return 0.0
        return kernel.flop / self.vector_flop_per_s

    def _uncached_bytes(self, kernel: Kernel) -> float:
        """Bytes that a memory-bound kernel moves to and from memory.

        Half of its bytes are reads, and the output of the previous kernel is read from the cache as far as it
        fits. Half of the cache counts, since the other half holds the kernel's own output.
        """
        bytes_per_launch = kernel.bytes_accessed / kernel.launches
        return kernel.launches * (bytes_per_launch - min(bytes_per_launch, self.cache_bytes) / 2)

    def _attention_s(self, kernel: Kernel) -> float:
        """Fused attention; at length s it reaches s / (s + half length) of its speed on long sequences."""
        slower = 1.0 + self.gpu.attention_half_length / kernel.m
        fraction = self.gpu.attention_fraction * self.gpu.attention_instruction_fraction
        return kernel.flop * slower / (fraction * self.peak_flop_per_s)


class GpuCosts(GpuKernels, Costs):
    """Prices classes of work for one recipe on one GPU cluster; prices are cached."""

    def __init__(self, topology: FatTree, recipe: TrainingRecipe) -> None:
        super().__init__(topology.system, recipe, topology.num_devices)
        self.topology = topology
        self.collectives = CollectiveModel.of_tree(topology)
        self._works: dict[Work, float] = {}
        self._groups: dict[RankGroup, Group] = {}

    def duration_s(self, work: Work) -> float:
        """Seconds of one task of this class without contention."""
        seconds = self._works.get(work)
        if seconds is None:
            seconds = self._communication_s(work) if work.kind.is_communication else self.compute_s(work)
            self._works[work] = seconds
        return seconds

    def durations_s(self, works: Sequence[Work]) -> NDArray[np.float64]:
        """Seconds of several classes of work; new shapes and sizes are priced as arrays."""
        new = [work for work in dict.fromkeys(works) if work not in self._works]
        self.price_gemms(new)
        alike: dict[tuple[CollectiveOp, Group], list[Work]] = {}
        for work in new:
            if work.kind.is_communication:
                alike.setdefault(self._collective(work), []).append(work)
        for (op, group), members in alike.items():
            seconds = self.collectives.time_s(op, [work.comm_bytes for work in members], group)
            for work, device_s in zip(members, seconds.tolist(), strict=True):
                self._works[work] = self._with_host(device_s, COLLECTIVE_LAUNCHES)
        return np.array([self.duration_s(work) for work in works], dtype=np.float64)

    def _communication_s(self, work: Work) -> float:
        op, group = self._collective(work)
        return self._with_host(self.collectives.time_s(op, work.comm_bytes, group), COLLECTIVE_LAUNCHES)

    def taken(self, work: Work, /) -> Shares:
        """Compute units of a collective kernel, and its reads and writes over the achieved bandwidth.

        Bytes sent = comm_bytes x wire factor; `memory_passes` times as many pass through device memory.
        """
        constants = self.gpu.communication
        if constants is None or not work.kind.is_communication:
            return NONE
        op, group = self._collective(work)
        seconds = self.duration_s(work)
        if group.size == 1 or seconds <= 0.0:
            return NONE
        sent_bytes = work.comm_bytes * ring.wire_factor(op, group.size)
        passes = constants.memory_passes.get(op, 0.0)
        return Shares(
            self._kernel_units(constants, op, group) / self.topology.system.device.compute_units,
            passes * sent_bytes / seconds / self.memory_bytes_per_s,
        )

    def _kernel_units(self, constants: CommunicationConstants, op: CollectiveOp, group: Group) -> float:
        """Compute units of a kernel: its channels, across nodes no more than the NICs can feed.

        A message between two ranks has the channels of one NIC, also inside a node.
        """
        if op == "send_recv":
            return min(constants.units, constants.units_per_nic)
        if group.nodes == 1:
            return constants.units
        node = self.topology.system.node
        nics = max(1.0, node.nics * group.fewest_per_node / node.devices)
        return min(constants.units, constants.units_per_nic * nics)

    def bound(self, work: Work, /) -> Shares:
        """Shares of the time of a compute task that units and memory limit."""
        return NONE if work.kind.is_communication else self.bound_of(work)

    def _collective(self, work: Work) -> tuple[CollectiveOp, Group]:
        """The operation of a communication, and how its group lies over nodes."""
        if work.group is None:
            raise GraphError(f"communication {work.name} has no group")
        if work.op not in get_args(CollectiveOp):
            raise GraphError(f"communication {work.name} is {work.op}, which no model prices")
        return cast(CollectiveOp, work.op), self.group(work.group)

    def send_s(self, ends: RankGroup, n_bytes: float, /) -> float:
        """Seconds of a message on the device, without host time."""
        return self.collectives.time_s("send_recv", n_bytes, self.group(ends))

    def group(self, ranks: RankGroup) -> Group:
        """How a group of ranks lies over the nodes."""
        group = self._groups.get(ranks)
        if group is None:
            group = self._groups[ranks] = self.topology.group_shape(ranks.ranks)
        return group


def peak_flop_per_s(system: SystemSpec, recipe: TrainingRecipe) -> float:
    """Datasheet peak of a device at a recipe's precision."""
    peak = system.device.peak
    if recipe.precision not in peak:
        raise CatalogError(
            f"{system.device.name} has no peak for {recipe.precision}; it has {', '.join(sorted(peak))}"
        )
    return float(peak[recipe.precision])


def slowest_ceiling(gpu: GpuCalibration, devices: int) -> float:
    """Sustained ceiling of the slowest of `devices` GPUs, which all others wait for.

    Chips of one model differ in the clock that they hold under the same power limit. Of n normal values
    the largest deviates by about z((n - 3/8) / (n + 1/4)) standard deviations (Blom 1958).
    """
    deviations = NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25)) if devices > 1 else 0.0
    return gpu.sustained_fraction * max(0.0, 1.0 - gpu.sustained_spread * deviations)


def smooth_maximum(a: float, b: float, sharpness: float) -> float:
    """(a^p + b^p)^(1/p): the larger of the two, or slightly more where they are close."""
    largest = max(a, b)
    if largest <= 0.0:
        return 0.0
    return float(largest * (1.0 + (min(a, b) / largest) ** sharpness) ** (1.0 / sharpness))


def _calibration(system: SystemSpec) -> GpuCalibration:
    calibration = system.device.calibration
    if not isinstance(calibration, GpuCalibration):
        raise CatalogError(f"device {system.device.name} names no GPU calibration, so nothing can be priced")
    return calibration


def _framework(recipe: TrainingRecipe) -> FrameworkCalibration:
    if recipe.framework is None:
        raise CatalogError(f"recipe {recipe.name} names no framework, so launches cannot be priced on GPUs")
    return recipe.framework
