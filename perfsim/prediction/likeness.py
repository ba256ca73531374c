"""Which family of published runs is most like a plan: by device, sharding, degrees and sizes.

Unlikeness adds up what differs, in points that anyone can check:

    3    no run on a device with the same fitted constants
    2    parameters sharded (ZeRO 3, FSDP) here and nowhere there, or the other way round
    1    tensor parallelism used here and nowhere there, or the other way round
    1    the same for pipeline parallelism
    1    for each factor of ten by which the model lies outside the sizes there
    1    for each factor of ten by which the number of devices lies outside those there

The least unlike family speaks for the plan; of equals the one with more runs.
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
    """What a plan, or one run of a family, is like."""

    constants: str
    """The name of the device's fitted constants."""
    sharded: bool
    tensor: bool
    pipeline: bool
    parameters: float
    num_devices: int


def traits_of_plan(plan: Plan) -> Traits:
    """What a plan is like."""
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
    """How unlike a family is, in points, and the differences in words."""
    points, words = 0.0, []
    if traits.constants not in family["constants"]:
        points += 3.0
        words.append(f"runs on {' and '.join(family['constants'])} instead of {traits.constants}")
    for name, weight, what in _KINDS:
        here = getattr(traits, name)
        if here not in family[name]:
            points += weight
            words.append(f"{what} {'only here' if here else 'only there'}")
    for name, what in (("parameters", "model"), ("num_devices", "number of devices")):
        factor = _outside(getattr(traits, name), *family[name])
        if factor > 1.0:
            points += math.log10(factor)
            words.append(f"{what} {factor:.1f} times outside its range")
    return points, tuple(words)


_KINDS = (
    ("sharded", 2.0, "sharded parameters"),
    ("tensor", 1.0, "tensor parallelism"),
    ("pipeline", 1.0, "pipeline parallelism"),
)


def _outside(value: float, low: float, high: float) -> float:
    """The factor by which a value lies outside a range; 1 inside it."""
    return max(low / value, value / high, 1.0)
