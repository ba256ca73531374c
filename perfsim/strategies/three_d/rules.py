"""The rules of legal layouts; those of a degree are with what it divides."""

from __future__ import annotations

from collections.abc import Iterator

from perfsim.sizes import passes_problem
from perfsim.strategies.schedules import SCHEDULES, chunks_problem
from perfsim.strategies.three_d.context import context_problems
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED
from perfsim.strategies.three_d.division import divided
from perfsim.strategies.three_d.expert import expert_problems
from perfsim.strategies.three_d.tensor import tensor_problems
from perfsim.strategies.three_d.zero import SHARDED
from perfsim.suggest import nearest_divisor
from perfsim.topology import FatTree
from perfsim.workload import Job, ParallelLayout

ZERO_STAGES = (0, 1, GRADIENTS_SHARDED, SHARDED)
DEGREES = ("tensor", "context", "pipeline", "data", "expert", "expert_tensor")


def layout_problems(
    job: Job, topology: FatTree, layout: ParallelLayout, strategy: str, free_degrees: tuple[str, ...]
) -> list[str]:
    """All problems of a layout, in words; empty for a legal layout."""
    return [
        *_device_problems(topology, layout, strategy, free_degrees),
        *tensor_problems(job, layout),
        *context_problems(job, layout),
        *expert_problems(job, layout),
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
        context = f"context {layout.context} × " if layout.context > 1 else ""
        yield (
            f"tensor {layout.tensor} × {context}pipeline {layout.pipeline} × data {layout.data} is "
            f"{layout.num_devices} devices, the question has {topology.num_devices}"
        )
    if layout.zero_stage not in ZERO_STAGES:
        yield f"zero_stage {layout.zero_stage} is not available; allowed: {', '.join(map(str, ZERO_STAGES))}"
    if layout.zero_stage == SHARDED and layout.pipeline > 1:
        yield f"zero_stage 3 gathers every layer on every rank, so pipeline must be 1, not {layout.pipeline}"
    yield from _shard_problems(layout)
    chosen = SCHEDULES.get(layout.schedule)
    if layout.zero_stage == SHARDED and chosen is not None and chosen.splits_backward:
        yield f"zero_stage 3 runs whole backwards, schedule {layout.schedule} splits them; try 1f1b"
    elif layout.zero_stage == SHARDED and layout.schedule != "1f1b":
        yield (
            "zero_stage 3 takes one micro-batch forward and back before the next, so schedule must be 1f1b, "
            f"not {layout.schedule}"
        )


def _shard_problems(layout: ParallelLayout) -> Iterator[str]:
    group, replicas = layout.shard_group, layout.replicas
    if group is None:
        return
    if not layout.zero_stage:
        yield f"shard_group {group} is a part of the ranks over which ZeRO shards; zero_stage is 0"
    if group < 2 or replicas % group:
        near = f"; nearest: {nearest_divisor(replicas, group, least=2)}" if replicas > 1 else ""
        ranks = f"the {replicas} ranks of context × data"
        yield f"shard_group {group} must divide {ranks} in groups of 2 or more{near}"


def _stage_problems(job: Job, layout: ParallelLayout) -> Iterator[str]:
    layers, stages = job.model.num_layers, layout.num_stages
    if layout.recompute_every < 1:
        yield f"recompute_every {layout.recompute_every} must be at least 1"
    if layout.schedule not in SCHEDULES:
        yield f"schedule {layout.schedule!r} is not available; allowed: {', '.join(sorted(SCHEDULES))}"
    elif problem := chunks_problem(SCHEDULES[layout.schedule], layout.virtual_pipeline):
        yield problem
    if layout.layers_per_stage is None:
        if layers % stages:
            yield f"{layers} layers do not divide over {stages} stages; {_other_stages(layers, layout)}"
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
            f"global_batch_size {job.global_batch_size} is not a multiple of data {layout.data} × "
            f"micro_batch_size {layout.micro_batch_size}; nearest: "
            f"{max(1, round(job.global_batch_size / per_pass)) * per_pass}"
        )
        return
    microbatches = job.global_batch_size // per_pass
    if problem := passes_problem(job.model.num_layers * layout.context, microbatches):
        yield problem
    if layout.schedule == "interleaved" and microbatches % layout.pipeline:
        yield f"interleaved needs micro-batches ({microbatches}) in multiples of pipeline {layout.pipeline}"


def _other_stages(layers: int, layout: ParallelLayout) -> str:
    """The number of stages nearest to a layout's that divides, and uneven stages of its own, in words."""
    stages, even = layout.num_stages, f"nearest: {nearest_divisor(layers, layout.num_stages)}"
    if stages > layers:
        return even
    given = divided(layout.schedule, layout.pipeline, layout.virtual_pipeline, layers).layers
    return f"{even}, or give layers_per_stage={'-'.join(map(str, given))}"
