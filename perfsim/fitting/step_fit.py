"""Fits the global constants that no micro-benchmark shows to whole published steps.

A constant belongs to a framework (host times, exposed communication, lost time of a pass), to the network, to
the code of fused attention, or to the calibration of a GPU (sustained ceilings); all runs that have its owner
share it. What stands under `assumed` of its owner is not fitted. Robust least squares on log time over all
scored cases, with equal weight per family. Graphs are written once and priced again in each iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.calibration import (
    Calibration,
    CollectiveCalibration,
    FitRecord,
    FrameworkCalibration,
    GpuCalibration,
)
from perfsim.catalog import Catalog, default_catalog
from perfsim.costs.gpu import GpuCosts
from perfsim.errors import InputError
from perfsim.errors import Problem as Wrong
from perfsim.fitting.fit_tables import need_more_than, rounded, scipy_optimize, source_of
from perfsim.hardware import GpuClusterSpec
from perfsim.machines.gpu_cluster import gpu_plan
from perfsim.prediction.run import Step
from perfsim.published.placed_cases import PlacedCase, place_cases
from perfsim.published.rows import step_cases
from perfsim.sizes import MOST_DEVICES
from perfsim.topology import FatTree

OF_HOST = ("host_s_per_kernel", "host_blocking_s_per_kernel")
"""Those that a framework shares with its launcher."""
OF_FRAMEWORK = (
    *OF_HOST,
    "exchange_slowdown",
    "pass_s",
    "ceiling_share",
    "expert_pass_s",
    "grouped_rate",
)
OF_NETWORK = ("partial_node_rank_bytes_per_s", "all_to_all_slowdown")
OF_KERNEL = ("attention_half_length", "attention_fraction")
"""Constants of the synchronous fused attention's code, the same on every device."""
OF_DEVICE = ("sustained_fraction", "narrow_sustained_fraction")
"""Constants of one calibration of a GPU."""
OF_EXPERTS = ("expert_pass_s", "grouped_rate", "all_to_all_slowdown")
"""Those on which only runs of models with experts depend."""
FIELDS = (*OF_FRAMEWORK, *OF_NETWORK, *OF_KERNEL, *OF_DEVICE)
"""Fields of owners that may be fitted."""
FRACTIONS = ("ceiling_share", "grouped_rate", *OF_DEVICE)
"""Those that are at most 1."""
STEP = 0.02
"""Step of the log of a constant for a slope."""
OUTLIER = 0.1
"""Log errors above this have decreasing influence (soft L1)."""

Constants = Mapping[str, float]
"""Values by the name of a constant, as in `pass_s of megatron-core-te`."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepFit:
    """Result of a fit to whole steps: calibrations with new constants, each with the record of the fit."""

    calibrations: tuple[Calibration, ...]


@dataclass(frozen=True)
class Owners:
    """The calibrations that a run's constants belong to."""

    framework: FrameworkCalibration
    network: CollectiveCalibration
    device: GpuCalibration

    @classmethod
    def of(cls, placed: PlacedCase) -> Owners:
        """Those of a case. Raises InputError for a case that runs on no calibrated GPU cluster."""
        system, framework = _cluster(placed), placed.plan.job.recipe.framework
        network, device = system.node.nic.calibration, system.device.calibration
        if framework is None or network is None or not isinstance(device, GpuCalibration):
            raise InputError(f"{placed.case.id} runs on no calibrated GPU cluster")
        return cls(framework, network, device)

    def constant(self, field: str) -> str:
        """Name of the constant that a field holds."""
        if field in OF_HOST:
            return f"{field} of {self.framework.launcher or self.framework.name}"
        if field in OF_FRAMEWORK:
            return f"{field} of {self.framework.name}"
        return f"{field} of {self.device.name}" if field in OF_DEVICE else field

    def value(self, field: str) -> float | None:
        """Its value; None where the owner has none, or has it as an assumption."""
        owner: Calibration = self.device
        holder: object = owner
        if field in OF_FRAMEWORK:
            owner = holder = self.framework
        elif field in OF_NETWORK:
            owner, holder = self.network, self.network.network
        assumed = field in owner.assumed or f"network.{field}" in owner.assumed
        return None if assumed else getattr(holder, field, None) or None

    def changed(self, constants: Constants) -> Owners:
        """The owners with other values of these constants."""
        values = {field: constants.get(self.constant(field)) for field in FIELDS}
        new = {
            field: min(1.0, value) if field in FRACTIONS else value
            for field, value in values.items()
            if value is not None
        }

        def of(fields: Sequence[str]) -> dict[str, float]:
            return {field: new[field] for field in fields if field in new}

        between = self.network.network
        if between is not None:
            between = between.model_copy(update=of(OF_NETWORK))
        return Owners(
            self.framework.model_copy(update=of(OF_FRAMEWORK)),
            self.network.model_copy(update={"network": between}),
            self.device.model_copy(update=of((*OF_KERNEL, *OF_DEVICE))),
        )


@dataclass(frozen=True)
class Problem:
    """The runs of a fit, and the constants that are fitted."""

    cases: tuple[PlacedCase, ...]
    fields: tuple[str, ...] = FIELDS

    @cached_property
    def start(self) -> dict[str, float]:
        """Recorded values of the fitted constants."""
        values: dict[str, float] = {}
        for placed in self.cases:
            values |= {
                name: value
                for name, value in recorded_constants(placed).items()
                if name.split(" of ")[0] in self.fields
            }
        return values

    @property
    def weight(self) -> Floats:
        """Weights of the runs that give every family the total 1, as square roots."""
        sizes = Counter(placed.case.family for placed in self.cases)
        return np.array([1.0 / np.sqrt(sizes[placed.case.family]) for placed in self.cases])

    def constants(self, logs: Floats) -> dict[str, float]:
        """The constants by name, from their logs."""
        return dict(zip(self.start, np.exp(logs).tolist(), strict=True))

    def residuals(self, logs: Floats) -> Floats:
        """Weighted log errors with these values, of shape (runs,)."""
        constants = self.constants(logs)
        errors = [
            np.log(predict_with(placed, constants) / placed.case.measured.step_time_s)
            for placed in self.cases
        ]
        return np.asarray(self.weight * np.array(errors))

    def jacobian(self, logs: Floats) -> Floats:
        """Slopes of the weighted log errors, of shape (runs, constants), by forward differences.

        A run is priced again only for the constants of its own owners.
        """
        constants, names = self.constants(logs), list(self.start)
        slopes = np.zeros((len(self.cases), len(names)))
        for row, placed in enumerate(self.cases):
            here_s = predict_with(placed, constants)
            for name in recorded_constants(placed):
                if name in self.start:
                    moved_s = predict_with(placed, constants | {name: constants[name] * float(np.exp(STEP))})
                    slopes[row, names.index(name)] = np.log(moved_s / here_s) / STEP
        return np.asarray(self.weight[:, None] * slopes)


def fit_steps(
    paths: Sequence[Path],
    device: str | None = None,
    *,
    device_only: bool = False,
    only: Sequence[str] = (),
    most_devices: int = MOST_DEVICES,
    catalog: Catalog | None = None,
    source: str = "",
) -> StepFit:
    """Fit the constants to the scored cases of files, all or those that run on `device`; needs scipy.

    `device_only` keeps all but those of devices, for a device with too few runs; `only` all but these fields.
    Where these are of experts alone, the runs are those with experts. Raises InputError for an unknown field.
    """
    if unknown := [field for field in only if field not in FIELDS]:
        raise InputError(f"{unknown[0]} is no constant of a fit; there are {', '.join(FIELDS)}")
    optimize: Any = scipy_optimize()
    catalog = catalog or default_catalog()
    sparse = bool(only) and set(only) <= set(OF_EXPERTS)
    cases = [placed for path in paths for placed in _cases(path, device, catalog, most_devices, sparse)]
    problem = Problem(tuple(cases), tuple(only) or (OF_DEVICE if device_only else FIELDS))
    need_more_than(len(problem.start), _distinct(cases), paths[0], "different runs on GPUs")
    result = optimize.least_squares(
        problem.residuals,
        np.log(list(problem.start.values())),
        jac=problem.jacobian,
        loss="soft_l1",
        f_scale=OUTLIER * float(problem.weight.mean()),
        max_nfev=8,
        ftol=1e-5,
    )
    options = f" --device {device}" * (device is not None) + " --device-only" * device_only
    options += "".join(f" --only {field}" for field in only)
    options += f" --most-devices {most_devices}" * (most_devices < MOST_DEVICES)
    record = _record(result, problem.weight, list(problem.start), paths, options)
    record = record.model_copy(update={"table": source or source_of(paths[0], record.table)})
    return StepFit(tuple(_recorded(problem, result.x, record)))


def _cases(
    path: Path, device: str | None, catalog: Catalog, most_devices: int, sparse: bool
) -> list[PlacedCase]:
    """The scored cases of a file on GPUs: all, or those whose device has the calibration of `device`.

    `sparse` leaves only those of models with experts.
    """
    wanted = None
    if device is not None:
        calibration = catalog.device(device).calibration
        if not isinstance(calibration, GpuCalibration):
            raise InputError(f"{device} has no GPU calibration")
        wanted = calibration.name
    chosen = [
        case
        for case in step_cases(path, catalog)
        if case.system.num_devices <= most_devices and (case.model.experts or not sparse)
    ]
    cases = place_cases(chosen, wanted, catalog)
    if not cases:
        text = f"no scored case runs on a device with calibration {wanted or 'of a GPU'}"
        raise InputError([Wrong(text, str(path), 1)])
    return cases


def _distinct(cases: Sequence[PlacedCase]) -> int:
    """Number of runs that differ in more than their names."""
    runs = (placed.case for placed in cases)
    return len({repr((run.system, run.model, run.strategy, run.parallel, run.training)) for run in runs})


def _moved(result: Any, names: Sequence[str]) -> list[str]:
    """The fitted values on which some run depends; the others keep theirs."""
    matters = np.abs(result.jac).max(axis=0) > 0.0
    return [name for name, moved in zip(names, matters, strict=True) if moved]


def _recorded(problem: Problem, fitted: Floats, record: FitRecord) -> Iterator[Calibration]:
    """The calibrations of the cases with new constants and the record of their fit."""
    moved = {
        name: rounded(value)
        for name, value in problem.constants(fitted).items()
        if name in record.standard_errors
    }
    done: set[str] = set()
    for placed in problem.cases:
        owners = Owners.of(placed)
        new = owners.changed(moved)
        for owner, prefix, fields in (
            (new.framework, "", OF_FRAMEWORK),
            (new.network, "network.", OF_NETWORK),
            (new.device, "", (*OF_KERNEL, *OF_DEVICE)),
        ):
            own = {field: owners.constant(field) for field in fields if owners.constant(field) in moved}
            if isinstance(owner, FrameworkCalibration) and owner.launcher:
                own = {field: name for field, name in own.items() if field not in OF_HOST}
            if not own or owner.name in done:
                continue
            done.add(owner.name)
            errors = {field: record.standard_errors[name] for field, name in own.items()}
            mine = record.model_copy(update={"standard_errors": errors})
            fits = {**owner.fit, **{f"{prefix}{field}": mine for field in own}}
            yield owner.model_copy(update={"fit": fits})


def predict_with(placed: PlacedCase, constants: Constants) -> float:
    """Step time of a placed case with these constants: the longest path, slowed as recorded."""
    return placed.slowed * step_with(placed, constants).run(contention=False).step_time_s


def step_with(placed: PlacedCase, constants: Constants) -> Step:
    """The step of a placed case with these constants."""
    owners = Owners.of(placed).changed(constants)
    recipe, system = placed.plan.job.recipe, _cluster(placed)
    nic = system.node.nic.model_copy(update={"calibration": owners.network})
    system = system.model_copy(
        update={
            "device": system.device.model_copy(update={"calibration": owners.device}),
            "node": system.node.model_copy(update={"nic": nic}),
        }
    )
    costs = GpuCosts(
        FatTree(system, placed.plan.topology.num_devices),
        recipe.model_copy(update={"framework": owners.framework}),
    )
    return placed.step(costs)


def recorded_constants(placed: PlacedCase) -> dict[str, float]:
    """The catalogue's values of the constants of a case that may be fitted."""
    owners = Owners.of(placed)
    values = {owners.constant(field): owners.value(field) for field in FIELDS}
    return {name: value for name, value in values.items() if value is not None}


def ceiling_in_benchmark(placed: PlacedCase) -> float:
    """Fraction of peak that long matrix products reach in the benchmark of a case's device."""
    return Owners.of(placed).device.gemm.burst_fraction


def _cluster(placed: PlacedCase) -> GpuClusterSpec:
    return gpu_plan(placed.plan).topology.system


def _record(
    result: Any, weight: Floats, names: Sequence[str], paths: Sequence[Path], options: str
) -> FitRecord:
    residuals = result.fun / weight
    apes = np.abs(np.expm1(residuals))
    errors = _standard_errors(result, OUTLIER * float(weight.mean())).tolist()
    moved = _moved(result, names)
    idle = [name for name in names if name not in moved]
    kept = f"; kept, for no run depends on them: {', '.join(idle)}" if idle else ""
    return FitRecord(
        command=f"perfsim calibrate framework {' '.join(path.name for path in paths)}{options}",
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
