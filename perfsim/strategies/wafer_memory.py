"""Where activations live on a wafer: an explicit policy, chosen because the batch rarely fits.

The batch of one system is split in `M` micro-batches, and of each layer either everything that its
backward needs is kept (*resident*), or only the input of every group of `g` layers, whose activations
are made again before their backward (*recompute*). Attention scores are never kept: they are produced
and consumed in tiles. One fp16 tensor a layer for a whole published batch already exceeds 40 GB, so
"all resident" is refused where it does not fit, and a published batch is never called impossible.
"""

from __future__ import annotations

from dataclasses import replace

from perfsim.costs.memory import MemoryUse
from perfsim.hardware import WaferClusterSpec
from perfsim.transformer import HALF, LayerSlice, layer_activation_bytes, parameters
from perfsim.workload import Job, ParallelLayout


def wafer_slice(job: Job, micro_batch_size: int) -> LayerSlice:
    """A layer as one wafer runs it: whole, attention in full, no dropout masks kept."""
    return LayerSlice(
        model=job.model, seq_length=job.seq_length, micro_batch_size=micro_batch_size, dropout=False
    )


def activation_parts_bytes(job: Job, layout: ParallelLayout) -> dict[str, float]:
    """Activations of one micro-batch on one wafer: what is kept, and what one group needs to run."""
    part = wafer_slice(job, layout.micro_batch_size)
    layers = job.model.num_layers
    whole = layer_activation_bytes(part, "selective")
    group = layout.recompute_layers
    if group == 0:
        return {"activations": layers * whole, "working set": 2 * part.activation_bytes}
    kept = -(-layers // group) * HALF * part.activation_elements
    return {"activations": kept, "working set": group * whole}


def stream_buffer_bytes(system: WaferClusterSpec, prefetch_depth: int) -> float:
    """Weights on their way: the rows in flight of each prefetched layer, one chunk a layer.

    Weights are consumed as they arrive and never stored, so a layer holds a chunk, not itself.
    """
    return (1 + prefetch_depth) * system.swarmx.chunk


def wafer_memory(
    job: Job, layout: ParallelLayout, system: WaferClusterSpec, prefetch_depth: int
) -> tuple[MemoryUse, ...]:
    """What a wafer and MemoryX hold at their peak."""
    sram = system.device.memory
    parts = activation_parts_bytes(job, layout)
    parts["stream buffers"] = stream_buffer_bytes(system, prefetch_depth)
    parts["reserved"] = sram.reserved
    count = parameters(job.model).total
    store = {
        "parameters": 4.0 * count,
        "gradients": 4.0 * count,
        "optimizer": 8.0 * count,
    }
    return (
        MemoryUse("wafer", parts, sram.capacity),
        MemoryUse("MemoryX", store, system.memoryx.capacity, on_device=False),
    )


def largest_micro_batch(job: Job, system: WaferClusterSpec, per_system: int, group: int, depth: int) -> int:
    """The largest micro-batch of a system that fits under a policy; 0 where none does.

    Activations are linear in the micro-batch, so this is a division.
    """
    one = ParallelLayout(micro_batch_size=1, recompute_layers=group)
    each = sum(activation_parts_bytes(job, one).values())
    free = system.device.memory.usable_bytes - stream_buffer_bytes(system, depth)
    return max(0, min(per_system, int(free // each)))


def even_micro_batch(per_system: int, largest: int) -> int:
    """The micro-batch size that splits a system's batch into equal parts, the last maybe smaller."""
    count = -(-per_system // largest)
    return -(-per_system // count)


def policy_name(layout: ParallelLayout, num_microbatches: int) -> str:
    """The policy in words, for reports."""
    kept = "resident" if layout.recompute_layers == 0 else f"recompute every {layout.recompute_layers} layers"
    if num_microbatches > 1:
        kept += f", split in {num_microbatches} micro-batches"
    return kept


def with_policy(layout: ParallelLayout, micro_batch_size: int, group: int) -> ParallelLayout:
    """A layout under another policy."""
    return replace(
        layout,
        micro_batch_size=micro_batch_size,
        recompute_layers=group,
        recompute="full" if group else "none",
    )
