"""What weight streaming holds, and where: on the device that computes, in MemoryX, on activation servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from perfsim.costs.memory import MemoryUse, orthogonalisation_flop, state_bytes
from perfsim.specs.hardware import DeviceKind, WaferClusterSpec
from perfsim.specs.model import layer_kinds
from perfsim.specs.optimizers import OPTIMIZERS
from perfsim.specs.recipe import Job
from perfsim.specs.streaming_layout import StreamingLayout
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
    return state_bytes(job.recipe, job.model).moments if kept else 0.0


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
        matrices = float(counts.body_matrices)
        self.kept = kept_parameters(job, float(counts.total), matrices)
        moments_bytes = _kept_moments(job)
        self.state_bytes = MASTER_BYTES + moments_bytes
        """Bytes per parameter that are read before its update and written after it."""
        self.weights = {"streamed weights": streamed_bytes(job, system, float(counts.total), matrices)}
        self.state = {
            "parameters": MASTER_BYTES * self.kept,
            "gradients": GRADIENT_SUM_BYTES * self.kept,
            "optimizer": moments_bytes * self.kept,
        }
        free = self.memoryx.dram_bytes
        self.weights_in_flash = self._in_flash(self.memoryx.weights_in, self.weights, free)
        free -= 0.0 if self.weights_in_flash else sum(self.weights.values())
        self.state_in_flash = self._in_flash(self.memoryx.optimizer_state_in, self.state, free)

    def _in_flash(self, wanted: str, parts: dict[str, float], free: float) -> bool:
        if wanted != "auto":
            return wanted == "flash"
        return sum(parts.values()) > free and self.memoryx.flash_bytes > 0

    def uses(self) -> Iterator[MemoryUse]:
        """The memory of MemoryX, in DRAM and, where it holds something, in flash."""
        held: dict[bool, dict[str, float]] = {False: {}, True: {}}
        held[self.weights_in_flash] |= self.weights
        held[self.state_in_flash] |= self.state
        yield MemoryUse("MemoryX DRAM", held[False], self.memoryx.dram_bytes, on_device=False)
        if held[True]:
            yield MemoryUse("MemoryX flash", held[True], self.memoryx.flash_bytes, on_device=False)

    @property
    def note(self) -> str:
        """Where weights and state are, in words."""
        where = {False: "DRAM", True: "flash"}
        sizes = (sum(parts.values()) for parts in (self.weights, self.state))
        weights, state = (f"{n / 1e12:.3g} TB" if n >= 1e12 else f"{n / 1e9:.3g} GB" for n in sizes)
        return (
            f"MemoryX holds {weights} of weights in {where[self.weights_in_flash]} and "
            f"{state} of optimizer state in {where[self.state_in_flash]}"
        )


@dataclass(frozen=True)
class StreamedDevice:
    """How a kind of device computes layers with streamed weights."""

    place: str
    """Name of the device and its memory."""
    as_usual: bool
    """Whether it runs the recipe's attention kernel and dropout, and all kernels take time.

    A wafer does not: its attention scores are computed in tiles and not kept, there are no dropout masks, and
    kernels other than matrix products are hidden behind the movement of weights and activations.
    """

    def layer_slice(self, job: Job, micro_batch_size: int) -> LayerSlice:
        """The layer that one device computes, without partitioning."""
        recipe = job.recipe
        runtime = recipe.runtime
        return LayerSlice(
            model=job.model,
            seq_length=job.seq_length,
            micro_batch_size=micro_batch_size,
            element_bytes=recipe.element_bytes,
            attention=runtime.attention if self.as_usual else "standard",
            dropout=recipe.dropout and self.as_usual,
            fused_cross_entropy=runtime.fused_cross_entropy and self.as_usual,
        )

    def kept_bytes(self, part: LayerSlice) -> float:
        """Bytes that a layer keeps for its backward without recompute."""
        return layer_activation_bytes(part, "none" if self.as_usual else "selective")

    def kernels(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """The kernels of a pass that take time, with weights streamed row by row."""
        return tuple(
            kernel if kernel.partition == "none" else kernel._replace(partition="streamed")
            for kernel in kernels
            if self.as_usual or kernel.op == "gemm"
        )


DEVICES: Mapping[DeviceKind, StreamedDevice] = {
    "wafer": StreamedDevice("wafer", as_usual=False),
    "gpu": StreamedDevice("GPU", as_usual=True),
}

IN_FLIGHT = 2
"""Spilled tensors that the wafer still holds: one in use, one in transfer."""


class _Activations(NamedTuple):
    """Bytes of the activations of one micro-batch of one device."""

    kept: float
    """Held on the device from forward to backward."""
    working: float
    """The working set of one group of layers that is recomputed together."""
    spilled: float
    """On the activation servers."""


def activations(job: Job, layout: StreamingLayout, device: StreamedDevice) -> _Activations:
    """Bytes of the activations of one micro-batch of one device, and where they are."""
    part = device.layer_slice(job, layout.micro_batch_size)
    kinds = layer_kinds(job.model)
    by_kind = {kind: device.kept_bytes(replace(part, kind=kind)) for kind in dict.fromkeys(kinds)}
    layers = [by_kind[kind] for kind in kinds]
    unit = max(layers)  # of what is spilled: all that a layer keeps, or the input of a group
    kept = sum(layers)
    working = 2 * part.activation_bytes
    if group := layout.recompute_layers:
        unit = part.activation_bytes
        kept = -(-len(layers) // group) * unit
        # The group of consecutive layers, counted from the first, that keeps most.
        working = max(sum(layers[first : first + group]) for first in range(0, len(layers), group))
    if layout.spill:
        return _Activations(IN_FLIGHT * unit, working, kept)
    return _Activations(kept, working, 0.0)


def stream_buffer_bytes(job: Job, system: WaferClusterSpec) -> float:
    """Buffers for streamed weights: one layer, or one chunk of it, for each layer in flight.

    A chunk is enough where weights are used as they arrive and are not stored.
    """
    streaming = system.streaming
    held = system.swarmx.chunk
    if streaming.weights_held == "layer":
        counts = parameters(job.model)
        head = counts.final_norm + job.model.vocab_size * job.model.hidden_size
        layers = (
            streamed_bytes(job, system, counts.of(kind), counts.matrices_of(kind))
            for kind in set(layer_kinds(job.model))
        )
        held = max(*layers, streamed_bytes(job, system, max(counts.embedding, head)))
    return (1 + streaming.prefetch_depth) * held


def _gradient_sum_bytes(
    job: Job, layout: StreamingLayout, system: WaferClusterSpec, per_system: int
) -> float:
    """Gradients that a wafer accumulates over micro-batches; 0 where it does not."""
    if system.streaming.accumulate_at != "wafer" or layout.micro_batch_size >= per_system:
        return 0.0
    return GRADIENT_SUM_BYTES * Store(job, system).kept


def wafer_memory(
    job: Job, layout: StreamingLayout, system: WaferClusterSpec, per_system: int
) -> tuple[MemoryUse, ...]:
    """Peak memory of a wafer, MemoryX and the activation servers."""
    on_device = system.device.memory
    device = DEVICES[system.device.kind]
    held = activations(job, layout, device)
    parts = {
        "activations": held.kept,
        "working set": held.working,
        "stream buffers": stream_buffer_bytes(job, system),
        "reserved": on_device.reserved,
    }
    sums = _gradient_sum_bytes(job, layout, system, per_system)
    if sums:
        parts["gradients"] = sums
    uses = [MemoryUse(device.place, parts, on_device.capacity), *Store(job, system).uses()]
    if layout.spill:
        servers = system.activation_servers
        capacity = servers.per_system * servers.capacity
        spilled = {"activations": held.spilled}
        uses.append(MemoryUse("activation servers", spilled, capacity, on_device=False))
    return tuple(uses)


def largest_micro_batch(
    job: Job, system: WaferClusterSpec, per_system: int, group: int, *, spill: bool = False
) -> int:
    """The largest micro-batch of a system that fits under a policy; 0 where none fits.

    _Activations are linear in the micro-batch, so this is a division.
    """
    single = StreamingLayout(micro_batch_size=1, recompute_layers=group, spill=spill)
    free = system.device.memory.usable_bytes - stream_buffer_bytes(job, system)
    sequence = activations(job, single, DEVICES[system.device.kind])
    sequence_bytes = sequence.kept + sequence.working
    fits = int(free // sequence_bytes)
    if fits < per_system:
        fits = int((free - _gradient_sum_bytes(job, single, system, per_system)) // sequence_bytes)
    if spill:
        servers = system.activation_servers
        fits = min(fits, int(servers.per_system * servers.capacity // sequence.spilled))
    return max(0, min(per_system, fits))


def even_micro_batch(per_system: int, largest: int) -> int:
    """The micro-batch size that splits a system's batch evenly; the last part may be smaller."""
    count = -(-per_system // largest)
    return -(-per_system // count)


def policy_name(layout: StreamingLayout, num_microbatches: int) -> str:
    """The policy in words, for reports."""
    group = layout.recompute_layers
    kept = "resident" if group == 0 else f"recompute every {group} layers"
    if layout.spill:
        kept = "spill" if group == 0 else f"{kept}, inputs spilled"
    if num_microbatches > 1:
        kept += f", split in {num_microbatches} micro-batches"
    return kept


def with_policy(
    layout: StreamingLayout, micro_batch_size: int, group: int, *, spill: bool = False
) -> StreamingLayout:
    """A layout under another policy."""
    return replace(
        layout,
        micro_batch_size=micro_batch_size,
        recompute_layers=group,
        recompute="full" if group else "none",
        spill=spill,
    )
