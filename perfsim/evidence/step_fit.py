"""One scale for a cluster, fitted to two or three steps that its owner measured; kept apart from the device.

The scale is the geometric mean of measured over predicted step time, so the log errors of the scaled cases
sum to zero. It multiplies all step times of a cluster, so it cannot change which layout is best, and it
does not apply to another device.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean, median, stdev
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from perfsim.base.errors import CatalogError, InputError, PerfsimError, Problem, refused_values
from perfsim.base.errors import Problem as Wrong
from perfsim.base.sizes import MOST_CASES, MOST_DEVICES
from perfsim.base.spec import Name, Spec
from perfsim.base.units import YAML_CONTEXT
from perfsim.catalog import Catalog, default_catalog, load_mapping, parse_file
from perfsim.catalog.reader import Loc
from perfsim.costs.gpu import GpuCosts
from perfsim.evidence.cases import StepCase, case_system, repeated, step_cases
from perfsim.evidence.plans import PlacedCase, place_cases, predict_s
from perfsim.evidence.tables import need_more_than, rounded, scipy_optimize, source_of
from perfsim.interop.formats import measured_document, read
from perfsim.interop.source import Source
from perfsim.machines.gpu_cluster import gpu_plan
from perfsim.network import FatTree
from perfsim.prediction.run import Step
from perfsim.specs.calibration import (
    MOST_STANDARD_ERROR,
    Calibration,
    ClusterCalibration,
    CollectiveCalibration,
    FitRecord,
    FrameworkCalibration,
    GpuCalibration,
    MeasuredStep,
)
from perfsim.specs.hardware import GpuClusterSpec

# Standard errors of constants fitted to measurements.
#
# The sandwich estimator of a robust fit, H^-1 (sum over clusters of squared scores) H^-1, times c / (c - p)
# (Huber 1967, White 1980; errors within a cluster are correlated: Liang and Zeger 1986). A constant whose
# relative standard error exceeds a third is not determined: it is held fixed, which is an assumption, and
# the
# others are estimated without it. A constant that decides an argmin has no derivative; `profile` compares
# losses instead.

Array = NDArray[np.float64]

_STEP = 1e-4
_WIDTHS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.33)


@dataclass(frozen=True)
class Account:
    """Relative standard errors of determined constants, and the reasons for the values of the others."""

    errors: dict[str, float] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)

    def with_prefix(self, prefix: str) -> Account:
        """The account with the reasons under their paths in a calibration file."""
        return Account(self.errors, {f"{prefix}.{name}": reason for name, reason in self.assumed.items()})


@dataclass(frozen=True)
class Loss:
    """A loss at its optimum, by row: slope and curvature in the log error, and the cluster."""

    slope: Array
    curvature: Array
    cluster: NDArray[np.intp]

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return int(self.cluster.max()) + 1

    def summed(self, scores: Array) -> Array:
        """Rows of `scores` summed over each cluster."""
        total = np.zeros((self.clusters, scores.shape[1]))
        np.add.at(total, self.cluster, scores)
        return total


def cluster_of(*columns: Array) -> NDArray[np.intp]:
    """The same number for rows that are equal in all columns."""
    _, index = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return np.asarray(index.ravel(), dtype=np.intp)


def log_jacobian(predict: Callable[[Array], Array], logs: Array) -> Array:
    """Derivative of log seconds by log constant, by central differences; one column per constant."""
    columns = []
    for axis in range(logs.size):
        shift = np.zeros(logs.size)
        shift[axis] = _STEP
        columns.append((predict(logs + shift) - predict(logs - shift)) / (2 * _STEP))
    return np.stack(columns, axis=1)


def account(names: Sequence[str], jacobian: Array, loss: Loss) -> Account:
    """Standard errors by the sandwich estimator; constants above a third are held, the worst first."""
    running = [axis for axis in range(len(names)) if np.abs(jacobian[:, axis]).max() > 1e-9]
    idle = set(range(len(names))) - set(running)
    assumed = {
        names[axis]: "no row of the table depends on it: near where the fit started" for axis in sorted(idle)
    }
    while running:
        errors = _sandwich(jacobian[:, running], loss)
        worst = int(np.argmax(errors))
        if errors[worst] < MOST_STANDARD_ERROR:
            break
        share = "over 10 times" if errors[worst] > 10 else f"{errors[worst]:.0%} of"
        # One at a time: holding one constant may determine another that was correlated with it.
        name = names[running.pop(worst)]
        assumed[name] = (
            f"not determined by the table (standard error {share} the value): held where the fit ended"
        )
    determined = _sandwich(jacobian[:, running], loss).tolist() if running else []
    return Account(
        {names[axis]: rounded(error, 2) for axis, error in zip(running, determined, strict=True)}, assumed
    )


def profile(losses: Callable[[float], Array], cluster: NDArray[np.intp]) -> float:
    """The log step of a constant at which its loss has grown by one standard error of that growth.

    `losses` gives the rows' losses for a step; the wider of both directions counts, inf beyond a third.
    """
    best = losses(0.0)
    return max(_one_way(losses, best, cluster, sign) for sign in (1.0, -1.0))


def _one_way(losses: Callable[[float], Array], best: Array, cluster: NDArray[np.intp], sign: float) -> float:
    for width in _WIDTHS:
        growth = np.bincount(cluster, losses(sign * width) - best)
        if growth.sum() > np.sqrt((growth**2).sum()) > 0:
            return width
    return float("inf")


def _sandwich(jacobian: Array, loss: Loss) -> Array:
    scores = loss.summed(jacobian * loss.slope[:, None])
    inverse = np.linalg.pinv((jacobian * loss.curvature[:, None]).T @ jacobian, hermitian=True)
    spare = max(loss.clusters - jacobian.shape[1], 1)
    covariance = inverse @ (scores.T @ scores) @ inverse * loss.clusters / spare
    return np.asarray(np.sqrt(np.diag(covariance)))


# Fits the global constants that no micro-benchmark shows to whole published steps.
#
# A constant belongs to a framework (host times, exposed communication, lost time of a pass), to the
# network, to
# the code of fused attention, or to the calibration of a GPU (sustained ceilings); all runs that have its
# owner
# share it. What stands under `assumed` of its owner is not fitted. Robust least squares on log time over
# all
# scored cases, with equal weight per family. Graphs are written once and priced again in each iteration.

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
        system = _cluster(placed)
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
    problem = StepProblem(tuple(cases), tuple(only) or (OF_DEVICE if device_only else FIELDS))
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


def _recorded(problem: StepProblem, fitted: Floats, record: FitRecord) -> Iterator[Calibration]:
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
    recipe = placed.plan.job.recipe
    system = _cluster(placed)
    nic = system.node.nic.model_copy(update={"calibration": owners.network})
    system = system.model_copy(
        update={
            "device": system.device.model_copy(update={"calibration": owners.device}),
            "node": system.node.model_copy(update={"nic": nic}),
        }
    )
    costs = GpuCosts(
        FatTree(system, placed.plan.topology.num_devices),
        recipe.ran_with(framework=owners.framework),
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


Place = Callable[..., Problem]
"""Makes a problem from the path of a value, a message and a help."""

FEWEST = 2
"""Steps that a scale needs: a single one would not show its uncertainty."""

PLAUSIBLE = (0.2, 5.0)
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
    return _fitted(file, path.name, load_mapping(path, catalog).problem, catalog)


def fit_logs(paths: Sequence[Path], system: str, catalog: Catalog | None = None) -> ClusterCalibration:
    """The scale of a cluster from logs of Megatron-LM that ran on `system`.

    One log with one batch size gives two cases, the halves of its run. Raises InputError for a file that is
    no such log, and for a run that cannot be predicted.
    """
    catalog = catalog or default_catalog()
    readings = [read(Source.read(path), "megatron")[1] for path in paths]
    documents = [measured_document(reading, system, alone=len(readings) == 1) for reading in readings]
    cases = [case for document in documents for case in document["cases"]]
    for number, case in enumerate(cases, 1):
        case["id"] = f"{documents[0]['cluster']}-{number}"
    data = {"schema": 1, "cluster": documents[0]["cluster"], "cases": cases}
    source = readings[0].settings.source

    def problem(_place: Loc, message: str, help_text: str = "") -> Problem:
        return source.problem(message, help_text, source.line_of("elapsed time per iteration"))

    try:
        file = MeasuredFile.model_validate(data, context=YAML_CONTEXT)
    except ValidationError as error:
        raise InputError([problem((), words) for words in refused_values(error.errors())]) from None

    calibration = _fitted(file, " ".join(path.name for path in paths), problem, catalog)
    record = calibration.fit["scale"]
    shown = " ".join(shlex.quote(path.name) for path in paths)
    note = (
        "the cases are intervals of one run, so the error is that of its steps alone" if _alike(cases) else ""
    )
    record = record.model_copy(
        update={
            "command": f"perfsim calibrate steps {shown} --system {shlex.quote(system)}",
            "note": "; ".join(filter(None, (record.note, note))),
        }
    )
    return calibration.model_copy(update={"fit": {"scale": record}})


def _alike(cases: Sequence[dict[str, Any]]) -> bool:
    """Whether all cases are of the same run."""
    return all({**case, "id": "", "measured": {}} == {**cases[0], "id": "", "measured": {}} for case in cases)


def _fitted(file: MeasuredFile, name: str, problem: Place, catalog: Catalog) -> ClusterCalibration:
    """The scale of a validated file; `problem` makes a complaint about one of its values."""
    _check(file, problem)
    predicted = []
    problems = []
    devices = []
    for number, case in enumerate(file.cases):
        try:
            devices.append(case_system(case, catalog).device.name)
            predicted.append(predict_s(case, catalog))
        except PerfsimError as error:
            message = f"case {case.id} cannot be predicted: {error}"
            problems.append(problem(("cases", number), message))
    if len(set(devices)) > 1:
        message = f"the cases are on {', '.join(dict.fromkeys(devices))}; a scale belongs to one device"
        problems.append(problem(("cases",), message, "make one file for each"))
    if problems:
        raise CatalogError(problems)
    ratios = [case.measured.step_time_s / own for case, own in zip(file.cases, predicted, strict=True)]
    scale = rounded(geometric_mean(ratios))
    low, high = PLAUSIBLE
    if not low <= scale <= high:
        message = f"the steps take {scale:g} times as long as predicted; a scale is {low:g} to {high:g}"
        help_text = "check step_time_s (in seconds), the device and the number of devices"
        raise CatalogError([problem(("cases",), message, help_text)])
    return _fit(file, name, devices[0], predicted, scale)


def _check(file: MeasuredFile, problem: Place) -> None:
    problems: list[Problem] = []
    if len(file.cases) < FEWEST:
        message = f"measured steps: {len(file.cases)}; at least {FEWEST} are needed"
        help_text = "measure another model, batch or number of devices on the same cluster"
        problems.append(problem(("cases",), message, help_text))
    problems += [problem(("cases",), text) for text in repeated(case.id for case in file.cases)]
    if problems:
        raise CatalogError(problems)


def _fit(
    file: MeasuredFile, name: str, device: str, predicted: Sequence[float], scale: float
) -> ClusterCalibration:
    measured = [case.measured.step_time_s for case in file.cases]
    ratios = [real_s / own for real_s, own in zip(measured, predicted, strict=True)]
    steps = tuple(
        MeasuredStep(
            id=case.id,
            measured_s=rounded(real_s, 6),
            predicted_s=rounded(predicted_s, 6),
            residual=round(real_s / predicted_s / scale - 1, 4),
        )
        for case, real_s, predicted_s in zip(file.cases, measured, predicted, strict=True)
    )
    apes = sorted(
        abs(predicted_s * scale / real_s - 1) for real_s, predicted_s in zip(measured, predicted, strict=True)
    )
    error = stdev(math.log(ratio) for ratio in ratios) / math.sqrt(len(ratios))
    calibration = ClusterCalibration(
        name=file.cluster,
        description=f"Measured steps of {file.cluster} over those predicted for {device}",
        device=device,
        scale=scale,
        cases=steps,
    )
    record = FitRecord(
        command=f"perfsim calibrate steps {shlex.quote(name)}",
        table=name,
        points=len(steps),
        median_ape=round(median(apes), 4),
        p90_ape=round(apes[-1], 4),
        standard_errors={"scale": round(error, 4)},
        note=calibration.spread_warning if calibration.is_wide else "",
    )
    return calibration.model_copy(update={"fit": {"scale": record}})
