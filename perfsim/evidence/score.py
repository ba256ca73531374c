"""Predicts published runs and compares them with a one-constant baseline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.base.errors import LimitError, PerfsimError
from perfsim.catalog import Catalog, default_catalog, load_mapping
from perfsim.costs.wafer import nearest_release
from perfsim.evidence.bands import CaseBand, case_band, family_traits
from perfsim.evidence.cases import (
    CaseRows,
    ConvergenceCase,
    RefusedRow,
    StepCase,
    case_job,
    case_system,
    convergence_rows,
    step_rows,
    suggested,
)
from perfsim.evidence.convergence_score import validate_convergence
from perfsim.evidence.plans import evaluate_case, ignored, mapped, refuse_contradictions
from perfsim.evidence.published_ratios import STRATEGY, scaling_comparison
from perfsim.specs.calibration import WaferCalibration
from perfsim.work.counts import model_flop_per_step, recompute_flop_per_step

# Scores of predictions against measured runs, as defined in the README of the cases.

FEWEST_LAYOUTS = 4
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


def summary(cases: Iterable[Scored]) -> dict[str, Any]:
    """Median, 90th percentile and mean of |error|, and its mean; a failed case counts as 1."""
    counted = [case for case in cases if case.counts]
    if not counted:
        return {"n": 0, "median_ape": None, "p90_ape": None, "mape": None, "bias": None}
    apes = np.array([1.0 if case.error is None else abs(case.error) for case in counted])
    errors = [case.error for case in counted if case.error is not None]
    return {
        "n": len(counted),
        "median_ape": float(np.median(apes)),
        "p90_ape": float(np.percentile(apes, 90)),
        "mape": float(apes.mean()),
        "bias": float(np.mean(errors)) if errors else None,
    }


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
        own = [case for case in cases if case.family == family]
        ranked = rankings(own)
        result[family] = {
            **summary(own),
            "kendall_tau": float(np.mean([sweep["kendall_tau"] for sweep in ranked])) if ranked else None,
            "regret": max(sweep["regret"] for sweep in ranked) if ranked else None,
        }
    return result


def rankings(cases: Sequence[Scored]) -> list[dict[str, Any]]:
    """Rankings of sweeps with at least four scored layouts: Kendall's tau-a, regret and the two choices.

    `chosen` is the case predicted as fastest, `best` the one measured as fastest.
    """
    ranked = []
    for (family, sweep), runs in _sweeps(cases).items():
        points = [_mean(layout) for layout in runs.values()]
        if len(points) < FEWEST_LAYOUTS:
            continue
        pairs = list(combinations(points, 2))
        agreement = sum(float(np.sign(a[0] - b[0]) * np.sign(a[1] - b[1])) for a, b in pairs)
        layouts = list(runs)
        chosen = min(range(len(points)), key=lambda index: points[index][1])
        best = min(range(len(points)), key=lambda index: points[index][0])
        ranked.append(
            {
                "family": family,
                "sweep": sweep,
                "layouts": len(points),
                "kendall_tau": agreement / len(pairs),
                "regret": points[chosen][0] / points[best][0] - 1.0,
                "chosen": runs[layouts[chosen]][0].id,
                "best": runs[layouts[best]][0].id,
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


def one_constant(ideal_s: Sequence[float], measured_s: Sequence[float]) -> float:
    """The efficiency e that minimises the mean of |ideal / e / measured - 1|.

    In 1/e this is a weighted median: the objective is piecewise linear with kinks at measured / ideal
    and weights ideal / measured.
    """
    ratios = np.array(measured_s) / np.array(ideal_s)
    order = np.argsort(ratios)
    weights = 1.0 / ratios[order]
    half = np.searchsorted(np.cumsum(weights), weights.sum() / 2)
    return float(1.0 / ratios[order][min(int(half), len(ratios) - 1)])


GIB = 2**30


def validate_file(path: Path, catalog: Catalog | None = None) -> dict[str, Any]:
    """Score one file of cases, step times or convergence; a malformed row stands in `failed`.

    Published ratios for more systems stand beside logs of wafers, under `scaling`.
    """
    catalog = catalog or default_catalog()
    data = load_mapping(path, catalog).data
    rows = data.get("cases") or []
    if isinstance(rows, list) and rows and all(isinstance(row, dict) and "points" in row for row in rows):
        return {"file": path.name, **_convergence(convergence_rows(path, catalog), rows)}
    read = step_rows(path, catalog)
    result = {"file": path.name, **validate_cases(read.cases, catalog, read.refused)}
    lines = {case.id: line for case, line in zip(read.cases, read.lines, strict=True)}
    result["failed"] = [{"line": lines.get(row["id"]), **row} for row in result["failed"]]
    if any(case.strategy == STRATEGY for case in read.cases):
        result["scaling"] = scaling_comparison(catalog)
    return result


def _convergence(read: CaseRows[ConvergenceCase], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The score of the benchmarks that can be read; the others stand in `failed`."""
    known = {case.id for case in read.cases}
    result = validate_convergence([row for row in rows if row.get("id") in known])
    failed = [{"id": row.id, "line": row.line, "error": row.reason} for row in read.refused]
    return {**result, "count": len(rows), "failed": [*failed, *result["failed"]]}


def validate_cases(
    cases: Sequence[StepCase], catalog: Catalog, refused: Sequence[RefusedRow] = ()
) -> dict[str, Any]:
    """Predict every case with its band; failed ones are listed with the reason, after the `refused` rows.

    A refused row counts as a failed case of the family and evidence that it states.
    """
    answers: list[_Answer] = mapped(partial(_answer, catalog=catalog), cases)
    answered = list(zip(cases, answers, strict=True))
    failed: list[dict[str, Any]] = [{"id": row.id, "line": row.line, "error": row.reason} for row in refused]
    failed += [{"id": case.id, "error": answer.reason} for case, answer in answered if answer.failed]
    read = [scored_case(case, answer.predicted_s) for case, answer in answered]
    unread = [_scored_row(row) for row in refused]
    scored = [*read, *unread]
    bands = {case.id: answer.band for case, answer in answered}
    hidden = {case.id: answer.hidden for case, answer in answered}
    baseline, of_baseline = _baseline(cases, read, catalog)
    return {
        "kind": "step_time",
        "count": len(scored),
        "failed": failed,
        "summary": {**summary(scored), "band_coverage": _coverage(scored, bands)},
        "summary_predicted": summary([run for run in scored if run.predicted_s is not None]),
        **dense_and_experts(scored),
        "baseline": baseline,
        "memory": _memory_summary(answered),
        "families": {
            family: {
                **figures,
                "band_coverage": _coverage([run for run in scored if run.family == family], bands),
                "hidden_communication": _most(hidden, [run for run in scored if run.family == family]),
            }
            for family, figures in families(scored).items()
        },
        "families_baseline": families(of_baseline),
        "families_traits": family_traits(cases, catalog),
        "sweeps": rankings(scored),
        "without_release": _without_release(cases, read, catalog),
        "cases": [
            *(_case_fields(case, run, answer) for (case, answer), run in zip(answered, read, strict=True)),
            *(_run_fields(run) for run in unread),
        ],
    }


def _case_fields(case: StepCase, run: Scored, answer: _Answer) -> dict[str, Any]:
    return {
        **_run_fields(run),
        "inferred": [] if run.counts else list(case.inferred),
        "ignored": ignored(case),
        **_framework_fields(case),
        "hidden_communication": answer.hidden,
        "measured_peak_gib": case.measured.peak_memory_gib,
        "predicted_peak_gib": answer.peak_gib,
        **_band_fields(answer.band),
    }


def _framework_fields(case: StepCase) -> dict[str, Any]:
    """The framework of a run on GPUs, and why it was chosen where the run does not name one."""
    if case.strategy == STRATEGY:
        return {}
    name, reason = (case.framework, "") if case.framework else suggested(case)
    return {"framework": name, "framework_because": reason}


def _run_fields(run: Scored) -> dict[str, Any]:
    """What a row has whether it could be read or not."""
    return {
        "id": run.id,
        "family": run.family,
        "evidence": run.evidence,
        "inferred": [],
        "measured_s": None if math.isnan(run.measured_s) else run.measured_s,
        "predicted_s": run.predicted_s,
        "error": run.error,
        "hidden_communication": None,
        **_band_fields(None),
    }


def _memory_summary(answered: Sequence[tuple[StepCase, _Answer]]) -> dict[str, Any]:
    """Errors of the predicted peak memory of the fullest device, over scored runs that print theirs."""
    pairs = [
        (answer.peak_gib, case.measured.peak_memory_gib)
        for case, answer in answered
        if case.scored and answer.peak_gib is not None and case.measured.peak_memory_gib is not None
    ]
    errors = np.array([predicted / measured - 1.0 for predicted, measured in pairs])
    if not len(errors):
        return {"n": 0, "median": None, "p90": None, "mean": None, "bias": None}
    apes = np.abs(errors)
    return {
        "n": len(errors),
        "median": float(np.median(apes)),
        "p90": float(np.percentile(apes, 90)),
        "mean": float(apes.mean()),
        "bias": float(errors.mean()),
    }


@dataclass(frozen=True)
class _Answer:
    """Predicted seconds with their band, or the reason why there are none."""

    predicted_s: float | None
    band: CaseBand | None = None
    hidden: float | None = None
    """Share of the step that hides communication."""
    reason: str = ""
    peak_gib: float | None = None
    """Predicted peak memory of the fullest device, where the case prints a measured one."""

    @property
    def failed(self) -> bool:
        """Whether there is no prediction."""
        return self.predicted_s is None


def _answer(case: StepCase, catalog: Catalog) -> _Answer:
    try:
        run = evaluate_case(case, catalog)
    except LimitError:
        raise
    except PerfsimError as error:
        return _Answer(None, reason=str(error))
    peak_gib = run.plan.peak_memory_bytes / GIB if case.measured.peak_memory_gib else None
    band = case_band(case, run, catalog)
    return _Answer(run.step_time_s, band, run.hidden_communication_fraction, peak_gib=peak_gib)


def _coverage(runs: Sequence[Scored], bands: Mapping[str, CaseBand | None]) -> float | None:
    """The share of scored runs whose measured time lies in their band; None where none has a band."""
    held = [
        band.holds(run.measured_s)
        for run in runs
        if run.counts and run.predicted_s is not None and (band := bands[run.id]) is not None
    ]
    return sum(held) / len(held) if held else None


def _most(hidden: Mapping[str, float | None], runs: Sequence[Scored]) -> float:
    """The largest share of a step that hides communication, of the scored runs that were predicted."""
    shares = (hidden.get(run.id) for run in runs if run.counts and run.predicted_s is not None)
    return max((share for share in shares if share is not None), default=0.0)


def _band_fields(band: CaseBand | None) -> dict[str, Any]:
    if band is None:
        return {"band_s": None, "left_out_s": None, "unlikeness": None}
    return {
        "band_s": [band.low_s, band.high_s],
        "left_out_s": band.left_out_s,
        "unlikeness": band.unlikeness,
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
        case.model.experts > 0,
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


def _baseline(
    cases: Sequence[StepCase], scored: Sequence[Scored], catalog: Catalog
) -> tuple[dict[str, Any], list[Scored]]:
    """Hardware FLOPs over devices x peak x e, with the one e that minimises the mean error of the file.

    Returns its summary and its predictions.
    """
    ideal: dict[str, float] = {}
    for case in cases:
        try:
            ideal[case.id] = _ideal_s(case, catalog)
        except PerfsimError:
            continue
    usable = [run for run in scored if run.counts and run.id in ideal]
    if not usable:
        return summary([]), []
    efficiency = one_constant([ideal[run.id] for run in usable], [run.measured_s for run in usable])
    predictions = [replace(run, predicted_s=ideal[run.id] / efficiency) for run in usable]
    return {**summary(predictions), "n": len(usable), "efficiency": efficiency}, predictions


def _without_release(
    cases: Sequence[StepCase], scored: Sequence[Scored], catalog: Catalog
) -> dict[str, dict[str, Any]]:
    """The summary without each software release that has one scored run, and without all of them.

    A single log largely determines the efficiency of its release, so its error says little.
    """
    release = {case.id: _measured_release(case, catalog) for case in cases}
    counts = Counter(release[run.id] for run in scored if run.counts)
    alone = sorted(name for name, count in counts.items() if name and count == 1)
    groups = [(name,) for name in alone] + ([tuple(alone)] if len(alone) > 1 else [])
    return {
        ", ".join(group): summary([run for run in scored if release[run.id] not in group]) for group in groups
    }


def _measured_release(case: StepCase, catalog: Catalog) -> str:
    """The software release whose efficiency a case uses; empty if it uses none."""
    try:
        calibration = case_system(case, catalog).device.calibration
        if case.system.software_release is None or not isinstance(calibration, WaferCalibration):
            return ""
        return nearest_release(case.system.software_release, calibration)
    except PerfsimError:
        return ""


def _ideal_s(case: StepCase, catalog: Catalog) -> float:
    """Step time at the full peak of every device, with recompute."""
    system = case_system(case, catalog)
    refuse_contradictions(case, system)
    job = case_job(case, catalog)
    flop = model_flop_per_step(job) + recompute_flop_per_step(job, case.training.recompute or "none")
    return flop / (case.system.num_devices * system.device.peak_flop_per_s(job.recipe.precision))
