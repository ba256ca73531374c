"""Fits the constants that no micro-benchmark shows to whole steps, and the scale of a user's cluster.

A constant belongs to a framework (host times, exposed communication, lost time of a pass), to the network, to
the code of fused attention, or to the calibration of a GPU (sustained ceilings); all runs that have its owner
share it. What stands under `assumed` of its owner is not fitted. The fit is robust least squares on log time
over all scored cases, with equal weight per family. Graphs are written once and priced again in each
iteration.

The scale of a cluster is the geometric mean of measured over predicted step time, so the log errors of the
scaled cases sum to zero. It multiplies all step times of a cluster, so it cannot change which layout is best,
and it does not apply to another device.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean, median, stdev
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from perfsim.base.arrays import Floats
from perfsim.base.errors import CatalogError, InputError, PerfsimError, Problem, refused_values
from perfsim.base.sizes import MOST_CASES, MOST_DEVICES
from perfsim.base.spec import Name, Spec
from perfsim.base.units import YAML_CONTEXT
from perfsim.catalog import Catalog, default_catalog, load_mapping, parse_file
from perfsim.catalog.reader import Loc
from perfsim.costs.gpu import GpuCosts
from perfsim.evidence.cases import StepCase, case_system, read_cases
from perfsim.evidence.plans import PlacedCase, evaluate_case, place_case
from perfsim.evidence.tables import (
    Loss,
    family_weight,
    fit_record,
    need_more_than,
    rounded,
    scipy,
    source_of,
)
from perfsim.interop.formats import measured_document, read
from perfsim.interop.source import Source
from perfsim.machines.gpu_cluster import gpu_plan
from perfsim.network import FatTree
from perfsim.prediction.run import Step
from perfsim.specs.calibration import (
    Calibration,
    ClusterCalibration,
    CollectiveCalibration,
    FitRecord,
    FrameworkCalibration,
    GpuCalibration,
    MeasuredStep,
)

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


@dataclass(frozen=True)
class _Owners:
    """The calibrations that a run's constants belong to."""

    framework: FrameworkCalibration
    network: CollectiveCalibration
    device: GpuCalibration

    @classmethod
    def of(cls, placed: PlacedCase) -> _Owners:
        """Those of a case. Raises InputError for a case that runs on no calibrated GPU cluster."""
        system = gpu_plan(placed.plan).topology.system
        framework = placed.plan.job.runtime.framework
        network = system.node.nic.calibration
        device = system.device.calibration
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
            owner = self.network
            holder = self.network.network
        assumed = field in owner.assumed or f"network.{field}" in owner.assumed
        return None if assumed else getattr(holder, field, None) or None

    def changed(self, constants: Constants) -> _Owners:
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
        return _Owners(
            self.framework.model_copy(update=of(OF_FRAMEWORK)),
            self.network.model_copy(update={"network": between}),
            self.device.model_copy(update=of((*OF_KERNEL, *OF_DEVICE))),
        )


@dataclass(frozen=True)
class StepProblem:
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
        return family_weight([placed.case.family for placed in self.cases])

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
        constants = self.constants(logs)
        names = list(self.start)
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
    source: str = "",
) -> list[Calibration]:
    """Calibrations with constants fitted to the scored cases of files, all or those on `device`; needs scipy.

    `device_only` fits constants of devices alone, for a device with too few runs; `only` these fields.
    Where these are of experts alone, the runs are those with experts. Raises InputError for an unknown field.
    """
    if unknown := [field for field in only if field not in FIELDS]:
        raise InputError(f"{unknown[0]} is no constant of a fit; there are {', '.join(FIELDS)}")
    optimize = scipy("optimize")
    catalog = default_catalog()
    sparse = bool(only) and set(only) <= set(OF_EXPERTS)
    cases = [placed for path in paths for placed in _cases(path, device, catalog, most_devices, sparse)]
    problem = StepProblem(tuple(cases), tuple(only) or (OF_DEVICE if device_only else FIELDS))
    runs = (placed.case for placed in cases)
    distinct = {repr((run.system, run.model, run.strategy, run.parallel, run.training)) for run in runs}
    need_more_than(len(problem.start), len(distinct), paths[0], "different runs on GPUs")
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
    command = f"perfsim calibrate framework {' '.join(path.name for path in paths)}{options}"
    record = record_of_fit(result, problem.weight, list(problem.start), command)
    record = record.model_copy(update={"table": source or source_of(paths[0], record.table)})
    return list(_recorded(problem, result.x, record))


def _cases(
    path: Path, device: str | None, catalog: Catalog, most_devices: int, sparse: bool
) -> list[PlacedCase]:
    """The scored cases of a file on GPUs: all, or those whose device has the calibration of `device`.

    `sparse` leaves only runs of models with experts.
    """
    wanted = None
    if device is not None:
        calibration = catalog.device(device).calibration
        if not isinstance(calibration, GpuCalibration):
            raise InputError(f"{device} has no GPU calibration")
        wanted = calibration.name
    cases = []
    for case in read_cases(path, StepCase, catalog).cases:
        if (
            not case.scored
            or case.system.num_devices > most_devices
            or (sparse and case.model.experts is None)
        ):
            continue
        try:
            constants = case_system(case, catalog).device.calibration
            if isinstance(constants, GpuCalibration) and wanted in (None, constants.name):
                cases.append(place_case(case, catalog))
        except PerfsimError:  # a run that cannot be planned determines nothing
            continue
    if not cases:
        text = f"no scored case runs on a device with calibration {wanted or 'of a GPU'}"
        raise InputError([Problem(text, str(path), 1)])
    return cases


def record_of_fit(result: Any, weight: Floats, names: Sequence[str], command: str) -> FitRecord:
    """The record of a soft L1 fit; a constant on which no run depends has no standard error.

    SciPy returns the Jacobian times (1 + z)^(-3/4), z = (residual / scale)^2.
    """
    z = (result.fun / (OUTLIER * float(weight.mean()))) ** 2
    jacobian = result.jac * (1 + z)[:, None] ** 0.75
    loss = Loss(result.fun / np.sqrt(1 + z), (1 + z) ** -1.5, np.arange(len(z)))
    errors = dict(zip(names, loss.errors(jacobian).tolist(), strict=True))
    matters = np.abs(result.jac).max(axis=0) > 0.0
    idle = [name for name, moved in zip(names, matters, strict=True) if not moved]
    kept = f"; kept, for no run depends on them: {', '.join(idle)}" if idle else ""
    return fit_record(
        np.abs(np.expm1(result.fun / weight)),
        command=command,
        table="public-gpu-runs",
        standard_errors={name: round(error, 4) for name, error in errors.items() if name not in idle},
        note="soft L1 on log time, one weight a family; residuals over the cases; errors by the sandwich"
        + kept,
    )


def _recorded(problem: StepProblem, fitted: Floats, record: FitRecord) -> Iterator[Calibration]:
    """The calibrations of the cases with new constants and the record of their fit."""
    moved = {
        name: rounded(value)
        for name, value in problem.constants(fitted).items()
        if name in record.standard_errors
    }
    done: set[str] = set()
    for placed in problem.cases:
        owners = _Owners.of(placed)
        new = owners.changed(moved)
        for owner, prefix, fields in (
            (new.framework, "", OF_FRAMEWORK),
            (new.network, "network.", OF_NETWORK),
            (new.device, "", (*OF_KERNEL, *OF_DEVICE)),
        ):
            names = {field: owners.constant(field) for field in fields if owners.constant(field) in moved}
            if isinstance(owner, FrameworkCalibration) and owner.launcher:
                names = {field: name for field, name in names.items() if field not in OF_HOST}
            if not names or owner.name in done:
                continue
            done.add(owner.name)
            errors = {field: record.standard_errors[name] for field, name in names.items()}
            alone = record.model_copy(update={"standard_errors": errors})
            fits = {**owner.fit, **{f"{prefix}{field}": alone for field in names}}
            yield owner.model_copy(update={"fit": fits})


def step_with(placed: PlacedCase, constants: Constants) -> Step:
    """The step of a placed case with these constants."""
    owners = _Owners.of(placed).changed(constants)
    system = gpu_plan(placed.plan).topology.system
    nic = system.node.nic.model_copy(update={"calibration": owners.network})
    system = system.model_copy(
        update={
            "device": system.device.model_copy(update={"calibration": owners.device}),
            "node": system.node.model_copy(update={"nic": nic}),
        }
    )
    recipe = placed.plan.job.recipe.ran_with(framework=owners.framework)
    return placed.step(GpuCosts(FatTree(system, placed.plan.topology.num_devices), recipe))


def predict_with(placed: PlacedCase, constants: Constants) -> float:
    """Step time of a placed case with these constants: the longest path, slowed as recorded."""
    return placed.slowed * step_with(placed, constants).run(contention=False).step_time_s


def gpu_calibration(placed: PlacedCase) -> GpuCalibration:
    """The calibration of a case's device. Raises InputError unless it is a calibrated GPU."""
    return _Owners.of(placed).device


def recorded_constants(placed: PlacedCase) -> dict[str, float]:
    """The catalogue's values of the constants of a case that may be fitted."""
    owners = _Owners.of(placed)
    values = {owners.constant(field): owners.value(field) for field in FIELDS}
    return {name: value for name, value in values.items() if value is not None}


Complaint = Callable[..., Problem]
"""Makes a problem from the path of a value, a message and a help."""
_FEWEST = 2
"""Steps that a scale needs: a single one would not show its uncertainty."""
_PLAUSIBLE = (0.2, 5.0)
"""Range of a plausible scale; beyond it a unit or a machine is wrong."""


class MeasuredCase(StepCase):
    """A step that the user measured, as in `studies/validation/`; family and evidence are optional."""

    family: str = "measured"
    evidence: Literal["A", "B", "C"] = "A"


class MeasuredFile(Spec):
    """A file of measured steps of one cluster."""

    schema_version: Literal[1] = Field(alias="schema")
    cluster: Name
    cases: Annotated[tuple[MeasuredCase, ...], Field(max_length=MOST_CASES)]


def fit_cluster(path: Path, catalog: Catalog | None = None) -> ClusterCalibration:
    """The scale of a cluster from a file of measured steps.

    Raises CatalogError for a malformed file, fewer than two cases, several devices, and for a case that
    cannot be predicted, each at its line.
    """
    catalog = catalog or default_catalog()
    file = parse_file(path, MeasuredFile, catalog)
    command = f"perfsim calibrate steps {shlex.quote(path.name)}"
    return _scaled(file, command, path.name, load_mapping(path, catalog).problem, catalog)


def fit_logs(paths: Sequence[Path], system: str, catalog: Catalog | None = None) -> ClusterCalibration:
    """The scale of a cluster from logs of Megatron-LM that ran on `system`.

    One log with one batch size gives two cases, the halves of its run. Raises InputError for a file that is
    no such log, and for a run that cannot be predicted.
    """
    readings = [read(Source.read(path), "megatron")[1] for path in paths]
    documents = [measured_document(reading, system, alone=len(readings) == 1) for reading in readings]
    cluster = documents[0]["cluster"]
    runs = [case for document in documents for case in document["cases"]]
    cases = [{**case, "id": f"{cluster}-{number}"} for number, case in enumerate(runs, 1)]
    source = readings[0].settings.source

    def problem(_place: Loc, message: str, help_text: str = "") -> Problem:
        return source.problem(message, help_text, source.line_of("elapsed time per iteration"))

    try:
        document = {"schema": 1, "cluster": cluster, "cases": cases}
        file = MeasuredFile.model_validate(document, context=YAML_CONTEXT)
    except ValidationError as error:
        raise InputError([problem((), words) for words in refused_values(error.errors())]) from None
    names = " ".join(path.name for path in paths)
    shown = " ".join(shlex.quote(path.name) for path in paths)
    command = f"perfsim calibrate steps {shown} --system {shlex.quote(system)}"
    one_run = all(
        {**case, "id": "", "measured": {}} == {**cases[0], "id": "", "measured": {}} for case in cases
    )
    note = "the cases are intervals of one run, so the error is that of its steps alone" if one_run else ""
    return _scaled(file, command, names, problem, catalog or default_catalog(), note)


def _scaled(
    file: MeasuredFile, command: str, table: str, problem: Complaint, catalog: Catalog, note: str = ""
) -> ClusterCalibration:
    """The scale of a validated file; `problem` makes a complaint about one of its values."""
    counts = Counter(case.id for case in file.cases)
    problems = [
        problem(("cases",), f"{count} cases are called {name}") for name, count in counts.items() if count > 1
    ]
    if len(file.cases) < _FEWEST:
        message = f"measured steps: {len(file.cases)}; at least {_FEWEST} are needed"
        help_text = "measure another model, batch or number of devices on the same cluster"
        problems = [problem(("cases",), message, help_text), *problems]
    if problems:
        raise CatalogError(problems)
    predicted = []
    devices = []
    for number, case in enumerate(file.cases):
        try:
            devices.append(case_system(case, catalog).device.name)
            predicted.append(evaluate_case(case, catalog).step_time_s)
        except PerfsimError as error:
            problems.append(problem(("cases", number), f"case {case.id} cannot be predicted: {error}"))
    if len(set(devices)) > 1:
        message = f"the cases are on {', '.join(dict.fromkeys(devices))}; a scale belongs to one device"
        problems.append(problem(("cases",), message, "make one file for each"))
    if problems:
        raise CatalogError(problems)
    measured = [case.measured.step_time_s for case in file.cases]
    ratios = [real_s / predicted_s for real_s, predicted_s in zip(measured, predicted, strict=True)]
    scale = rounded(geometric_mean(ratios))
    low, high = _PLAUSIBLE
    if not low <= scale <= high:
        message = f"the steps take {scale:g} times as long as predicted; a scale is {low:g} to {high:g}"
        help_text = "check step_time_s (in seconds), the device and the number of devices"
        raise CatalogError([problem(("cases",), message, help_text)])
    calibration = ClusterCalibration(
        name=file.cluster,
        description=f"Measured steps of {file.cluster} over those predicted for {devices[0]}",
        device=devices[0],
        scale=scale,
        cases=tuple(
            MeasuredStep(
                id=case.id,
                measured_s=rounded(real_s, 6),
                predicted_s=rounded(predicted_s, 6),
                residual=round(real_s / predicted_s / scale - 1, 4),
            )
            for case, real_s, predicted_s in zip(file.cases, measured, predicted, strict=True)
        ),
    )
    apes = [abs(scale / ratio - 1) for ratio in ratios]
    standard_error = stdev(math.log(ratio) for ratio in ratios) / math.sqrt(len(ratios))
    spread = calibration.spread_warning if calibration.is_wide else ""
    record = FitRecord(
        command=command,
        table=table,
        points=len(apes),
        median_ape=round(median(apes), 4),
        p90_ape=round(max(apes), 4),
        standard_errors={"scale": round(standard_error, 4)},
        note="; ".join(filter(None, (spread, note))),
    )
    return calibration.model_copy(update={"fit": {"scale": record}})
