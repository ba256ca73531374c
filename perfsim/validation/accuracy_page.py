"""The content of the accuracy page: scores, ablation, families left out, and likely causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.catalog import Catalog, default_catalog
from perfsim.costs.wafer import WaferCosts
from perfsim.errors import PerfsimError
from perfsim.fitting.step_fit import OF_HOST, OF_KERNEL
from perfsim.machines.gpu_cluster import gpu_plan
from perfsim.machines.wafer_cluster import wafer_plan
from perfsim.published.cases import StepCase
from perfsim.published.placed_cases import PlacedCase, place_case
from perfsim.published.processes import mapped
from perfsim.published.rows import step_cases
from perfsim.validation.ablation import NOTHING, REMOVALS, TRIED, ablate, shares
from perfsim.validation.causes import Facts, likely_cause
from perfsim.validation.held_out import releases_left_out
from perfsim.validation.leave_out import LeftOut, Tangent, leave_out, outside_scores, refitted, tangent
from perfsim.validation.score import Scored, families, summary
from perfsim.validation.validate import scored_case


@dataclass(frozen=True)
class Removed:
    """The score of the public GPU runs without one mechanism."""

    mechanism: str
    instead: str
    summary: Mapping[str, Any]
    most_hurt: str
    """The family whose mean error grows most; empty if none does."""
    most_hurt_mape: float | None
    refitted: Mapping[str, Any] | None = None
    """The score after a new fit of the constants without the mechanism."""
    left_out: Mapping[str, Any] | None = None
    """The score of runs predicted by such a fit without their family."""
    tried: bool = False
    """Whether the mechanism was dropped; then the scores are those with it."""


@dataclass(frozen=True)
class Examined:
    """The parts of one case's predicted step."""

    id: str
    steps_s: dict[str, float]
    """Step time by removed mechanism; empty for a wafer."""
    shares: dict[str, float]
    """Fraction of the step by mechanism and by category of the breakdown."""
    tensor_across_nodes: bool
    tangent: Tangent | None


@dataclass(frozen=True)
class StepAccuracy:
    """The score of a file of step-time cases and its explanation."""

    result: Mapping[str, Any]
    causes: Mapping[str, str]
    removed: Sequence[Removed]
    left_out: Sequence[LeftOut]
    releases_left_out: Mapping[str, Any] | None = None
    """Wafer logs predicted without their release; None if not requested."""

    @property
    def outside(self) -> Mapping[str, Any] | None:
        """`left_out` of the JSON document; None if not requested."""
        return self.releases_left_out or (outside_scores(self.left_out) if self.left_out else None)


@dataclass(frozen=True)
class FittedConstant:
    """A constant that whole steps decide."""

    name: str
    """Field and owner, as in `pass_s of megatron-core-te`."""
    value: float
    standard_error: float
    """Relative to the value."""
    runs: int
    """Runs of the fit."""


def fitted_constants(catalog: Catalog) -> list[FittedConstant]:
    """Constants of frameworks, networks and devices that `perfsim calibrate framework` found, each once."""
    frameworks = [catalog.framework(name) for name in catalog.names("framework")]
    found: dict[str, FittedConstant] = {}
    for owner in [*frameworks, *(catalog.calibration(name) for name in catalog.names("calibration"))]:
        values = owner.constants()
        for path, record in owner.fit.items():
            value, field = values.get(path), path.rpartition(".")[2]
            name = field if field in OF_KERNEL else f"{field} of {owner.name}"
            launched = field in OF_HOST and bool(getattr(owner, "launcher", ""))
            if launched or path in owner.assumed or not isinstance(value, float):
                continue
            if record.command.startswith(FIT_OF_STEPS):
                found[name] = FittedConstant(name, value, record.standard_errors[field], record.points)
    return list(found.values())


FIT_OF_STEPS = "perfsim calibrate framework"
"""How the command of a fit to whole steps begins."""


@dataclass(frozen=True)
class AccuracyPage:
    """The scores of all files, in their order."""

    steps: Sequence[StepAccuracy]
    convergence: Sequence[Mapping[str, Any]]
    leaves_out: bool
    """Whether each family was left out of a fit."""
    constants: Sequence[FittedConstant] = ()


def accuracy_page(
    paths: Sequence[Path], results: Sequence[Mapping[str, Any]], *, leaves_out: bool
) -> AccuracyPage:
    """The page for `results`, as from `validate_file` for `paths`; takes minutes.

    Raises CatalogError for a malformed file, and InputError for `leaves_out` without SciPy.
    """
    catalog = default_catalog()
    steps = [
        replace(
            step_accuracy(step_cases(path, catalog), result, catalog, leaves_out=leaves_out),
            releases_left_out=releases_left_out(path, catalog) if leaves_out else None,
        )
        for path, result in zip(paths, results, strict=True)
        if result["kind"] == "step_time"
    ]
    convergence = [result for result in results if result["kind"] == "convergence"]
    return AccuracyPage(steps, convergence, leaves_out, fitted_constants(catalog))


def step_accuracy(
    cases: Sequence[StepCase], result: Mapping[str, Any], catalog: Catalog, *, leaves_out: bool
) -> StepAccuracy:
    """Explain the score of some step-time cases."""
    parts = mapped(partial(examine, catalog=catalog, leaves_out=leaves_out), cases)
    examined = {part.id: part for part in parts if part is not None}
    on_gpus = any(part.steps_s for part in examined.values())
    tangents = [part.tangent for part in examined.values() if part.tangent is not None]
    return StepAccuracy(
        result=result,
        causes=_causes(cases, result, examined),
        removed=ablation(cases, examined, tangents) if on_gpus else [],
        left_out=leave_out(tangents, cases, catalog) if tangents else [],
    )


def examine(case: StepCase, catalog: Catalog, *, leaves_out: bool) -> Examined | None:
    """The parts of one case; None if it cannot be predicted."""
    try:
        placed = place_case(case, catalog)
        examine_kind = _EXAMINES.get(placed.plan.system.kind)
        return examine_kind and examine_kind(placed, leaves_out=leaves_out and case.scored)
    except PerfsimError:
        return None


def _examine_gpus(placed: PlacedCase, *, leaves_out: bool) -> Examined:
    plan = gpu_plan(placed.plan)
    steps, trace = ablate(placed)
    idle = trace.mean_breakdown()["bubble"] / trace.step_time_s
    return Examined(
        placed.case.id,
        steps,
        {**shares(steps), "bubble": idle},
        plan.layout.tensor > plan.topology.devices_per_node,
        tangent(placed, scored_case(placed.case, None)) if leaves_out else None,
    )


def _examine_wafers(placed: PlacedCase, *, leaves_out: bool) -> Examined:  # noqa: ARG001
    costs = WaferCosts(wafer_plan(placed.plan).topology, placed.plan.job.recipe)
    trace = placed.step(costs).run(contention=False)
    parts = {name: seconds / trace.step_time_s for name, seconds in trace.mean_breakdown().items()}
    costs.mesh = replace(costs.mesh, link_s_per_element=0.0)
    without_s = placed.step(costs).run(contention=False).step_time_s
    parts["movement over the mesh"] = 1.0 - without_s / trace.step_time_s
    return Examined(placed.case.id, {}, parts, False, None)


_EXAMINES = {"gpu-cluster": _examine_gpus, "wafer-cluster": _examine_wafers}
"""By kind of machine."""


def _causes(
    cases: Sequence[StepCase], result: Mapping[str, Any], examined: Mapping[str, Examined]
) -> dict[str, str]:
    errors = {row["id"]: row["error"] for row in result["cases"] if row["error"] is not None}
    causes = {}
    for case in cases:
        parts = examined.get(case.id)
        if parts is None or case.id not in errors:
            continue
        relatives = [
            errors[relative.id]
            for relative in cases
            if relative.family == case.family
            and relative.id != case.id
            and relative.scored
            and relative.id in errors
        ]
        causes[case.id] = likely_cause(
            Facts(
                case=case,
                error=errors[case.id],
                shares=parts.shares,
                family_bias=float(np.mean(relatives)) if relatives else 0.0,
                tensor_across_nodes=parts.tensor_across_nodes,
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
    rows = [Removed(NOTHING, "", summary(whole), "", None, *_after_fit(whole, tangents, ()))]
    before = families(whole)
    for removal in (*REMOVALS, *TRIED):
        changed = without(removal.key)
        after = {name: figures["mape"] for name, figures in families(changed).items() if figures["n"]}
        hurt = max(after, key=lambda name: after[name] - before[name]["mape"], default="")
        if hurt and after[hurt] <= before[hurt]["mape"]:
            hurt = ""
        hurt_mape = after[hurt] if hurt else None
        scores = (summary(changed), hurt, hurt_mape, *_after_fit(changed, tangents, removal.constants))
        rows.append(Removed(removal.key, removal.instead, *scores, tried=removal in TRIED))
    return rows


def _after_fit(
    changed: Sequence[Scored], tangents: Sequence[Tangent], without: Sequence[str]
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Scores of `changed` after a new fit to all runs, and to other families; None without tangents."""
    if not tangents:
        return None, None
    steps_s = {run.id: run.predicted_s for run in changed if run.predicted_s is not None}

    def score(fitted_s: Mapping[str, float]) -> Mapping[str, Any]:
        return summary([replace(run, predicted_s=fitted_s.get(run.id, run.predicted_s)) for run in changed])

    return (
        score(refitted(tangents, steps_s, without)),
        score(refitted(tangents, steps_s, without, leave_out=True)),
    )
