"""The nearest change with which a layout fits in memory, found by trying.

The order is: settings that reduce the largest part of the memory, then every other single setting; another
expert degree; a larger degree in place of replicas, alone or with one setting; offload to the host; last, a
larger degree on more devices. A layout that offloads already is first tried with more offload. Only layouts
that keep the rules are tried, with every value of a degree that divides what it divides (a power of two times
as many devices first), and with stages as even as they can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from perfsim.base.errors import PerfsimError
from perfsim.base.sizes import MOST_DEVICES, passes_problem
from perfsim.base.text import nearest_divisor
from perfsim.network import FatTree
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies.schedules import SCHEDULES, chunks_problem
from perfsim.strategies.three_d.context import context_problems
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, SHARDED
from perfsim.strategies.three_d.division import divided
from perfsim.strategies.three_d.expert import expert_problems
from perfsim.strategies.three_d.memory import stage_memory
from perfsim.strategies.three_d.offload import offload_problems
from perfsim.strategies.three_d.offload_space import offloaded_memory
from perfsim.strategies.three_d.tensor import tensor_problems

# The rules of legal layouts; those of a degree are with what it divides.

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
    group = layout.shard_group
    replicas = layout.replicas
    if group is None:
        return
    if not layout.zero_stage:
        yield f"shard_group {group} is a part of the ranks over which ZeRO shards; zero_stage is 0"
    if group < 2 or replicas % group:
        near = f"; nearest: {nearest_divisor(replicas, group, least=2)}" if replicas > 1 else ""
        ranks = f"the {replicas} ranks of context × data"
        yield f"shard_group {group} must divide {ranks} in groups of 2 or more{near}"


def _stage_problems(job: Job, layout: ParallelLayout) -> Iterator[str]:
    layers = job.model.num_layers
    stages = layout.num_stages
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
    stages = layout.num_stages
    even = f"nearest: {nearest_divisor(layers, layout.num_stages)}"
    if stages > layers:
        return even
    given = divided(layout.schedule, layout.pipeline, layout.virtual_pipeline, layers).layers
    return f"{even}, or give layers_per_stage={'-'.join(map(str, given))}"


_SETTINGS = {
    "activations": ("recompute", "micro_batch_size"),
    "working set": ("micro_batch_size", "recompute"),
    "weight gradient inputs": ("schedule",),
    "optimizer": ("zero_stage",),
    "gradients": ("zero_stage",),
}
"""The settings that reduce each part of the memory."""
_ALL = ("recompute", "micro_batch_size", "schedule", "zero_stage")
_OFFLOAD = ("offload_optimizer", "offload_param", "offload_activations")
_PLACES = ("none", "cpu", "nvme")
_DEGREES = ("tensor", "pipeline", "data", "context")


def nearest_fit(
    job: Job, topology: FatTree, layout: ParallelLayout, part: str, free_degrees: tuple[str, ...], zero: bool
) -> str:
    """What to try, in words; `part` is the largest part of the memory, `zero` that ZeRO stages are free."""
    for changed in _changed(job, layout, part, free_degrees, zero=zero):
        if _fits(job, topology, changed, free_degrees):
            return f"try {_difference(layout, changed)}, which fits"
    return "no change of one setting and one degree makes it fit, not even on more devices"


def _difference(layout: ParallelLayout, changed: ParallelLayout) -> str:
    pairs = [
        (field.name, getattr(layout, field.name), getattr(changed, field.name)) for field in fields(layout)
    ]
    changes = [f"{name} {was} \u2192 {now}" for name, was, now in pairs if was != now]
    where = f" on {changed.num_devices} devices" if changed.num_devices != layout.num_devices else ""
    return " and ".join(changes) + where


def _changed(
    job: Job, layout: ParallelLayout, part: str, free_degrees: tuple[str, ...], *, zero: bool
) -> Iterator[ParallelLayout]:
    """Layouts that need less memory: one setting, one degree, both at once; last, on more devices."""
    names = [
        name for name in dict.fromkeys((*_SETTINGS.get(part, ()), *_ALL)) if zero or name != "zero_stage"
    ]
    variants = [_with(layout, name, value) for name in names for value in _values(name, layout)]
    offloaded = [replace(layout, **changes) for changes in _more_offload(layout)]
    yield from offloaded if layout.offloads else ()
    yield from variants
    for base in (layout, *variants):
        yield from _with_more_experts(job, base, free_degrees)
    for base in (layout, *variants):
        yield from _in_place_of_replicas(job, base, free_degrees)
    yield from offloaded
    larger = [
        _scaled(job, base, name, value)
        for base in (layout, *variants)
        for name in _DEGREES
        if name in free_degrees
        for value in _larger(job, base, name)
    ]
    yield from sorted(larger, key=lambda changed: (_odd_factor(layout, changed), changed.num_devices))


def _odd_factor(layout: ParallelLayout, changed: ParallelLayout) -> bool:
    """Whether the devices are not a power of two times as many: clusters are, so these are tried last."""
    factor, rest = divmod(changed.num_devices, layout.num_devices)
    return rest > 0 or factor & (factor - 1) > 0


def _more_offload(layout: ParallelLayout) -> Iterator[dict[str, Any]]:
    """Settings with more of the states, or of the activations, off the device."""
    for name in _OFFLOAD:
        places = _PLACES[: 2 if name == "offload_activations" else 3]
        for place in places[places.index(getattr(layout, name)) + 1 :]:
            yield {name: place}
    if layout.offload_optimizer != "none" and layout.zero_stage < GRADIENTS_SHARDED:
        yield {"zero_stage": GRADIENTS_SHARDED}  # gradients leave the device too
    if layout.offload_param == "none" and layout.zero_stage < SHARDED:
        yield {"zero_stage": SHARDED, "offload_param": "cpu"}


def _values(name: str, layout: ParallelLayout) -> list[str | int]:
    """Values that need less memory than that of the layout, the nearest first."""
    if name == "recompute":
        modes = ["none", "selective", "full"]
        return [*modes[modes.index(layout.recompute) + 1 :]]
    if name == "micro_batch_size":
        size = layout.micro_batch_size
        return [size >> shift for shift in range(1, size.bit_length()) if size % (1 << shift) == 0]
    if name == "schedule":
        return ["1f1b"] if layout.schedule != "1f1b" else []
    stages = (1, GRADIENTS_SHARDED, SHARDED) if layout.replicas > 1 else ()
    return [stage for stage in stages if stage > layout.zero_stage]


def _with(layout: ParallelLayout, name: str, value: str | int) -> ParallelLayout:
    if name == "schedule":
        return replace(layout, schedule=str(value), virtual_pipeline=1, layers_per_stage=None)
    return replace(layout, **{name: value})  # type: ignore[arg-type]  # the field's own type, by name


def _with_more_experts(
    job: Job, layout: ParallelLayout, free_degrees: tuple[str, ...]
) -> Iterator[ParallelLayout]:
    """Experts over more ranks of the same stage."""
    if job.model.experts is not None and "expert" in free_degrees:
        for ranks in _divisors(job.model.experts.num_experts):
            if ranks > layout.expert and layout.width % (ranks * layout.expert_tensor) == 0:
                yield replace(layout, expert=ranks)


def _in_place_of_replicas(
    job: Job, layout: ParallelLayout, free_degrees: tuple[str, ...]
) -> Iterator[ParallelLayout]:
    """Tensor, pipeline or context times a factor and replicas divided by it, on the same devices."""
    for factor in _divisors(layout.data)[1:]:
        for name in ("tensor", "pipeline", "context"):
            if name in free_degrees:
                changed = _scaled(job, layout, name, getattr(layout, name) * factor)
                yield replace(changed, data=layout.data // factor)


def _larger(job: Job, layout: ParallelLayout, name: str) -> Iterator[int]:
    """Larger values of a degree that divide what it divides; of a pipeline all that leave it layers."""
    most = MOST_DEVICES * getattr(layout, name) // layout.num_devices
    if name == "pipeline":
        legal = list(range(1, job.model.num_layers // layout.virtual_pipeline + 1))
    else:
        count = {"tensor": job.model.num_attention_heads, "context": job.seq_length}
        legal = _divisors(count.get(name, job.global_batch_size))
    return (value for value in legal if getattr(layout, name) < value <= most)


def _scaled(job: Job, layout: ParallelLayout, name: str, value: int) -> ParallelLayout:
    if name != "pipeline":
        return _with(layout, name, value)
    scaled = replace(layout, pipeline=value, layers_per_stage=None)
    uneven = job.model.num_layers % scaled.num_stages
    if not uneven or layout.schedule not in SCHEDULES or scaled.num_stages > job.model.num_layers:
        return scaled
    stages = divided(layout.schedule, value, layout.virtual_pipeline, job.model.num_layers).layers
    return replace(scaled, layers_per_stage=stages)


def _divisors(count: int) -> list[int]:
    return [number for number in range(1, count + 1) if count % number == 0]


def _fits(job: Job, topology: FatTree, layout: ParallelLayout, free_degrees: tuple[str, ...]) -> bool:
    try:
        if layout.num_devices != topology.num_devices:
            topology = FatTree(topology.system, layout.num_devices)
        if layout_problems(job, topology, layout, "", free_degrees):
            return False
        if any(offload_problems(job, topology, layout)):
            return False
        memory = offloaded_memory(job, layout, topology, stage_memory(job, layout, topology.system))
        return all(use.fits for use in memory)
    except PerfsimError:
        return False
