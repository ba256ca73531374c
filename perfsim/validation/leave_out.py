"""Each family of runs predicted with constants that were fitted without it.

The constants of `step_fit` are fitted again to the runs of all other families, with the same weights
and loss. The logarithm of each step time is taken as linear in the logarithms of the constants, with
slopes measured about the recorded ones, so a fit needs no new pricing; the family left out is then
priced in full at the new constants.
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
"""The row over every family, each with itself left out."""
STEP = 0.05
"""How far each constant is moved up and down to see the slope."""
UNSEEN = 0.01
"""A constant whose slope is below this everywhere says nothing about the runs."""


@dataclass(frozen=True)
class Tangent:
    """A case's step time about the recorded constants: d log(step) / d log(constant), by constant."""

    scored: Scored
    """Predicted with the recorded constants."""
    calibration: str
    constants: tuple[float, ...]
    slopes: tuple[float, ...]

    @property
    def residual(self) -> float:
        return float(np.log((self.scored.predicted_s or np.nan) / self.scored.measured_s))


@dataclass(frozen=True)
class LeftOut:
    """A family, scored with all families in the fit and with itself left out of it."""

    family: str
    calibration: str
    inside: dict[str, Any]
    outside: dict[str, Any]
    constants: dict[str, float]
    """Fitted without the family."""
    kept: tuple[str, ...] = ()
    """Constants that no other family tells anything about: at their recorded values."""
    borrowed: str = ""
    """The device whose constants stand in, where no other run was made on this one."""


def tangent(placed: PlacedCase, scored: Scored) -> Tangent:
    """The slopes of one case. Raises InputError off GPUs."""
    at = recorded_constants(placed)
    here = step_with(placed, at)
    step_s = here.run(contention=False).step_time_s

    def log_step(constants: Floats) -> float:
        step = step_with(placed, constants)
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
    used = [each for each in tangents if each.scored.counts]
    found = [_without(family, used) for family in dict.fromkeys(each.scored.family for each in used)]
    known = {each.scored.id for each in used}
    asked = [
        (case, tuple(each.constants.values()))
        for each in found
        for case in cases
        if case.family == each.family and case.id in known
    ]
    predicted = mapped(partial(_predict, catalog=catalog), asked)
    by_id = {case.id: seconds for (case, _), seconds in zip(asked, predicted, strict=True)}
    rows = [replace(each, outside=_summary(each.family, used, by_id)) for each in found]
    return [*rows, LeftOut(ALL, "", _summary(ALL, used, {}), _summary(ALL, used, by_id), {})]


def refitted(
    tangents: Sequence[Tangent], steps_s: Mapping[str, float], without: Sequence[str] = ()
) -> dict[str, float]:
    """Step times by case after a new fit, where the model with the recorded constants gives `steps_s`.

    `without` names constants that the model no longer has. Slopes are those of the whole model.
    """
    moved = [
        replace(each, scored=replace(each.scored, predicted_s=steps_s[each.scored.id]))
        for each in tangents
        if each.scored.counts
    ]
    first = Counter(each.calibration for each in moved).most_common(1)[0][0]
    kept = ~np.isin(CONSTANTS, without)
    found = {}
    for calibration in dict.fromkeys(each.calibration for each in moved):
        mine = [each for each in moved if each.calibration == calibration]
        seen = np.abs([each.slopes for each in mine]).max(axis=0) > UNSEEN
        change = _fit(mine, _free(calibration == first) & kept & seen)
        for each in mine:
            found[each.scored.id] = steps_s[each.scored.id] * float(np.exp(np.dot(each.slopes, change)))
    return found


def _free(decides_all: bool) -> NDArray[np.bool_]:
    """Which constants the runs of a device decide: all, or those of the device alone."""
    return np.arange(len(CONSTANTS)) >= (0 if decides_all else len(SHARED))


def _predict(asked: tuple[StepCase, tuple[float, ...]], catalog: Catalog) -> float:
    case, constants = asked
    return predict_with(place_case(case, catalog), np.array(constants))


def _summary(family: str, tangents: Sequence[Tangent], predicted: dict[str, float]) -> dict[str, Any]:
    mine = [each.scored for each in tangents if family in (ALL, each.scored.family)]
    return summary([replace(each, predicted_s=predicted.get(each.id, each.predicted_s)) for each in mine])


def _without(family: str, tangents: Sequence[Tangent]) -> LeftOut:
    """New constants for a family's device from the other families.

    The device with most runs decides the shared constants; another one's runs decide its own
    alone. A device without other runs borrows those of the first.
    """
    first = Counter(each.calibration for each in tangents).most_common(1)[0][0]
    mine = [each for each in tangents if each.scored.family == family]
    others = [each for each in tangents if each.scored.family != family]
    calibration = mine[0].calibration
    same = [each for each in others if each.calibration == calibration]
    borrowed = "" if same else first
    at = np.array((same or [each for each in others if each.calibration == first] or mine)[0].constants)
    free = _free(calibration == first)
    kept: tuple[str, ...] = ()
    if same:
        seen = np.abs([each.slopes for each in same]).max(axis=0) > UNSEEN
        kept = tuple(np.array(CONSTANTS)[free & ~seen].tolist())
        at = at * np.exp(_fit(same, free & seen))
    values = dict(zip(CONSTANTS, [rounded(value) for value in at.tolist()], strict=True))
    return LeftOut(family, calibration, _summary(family, tangents, {}), {}, values, kept, borrowed)


def _fit(tangents: Sequence[Tangent], free: NDArray[np.bool_]) -> Floats:
    """Change of the logarithms of the constants: least squares, one weight a family, soft on outliers."""
    sizes = Counter(each.scored.family for each in tangents)
    weight = np.array([1.0 / np.sqrt(sizes[each.scored.family]) for each in tangents])
    slopes = np.array([each.slopes for each in tangents])[:, free] * weight[:, None]
    start = np.array([each.residual for each in tangents]) * weight
    change = np.zeros(len(CONSTANTS))
    if free.any():
        optimize: Any = scipy_optimize()
        found = optimize.least_squares(
            lambda moved: start + slopes @ moved,
            np.zeros(int(free.sum())),
            loss="soft_l1",
            f_scale=OUTLIER * float(weight.mean()),
        )
        change[free] = found.x
    return change
