"""What weights are streamed to: a wafer, or a GPU with memory of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from perfsim.hardware import DeviceKind, WaferClusterSpec
from perfsim.transformer import Kernel, LayerSlice, layer_activation_bytes
from perfsim.workload import Job


class StreamedDevice(ABC):
    """How one kind of device computes layers whose weights are streamed to it."""

    place: str
    """What computes, as the name of its memory."""

    @abstractmethod
    def layer_slice(self, job: Job, micro_batch_size: int) -> LayerSlice:
        """A layer as one device computes it, whole."""

    @abstractmethod
    def kept_bytes(self, part: LayerSlice) -> float:
        """Everything that a layer keeps for its backward."""

    @abstractmethod
    def kernels(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """What the device computes of a pass, with its weights streamed row by row."""


class Wafer(StreamedDevice):
    """Attention in full, its scores made in tiles and never kept, and no dropout masks.

    What is no matrix product is done while weights and activations pass the mesh.
    """

    place = "wafer"

    def layer_slice(self, job: Job, micro_batch_size: int) -> LayerSlice:
        """A layer without the recipe's attention kernel and dropout."""
        return LayerSlice(
            model=job.model, seq_length=job.seq_length, micro_batch_size=micro_batch_size, dropout=False
        )

    def kept_bytes(self, part: LayerSlice) -> float:
        """All but attention scores."""
        return layer_activation_bytes(part, "selective")

    def kernels(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """Matrix products alone."""
        return tuple(_streamed(kernel) for kernel in kernels if kernel.op == "gemm")


class StreamedGpu(StreamedDevice):
    """The kernels of any GPU."""

    place = "GPU"

    def layer_slice(self, job: Job, micro_batch_size: int) -> LayerSlice:
        """A layer with the recipe's attention kernel and dropout."""
        whole = WAFER.layer_slice(job, micro_batch_size)
        return replace(whole, attention=job.recipe.attention, dropout=job.recipe.dropout)

    def kept_bytes(self, part: LayerSlice) -> float:
        """Attention scores included, where the attention kernel keeps them."""
        return layer_activation_bytes(part, "none")

    def kernels(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """Every kernel."""
        return tuple(_streamed(kernel) for kernel in kernels)


def _streamed(kernel: Kernel) -> Kernel:
    """A product with its weights streamed; one of activations with activations involves no weight."""
    if kernel.op != "gemm" or kernel.partition == "none":
        return kernel
    return replace(kernel, partition="streamed")


WAFER = Wafer()
DEVICES: Mapping[DeviceKind, StreamedDevice] = {"wafer": WAFER, "gpu": StreamedGpu()}


def device_of(system: WaferClusterSpec) -> StreamedDevice:
    """What computes in a system."""
    return DEVICES[system.device.kind]
