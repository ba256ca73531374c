"""Which family of published runs is most like a plan: by device, sharding, degrees and sizes.

Unlikeness is a sum of points for differences:

    3    no run of the family is on a device with the same calibration
    2    parameters are sharded (ZeRO 3, FSDP) in the plan and in no run of the family, or the reverse
    1    the same for tensor parallelism
    1    the same for pipeline parallelism
    1    for each factor of ten by which the model is outside the sizes of the family
    1    for each factor of ten by which the number of devices is outside those of the family

A plan has the errors of the family with the fewest points; of equal families, the one with more runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfsim.strategies import Plan
from perfsim.transformer import parameters

SHARDED = 3
"""The ZeRO stage that shards parameters."""


@dataclass(frozen=True)
class Traits:
    """The traits of a plan, or of one run of a family."""

    constants: str
    """Name of the device's calibration."""
    sharded: bool
    tensor: bool
    pipeline: bool
    parameters: float
    num_devices: int


def traits_of_plan(plan: Plan) -> Traits:
    """The traits of a plan."""
    device, layout = plan.system.device, plan.layout
    return Traits(
        constants=device.calibration.name if device.calibration else device.name,
        sharded=layout.zero_stage == SHARDED,
        tensor=layout.tensor > 1,
        pipeline=layout.pipeline > 1,
        parameters=float(parameters(plan.job.model).total),
        num_devices=plan.topology.num_devices,
    )


def unlikeness(traits: Traits, family: Mapping[str, Any]) -> tuple[float, tuple[str, ...]]:
    """Unlikeness of a family in points, and the differences in words."""
    points, words = 0.0, []
    if traits.constants not in family["constants"]:
        points += 3.0
        words.append(f"measured on {' and '.join(family['constants'])} instead of {traits.constants}")
    for name, weight, label in _KINDS:
        in_plan = getattr(traits, name)
        if in_plan not in family[name]:
            points += weight
            words.append(f"{label} {'only in this plan' if in_plan else 'only in the family'}")
    for name, label in (("parameters", "model"), ("num_devices", "number of devices")):
        factor = _outside(getattr(traits, name), *family[name])
        if factor > 1.0:
            points += math.log10(factor)
            words.append(f"{label} outside its range by a factor of {factor:.1f}")
    return points, tuple(words)


_KINDS = (
    ("sharded", 2.0, "sharded parameters"),
    ("tensor", 1.0, "tensor parallelism"),
    ("pipeline", 1.0, "pipeline parallelism"),
)


def _outside(value: float, low: float, high: float) -> float:
    """The factor by which a value is outside a range; 1 inside it."""
    return max(low / value, value / high, 1.0)
