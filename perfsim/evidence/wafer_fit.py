"""Fits a wafer's efficiency by software release to published training logs.

Most releases have one log, which cannot separate the release from the model it trained. So all logs are
fitted together, by least squares on log time, to an efficiency that grows by one factor per release:

    efficiency(release) = level growth^(releases after the newest)

So a release without a log is interpolated or extrapolated. The time of the mesh is a fact of the hardware
(`perfsim.costs.mesh`) and not fitted; the record says what a fit would give for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.base.errors import InputError, PerfsimError, Problem
from perfsim.catalog import Catalog, default_catalog
from perfsim.costs.wafer import growth_per_release, nearest_release, place_of
from perfsim.evidence.cases import StepCase, step_cases
from perfsim.evidence.plans import case_plan, predict_s
from perfsim.evidence.tables import need_more_than, rounded, scipy_optimize, source_of
from perfsim.specs.calibration import FitRecord, WaferCalibration

Values = NDArray[np.float64]
"""Logarithms of the fitted constants: level, growth if the logs show it, time of a link if it is free."""


@dataclass(frozen=True)
class _Fit:
    """Predictions of some logs as a function of the constants."""

    cases: Sequence[StepCase]
    start: WaferCalibration
    catalog: Catalog
    link_is_free: bool = False

    @property
    def first(self) -> Values:
        """The start values; growth only if the logs cover several releases."""
        growing = len({release_of(case, self.start) for case in self.cases}) > 1
        values = [_level(self.start), *([growth_per_release(self.start)] if growing else [])]
        return np.array([*values, *([np.log(self.start.link_s_per_element)] if self.link_is_free else [])])

    def trend(self, values: Values) -> tuple[float, float]:
        """Level and growth; the start's growth if the logs do not show it."""
        grows = len(values) - self.link_is_free > 1
        return float(values[0]), float(values[1]) if grows else growth_per_release(self.start)

    def calibration(self, values: Values, digits: int = 15) -> WaferCalibration:
        """The calibration with these constants."""
        level, growth = self.trend(values)
        efficiency = {
            release: rounded(float(np.exp(level + growth * after)), digits)
            for release, after in _positions(self.start).items()
        }
        link_s = float(np.exp(values[-1])) if self.link_is_free else self.start.link_s_per_element
        return self.start.model_copy(update={"efficiency": efficiency, "link_s_per_element": link_s})

    def residuals(self, values: Values) -> Values:
        """log(predicted / measured) of every case."""
        calibration = self.calibration(values)
        predicted = [predict_s(case, self.catalog, calibration) for case in self.cases]
        measured = [case.measured.step_time_s for case in self.cases]
        return np.asarray(np.log(np.array(predicted) / np.array(measured)))

    def least_squares(self) -> Any:
        """SciPy's result of the fit."""
        optimize: Any = scipy_optimize()
        # Predictions jump with the number of micro-batches, so derivatives need a larger step than usual.
        return optimize.least_squares(self.residuals, self.first, diff_step=1e-3, x_scale=0.1)


def fit_wafer(
    path: Path, device: str, catalog: Catalog | None = None, *, source: str = ""
) -> WaferCalibration:
    """Efficiencies of the wafer called `device` from the scored cases of a file; needs scipy."""
    catalog = catalog or default_catalog()
    cases, start = _cases(path, device, catalog)
    fit = _Fit(cases, start, catalog)
    need_more_than(len(fit.first), len(cases), path, "scored logs")
    result = fit.least_squares()
    record = _record(fit, result, path, device)
    record = record.model_copy(update={"table": source or source_of(path, record.table)})
    return fit.calibration(result.x, digits=4).model_copy(update={"fit": {"efficiency": record}})


def leave_releases_out(
    path: Path, device: str, catalog: Catalog | None = None
) -> tuple[dict[str, float], dict[str, WaferCalibration]]:
    """Each scored log predicted with constants fitted to other releases, in seconds by id; needs scipy.

    Also the calibrations of these fits, by the release left out. Growth gives the efficiency of that release.
    All logs of a release are left out together, since the others would still contain its efficiency.
    """
    catalog = catalog or default_catalog()
    cases, start = _cases(path, device, catalog)
    releases = {case.id: release_of(case, start) for case in cases}
    predicted: dict[str, float] = {}
    calibrations: dict[str, WaferCalibration] = {}
    for release in dict.fromkeys(releases.values()):
        remaining = [case for case in cases if releases[case.id] != release]
        if not remaining:
            continue
        fit = _Fit(remaining, start, catalog)
        without = fit.calibration(fit.least_squares().x)
        left_out = [case for case in cases if releases[case.id] == release]
        predicted |= {case.id: predict_s(case, catalog, without) for case in left_out}
        calibrations[release] = without
    return predicted, calibrations


def _cases(path: Path, device: str, catalog: Catalog) -> tuple[list[StepCase], WaferCalibration]:
    """The scored logs of a file that can be planned, and the start of the fit."""
    start = catalog.device(device).calibration
    if not isinstance(start, WaferCalibration):
        raise InputError(f"{device} is no wafer with a calibration to start from")
    logs = [case for case in step_cases(path, catalog) if case.scored and case.strategy == "weight-streaming"]
    cases = [case for case in logs if _can_be_planned(case, catalog)]
    if not cases:
        raise InputError([Problem("there is no scored case of a wafer to fit to", str(path), 1)])
    return cases, start


def _can_be_planned(case: StepCase, catalog: Catalog) -> bool:
    try:
        case_plan(case, catalog)
    except PerfsimError:
        return False
    return True


def _positions(calibration: WaferCalibration) -> dict[str, int]:
    """Position of each release relative to the newest measured one: 0 or less."""
    places = {release: place_of(release) for release in calibration.efficiency}
    return {release: place - max(places.values()) for release, place in places.items()}


def _level(calibration: WaferCalibration) -> float:
    """Log of the efficiency of the newest release."""
    positions = _positions(calibration)
    return float(np.log(calibration.efficiency[max(positions, key=positions.__getitem__)]))


def release_of(case: StepCase, calibration: WaferCalibration) -> str:
    """The measured release whose efficiency a case has."""
    return nearest_release(case.system.software_release or "", calibration)


def _record(fit: _Fit, result: Any, path: Path, device: str) -> FitRecord:
    apes = np.abs(np.expm1(result.fun))
    freedom = len(fit.cases) - len(result.x)
    covariance = _covariance(result, freedom)
    errors = {"growth_per_release": float(np.sqrt(covariance[1, 1]))} if len(result.x) > 1 else {}
    for release, after in _positions(fit.start).items():
        slope = np.array([1.0, float(after)])[: len(result.x)]
        errors[f"efficiency.{release}"] = float(np.sqrt(slope @ covariance @ slope))
    return FitRecord(
        command=f"perfsim calibrate wafer {path.name} --device {device}",
        table="public-wafer-logs",
        points=len(fit.cases),
        median_ape=round(float(np.median(apes)), 4),
        p90_ape=round(float(np.percentile(apes, 90)), 4),
        standard_errors={name: round(error, 4) for name, error in sorted(errors.items())},
        note=f"{freedom} residual degree(s) of freedom; efficiency grows {_grown(fit, result)} a release; "
        f"errors {_errors(fit, result)}{_free_link(fit)}",
    )


def _covariance(result: Any, freedom: int) -> Values:
    inverse = np.linalg.pinv(result.jac.T @ result.jac)
    return np.asarray(inverse * (result.fun @ result.fun) / max(freedom, 1))


def _grown(fit: _Fit, result: Any) -> str:
    return f"{np.expm1(fit.trend(result.x)[1]):.1%}"


def _errors(fit: _Fit, result: Any) -> str:
    pairs = zip(fit.cases, np.expm1(result.fun).tolist(), strict=True)
    return ", ".join(f"{case.id} {error:+.1%}" for case, error in pairs)


def _free_link(fit: _Fit) -> str:
    """The time of a link if it were fitted: a check only, since it is not."""
    free = _Fit(fit.cases, fit.start, fit.catalog, link_is_free=True)
    freedom = len(fit.cases) - len(free.first)
    if freedom < 1:
        return ""
    result = free.least_squares()
    error = np.sqrt(_covariance(result, freedom)[-1, -1])
    link_ns = np.exp(result.x[-1]) * 1e9
    return f"; a link's time, left free, becomes {link_ns:.3g} ns ({error:.0%} standard error)"
