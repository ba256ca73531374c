"""Predicts each family of runs with constants that were fitted without it.

The constants of `step_fit` are fitted again to the runs of all other families, with the same weights
and loss: those that all runs have in common, and the sustained ceiling of each calibration. A device without
other runs gets its ceiling from the others: the geometric mean of ceilings over those of long kernels in the
benchmark of the same device, times its own benchmark's.
For speed, each log step time is linearised in the log constants around their recorded values, so a fit needs
no new pricing; the family left out is then priced in full with the new constants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import geometric_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.catalog import Catalog
from perfsim.fitting.fit_tables import rounded, scipy_optimize
from perfsim.fitting.step_fit import (
    CONSTANTS,
    OUTLIER,
    SHARED,
    ceiling_in_benchmark,
    predict_with,
    recorded_constants,
    step_with,
)
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
    benchmark_ceiling: float = 1.0
    """Fraction of peak of long kernels in the benchmark of its device."""

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
    """The devices whose ceilings are used, if no other run was made on this one."""
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
    return Tangent(
        replace(scored, predicted_s=placed.slowed * step_s),
        placed.calibration,
        tuple(at.tolist()),
        tuple(slopes),
        ceiling_in_benchmark(placed),
    )


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
    tangents: Sequence[Tangent],
    steps_s: Mapping[str, float],
    without: Sequence[str] = (),
    *,
    leave_out: bool = False,
) -> dict[str, float]:
    """Step times by case after a new fit, given those with the recorded constants in `steps_s`.

    `without` names constants that the model no longer has; with `leave_out` each family is predicted by a fit
    to the others. Slopes are those of the unchanged model.
    """
    moved = [
        replace(run, scored=replace(run.scored, predicted_s=steps_s[run.scored.id]))
        for run in tangents
        if run.scored.counts
    ]
    parts = dict.fromkeys(run.scored.family for run in moved) if leave_out else {"": None}
    fitted_s = {}
    for family in parts:
        known = [run for run in moved if not leave_out or run.scored.family != family]
        fit = _fit(known, without)
        for run in moved:
            if not leave_out or run.scored.family == family:
                change = float(np.dot(run.slopes, _change(run, known, fit)))
                fitted_s[run.scored.id] = steps_s[run.scored.id] * float(np.exp(change))
    return fitted_s


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
    """New constants for a family's device from the other families."""
    own = next(run for run in tangents if run.scored.family == family)
    rest = [run for run in tangents if run.scored.family != family]
    fit = _fit(rest)
    at = np.array(own.constants) * np.exp(_change(own, rest, fit))
    values = dict(zip(CONSTANTS, [rounded(value) for value in at.tolist()], strict=True))
    scores = _summary(family, tangents)
    donors = ", ".join(fit.calibrations) if _borrows(own, fit) else ""
    return LeftOut(family, own.calibration, scores, {}, values, fit.kept(own.calibration), donors)


def _borrows(run: Tangent, fit: _Fit) -> bool:
    """Whether the ceiling of a run's device comes from other devices."""
    return bool(fit.calibrations) and run.calibration not in fit.calibrations and fit.has_ceilings


def _change(run: Tangent, known: Sequence[Tangent], fit: _Fit) -> Floats:
    """Change of a run's log constants by a fit to the `known` runs."""
    change = fit.of(run.calibration)
    if _borrows(run, fit):
        first = {other.calibration: other for other in reversed(known)}
        ratio = geometric_mean(
            other.constants[-1] * float(np.exp(fit.of(name)[-1])) / other.benchmark_ceiling
            for name, other in first.items()
        )
        change[-1] = np.log(min(1.0, run.benchmark_ceiling * ratio) / run.constants[-1])
    return change


@dataclass(frozen=True)
class _Fit:
    """Changes of log constants: the shared ones, then one ceiling for each calibration."""

    calibrations: tuple[str, ...]
    change: Floats
    free: NDArray[np.bool_]
    has_ceilings: bool = True
    """Whether the model has a sustained ceiling."""

    def of(self, calibration: str) -> Floats:
        """The changes of `CONSTANTS` of a run; none of the ceiling of an unknown calibration."""
        return self._of(self.change, calibration, 0.0)

    def kept(self, calibration: str) -> tuple[str, ...]:
        """The constants of a run that the fit did not determine."""
        free = self._of(self.free, calibration, False)
        return tuple(name for name, moved in zip(CONSTANTS, free, strict=True) if not moved)

    def _of(self, values: NDArray[Any], calibration: str, unknown: float) -> NDArray[Any]:
        known = calibration in self.calibrations
        own = values[len(SHARED) + self.calibrations.index(calibration)] if known else unknown
        return np.append(values[: len(SHARED)], own)


def _fit(tangents: Sequence[Tangent], without: Sequence[str] = ()) -> _Fit:
    """Change of the log constants by robust least squares, with equal weight per family."""
    calibrations = tuple(dict.fromkeys(run.calibration for run in tangents))
    sizes = Counter(run.scored.family for run in tangents)
    weight = np.array([1.0 / np.sqrt(sizes[run.scored.family]) for run in tangents])
    slopes = np.zeros((len(tangents), len(SHARED) + len(calibrations)))
    for row, run in zip(slopes, tangents, strict=True):
        row[: len(SHARED)] = run.slopes[: len(SHARED)]
        row[len(SHARED) + calibrations.index(run.calibration)] = run.slopes[-1]
    names = [*SHARED, *(CONSTANTS[-1] for _ in calibrations)]
    free = (np.abs(slopes).max(axis=0, initial=0.0) > UNSEEN) & ~np.isin(names, without)
    change = np.zeros(len(names))
    if free.any():
        optimize: Any = scipy_optimize()
        start = np.array([run.residual for run in tangents]) * weight
        moving = slopes[:, free] * weight[:, None]
        change[free] = optimize.least_squares(
            lambda moved: start + moving @ moved,
            np.zeros(int(free.sum())),
            loss="soft_l1",
            f_scale=OUTLIER * float(weight.mean()),
        ).x
    return _Fit(calibrations, change, free, CONSTANTS[-1] not in without)
