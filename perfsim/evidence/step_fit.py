"""Fits the constants that no micro-benchmark shows to whole steps, of GPUs and of wafers.

A constant of GPUs belongs to a framework (host times, exposed communication, lost time of a pass), to the
network, to the code of fused attention, or to the calibration of a GPU (sustained ceilings); all runs that
have its owner share it. What stands under `assumed` of its owner is not fitted. The fit is robust least
squares on log time over all scored cases, with equal weight per family.

The four constants of a wafer (`perfsim.costs.wafer`) are fitted to all of its logs together, because most
releases have one log, which cannot separate the release from the model it trained.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.errors import InputError, PerfsimError
from perfsim.base.sizes import MOST_DEVICES
from perfsim.catalog import Catalog, data_root, default_catalog
from perfsim.costs.gpu import GpuCosts
from perfsim.costs.wafer import WaferCosts, known_release
from perfsim.evidence.cases import CaseRows, PlacedCase, StepCase
from perfsim.evidence.fitting import SoftL1, family_weight, need_more_than, refused, robust_fit, rounded
from perfsim.network import FatTree, WaferTree
from perfsim.prediction.run import Step
from perfsim.specs.calibration import (
    Calibration,
    CollectiveCalibration,
    FitRecord,
    FrameworkCalibration,
    GpuCalibration,
    WaferCalibration,
)

Constants = Mapping[str, float]
"""Values by the name of a constant, as in `pass_s of megatron-core-te`."""


class _Constant(NamedTuple):
    """Where a fitted constant stands, and which runs share it."""

    part: Literal["framework", "network", "device"]
    shared_by: Literal["launcher", "framework", "device", "all"]
    """What the runs that share the constant have in common; several frameworks may have one launcher."""
    at_most_1: bool = False


_CONSTANTS = {
    "host_s_per_kernel": _Constant("framework", "launcher"),
    "host_blocking_s_per_kernel": _Constant("framework", "launcher"),
    "collective_wait_s": _Constant("framework", "framework"),
    "exchange_slowdown": _Constant("framework", "framework"),
    "pass_s": _Constant("framework", "framework"),
    "ceiling_share": _Constant("framework", "framework", at_most_1=True),
    "expert_pass_s": _Constant("framework", "framework"),
    "grouped_rate": _Constant("framework", "framework", at_most_1=True),
    "partial_node_rank_bytes_per_s": _Constant("network", "all"),
    "attention_half_length": _Constant("device", "all"),
    "attention_fraction": _Constant("device", "all"),
    "sustained_fraction": _Constant("device", "device", at_most_1=True),
    "narrow_sustained_fraction": _Constant("device", "device", at_most_1=True),
}
"""Fields of calibrations that whole steps decide."""
_PREFIX = {"framework": "", "network": "network.", "device": ""}
"""What stands before a field in the paths of its owner's file."""
CEILING = "sustained_fraction of "
"""How the constant begins that is the sustained ceiling of a device."""
OUTLIER = 0.1
"""Log errors above this have decreasing influence (soft L1)."""
_STEP = 0.02
"""Step of the log of a constant for a slope."""


@dataclass(frozen=True)
class GpuRun:
    """A placed run on calibrated GPUs, and the calibrations to which the constants of its step belong."""

    placed: PlacedCase
    framework: FrameworkCalibration
    network: CollectiveCalibration
    device: GpuCalibration

    @classmethod
    def of(cls, placed: PlacedCase) -> GpuRun:
        """A run as the catalogue calibrates it. Raises InputError where it is on no calibrated GPUs."""
        system = placed.on(FatTree).system
        framework = placed.plan.job.runtime.framework
        network = system.node.nic.calibration
        device = system.device.calibration
        if framework is None or network is None or not isinstance(device, GpuCalibration):
            raise InputError(f"{placed.case.id} runs on no calibrated GPU cluster")
        return cls(placed, framework, network, device)

    @property
    def owners(self) -> dict[str, Calibration]:
        """The calibrations by the part of the prices that they calibrate."""
        return {"framework": self.framework, "network": self.network, "device": self.device}

    def name(self, field: str) -> str:
        """Name of the constant that a field holds."""
        shared_by = {
            "launcher": self.framework.launcher or self.framework.name,
            "framework": self.framework.name,
            "device": self.device.name,
            "all": "",
        }[_CONSTANTS[field].shared_by]
        return f"{field} of {shared_by}" if shared_by else field

    @cached_property
    def recorded(self) -> dict[str, float]:
        """The catalogue's values of the constants that may be fitted."""
        values: dict[str, float] = {}
        for field, row in _CONSTANTS.items():
            owner = self.owners[row.part]
            holder = self.network.network if row.part == "network" else owner
            value = getattr(holder, field, None)
            if value and _PREFIX[row.part] + field not in owner.assumed:
                values[self.name(field)] = value
        return values

    def changed(self, constants: Constants) -> GpuRun:
        new: dict[str, dict[str, float]] = defaultdict(dict)
        for field, row in _CONSTANTS.items():
            value = constants.get(self.name(field))
            if value is not None:
                new[row.part][field] = min(1.0, value) if row.at_most_1 else value
        between = self.network.network
        if between is not None:
            between = between.model_copy(update=new["network"])
        return replace(
            self,
            framework=self.framework.model_copy(update=new["framework"]),
            network=self.network.model_copy(update={"network": between}),
            device=self.device.model_copy(update=new["device"]),
        )

    def step(self, constants: Constants) -> Step:
        run = self.changed(constants)
        topology = self.placed.on(FatTree)
        system = topology.system
        nic = system.node.nic.model_copy(update={"calibration": run.network})
        node = system.node.model_copy(update={"nic": nic})
        device = system.device.model_copy(update={"calibration": run.device})
        system = system.model_copy(update={"device": device, "node": node})
        recipe = self.placed.plan.job.recipe.ran_with(framework=run.framework)
        return self.placed.step(GpuCosts(FatTree(system, topology.num_devices), recipe))

    def step_s(self, constants: Constants) -> float:
        """Its step time with these constants: the longest path, slowed as recorded."""
        return self.placed.slowed * self.step(constants).run(contention=False).step_time_s


def fit_steps(
    paths: Sequence[Path],
    device: str | None = None,
    *,
    device_only: bool = False,
    only: Sequence[str] = (),
    most_devices: int = MOST_DEVICES,
    source: str = "",
) -> list[Calibration]:
    """Calibrations with constants fitted to the scored cases of files, all or those on `device`; needs scipy.

    `device_only` fits constants of devices alone, for a device with too few runs; `only` these fields.
    Raises InputError for an unknown field.
    """
    if unknown := [field for field in only if field not in _CONSTANTS]:
        raise InputError(f"{unknown[0]} is no constant of a fit; there are {', '.join(_CONSTANTS)}")
    catalog = default_catalog()
    runs = [run for path in paths for run in _gpu_runs(path, device, catalog, most_devices)]
    fields = only or [key for key, row in _CONSTANTS.items() if row.shared_by == "device" or not device_only]
    recorded = {name: value for run in runs for name, value in run.recorded.items()}
    start = {name: value for name, value in recorded.items() if name.partition(" of ")[0] in fields}
    cases = [run.placed.case for run in runs]
    distinct = {repr((own.system, own.model, own.strategy, own.parallel, own.training)) for own in cases}
    need_more_than(len(start), len(distinct), paths[0], "different runs on GPUs")
    weight = family_weight([case.family for case in cases])
    measured_s = np.array([case.measured.step_time_s for case in cases])

    def constants(logs: Floats) -> dict[str, float]:
        return dict(zip(start, np.exp(logs).tolist(), strict=True))

    def residuals(logs: Floats) -> Floats:
        at = constants(logs)
        return np.asarray(weight * np.log([run.step_s(at) for run in runs] / measured_s))

    def slopes(logs: Floats) -> Floats:
        """Of shape (runs, constants); a run is priced again only for the constants of its own owners."""
        at = constants(logs)
        names = list(start)
        slope = np.zeros((len(runs), len(names)))
        for row, run in enumerate(runs):
            here_s = run.step_s(at)
            for name in run.recorded.keys() & start.keys():
                moved_s = run.step_s(at | {name: at[name] * float(np.exp(_STEP))})
                slope[row, names.index(name)] = np.log(moved_s / here_s) / _STEP
        return np.asarray(weight[:, None] * slope)

    first = np.log(list(start.values()))
    scale = OUTLIER * float(weight.mean())
    result = robust_fit(residuals, first, scale, jac=slopes, max_nfev=8, ftol=1e-5)
    options = f" --device {device}" * (device is not None) + " --device-only" * device_only
    options += "".join(f" --only {field}" for field in only)
    options += f" --most-devices {most_devices}" * (most_devices < MOST_DEVICES)
    command = f"perfsim calibrate framework {' '.join(path.name for path in paths)}{options}"
    table = source or _source_of(paths[0], "public-gpu-runs")
    record = _record(result, weight, list(start), command, table)
    moved = {name: rounded(value) for name, value in constants(result.x).items()}
    return list(_recorded(runs, {name: moved[name] for name in record.standard_errors}, record))


def _gpu_runs(path: Path, device: str | None, catalog: Catalog, most_devices: int) -> list[GpuRun]:
    """Scored runs of a file on GPUs, with the calibration of `device` if given."""
    wanted = None if device is None else catalog.device(device).calibration
    if device is not None and not isinstance(wanted, GpuCalibration):
        raise InputError(f"{device} has no GPU calibration")
    runs = []
    for case in CaseRows.read(path, StepCase, catalog).cases:
        if not case.scored or case.system.num_devices > most_devices:
            continue
        with suppress(PerfsimError):  # a run that cannot be planned or priced determines nothing
            run = GpuRun.of(case.placed(catalog))
            if wanted is None or wanted.name == run.device.name:
                runs.append(run)
    if not runs:
        text = f"no scored case runs on a device with calibration {wanted.name if wanted else 'of a GPU'}"
        raise refused(path, text)
    return runs


def _fit_record(apes: Floats, **fields: Any) -> FitRecord:
    """The record of a fit to whole steps, of which `apes` are the absolute errors."""
    median = round(float(np.median(apes)), 4)
    return FitRecord(
        points=len(apes), median_ape=median, p90_ape=round(float(np.percentile(apes, 90)), 4), **fields
    )


def _source_of(path: Path, bundled: str) -> str:
    """The source id `bundled` for perfsim's own file of runs; the name of any other file."""
    ours = path.resolve().parent == (data_root() / "studies" / "validation").resolve()
    return bundled if ours else path.name


def _record(result: Any, weight: Floats, names: Sequence[str], command: str, table: str) -> FitRecord:
    """The record of a soft L1 fit; a constant on which no run depends has no standard error."""
    # SciPy returns the Jacobian times (1 + z)^(-3/4), z = (residual / scale)^2.
    z = (result.fun / (OUTLIER * float(weight.mean()))) ** 2
    loss = SoftL1(result.fun, np.ones(len(z)), z, np.arange(len(z)))
    errors = loss.errors(result.jac * (1 + z)[:, None] ** 0.75).tolist()
    idle = [name for name, slopes in zip(names, result.jac.T, strict=True) if not slopes.any()]
    kept = f"; kept, for no run depends on them: {', '.join(idle)}" if idle else ""
    return _fit_record(
        np.abs(np.expm1(result.fun / weight)),
        command=command,
        table=table,
        standard_errors={
            name: round(error, 4) for name, error in zip(names, errors, strict=True) if name not in idle
        },
        note="soft L1 on log time, one weight a family; residuals over the cases; errors by the sandwich"
        + kept,
    )


def _recorded(runs: Sequence[GpuRun], moved: Constants, record: FitRecord) -> Iterator[Calibration]:
    """The calibrations of runs with new constants and the record of their fit."""
    done: set[str] = set()
    for run in runs:
        for part, owner in run.changed(moved).owners.items():
            names = {
                field: run.name(field)
                for field, row in _CONSTANTS.items()
                if row.part == part and not (row.shared_by == "launcher" and run.framework.launcher)
            }
            errors = {field: record.standard_errors[name] for field, name in names.items() if name in moved}
            if not errors or owner.name in done:
                continue
            done.add(owner.name)
            alone = record.model_copy(update={"standard_errors": errors})
            fits = {**owner.fit, **{f"{_PREFIX[part]}{field}": alone for field in errors}}
            yield owner.model_copy(update={"fit": fits})


# Wafers: products, attention, rows of weights, and the growth per software release.

_POSITIVE = ("product_efficiency", "attention_efficiency", "row_s")
"""Constants of a wafer whose logarithm is fitted."""
_GROWTH = "growth_per_release"
_SOFT = 0.05
"""Logarithm of an error from which it counts less than its square: some logs disagree with one another."""


def wafer_step_s(placed: PlacedCase, calibration: WaferCalibration) -> float:
    """Seconds of the step of a run on wafers with other constants, and the layout of its plan."""
    costs = WaferCosts(placed.on(WaferTree), placed.plan.job.recipe, calibration)
    return placed.step(costs).run(contention=False).step_time_s


@dataclass(frozen=True)
class WaferFit:
    """A fit of a wafer's constants to logs."""

    runs: Sequence[PlacedCase]
    start: WaferCalibration

    @classmethod
    def of(cls, logs: Sequence[StepCase], device: str, catalog: Catalog) -> WaferFit:
        """The fit to the logs that can be planned, from the calibration of a device."""
        start = catalog.device(device).calibration
        if not isinstance(start, WaferCalibration):
            raise InputError(f"{device} is no wafer with a calibration to start from")
        runs = []
        for case in logs:
            with suppress(PerfsimError):  # a log that cannot be planned determines nothing
                runs.append(case.placed(catalog))
        return cls(runs, start)

    @cached_property
    def free(self) -> list[str]:
        """The constants that the logs determine: the growth only where they are of several releases."""
        named = (run.case.system.software_release or "" for run in self.runs)
        releases = {known_release(release, self.start) for release in named}
        return [*_POSITIVE, _GROWTH] if len(releases) > 1 else [*_POSITIVE]

    def calibration(self, values: Floats, digits: int = 15) -> WaferCalibration:
        """The calibration with these values of the free constants."""
        constants = {
            name: rounded(float(np.exp(value) if name in _POSITIVE else value), digits)
            for name, value in zip(self.free, values, strict=True)
        }
        return self.start.model_copy(update=constants)

    def log_errors(self, calibration: WaferCalibration) -> Floats:
        """log(predicted / measured) of every run, with other constants and the layouts of its plan."""
        ratios = [wafer_step_s(run, calibration) / run.case.measured.step_time_s for run in self.runs]
        return np.array([math.log(ratio) for ratio in ratios])

    def least_squares(self) -> Any:
        """SciPy's result of the fit."""
        constants = {name: getattr(self.start, name) for name in self.free}
        first = [math.log(value) if name in _POSITIVE else value for name, value in constants.items()]

        def residuals(values: Floats) -> Floats:
            return self.log_errors(self.calibration(values))

        return robust_fit(residuals, np.array(first), _SOFT, x_scale=0.1)


def fit_wafer(path: Path, device: str, *, source: str = "") -> WaferCalibration:
    """Constants of the wafer called `device` from all of its logs in a file; needs scipy."""
    catalog = default_catalog()
    # Evidence C counts: only a series over batch sizes shows what a row of weights takes, and it is one.
    logs = [case for case in CaseRows.read(path, StepCase, catalog).cases if case.on_wafers]
    fit = WaferFit.of(logs, device, catalog)
    if not fit.runs:
        raise refused(path, "there is no log of a wafer to fit to")
    need_more_than(len(fit.free), len(fit.runs), path, "logs")
    result = fit.least_squares()
    fitted = fit.calibration(result.x, digits=4)
    signed = np.expm1(fit.log_errors(fitted))
    by_case = ", ".join(f"{run.case.id} {error:+.1%}" for run, error in zip(fit.runs, signed, strict=True))
    command = f"perfsim calibrate wafer {path.name} --device {device}"
    table = source or _source_of(path, "public-wafer-logs")
    record = partial(_fit_record, np.abs(signed), command=command, table=table)
    freedom = len(fit.runs) - len(fit.free)
    first = fit.free[0]
    notes = dict.fromkeys(fit.free, f"the same fit as {first}")
    notes[first] = (
        f"{freedom} residual degree(s) of freedom; a release shortens steps by "
        f"{-np.expm1(-fitted.growth_per_release):.1%}; errors {by_case}"
    )
    # Of the fitted logarithms, and of the growth.
    variances = np.diag(np.linalg.pinv(result.jac.T @ result.jac)) * 2.0 * result.cost / max(freedom, 1)
    errors = dict(zip(fit.free, np.round(np.sqrt(variances), 4).tolist(), strict=True))
    records = {name: record(standard_errors={name: errors[name]}, note=note) for name, note in notes.items()}
    return fitted.model_copy(update={"fit": records})
