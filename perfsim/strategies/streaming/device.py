"""The devices that weights are streamed to: a wafer, or a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace

from perfsim.costs.memory import MemoryUse, moment_bytes, orthogonalisation_flop
from perfsim.specs.hardware import DeviceKind, WaferClusterSpec
from perfsim.specs.optimizers import OPTIMIZERS
from perfsim.specs.recipe import Job
from perfsim.work.counts import layer_activation_bytes, parameters
from perfsim.work.kernels import Kernel, LayerSlice

# What MemoryX holds and moves for each parameter, in DRAM or flash.
#
# MemoryX keeps each parameter in the format that it streams, and the state of the optimizer: the fp32 master
# copy, moments, and the fp32 sum of gradients. Adam reads 12 B of state and the gradient and writes the state
# back: 28 B and about 15 FLOP per parameter and step. Zeros of sparse weights are neither stored nor updated.

MASTER_BYTES = 4.0
GRADIENT_SUM_BYTES = 4.0


def kept_parameters(job: Job, num_parameters: float, matrices: float = 0.0) -> float:
    """Nonzero parameters of a block, of which the `matrices` of a layer can be sparse."""
    return num_parameters - job.recipe.weight_sparsity * matrices


def streamed_bytes(job: Job, system: WaferClusterSpec, num_parameters: float, matrices: float = 0.0) -> float:
    """Bytes of a block on the wire: its nonzero weights, with an index for each weight of sparse matrices."""
    kept = kept_parameters(job, num_parameters, matrices)
    sparsity = job.recipe.weight_sparsity
    indexed = (1.0 - sparsity) * matrices if sparsity else 0.0
    return (kept + system.streaming.sparse_index_overhead * indexed) * system.weight_bytes


def _kept_moments(job: Job) -> float:
    """Bytes of the moments of a parameter in MemoryX."""
    kept = OPTIMIZERS[job.recipe.optimizer].memoryx_moments
    return moment_bytes(job.recipe, job.model) if kept else 0.0


def update_kernel(job: Job, num_parameters: float) -> Kernel:
    """The optimizer on some parameters: state read and written, gradient read."""
    optimizer = job.recipe.optimizer
    state_bytes = MASTER_BYTES + _kept_moments(job)
    flop = OPTIMIZERS[optimizer].update_flop + orthogonalisation_flop(job.recipe, job.model)
    return Kernel(
        name=optimizer,
        op="elementwise",
        flop=flop * num_parameters,
        bytes_accessed=(2.0 * state_bytes + GRADIENT_SUM_BYTES) * num_parameters,
    )


class Store:
    """Where MemoryX keeps a job: in DRAM while there is room, unless the system says where."""

    def __init__(self, job: Job, system: WaferClusterSpec) -> None:
        self.memoryx = system.memoryx
        counts = parameters(job.model)
        count = float(counts.total)
        matrices = float(counts.body_matrices)
        sparse = job.recipe.weight_sparsity * matrices
        self.kept = count - sparse
        overhead = system.streaming.sparse_index_overhead if sparse else 0.0
        indexed = matrices - sparse
        self.moment_bytes = _kept_moments(job)
        self.weights = {"streamed weights": (self.kept + overhead * indexed) * system.weight_bytes}
        self.state = {
            "parameters": MASTER_BYTES * self.kept,
            "gradients": GRADIENT_SUM_BYTES * self.kept,
            "optimizer": self.moment_bytes * self.kept,
        }
        free = self.memoryx.dram_bytes
        self.weights_in_flash = self._in_flash(self.memoryx.weights_in, self.weights, free)
        free -= 0.0 if self.weights_in_flash else sum(self.weights.values())
        self.state_in_flash = self._in_flash(self.memoryx.optimizer_state_in, self.state, free)

    @property
    def state_bytes(self) -> float:
        """Bytes per parameter that are read before its update and written after it."""
        return MASTER_BYTES + self.moment_bytes

    def _in_flash(self, wanted: str, parts: dict[str, float], free: float) -> bool:
        if wanted != "auto":
            return wanted == "flash"
        return sum(parts.values()) > free and self.memoryx.flash_bytes > 0

    def uses(self) -> Iterator[MemoryUse]:
        """Memory use of DRAM, and of flash if it is used."""
        dram = (self.weights if not self.weights_in_flash else {}) | (
            self.state if not self.state_in_flash else {}
        )
        flash = (self.weights if self.weights_in_flash else {}) | (self.state if self.state_in_flash else {})
        yield MemoryUse("MemoryX DRAM", dram, self.memoryx.dram_bytes, on_device=False)
        if flash:
            yield MemoryUse("MemoryX flash", flash, self.memoryx.flash_bytes, on_device=False)

    @property
    def note(self) -> str:
        """What MemoryX holds, in words."""
        where = {False: "DRAM", True: "flash"}
        weights, state = (_size_text(sum(parts.values())) for parts in (self.weights, self.state))
        return (
            f"MemoryX holds {weights} of weights in {where[self.weights_in_flash]} and "
            f"{state} of optimizer state in {where[self.state_in_flash]}"
        )


def _size_text(n_bytes: float) -> str:
    return f"{n_bytes / 1e12:.3g} TB" if n_bytes >= 1e12 else f"{n_bytes / 1e9:.3g} GB"


class StreamedDevice(ABC):
    """How a kind of device computes layers with streamed weights."""

    place: str
    """Name of the device and its memory."""

    @abstractmethod
    def layer_slice(self, job: Job, micro_batch_size: int) -> LayerSlice:
        """The layer that one device computes, without partitioning."""

    @abstractmethod
    def kept_bytes(self, part: LayerSlice) -> float:
        """Bytes that a layer keeps for its backward without recompute."""

    @abstractmethod
    def kernels(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """The kernels of a pass that take time on the device, with weights streamed row by row."""


class Wafer(StreamedDevice):
    """Standard attention whose scores are computed in tiles and not kept, and no dropout masks.

    Kernels other than matrix products are hidden behind the movement of weights and activations.
    """

    place = "wafer"

    def layer_slice(self, job: Job, micro_batch_size: int) -> LayerSlice:
        """A layer without the recipe's attention kernel and dropout."""
        return LayerSlice(
            model=job.model,
            seq_length=job.seq_length,
            micro_batch_size=micro_batch_size,
            element_bytes=job.recipe.element_bytes,
            dropout=False,
        )

    def kept_bytes(self, part: LayerSlice) -> float:
        """All activations except attention scores."""
        return layer_activation_bytes(part, "selective")

    def kernels(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """Only matrix products."""
        return tuple(_streamed(kernel) for kernel in kernels if kernel.op == "gemm")


class StreamedGpu(StreamedDevice):
    """A GPU that runs all its kernels as usual."""

    place = "GPU"

    def layer_slice(self, job: Job, micro_batch_size: int) -> LayerSlice:
        """A layer with the recipe's attention kernel and dropout."""
        whole = WAFER.layer_slice(job, micro_batch_size)
        recipe = job.recipe
        return replace(
            whole,
            attention=recipe.runtime.attention,
            dropout=recipe.dropout,
            fused_cross_entropy=recipe.runtime.fused_cross_entropy,
        )

    def kept_bytes(self, part: LayerSlice) -> float:
        """All activations, with attention scores where the attention kernel keeps them."""
        return layer_activation_bytes(part, "none")

    def kernels(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """All kernels."""
        return tuple(_streamed(kernel) for kernel in kernels)


def _streamed(kernel: Kernel) -> Kernel:
    """The kernel, marked as streamed if it is a product with weights."""
    if kernel.op != "gemm" or kernel.partition == "none":
        return kernel
    return kernel._replace(partition="streamed")


WAFER = Wafer()
DEVICES: Mapping[DeviceKind, StreamedDevice] = {"wafer": WAFER, "gpu": StreamedGpu()}


def device_of(system: WaferClusterSpec) -> StreamedDevice:
    """The device of a system."""
    return DEVICES[system.device.kind]
