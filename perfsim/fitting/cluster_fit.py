"""One scale for a cluster, fitted to two or three steps that its owner measured; kept apart from the device.

The scale is the geometric mean of measured over predicted step time, so the log errors of the scaled cases
sum to zero. It multiplies all step times of a cluster, so it cannot change which layout is best, and it
does not apply to another device.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean, median, stdev
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from perfsim.calibration import ClusterCalibration, FitRecord, MeasuredStep
from perfsim.catalog import Catalog, default_catalog, load_mapping, parse_file
from perfsim.catalog.resolve import Loc
from perfsim.errors import CatalogError, InputError, PerfsimError, Problem, refused_values
from perfsim.fitting.fit_tables import rounded
from perfsim.interop.foreign.formats import read
from perfsim.interop.foreign.measured import measured_document
from perfsim.interop.foreign.source import Source
from perfsim.prediction.cluster import spread_warning, wide
from perfsim.published.cases import StepCase, case_system, repeated
from perfsim.published.plans import predict_s
from perfsim.sizes import MOST_CASES
from perfsim.spec import Name, Spec
from perfsim.units import YAML_CONTEXT

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
    predicted, problems, devices = [], [], []
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
        note=spread_warning(calibration) if wide(calibration) else "",
    )
    return calibration.model_copy(update={"fit": {"scale": record}})
