"""Memory policies for the activations of a wafer, needed because a batch rarely fits.

The batch of a system is split into micro-batches. Of each layer, either all activations for its backward are
kept (*resident*), or only the input of every group of `g` layers is kept and the activations are recomputed
before their backward (*recompute*, with recompute interval `g`). Kept activations may go to the activation
servers and return before they are needed (*spill*). Attention scores are never kept: they are computed
and used in tiles. One fp16 tensor per layer for a whole published batch already exceeds 40 GB, so
"all resident" is refused where it does not fit, while other policies can run every published batch.
"""

from __future__ import annotations

from dataclasses import replace

from perfsim.costs.memory import MemoryUse
from perfsim.specs.hardware import WaferClusterSpec
from perfsim.specs.model import layer_kinds
from perfsim.specs.recipe import Job
from perfsim.specs.streaming_layout import StreamingLayout
from perfsim.strategies.streaming.device import (
    GRADIENT_SUM_BYTES,
    Store,
    StreamedDevice,
    device_of,
    streamed_bytes,
)
from perfsim.work.counts import parameters
from perfsim.work.kernels import LayerSlice

IN_FLIGHT = 2
"""Spilled tensors that the wafer still holds: one in use, one in transfer."""


def spilled_unit_bytes(part: LayerSlice, group: int, device: StreamedDevice) -> float:
    """Bytes of one spill: everything that a layer keeps, or the input of a group."""
    return device.kept_bytes(part) if group == 0 else part.activation_bytes


def activation_parts_bytes(job: Job, layout: StreamingLayout, device: StreamedDevice) -> dict[str, float]:
    """Activations of one micro-batch on one device: kept bytes, and the working set of one group."""
    part = device.layer_slice(job, layout.micro_batch_size)
    layers = _layer_bytes(job, part, device)
    group = layout.recompute_layers
    working = 2 * part.activation_bytes if group == 0 else _largest_group(layers, group)
    if layout.spill:
        spilled = max(layers) if group == 0 else part.activation_bytes
        return {"activations": IN_FLIGHT * spilled, "working set": working}
    kept = sum(layers) if group == 0 else -(-len(layers) // group) * part.activation_bytes
    return {"activations": kept, "working set": working}


def _layer_bytes(job: Job, part: LayerSlice, device: StreamedDevice) -> list[float]:
    """What every layer keeps for its backward, in the order of the forward pass."""
    kinds = layer_kinds(job.model)
    by_kind = {kind: device.kept_bytes(replace(part, kind=kind)) for kind in dict.fromkeys(kinds)}
    return [by_kind[kind] for kind in kinds]


def _largest_group(layers: list[float], group: int) -> float:
    """Bytes of the group of `group` consecutive layers, counted from the first, that keeps most."""
    return max(sum(layers[first : first + group]) for first in range(0, len(layers), group))


def spilled_bytes(job: Job, layout: StreamingLayout, device: StreamedDevice) -> float:
    """Activations of one micro-batch on the activation servers of one system."""
    if not layout.spill:
        return 0.0
    part = device.layer_slice(job, layout.micro_batch_size)
    if layout.recompute_layers == 0:
        return sum(_layer_bytes(job, part, device))
    return -(-len(layer_kinds(job.model)) // layout.recompute_layers) * part.activation_bytes


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
    own = system.device.memory
    device = device_of(system)
    parts = activation_parts_bytes(job, layout, device)
    parts["stream buffers"] = stream_buffer_bytes(job, system)
    parts["reserved"] = own.reserved
    sums = _gradient_sum_bytes(job, layout, system, per_system)
    if sums:
        parts["gradients"] = sums
    uses = [MemoryUse(device.place, parts, own.capacity), *Store(job, system).uses()]
    if layout.spill:
        servers = system.activation_servers
        spilled = {"activations": spilled_bytes(job, layout, device)}
        capacity = servers.per_system * servers.capacity
        uses.append(MemoryUse("activation servers", spilled, capacity, on_device=False))
    return tuple(uses)


def largest_micro_batch(
    job: Job, system: WaferClusterSpec, per_system: int, group: int, *, spill: bool = False
) -> int:
    """The largest micro-batch of a system that fits under a policy; 0 where none fits.

    Activations are linear in the micro-batch, so this is a division.
    """
    single = StreamingLayout(micro_batch_size=1, recompute_layers=group, spill=spill)
    free = system.device.memory.usable_bytes - stream_buffer_bytes(job, system)
    device = device_of(system)
    sequence_bytes = sum(activation_parts_bytes(job, single, device).values())
    fits = int(free // sequence_bytes)
    if fits < per_system:
        fits = int((free - _gradient_sum_bytes(job, single, system, per_system)) // sequence_bytes)
    if spill:
        servers = system.activation_servers
        fits = min(fits, int(servers.per_system * servers.capacity // spilled_bytes(job, single, device)))
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
