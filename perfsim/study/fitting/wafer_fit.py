"""Fitting a wafer's constants to published training logs: efficiency by release, overhead by layer.

The overhead and the efficiency of every release with several logs are found together by least
squares on log time; a release with one log gets the efficiency that reproduces it, so its error is
zero by construction and the record says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.calibration import FitRecord, WaferCalibration
from perfsim.catalog import Catalog, default_catalog, parse_file
from perfsim.costs.wafer import nearest_release
from perfsim.errors import InputError
from perfsim.study.fitting.fit_tables import rounded, scipy_optimize
from perfsim.study.published.cases import CaseFile, StepCase
from perfsim.study.published.validation import predict_s


class _Fit:
    """Predictions of the scored cases as a function of the constants."""

    def __init__(self, cases: Sequence[StepCase], start: WaferCalibration, catalog: Catalog) -> None:
        self.cases = cases
        self.start = start
        self.catalog = catalog
        self.releases = sorted({_release_of(case, start) for case in cases})

    def calibration(self, values: NDArray[np.float64], digits: int = 15) -> WaferCalibration:
        *efficiency, overhead_s = np.exp(values).tolist()
        return self.start.model_copy(
            update={
                "efficiency": {
                    release: rounded(value, digits)
                    for release, value in zip(self.releases, efficiency, strict=True)
                },
                "layer_overhead_s": rounded(overhead_s, digits),
            }
        )

    def residuals(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """log(predicted / measured) of every case."""
        calibration = self.calibration(values)
        predicted = [predict_s(case, self.catalog, calibration) for case in self.cases]
        measured = [case.measured.step_time_s for case in self.cases]
        return np.asarray(np.log(np.array(predicted) / np.array(measured)))


def fit_wafer(path: Path, device: str, catalog: Catalog | None = None) -> WaferCalibration:
    """Constants of the wafer called `device` from the scored cases of a file; needs scipy."""
    catalog = catalog or default_catalog()
    cases, start = _cases(path, device, catalog)
    fit = _Fit(cases, start, catalog)
    found = _least_squares(fit)
    record = _record(fit, found, path, device)
    return fit.calibration(found.x, digits=4).model_copy(
        update={"fit": {"efficiency": record, "layer_overhead_s": record}}
    )


def leave_one_out(path: Path, device: str, catalog: Catalog | None = None) -> dict[str, float]:
    """Each scored log predicted with constants fitted to the others, in seconds by id; needs scipy.

    A release whose only log is left out falls back on the nearest measured one, as an unknown one does.
    """
    catalog = catalog or default_catalog()
    cases, start = _cases(path, device, catalog)
    predicted = {}
    for case in cases:
        fit = _Fit([other for other in cases if other is not case], start, catalog)
        predicted[case.id] = predict_s(case, catalog, fit.calibration(_least_squares(fit).x))
    return predicted


def _cases(path: Path, device: str, catalog: Catalog) -> tuple[list[StepCase], WaferCalibration]:
    """The scored cases of a file, and the constants to start from."""
    start = catalog.device(device).calibration
    if not isinstance(start, WaferCalibration):
        raise InputError(f"{device} is no wafer with a calibration to start from")
    cases = [case for case in parse_file(path, CaseFile, catalog).cases if case.scored]
    if not cases:
        raise InputError(f"{path.name} has no scored case to fit to")
    return cases, start


def _least_squares(fit: _Fit) -> Any:
    optimize: Any = scipy_optimize()
    start = fit.start
    first = np.log([*(start.efficiency[release] for release in fit.releases), start.layer_overhead_s])
    # Splitting in micro-batches makes predictions step, so derivatives are taken over a visible stride.
    return optimize.least_squares(fit.residuals, first, diff_step=1e-3, x_scale=0.1)


def _release_of(case: StepCase, calibration: WaferCalibration) -> str:
    return nearest_release(case.system.software_release or "", calibration)[0]


def _record(fit: _Fit, found: Any, path: Path, device: str) -> FitRecord:
    apes = np.abs(np.expm1(found.fun))
    freedom = len(fit.cases) - len(found.x)
    names = [*(f"efficiency.{release}" for release in fit.releases), "layer_overhead_s"]
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * (found.fun @ found.fun) / max(freedom, 1)
    errors = np.sqrt(np.diag(covariance))
    counted = Counter(_release_of(case, fit.start) for case in fit.cases)
    single = [release for release in fit.releases if counted[release] == 1]
    note = f"{freedom} residual degree(s) of freedom"
    if single:
        note += f"; {' and '.join(single)}: one log each, so reproduced exactly"
    return FitRecord(
        command=f"perfsim calibrate wafer {path.name} --device {device}",
        table="public-wafer-logs",
        points=len(fit.cases),
        median_ape=round(float(np.median(apes)), 4),
        p90_ape=round(float(np.percentile(apes, 90)), 4),
        standard_errors={name: round(error, 4) for name, error in zip(names, errors.tolist(), strict=True)},
        note=note,
    )
