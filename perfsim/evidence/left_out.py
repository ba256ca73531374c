"""Predicts each group of runs with constants that were fitted without it.

A group is a family. Where a family alone determines a constant of a framework or a device, leaving it out
whole would leave no run to fit it to: such a family is left out by model and number of devices.
The constants of `step_fit` are fitted again to the runs of all other groups, with the same weights and loss.
A device without other runs gets its ceiling from the others: the geometric mean of ceilings over those of
long kernels in the benchmark of the same device, times its own benchmark's.
For speed, each log step time is linearised in the log constants around their recorded values, so a fit needs
no new pricing; the group left out is then priced in full with the new constants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from perfsim.base.errors import PerfsimError
from perfsim.catalog import Catalog, default_catalog
from perfsim.evidence.bands import WAFER, LeftOutRun, groups_of, student_quantile, traits_of_case
from perfsim.evidence.cases import StepCase, step_cases
from perfsim.evidence.plans import PlacedCase, mapped, place_case
from perfsim.evidence.score import Scored, dense_and_experts, scored_case, summary
from perfsim.evidence.step_fit import (
    OF_DEVICE,
    OUTLIER,
    Constants,
    ceiling_in_benchmark,
    predict_with,
    recorded_constants,
    step_with,
)
from perfsim.evidence.tables import rounded, scipy_optimize
from perfsim.evidence.wafer_fit import leave_releases_out

ALL = "all runs"
"""The row over all families, each predicted with itself left out."""
STEP = 0.05
"""Relative step of each constant, up and down, for its slope."""
UNSEEN = 0.01
"""A constant whose slopes are all below this does not affect the runs."""
DETERMINES = 0.1
"""A run with a slope of this determines a constant."""
PULL = 0.02
"""Pull towards the recorded constants, as of one run with this slope, where runs do not tell two apart."""
CEILING = f"{OF_DEVICE[0]} of "


@dataclass(frozen=True)
class Tangent:
    """A case's step time around the recorded constants: d log(step) / d log(constant), by constant."""

    scored: Scored
    """The case as predicted with the recorded constants."""
    calibration: str
    constants: Constants
    slopes: Constants
    benchmark_ceiling: float = 1.0
    """Fraction of peak of long kernels in the benchmark of its device."""
    setting: str = ""
    """Model and number of devices."""

    @property
    def residual(self) -> float:
        """log(predicted / measured) with the recorded constants."""
        return float(np.log((self.scored.predicted_s or np.nan) / self.scored.measured_s))


@dataclass(frozen=True)
class LeftOut:
    """Scores of a group with all groups in the fit, and with itself left out."""

    family: str
    """The family; with the model and the number of devices where it is left out in parts."""
    calibration: str
    inside: dict[str, Any]
    outside: dict[str, Any]
    constants: Constants
    """The constants fitted without the group."""
    kept: tuple[str, ...] = ()
    """Constants at their recorded values, because no other group determines them."""
    borrowed: str = ""
    """The devices whose ceilings are used, if no other run was made on this one."""
    runs: tuple[Scored, ...] = ()
    """The group's runs as predicted without it."""


def tangent(placed: PlacedCase, scored: Scored) -> Tangent:
    """The slopes of one case. Raises InputError for a case that does not run on GPUs."""
    at = recorded_constants(placed)
    here = step_with(placed, at)
    step_s = here.run(contention=False).step_time_s

    def log_step(constants: Constants) -> float:
        step = step_with(placed, constants)
        # Many constants do not affect a run, which then need not be simulated.
        moved = not np.array_equal(step.duration_s, here.duration_s)
        return float(np.log(step.run(contention=False).step_time_s if moved else step_s))

    slopes = {}
    for name, value in at.items():
        rise = log_step({**at, name: value * (1 + STEP)}) - log_step({**at, name: value / (1 + STEP)})
        slopes[name] = rise / (2 * float(np.log1p(STEP)))
    return Tangent(
        replace(scored, predicted_s=placed.slowed * step_s),
        placed.calibration,
        at,
        slopes,
        ceiling_in_benchmark(placed),
        placed.case.setting,
    )


def _runs_left_out_together(tangents: Sequence[Tangent]) -> dict[str, str]:
    """What is left out together with each run, by its id: its family, or a part of it."""
    families: dict[str, set[str]] = {}
    for run in tangents:
        for name, slope in run.slopes.items():
            if " of " in name and abs(slope) >= DETERMINES:
                families.setdefault(name, set()).add(run.scored.family)
    alone = {next(iter(own)) for own in families.values() if len(own) == 1}
    return {
        run.scored.id: f"{run.scored.family}, {run.setting}"
        if run.scored.family in alone
        else run.scored.family
        for run in tangents
    }


def leave_out(tangents: Sequence[Tangent], cases: Sequence[StepCase], catalog: Catalog) -> list[LeftOut]:
    """Every group with scored runs, in the order of the cases, then `ALL`; needs scipy."""
    used = [run for run in tangents if run.scored.counts]
    groups = _runs_left_out_together(used)
    rows = [_without(group, used, groups) for group in dict.fromkeys(groups.values())]
    questions = [(case, row.constants) for row in rows for case in cases if groups.get(case.id) == row.family]
    predicted = mapped(partial(_predict, catalog=catalog), questions)
    by_id = {case.id: seconds for (case, _), seconds in zip(questions, predicted, strict=True)}
    rows = [_with_runs(row, used, by_id, groups) for row in rows]
    return [*rows, _with_runs(LeftOut(ALL, "", _summary(used), {}, {}), used, by_id, groups)]


def outside_scores(rows: Sequence[LeftOut]) -> dict[str, Any]:
    """The rows of `leave_out` as `perfsim validate --json` prints them.

    Summary, `families`, `groups` where a family is left out in parts, `dense` and `experts`, the summaries of
    runs of models without and with experts, where some have them, and each run in `cases`.
    """
    runs = rows[-1].runs
    families = dict.fromkeys(run.family for run in runs)
    scores = {family: summary([run for run in runs if run.family == family]) for family in families}
    parts = {row.family: row.outside for row in rows[:-1] if row.family not in families}
    return {
        "by": "family",
        "summary": rows[-1].outside,
        "families": scores,
        **({"groups": parts} if parts else {}),
        **dense_and_experts(runs),
        "cases": [run.as_dict() for run in runs],
    }


def refitted(
    tangents: Sequence[Tangent],
    steps_s: Mapping[str, float],
    without: Sequence[str] = (),
    *,
    leave_out: bool = False,
) -> dict[str, float]:
    """Step times by case after a new fit, given those with the recorded constants in `steps_s`.

    `without` names fields that the model no longer has; with `leave_out` each group is predicted by a fit
    to the others. Slopes are those of the unchanged model.
    """
    moved = [
        replace(run, scored=replace(run.scored, predicted_s=steps_s[run.scored.id]))
        for run in tangents
        if run.scored.counts
    ]
    groups = (
        _runs_left_out_together(moved) if leave_out else dict.fromkeys((run.scored.id for run in moved), "")
    )
    fitted_s = {}
    for group in dict.fromkeys(groups.values()):
        own = [run for run in moved if groups[run.scored.id] == group]
        known = [run for run in moved if groups[run.scored.id] != group] if leave_out else moved
        fit = _fit(known, without)
        for run in own:
            change = _change(run, known, fit)
            moves = sum(run.slopes.get(name, 0.0) * value for name, value in change.items())
            fitted_s[run.scored.id] = steps_s[run.scored.id] * float(np.exp(moves))
    return fitted_s


def _predict(question: tuple[StepCase, Constants], catalog: Catalog) -> float:
    case, constants = question
    return predict_with(place_case(case, catalog), constants)


def _summary(tangents: Sequence[Tangent]) -> dict[str, Any]:
    return summary([run.scored for run in tangents])


def _with_runs(
    row: LeftOut, tangents: Sequence[Tangent], predicted: Mapping[str, float], groups: Mapping[str, str]
) -> LeftOut:
    """The row with its runs as predicted without their groups."""
    own = [run.scored for run in tangents if row.family in (ALL, groups[run.scored.id])]
    runs = tuple(replace(run, predicted_s=predicted.get(run.id, run.predicted_s)) for run in own)
    return replace(row, outside=summary(runs), runs=runs)


def _without(group: str, tangents: Sequence[Tangent], groups: Mapping[str, str]) -> LeftOut:
    """New constants for a group's runs from the other groups."""
    own = [run for run in tangents if groups[run.scored.id] == group]
    rest = [run for run in tangents if groups[run.scored.id] != group]
    fit = _fit(rest)
    at: dict[str, float] = {}
    for run in own:
        moved = _change(run, rest, fit)
        at |= {name: rounded(value * float(np.exp(moved[name]))) for name, value in run.constants.items()}
    kept = tuple(name for name in at if name not in fit.change)
    donors = ", ".join(fit.ceilings) if any(_borrows(run, fit) for run in own) else ""
    return LeftOut(group, own[0].calibration, _summary(own), {}, at, kept, donors)


@dataclass(frozen=True)
class _Fit:
    """Changes of log constants that some runs determine."""

    change: Constants
    ceilings: tuple[str, ...]
    """Calibrations with a fitted sustained ceiling."""


def _borrows(run: Tangent, fit: _Fit) -> bool:
    """Whether the ceiling of a run's device comes from other devices."""
    own = CEILING + run.calibration
    return bool(fit.ceilings) and own in run.constants and own not in fit.change


def _change(run: Tangent, known: Sequence[Tangent], fit: _Fit) -> dict[str, float]:
    """Change of a run's log constants by a fit to the `known` runs."""
    change = {name: fit.change.get(name, 0.0) for name in run.constants}
    if _borrows(run, fit):
        own = CEILING + run.calibration
        first = {other.calibration: other for other in reversed(known)}
        ratio = geometric_mean(
            first[name].constants[CEILING + name]
            * float(np.exp(fit.change[CEILING + name]))
            / first[name].benchmark_ceiling
            for name in fit.ceilings
        )
        change[own] = float(np.log(min(1.0, run.benchmark_ceiling * ratio) / run.constants[own]))
    return change


def _fit(tangents: Sequence[Tangent], without: Sequence[str] = ()) -> _Fit:
    """Change of the log constants by robust least squares, with equal weight per family."""
    sizes = Counter(run.scored.family for run in tangents)
    weight = np.array([1.0 / np.sqrt(sizes[run.scored.family]) for run in tangents])
    names = [
        name
        for name in dict.fromkeys(name for run in tangents for name in run.slopes)
        if name.split(" of ")[0] not in without
        and max(abs(run.slopes.get(name, 0.0)) for run in tangents) > UNSEEN
    ]
    if not names:
        return _Fit({}, ())
    optimize: Any = scipy_optimize()
    start = np.array([run.residual for run in tangents]) * weight
    slopes = np.array([[run.slopes.get(name, 0.0) for name in names] for run in tangents])
    moving = slopes * weight[:, None]
    pull = PULL * float(weight.mean())
    change = optimize.least_squares(
        lambda moved: np.append(start + moving @ moved, pull * moved),
        np.zeros(len(names)),
        loss="soft_l1",
        f_scale=OUTLIER * float(weight.mean()),
    ).x
    ceilings = tuple(name.removeprefix(CEILING) for name in names if name.startswith(CEILING))
    return _Fit(dict(zip(names, change.tolist(), strict=True)), ceilings)


# Runs predicted with constants that were fitted without them, from whose errors bands are made.
#
# GPU runs are left out by family (`leave_out`), wafer logs by software release. Five wafer logs are too few
# for
# a percentile, so the half-width of their 90 % band is Student's, from their root mean square error r:
# t_95(n) r sqrt(1 + 1/n).

STREAMING = "weight-streaming"
FEWEST = 8
"""Runs that a 90th percentile needs."""


@dataclass(frozen=True)
class HeldOut:
    """The runs of a file, each left out of the fit."""

    scores: Mapping[str, Mapping[str, Any]]
    """By family, and over all runs under `ALL`."""
    runs: tuple[LeftOutRun, ...]
    constants: Mapping[str, Mapping[str, Any]]
    """By group left out: the `calibration` of its device, and the `constants` that the other groups give."""


def held_out(path: Path, rows: Sequence[LeftOut] = ()) -> HeldOut:
    """Scores of a file of step-time cases, each left out of its fit; takes minutes, needs scipy.

    `rows` are those of `leave_out` over the runs of the file, where they are known already.
    """
    catalog = default_catalog()
    cases = step_cases(path, catalog)
    if any(case.strategy == STREAMING for case in cases):
        return _wafers(path, cases, catalog)
    rows = rows or _rows(path, catalog)
    outside = outside_scores(rows)
    scores = {**outside["families"], ALL: outside["summary"]}
    constants = {
        row.family: {"calibration": row.calibration, "constants": row.constants}
        for row in rows
        if row.family != ALL
    }
    groups = {run.id: row.family for row in rows if row.family != ALL for run in row.runs}
    return HeldOut(scores, _runs(rows[-1].runs, cases, groups, catalog), constants)


def releases_left_out(path: Path, catalog: Catalog) -> dict[str, Any] | None:
    """Each scored wafer log predicted without the logs of its release; None for a file without wafers."""
    logs = [case for case in step_cases(path, catalog) if case.scored and case.strategy == STREAMING]
    if not logs:
        return None
    predicted, _ = leave_releases_out(path, WAFER, catalog)
    scored = [scored_case(case, predicted.get(case.id)) for case in logs]
    return {
        "by": "release",
        "summary": _band_of_few(scored),
        "families": _by_family(scored),
        "cases": [run.as_dict() for run in scored],
    }


def left_out(path: Path) -> dict[str, Any]:
    """Scores of a file of step-time cases, each predicted by a fit without it; takes minutes, needs scipy.

    GPU runs are left out `by` family, wafer logs by release: `summary`, `families` and `cases`; of GPU runs
    also `dense` and `experts`, where some have them. Of a file with both, the scores of the logs stand under
    `wafers`.
    """
    catalog = default_catalog()
    wafers = releases_left_out(path, catalog)
    if wafers is not None and all(case.strategy == STREAMING for case in step_cases(path, catalog)):
        return wafers
    scores = outside_scores(_rows(path, catalog))
    return scores if wafers is None else {**scores, "wafers": wafers}


def _rows(path: Path, catalog: Catalog) -> list[LeftOut]:
    cases = step_cases(path, catalog)
    tangents = mapped(partial(_tangent, catalog=catalog), cases)
    return leave_out([run for run in tangents if run is not None], cases, catalog)


def _tangent(case: StepCase, catalog: Catalog) -> Tangent | None:
    if not case.scored:
        return None
    try:
        return tangent(place_case(case, catalog), scored_case(case, None))
    except PerfsimError:
        return None


def _runs(
    scored: Sequence[Scored], cases: Sequence[StepCase], groups: Mapping[str, str], catalog: Catalog
) -> tuple[LeftOutRun, ...]:
    """The runs that were predicted without their group, which `groups` gives by id."""
    by_id = {case.id: case for case in cases}
    runs = []
    for run in scored:
        case = by_id[run.id]
        traits = traits_of_case(case, catalog)
        if run.counts and run.predicted_s is not None and traits is not None:
            error = float(np.log(run.predicted_s / run.measured_s))
            runs.append(LeftOutRun(groups[run.id], case.family, error, traits))
    return tuple(runs)


def _wafers(path: Path, cases: tuple[StepCase, ...], catalog: Catalog) -> HeldOut:
    predicted, calibrations = leave_releases_out(path, WAFER, catalog)
    scored = [scored_case(case, predicted.get(case.id)) for case in cases]
    constants = {
        release: {"calibration": WAFER, "constants": {"efficiency": calibration.efficiency[release]}}
        for release, calibration in calibrations.items()
    }
    groups = {case.id: groups_of(case, catalog)[0] for case in cases}
    return HeldOut(
        {**_by_family(scored), ALL: _band_of_few(scored)}, _runs(scored, cases, groups, catalog), constants
    )


def _by_family(scored: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    return {
        family: summary([run for run in scored if run.family == family])
        for family in dict.fromkeys(run.family for run in scored if run.counts)
    }


def _band_of_few(scored: Sequence[Scored]) -> dict[str, Any]:
    """The summary; for few runs with Student's half-width if it is wider than the percentile."""
    figures = summary(scored)
    errors = np.array([run.error for run in scored if run.counts and run.error is not None])
    count = len(errors)
    if 0 < count < FEWEST:
        width = student_quantile(count) * float(np.sqrt(np.mean(errors**2)))
        figures["p90_ape"] = max(figures["p90_ape"], width)
    return figures
