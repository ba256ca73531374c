"""What published runs reached: their model FLOPs utilisation, to hold a plan's against.

Recorded beside the accuracy record; it depends on the cases alone, not on any prediction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from perfsim.calibration import WaferCalibration
from perfsim.catalog import Catalog, default_catalog, parse_file
from perfsim.strategies import Plan
from perfsim.study.published.accuracy import KINDS
from perfsim.study.published.cases import CaseFile, StepCase, case_job, case_system
from perfsim.study.published.validation import public_cases
from perfsim.transformer import model_flop_per_step

RECORD = "reached.json"
MARGIN = 1.05
"""A plan above the best run by less than about the median error of predictions is not above it."""
FAR_FEWER = 2
"""A wafer with fewer than one in so many of the sequences of every log is far from all of them."""
LAYER_FIXED_S = 0.0055
"""Of a layer and step, forward and backward. assumed: a fit of the same logs with a constant for each layer
where we have the movement over the mesh (which grows with the layer); only for the remark."""
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


def reached_of(cases: Iterable[StepCase], catalog: Catalog) -> list[Reached]:
    """The scored runs of a file, best first."""
    rows = []
    for case in cases:
        if not case.scored:
            continue
        job, device = case_job(case, catalog), case_system(case, catalog).device
        peak = case.system.num_devices * device.peak[job.recipe.precision]
        mfu = model_flop_per_step(job) / (case.measured.step_time_s * peak)
        count = case.system.num_devices
        sequences = round(job.global_batch_size / count, 2)
        rows.append(Reached(case.id, device.name, case.training.attention, count, round(mfu, 4), sequences))
    return sorted(rows, key=lambda row: (-row.mfu, row.id))


def step_files() -> list[Path]:
    """The public files of step times."""
    return [path for path in public_cases() if path.name in KINDS]


def record_text(paths: Iterable[Path]) -> str:
    """The record as it is kept, of all files of step times."""
    catalog = default_catalog()
    rows = [row for path in paths for row in reached_of(parse_file(path, CaseFile, catalog).cases, catalog)]
    return "[\n" + ",\n".join(json.dumps(list(row)) for row in rows) + "\n]\n"


def write_reached() -> Path:
    """Put the record of the public runs in the package; for a checkout, after a change of the cases."""
    path = Path(__file__).with_name(RECORD)
    path.write_text(record_text(step_files()), encoding="utf-8")
    return path


@cache
def recorded() -> tuple[Reached, ...]:
    """The record."""
    text = files("perfsim.study.published").joinpath(RECORD).read_text(encoding="utf-8")
    return tuple(Reached(*row) for row in json.loads(text))


def fewer_than_published(plan: Plan, fixed_s: float) -> str:
    """A remark where a wafer has far fewer sequences than any published log; empty elsewhere.

    The logs cannot tell a time that a layer takes whatever its tokens from a lower efficiency. `fixed_s` is
    what the mesh takes of a step; `LAYER_FIXED_S` is another reading of the same logs.
    """
    calibration = plan.system.device.calibration
    own = [row.sequences for row in recorded() if row.device == getattr(calibration, "name", "")]
    per_system = plan.job.global_batch_size / plan.topology.num_devices
    if not isinstance(calibration, WaferCalibration) or not own or per_system * FAR_FEWER >= min(own):
        return ""
    layers = plan.job.model.num_layers
    more_s = max(0.0, LAYER_FIXED_S * layers - fixed_s)
    return (
        f"{per_system:,.3g} sequences a system: no published log here has fewer than {min(own):,.0f}, so "
        f"what a layer takes whatever its tokens is unknown; {1e3 * fixed_s / layers:.2g} ms a step are "
        f"counted, and with {1e3 * LAYER_FIXED_S:.2g} ms, as another fit of the logs has it, a step takes "
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
