"""Published runs on record: what their machines, models and layouts were, and the utilisation they reached.

Recorded beside the accuracy record; it depends only on the cases, not on predictions.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from perfsim.prediction.likeness import class_of
from perfsim.strategies import Plan

RECORD = "reached.json"
MARGIN = 1.05
"""Tolerance of the comparison with the best run: about the median error of predictions."""
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
    kind: str = ""
    """Kind of system."""
    constants: str = ""
    """Name of the device's calibration."""
    precision: str = ""
    parameters: float = 0.0
    sharded: bool = False
    """Whether parameters are sharded (ZeRO 3, FSDP)."""
    tensor: int = 1
    data: int = 1
    micro_batch_tokens: int = 0
    """Tokens of a replica's micro-batch; 0: not published."""


@cache
def recorded() -> tuple[Reached, ...]:
    """The recorded runs."""
    text = files("perfsim.prediction").joinpath(RECORD).read_text(encoding="utf-8")
    return tuple(Reached(*row) for row in json.loads(text))


def runs_like(plan: Plan) -> list[Reached]:
    """The recorded runs on the kind of system of a plan whose devices have the same constants."""
    device = plan.system.device
    constants = device.constants
    return [row for row in recorded() if (row.kind, row.constants) == (plan.system.kind, constants)]


def best_below(plan: Plan, mfu: float) -> tuple[Reached, str] | None:
    """The best comparable run where a plan's MFU is above all of them, and how the runs are alike.

    Comparable runs use the same device in the same class of precision, whose peak counts, and the same
    attention on at least a quarter of the devices; if there are none, on any number of devices; if there are
    still none, with any attention.
    """
    device, attention = plan.system.device.name, plan.job.recipe.attention
    alike = class_of(plan.job.recipe.precision)
    own = [row for row in recorded() if (row.device, class_of(row.precision)) == (device, alike)]
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
            return None if mfu <= best.mfu * MARGIN else (best, words)
    return None
