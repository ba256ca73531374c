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
from perfsim.study.cases import CaseFile, StepCase
from perfsim.study.fit_tables import rounded, scipy_optimize
from perfsim.study.validation import predict_s


class _Fit:
    """Predictions of the scored cases as a function of the constants."""

    def __init__(self, cases: Sequence[StepCase], start: WaferCalibration, catalog: Catalog) -> None:
        self.cases = cases
        self.start = start
        self.catalog = catalog
        self.releases = sorted(start.efficiency)

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
    optimize: Any = scipy_optimize()
    catalog = catalog or default_catalog()
    start = catalog.device(device).calibration
    if not isinstance(start, WaferCalibration):
        raise InputError(f"{device} is no wafer with a calibration to start from")
    cases = [case for case in parse_file(path, CaseFile, catalog).cases if case.scored]
    if not cases:
        raise InputError(f"{path.name} has no scored case to fit to")
    fit = _Fit(cases, start, catalog)
    first = np.log([*(start.efficiency[release] for release in fit.releases), start.layer_overhead_s])
    # Splitting in micro-batches makes predictions step, so derivatives are taken over a visible stride.
    found: Any = optimize.least_squares(fit.residuals, first, diff_step=1e-3, x_scale=0.1)
    record = _record(fit, found, path, device)
    return fit.calibration(found.x, digits=4).model_copy(
        update={"fit": {"efficiency": record, "layer_overhead_s": record}}
    )


def _record(fit: _Fit, found: Any, path: Path, device: str) -> FitRecord:
    apes = np.abs(np.expm1(found.fun))
    freedom = len(fit.cases) - len(found.x)
    names = [*(f"efficiency.{release}" for release in fit.releases), "layer_overhead_s"]
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * (found.fun @ found.fun) / max(freedom, 1)
    errors = np.sqrt(np.diag(covariance))
    counted = Counter(nearest_release(case.system.software_release or "", fit.start)[0] for case in fit.cases)
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
