"""Fits the global constants that no micro-benchmark shows to whole published steps.

`host_s_per_kernel` and `host_blocking_s_per_kernel` of the framework, `partial_node_rank_bytes_per_s` of
the network, `attention_half_length` and `attention_fraction` of fused attention are one for all runs;
`sustained_fraction` is one for each calibration of a GPU. Robust least squares on log time over all scored
cases, with equal weight per family. Graphs are written once and priced again in each iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.calibration import CollectiveCalibration, FitRecord, FrameworkCalibration, GpuCalibration
from perfsim.catalog import Catalog, default_catalog
from perfsim.costs.gpu import GpuCosts
from perfsim.errors import InputError
from perfsim.fitting.fit_tables import need_more_than, rounded, scipy_optimize, source_of
from perfsim.hardware import GpuClusterSpec
from perfsim.machines.gpu_cluster import gpu_plan
from perfsim.prediction.run import Step
from perfsim.published.placed_cases import PlacedCase, place_cases
from perfsim.published.rows import step_cases
from perfsim.topology import FatTree

OF_FRAMEWORK = ("host_s_per_kernel", "host_blocking_s_per_kernel")
OF_NETWORK = ("partial_node_rank_bytes_per_s",)
OF_KERNEL = ("attention_half_length", "attention_fraction")
"""Constants of the fused attention's code, the same on every device."""
SHARED = (*OF_FRAMEWORK, *OF_NETWORK, *OF_KERNEL)
"""Constants that all runs have in common."""
OF_DEVICE = ("sustained_fraction",)
"""Constants of one calibration of a GPU."""
CONSTANTS = (*SHARED, *OF_DEVICE)
"""Those of one run."""
OUTLIER = 0.1
"""Log errors above this have decreasing influence (soft L1)."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepFit:
    """Result of a fit to whole steps: calibrations with new constants, each with the record of the fit."""

    calibrations: tuple[FrameworkCalibration | CollectiveCalibration | GpuCalibration, ...]
    """Framework, network and devices, or only devices."""


@dataclass(frozen=True)
class Problem:
    """The runs of a fit, and where the constants of each stand in the vector that is fitted.

    The vector holds the logs of `SHARED`, then one sustained ceiling for each calibration.
    """

    cases: tuple[PlacedCase, ...]
    device_only: bool = False

    @cached_property
    def calibrations(self) -> tuple[str, ...]:
        """Names of the GPU calibrations, in the order of their ceilings."""
        return tuple(dict.fromkeys(placed.calibration for placed in self.cases))

    @cached_property
    def start(self) -> Floats:
        """Logs of the recorded values."""
        first = {placed.calibration: placed for placed in reversed(self.cases)}
        ceilings = [recorded_constants(first[name])[-1] for name in self.calibrations]
        return np.asarray(np.log([*recorded_constants(self.cases[0])[:-1], *ceilings]))

    @property
    def pinned(self) -> int:
        """Number of values at the front that are not fitted."""
        return len(SHARED) if self.device_only else 0

    @property
    def weight(self) -> Floats:
        """Weights of the runs that give every family the total 1, as square roots."""
        sizes = Counter(placed.case.family for placed in self.cases)
        return np.array([1.0 / np.sqrt(sizes[placed.case.family]) for placed in self.cases])

    def names(self) -> list[str]:
        """Names of the fitted values."""
        return [*SHARED, *(f"{OF_DEVICE[0]} of {name}" for name in self.calibrations)][self.pinned :]

    def of_run(self, logs: Floats, calibration: str) -> Floats:
        """The values of `CONSTANTS` of a run, from the whole vector."""
        ceiling = logs[len(SHARED) + self.calibrations.index(calibration)]
        return np.asarray(np.exp(np.append(logs[: len(SHARED)], ceiling)))

    def residuals(self, values: Floats) -> Floats:
        """Weighted log errors with these fitted values."""
        logs = np.concatenate([self.start[: self.pinned], values])
        errors = [
            np.log(
                predict_with(placed, self.of_run(logs, placed.calibration)) / placed.case.measured.step_time_s
            )
            for placed in self.cases
        ]
        return np.asarray(self.weight * np.array(errors))


def fit_steps(
    path: Path,
    device: str | None = None,
    *,
    device_only: bool = False,
    catalog: Catalog | None = None,
    source: str = "",
) -> StepFit:
    """Fit the constants to the scored cases of a file, all or those that run on `device`; needs scipy.

    `device_only` keeps the `SHARED` ones, for a device with too few runs.
    """
    optimize: Any = scipy_optimize()
    catalog = catalog or default_catalog()
    problem = Problem(tuple(_cases(path, device, catalog)), device_only)
    free = len(problem.start) - problem.pinned
    need_more_than(free, _distinct(problem.cases), path, "different runs on GPUs")
    result = optimize.least_squares(
        problem.residuals,
        problem.start[problem.pinned :],
        loss="soft_l1",
        f_scale=OUTLIER * float(problem.weight.mean()),
        diff_step=0.02,
        max_nfev=8,
    )
    options = f" --device {device}" * (device is not None) + " --device-only" * device_only
    record = _record(result, problem.weight, problem.names(), path, options)
    record = record.model_copy(update={"table": source or source_of(path, record.table)})
    return StepFit(tuple(_recorded(problem, result.x, record)))


def _cases(path: Path, device: str | None, catalog: Catalog) -> list[PlacedCase]:
    """The scored cases of a file on GPUs: all, or those whose device has the calibration of `device`."""
    wanted = None
    if device is not None:
        calibration = catalog.device(device).calibration
        if not isinstance(calibration, GpuCalibration):
            raise InputError(f"{device} has no GPU calibration")
        wanted = calibration.name
    cases = place_cases(step_cases(path, catalog), wanted, catalog)
    if not cases:
        raise InputError(f"no scored case runs on a device with calibration {wanted or 'of a GPU'}")
    return cases


def _distinct(cases: Sequence[PlacedCase]) -> int:
    """Number of runs that differ in more than their names."""
    runs = (placed.case for placed in cases)
    return len({repr((run.system, run.model, run.strategy, run.parallel, run.training)) for run in runs})


def _moved(result: Any, names: Sequence[str]) -> list[str]:
    """The fitted values on which some run depends; the others keep theirs."""
    matters = np.abs(result.jac).max(axis=0) > 0.0
    return [name for name, moved in zip(names, matters, strict=True) if moved]


def _recorded(
    problem: Problem, fitted: Floats, record: FitRecord
) -> Iterator[FrameworkCalibration | CollectiveCalibration | GpuCalibration]:
    """The calibrations of the cases with new constants and the record of their fit."""
    moved = set(record.standard_errors)
    logs = np.concatenate([problem.start[: problem.pinned], fitted])
    first = {placed.calibration: placed for placed in reversed(problem.cases)}
    for number, name in enumerate(problem.calibrations):
        own = f"{OF_DEVICE[0]} of {name}"
        labels = [*SHARED, own]
        values = zip(labels, problem.of_run(logs, name), recorded_constants(first[name]), strict=True)
        constants = np.array([rounded(float(new)) if label in moved else old for label, new, old in values])
        framework, network, device = _with_constants(first[name], constants)
        errors = {label: record.standard_errors[label] for label in SHARED if label in moved}
        shared = record.model_copy(update={"standard_errors": dict(errors)})
        if number == 0 and not problem.device_only:
            of_framework = dict.fromkeys((label for label in OF_FRAMEWORK if label in moved), shared)
            yield framework.model_copy(update={"fit": {**framework.fit, **of_framework}})
            of_network = {f"network.{label}": shared for label in OF_NETWORK if label in moved}
            yield network.model_copy(update={"fit": {**network.fit, **of_network}})
        if own in moved:
            errors[OF_DEVICE[0]] = record.standard_errors[own]
        mine = record.model_copy(update={"standard_errors": errors})
        of_device = dict.fromkeys((label for label in (*OF_KERNEL, *OF_DEVICE) if label in errors), mine)
        yield device.model_copy(update={"fit": {**device.fit, **of_device}})


def predict_with(placed: PlacedCase, constants: Floats) -> float:
    """Step time of a placed case with these values of `CONSTANTS`: the longest path, slowed as recorded."""
    return placed.slowed * step_with(placed, constants).run(contention=False).step_time_s


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


def ceiling_in_benchmark(placed: PlacedCase) -> float:
    """Fraction of peak that long matrix products reach in the benchmark of a case's device."""
    return _calibrations(placed)[2].gemm.burst_fraction


def _calibrations(placed: PlacedCase) -> tuple[FrameworkCalibration, CollectiveCalibration, GpuCalibration]:
    system = _cluster(placed)
    framework, calibration = placed.plan.job.recipe.framework, system.device.calibration
    network = system.node.nic.calibration
    if framework is None or network is None or not isinstance(calibration, GpuCalibration):
        raise InputError(f"{placed.case.id} runs on no calibrated GPU cluster")
    return framework, network, calibration


def _cluster(placed: PlacedCase) -> GpuClusterSpec:
    return gpu_plan(placed.plan).topology.system


def _record(result: Any, weight: Floats, names: Sequence[str], path: Path, options: str) -> FitRecord:
    residuals = result.fun / weight
    apes = np.abs(np.expm1(residuals))
    errors = _standard_errors(result, OUTLIER * float(weight.mean())).tolist()
    moved = _moved(result, names)
    idle = [name for name in names if name not in moved]
    kept = f"; kept, for no run depends on them: {', '.join(idle)}" if idle else ""
    return FitRecord(
        command=f"perfsim calibrate framework {path.name}{options}",
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
