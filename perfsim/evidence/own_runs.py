"""Calibrations from one's own runs: the scale of a cluster, and the critical batch.

The scale of a cluster is the geometric mean of measured over predicted step time, so the log errors of the
scaled cases sum to zero. It multiplies all step times of a cluster, so it cannot change which layout is best,
and it does not apply to another device.

The critical batch comes from steps or examples to the target (several rows of one batch are averaged), from
a log of the gradient noise scale tr(Sigma) / |G|^2, from one convergence case, or from MLPerf logs.
"""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median, stdev
from typing import Any

import numpy as np
from pydantic import ValidationError

from perfsim.base.arrays import Floats
from perfsim.base.errors import CatalogError, InputError, PerfsimError, Problem, refused_values
from perfsim.base.spec import Name
from perfsim.base.units import YAML_CONTEXT
from perfsim.catalog import LocatedMapping, default_catalog, parse_file
from perfsim.catalog.yaml_tree import Loc
from perfsim.convergence.critical_batch import HyperbolaFit
from perfsim.convergence.uncertain import Z_90
from perfsim.evidence.cases import CaseFile, ConvergenceFile
from perfsim.evidence.fitting import read_table, refused, rounded
from perfsim.interop import mllog
from perfsim.interop.formats import format_of, measured_document, read
from perfsim.interop.source import Source
from perfsim.specs.calibration import (
    ClusterCalibration,
    ConvergenceCalibration,
    FitRecord,
    MeasuredStep,
    RunKind,
)

_FEWEST = 2
"""Steps that a scale needs: a single one would not show its uncertainty."""
_PLAUSIBLE = (0.2, 5.0)
"""Range of a plausible scale; beyond it a unit or a machine is wrong."""


class MeasuredFile(CaseFile):
    """A file of measured steps of one cluster."""

    cluster: Name


def fit_cluster(measured: Sequence[Path], system: str = "") -> ClusterCalibration:
    """The scale of a cluster from one YAML file, or from logs of Megatron-LM that ran on `system`.

    One log with one batch size gives two cases, the halves of its run. Raises CatalogError for a malformed
    file, fewer than two cases, several devices, and for a case that cannot be predicted, each at its line,
    and InputError for a file that is no such log.
    """
    catalog = default_catalog()
    names = [path.name for path in measured]
    options = ["--system", system] if system else []
    one_run = False
    if system:
        file, problem, one_run = _of_logs(measured, system)
    elif len(measured) > 1 or format_of(measured[0]) == "megatron":
        message = "a log does not say on what it ran"
        raise refused(measured[0], message, "add --system NAME", line=0)
    else:
        file = parse_file(measured[0], MeasuredFile, catalog)
        problem = LocatedMapping.read(measured[0], "study", catalog).problem
    problems = []
    if len(file.cases) < _FEWEST:
        message = f"measured steps: {len(file.cases)}; at least {_FEWEST} are needed"
        help_text = "measure another model, batch or number of devices on the same cluster"
        problems.append(problem(("cases",), message, help_text))
    for name, count in Counter(case.id for case in file.cases).items():
        if count > 1:
            problems.append(problem(("cases",), f"{count} cases are called {name}"))
    devices = []
    predicted = []
    frameworks: dict[str, None] = {}
    for number, case in enumerate(file.cases):
        try:
            devices.append(case.system.spec(catalog).device.name)
            placed = case.placed(catalog)
            predicted.append(placed.evaluation.step_time_s)
            if (stack := placed.plan.job.runtime.stack) and not case.on_wafers:
                frameworks[stack.name] = None
        except PerfsimError as error:
            problems.append(problem(("cases", number), f"case {case.id} cannot be predicted: {error}"))
    if len(set(devices)) > 1:
        message = f"the cases are on {', '.join(dict.fromkeys(devices))}; a scale belongs to one device"
        problems.append(problem(("cases",), message, "make one file for each"))
    if problems:
        raise CatalogError(problems)
    ratios = [case.measured.step_time_s / own_s for case, own_s in zip(file.cases, predicted, strict=True)]
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
        frameworks=tuple(frameworks),
        cases=tuple(
            MeasuredStep(
                id=case.id,
                measured_s=rounded(case.measured.step_time_s, 6),
                predicted_s=rounded(predicted_s, 6),
                residual=round(ratio / scale - 1, 4),
            )
            for case, predicted_s, ratio in zip(file.cases, predicted, ratios, strict=True)
        ),
    )
    apes = [abs(scale / ratio - 1) for ratio in ratios]
    standard_error = stdev(math.log(ratio) for ratio in ratios) / math.sqrt(len(ratios))
    notes = [calibration.note] if calibration.is_wide else []
    notes += (
        ["the cases are intervals of one run, so the error is the error of its steps alone"]
        if one_run
        else []
    )
    record = FitRecord(
        command=f"perfsim calibrate steps {shlex.join([*names, *options])}",
        table=" ".join(names),
        points=len(apes),
        median_ape=round(median(apes), 4),
        p90_ape=round(max(apes), 4),
        standard_errors={"scale": round(standard_error, 4)},
        note="; ".join(notes),
    )
    return calibration.model_copy(update={"fit": {"scale": record}})


def _of_logs(logs: Sequence[Path], system: str) -> tuple[MeasuredFile, Callable[..., Problem], bool]:
    """The steps of logs, what complains about them, and whether all are of one run."""
    readings = [read(Source.read(log), "megatron")[1] for log in logs]
    documents = [measured_document(reading, system, alone=len(readings) == 1) for reading in readings]
    cluster = documents[0]["cluster"]
    runs = [case for document in documents for case in document["cases"]]
    cases = [{**case, "id": f"{cluster}-{number}"} for number, case in enumerate(runs, 1)]
    source = readings[0].settings.source

    def problem(_path: Loc, message: str, help_text: str = "") -> Problem:
        return source.problem(message, help_text, source.line_of("elapsed time per iteration"))

    try:
        document = {"schema": 1, "cluster": cluster, "cases": cases}
        file = MeasuredFile.model_validate(document, context=YAML_CONTEXT)
    except ValidationError as error:
        raise InputError([problem((), words) for words in refused_values(error.errors())]) from None
    settings = [{**case, "id": "", "measured": {}} for case in cases]
    return file, problem, all(given == settings[0] for given in settings)


# The critical batch.

_NOISE_FACTOR = 10.0
"""90 % band of a critical batch from gradient noise: in ten runs of McCandlish et al. 2018 (arXiv 1812.06162,
table 1) B_simple was 0.05 to 8 times the critical batch."""
_NOISE = ("tokens", "b_simple")
_COLUMNS = (_NOISE, ("batch", "examples"), ("batch", "steps"))
_HELP = "a CSV has the columns batch and steps (or examples), or tokens and b_simple"
_NO_LENGTH = "an example is taken to be one token: give --tokens-per-example if it has more"


def fit_convergence(
    paths: Sequence[Path], tokens_per_example: float, run_kind: RunKind = "pre-training"
) -> ConvergenceCalibration:
    """Critical batch and E_min of runs in files, in tokens; InputError or NotIdentifiableError says why."""
    scale = tokens_per_example
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"tokens of an example: {scale:g} is not a positive number")
    path = paths[0]
    unit = "examples"
    if len(paths) == 1 and path.suffix == ".csv":
        header = [name for name in read_table(path, ())[0] if name]
        names = next((names for names in _COLUMNS if set(names) <= set(header)), None)
        if names is None:
            raise refused(path, f"the columns are {', '.join(header)}", _HELP)
        points = [[float(row[name]) for name in names] for row in read_table(path, names)]
        if names == _NOISE:
            return _of_noise(np.array(points), path)
        if "steps" in names:
            points = [[batch, batch * steps] for batch, steps in points]
    else:
        points, unit = _points_of(paths)
    batches, examples, *_ = zip(*points, strict=True)
    try:  # whether the runs alone determine it; the expectation of B_crit then steadies the numbers
        HyperbolaFit.of(batches, examples, run_kind)
        fit = HyperbolaFit.of(batches, examples, run_kind, prior=True)
    except InputError as error:
        line = Source.read(path).line_of("points") or 1
        problems = [replace(problem, file=str(path), line=line) for problem in error.problems]
        raise type(error)(problems) from None
    # An end of the interval is at one standard error in the log; the band has 90 %.
    e_low, e_high = (fit.e_min * math.pow(end / fit.e_min, Z_90) for end in sorted(fit.e_min_interval))
    return ConvergenceCalibration(
        name=path.stem,
        description=f"E_min {fit.e_min:.4g} {unit} ({e_low:.4g} to {e_high:.4g}), B_crit {fit.b_crit:.4g} "
        f"{unit} ({fit.b_crit / fit.band_factor:.4g} to {fit.b_crit * fit.band_factor:.4g}), 90 %; "
        f"{len(fit.batches)} batches, residual {100 * fit.rms_log:.1f} %",
        e_min_tokens=rounded(fit.e_min * scale),
        b_crit_tokens=rounded(fit.b_crit * scale),
        band_factor=rounded(fit.band_factor),
        residual=rounded(fit.rms_log),
        batches_tokens=tuple(batch * scale for batch in fit.batches),
        run_kind=fit.run_kind,
        notes=(*fit.notes, *([_NO_LENGTH] if scale == 1.0 and unit == "examples" else [])),
    )


def _of_noise(rows: Floats, path: Path) -> ConvergenceCalibration:
    """The critical batch that a run with this gradient noise sees, harmonic over its tokens."""
    tokens, noise = rows.T
    if tokens.size < 2 or np.any(np.diff(tokens) <= 0) or np.any(noise <= 0):
        raise refused(path, "tokens must increase over two rows or more, b_simple be positive")
    # Progress at batch B costs 1 + B_simple / B times the least steps, so at a fixed batch the examples are
    # E_min (1 + B <1 / B_simple>): the mean of the reciprocal over the tokens counts.
    middles = 0.5 * (1.0 / noise[1:] + 1.0 / noise[:-1])
    b_crit = float((tokens[-1] - tokens[0]) / (middles * np.diff(tokens)).sum())
    return ConvergenceCalibration(
        name=path.stem,
        description=f"E_min not identifiable from gradient noise: give tokens in the recipe. B_crit "
        f"{b_crit:.4g} tokens ({b_crit / _NOISE_FACTOR:.4g} to {b_crit * _NOISE_FACTOR:.4g}), 90 %; "
        f"{tokens.size} values of B_simple, {noise.min():.4g} to {noise.max():.4g}",
        b_crit_tokens=rounded(b_crit),
        band_factor=_NOISE_FACTOR,
        notes=("from gradient noise, which tells the critical batch within a factor of ten",),
    )


def _points_of(paths: Sequence[Path]) -> tuple[list[Any], str]:
    """Batch and examples of logs of MLPerf Training, or of a file with one convergence case; their unit."""
    sources = [Source.read(path) for path in paths]
    if all(mllog.TOOL.recognise(source.text) for source in sources):
        readings = [mllog.TOOL.read(source, source.text) for source in sources]
        points = [point for reading in readings for point in (reading.points or {})["cases"][0]["points"]]
        return [point[:2] for point in points], "samples"
    if len(paths) > 1 or paths[0].suffix == ".csv":
        raise refused(paths[0], "several files have to be logs of MLPerf Training", _HELP, line=0)
    cases = parse_file(paths[0], ConvergenceFile).cases
    if len(cases) != 1:
        raise refused(paths[0], f"{len(cases)} cases; one benchmark with one recipe is expected")
    return [point[:2] for point in cases[0].points], cases[0].unit or "examples"
