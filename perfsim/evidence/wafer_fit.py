"""Fits a wafer's efficiency by software release to published training logs.

Most releases have one log, which cannot separate the release from the model it trained. So all logs are
fitted together, by least squares on log time, to an efficiency that grows by one factor per release:

    efficiency(release) = level growth^(releases after the newest)

So a release without a log is interpolated or extrapolated. The time of the mesh is a fact of the hardware
(`perfsim.costs.mesh`) and not fitted; the record says what a fit would give for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.base.errors import InputError, PerfsimError, Problem
from perfsim.catalog import Catalog, default_catalog
from perfsim.costs.wafer import growth_per_release, nearest_release, place_of
from perfsim.evidence.cases import StepCase, case_system, read_cases
from perfsim.evidence.plans import evaluate_case, plan_of_case
from perfsim.evidence.tables import fit_record, need_more_than, rounded, scipy, source_of
from perfsim.specs.calibration import WaferCalibration

Values = NDArray[np.float64]
"""Logarithms of the fitted constants: level, growth if the logs show it, time of a link if it is free."""


def release_of(case: StepCase, catalog: Catalog) -> str:
    """The measured release whose efficiency a wafer's log has; empty for any other run."""
    try:
        calibration = case_system(case, catalog).device.calibration
    except PerfsimError:
        return ""
    release = case.system.software_release
    if not release or not isinstance(calibration, WaferCalibration):
        return ""
    return nearest_release(release, calibration)


@dataclass(frozen=True)
class WaferFit:
    """Predictions of some logs as a function of the constants."""

    cases: Sequence[StepCase]
    start: WaferCalibration
    catalog: Catalog
    link_is_free: bool = False

    @classmethod
    def of(cls, path: Path, device: str, catalog: Catalog) -> WaferFit:
        """The fit to the scored logs of a file that can be planned, from the calibration of a device."""
        start = catalog.device(device).calibration
        if not isinstance(start, WaferCalibration):
            raise InputError(f"{device} is no wafer with a calibration to start from")
        logs = [case for case in read_cases(path, StepCase, catalog).cases if case.scored and case.on_wafers]
        cases = [case for case in logs if plan_of_case(case, catalog) is not None]
        if not cases:
            raise InputError([Problem("there is no scored case of a wafer to fit to", str(path), 1)])
        return cls(cases, start, catalog)

    @property
    def first(self) -> Values:
        """The start values; growth only if the logs cover several releases."""
        positions = self.positions
        newest = max(positions, key=positions.__getitem__)
        releases = {nearest_release(case.system.software_release or "", self.start) for case in self.cases}
        values = [float(np.log(self.start.efficiency[newest]))]
        values += [growth_per_release(self.start)] if len(releases) > 1 else []
        values += [float(np.log(self.start.link_s_per_element))] if self.link_is_free else []
        return np.array(values)

    @property
    def positions(self) -> dict[str, int]:
        """Position of each release relative to the newest measured one: 0 or less."""
        places = {release: place_of(release) for release in self.start.efficiency}
        return {release: place - max(places.values()) for release, place in places.items()}

    def growth(self, values: Values) -> float:
        """Log of the growth per release; the start's if the logs do not show it."""
        return float(values[1]) if len(values) - self.link_is_free > 1 else growth_per_release(self.start)

    def calibration(self, values: Values, digits: int = 15) -> WaferCalibration:
        """The calibration with these constants."""
        efficiency = {
            release: rounded(float(np.exp(float(values[0]) + self.growth(values) * after)), digits)
            for release, after in self.positions.items()
        }
        link_s = float(np.exp(values[-1])) if self.link_is_free else self.start.link_s_per_element
        return self.start.model_copy(update={"efficiency": efficiency, "link_s_per_element": link_s})

    def residuals(self, values: Values) -> Values:
        """log(predicted / measured) of every case."""
        calibration = self.calibration(values)
        predicted = [evaluate_case(case, self.catalog, calibration).step_time_s for case in self.cases]
        measured = [case.measured.step_time_s for case in self.cases]
        return np.asarray(np.log(np.array(predicted) / np.array(measured)))

    def least_squares(self) -> Any:
        """SciPy's result of the fit."""
        # Predictions jump with the number of micro-batches, so derivatives need a larger step than usual.
        return scipy("optimize").least_squares(self.residuals, self.first, diff_step=1e-3, x_scale=0.1)


def fit_wafer(path: Path, device: str, *, source: str = "") -> WaferCalibration:
    """Efficiencies of the wafer called `device` from the scored cases of a file; needs scipy."""
    fit = WaferFit.of(path, device, default_catalog())
    need_more_than(len(fit.first), len(fit.cases), path, "scored logs")
    result = fit.least_squares()
    freedom = len(fit.cases) - len(result.x)
    covariance = _covariance(result, freedom)
    errors = {"growth_per_release": float(np.sqrt(covariance[1, 1]))} if len(result.x) > 1 else {}
    for release, after in fit.positions.items():
        slope = np.array([1.0, float(after)])[: len(result.x)]
        errors[f"efficiency.{release}"] = float(np.sqrt(slope @ covariance @ slope))
    pairs = zip(fit.cases, np.expm1(result.fun).tolist(), strict=True)
    by_case = ", ".join(f"{case.id} {error:+.1%}" for case, error in pairs)
    grown = np.expm1(fit.growth(result.x))
    record = fit_record(
        command=f"perfsim calibrate wafer {path.name} --device {device}",
        table=source or source_of(path, "public-wafer-logs"),
        apes=np.abs(np.expm1(result.fun)),
        standard_errors={name: round(error, 4) for name, error in sorted(errors.items())},
        note=f"{freedom} residual degree(s) of freedom; efficiency grows {grown:.1%} a release; "
        f"errors {by_case}{_free_link(fit)}",
    )
    return fit.calibration(result.x, digits=4).model_copy(update={"fit": {"efficiency": record}})


def _covariance(result: Any, freedom: int) -> Values:
    inverse = np.linalg.pinv(result.jac.T @ result.jac)
    return np.asarray(inverse * (result.fun @ result.fun) / max(freedom, 1))


def _free_link(fit: WaferFit) -> str:
    """The time of a link if it were fitted: a check only, since it is not."""
    free = replace(fit, link_is_free=True)
    freedom = len(fit.cases) - len(free.first)
    if freedom < 1:
        return ""
    result = free.least_squares()
    error = np.sqrt(_covariance(result, freedom)[-1, -1])
    link_ns = np.exp(result.x[-1]) * 1e9
    return f"; a link's time, left free, becomes {link_ns:.3g} ns ({error:.0%} standard error)"
