"""The accuracy of a step time: errors on published runs, recorded with the calibrations.

`perfsim validate --record` writes the record; a test fails when it is stale. A plan is shown the errors of
the family of runs that is most like it (`perfsim.prediction.likeness`); its band comes from the errors of all
runs that were left out of the fit, and widens with the unlikeness (`perfsim.prediction.bands`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from perfsim.machines import Unknown, machine_of
from perfsim.prediction.bands import UNKNOWN, UNKNOWN_ERROR, widths_from
from perfsim.prediction.hidden import Hidden
from perfsim.prediction.likeness import Traits, traits_of_plan, unlikeness
from perfsim.prediction.result import Accuracy
from perfsim.strategies import Plan

RECORD = "accuracy.json"


@cache
def recorded() -> tuple[dict[str, Any], ...]:
    """The recorded errors, one entry per kind of system."""
    text = files("perfsim.prediction").joinpath(RECORD).read_text(encoding="utf-8")
    entries: tuple[dict[str, Any], ...] = tuple(json.loads(text))
    return entries


def accuracy_of(plan: Plan, share: float = 0.0, *, without: str = "") -> Accuracy:
    """The errors of the family of published runs most like a plan, and the plan's band.

    `share` of its step hides communication (`hidden_share`; 0 where the plan was not simulated). `without`
    names a group of runs of which the answer knows nothing.
    """
    unknowns = [*unknowns_of(plan), *hidden_of(plan, share, without=without).unknown()]
    return nearest(plan.system.kind, traits_of_plan(plan), without, unknowns)


def unknowns_of(plan: Plan) -> list[Unknown]:
    """What no published run shows of the machine of a plan, or of its job on such a machine."""
    machine = machine_of(plan.system)
    own = machine.unknowns(plan.system, plan.job.recipe, plan.topology.num_devices)
    return [*own, *machine.job_unknowns(plan.job)]


def hidden_of(plan: Plan, share: float, *, without: str = "") -> Hidden:
    """A share of a step that hides communication, beside the largest of runs on devices like its own.

    How a device computes beside communication is its own: runs count that have its constants; where none
    has, all on its kind of system.
    """
    families = [
        family
        for entry in recorded()
        if entry["system_kind"] == plan.system.kind
        for family in entry["families"]
        if family["family"] != without
    ]
    alike = [family for family in families if plan.system.device.constants in family["constants"]]
    published = max((family["hidden_communication"] for family in alike or families), default=0.0)
    return Hidden(share, published, machine_of(plan.system).overlap_slowdown(plan.system))


def left_out_of(system_kind: str, group: str) -> Mapping[str, Any] | None:
    """The record of a fit without a group of runs (a family, a wafer's release); None if there is none.

    `constants` are those of the fit, `band` the widths that the other groups give.
    """
    rows = (row for entry in recorded() if entry["system_kind"] == system_kind for row in entry["left_out"])
    return next((row for row in rows if row["group"] == group), None)


def nearest(
    system_kind: str, traits: Traits, without: str = "", unknowns: Sequence[Unknown] = ()
) -> Accuracy:
    """The errors of the recorded family most like `traits`, and the band of a run with them and `unknowns`.

    `without` names a group of runs of which the answer knows nothing. A kind of system without published runs
    has `UNKNOWN_ERROR`.
    """
    families = [
        (family, entry)
        for entry in recorded()
        if entry["system_kind"] == system_kind
        for family in entry["families"]
        if family["family"] != without
    ]
    if not families:
        return _unknown(system_kind)
    family, whole = min(
        families,
        key=lambda pair: (round(unlikeness(traits, pair[0])[0], 9), -pair[0]["n"], pair[0]["family"]),
    )
    left_out = left_out_of(system_kind, without)
    widths = widths_from(whole["band"] if left_out is None else left_out["band"])
    if traits.experts:
        known = (
            widths.experts if left_out else max(entry["band"].get("experts", 1.0) for _, entry in families)
        )
        widths = widths.of_experts(known)
    points, differences = unlikeness(traits, family)
    differences += tuple(unknown.words for unknown in unknowns)
    beyond = math.hypot(*(unknown.log_width for unknown in unknowns))
    unshared = math.hypot(*(unknown.log_width for unknown in unknowns if not unknown.shared))
    return Accuracy(
        strategy=whole["strategy"],
        family=family["family"],
        n=family["n"],
        median_ape=family["median_ape"],
        p90_ape=family["p90_ape"],
        held_out_p90_ape=family["held_out_p90_ape"],
        baseline_median_ape=family["baseline_median_ape"],
        likeness="; ".join(differences) or "the same device, parallelism and range of sizes",
        unlikeness=points,
        step_time_error=widths.error(points, beyond),
        unshared_error=widths.unshared_error(points, unshared),
    )


def _unknown(system_kind: str) -> Accuracy:
    return Accuracy(
        strategy="",
        family="no published run",
        n=0,
        median_ape=UNKNOWN_ERROR,
        p90_ape=UNKNOWN_ERROR,
        held_out_p90_ape=UNKNOWN_ERROR,
        baseline_median_ape=UNKNOWN_ERROR,
        likeness=f"no published run on a {system_kind} is recorded: an error of a factor of two is assumed",
        step_time_error=UNKNOWN.error(0.0),
        unshared_error=UNKNOWN.unshared_error(0.0),
    )
