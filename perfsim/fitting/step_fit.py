"""Fits the six global constants that no micro-benchmark shows to whole published steps.

`host_s_per_kernel` and `host_blocking_s_per_kernel` of the framework, `partial_node_bytes_per_s` of
the network, `attention_half_length`, `sustained_fraction` and `attention_fraction` of the GPU. Robust least
squares on log time over all scored cases, with equal weight per family. Graphs are written once and priced
again in each iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.calibration import CollectiveCalibration, FitRecord, FrameworkCalibration, GpuCalibration
from perfsim.catalog import Catalog, default_catalog, parse_file
from perfsim.costs.gpu import GpuCosts
from perfsim.errors import InputError
from perfsim.fitting.fit_tables import need_more_than, rounded, scipy_optimize, source_of
from perfsim.hardware import GpuClusterSpec
from perfsim.machines.gpu_cluster import gpu_plan
from perfsim.prediction.run import Step
from perfsim.published.cases import CaseFile
from perfsim.published.placed_cases import PlacedCase, place_cases
from perfsim.topology import FatTree

OF_FRAMEWORK = ("host_s_per_kernel", "host_blocking_s_per_kernel")
OF_NETWORK = ("partial_node_bytes_per_s",)
OF_KERNEL = ("attention_half_length",)
"""Constants of the fused attention's code, the same on every device."""
SHARED = (*OF_FRAMEWORK, *OF_NETWORK, *OF_KERNEL)
"""Constants that the fit to the device with most runs sets for all devices."""
OF_DEVICE = ("sustained_fraction", "attention_fraction")
CONSTANTS = (*SHARED, *OF_DEVICE)
OUTLIER = 0.1
"""Log errors above this have decreasing influence (soft L1)."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepFit:
    """Result of a fit to whole steps: calibrations with new constants, and the record of the fit."""

    calibrations: tuple[FrameworkCalibration | CollectiveCalibration | GpuCalibration, ...]
    """Framework, network and device, or only the device."""
    record: FitRecord


def fit_steps(
    path: Path, device: str, *, device_only: bool = False, catalog: Catalog | None = None, source: str = ""
) -> StepFit:
    """Fit the constants to the scored cases of a file that run on `device`; needs scipy.

    `device_only` keeps the `SHARED` ones, for a device with too few runs.
    """
    optimize: Any = scipy_optimize()
    catalog = catalog or default_catalog()
    calibration = catalog.device(device).calibration
    if not isinstance(calibration, GpuCalibration):
        raise InputError(f"{device} has no GPU calibration")
    cases = place_cases(parse_file(path, CaseFile, catalog).cases, calibration.name, catalog)
    if not cases:
        raise InputError(f"no scored case runs on a device with calibration {calibration.name}")
    measured = np.array([placed.case.measured.step_time_s for placed in cases])
    pinned_count = len(SHARED) if device_only else 0
    need_more_than(len(CONSTANTS) - pinned_count, _distinct(cases), path, f"different runs on {device}")
    sizes = Counter(placed.case.family for placed in cases)
    weight = np.array([1.0 / np.sqrt(sizes[placed.case.family]) for placed in cases])
    start = np.log(recorded_constants(cases[0]))
    pinned = start[:pinned_count]

    def residuals(values: Floats) -> Floats:
        constants = np.exp(np.concatenate([pinned, values]))
        predicted = np.array([predict_with(placed, constants) for placed in cases])
        return np.asarray(weight * np.log(predicted / measured))

    result = optimize.least_squares(
        residuals,
        start[len(pinned) :],
        loss="soft_l1",
        f_scale=OUTLIER * float(weight.mean()),
        diff_step=0.02,
        max_nfev=8,
    )
    moved = _moved(result, pinned_count)
    record = _record(result, weight, path, f"--device {device}" + " --device-only" * device_only)
    record = record.model_copy(update={"table": source or source_of(path, record.table)})
    values = zip(CONSTANTS, np.concatenate([pinned, result.x]), recorded_constants(cases[0]), strict=True)
    constants = np.array(
        [rounded(float(np.exp(log))) if name in moved else recorded for name, log, recorded in values]
    )
    return StepFit(_recorded(cases[0], constants, record, moved, device_only=device_only), record)


def _distinct(cases: Sequence[PlacedCase]) -> int:
    """Number of runs that differ in more than their names."""
    runs = (placed.case for placed in cases)
    return len({repr((run.system, run.model, run.strategy, run.parallel, run.training)) for run in runs})


def _moved(result: Any, pinned: int) -> list[str]:
    """The constants on which some run depends; the others keep their values."""
    matters = np.abs(result.jac).max(axis=0) > 0.0
    return [name for name, moved in zip(CONSTANTS[pinned:], matters, strict=True) if moved]


def _recorded(
    placed: PlacedCase, constants: Floats, record: FitRecord, moved: Sequence[str], *, device_only: bool
) -> tuple[FrameworkCalibration | CollectiveCalibration | GpuCalibration, ...]:
    """The calibrations of a case with new constants and the record of their fit."""
    framework, network, device = _with_constants(placed, constants)
    of_device = [name for name in (*OF_KERNEL, *OF_DEVICE) if name in moved]
    device = device.model_copy(update={"fit": {**device.fit, **dict.fromkeys(of_device, record)}})
    if device_only:
        return (device,)
    of_framework = dict.fromkeys((name for name in OF_FRAMEWORK if name in moved), record)
    framework = framework.model_copy(update={"fit": {**framework.fit, **of_framework}})
    fits = {**network.fit, **{f"network.{name}": record for name in OF_NETWORK if name in moved}}
    return framework, network.model_copy(update={"fit": fits}), device


def predict_with(placed: PlacedCase, constants: Floats) -> float:
    """Step time of a placed case by its critical path, with these values of `CONSTANTS`."""
    return step_with(placed, constants).run(contention=False).step_time_s


def step_with(placed: PlacedCase, constants: Floats) -> Step:
    """The step of a placed case with these values of `CONSTANTS`."""
    framework, network, calibration = _with_constants(placed, constants)
    recipe, system = placed.plan.job.recipe, _cluster(placed)
    nic = system.node.nic.model_copy(update={"calibration": network})
    system = system.model_copy(
        update={
            "device": system.device.model_copy(update={"calibration": calibration}),
            "node": system.node.model_copy(update={"nic": nic}),
        }
    )
    costs = GpuCosts(
        FatTree(system, placed.plan.topology.num_devices),
        recipe.model_copy(update={"framework": framework}),
    )
    return placed.step(costs)


def _with_constants(
    placed: PlacedCase, constants: Floats
) -> tuple[FrameworkCalibration, CollectiveCalibration, GpuCalibration]:
    """Framework, network and device of a case with these values of `CONSTANTS`."""
    framework, network, calibration = _calibrations(placed)
    named = dict(zip(CONSTANTS, constants.tolist(), strict=True))
    for name in OF_DEVICE:
        named[name] = min(1.0, named[name])
    between = network.network
    if between is not None:
        between = between.model_copy(update={name: named[name] for name in OF_NETWORK})
    return (
        framework.model_copy(update={name: named[name] for name in OF_FRAMEWORK}),
        network.model_copy(update={"network": between}),
        calibration.model_copy(update={name: named[name] for name in (*OF_KERNEL, *OF_DEVICE)}),
    )


def recorded_constants(placed: PlacedCase) -> Floats:
    """The catalogue's values of `CONSTANTS` for a case. Raises InputError for a case without them."""
    framework, network, calibration = _calibrations(placed)
    homes: dict[str, object] = dict.fromkeys(CONSTANTS, calibration)
    homes |= dict.fromkeys(OF_FRAMEWORK, framework) | dict.fromkeys(OF_NETWORK, network.network)
    values = [getattr(home, name, None) for name, home in homes.items()]
    missing = [name for name, value in zip(CONSTANTS, values, strict=True) if not value]
    if missing:
        raise InputError(f"the calibrations of {placed.case.id} have no {', '.join(missing)} to start from")
    return np.array(values)


def _calibrations(placed: PlacedCase) -> tuple[FrameworkCalibration, CollectiveCalibration, GpuCalibration]:
    system = _cluster(placed)
    framework, calibration = placed.plan.job.recipe.framework, system.device.calibration
    network = system.node.nic.calibration
    if framework is None or network is None or not isinstance(calibration, GpuCalibration):
        raise InputError(f"{placed.case.id} runs on no calibrated GPU cluster")
    return framework, network, calibration


def _cluster(placed: PlacedCase) -> GpuClusterSpec:
    return gpu_plan(placed.plan).topology.system


def _record(result: Any, weight: Floats, path: Path, options: str) -> FitRecord:
    residuals = result.fun / weight
    apes = np.abs(np.expm1(residuals))
    errors = _standard_errors(result, OUTLIER * float(weight.mean())).tolist()
    names = CONSTANTS[-len(errors) :]
    moved = _moved(result, len(CONSTANTS) - len(errors))
    idle = [name for name in names if name not in moved]
    kept = f"; kept, for no run depends on them: {', '.join(idle)}" if idle else ""
    return FitRecord(
        command=f"perfsim calibrate framework {path.name} {options}",
        table="public-gpu-runs",
        points=len(residuals),
        median_ape=round(float(np.median(apes)), 4),
        p90_ape=round(float(np.percentile(apes, 90)), 4),
        standard_errors={
            name: round(error, 4) for name, error in zip(names, errors, strict=True) if name in moved
        },
        note="soft L1 on log time, one weight a family; residuals over the cases; errors by the sandwich"
        + kept,
    )


def _standard_errors(result: Any, scale: float) -> Floats:
    """Standard errors of a soft L1 fit: the sandwich H^-1 (sum of scores squared) H^-1, times n / (n - p).

    It is valid for residuals of unequal variance, as between laboratories (Huber 1967, White 1980). SciPy
    returns the Jacobian times (1 + z)^(-3/4), z = (residual / scale)^2, so H is its square.
    """
    z = (result.fun / scale) ** 2
    jacobian = result.jac * (1 + z)[:, None] ** 0.75
    scores = jacobian * (result.fun / np.sqrt(1 + z))[:, None]
    inverse = np.linalg.pinv(result.jac.T @ result.jac)
    n, p = result.jac.shape
    covariance = inverse @ (scores.T @ scores) @ inverse * n / max(n - p, 1)
    return np.asarray(np.sqrt(np.maximum(np.diag(covariance), 0.0)))
