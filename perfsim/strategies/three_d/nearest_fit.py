"""The nearest change with which a layout fits in memory, found by trying.

The order is: settings that reduce the largest part of the memory, then every other single setting; a degree
times powers of two in place of replicas, alone or with one setting; last, a larger degree on more devices.
Only layouts that keep the rules are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from perfsim.errors import PerfsimError
from perfsim.sizes import MOST_DEVICES
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED
from perfsim.strategies.three_d.memory import stage_memory
from perfsim.strategies.three_d.rules import layout_problems
from perfsim.strategies.three_d.zero import SHARDED
from perfsim.topology import FatTree
from perfsim.workload import Job, ParallelLayout

_SETTINGS = {
    "activations": ("recompute", "micro_batch_size"),
    "working set": ("micro_batch_size", "recompute"),
    "weight gradient inputs": ("schedule",),
    "optimizer": ("zero_stage",),
    "gradients": ("zero_stage",),
}
"""The settings that reduce each part of the memory."""
_ALL = ("recompute", "micro_batch_size", "schedule", "zero_stage")


def nearest_fit(
    job: Job, topology: FatTree, layout: ParallelLayout, part: str, free_degrees: tuple[str, ...], zero: bool
) -> str:
    """What to try, in words; `part` is the largest part of the memory, `zero` that ZeRO stages are free."""
    for changed in _changed(layout, part, free_degrees, zero=zero):
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
    layout: ParallelLayout, part: str, free_degrees: tuple[str, ...], *, zero: bool
) -> Iterator[ParallelLayout]:
    """Layouts that need less memory: one setting, one degree, both at once; last, on more devices."""
    names = [
        name for name in dict.fromkeys((*_SETTINGS.get(part, ()), *_ALL)) if zero or name != "zero_stage"
    ]
    variants = [_with(layout, name, value) for name in names for value in _values(name, layout)]
    yield from variants
    for base in (layout, *variants):
        yield from _scaled_for_replicas(base, free_degrees)
    for factor in _powers(MOST_DEVICES // layout.num_devices):
        for base in (layout, *variants):
            for name in (name for name in ("tensor", "pipeline", "data", "context") if name in free_degrees):
                yield _scaled(base, name, factor)


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


def _scaled_for_replicas(layout: ParallelLayout, free_degrees: tuple[str, ...]) -> Iterator[ParallelLayout]:
    """Tensor or pipeline times powers of two and replicas divided by them, on the same devices."""
    for factor in _powers(layout.data):
        if layout.data % factor == 0:
            for name in (name for name in ("tensor", "pipeline", "context") if name in free_degrees):
                yield replace(_scaled(layout, name, factor), data=layout.data // factor)


def _scaled(layout: ParallelLayout, name: str, factor: int) -> ParallelLayout:
    if name == "pipeline":
        return replace(layout, pipeline=layout.pipeline * factor, layers_per_stage=None)
    return _with(layout, name, getattr(layout, name) * factor)


def _powers(most: int) -> list[int]:
    return [2**power for power in range(1, most.bit_length()) if 2**power <= most]


def _fits(job: Job, topology: FatTree, layout: ParallelLayout, free_degrees: tuple[str, ...]) -> bool:
    try:
        if layout.num_devices != topology.num_devices:
            topology = FatTree(topology.system, layout.num_devices)
        if layout_problems(job, topology, layout, "", free_degrees):
            return False
        return all(use.fits for use in stage_memory(job, layout, topology.system))
    except PerfsimError:
        return False
