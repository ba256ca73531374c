"""Predicts each group of runs with constants that were fitted without it.

A group of GPU runs is a family. Where a family alone determines a constant of a framework or a device,
leaving it out whole would leave no run to fit it to: such a family is left out by model and number of
devices. The constants of `step_fit` are fitted again to the runs of all other groups, with the same weights
and loss. A device without other runs gets its ceiling from the others: the geometric mean of ceilings over
those of long kernels in the benchmark of the same device, times its own benchmark's. For speed, each log step
time is linearised in the log constants around their recorded values, so a fit needs no new pricing; the group
left out is then priced in full with the new constants.

A group of wafer logs is a software release, whose efficiency follows from its growth over the other releases.
Five logs are too few for a percentile, so the half-width of their 90 % band is Student's, from their root
mean square error r: t_95(n) r sqrt(1 + 1/n).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal, TypeVar

import numpy as np

from perfsim.base.errors import PerfsimError
from perfsim.catalog import Catalog, default_catalog
from perfsim.evidence.bands import LeftOutRun, student_quantile, traits_of_case
from perfsim.evidence.cases import StepCase, read_cases
from perfsim.evidence.plans import PlacedCase, evaluate_case, mapped, place_case
from perfsim.evidence.score import Scored, dense_and_experts, scored_case, summary
from perfsim.evidence.step_fit import (
    OF_DEVICE,
    OUTLIER,
    Constants,
    gpu_calibration,
    predict_with,
    recorded_constants,
    step_with,
)
from perfsim.evidence.tables import family_weight, rounded, scipy
from perfsim.evidence.wafer_fit import WaferFit, release_of

ALL = "all runs"
"""The row over all groups, each predicted with itself left out."""
_WAFER = "wse-2"
"""The wafer whose constants are fitted to the public logs."""
_STEP = 0.05
"""Relative step of each constant, up and down, for its slope."""
_UNSEEN = 0.01
"""A constant whose slopes are all below this does not affect the runs."""
_DETERMINES = 0.1
"""A run with a slope of this determines a constant."""
_PULL = 0.02
"""Pull towards the recorded constants, as of one run with this slope, where runs do not tell two apart."""
_CEILING = f"{OF_DEVICE[0]} of "
FEWEST = 8
"""Runs that a 90th percentile needs."""


@dataclass(frozen=True)
class LeftOut:
    """Scores of a group with all groups in the fit, and with itself left out."""

    family: str
    """The family, with model and number of devices where it is left out in parts; of wafers the release."""
    calibration: str
    runs: tuple[Scored, ...]
    """The group's runs as predicted without it."""
    inside: Mapping[str, Any] = field(default_factory=dict)
    constants: Constants = field(default_factory=dict)
    """The constants fitted without the group."""
    kept: tuple[str, ...] = ()
    """Constants at their recorded values, because no other group determines them."""
    borrowed: str = ""
    """The devices whose ceilings are used, if no other run was made on this one."""

    @property
    def outside(self) -> dict[str, Any]:
        """The score of its runs."""
        return summary(self.runs)


@dataclass(frozen=True)
class LeavingOut:
    """The runs of a file, each predicted by a fit without its group."""

    by: Literal["family", "release"]
    groups: tuple[LeftOut, ...]
    runs: tuple[Scored, ...]
    inside: Mapping[str, Any] = field(default_factory=dict)
    """The score of all runs with all groups in the fit."""

    @property
    def rows(self) -> list[LeftOut]:
        """The groups, then all runs together."""
        return [*self.groups, LeftOut(ALL, "", self.runs, self.inside)]

    @property
    def families(self) -> dict[str, dict[str, Any]]:
        """The score of each family."""
        names = dict.fromkeys(run.family for run in self.runs)
        return {name: summary(run for run in self.runs if run.family == name) for name in names}

    @property
    def summary(self) -> dict[str, Any]:
        """The score of all runs; of few logs with Student's half-width if it is wider than the percentile."""
        figures = summary(self.runs)
        errors = np.array([run.error for run in self.runs if run.counts and run.error is not None])
        if self.by == "release" and 0 < len(errors) < FEWEST:
            width = student_quantile(len(errors)) * float(np.sqrt(np.mean(errors**2)))
            figures["p90_ape"] = max(figures["p90_ape"], width)
        return figures

    @property
    def constants(self) -> dict[str, dict[str, Any]]:
        """By group, the `calibration` of its device, and the `constants` that the other groups give."""
        return {
            row.family: {"calibration": row.calibration, "constants": row.constants} for row in self.groups
        }

    def as_dict(self) -> dict[str, Any]:
        """What `perfsim validate --json` prints: `by`, `summary`, `families` and `cases`.

        Also `groups` where a family is left out in parts, and `dense` and `experts`, the summaries of runs of
        models without and with experts, where some have them.
        """
        families = self.families
        parts = {row.family: row.outside for row in self.groups if row.family not in families}
        return {
            "by": self.by,
            "summary": self.summary,
            "families": families,
            **({"groups": parts} if parts and self.by == "family" else {}),
            **dense_and_experts(self.runs),
            "cases": [run.as_dict() for run in self.runs],
        }

    def with_traits(self, cases: Sequence[StepCase], catalog: Catalog) -> list[LeftOutRun]:
        """The scored runs with their log errors and traits, from which bands are fitted."""
        groups = {run.id: row.family for row in self.groups for run in row.runs}
        by_id = {case.id: case for case in cases}
        runs = []
        for run in self.runs:
            traits = traits_of_case(by_id[run.id], catalog)
            if run.counts and run.predicted_s is not None and traits is not None:
                error = float(np.log(run.predicted_s / run.measured_s))
                runs.append(LeftOutRun(groups[run.id], run.family, error, traits))
        return runs


def left_out(path: Path, catalog: Catalog | None = None) -> list[LeavingOut]:
    """The scored runs of a file on GPUs and the logs of its wafers, each if it has some.

    It takes minutes, and needs scipy.
    """
    catalog = catalog or default_catalog()
    cases = read_cases(path, StepCase, catalog).cases
    wafers = wafers_left_out(path, catalog)
    if wafers and all(case.on_wafers for case in cases):
        return wafers
    tangents = mapped(partial(_tangent, catalog=catalog), cases)
    return [leave_out([run for run in tangents if run is not None], cases, catalog), *wafers]


def left_out_document(found: Sequence[LeavingOut]) -> dict[str, Any] | None:
    """`left_out` of the JSON document; of a file with both, the scores of its logs stand under `wafers`."""
    documents = [each.as_dict() for each in found]
    if not documents:
        return None
    return {**documents[0], **({"wafers": documents[1]} if len(documents) > 1 else {})}


Item = TypeVar("Item")


def _each_group(items: Sequence[Item], groups: Sequence[str]) -> Iterator[tuple[str, list[Item], list[Item]]]:
    """Each group with its items and the items of all other groups."""
    for group in dict.fromkeys(groups):
        together = list(zip(items, groups, strict=True))
        yield (
            group,
            [item for item, its_group in together if its_group == group],
            [item for item, its_group in together if its_group != group],
        )


def wafers_left_out(path: Path, catalog: Catalog) -> list[LeavingOut]:
    """Each scored wafer log predicted without the logs of its release; empty for a file without wafers.

    All logs of a release are left out together, since the others would still contain its efficiency.
    """
    logs = [case for case in read_cases(path, StepCase, catalog).cases if case.scored and case.on_wafers]
    if not logs:
        return []
    fit = WaferFit.of(path, _WAFER, catalog)
    rows = []
    for release, left, others in _each_group(fit.cases, [release_of(case, catalog) for case in fit.cases]):
        if not others:
            continue
        known = replace(fit, cases=others)
        without = known.calibration(known.least_squares().x)
        runs = tuple(scored_case(case, evaluate_case(case, catalog, without).step_time_s) for case in left)
        rows.append(LeftOut(release, _WAFER, runs, {}, {"efficiency": without.efficiency[release]}))
    predicted = {run.id: run for row in rows for run in row.runs}
    runs = tuple(predicted.get(case.id) or scored_case(case, None) for case in logs)
    return [LeavingOut("release", tuple(rows), runs)]


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


def tangent(placed: PlacedCase) -> Tangent:
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
        rise = log_step({**at, name: value * (1 + _STEP)}) - log_step({**at, name: value / (1 + _STEP)})
        slopes[name] = rise / (2 * float(np.log1p(_STEP)))
    device = gpu_calibration(placed)
    return Tangent(
        scored_case(placed.case, placed.slowed * step_s),
        device.name,
        at,
        slopes,
        device.gemm.burst_fraction,
        placed.case.setting,
    )


def _tangent(case: StepCase, catalog: Catalog) -> Tangent | None:
    try:
        return tangent(place_case(case, catalog)) if case.scored else None
    except PerfsimError:
        return None


def _groups_of(tangents: Sequence[Tangent]) -> list[str]:
    """What is left out together with each run: its family, or a part of it."""
    families: dict[str, set[str]] = {}
    for run in tangents:
        for name, slope in run.slopes.items():
            if " of " in name and abs(slope) >= _DETERMINES:
                families.setdefault(name, set()).add(run.scored.family)
    alone = {next(iter(determined)) for determined in families.values() if len(determined) == 1}
    return [
        f"{run.scored.family}, {run.setting}" if run.scored.family in alone else run.scored.family
        for run in tangents
    ]


def leave_out(tangents: Sequence[Tangent], cases: Sequence[StepCase], catalog: Catalog) -> LeavingOut:
    """Every group with scored runs, in the order of the cases; needs scipy."""
    used = [run for run in tangents if run.scored.counts]
    by_id = {case.id: case for case in cases}
    rows = [_without(group, left, others) for group, left, others in _each_group(used, _groups_of(used))]
    questions = [(by_id[run.id], row.constants) for row in rows for run in row.runs if run.id in by_id]
    seconds = mapped(partial(_predict, catalog=catalog), questions)
    predicted = {case.id: step_s for (case, _), step_s in zip(questions, seconds, strict=True)}

    def outside(runs: Sequence[Scored]) -> tuple[Scored, ...]:
        return tuple(replace(run, predicted_s=predicted.get(run.id, run.predicted_s)) for run in runs)

    scored = [run.scored for run in used]
    groups = tuple(replace(row, runs=outside(row.runs)) for row in rows)
    return LeavingOut("family", groups, outside(scored), summary(scored))


def _predict(question: tuple[StepCase, Constants], catalog: Catalog) -> float:
    case, constants = question
    return predict_with(place_case(case, catalog), constants)


def refitted(
    tangents: Sequence[Tangent],
    steps_s: Mapping[str, float],
    without: Sequence[str] = (),
    *,
    leave_out: bool = False,
) -> dict[str, float]:
    """Step times by case after a new fit, given those with the recorded constants in `steps_s`.

    `without` names fields that the model no longer has; with `leave_out` each group is predicted by a fit
    to the others. Slopes are of the unchanged model.
    """
    moved = [
        replace(run, scored=replace(run.scored, predicted_s=steps_s[run.scored.id]))
        for run in tangents
        if run.scored.counts
    ]
    groups = _groups_of(moved) if leave_out else [""] * len(moved)
    fitted_s = {}
    for _, left, others in _each_group(moved, groups):
        known = others if leave_out else moved
        fit = _fit(known, without)
        for run in left:
            change = _change(run, known, fit)
            moves = sum(run.slopes.get(name, 0.0) * value for name, value in change.items())
            fitted_s[run.scored.id] = steps_s[run.scored.id] * float(np.exp(moves))
    return fitted_s


def _without(group: str, left: Sequence[Tangent], others: Sequence[Tangent]) -> LeftOut:
    """New constants for a group's runs from the other groups."""
    fit = _fit(others)
    at: dict[str, float] = {}
    for run in left:
        moved = _change(run, others, fit)
        at |= {name: rounded(value * float(np.exp(moved[name]))) for name, value in run.constants.items()}
    return LeftOut(
        group,
        left[0].calibration,
        tuple(run.scored for run in left),
        summary(run.scored for run in left),
        at,
        kept=tuple(name for name in at if name not in fit.change),
        borrowed=", ".join(fit.ceilings) if any(_borrows(run, fit) for run in left) else "",
    )


@dataclass(frozen=True)
class _Fit:
    """Changes of log constants that some runs determine."""

    change: Constants
    ceilings: tuple[str, ...]
    """Calibrations with a fitted sustained ceiling."""


def _borrows(run: Tangent, fit: _Fit) -> bool:
    """Whether the ceiling of a run's device comes from other devices."""
    ceiling = _CEILING + run.calibration
    return bool(fit.ceilings) and ceiling in run.constants and ceiling not in fit.change


def _change(run: Tangent, known: Sequence[Tangent], fit: _Fit) -> dict[str, float]:
    """Change of a run's log constants by a fit to the `known` runs."""
    change = {name: fit.change.get(name, 0.0) for name in run.constants}
    if _borrows(run, fit):
        ceiling = _CEILING + run.calibration
        first = {other.calibration: other for other in reversed(known)}
        ratio = geometric_mean(
            first[name].constants[_CEILING + name]
            * float(np.exp(fit.change[_CEILING + name]))
            / first[name].benchmark_ceiling
            for name in fit.ceilings
        )
        change[ceiling] = float(np.log(min(1.0, run.benchmark_ceiling * ratio) / run.constants[ceiling]))
    return change


def _fit(tangents: Sequence[Tangent], without: Sequence[str] = ()) -> _Fit:
    """Change of the log constants by robust least squares, with equal weight per family."""
    weight = family_weight([run.scored.family for run in tangents])
    names = [
        name
        for name in dict.fromkeys(name for run in tangents for name in run.slopes)
        if name.split(" of ")[0] not in without
        and max(abs(run.slopes.get(name, 0.0)) for run in tangents) > _UNSEEN
    ]
    if not names:
        return _Fit({}, ())
    start = np.array([run.residual for run in tangents]) * weight
    slopes = np.array([[run.slopes.get(name, 0.0) for name in names] for run in tangents])
    moving = slopes * weight[:, None]
    pull = _PULL * float(weight.mean())
    change = (
        scipy("optimize")
        .least_squares(
            lambda moved: np.append(start + moving @ moved, pull * moved),
            np.zeros(len(names)),
            loss="soft_l1",
            f_scale=OUTLIER * float(weight.mean()),
        )
        .x
    )
    ceilings = tuple(name.removeprefix(_CEILING) for name in names if name.startswith(_CEILING))
    return _Fit(dict(zip(names, change.tolist(), strict=True)), ceilings)
