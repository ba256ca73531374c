"""Predicts published runs and compares them with a baseline of one constant (README of the cases).

Convergence cases have benchmarks at several batch sizes. Repeats of a batch size are averaged; benchmarks
with at least four batch sizes are scored in two ways:

- *leave one out*: each batch size from all the others;
- *larger batch*: the largest batch size from those at most half as large (at least three of them).

A refused fit counts as an absolute error of 1, unless the run is fine-tuning or a warm start, for which a
refusal is correct and not counted. The baseline is a constant E, the geometric mean of the same points.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.base.errors import LimitError, PerfsimError
from perfsim.catalog import Catalog, default_catalog, load_mapping
from perfsim.convergence.critical_batch import fit_hyperbola
from perfsim.evidence.bands import CaseBand, case_band, family_traits
from perfsim.evidence.cases import ConvergenceCase, RefusedRow, StepCase, read_cases
from perfsim.evidence.plans import case_question, evaluate_case, ignored, mapped, suggested
from perfsim.evidence.production import scaling_comparison
from perfsim.evidence.wafer_fit import release_of
from perfsim.work.counts import model_flop_per_step, recompute_flop_per_step

_FEWEST_LAYOUTS = 4
"""Least number of layouts of a sweep for a rank correlation."""


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
    experts: bool = False
    """Whether its model has experts."""
    failure: str = ""
    """Why there is no prediction."""
    band: CaseBand | None = None
    hidden_communication: float | None = None
    """Share of the step that hides communication."""
    peak_gib: float | None = None
    """Predicted peak memory of the fullest device, where the case prints a measured one."""

    @property
    def error(self) -> float | None:
        """Relative error: predicted over measured, minus 1."""
        return None if self.predicted_s is None else self.predicted_s / self.measured_s - 1.0

    def as_dict(self) -> dict[str, Any]:
        """The run as JSON lists it."""
        return {
            "id": self.id,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "error": self.error,
        }

    @property
    def counts(self) -> bool:
        """Whether it is scored; evidence C is only predicted and shown."""
        return self.evidence in ("A", "B")


def _error_figures(errors: Sequence[float | None]) -> dict[str, Any]:
    """Number, median, 90th percentile and mean of |error|, and mean as `bias`; None counts as 1.

    A failed prediction has no sign, so `bias` leaves it out.
    """
    if not errors:
        return {"n": 0, "median_ape": None, "p90_ape": None, "mape": None, "bias": None}
    apes = np.array([1.0 if error is None else abs(error) for error in errors])
    signed = [error for error in errors if error is not None]
    return {
        "n": len(errors),
        "median_ape": float(np.median(apes)),
        "p90_ape": float(np.percentile(apes, 90)),
        "mape": float(apes.mean()),
        "bias": float(np.mean(signed)) if signed else None,
    }


def summary(runs: Iterable[Scored]) -> dict[str, Any]:
    """The figures of the runs that count."""
    return _error_figures([run.error for run in runs if run.counts])


def dense_and_experts(cases: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """The summaries of runs without experts and with them; empty unless some scored run has them."""
    kinds = {
        "dense": summary(case for case in cases if not case.experts),
        "experts": summary(case for case in cases if case.experts),
    }
    return {name: figures for name, figures in kinds.items() if kinds["experts"]["n"] and figures["n"]}


def families(cases: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """The summary of each family, with its ranking of layouts."""
    result = {}
    for family in dict.fromkeys(case.family for case in cases):
        runs = [case for case in cases if case.family == family]
        ranked = rankings(runs)
        result[family] = {
            **summary(runs),
            "kendall_tau": float(np.mean([sweep["kendall_tau"] for sweep in ranked])) if ranked else None,
            "regret": max(sweep["regret"] for sweep in ranked) if ranked else None,
        }
    return result


def rankings(cases: Sequence[Scored]) -> list[dict[str, Any]]:
    """Rankings of sweeps with at least four scored layouts: Kendall's tau-a, regret and the two choices.

    `chosen` is the case predicted as fastest, `best` the one measured as fastest.
    """
    ranked = []
    for (family, sweep), by_layout in _sweeps(cases).items():
        layouts = list(by_layout.values())
        points = [_mean(runs) for runs in layouts]
        if len(points) < _FEWEST_LAYOUTS:
            continue
        pairs = list(combinations(points, 2))
        agreement = sum(float(np.sign(a[0] - b[0]) * np.sign(a[1] - b[1])) for a, b in pairs)
        chosen = min(range(len(points)), key=lambda index: points[index][1])
        best = min(range(len(points)), key=lambda index: points[index][0])
        ranked.append(
            {
                "family": family,
                "sweep": sweep,
                "layouts": len(points),
                "kendall_tau": agreement / len(pairs),
                "regret": points[chosen][0] / points[best][0] - 1.0,
                "chosen": layouts[chosen][0].id,
                "best": layouts[best][0].id,
            }
        )
    return ranked


def _sweeps(cases: Sequence[Scored]) -> dict[tuple[str, str], dict[str, list[Scored]]]:
    """The runs of each layout of each sweep."""
    sweeps: dict[tuple[str, str], dict[str, list[Scored]]] = {}
    for case in cases:
        if case.counts and case.sweep is not None and case.predicted_s is not None:
            layouts = sweeps.setdefault((case.family, case.sweep), {})
            layouts.setdefault(case.layout, []).append(case)
    return sweeps


def _mean(runs: Sequence[Scored]) -> tuple[float, float]:
    """Measured and predicted seconds of one layout, averaged over repeats."""
    measured = float(np.mean([run.measured_s for run in runs]))
    return measured, float(np.mean([run.predicted_s for run in runs if run.predicted_s is not None]))


_GIB = 2**30


def validate_file(path: Path, catalog: Catalog | None = None) -> dict[str, Any]:
    """Score one file of cases, step times or convergence; a malformed row stands in `failed`.

    Published ratios for more systems stand next to logs of wafers, under `scaling`.
    """
    catalog = catalog or default_catalog()
    rows = load_mapping(path, catalog).data.get("cases") or []
    if isinstance(rows, list) and rows and all(isinstance(row, dict) and "points" in row for row in rows):
        benchmarks = read_cases(path, ConvergenceCase, catalog)
        return {"file": path.name, **validate_convergence(benchmarks.cases, benchmarks.refused)}
    read = read_cases(path, StepCase, catalog)
    result = {"file": path.name, **validate_cases(read.cases, catalog, read.refused)}
    lines = {case.id: line for case, line in zip(read.cases, read.lines, strict=True)}
    result["failed"] = [{"line": lines.get(row["id"]), **row} for row in result["failed"]]
    if any(case.on_wafers for case in read.cases):
        result["scaling"] = scaling_comparison(catalog)
    return result


def _failed_rows(refused: Sequence[RefusedRow]) -> list[dict[str, Any]]:
    return [{"id": row.id, "line": row.line, "error": row.reason} for row in refused]


def validate_cases(
    cases: Sequence[StepCase], catalog: Catalog, refused: Sequence[RefusedRow] = ()
) -> dict[str, Any]:
    """Predict every case with its band; failed ones are listed with the reason, after the `refused` rows.

    A refused row counts as a failed case of the family and evidence that it states.
    """
    read = mapped(partial(_predicted, catalog=catalog), cases)
    unread = [_scored_row(row) for row in refused]
    runs = [*read, *unread]
    answered = list(zip(cases, read, strict=True))
    baseline = _baseline(answered, catalog)
    efficiency = one_constant(baseline)
    of_baseline = [replace(run, predicted_s=ideal_s / efficiency) for run, ideal_s in baseline]
    return {
        "kind": "step_time",
        "count": len(runs),
        "failed": [
            *_failed_rows(refused),
            *({"id": run.id, "error": run.failure} for run in read if run.predicted_s is None),
        ],
        "summary": {**summary(runs), "band_coverage": _coverage(runs)},
        "summary_predicted": summary(run for run in runs if run.predicted_s is not None),
        **dense_and_experts(runs),
        "baseline": summary(of_baseline) | ({"efficiency": efficiency} if baseline else {}),
        "memory": _memory_summary(answered),
        "families": {
            family: {
                **figures,
                "band_coverage": _coverage(members := [run for run in runs if run.family == family]),
                "hidden_communication": max(
                    (run.hidden_communication or 0.0 for run in members if run.counts), default=0.0
                ),
            }
            for family, figures in families(runs).items()
        },
        "families_baseline": families(of_baseline),
        "families_traits": family_traits(cases, catalog),
        "sweeps": rankings(runs),
        "without_release": _without_release(answered, catalog),
        "cases": [*(_case_fields(case, run) for case, run in answered), *map(_run_fields, unread)],
    }


def scored_case(case: StepCase, predicted_s: float | None) -> Scored:
    """A case with its prediction, None if it failed."""
    layout = repr((case.parallel, case.training.micro_batch_size, case.training.recompute))
    return Scored(
        case.id,
        case.family,
        case.evidence,
        case.sweep,
        layout,
        case.measured.step_time_s,
        predicted_s,
        case.model.experts is not None,
    )


def _predicted(case: StepCase, catalog: Catalog) -> Scored:
    unknown = scored_case(case, None)
    try:
        run = evaluate_case(case, catalog)
    except LimitError:
        raise
    except PerfsimError as error:
        return replace(unknown, failure=str(error))
    return replace(
        unknown,
        predicted_s=run.step_time_s,
        band=case_band(case, run, catalog),
        hidden_communication=run.hidden_communication_fraction,
        peak_gib=run.plan.peak_memory_bytes / _GIB if case.measured.peak_memory_gib else None,
    )


def _scored_row(row: RefusedRow) -> Scored:
    """A row that could not be read, with what can be told from it; without evidence it does not count."""
    values = row.values if isinstance(row.values, dict) else {}
    measured = values.get("measured")
    step_s = measured.get("step_time_s") if isinstance(measured, dict) else None
    seconds = float(step_s) if isinstance(step_s, int | float) else math.nan
    family = str(values.get("family") or "")
    evidence = str(values.get("evidence") or "")
    return Scored(row.id, family, evidence, None, "", seconds, None)


def _case_fields(case: StepCase, run: Scored) -> dict[str, Any]:
    fields = {
        **_run_fields(run),
        "inferred": [] if run.counts else list(case.inferred),
        "ignored": ignored(case),
        "measured_peak_gib": case.measured.peak_memory_gib,
        "predicted_peak_gib": run.peak_gib,
    }
    if not case.on_wafers:
        fields["framework"], fields["framework_because"] = (
            (case.framework, "") if case.framework else suggested(case)
        )
    return fields


def _run_fields(run: Scored) -> dict[str, Any]:
    """What a row has whether it could be read or not."""
    band = run.band
    return {
        "id": run.id,
        "family": run.family,
        "evidence": run.evidence,
        "inferred": [],
        "measured_s": None if math.isnan(run.measured_s) else run.measured_s,
        "predicted_s": run.predicted_s,
        "error": run.error,
        "hidden_communication": run.hidden_communication,
        "band_s": None if band is None else [band.low_s, band.high_s],
        "left_out_s": None if band is None else band.left_out_s,
        "unlikeness": None if band is None else band.unlikeness,
    }


def _memory_summary(answered: Sequence[tuple[StepCase, Scored]]) -> dict[str, Any]:
    """Errors of the predicted peak memory of the fullest device, over scored runs that print theirs."""
    figures = _error_figures(
        [
            run.peak_gib / case.measured.peak_memory_gib - 1.0
            for case, run in answered
            if run.counts and run.peak_gib is not None and case.measured.peak_memory_gib is not None
        ]
    )
    names = {"median_ape": "median", "p90_ape": "p90", "mape": "mean"}
    return {names.get(name, name): value for name, value in figures.items()}


def _coverage(runs: Sequence[Scored]) -> float | None:
    """The share of scored runs whose measured time lies in their band; None where none has a band."""
    held = [run.band.holds(run.measured_s) for run in runs if run.counts and run.band is not None]
    return sum(held) / len(held) if held else None


def _baseline(answered: Sequence[tuple[StepCase, Scored]], catalog: Catalog) -> list[tuple[Scored, float]]:
    """The scored runs, each with its step time at the full peak of every device, with recompute."""
    runs = []
    for case, run in answered:
        try:
            question = case_question(case, catalog)
        except PerfsimError:
            continue
        if run.counts:
            job = question.job
            flop = model_flop_per_step(job) + recompute_flop_per_step(job, case.training.recompute or "none")
            peak = question.system.device.peak_flop_per_s(job.recipe.precision)
            runs.append((run, flop / (question.devices * peak)))
    return runs


def one_constant(runs: Sequence[tuple[Scored, float]]) -> float:
    """The efficiency e that minimises the mean of |ideal / e / measured - 1| over runs and ideal times.

    In 1/e this is a weighted median: the objective is piecewise linear with kinks at measured / ideal
    and weights ideal / measured.
    """
    if not runs:
        return 1.0
    ratios = np.sort([run.measured_s / ideal_s for run, ideal_s in runs])
    weights = 1.0 / ratios
    half = np.searchsorted(np.cumsum(weights), weights.sum() / 2)
    return float(1.0 / ratios[min(int(half), len(ratios) - 1)])


def _without_release(
    answered: Sequence[tuple[StepCase, Scored]], catalog: Catalog
) -> dict[str, dict[str, Any]]:
    """The summary without each software release that has one scored run, and without all of them.

    A single log largely determines the efficiency of its release, so its error says little.
    """
    release = {case.id: release_of(case, catalog) for case, _ in answered}
    runs = [run for _, run in answered]
    counts = Counter(release[run.id] for run in runs if run.counts)
    alone = sorted(name for name, count in counts.items() if name and count == 1)
    groups = [(name,) for name in alone] + ([tuple(alone)] if len(alone) > 1 else [])
    return {
        ", ".join(group): summary(run for run in runs if release[run.id] not in group) for group in groups
    }


_LEAVE_ONE_OUT = "leave_one_out"
_LARGER_BATCH = "larger_batch"
_MIN_BATCH_SIZES = 4
_MIN_FITTED_BELOW = 3
_Points = Sequence[tuple[float, float]]
"""(batch, mean of the repeats), batches increasing."""


@dataclass(frozen=True, slots=True)
class _BatchPrediction:
    case: ConvergenceCase
    protocol: str
    batch: float
    measured: float
    baseline: float
    """The geometric mean of the points that are fitted."""
    adjacent: bool
    """Whether it is the only point left out of the fit."""
    predicted: float | None = None
    refused: str = ""

    @property
    def counted(self) -> bool:
        """False for a refusal that the kind of run allows."""
        return not self.refused or _run_kind(self.case) == "pre-training"

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1; None for a refusal."""
        return None if self.predicted is None else self.predicted / self.measured - 1


def validate_convergence(
    cases: Sequence[ConvergenceCase], refused: Sequence[RefusedRow] = ()
) -> dict[str, Any]:
    """Predict every scored batch size of `cases` and summarise the errors (fractions; keys as in `--json`).

    `larger_batch_adjacent` has the larger-batch predictions whose batch is at least twice the next one, so
    that all smaller ones were fitted. `bias` leaves out refused predictions, which have no sign.
    """
    points = {case.id: _points(case) for case in cases}
    predictions = [
        prediction
        for case in cases
        if len(points[case.id]) >= _MIN_BATCH_SIZES
        for prediction in _predictions(case, points[case.id])
    ]
    single = [each for each in predictions if each.protocol == _LEAVE_ONE_OUT]
    larger = [each for each in predictions if each.protocol == _LARGER_BATCH]
    return {
        "kind": "convergence",
        "count": len(cases) + len(refused),
        "failed": [*_failed_rows(refused), *_refusals(predictions)],
        "not_scored": [
            {"id": name, "reason": "fewer than four batch sizes"}
            for name, given in points.items()
            if len(given) < _MIN_BATCH_SIZES
        ],
        "refused": sum(1 for each in predictions if each.refused),
        "refused_allowed": sum(1 for each in predictions if not each.counted),
        "summary": _score(single),
        "baseline": _baseline_score(single),
        "larger_batch": _score(larger),
        "larger_batch_baseline": _baseline_score(larger),
        "larger_batch_adjacent": _score([each for each in larger if each.adjacent]),
        "predictions": {
            protocol: sum(1 for each in predictions if each.counted and each.protocol == protocol)
            for protocol in (_LEAVE_ONE_OUT, _LARGER_BATCH)
        },
        "families": {
            family: _figures([each for each in single if each.case.family == family])
            for family in sorted({each.case.family for each in single})
        },
        "cases": [_row(each) for each in predictions],
    }


def _points(case: ConvergenceCase) -> _Points:
    repeats: dict[float, list[float]] = {}
    for batch, mean, *_ in case.points:
        repeats.setdefault(batch or 0.0, []).append(mean or 0.0)
    return [(batch, float(np.mean(repeats[batch]))) for batch in sorted(repeats)]


def _run_kind(case: ConvergenceCase) -> str:
    """The kind of a case's runs, from notes that begin with `fine-tuning` or `warm`."""
    if case.notes.startswith("fine-tuning"):
        return "fine-tuning"
    return "warm-start" if case.notes.startswith("warm") else "pre-training"


def _predictions(case: ConvergenceCase, points: _Points) -> Iterable[_BatchPrediction]:
    asked = [(_LEAVE_ONE_OUT, [point for point in points if point != target], target) for target in points]
    below = [point for point in points if point[0] <= points[-1][0] / 2]
    if len(below) >= _MIN_FITTED_BELOW:
        asked.append((_LARGER_BATCH, below, points[-1]))
    for protocol, fitted, target in asked:
        batches, measured = zip(*fitted, strict=True)
        baseline = float(np.exp(np.mean(np.log(measured))))
        adjacent = protocol == _LARGER_BATCH and len(fitted) == len(points) - 1
        unknown = _BatchPrediction(case, protocol, *target, baseline, adjacent)
        try:
            fit = fit_hyperbola(batches, measured, _run_kind(case), prior=True)
            yield replace(unknown, predicted=fit.examples(target[0]))
        except PerfsimError as error:
            yield replace(unknown, refused=str(error))


def _figures(predictions: Iterable[_BatchPrediction]) -> dict[str, Any]:
    return _error_figures([each.error for each in predictions if each.counted])


def _score(predictions: Iterable[_BatchPrediction]) -> dict[str, Any]:
    return {name: value for name, value in _figures(predictions).items() if name != "n"}


def _baseline_score(predictions: Iterable[_BatchPrediction]) -> dict[str, Any]:
    return _score(replace(each, predicted=each.baseline) for each in predictions)


def _refusals(predictions: Sequence[_BatchPrediction]) -> list[dict[str, str]]:
    """One line per benchmark: number of refused predictions and the first reason."""
    lines = []
    for name in dict.fromkeys(each.case.id for each in predictions if each.refused):
        group = [each for each in predictions if each.case.id == name]
        reasons = [each.refused for each in group if each.refused]
        lines.append({"id": name, "error": f"{len(reasons)} of {len(group)} refused: {reasons[0]}"})
    return lines


def _row(prediction: _BatchPrediction) -> dict[str, Any]:
    return {
        "id": prediction.case.id,
        "family": prediction.case.family,
        "protocol": prediction.protocol,
        "unit": prediction.case.unit,
        "batch": prediction.batch,
        "measured": prediction.measured,
        "predicted": prediction.predicted,
        "error": prediction.error,
        "baseline_error": prediction.baseline / prediction.measured - 1,
        "refused": prediction.refused or None,
        "counted": prediction.counted,
    }
