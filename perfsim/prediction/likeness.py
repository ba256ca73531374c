"""Which family of published runs is most like a plan: by device, precision, sharding, degrees and sizes.

Unlikeness is a sum of points for differences:

    3    no run of the family is on a device with the same calibration, or on that chip: a calibration is
         borrowed where the peak of the device differs by more than 2 %
    2    the family is the only one on its device, whose constants then hold what is peculiar to it
    3    for each factor of ten by which the device's memory is faster or slower
    3    no run of the family is of the same class of precision (16-bit, fp8, tf32, fp32)
    3    the model has experts and no run of the family has them, or the reverse
    2    parameters are sharded (ZeRO 3, FSDP) in the plan and in no run of the family, or the reverse
    1    the same for tensor parallelism
    1    the same for pipeline parallelism
    1    for each factor of ten by which the model is outside the sizes of the family
    1    the same for the number of devices, the replicas that share parameters, and the micro-batch

assumed: the points, which weigh differences against each other; how much a band widens with a point is fitted
(`perfsim.validation.band_fit`). A plan is compared with the family of fewest points; of equal families, with
the one with more runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfsim.hardware import Precision
from perfsim.strategies import Plan
from perfsim.transformer import parameters

SHARDED = 3
"""The ZeRO stage that shards parameters."""
SAME_CHIP = 1.02
"""Peaks within this factor are those of one chip."""
SIXTEEN_BIT: tuple[Precision, ...] = ("fp16", "bf16")


@dataclass(frozen=True)
class Traits:
    """The traits of a plan, or of one run of a family."""

    constants: str
    """Name of the device's calibration."""
    peak_flop_per_s: float
    """Of one device: in 16 bits, or its largest where it has none."""
    memory_bytes_per_s: float
    """Bandwidth of the memory."""
    precision: str
    """Class of the precision: `16-bit`, `fp8`, `tf32` or `fp32`."""
    sharded: bool
    """Whether replicas share the parameters."""
    tensor: bool
    """Whether there are several tensor ranks."""
    pipeline: bool
    """Whether there are several stages."""
    parameters: float
    """Parameters of the model."""
    num_devices: int
    """Devices of the run."""
    shards: int
    """Replicas that share the parameters; 1 if they are not sharded."""
    micro_batch_size: int
    """Sequences that pass a replica at once."""
    experts: bool = False
    """Whether the model has experts."""


def traits_of_plan(plan: Plan) -> Traits:
    """The traits of a plan."""
    device, layout, precision = plan.system.device, plan.layout, plan.job.recipe.precision
    sharded = layout.zero_stage == SHARDED
    peaks = [device.peak[name] for name in SIXTEEN_BIT if name in device.peak] or device.peak.values()
    return Traits(
        constants=device.constants,
        peak_flop_per_s=max(peaks),
        memory_bytes_per_s=device.memory.bandwidth,
        precision=class_of(precision),
        sharded=sharded,
        tensor=layout.tensor > 1,
        pipeline=layout.pipeline > 1,
        parameters=float(parameters(plan.job.model).total),
        num_devices=plan.topology.num_devices,
        shards=layout.data if sharded else 1,
        micro_batch_size=layout.micro_batch_size,
        experts=plan.job.model.experts is not None,
    )


def class_of(precision: str) -> str:
    """The class of a precision: fp16 and bf16 have one peak on every device."""
    return "16-bit" if precision in SIXTEEN_BIT else precision


def traits_together(runs: Sequence[Traits]) -> dict[str, Any]:
    """The traits of a family: values that occur in its runs, and ranges."""
    values = {name: sorted({getattr(run, name) for run in runs}) for name in ("constants", *_KINDS)}
    ranges = {name: sorted(getattr(run, name) for run in runs) for name in ("peak_flop_per_s", *_SIZES)}
    return {**values, **{name: [sizes[0], sizes[-1]] for name, sizes in ranges.items()}}


def alone(name: str, families: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether no other of some families has a device of this one; of one family alone nothing is said."""
    others = [family for other, family in families.items() if other != name]
    own = set(families[name]["constants"])
    return bool(others) and all(own.isdisjoint(family["constants"]) for family in others)


def unlikeness(traits: Traits, family: Mapping[str, Any]) -> tuple[float, tuple[str, ...]]:
    """Unlikeness of a family in points, and the differences in words."""
    points, words = 0.0, []
    other_chip = _outside(traits.peak_flop_per_s, *family["peak_flop_per_s"])
    if traits.constants not in family["constants"]:
        points += _CHIP
        words.append(f"measured on {' and '.join(family['constants'])} instead of {traits.constants}")
    elif other_chip > SAME_CHIP:
        points += _CHIP
        words.append(f"{traits.constants} was measured on a chip whose peak differs {other_chip:.1f} times")
    elif family.get("alone"):
        points += _ALONE
        words.append(f"the only family of runs on {traits.constants}")
    for name, (weight, label) in _KINDS.items():
        in_plan = getattr(traits, name)
        if in_plan not in family[name]:
            points += weight
            words.append(_kind_in_words(label, in_plan))
    for name, (weight, label) in _SIZES.items():
        factor = _outside(getattr(traits, name), *family[name])
        if factor > 1.0:
            points += weight * math.log10(factor)
            words.append(f"{label} outside its range by a factor of {factor:.1f}")
    return points, tuple(words)


_CHIP, _ALONE = 3.0, 2.0
_KINDS = {
    "precision": (3.0, "precision"),
    "experts": (3.0, "experts"),
    "sharded": (2.0, "sharded parameters"),
    "tensor": (1.0, "tensor parallelism"),
    "pipeline": (1.0, "pipeline parallelism"),
}
_SIZES = {
    "memory_bytes_per_s": (3.0, "memory bandwidth"),
    "parameters": (1.0, "model"),
    "num_devices": (1.0, "number of devices"),
    "shards": (1.0, "replicas that share parameters"),
    "micro_batch_size": (1.0, "micro-batch"),
}


def _kind_in_words(label: str, in_plan: bool | str) -> str:
    if isinstance(in_plan, str):
        return f"{label} {in_plan} only in this plan"
    return f"{label} {'only in this plan' if in_plan else 'only in the family'}"


def _outside(value: float, low: float, high: float) -> float:
    """The factor by which a value is outside a range; 1 inside it."""
    return max(low / value, value / high, 1.0)
