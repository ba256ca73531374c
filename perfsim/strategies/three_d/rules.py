"""The rules of legal layouts, and the lists of layouts that keep them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfsim.sizes import passes_problem
from perfsim.strategies.schedules import SCHEDULES, chunks_problem
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED
from perfsim.strategies.three_d.zero import SHARDED
from perfsim.topology import FatTree
from perfsim.workload import Job, ParallelLayout, Recompute

ZERO_STAGES = (0, 1, GRADIENTS_SHARDED, SHARDED)
MICRO_BATCH_SIZES = (1, 2, 4, 8, 16)
DEGREES = ("tensor", "pipeline", "data")


def layout_problems(
    job: Job, topology: FatTree, layout: ParallelLayout, strategy: str, free_degrees: tuple[str, ...]
) -> list[str]:
    """All problems of a layout, in words; empty for a legal layout."""
    return [
        *_device_problems(topology, layout, strategy, free_degrees),
        *_tensor_problems(job, layout),
        *_stage_problems(job, layout),
        *_batch_problems(job, layout),
    ]


def _device_problems(
    topology: FatTree, layout: ParallelLayout, strategy: str, free_degrees: tuple[str, ...]
) -> Iterator[str]:
    held = [name for name in DEGREES if name not in free_degrees and getattr(layout, name) != 1]
    for name in held:
        yield f"strategy {strategy} holds {name} at 1, the layout has {name} {getattr(layout, name)}"
    if layout.num_devices != topology.num_devices:
        yield (
            f"tensor {layout.tensor} x pipeline {layout.pipeline} x data {layout.data} is "
            f"{layout.num_devices} devices, the question has {topology.num_devices}"
        )
    if layout.zero_stage not in ZERO_STAGES:
        yield f"zero_stage {layout.zero_stage} is not available; allowed: {', '.join(map(str, ZERO_STAGES))}"
    if layout.zero_stage == SHARDED and layout.pipeline > 1:
        yield f"zero_stage 3 gathers every layer on every rank, so pipeline must be 1, not {layout.pipeline}"
    chosen = SCHEDULES.get(layout.schedule)
    if layout.zero_stage == SHARDED and chosen is not None and chosen.splits_backward:
        yield f"zero_stage 3 runs whole backwards, schedule {layout.schedule} splits them; try 1f1b"
    elif layout.zero_stage == SHARDED and layout.schedule != "1f1b":
        yield (
            "zero_stage 3 takes one micro-batch forward and back before the next, so schedule must be 1f1b, "
            f"not {layout.schedule}"
        )


def _tensor_problems(job: Job, layout: ParallelLayout) -> Iterator[str]:
    model, tensor = job.model, layout.tensor
    for name, count in (
        ("num_attention_heads", model.num_attention_heads),
        ("num_query_groups", model.query_groups),
        ("ffn_hidden_size", model.ffn_hidden_size),
    ):
        if count % tensor:
            yield f"{name} {count} is not a multiple of tensor {tensor}; nearest: {_nearest(count, tensor)}"
    if layout.sequence_parallel and job.seq_length % tensor:
        yield f"seq_length {job.seq_length} is not a multiple of tensor {tensor}"


def _stage_problems(job: Job, layout: ParallelLayout) -> Iterator[str]:
    layers, stages = job.model.num_layers, layout.num_stages
    if layout.schedule not in SCHEDULES:
        yield f"schedule {layout.schedule!r} is not available; allowed: {', '.join(sorted(SCHEDULES))}"
    elif problem := chunks_problem(SCHEDULES[layout.schedule], layout.virtual_pipeline):
        yield problem
    if layout.layers_per_stage is None:
        if layers % stages:
            yield (
                f"{layers} layers do not divide over {stages} stages; "
                f"nearest: {_nearest(layers, stages)}, or give layers_per_stage"
            )
        return
    given = layout.layers_per_stage
    if len(given) != stages:
        yield f"layers_per_stage has {len(given)} entries for {stages} stages"
    if sum(given) != layers:
        yield f"layers_per_stage adds up to {sum(given)}, the model has {layers} layers"
    if any(count < 0 for count in given):
        yield "layers_per_stage has a negative entry"


def _batch_problems(job: Job, layout: ParallelLayout) -> Iterator[str]:
    per_pass = layout.data * layout.micro_batch_size
    if job.global_batch_size % per_pass:
        yield (
            f"global_batch_size {job.global_batch_size} is not a multiple of data {layout.data} x "
            f"micro_batch_size {layout.micro_batch_size}; nearest: "
            f"{max(1, round(job.global_batch_size / per_pass)) * per_pass}"
        )
        return
    microbatches = job.global_batch_size // per_pass
    if problem := passes_problem(job.model.num_layers, microbatches):
        yield problem
    if layout.schedule == "interleaved" and microbatches % layout.pipeline:
        yield f"interleaved needs micro-batches ({microbatches}) in multiples of pipeline {layout.pipeline}"


def _nearest(count: int, wanted: int) -> int:
    """The divisor of `count` nearest to `wanted`."""
    divisors = [number for number in range(1, count + 1) if count % number == 0]
    return min(divisors, key=lambda number: (abs(number - wanted), number))


def legal_layouts(job: Job, topology: FatTree, free_degrees: tuple[str, ...]) -> Iterator[ParallelLayout]:
    """Every legal layout on all devices under 1F1B: degrees, micro-batch size, recompute mode.

    The list follows established practice: the tensor group stays inside a node (unless the strategy has no
    other degree), sequence parallelism is used with tensor parallelism, and the optimizer is sharded over
    replicas. Other schedules and ZeRO stages are `layout_variants` of these.
    """
    total = topology.num_devices
    for tensor in _divisors(total, "tensor" in free_degrees):
        inside = tensor <= topology.devices_per_node or free_degrees == ("tensor",)
        if not inside or any(_tensor_problems(job, ParallelLayout(tensor=tensor))):
            continue
        for pipeline in _divisors(total // tensor, "pipeline" in free_degrees):
            data = total // tensor // pipeline
            if job.model.num_layers % pipeline or (data > 1 and "data" not in free_degrees):
                continue
            yield from _with_micro_batches(job, tensor, pipeline, data)


def _with_micro_batches(job: Job, tensor: int, pipeline: int, data: int) -> Iterator[ParallelLayout]:
    modes: tuple[Recompute, ...] = ("none", "selective", "full")
    if job.recipe.recompute != "auto":
        modes = (job.recipe.recompute,)
    elif job.recipe.attention == "flash":
        modes = ("none", "full")
    for micro_batch_size in MICRO_BATCH_SIZES:
        microbatches, rest = divmod(job.global_batch_size, data * micro_batch_size)
        if rest or passes_problem(job.model.num_layers, microbatches):
            continue
        for recompute in modes:
            yield ParallelLayout(
                tensor=tensor,
                pipeline=pipeline,
                data=data,
                sequence_parallel=tensor > 1 and job.seq_length % tensor == 0,
                zero_stage=1 if data > 1 else 0,
                micro_batch_size=micro_batch_size,
                recompute=recompute,
            )


def layout_variants(job: Job, topology: FatTree, layout: ParallelLayout) -> Iterator[ParallelLayout]:
    """The same degrees under every other legal schedule and ZeRO stage."""
    for variant in _variants(job, layout):
        if variant != layout and not any(_variant_problems(job, topology, variant)):
            yield variant


def _variants(job: Job, layout: ParallelLayout) -> Iterator[ParallelLayout]:
    if layout.pipeline > 1:
        for name, schedule in SCHEDULES.items():
            most = job.model.num_layers // layout.pipeline
            for chunks in range(2, most + 1) if schedule.chunks is None else (schedule.chunks,):
                yield replace(layout, schedule=name, virtual_pipeline=chunks)
    if layout.data > 1:
        for stage in ZERO_STAGES:
            yield replace(layout, zero_stage=stage)


def _variant_problems(job: Job, topology: FatTree, layout: ParallelLayout) -> Iterator[str]:
    """Problems of a variant of a legal layout; the rules of tensor parallelism are kept already."""
    yield from _device_problems(topology, layout, "", DEGREES)
    yield from _stage_problems(job, layout)
    yield from _batch_problems(job, layout)


def _divisors(count: int, free: bool) -> list[int]:
    if not free:
        return [1]
    return [number for number in range(1, count + 1) if count % number == 0]
