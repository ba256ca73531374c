"""What published runs reached: their model FLOPs utilisation, to hold a plan's against.

Recorded beside the accuracy record; it depends on the cases alone, not on any prediction.
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
"""A plan above the best run by less than about the median error of predictions is not above it."""
FAR_FEWER = 2
"""A wafer with fewer than one in so many of the sequences of every log is far from all of them."""
LIKE_SCALE = 4
"""A run speaks for plans of at most so many times its devices."""


class Reached(NamedTuple):
    """One published run and the share of peak that its model's FLOPs took."""

    id: str
    device: str
    attention: str
    num_devices: int
    mfu: float
    sequences: float = 0.0
    """Of a step on one device."""


@cache
def recorded() -> tuple[Reached, ...]:
    """The record."""
    text = files("perfsim.prediction").joinpath(RECORD).read_text(encoding="utf-8")
    return tuple(Reached(*row) for row in json.loads(text))


def fewer_than_published(plan: Plan, fixed_s: float) -> str:
    """A remark where a wafer has far fewer sequences than any published log; empty elsewhere.

    The logs cannot tell a time that a layer takes whatever its tokens from a lower efficiency. `fixed_s` is
    what the mesh takes of a step; the machine's `layer_fixed_s` is another reading of the same logs.
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
        f"{per_system:,.3g} sequences a system: no published log here has fewer than {min(own):,.0f}, so "
        f"what a layer takes whatever its tokens is unknown; {1e3 * fixed_s / layers:.2g} ms a step are "
        f"counted, and with {1e3 * layer_s:.2g} ms, as another fit of the logs has it, a step takes "
        f"up to {more_s:.2g} s longer"
    )


def above_all_published(plan: Plan, mfu: float) -> str:
    """A remark where a plan's MFU lies above every published run of its kind; empty where one reached it.

    Of its kind are runs on the same device with the same attention on at least a quarter of the
    devices; where there is none, on any number, and then with any attention.
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
            known = f"{100 * best.mfu:.0f} % ({best.id}, {best.num_devices} devices)"
            return (
                f"MFU {100 * mfu:.0f} % lies above every published run known here on {device} {words}: "
                f"the best has {known}; take it as optimistic"
            )
    return ""
