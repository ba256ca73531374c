"""All that the accuracy page shows: scores, ablation, families left out, and likely causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.catalog import Catalog, default_catalog, parse_file
from perfsim.costs.wafer import WaferCosts
from perfsim.errors import PerfsimError
from perfsim.machines.gpu_cluster import gpu_plan
from perfsim.machines.wafer_cluster import wafer_plan
from perfsim.published.cases import CaseFile, StepCase
from perfsim.published.placed_cases import PlacedCase, place_case
from perfsim.published.processes import mapped
from perfsim.validation.ablation import NOTHING, REMOVALS, ablate, shares
from perfsim.validation.causes import Facts, likely_cause
from perfsim.validation.held_out import releases_left_out
from perfsim.validation.leave_out import LeftOut, Tangent, leave_out, refitted, tangent
from perfsim.validation.score import Scored, families, summary
from perfsim.validation.validate import scored_case


@dataclass(frozen=True)
class Removed:
    """The score of the public GPU runs without one mechanism."""

    what: str
    instead: str
    summary: Mapping[str, Any]
    most_hurt: str
    """The family whose mean error grows most; empty where none does."""
    most_hurt_mape: float | None
    refitted: Mapping[str, Any] | None = None
    """The score after the fitted constants were given the chance to make up for it."""


@dataclass(frozen=True)
class Examined:
    """One case in parts."""

    id: str
    steps_s: dict[str, float]
    """Step time by removed mechanism; empty off GPUs."""
    shares: dict[str, float]
    """Of the step, by mechanism and by category of the breakdown."""
    tensor_across_nodes: bool
    tangent: Tangent | None


@dataclass(frozen=True)
class StepAccuracy:
    """A file of step-time cases: its score and what explains it."""

    result: Mapping[str, Any]
    causes: Mapping[str, str]
    removed: Sequence[Removed]
    left_out: Sequence[LeftOut]
    releases_left_out: Mapping[str, Any] | None = None
    """Of wafer logs: each as predicted without its release; None where it was not asked for."""


@dataclass(frozen=True)
class AccuracyPage:
    """The scores of all files, in their order."""

    steps: Sequence[StepAccuracy]
    convergence: Sequence[Mapping[str, Any]]
    leaves_out: bool
    """Whether families were left out of the fit in turn."""


def accuracy_page(
    paths: Sequence[Path],
    results: Sequence[Mapping[str, Any]],
    *,
    leaves_out: bool = False,
    catalog: Catalog | None = None,
) -> AccuracyPage:
    """What the page shows of `results`, which `validate_file` gave for `paths`; minutes of work.

    Raises CatalogError for a malformed file, and InputError for `leaves_out` without SciPy.
    """
    catalog = catalog or default_catalog()
    steps = [
        replace(
            step_accuracy(parse_file(path, CaseFile, catalog).cases, result, catalog, leaves_out=leaves_out),
            releases_left_out=releases_left_out(path, catalog) if leaves_out else None,
        )
        for path, result in zip(paths, results, strict=True)
        if result["kind"] == "step_time"
    ]
    convergence = [result for result in results if result["kind"] == "convergence"]
    return AccuracyPage(steps, convergence, leaves_out)


def step_accuracy(
    cases: Sequence[StepCase], result: Mapping[str, Any], catalog: Catalog, *, leaves_out: bool
) -> StepAccuracy:
    """Explain the score of some step-time cases."""
    found = mapped(partial(examine, catalog=catalog, leaves_out=leaves_out), cases)
    examined = {each.id: each for each in found if each is not None}
    on_gpus = any(each.steps_s for each in examined.values())
    tangents = [each.tangent for each in examined.values() if each.tangent is not None]
    return StepAccuracy(
        result=result,
        causes=_causes(cases, result, examined),
        removed=ablation(cases, examined, tangents) if on_gpus else [],
        left_out=leave_out(tangents, cases, catalog) if tangents else [],
    )


def examine(case: StepCase, catalog: Catalog, *, leaves_out: bool) -> Examined | None:
    """Take one case apart; None where it cannot be predicted."""
    try:
        written = place_case(case, catalog)
        return _EXAMINES[written.plan.system.kind](written, leaves_out=leaves_out and case.scored)
    except PerfsimError:
        return None


def _examine_gpus(written: PlacedCase, *, leaves_out: bool) -> Examined:
    plan = gpu_plan(written.plan)
    steps, trace = ablate(written)
    idle = trace.mean_breakdown()["bubble"] / trace.step_time_s
    return Examined(
        written.case.id,
        steps,
        {**shares(steps), "bubble": idle},
        plan.layout.tensor > plan.topology.devices_per_node,
        tangent(written, scored_case(written.case, None)) if leaves_out else None,
    )


def _examine_wafers(written: PlacedCase, *, leaves_out: bool) -> Examined:  # noqa: ARG001
    costs = WaferCosts(wafer_plan(written.plan).topology, written.plan.job.recipe)
    trace = written.step(costs).run(contention=False)
    parts = {name: seconds / trace.step_time_s for name, seconds in trace.mean_breakdown().items()}
    costs.mesh = replace(costs.mesh, link_s_per_element=0.0)
    without_s = written.step(costs).run(contention=False).step_time_s
    parts["movement over the mesh"] = 1.0 - without_s / trace.step_time_s
    return Examined(written.case.id, {}, parts, False, None)


_EXAMINES = {"gpu-cluster": _examine_gpus, "wafer-cluster": _examine_wafers}
"""By kind of machine."""


def _causes(
    cases: Sequence[StepCase], result: Mapping[str, Any], examined: Mapping[str, Examined]
) -> dict[str, str]:
    errors = {row["id"]: row["error"] for row in result["cases"] if row["error"] is not None}
    causes = {}
    for case in cases:
        each = examined.get(case.id)
        if each is None or case.id not in errors:
            continue
        others = [
            errors[other.id]
            for other in cases
            if other.family == case.family and other.id != case.id and other.scored and other.id in errors
        ]
        causes[case.id] = likely_cause(
            Facts(
                case=case,
                error=errors[case.id],
                shares=each.shares,
                family_bias=float(np.mean(others)) if others else 0.0,
                tensor_across_nodes=each.tensor_across_nodes,
            )
        )
    return causes


def ablation(
    cases: Sequence[StepCase], examined: Mapping[str, Examined], tangents: Sequence[Tangent] = ()
) -> list[Removed]:
    """The score with every mechanism in place and without each one, over the GPU cases.

    With `tangents` also after a new fit of the constants.
    """
    on_gpus = [
        (scored_case(case, None), examined[case.id].steps_s)
        for case in cases
        if case.id in examined and examined[case.id].steps_s
    ]

    def without(key: str) -> list[Scored]:
        return [replace(case, predicted_s=steps[key]) for case, steps in on_gpus]

    whole = without(NOTHING)
    rows = [Removed(NOTHING, "", summary(whole), "", None)]
    before = families(whole)
    for removal in REMOVALS:
        changed = without(removal.key)
        after = {name: figures["mape"] for name, figures in families(changed).items() if figures["n"]}
        hurt = max(after, key=lambda name: after[name] - before[name]["mape"], default="")
        if hurt and after[hurt] <= before[hurt]["mape"]:
            hurt = ""
        hurt_mape = after[hurt] if hurt else None
        again = _after_fit(changed, tangents, removal.own)
        rows.append(Removed(removal.key, removal.instead, summary(changed), hurt, hurt_mape, again))
    return rows


def _after_fit(
    changed: Sequence[Scored], tangents: Sequence[Tangent], without: Sequence[str]
) -> Mapping[str, Any] | None:
    """The score of `changed` predictions once the constants are fitted again; None without tangents."""
    if not tangents:
        return None
    steps_s = {each.id: each.predicted_s for each in changed if each.predicted_s is not None}
    again = refitted(tangents, steps_s, without)
    return summary([replace(each, predicted_s=again.get(each.id, each.predicted_s)) for each in changed])
