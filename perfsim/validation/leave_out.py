"""Predicts each family of runs with constants that were fitted without it.

The constants of `step_fit` are fitted again to the runs of all other families, with the same weights
and loss. For speed, each log step time is linearised in the log constants around their recorded values, so a
fit needs no new pricing; the family left out is then priced in full with the new constants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.catalog import Catalog
from perfsim.fitting.fit_tables import rounded, scipy_optimize
from perfsim.fitting.step_fit import CONSTANTS, OUTLIER, SHARED, predict_with, recorded_constants, step_with
from perfsim.published.cases import StepCase
from perfsim.published.placed_cases import PlacedCase, place_case
from perfsim.published.processes import mapped
from perfsim.validation.score import Scored, summary

Floats = NDArray[np.float64]

ALL = "all runs"
"""The row over all families, each predicted with itself left out."""
STEP = 0.05
"""Relative step of each constant, up and down, for its slope."""
UNSEEN = 0.01
"""A constant whose slopes are all below this does not affect the runs."""


@dataclass(frozen=True)
class Tangent:
    """A case's step time around the recorded constants: d log(step) / d log(constant), by constant."""

    scored: Scored
    """The case as predicted with the recorded constants."""
    calibration: str
    constants: tuple[float, ...]
    slopes: tuple[float, ...]

    @property
    def residual(self) -> float:
        """log(predicted / measured) with the recorded constants."""
        return float(np.log((self.scored.predicted_s or np.nan) / self.scored.measured_s))


@dataclass(frozen=True)
class LeftOut:
    """Scores of a family with all families in the fit, and with itself left out."""

    family: str
    calibration: str
    inside: dict[str, Any]
    outside: dict[str, Any]
    constants: dict[str, float]
    """The constants fitted without the family."""
    kept: tuple[str, ...] = ()
    """Constants at their recorded values, because no other family determines them."""
    borrowed: str = ""
    """The device whose constants are used, if no other run was made on this one."""
    runs: tuple[Scored, ...] = ()
    """The family's runs as predicted without it."""


def tangent(placed: PlacedCase, scored: Scored) -> Tangent:
    """The slopes of one case. Raises InputError for a case that does not run on GPUs."""
    at = recorded_constants(placed)
    here = step_with(placed, at)
    step_s = here.run(contention=False).step_time_s

    def log_step(constants: Floats) -> float:
        step = step_with(placed, constants)
        # Many constants do not affect a run, which then need not be simulated.
        moved = not np.array_equal(step.duration_s, here.duration_s)
        return float(np.log(step.run(contention=False).step_time_s if moved else step_s))

    slopes = []
    for index in range(len(CONSTANTS)):
        factor = np.ones(len(CONSTANTS))
        factor[index] = 1 + STEP
        rise = log_step(at * factor) - log_step(at / factor)
        slopes.append(rise / (2 * np.log1p(STEP)))
    return Tangent(replace(scored, predicted_s=step_s), placed.calibration, tuple(at.tolist()), tuple(slopes))


def leave_out(tangents: Sequence[Tangent], cases: Sequence[StepCase], catalog: Catalog) -> list[LeftOut]:
    """Every family with scored runs, in the order of the cases, then `ALL`; needs scipy."""
    used = [run for run in tangents if run.scored.counts]
    rows = [_without(family, used) for family in dict.fromkeys(run.scored.family for run in used)]
    used_ids = {run.scored.id for run in used}
    questions = [
        (case, tuple(row.constants.values()))
        for row in rows
        for case in cases
        if case.family == row.family and case.id in used_ids
    ]
    predicted = mapped(partial(_predict, catalog=catalog), questions)
    by_id = {case.id: seconds for (case, _), seconds in zip(questions, predicted, strict=True)}
    rows = [_with_runs(row, used, by_id) for row in rows]
    return [*rows, _with_runs(LeftOut(ALL, "", _summary(ALL, used), {}, {}), used, by_id)]


def outside_scores(rows: Sequence[LeftOut]) -> dict[str, Any]:
    """The rows of `leave_out` as `perfsim validate --json` prints them: summary and families."""
    scores = {row.family: row.outside for row in rows}
    return {"summary": scores.pop(ALL), "families": scores}


def refitted(
    tangents: Sequence[Tangent], steps_s: Mapping[str, float], without: Sequence[str] = ()
) -> dict[str, float]:
    """Step times by case after a new fit, given those with the recorded constants in `steps_s`.

    `without` names constants that the model no longer has. Slopes are those of the unchanged model.
    """
    moved = [
        replace(run, scored=replace(run.scored, predicted_s=steps_s[run.scored.id]))
        for run in tangents
        if run.scored.counts
    ]
    first = Counter(run.calibration for run in moved).most_common(1)[0][0]
    kept = ~np.isin(CONSTANTS, without)
    fitted_s = {}
    for calibration in dict.fromkeys(run.calibration for run in moved):
        own = [run for run in moved if run.calibration == calibration]
        change = _fit(own, _free(calibration == first) & kept & _affecting(own))
        for run in own:
            fitted_s[run.scored.id] = steps_s[run.scored.id] * float(np.exp(np.dot(run.slopes, change)))
    return fitted_s


def _affecting(runs: Sequence[Tangent]) -> NDArray[np.bool_]:
    """The constants that affect some of the runs."""
    return np.asarray(np.abs([run.slopes for run in runs]).max(axis=0) > UNSEEN)


def _free(decides_all: bool) -> NDArray[np.bool_]:
    """The constants that the runs of a device determine: all, or only those of the device."""
    return np.arange(len(CONSTANTS)) >= (0 if decides_all else len(SHARED))


def _predict(question: tuple[StepCase, tuple[float, ...]], catalog: Catalog) -> float:
    case, constants = question
    return predict_with(place_case(case, catalog), np.array(constants))


def _summary(family: str, tangents: Sequence[Tangent]) -> dict[str, Any]:
    return summary([run.scored for run in tangents if family in (ALL, run.scored.family)])


def _with_runs(row: LeftOut, tangents: Sequence[Tangent], predicted: dict[str, float]) -> LeftOut:
    """The row with its runs as predicted without their families."""
    own = [run.scored for run in tangents if row.family in (ALL, run.scored.family)]
    runs = tuple(replace(run, predicted_s=predicted.get(run.id, run.predicted_s)) for run in own)
    return replace(row, outside=summary(runs), runs=runs)


def _without(family: str, tangents: Sequence[Tangent]) -> LeftOut:
    """New constants for a family's device from the other families.

    The device with most runs determines the shared constants; the runs of another one only its own. A
    device without other runs takes the constants of the first.
    """
    first = Counter(run.calibration for run in tangents).most_common(1)[0][0]
    own = [run for run in tangents if run.scored.family == family]
    rest = [run for run in tangents if run.scored.family != family]
    calibration = own[0].calibration
    same = [run for run in rest if run.calibration == calibration]
    borrowed = "" if same else first
    at = np.array((same or [run for run in rest if run.calibration == first] or own)[0].constants)
    free = _free(calibration == first)
    kept: tuple[str, ...] = ()
    if same:
        affecting = _affecting(same)
        kept = tuple(np.array(CONSTANTS)[free & ~affecting].tolist())
        at = at * np.exp(_fit(same, free & affecting))
    values = dict(zip(CONSTANTS, [rounded(value) for value in at.tolist()], strict=True))
    return LeftOut(family, calibration, _summary(family, tangents), {}, values, kept, borrowed)


def _fit(tangents: Sequence[Tangent], free: NDArray[np.bool_]) -> Floats:
    """Change of the log constants by robust least squares, with equal weight per family."""
    sizes = Counter(run.scored.family for run in tangents)
    weight = np.array([1.0 / np.sqrt(sizes[run.scored.family]) for run in tangents])
    slopes = np.array([run.slopes for run in tangents])[:, free] * weight[:, None]
    start = np.array([run.residual for run in tangents]) * weight
    change = np.zeros(len(CONSTANTS))
    if free.any():
        optimize: Any = scipy_optimize()
        result = optimize.least_squares(
            lambda moved: start + slopes @ moved,
            np.zeros(int(free.sum())),
            loss="soft_l1",
            f_scale=OUTLIER * float(weight.mean()),
        )
        change[free] = result.x
    return change
