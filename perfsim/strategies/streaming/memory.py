"""Where activations live around a wafer: an explicit policy, chosen because the batch rarely fits.

The batch of one system is split in `M` micro-batches, and of each layer either everything that its
backward needs is kept (*resident*), or only the input of every group of `g` layers, whose activations
are made again before their backward (*recompute*). What is kept may leave the wafer for the activation
servers and come back before it is needed (*spill*). Attention scores are never kept: they are produced
and consumed in tiles. One fp16 tensor a layer for a whole published batch already exceeds 40 GB, so
"all resident" is refused where it does not fit, and a published batch is never called impossible.
"""

from __future__ import annotations

from dataclasses import replace

from perfsim.costs.memory import MemoryUse
from perfsim.hardware import WaferClusterSpec
from perfsim.strategies.streaming.device import StreamedDevice, device_of
from perfsim.strategies.streaming.memoryx import GRADIENT_SUM_BYTES, Store, streamed_bytes
from perfsim.transformer import HALF, LayerSlice, parameters
from perfsim.workload import Job, StreamingLayout

IN_FLIGHT = 2
"""Spilled tensors that the wafer still holds: one that is made or used, one on its way."""


def spilled_unit_bytes(part: LayerSlice, group: int, device: StreamedDevice) -> float:
    """What leaves the device at once: everything that a layer keeps, or the input of a group."""
    return device.kept_bytes(part) if group == 0 else part.activation_bytes


def activation_parts_bytes(job: Job, layout: StreamingLayout, device: StreamedDevice) -> dict[str, float]:
    """Activations of one micro-batch on one device: what is kept, and what one group needs to run."""
    part = device.layer_slice(job, layout.micro_batch_size)
    layers = job.model.num_layers
    whole = device.kept_bytes(part)
    group = layout.recompute_layers
    working = 2 * part.activation_bytes if group == 0 else group * whole
    if layout.spill:
        return {"activations": IN_FLIGHT * spilled_unit_bytes(part, group, device), "working set": working}
    kept = layers * whole if group == 0 else -(-layers // group) * HALF * part.activation_elements
    return {"activations": kept, "working set": working}


def spilled_bytes(job: Job, layout: StreamingLayout, device: StreamedDevice) -> float:
    """Activations of one micro-batch that lie on the activation servers of one system."""
    if not layout.spill:
        return 0.0
    part = device.layer_slice(job, layout.micro_batch_size)
    units = -(-job.model.num_layers // max(1, layout.recompute_layers))
    return units * spilled_unit_bytes(part, layout.recompute_layers, device)


def stream_buffer_bytes(job: Job, system: WaferClusterSpec) -> float:
    """Weights on their way: of each layer that may be under way a chunk, or all of it.

    Where weights are used as they arrive and never stored, a layer holds the rows in flight.
    """
    streaming = system.streaming
    held = system.swarmx.chunk
    if streaming.weights_held == "layer":
        counts = parameters(job.model)
        head = counts.final_norm + job.model.vocab_size * job.model.hidden_size
        held = max(
            streamed_bytes(job, system, counts.layer, layer=True),
            streamed_bytes(job, system, max(counts.embedding, head), layer=False),
        )
    return (1 + streaming.prefetch_depth) * held


def gradient_sum_bytes(job: Job, layout: StreamingLayout, system: WaferClusterSpec, per_system: int) -> float:
    """Gradients that a wafer sums over its micro-batches, where it does so at all."""
    if system.streaming.accumulate_at != "wafer" or layout.micro_batch_size >= per_system:
        return 0.0
    return GRADIENT_SUM_BYTES * Store(job, system).kept


def wafer_memory(
    job: Job, layout: StreamingLayout, system: WaferClusterSpec, per_system: int
) -> tuple[MemoryUse, ...]:
    """What a wafer, MemoryX and the activation servers hold at their peak."""
    own, device = system.device.memory, device_of(system)
    parts = activation_parts_bytes(job, layout, device)
    parts["stream buffers"] = stream_buffer_bytes(job, system)
    parts["reserved"] = own.reserved
    sums = gradient_sum_bytes(job, layout, system, per_system)
    if sums:
        parts["gradients"] = sums
    uses = [MemoryUse(device.place, parts, own.capacity), *Store(job, system).uses()]
    if layout.spill:
        servers = system.activation_servers
        beside = {"activations": spilled_bytes(job, layout, device)}
        capacity = servers.per_system * servers.capacity
        uses.append(MemoryUse("activation servers", beside, capacity, on_device=False))
    return tuple(uses)


def largest_micro_batch(
    job: Job, system: WaferClusterSpec, per_system: int, group: int, *, spill: bool = False
) -> int:
    """The largest micro-batch of a system that fits under a policy; 0 where none does.

    Activations are linear in the micro-batch, so this is a division.
    """
    one = StreamingLayout(micro_batch_size=1, recompute_layers=group, spill=spill)
    free = system.device.memory.usable_bytes - stream_buffer_bytes(job, system)
    device = device_of(system)
    each = sum(activation_parts_bytes(job, one, device).values())
    fits = int(free // each)
    if fits < per_system:
        fits = int((free - gradient_sum_bytes(job, one, system, per_system)) // each)
    if spill:
        servers = system.activation_servers
        fits = min(fits, int(servers.per_system * servers.capacity // spilled_bytes(job, one, device)))
    return max(0, min(per_system, fits))


def even_micro_batch(per_system: int, largest: int) -> int:
    """The micro-batch size that splits a system's batch into equal parts, the last maybe smaller."""
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
