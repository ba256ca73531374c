"""3D parallelism: tensor, context, pipeline, data and expert parallelism composed, as Megatron composes them.

Ranks: tensor innermost, then context, then data, then pipeline. The graph is folded to one tensor peer of one
replica for each pipeline rank (`work.unfold`). The plain strategies `data`, `tensor`, `pipeline` and
`zero3` are this strategy with some degrees fixed at 1.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from typing import get_args, get_type_hints

import numpy as np

from perfsim.base.arrays import Bools, Floats
from perfsim.base.errors import InputError, LayoutError, MemoryCapacityError
from perfsim.base.sizes import MEMORY_LIMIT, MOST_DEVICES
from perfsim.base.units import GIB
from perfsim.costs.price import Costs
from perfsim.network import FatTree
from perfsim.specs.layout import AXES, OFFLOADS, ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies.plan import Screening
from perfsim.strategies.three_d.closed_form import Priced, estimate_steps_s
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, SHARDED, ZERO_STAGES
from perfsim.strategies.three_d.division import Division
from perfsim.strategies.three_d.emission import StepWriter, ThreeDPlan
from perfsim.strategies.three_d.layers import expert_load
from perfsim.strategies.three_d.legal import RefusedLayoutError, refusals_of
from perfsim.strategies.three_d.memory import memory_shares, stage_memory
from perfsim.strategies.three_d.offload import emit_offloaded, estimate_layouts_s
from perfsim.strategies.three_d.pass_path import path_steps_s
from perfsim.strategies.three_d.space import (
    Columns,
    divisors,
    layout_space,
    with_light_recompute,
    with_module_recompute,
    with_offload,
)
from perfsim.work import GraphBuilder

MOST_LACKING = 1.5
"""Share of the memory above which light recompute is not tried. assumed: it saves less than a third."""
MOST_TRIED = 5_000
"""How many changes of a layout that does not fit are tried at most."""


@dataclass(frozen=True)
class ThreeD:
    """The strategy `3d`, or a plain strategy with some degrees fixed at 1."""

    name: str = "3d"
    free_degrees: tuple[str, ...] = tuple(name for name, axis in AXES.items() if axis.degree)
    summary: str = "tensor, context, pipeline, data and expert parallelism composed (Megatron)"
    system_kind: str = "gpu-cluster"
    zero_stage: int | None = None
    """The ZeRO stage of every layout; None: the layout's own."""

    def layouts(self, job: Job, topology: FatTree) -> Iterator[ParallelLayout]:
        """All legal layouts of this strategy on all devices of the topology; offloaded if none fits else."""
        columns, *_ = self._screened(job, topology)
        yield from map(columns.layout, range(len(columns)))

    def least_memory_share(self, job: Job, topology: FatTree) -> float:
        """Share of a device's memory that the leanest layout needs, without offload; inf: none is legal."""
        return float(self._screened(job, topology, offloads=False)[1].min(initial=np.inf))

    def _screened(
        self, job: Job, topology: FatTree, *, offloads: bool = True
    ) -> tuple[Columns, Floats, Bools]:
        """All legal layouts, the share of its memory that a device uses of each, and which fit.

        The space grows where it has to. If nothing fits, context ranks have fewer positions. If nothing fits
        without recompute, single modules are recomputed; else layouts that lack memory get the lightest
        recompute. If nothing leaves memory for fragmentation, states are offloaded.
        """
        space = partial(layout_space, job, topology, self.free_degrees, self.zero_stage)
        columns = space()
        share, fits = memory_shares(job, columns, topology)
        if "context" in self.free_degrees and job.runtime.attention == "flash" and not fits.any():
            columns = space(shortens=True)
            share, fits = memory_shares(job, columns, topology)
        if fits[columns.recompute == 0].any():
            columns = with_light_recompute(job, columns, ~fits & (share < MOST_LACKING))
            more = memory_shares(job, columns.rows(slice(len(share), None)), topology)
            share, fits = (np.concatenate(both) for both in zip((share, fits), more, strict=True))
        elif fits.any():
            columns = with_module_recompute(job, columns)
            share, fits = memory_shares(job, columns, topology)
        if offloads and not (share[fits] <= MEMORY_LIMIT).any():
            columns = with_offload(job, topology, columns)
            share, fits = memory_shares(job, columns, topology)
        return columns, share, fits

    def screen(self, job: Job, topology: FatTree, costs: Costs) -> Screening:
        columns, share, fits = self._screened(job, topology)
        closest = None if fits.all() else columns.layout(int(np.argmin(np.where(fits, np.inf, share))))
        indivisible = columns.indivisible(topology.num_devices, self.free_degrees) if len(columns) else 0
        columns = columns.rows(fits)  # all others are many and may go
        priced = Priced(job, columns, topology, costs)
        return Screening(
            estimate_layouts_s(priced, np.arange(len(columns)), estimate_steps_s),
            share[fits],
            columns.layout,
            len(fits),
            closest,
            indivisible,
            partial(estimate_layouts_s, priced, estimate=path_steps_s),
            columns.kinds,
        )

    def plan(
        self, job: Job, topology: FatTree, layout: ParallelLayout, *, check_memory: bool = True
    ) -> ThreeDPlan:
        """Check one layout. Raises LayoutError or MemoryCapacityError with all reasons."""
        if self.zero_stage is not None:
            if layout.zero_stage not in (0, self.zero_stage):
                text = f"strategy {self.name} shards at ZeRO stage {self.zero_stage}, not {layout.zero_stage}"
                raise LayoutError(text, "strategy 3d takes any stage")
            layout = replace(layout, zero_stage=self.zero_stage)
        refusals = refusals_of(job, topology, layout, self.name, self.free_degrees)
        if refusals:
            raise RefusedLayoutError(refusals)
        division = Division.of(job, layout)
        if not division.even:
            layout = replace(layout, layers_per_stage=division.layers)
        memory = stage_memory(job, layout, topology)
        worst = max(memory, key=lambda use: use.total_bytes / use.capacity_bytes)
        if check_memory and not worst.fits:
            part = max(worst.parts_bytes, key=lambda name: worst.parts_bytes[name])
            free = {*self.free_degrees, *(("zero_stage",) if self.zero_stage is None else ())}
            raise MemoryCapacityError(
                worst.total_bytes / worst.capacity_bytes,
                f"does not fit: {worst.place} needs {worst.total_bytes / GIB:.1f} GiB of "
                f"{worst.capacity_bytes / GIB:.4g} GiB ({part} {worst.parts_bytes[part] / GIB:.1f} GiB)",
                lambda: _to_try(job, topology, layout, part, free),
            )
        microbatches = job.global_batch_size // (layout.data * layout.micro_batch_size)
        redone = division.recomputed(1 if layout.recompute == "none" else layout.recompute_every)
        load = expert_load(job, layout.expert)
        note = (
            f"the fullest of {layout.expert} ranks has {load - 1:.1%} more rows of experts than the mean, "
            f"and all wait for it; balanced routing would save {1 - 1 / load:.1%} of the time of experts and "
            "of their rows"
        )
        notes = () if load == 1.0 else (note,)
        return ThreeDPlan(self, job, topology, layout, microbatches, memory, notes, float(redone.mean()))

    def emit(self, plan: ThreeDPlan, builder: GraphBuilder) -> None:
        """Write one optimizer step, or two under a skewed schedule."""
        if plan.layout.offloads:
            emit_offloaded(plan, builder)
        else:
            StepWriter(plan, builder).write()

    def estimate_s(self, plan: ThreeDPlan, costs: Costs) -> float:
        priced = Priced(plan.job, Columns.of(plan.job, plan.layout), plan.topology, costs)
        return float(estimate_layouts_s(priced, np.arange(1), path_steps_s)[0])


# The nearest change that makes a layout fit in memory, found by trying.
#
# The order is: settings that reduce the largest part of the memory, then every other single setting; another
# expert degree; a larger degree in place of replicas, alone or with one setting; offload to the host; last, a
# larger degree on more devices. A layout that offloads already is first tried with more offload. Only layouts
# that keep the rules are tried, with every value of a degree that divides what it divides (a power of two
# times as many devices first), and with stages as even as they can be.

_REDUCES = {
    "activations": ("recompute", "micro_batch_size"),
    "working set": ("micro_batch_size", "recompute"),
    "weight gradient inputs": ("schedule",),
    "optimizer": ("zero_stage",),
    "gradients": ("zero_stage",),
}
"""The settings that reduce each part of the memory."""
_SETTINGS: dict[str, tuple[str | int, ...]] = {
    "zero_stage": ZERO_STAGES,
    **{name: get_args(get_type_hints(ParallelLayout)[name]) for name in ("recompute", *OFFLOADS)},
}
"""Values of settings, each of which needs less memory than the one before."""


def _to_try(job: Job, topology: FatTree, layout: ParallelLayout, part: str, free: Collection[str]) -> str:
    """What to try, in words; `part` is the largest part of the memory, `free` are axes that may change."""

    def fits(easier: Job, changed: ParallelLayout) -> bool:
        try:
            on = FatTree(topology.system, changed.num_devices)
            if refusals_of(easier, on, changed, "", free):
                return False
            return bool(memory_shares(easier, Columns.of(easier, changed), on)[1].all())
        except InputError:
            return False

    alone = "no change of one setting and one degree makes it fit, not even on more devices"
    tried = (
        (options, easier, changed)
        for options, easier in _eased(job)
        for changed in (layout, *_changed(easier, layout, part, free))
    )
    options, _, nearest = next(
        (each for each in islice(tried, MOST_TRIED) if fits(*each[1:])), ("", job, None)
    )
    if nearest is None:
        return alone
    names = [field.name for field in fields(layout)]
    pairs = [(name, getattr(layout, name), getattr(nearest, name)) for name in names]
    changes = " and ".join(
        f"{name} {was} \u2192 {now}" for name, was, now in pairs if was != now and now is not None
    )
    where = f" on {nearest.num_devices} devices" if nearest.num_devices != layout.num_devices else ""
    limits = job.runtime.searched
    leaves = limits is not None and limits.runs(layout, job) and not limits.runs(nearest, job)
    searched = " with --runs-on any" if leaves else ""
    if not options:
        return f"try {changes}{where}, which fits{searched}"
    return f"{alone}; with{options}{' and ' if changes else ''}{changes}{where} it fits{searched}"


def _eased(job: Job) -> Iterator[tuple[str, Job]]:
    """The job with ever shorter sequences, as it is and with fused attention; first the options for it."""
    runtime = job.runtime.model_copy(update={"attention": "flash"})
    for shift in range(job.seq_length.bit_length()):
        length = job.seq_length >> shift
        shorter = f" --set recipe.seq_length={length}" if shift else ""
        for fused, changed in (("", job.runtime), (" --set runtime.attention=flash", runtime)):
            recipe = job.recipe.model_copy(update={"seq_length": length, "runtime": changed})
            yield shorter + fused, replace(job, recipe=recipe)


def _changed(job: Job, layout: ParallelLayout, part: str, free: Collection[str]) -> Iterator[ParallelLayout]:
    """Layouts that need less memory: one setting, one degree, both at once; last, on more devices."""
    reducing = (*_REDUCES.get(part, ()), "recompute", "micro_batch_size", "schedule", "zero_stage")
    names = [name for name in dict.fromkeys(reducing) if name in free or name != "zero_stage"]
    variants = [variant for name in names for variant in _with_less(layout, name)]
    bases = (layout, *variants)
    # Tools offload the states of a sharded optimizer, though of one rank.
    shards = {"offload_optimizer": replace(layout, zero_stage=max(1, layout.zero_stage))}
    offloaded = [variant for name in OFFLOADS for variant in _with_less(shards.get(name, layout), name)]
    if layout.offload_optimizer != "none" and layout.zero_stage < GRADIENTS_SHARDED:
        offloaded.append(replace(layout, zero_stage=GRADIENTS_SHARDED))  # gradients leave the device too
    if layout.offload_param == "none" and layout.zero_stage < SHARDED:
        offloaded.append(replace(layout, zero_stage=SHARDED, offload_param="cpu"))
    yield from offloaded if layout.offloads else ()
    yield from variants
    if job.model.experts is not None and "expert" in free:  # over more ranks of the same stage
        for base in bases:
            for ranks in divisors(job.model.experts.num_experts):
                if ranks > base.expert and base.width % (ranks * base.expert_tensor) == 0:
                    yield replace(base, expert=ranks)
    for base in bases:
        for factor in divisors(base.data)[1:]:
            for name in ("tensor", "pipeline", "context"):
                if name in free:
                    changed = _with(base, name, getattr(base, name) * factor)
                    yield replace(changed, data=base.data // factor)
    yield from offloaded
    larger = [
        _with(base, name, value)
        for base in bases
        for name in ("tensor", "pipeline", "data", "context")
        if name in free
        for value in _larger(job, base, name)
    ]

    def order(changed: ParallelLayout) -> tuple[bool, int]:
        """Clusters are a power of two times as large, so all other numbers of devices are tried last."""
        factor, rest = divmod(changed.num_devices, layout.num_devices)
        return rest > 0 or factor & (factor - 1) > 0, changed.num_devices

    yield from sorted(larger, key=order)


def _with_less(layout: ParallelLayout, name: str) -> Iterator[ParallelLayout]:
    """Layouts with values of a setting that need less memory, the nearest first."""
    if name == "schedule":
        if layout.schedule != "1f1b":
            yield replace(layout, schedule="1f1b", virtual_pipeline=1, layers_per_stage=None)
        return
    value = getattr(layout, name)
    values = _SETTINGS.get(name, ())
    if name == "micro_batch_size":
        values = tuple(value >> shift for shift in range(value.bit_length()) if value % (1 << shift) == 0)
    if name != "zero_stage" or layout.replicas > 1:
        for less in values[values.index(value) + 1 :]:
            yield _with(layout, name, less)


def _with(layout: ParallelLayout, name: str, value: str | int) -> ParallelLayout:
    """A layout with another value; another pipeline divides the layers anew."""
    stages = {"layers_per_stage": None} if name == "pipeline" else {}
    return replace(layout, **{name: value, **stages})  # type: ignore[arg-type]  # the field's own type, by name


def _larger(job: Job, layout: ParallelLayout, name: str) -> Iterator[int]:
    """Larger values of a degree that divide what it divides; of a pipeline all that leave it layers."""
    most = MOST_DEVICES * getattr(layout, name) // layout.num_devices
    if name == "pipeline":
        legal = list(range(1, job.model.num_layers // layout.virtual_pipeline + 1))
    else:
        count = {"tensor": job.model.num_attention_heads, "context": job.seq_length}
        legal = divisors(count.get(name, job.global_batch_size))
    return (value for value in legal if getattr(layout, name) < value <= most)
