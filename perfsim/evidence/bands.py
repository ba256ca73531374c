"""Fits the widths of bands to the errors of runs that were left out of the fit.

The log error of a run is Student's t with a scale s(u) = sqrt(scale^2 + (growth u)^2), where u is the run's
unlikeness to the most similar of the other families. Scale and growth are the maximum of the likelihood, so
the scale holds the spread of families and the spread within them; the degrees of freedom are the number of
families. A family of n runs has the weight sqrt(n), for its errors are neither independent nor all the same.
The width is q s(u), where q is the quantile of |log error| / s(u) that holds 90 % of exchangeable new runs:
the k-th smallest of n, k = 0.9 (n + 1), between two of them by interpolation (conformal prediction with
normalised errors, Vovk et al. 2005).
Without unlikeness it is at least the same quantile of |log error| itself.
Models with experts have larger errors, so all this is of the others; for those with experts the width without
unlikeness is as many times as large as holds 90 % of their runs, by the same quantile, and at least once.
The share of a width that two runs of one machine do not share is the 90th percentile of
|difference of log errors| / sqrt(w_1^2 + w_2^2) over pairs of one family and device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.errors import PerfsimError
from perfsim.catalog import Catalog
from perfsim.evidence.cases import StepCase, case_system
from perfsim.evidence.plans import evaluate_case, mapped, place_case, plan_of_case
from perfsim.evidence.step_fit import predict_with, recorded_constants
from perfsim.evidence.tables import family_weight, scipy
from perfsim.evidence.wafer_fit import release_of
from perfsim.prediction.bands import (
    BandWidths,
    Traits,
    accuracy_of,
    left_out_of,
    recorded_errors,
    traits_of_plan,
    traits_together,
    unlikeness,
)
from perfsim.prediction.run import Evaluation
from perfsim.specs.calibration import WaferCalibration


def traits_of_case(case: StepCase, catalog: Catalog) -> Traits | None:
    """The traits of a published run; None if it cannot be planned."""
    plan = plan_of_case(case, catalog)
    return None if plan is None else traits_of_plan(plan)


def family_traits(cases: Sequence[StepCase], catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Traits of the scored runs of each family: values that occur, and ranges."""
    scored = [case for case in cases if case.scored]
    by_family: dict[str, list[Traits]] = {}
    for case, traits in zip(scored, mapped(partial(traits_of_case, catalog=catalog), scored), strict=True):
        if traits is not None:
            by_family.setdefault(case.family, []).append(traits)
    return {family: traits_together(runs) for family, runs in by_family.items()}


# The 90 % band of a published run comes from a record that knows nothing of the run's own family: runs of a
# family on record are predicted again with the constants that were fitted without it, and their band has the
# width that the errors of the other families give. All other runs, as a user's own, have their usual
# prediction and the width of the whole record. Nothing is fitted here.


@dataclass(frozen=True)
class CaseBand:
    """The band of a case; `left_out_s` is its centre where the family is on record."""

    low_s: float
    high_s: float
    left_out_s: float | None = None
    """Step time predicted with constants that were fitted without the family or the release."""
    unlikeness: float = 0.0
    """Points of unlikeness to the most similar of the families that may be used."""

    def holds(self, measured_s: float) -> bool:
        """Whether a measured time lies in the band."""
        return self.low_s <= measured_s <= self.high_s


def case_band(case: StepCase, run: Evaluation, catalog: Catalog) -> CaseBand | None:
    """The band of a predicted case; None where its group cannot be left out of it."""
    plan = run.plan
    try:
        group = _group_on_record(case, plan.system.kind, catalog)
        left_out_s = _left_out_s(case, plan.system.kind, group, catalog) if group else None
    except PerfsimError:
        return None
    accuracy = accuracy_of(plan, run.hidden_communication_fraction, without=group if left_out_s else "")
    centre_s = run.step_time_s if left_out_s is None else left_out_s
    factor = 1.0 + accuracy.step_time_error
    return CaseBand(centre_s / factor, centre_s * factor, left_out_s, accuracy.unlikeness)


def _group_on_record(case: StepCase, kind: str, catalog: Catalog) -> str:
    """What was left out with a case: logs of its release, its family or a part of it; empty if nothing."""
    families = {family["family"] for entry in recorded_errors() for family in entry["families"]}
    if case.family not in families:
        return ""
    release = release_of(case, catalog)
    groups = [release] if release else [f"{case.family}, {case.setting}", case.family]
    return next((group for group in groups if left_out_of(kind, group) is not None), "")


def _left_out_s(case: StepCase, kind: str, group: str, catalog: Catalog) -> float | None:
    """Step time with the constants fitted without a group; None where another fit made the constants.

    On GPUs the critical path without contention, as in the fit.
    """
    record = left_out_of(kind, group)
    calibration = case_system(case, catalog).device.calibration
    if record is None or calibration is None:
        return None
    constants = record["constants"]
    if isinstance(calibration, WaferCalibration):
        if calibration.name != record["calibration"]:
            return None
        efficiency = {**calibration.efficiency, group: constants["efficiency"]}
        changed = calibration.model_copy(update={"efficiency": efficiency})
        return evaluate_case(case, catalog, changed).step_time_s
    placed = place_case(case, catalog)
    return predict_with(placed, constants) if set(recorded_constants(placed)) <= set(constants) else None


COVERAGE = 0.9
FEWEST_FAMILIES = 3
"""Fewer families show neither the growth with unlikeness nor what runs of one machine share."""


@dataclass(frozen=True)
class LeftOutRun:
    """A run as predicted by constants that were fitted without its family, or without its release."""

    group: str
    """What was left out."""
    family: str
    log_error: float
    """log(predicted / measured)."""
    traits: Traits


def fitted_widths(runs: Sequence[LeftOutRun], others: BandWidths | None = None) -> BandWidths:
    """The widths that the errors of some runs give; needs scipy.

    With fewer than three families every run counts as a family of its own, and the widths of `others`
    (another kind of machine) give the growth with unlikeness and the unshared part, both in log time.
    assumed: nothing else is known of them; without `others` the unshared part is the whole.
    """
    dense = [run for run in runs if not run.traits.experts]
    if not dense or len(dense) == len(runs):
        return _widths_of_alike(runs, others)
    widths = _widths_of_alike(dense, others)
    points = np.array(_points(runs))
    sparse = np.array([run.traits.experts for run in runs])
    errors = np.array([run.log_error for run in runs])
    normalised = np.sqrt(np.maximum(errors**2 - (widths.slope * points) ** 2, 0.0)) / widths.base
    return replace(widths, experts=max(1.0, _conformal_quantile(normalised[sparse])))


def _widths_of_alike(runs: Sequence[LeftOutRun], others: BandWidths | None) -> BandWidths:
    """The widths that the errors of runs give which are all of models with experts, or all without."""
    errors = np.array([run.log_error for run in runs])
    sizes = Counter(run.family for run in runs)
    several = len(sizes) >= FEWEST_FAMILIES
    freedom = len(sizes) if several else len(runs)
    if not several:
        percentile = float(np.percentile(np.abs(errors), 100 * COVERAGE))
        base = max(percentile, student_quantile(freedom) * float(np.sqrt(np.mean(errors**2))))
        if others is None:
            return BandWidths(base, 0.0, 1.0)
        return BandWidths(base, others.slope, min(1.0, others.unshared * others.base / base))
    points = np.array(_points(runs))
    weights = family_weight([run.family for run in runs])
    scale, growth = _scale_and_growth(errors, points, weights, freedom)
    factor = _conformal_quantile(np.abs(errors) / np.hypot(scale, growth * points))
    base = max(_conformal_quantile(np.abs(errors)), factor * scale)
    slope = factor * growth
    return BandWidths(base, slope, _unshared(runs, np.hypot(base, slope * points)))


def _conformal_quantile(normalised: Floats) -> float:
    """The width that holds 90 % of new runs, from errors of known ones; both over the scale of an error."""
    return float(np.quantile(normalised, COVERAGE, method="weibull"))


def student_quantile(freedom: int) -> float:
    """Half-width of the 90 % band of one more run, in standard deviations of k: t_95(k) sqrt(1 + 1/k)."""
    return float(scipy("stats").t.ppf((1 + COVERAGE) / 2, freedom)) * float(np.sqrt(1 + 1 / freedom))


def _scale_and_growth(errors: Floats, points: Floats, weights: Floats, freedom: int) -> tuple[float, float]:
    """Scale of the errors, and its growth per point of unlikeness, by maximum likelihood; needs scipy.

    All arrays have the shape (runs,).
    """
    optimize = scipy("optimize")

    def loss(values: Floats) -> float:
        squared = np.exp(2 * values[0]) + (values[1] * points) ** 2
        likelihood = -0.5 * np.log(squared) - (freedom + 1) / 2 * np.log1p(errors**2 / squared / freedom)
        return -float((weights * likelihood).sum())

    start = float(np.sqrt(np.mean(errors**2)))
    options = {"xatol": 1e-5, "fatol": 1e-8}
    results = [
        optimize.minimize(loss, [np.log(start), start * growth], method="Nelder-Mead", options=options)
        for growth in (0.1, 1.0)
    ]
    best = min(results, key=lambda result: float(result.fun))
    return float(np.exp(best.x[0])), float(abs(best.x[1]))


def _points(runs: Sequence[LeftOutRun]) -> list[float]:
    """Unlikeness of each run to the most similar family of the runs that were not left out with it."""
    families: dict[str, list[Mapping[str, Any]]] = {}
    for group in {run.group for run in runs}:
        traits: dict[str, list[Traits]] = {}
        for run in runs:
            if run.group != group:
                traits.setdefault(run.family, []).append(run.traits)
        families[group] = [traits_together(alike) for alike in traits.values()]
    return [min(unlikeness(run.traits, family)[0] for family in families[run.group]) for run in runs]


def _unshared(runs: Sequence[LeftOutRun], widths: Floats) -> float:
    """The unshared part, each run with one weight; at most the whole."""
    sizes = Counter(run.family for run in runs)

    def machine(run: LeftOutRun) -> tuple[str, str, float, float]:
        traits = run.traits
        return run.family, traits.constants, traits.peak_flop_per_s, traits.memory_bytes_per_s

    rows = [
        (
            abs(runs[a].log_error - runs[b].log_error) / float(np.hypot(widths[a], widths[b])),
            1.0 / (sizes[runs[a].family] - 1),
        )
        for a, b in combinations(range(len(runs)), 2)
        if machine(runs[a]) == machine(runs[b])
    ]
    if not rows:
        return 1.0
    shares, weights = np.array(sorted(rows)).T
    last = np.searchsorted(np.cumsum(weights), COVERAGE * weights.sum())
    return min(1.0, float(shares[min(int(last), len(shares) - 1)]))
