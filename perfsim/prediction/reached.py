"""The model FLOPs utilisation of published runs, to compare plans with.

Recorded beside the accuracy record; it depends only on the cases, not on predictions.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from perfsim.machines import machine_of
from perfsim.strategies import Plan

RECORD = "reached.json"
MARGIN = 1.05
"""Tolerance of the comparison with the best run: about the median error of predictions."""
FAR_FEWER = 2
"""A remark is made where every published log has more than this many times the sequences per wafer."""
LIKE_SCALE = 4
"""A run is compared with plans of at most this many times its devices."""


class Reached(NamedTuple):
    """One published run and its model FLOPs utilisation."""

    id: str
    device: str
    attention: str
    num_devices: int
    mfu: float
    sequences: float = 0.0
    """Per step and device."""


@cache
def recorded() -> tuple[Reached, ...]:
    """The recorded runs."""
    text = files("perfsim.prediction").joinpath(RECORD).read_text(encoding="utf-8")
    return tuple(Reached(*row) for row in json.loads(text))


def fewer_than_published(plan: Plan, fixed_s: float) -> str:
    """A remark where a wafer has far fewer sequences than any published log; empty elsewhere.

    The logs cannot separate a fixed time per layer from a lower efficiency. `fixed_s` is the fixed time of a
    step in this model; the machine's `layer_fixed_s` is the result of another fit of the same logs.
    """
    calibration = plan.system.device.calibration
    own = [row.sequences for row in recorded() if row.device == getattr(calibration, "name", "")]
    per_system = plan.job.global_batch_size / plan.topology.num_devices
    layer_s = machine_of(plan.system).explanation.layer_fixed_s
    if not layer_s or not own or per_system * FAR_FEWER >= min(own):
        return ""
    layers = plan.job.model.num_layers
    more_s = max(0.0, layer_s * layers - fixed_s)
    return (
        f"{per_system:,.3g} sequences per system: all published logs used here have {min(own):,.0f} or more, "
        f"so the fixed time of a layer is uncertain; {1e3 * fixed_s / layers:.2g} ms per layer and step are "
        f"counted, and with {1e3 * layer_s:.2g} ms, the result of another fit of the logs, a step takes "
        f"up to {more_s:.2g} s longer"
    )


def above_all_published(plan: Plan, mfu: float) -> str:
    """A remark where a plan's MFU is above every comparable published run; empty elsewhere.

    Comparable runs use the same device and the same attention on at least a quarter of the devices; if there
    are none, on any number of devices; if there are still none, with any attention.
    """
    device, attention = plan.system.device.name, plan.job.recipe.attention
    own = [row for row in recorded() if row.device == device]
    like = [row for row in own if row.attention == attention]
    large = [row for row in like if row.num_devices * LIKE_SCALE >= plan.topology.num_devices]
    kinds = (
        (large, f"with {attention} attention on a quarter of its devices or more"),
        (like, f"with {attention} attention"),
        (own, "with any attention"),
    )
    for rows, words in kinds:
        if rows:
            best = max(rows, key=lambda row: row.mfu)
            if mfu <= best.mfu * MARGIN:
                return ""
            reached = f"{100 * best.mfu:.0f} % ({best.id}, {best.num_devices} devices)"
            return (
                f"MFU {100 * mfu:.0f} % is above every published run recorded here on {device} {words}: "
                f"the best has {reached}; the prediction may be optimistic"
            )
    return ""
