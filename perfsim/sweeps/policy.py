"""Layout differences between two points, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfsim.sweeps.points import PointResult

_DEGREES = {"tensor": "tp", "pipeline": "pp", "data": "dp"}
_NAMES = {
    "micro_batch_size": "micro-batch",
    "zero_stage": "ZeRO",
    "virtual_pipeline": "virtual pipeline",
    "layers_per_stage": "layers per stage",
    "sequence_parallel": "sequence parallel",
}
_DERIVED = ("num_microbatches", "recompute_layers", "stream_chunks", *_DEGREES)
"""Fields that follow from other fields, or that are stated together with them."""


def policy_changes(before: PointResult, after: PointResult) -> str:
    """`tp1 dp8 → tp2 dp4, micro-batch 4 → 2`: each field of the layout that differs; empty if none does.

    The data-parallel degree is not compared if the numbers of devices differ.
    """
    old, new = before.prediction.layout, after.prediction.layout
    changes = _degrees(old, new, same_devices=before.num_devices == after.num_devices)
    for name in dict.fromkeys([*old, *new]):
        if name in _DERIVED:
            continue
        old_text, new_text = _value(name, old), _value(name, new)
        if old_text != new_text:
            changes.append(f"{_NAMES.get(name, name.replace('_', ' '))} {old_text} \u2192 {new_text}")
    return ", ".join(changes)


def _degrees(old: Mapping[str, Any], new: Mapping[str, Any], *, same_devices: bool) -> list[str]:
    compared = [name for name in _DEGREES if name != "data" or same_devices]
    if all(old.get(name, 1) == new.get(name, 1) for name in compared):
        return []
    worded = [name for name in _DEGREES if old.get(name, 1) != 1 or new.get(name, 1) != 1]
    ends = (" ".join(f"{_DEGREES[name]}{layout.get(name, 1)}" for name in worded) for layout in (old, new))
    return [" \u2192 ".join(ends)]


def _value(name: str, layout: Mapping[str, Any]) -> str:
    value = layout.get(name)
    if name == "recompute":
        layers = layout.get("recompute_layers") or 0
        return f"{value} every {layers} layers" if value == "full" and layers > 1 else str(value)
    if value is None or isinstance(value, bool):
        return "yes" if value else "no"
    return "-".join(str(part) for part in value) if isinstance(value, (list, tuple)) else str(value)
