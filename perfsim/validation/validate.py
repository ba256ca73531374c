"""Predicts published runs and compares them with a one-constant baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from perfsim.calibration import WaferCalibration
from perfsim.catalog import Catalog, default_catalog, load_mapping, parse_file
from perfsim.costs.wafer import nearest_release
from perfsim.errors import InputError, LimitError, PerfsimError, Problem
from perfsim.published.cases import CaseFile, ConvergenceFile, StepCase, case_job, case_system, repeated
from perfsim.published.contradictions import refuse_contradictions
from perfsim.published.plans import evaluate_case
from perfsim.published.processes import mapped
from perfsim.published.scaling import STRATEGY
from perfsim.transformer import model_flop_per_step, recompute_flop_per_step
from perfsim.validation.case_bands import CaseBand, case_band
from perfsim.validation.convergence_validation import validate_convergence
from perfsim.validation.family_traits import family_traits
from perfsim.validation.scaling import scaling_comparison
from perfsim.validation.score import Scored, families, one_constant, rankings, summary


def validate_file(path: Path, catalog: Catalog | None = None) -> dict[str, Any]:
    """Score one file of cases, step times or convergence; CatalogError lists malformed ones.

    Published ratios for more systems stand beside logs of wafers, under `scaling`.
    """
    catalog = catalog or default_catalog()
    data = load_mapping(path, catalog).data
    rows = data.get("cases") or []
    if isinstance(rows, list) and rows and all(isinstance(row, dict) and "points" in row for row in rows):
        problems = repeated(str(row.get("id")) for row in rows)
        if problems:
            raise InputError([Problem(text, file=str(path)) for text in problems])
        parse_file(path, ConvergenceFile, catalog)  # refuses what is no measurement
        return {"file": path.name, **validate_convergence(rows)}
    cases = parse_file(path, CaseFile, catalog).cases
    result = {"file": path.name, **validate_cases(cases, catalog)}
    if any(case.strategy == STRATEGY for case in cases):
        result["scaling"] = scaling_comparison(catalog)
    return result


def validate_cases(cases: Sequence[StepCase], catalog: Catalog) -> dict[str, Any]:
    """Predict every case with its band; failed ones are listed with the reason."""
    answers: list[_Answer] = mapped(partial(_answer, catalog=catalog), cases)
    failed = [
        {"id": case.id, "error": answer.reason}
        for case, answer in zip(cases, answers, strict=True)
        if answer.predicted_s is None
    ]
    scored = [scored_case(case, answer.predicted_s) for case, answer in zip(cases, answers, strict=True)]
    bands = {run.id: answer.band for run, answer in zip(scored, answers, strict=True)}
    hidden = {run.id: answer.hidden for run, answer in zip(scored, answers, strict=True)}
    baseline, of_baseline = _baseline(cases, scored, catalog)
    return {
        "kind": "step_time",
        "count": len(cases),
        "failed": failed,
        "summary": {**summary(scored), "band_coverage": coverage(scored, bands)},
        "summary_predicted": summary([run for run in scored if run.predicted_s is not None]),
        "baseline": baseline,
        "families": {
            family: {
                **figures,
                "band_coverage": coverage([run for run in scored if run.family == family], bands),
                "hidden_communication": _most(hidden, [run for run in scored if run.family == family]),
            }
            for family, figures in families(scored).items()
        },
        "families_baseline": families(of_baseline),
        "families_traits": family_traits(cases, catalog),
        "sweeps": rankings(scored),
        "without_release": _without_release(cases, scored, catalog),
        "cases": [
            {
                "id": run.id,
                "family": run.family,
                "evidence": run.evidence,
                "inferred": [] if run.counts else list(case.inferred),
                "measured_s": run.measured_s,
                "predicted_s": run.predicted_s,
                "error": run.error,
                "hidden_communication": hidden[run.id],
                **_band_fields(bands[run.id]),
            }
            for case, run in zip(cases, scored, strict=True)
        ],
    }


@dataclass(frozen=True)
class _Answer:
    """Predicted seconds with their band, or the reason why there are none."""

    predicted_s: float | None
    band: CaseBand | None = None
    hidden: float | None = None
    """Share of the step that hides communication."""
    reason: str = ""


def _answer(case: StepCase, catalog: Catalog) -> _Answer:
    try:
        run = evaluate_case(case, catalog)
    except LimitError:
        raise
    except PerfsimError as error:
        return _Answer(None, reason=str(error))
    return _Answer(run.step_time_s, case_band(case, run, catalog), run.hidden_communication_fraction)


def coverage(runs: Sequence[Scored], bands: Mapping[str, CaseBand | None]) -> float | None:
    """The share of scored runs whose measured time lies in their band; None where none has a band."""
    held = [band.holds(run.measured_s) for run in runs if run.counts and (band := bands[run.id]) is not None]
    return sum(held) / len(held) if held else None


def _most(hidden: Mapping[str, float | None], runs: Sequence[Scored]) -> float:
    """The largest share of a step that hides communication, of the scored runs that were predicted."""
    return max((share for run in runs if run.counts and (share := hidden[run.id]) is not None), default=0.0)


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
        case.id, case.family, case.evidence, case.sweep, layout, case.measured.step_time_s, predicted_s
    )


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
    job, system = case_job(case, catalog), case_system(case, catalog)
    refuse_contradictions(case, system)
    flop = model_flop_per_step(job) + recompute_flop_per_step(job, case.training.recompute or "none")
    return flop / (case.system.num_devices * system.device.peak[job.recipe.precision])
