"""The devices that weights are streamed to: a wafer, or a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from perfsim.hardware import DeviceKind, WaferClusterSpec
from perfsim.transformer import Kernel, LayerSlice, layer_activation_bytes
from perfsim.workload import Job


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
            attention=recipe.attention,
            dropout=recipe.dropout,
            fused_cross_entropy=recipe.fused_cross_entropy,
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
