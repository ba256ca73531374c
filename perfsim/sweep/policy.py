"""What the planner chose anew: how the layout of one point differs from another's, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfsim.sweep.runner import PointResult

ARROW = "->"
_DEGREES = {"tensor": "tp", "pipeline": "pp", "data": "dp"}
_NAMES = {
    "micro_batch_size": "micro-batch",
    "zero_stage": "ZeRO",
    "virtual_pipeline": "virtual pipeline",
    "layers_per_stage": "layers a stage",
    "sequence_parallel": "sequence parallel",
}
_FOLLOWS = ("num_microbatches", "recompute_layers", "stream_chunks", *_DEGREES)
"""Fields that other fields decide, or that are told together with them."""


def policy_changes(before: PointResult, after: PointResult) -> str:
    """`tp1 dp8 -> tp2 dp4, micro-batch 4 -> 2`: each field of the layout that differs; empty where none does.

    The data-parallel degree is no choice where the number of devices differs.
    """
    one, other = before.answer["layout"], after.answer["layout"]
    changes = _degrees(one, other, same_devices=before.point.num_devices == after.point.num_devices)
    for name in dict.fromkeys([*one, *other]):
        if name in _FOLLOWS:
            continue
        old, new = _value(name, one), _value(name, other)
        if old != new:
            changes.append(f"{_NAMES.get(name, name.replace('_', ' '))} {old} {ARROW} {new}")
    return ", ".join(changes)


def _degrees(one: Mapping[str, Any], other: Mapping[str, Any], *, same_devices: bool) -> list[str]:
    asked = [name for name in _DEGREES if name != "data" or same_devices]
    if all(one.get(name, 1) == other.get(name, 1) for name in asked):
        return []
    shown = [name for name in _DEGREES if one.get(name, 1) != 1 or other.get(name, 1) != 1]
    words = (" ".join(f"{_DEGREES[name]}{each.get(name, 1)}" for name in shown) for each in (one, other))
    return [f" {ARROW} ".join(words)]


def _value(name: str, layout: Mapping[str, Any]) -> str:
    value = layout.get(name)
    if name == "recompute":
        layers = layout.get("recompute_layers") or 0
        return f"{value} by {layers} layers" if value == "full" and layers > 1 else str(value)
    if value is None or isinstance(value, bool):
        return "yes" if value else "no"
    return "-".join(str(part) for part in value) if isinstance(value, (list, tuple)) else str(value)
