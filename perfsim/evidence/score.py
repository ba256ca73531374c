"""Predicts published runs and compares them with a baseline of one constant (README of the cases).

The 90 % band of a run of a family on record knows nothing of it: constants and width are those that were
fitted without the family. All other runs, as a user's own, have their usual prediction and the width of the
whole record. Nothing is fitted here.

Convergence cases have benchmarks at several batch sizes, of which each is predicted from the others. The
baseline is a constant E, the geometric mean of the same points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.base.errors import LimitError, PerfsimError, attempt
from perfsim.base.groups import listed
from perfsim.base.units import GIB
from perfsim.catalog import Catalog, LocatedMapping, default_catalog
from perfsim.convergence.critical_batch import HyperbolaFit
from perfsim.evidence.cases import CaseRows, ConvergenceCase, PlacedCase, StepCase, mapped
from perfsim.evidence.fitting import weighted_quantile
from perfsim.evidence.production import ScalingFile
from perfsim.evidence.step_fit import GpuRun, wafer_step_s
from perfsim.prediction.bands import Accuracy, Traits, left_out_of, recorded_errors
from perfsim.prediction.question import Question
from perfsim.specs.calibration import WaferCalibration
from perfsim.work.counts import model_flop_per_step, recompute_flop_per_step

_FEWEST_LAYOUTS = 4
"""Least number of layouts of a sweep for a rank correlation."""
_OF_MEMORY = {"median_ape": "median", "p90_ape": "p90", "mape": "mean"}
"""Keys of a summary as the summary of peak memory has them."""


@dataclass(frozen=True)
class CaseBand:
    """The band of a case; `left_out_s` is its centre where the family is on record."""

    low_s: float
    high_s: float
    left_out_s: float | None = None
    """Step time predicted with constants that were fitted without the family or the release."""
    unlikeness: float = 0.0
    """Points of unlikeness to the most similar of the families that may be used."""

    @classmethod
    def of(cls, placed: PlacedCase) -> CaseBand | None:
        """The band of a predicted case; None where its group cannot be left out of it."""
        case = placed.case
        run = placed.evaluation
        kind = run.plan.system.kind
        families = {family["family"] for entry in recorded_errors() for family in entry["families"]}
        groups = [case.trained] if case.trained else [f"{case.family}, {case.setting}", case.family]
        known = map(partial(left_out_of, kind), groups if case.family in families else [])
        record = next(filter(None, known), None)
        try:
            left_out_s = None if record is None else _left_out_s(placed, record)
        except PerfsimError:
            return None
        without = record["group"] if record and left_out_s else ""
        accuracy = Accuracy.of(run.plan, run.trace.hidden_share, without=without)
        centre_s = left_out_s or run.step_time_s
        factor = 1.0 + accuracy.step_time_error
        return cls(centre_s / factor, centre_s * factor, left_out_s, accuracy.unlikeness)


def _left_out_s(placed: PlacedCase, record: Mapping[str, Any]) -> float | None:
    """Step time by a fit without a group, on GPUs the longest path as there; None for other constants."""
    calibration = placed.plan.system.device.calibration
    constants = record["constants"]
    if isinstance(calibration, WaferCalibration):
        if calibration.name != record["calibration"]:
            return None
        return wafer_step_s(placed, calibration.model_copy(update=dict(constants)))
    if calibration is None:
        return None
    run = GpuRun.of(placed)
    return run.step_s(constants) if run.recorded.keys() <= constants.keys() else None


_MISSED = 0.1
"""The share of runs that a band may miss."""


@dataclass(frozen=True)
class Scored:
    """One case with its prediction; `predicted_s` is None if it failed."""

    id: str
    """Name of the run."""
    family: str
    """Runs of one source and kind."""
    evidence: str
    """A or B: scored; C: shown only."""
    sweep: str | None
    layout: str
    measured_s: float
    """Measured step time; NaN for a row that could not be read."""
    predicted_s: float | None
    """Predicted step time; None where it failed."""
    asked_s: float | None = None
    """Predicted step time with the runtime that users get who name none; None where it failed."""
    asked_band: CaseBand | None = None
    failure: str = ""
    band: CaseBand | None = None
    hidden_communication: float | None = None
    """Share of the step that hides communication."""
    peak_gib: float | None = None
    """Predicted peak memory of the fullest device, where the case prints a measured one."""
    traits: Traits | None = None
    """What makes it like other runs; None if it cannot be planned."""
    ideal_s: float | None = None
    """Step time at the full peak of every device, with recompute; None for a case that contradicts itself."""
    left_out: str = ""
    """The group of runs that the fit behind `predicted_s` was without; empty if it had all."""

    @classmethod
    def of(cls, case: StepCase, predicted_s: float | None) -> Scored:
        layout = repr((case.parallel, case.training.micro_batch_size, case.recompute))
        measured_s = case.measured.step_time_s
        return cls(case.id, case.family, case.evidence, case.sweep, layout, measured_s, predicted_s)

    @property
    def error(self) -> float | None:
        """Relative error: predicted over measured, minus 1."""
        return None if self.predicted_s is None else self.predicted_s / self.measured_s - 1.0

    @property
    def log_error(self) -> float:
        """log(predicted / measured); NaN if it failed."""
        return float(np.log((self.predicted_s or np.nan) / self.measured_s))

    @property
    def counts(self) -> bool:
        """Whether it is scored; evidence C is only predicted and shown."""
        return self.evidence in ("A", "B")

    @staticmethod
    def scores(runs: Iterable[Scored]) -> dict[str, Any]:
        """The figures of the runs that count."""
        return _figures(run.error for run in runs if run.counts)

    @staticmethod
    def of_families(runs: Iterable[Scored]) -> dict[str, dict[str, Any]]:
        by_family = listed((run.family, run) for run in runs)
        return {family: Scored.scores(members) for family, members in by_family.items()}

    @staticmethod
    def of_classes(runs: Sequence[Scored]) -> dict[str, dict[str, Any]]:
        """The scores and bands of each class of runs and of their parents; empty if all have one class."""
        known = [(run, run.traits.classes) for run in runs if run.counts and run.traits is not None]
        by_class = listed((name, run) for run, classes in known for name in classes)
        names = sorted(by_class, key=lambda name: (", " in name, name))
        # One class and its parent say what the summary says.
        return {name: _with_bands(by_class[name]) for name in names if len(by_class) > 2}

    @staticmethod
    def one_constant(runs: Sequence[Scored]) -> float:
        """The e that minimises the mean of |ideal / e / measured - 1| over runs with ideal times."""
        if not runs:
            return 1.0
        # In 1/e it is piecewise linear: the median of measured / ideal with the weights ideal / measured.
        ratios = np.array([run.measured_s / (run.ideal_s or math.nan) for run in runs])
        return 1.0 / weighted_quantile(ratios, 1.0 / ratios, 0.5)


def _figures(errors: Iterable[float | None]) -> dict[str, Any]:
    """Number, median, p90 and mean of |error|, None counting as 1, and the mean of signed ones as `bias`."""
    counted = list(errors)
    signed = [error for error in counted if error is not None]
    if not counted:
        return {"n": 0, "median_ape": None, "p90_ape": None, "mape": None, "bias": None}
    apes = np.array([1.0 if error is None else abs(error) for error in counted])
    return {
        "n": len(counted),
        "median_ape": float(np.median(apes)),
        "p90_ape": float(np.percentile(apes, 90)),
        "mape": float(apes.mean()),
        "bias": float(np.mean(signed)) if signed else None,
    }


def _rankings(cases: Iterable[Scored]) -> list[dict[str, Any]]:
    """Kendall's tau-a, regret and choices of sweeps with four scored layouts or more, repeats averaged."""
    scored = [run for run in cases if run.counts and run.sweep is not None and run.predicted_s is not None]
    ranked = []
    for (family, sweep), alike in listed(((case.family, case.sweep), case) for case in scored).items():
        layouts = list(listed((case.layout, case) for case in alike).values())
        count = len(layouts)
        if count < _FEWEST_LAYOUTS:
            continue
        names = [runs[0].id for runs in layouts]
        measured = np.array([np.mean([run.measured_s for run in runs]) for runs in layouts])
        predicted = np.array([np.mean([run.predicted_s or 0.0 for run in runs]) for runs in layouts])
        signs = [np.sign(np.subtract.outer(values, values)) for values in (measured, predicted)]
        chosen = int(predicted.argmin())
        best = int(measured.argmin())
        ranked.append(
            {
                "family": family,
                "sweep": sweep,
                "layouts": count,
                "kendall_tau": float((signs[0] * signs[1]).sum() / (count * (count - 1))),
                "regret": float(measured[chosen] / measured[best] - 1.0),
                "chosen": names[chosen],
                "best": names[best],
            }
        )
    return ranked


def validate_file(path: Path, catalog: Catalog | None = None) -> dict[str, Any]:
    """Score a file of step times or of convergence; bad rows are in `failed`, wafers' ratios in `scaling`."""
    catalog = catalog or default_catalog()
    rows = LocatedMapping.read(path, "study", catalog).data.get("cases") or []
    if isinstance(rows, list) and rows and all(isinstance(row, dict) and "points" in row for row in rows):
        benchmarks = CaseRows.read(path, ConvergenceCase, catalog)
        return {"file": path.name, **validate_convergence(benchmarks)}
    read = CaseRows.read(path, StepCase, catalog)
    result = {"file": path.name, **validate_cases(read, catalog)}
    result["failed"] = [{"line": read.lines.get(row["id"]), **row} for row in result["failed"]]
    if any(case.on_wafers for case in read.cases):
        result["scaling"] = ScalingFile.compared(catalog)
    return result


def validate_cases(rows: CaseRows[StepCase], catalog: Catalog) -> dict[str, Any]:
    """Predict every case with its band; `failed` begins with refused rows, which count in their family."""
    cases = rows.cases
    read = mapped(partial(_predicted, catalog=catalog), cases)
    unread = [_unread(row.id, row.values) for row in rows.refused]
    runs = [*read, *unread]
    known = [run for run in runs if run.counts and run.ideal_s is not None]
    efficiency = Scored.one_constant(known)
    baseline = [replace(run, predicted_s=(run.ideal_s or 0.0) / efficiency) for run in known]
    asked = [replace(run, predicted_s=run.asked_s, band=run.asked_band) for run in runs]
    by_family = listed((run.family, run) for run in runs)
    # Errors of the predicted peak memory of the fullest device, over runs that print theirs.
    peaks = _figures(
        run.peak_gib / measured_gib - 1.0
        for case, run in zip(cases, read, strict=True)
        if run.counts and run.peak_gib and (measured_gib := case.measured.peak_memory_gib)
    )
    return {
        "kind": "step_time",
        "count": len(runs),
        "failed": [
            *rows.failed,
            *({"id": run.id, "error": run.failure} for run in read if run.predicted_s is None),
        ],
        "summary": _with_bands(runs),
        "summary_predicted": Scored.scores(run for run in runs if run.predicted_s is not None),
        "summary_asked": _with_bands(asked),
        "classes": Scored.of_classes(runs),
        "baseline": Scored.scores(baseline) | ({"efficiency": efficiency} if known else {}),
        "memory": {_OF_MEMORY.get(name, name): value for name, value in peaks.items()},
        "families": {
            family: _with_bands(members)
            | {
                "hidden_communication": max(
                    run.hidden_communication or 0.0 if run.counts else 0.0 for run in members
                )
            }
            for family, members in by_family.items()
        },
        "families_asked": {
            family: _with_bands(alike) for family, alike in listed((run.family, run) for run in asked).items()
        },
        "families_baseline": Scored.of_families(baseline),
        "families_traits": {
            family: Traits.together(alike)
            for family, members in by_family.items()
            if (alike := [run.traits for run in members if run.counts and run.traits is not None])
        },
        "sweeps": _rankings(runs),
        "cases": [*map(_row, read, cases), *map(_row, unread)],
    }


def _unread(name: str, values: Mapping[str, Any]) -> Scored:
    """A refused row as it was written; without evidence it does not count."""
    measured = values.get("measured")
    step_s = measured.get("step_time_s") if isinstance(measured, dict) else None
    seconds = float(step_s) if isinstance(step_s, int | float) else math.nan
    family, evidence = (str(values.get(key) or "") for key in ("family", "evidence"))
    return Scored(name, family, evidence, None, "", seconds, None)


def _predicted(case: StepCase, catalog: Catalog) -> Scored:
    """A case with all that can be told of it: what fails leaves the rest unknown."""
    run = Scored.of(case, None)
    try:
        question = case.question(catalog)
        job = question.job
        flop = model_flop_per_step(job) + recompute_flop_per_step(job, case.recompute or "none")
        peak = question.devices * question.system.device.peak_flop_per_s(job.recipe.precision)
        run = replace(run, ideal_s=flop / peak)
        placed = PlacedCase.of(case, question)
        run = replace(run, traits=Traits.of(placed.plan))
        evaluation = placed.evaluation
    except LimitError:
        raise
    except PerfsimError as error:
        return replace(run, failure=str(error))
    asked = attempt(lambda: _as_asked(case, question))
    asked_s, asked_band = (None, None) if isinstance(asked, PerfsimError) else asked
    return replace(
        run,
        predicted_s=evaluation.step_time_s,
        asked_s=asked_s,
        asked_band=asked_band,
        band=CaseBand.of(placed),
        hidden_communication=evaluation.trace.hidden_share,
        peak_gib=evaluation.plan.peak_memory_bytes / GIB if case.measured.peak_memory_gib else None,
    )


def _as_asked(case: StepCase, question: Question) -> tuple[float, CaseBand | None]:
    """The step time and the band that users get who name no software."""
    placed = PlacedCase.of(case, case.as_asked(question))
    return placed.evaluation.step_time_s, CaseBand.of(placed)


def _row(run: Scored, case: StepCase | None = None) -> dict[str, Any]:
    """A run as JSON lists it; without `case` its row could not be read."""
    band = run.band
    row: dict[str, Any] = {name: getattr(run, name) for name in ("id", "family", "evidence")}
    row["inferred"] = [] if case is None or run.counts else list(case.inferred)
    row["measured_s"] = None if math.isnan(run.measured_s) else run.measured_s
    row |= {name: getattr(run, name) for name in ("predicted_s", "error", "asked_s", "hidden_communication")}
    row["band_s"] = None if band is None else [band.low_s, band.high_s]
    row |= {name: getattr(band, name, None) for name in ("left_out_s", "unlikeness")}
    if case is not None:
        row |= {"ignored": case.ignored, "measured_peak_gib": case.measured.peak_memory_gib}
        row["predicted_peak_gib"] = run.peak_gib
    if case is not None and not case.on_wafers:
        row["framework"], row["framework_because"] = case.stack
    return row


def _with_bands(runs: Iterable[Scored]) -> dict[str, Any]:
    """The scores of runs and of their 90 % bands; None where none has a band."""
    scored = [run for run in runs if run.counts]
    bands = np.log(
        [(run.band.low_s, run.band.high_s, run.measured_s) for run in scored if run.band is not None]
    )
    # The share of measured times in their bands, the mean half-width in log time, and the mean of the width
    # plus 20 times what lies outside [Gneiting and Raftery, "Strictly Proper Scoring Rules", 2007].
    figures: dict[str, Any] = dict.fromkeys(("band_coverage", "band_width", "interval_score"))
    if bands.size:
        low, high, measured = bands.T
        outside = np.maximum(low - measured, 0.0) + np.maximum(measured - high, 0.0)
        figures["band_coverage"] = float(np.mean(outside == 0.0))
        figures["band_width"] = float(np.mean(high - low)) / 2
        figures["interval_score"] = float(np.mean(high - low + 2 / _MISSED * outside))
    return {**Scored.scores(scored), **figures}


# Convergence.

_LEAVE_ONE_OUT = "leave_one_out"
_LARGER_BATCH = "larger_batch"
_MIN_BATCH_SIZES = 4
_MIN_FITTED_BELOW = 3


def validate_convergence(benchmarks: CaseRows[ConvergenceCase]) -> dict[str, Any]:
    """Predict every scored batch size and summarise the errors (fractions; keys as in `--json`)."""
    predictions: list[dict[str, Any]] = []
    failed = benchmarks.failed
    not_scored = []
    for case in benchmarks.cases:
        rows = list(_batch_predictions(case))
        predictions += rows
        if not rows:
            not_scored.append({"id": case.id, "reason": "fewer than four batch sizes"})
        if said := [row["refused"] for row in rows if row["refused"]]:
            failed.append({"id": case.id, "error": f"{len(said)} of {len(rows)} refused: {said[0]}"})
    single = [row for row in predictions if row["protocol"] == _LEAVE_ONE_OUT]
    larger = [row for row in predictions if row["protocol"] == _LARGER_BATCH]

    def score(rows: Iterable[Mapping[str, Any]], key: str = "error") -> dict[str, Any]:
        figures = _figures(row[key] for row in rows if row["counted"])
        del figures["n"]
        return figures

    return {
        "kind": "convergence",
        "count": len(benchmarks.cases) + len(benchmarks.refused),
        "failed": failed,
        "not_scored": not_scored,
        "refused": sum(bool(row["refused"]) for row in predictions),
        "refused_allowed": sum(not row["counted"] for row in predictions),
        "summary": score(single),
        "baseline": score(single, "baseline_error"),
        "larger_batch": score(larger),
        "larger_batch_baseline": score(larger, "baseline_error"),
        "predictions": {
            _LEAVE_ONE_OUT: sum(row["counted"] for row in single),
            _LARGER_BATCH: sum(row["counted"] for row in larger),
        },
        "families": {
            family: _figures(row["error"] for row in single if row["family"] == family and row["counted"])
            for family in sorted({row["family"] for row in single})
        },
        "cases": predictions,
    }


def _batch_predictions(case: ConvergenceCase) -> Iterator[dict[str, Any]]:
    """Each batch size predicted from all others, and the largest from those at most half as large."""
    repeats = listed((batch or 0.0, mean or 0.0) for batch, mean, *_ in case.points)
    points = [(batch, float(np.mean(repeats[batch]))) for batch in sorted(repeats)]
    if len(points) < _MIN_BATCH_SIZES:
        return
    tried = [(_LEAVE_ONE_OUT, [point for point in points if point != target], target) for target in points]
    below = [point for point in points if point[0] <= points[-1][0] / 2]
    if len(below) >= _MIN_FITTED_BELOW:
        tried.append((_LARGER_BATCH, below, points[-1]))
    for protocol, fitted, (batch, measured) in tried:
        batches, examples = zip(*fitted, strict=True)
        # A refused fit counts as an absolute error of 1, unless the run is fine-tuning or a warm start, for
        # which a refusal is correct and not counted.
        baseline = float(np.exp(np.mean(np.log(examples))))
        predicted = refused = None
        try:
            predicted = HyperbolaFit.of(batches, examples, case.run_kind, prior=True).examples(batch)
        except PerfsimError as error:
            refused = str(error)
        yield {
            "id": case.id,
            "family": case.family,
            "protocol": protocol,
            "unit": case.unit,
            "batch": batch,
            "measured": measured,
            "predicted": predicted,
            "error": None if predicted is None else predicted / measured - 1,
            "baseline_error": baseline / measured - 1,
            "refused": refused,
            "counted": refused is None or case.run_kind == "pre-training",
        }
