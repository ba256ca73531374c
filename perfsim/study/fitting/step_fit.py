"""Fitting what no micro-benchmark shows to whole published steps: four global constants.

`host_s_per_kernel` and `host_blocking_s_per_kernel` of the framework, `sustained_fraction` and
`attention_fraction` of the GPU. Least squares on log time over all scored cases, one weight a family,
with a loss that outliers cannot bend. Graphs are written once and priced anew in each iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.calibration import FitRecord, FrameworkCalibration, GpuCalibration
from perfsim.catalog import Catalog, default_catalog, parse_file
from perfsim.costs.gpu import GpuCosts
from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.errors import InputError
from perfsim.hardware import GpuClusterSpec
from perfsim.study.fitting.fit_tables import rounded, scipy_optimize
from perfsim.study.published.case_graphs import WrittenCase, write_cases
from perfsim.study.published.cases import FRAMEWORK, CaseFile
from perfsim.topology import build_topology

OF_FRAMEWORK = ("host_s_per_kernel", "host_blocking_s_per_kernel")
OF_DEVICE = ("sustained_fraction", "attention_fraction")
CONSTANTS = (*OF_FRAMEWORK, *OF_DEVICE)
OUTLIER = 0.1
"""Errors past this bend the fit less and less (soft L1)."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepFit:
    """What a fit to whole steps gives."""

    framework: FrameworkCalibration
    device: GpuCalibration
    record: FitRecord


def fit_steps(
    path: Path, device: str, *, device_only: bool = False, catalog: Catalog | None = None
) -> StepFit:
    """Fit the four constants to the scored cases of a file that run on `device`; needs scipy.

    `device_only` leaves the framework as it is: for a device with too few runs to tell.
    """
    optimize: Any = scipy_optimize()
    catalog = catalog or default_catalog()
    calibration = catalog.device(device).calibration
    framework = catalog.calibration(FRAMEWORK)
    if not isinstance(calibration, GpuCalibration) or not isinstance(framework, FrameworkCalibration):
        raise InputError(f"{device} has no GPU calibration, or {FRAMEWORK} is none of a framework")
    cases = write_cases(parse_file(path, CaseFile, catalog).cases, calibration.name, catalog)
    if not cases:
        raise InputError(f"no scored case runs on a device with calibration {calibration.name}")
    measured = np.array([each.case.measured.step_time_s for each in cases])
    sizes = Counter(each.case.family for each in cases)
    weight = np.array([1.0 / np.sqrt(sizes[each.case.family]) for each in cases])

    first = [getattr(framework, name) for name in OF_FRAMEWORK]
    start = np.log(first + [getattr(calibration, name) for name in OF_DEVICE])
    pinned = start[: len(OF_FRAMEWORK)] if device_only else start[:0]

    def residuals(values: Floats) -> Floats:
        constants = np.exp(np.concatenate([pinned, values]))
        predicted = np.array([predict_with(each, constants) for each in cases])
        return np.asarray(weight * np.log(predicted / measured))

    found = optimize.least_squares(
        residuals,
        start[len(pinned) :],
        loss="soft_l1",
        f_scale=OUTLIER * float(weight.mean()),
        diff_step=0.02,
        max_nfev=8,
    )
    values = np.exp(np.concatenate([pinned, found.x])).tolist()
    host, device_constants = _split([rounded(value) for value in values])
    record = _record(found, weight, path, f"--device {device}" + " --device-only" * device_only)
    if device_only:
        host = {}
    kept = {name: fit for name, fit in calibration.fit.items() if name not in OF_DEVICE}
    return StepFit(
        framework.model_copy(update={**host, "fit": dict.fromkeys(OF_FRAMEWORK, record)})
        if host
        else framework,
        calibration.model_copy(
            update={**device_constants, "fit": {**kept, **dict.fromkeys(OF_DEVICE, record)}}
        ),
        record,
    )


def _split(values: Sequence[float]) -> tuple[dict[str, float], dict[str, float]]:
    """Values in the order of `CONSTANTS` as updates of the framework and of the device."""
    named = dict(zip(CONSTANTS, values, strict=True))
    for name in OF_DEVICE:
        named[name] = min(1.0, named[name])
    return {name: named[name] for name in OF_FRAMEWORK}, {name: named[name] for name in OF_DEVICE}


def predict_with(each: WrittenCase, constants: Floats) -> float:
    """Step time of a written case, by its longest path, with these values of `CONSTANTS`."""
    return critical_path(each.graph, durations_with(each, constants)).step_time_s


def durations_with(each: WrittenCase, constants: Floats) -> Floats:
    """Seconds of every task of a written case with these values of `CONSTANTS`."""
    host, of_device = _split(constants.tolist())
    recipe, system = each.plan.job.recipe, each.plan.system
    if recipe.framework is None:
        raise InputError(f"{recipe.name} names no framework")
    recipe = recipe.model_copy(update={"framework": recipe.framework.model_copy(update=host)})
    if not isinstance(system, GpuClusterSpec) or not isinstance(system.device.calibration, GpuCalibration):
        raise InputError(f"{system.name} is no GPU cluster")
    calibration = system.device.calibration.model_copy(update=of_device)
    device = system.device.model_copy(update={"calibration": calibration})
    system = system.model_copy(update={"device": device})
    costs = GpuCosts(build_topology(system, each.plan.topology.num_devices), recipe)
    return price(each.graph, costs)


def recorded_constants(each: WrittenCase) -> Floats:
    """The values of `CONSTANTS` that the catalogue has for a case. Raises InputError off GPUs."""
    framework, calibration = each.plan.job.recipe.framework, each.plan.system.device.calibration
    if framework is None or not isinstance(calibration, GpuCalibration):
        raise InputError(f"{each.case.id} runs on no calibrated GPU")
    host = [getattr(framework, name) for name in OF_FRAMEWORK]
    return np.array(host + [getattr(calibration, name) for name in OF_DEVICE])


def _record(found: Any, weight: Floats, path: Path, options: str) -> FitRecord:
    residuals = found.fun / weight
    apes = np.abs(np.expm1(residuals))
    freedom = max(len(residuals) - len(found.x), 1)
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * (found.fun @ found.fun) / freedom
    errors = np.sqrt(np.diag(covariance)).tolist()
    names = CONSTANTS[-len(errors) :]
    return FitRecord(
        command=f"perfsim calibrate framework {path.name} {options}",
        table="public-gpu-runs",
        points=len(residuals),
        median_ape=round(float(np.median(apes)), 4),
        p90_ape=round(float(np.percentile(apes, 90)), 4),
        standard_errors={name: round(error, 4) for name, error in zip(names, errors, strict=True)},
        note="soft L1 on log time, one weight a family; residuals over the cases of the fit",
    )
