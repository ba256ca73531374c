"""Scores the critical-batch fit against published convergence points.

A case is one benchmark with `points` rows [global_batch_size, mean_to_target, standard_deviation, num_seeds].
Repeats of a batch size are averaged; benchmarks with at least four batch sizes are scored in two ways:

- *leave one out*: each batch size from all the others;
- *larger batch*: the largest batch size from those at most half as large (at least three of them).

A refused fit counts as an absolute error of 1, unless the run is fine-tuning or a warm start, for which a
refusal is correct and not counted. The baseline is a constant E, the geometric mean of the same points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfsim.base.errors import InputError, PerfsimError
from perfsim.convergence.critical_batch import fit_hyperbola

LEAVE_ONE_OUT = "leave_one_out"
LARGER_BATCH = "larger_batch"
MIN_BATCH_SIZES = 4
MIN_FITTED_BELOW = 3


@dataclass(frozen=True, slots=True)
class _Benchmark:
    id: str
    family: str
    unit: str
    run_kind: str
    points: tuple[tuple[float, float], ...]
    """(batch, mean of the repeats), batches increasing."""


@dataclass(frozen=True, slots=True)
class _Prediction:
    benchmark: _Benchmark
    protocol: str
    batch: float
    measured: float
    num_fitted: int
    predicted: float | None
    baseline: float
    refused: str = ""

    @property
    def counted(self) -> bool:
        """False for a refusal that the kind of run allows."""
        return not self.refused or self.benchmark.run_kind == "pre-training"

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1; None for a refusal."""
        return None if self.predicted is None else self.predicted / self.measured - 1

    @property
    def adjacent(self) -> bool:
        """Whether the predicted batch, at least twice the next one, is the only one left out of the fit."""
        return self.protocol == LARGER_BATCH and self.num_fitted == len(self.benchmark.points) - 1


def validate_convergence(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Predict every scored batch size of `cases` and summarise the errors (fractions; keys as in `--json`).

    `larger_batch_adjacent` has the larger-batch predictions whose batch is at least twice the next one, so
    that all smaller ones were fitted. `bias` leaves out refused predictions, which have no sign.
    """
    benchmarks, failed = _read(cases)
    scored = [b for b in benchmarks if len(b.points) >= MIN_BATCH_SIZES]
    too_few = [b.id for b in benchmarks if len(b.points) < MIN_BATCH_SIZES]
    predictions = [p for b in scored for p in (*_leave_one_out(b), *_larger_batch(b))]
    single = [p for p in predictions if p.protocol == LEAVE_ONE_OUT]
    larger = [p for p in predictions if p.protocol == LARGER_BATCH]
    return {
        "kind": "convergence",
        "count": len(cases),
        "failed": failed + _refusals(predictions),
        "not_scored": [{"id": id_, "reason": "fewer than four batch sizes"} for id_ in too_few],
        "refused": sum(1 for p in predictions if p.refused),
        "refused_allowed": sum(1 for p in predictions if not p.counted),
        "summary": _score(single),
        "baseline": _baseline_score(single),
        "larger_batch": _score(larger),
        "larger_batch_baseline": _baseline_score(larger),
        "larger_batch_adjacent": _score([p for p in larger if p.adjacent]),
        "predictions": {LEAVE_ONE_OUT: _num_counted(single), LARGER_BATCH: _num_counted(larger)},
        "families": _families(single),
        "cases": [_row(p) for p in predictions],
    }


def _read(cases: Sequence[Mapping[str, Any]]) -> tuple[list[_Benchmark], list[dict[str, str]]]:
    benchmarks = []
    failed = []
    for number, case in enumerate(cases, start=1):
        try:
            benchmarks.append(_benchmark(case))
        except (KeyError, TypeError, ValueError, InputError) as error:
            reason = f"missing field {error}" if isinstance(error, KeyError) else str(error)
            failed.append({"id": str(case.get("id", f"case {number}")), "error": f"malformed case: {reason}"})
    return benchmarks, failed


def _benchmark(case: Mapping[str, Any]) -> _Benchmark:
    repeats: dict[float, list[float]] = {}
    for batch, mean, *_ in case["points"]:
        if not (float(batch) > 0 and float(mean) > 0):
            raise InputError(f"points must be positive, got batch {batch} with {mean}")
        repeats.setdefault(float(batch), []).append(float(mean))
    points = tuple((batch, float(np.mean(repeats[batch]))) for batch in sorted(repeats))
    run_kind = _run_kind(str(case.get("notes", "")))
    return _Benchmark(str(case["id"]), str(case["family"]), str(case.get("unit", "")), run_kind, points)


def _run_kind(notes: str) -> str:
    """The kind of a case's runs, from notes that begin with `fine-tuning` or `warm`."""
    if notes.startswith("fine-tuning"):
        return "fine-tuning"
    return "warm-start" if notes.startswith("warm") else "pre-training"


def _leave_one_out(benchmark: _Benchmark) -> list[_Prediction]:
    points = benchmark.points
    return [
        _predict(benchmark, LEAVE_ONE_OUT, points[:i] + points[i + 1 :], points[i])
        for i in range(len(points))
    ]


def _larger_batch(benchmark: _Benchmark) -> list[_Prediction]:
    target = benchmark.points[-1]
    below = tuple(point for point in benchmark.points if point[0] <= target[0] / 2)
    if len(below) < MIN_FITTED_BELOW:
        return []
    return [_predict(benchmark, LARGER_BATCH, below, target)]


def _predict(
    benchmark: _Benchmark,
    protocol: str,
    points: tuple[tuple[float, float], ...],
    target: tuple[float, float],
) -> _Prediction:
    batches = [point[0] for point in points]
    measured = [point[1] for point in points]
    predicted = None
    refused = ""
    try:
        predicted = fit_hyperbola(batches, measured, benchmark.run_kind, prior=True).examples(target[0])
    except PerfsimError as error:
        refused = str(error)
    baseline = float(np.exp(np.mean(np.log(measured))))
    return _Prediction(benchmark, protocol, target[0], target[1], len(points), predicted, baseline, refused)


def _statistics(signed: Sequence[float], num_refused: int) -> dict[str, float | None]:
    """Median, 90th percentile and mean of |error| with refusals as 1; mean of the signed errors."""
    sizes = np.abs([*signed, *([1.0] * num_refused)])
    if sizes.size == 0:
        return {"median_ape": None, "p90_ape": None, "mape": None, "bias": None}
    return {
        "median_ape": float(np.median(sizes)),
        "p90_ape": float(np.percentile(sizes, 90)),
        "mape": float(sizes.mean()),
        "bias": float(np.mean(signed)) if signed else None,
    }


def _score(predictions: Iterable[_Prediction]) -> dict[str, float | None]:
    counted = [p for p in predictions if p.counted]
    signed = [p.error for p in counted if p.error is not None]
    return _statistics(signed, len(counted) - len(signed))


def _baseline_score(predictions: Iterable[_Prediction]) -> dict[str, float | None]:
    return _statistics([p.baseline / p.measured - 1 for p in predictions if p.counted], 0)


def _num_counted(predictions: Iterable[_Prediction]) -> int:
    return sum(1 for p in predictions if p.counted)


def _families(predictions: Sequence[_Prediction]) -> dict[str, dict[str, float | int | None]]:
    names = sorted({p.benchmark.family for p in predictions})
    members = {name: [p for p in predictions if p.benchmark.family == name] for name in names}
    return {name: {"n": _num_counted(own), **_score(own)} for name, own in members.items()}


def _refusals(predictions: Sequence[_Prediction]) -> list[dict[str, str]]:
    """One line per benchmark: number of refused predictions and the first reason."""
    by_benchmark: dict[str, list[_Prediction]] = {}
    for prediction in predictions:
        by_benchmark.setdefault(prediction.benchmark.id, []).append(prediction)
    lines = []
    for id_, group in by_benchmark.items():
        reasons = [p.refused for p in group if p.refused]
        if reasons:
            lines.append({"id": id_, "error": f"{len(reasons)} of {len(group)} refused: {reasons[0]}"})
    return lines


def _row(p: _Prediction) -> dict[str, Any]:
    return {
        "id": p.benchmark.id,
        "family": p.benchmark.family,
        "protocol": p.protocol,
        "unit": p.benchmark.unit,
        "batch": p.batch,
        "measured": p.measured,
        "predicted": p.predicted,
        "error": p.error,
        "baseline_error": p.baseline / p.measured - 1,
        "refused": p.refused or None,
        "counted": p.counted,
    }
