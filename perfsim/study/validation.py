"""Predicting published runs, beside a baseline that any fool could use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from perfsim.calibration import Calibration
from perfsim.catalog import Catalog, data_root, default_catalog, load_mapping, parse_file
from perfsim.errors import PerfsimError
from perfsim.strategies import Plan, strategy
from perfsim.study.cases import CaseFile, StepCase, case_job, case_layout, case_system
from perfsim.study.convergence_validation import validate_convergence
from perfsim.study.evaluate import costs_for, evaluate
from perfsim.study.planner import screen
from perfsim.study.score import Scored, families, one_constant, summary
from perfsim.topology import build_topology
from perfsim.transformer import model_flop_per_step, recompute_flop_per_step

FEWEST_FOR_PROCESSES = 20
"""Cases in a file from which on several processes are started."""


def validate_file(path: Path, catalog: Catalog | None = None) -> dict[str, Any]:
    """Score one file of cases, step times or convergence; CatalogError lists what is malformed."""
    catalog = catalog or default_catalog()
    data = load_mapping(path, catalog).data
    rows = data.get("cases") or []
    if isinstance(rows, list) and rows and all(isinstance(row, dict) and "points" in row for row in rows):
        return {"file": path.name, **validate_convergence(rows)}
    return {"file": path.name, **validate_cases(parse_file(path, CaseFile, catalog).cases, catalog)}


def validate_cases(cases: Sequence[StepCase], catalog: Catalog) -> dict[str, Any]:
    """Predict every case; those that cannot be predicted are listed with the reason."""
    answers = _predict_all(cases, catalog)
    failed = [
        {"id": case.id, "error": answer}
        for case, answer in zip(cases, answers, strict=True)
        if isinstance(answer, str)
    ]
    scored = [
        _scored(case, None if isinstance(answer, str) else answer)
        for case, answer in zip(cases, answers, strict=True)
    ]
    baseline = _baseline(cases, scored, catalog)
    return {
        "kind": "step_time",
        "count": len(cases),
        "failed": failed,
        "summary": summary(scored),
        "summary_predicted": summary([each for each in scored if each.predicted_s is not None]),
        "baseline": baseline,
        "families": families(scored),
        "cases": [
            {
                "id": each.id,
                "family": each.family,
                "evidence": each.evidence,
                "measured_s": each.measured_s,
                "predicted_s": each.predicted_s,
                "error": each.error,
            }
            for each in scored
        ],
    }


def _predict_all(cases: Sequence[StepCase], catalog: Catalog) -> list[float | str]:
    """Predictions in the order of the cases, or why there is none; several processes where it pays."""
    if len(cases) < FEWEST_FOR_PROCESSES or (os.cpu_count() or 1) == 1:
        return [_predict_or_say_why(case, catalog) for case in cases]
    with ProcessPoolExecutor() as pool:
        return list(pool.map(partial(_predict_or_say_why, catalog=catalog), cases))


def _predict_or_say_why(case: StepCase, catalog: Catalog) -> float | str:
    try:
        return predict_s(case, catalog)
    except PerfsimError as error:
        return str(error)


def predict_s(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> float:
    """Step time of a published run from its description alone; a fit tries a `calibration` of its own."""
    plan = case_plan(case, catalog, calibration)
    return evaluate(plan, costs_for(plan.topology, plan.job.recipe)).step_time_s


def case_plan(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> Plan:
    """The plan of a case: its own layout on GPUs, the memory policy's choice on wafers.

    That it did fit is known, so a memory model that says otherwise does not refuse it.
    """
    chosen = strategy(case.strategy)
    system = case_system(case, catalog)
    if calibration is not None:
        device = system.device.model_copy(update={"calibration": calibration})
        system = system.model_copy(update={"device": device})
    topology = build_topology(system, case.system.num_devices)
    job = case_job(case, catalog)
    if chosen.system_kind == "wafer-cluster":
        return screen(chosen, job, topology, costs_for(topology, job.recipe))[0].plan
    return chosen.plan(job, topology, case_layout(case), check_memory=False)


def _scored(case: StepCase, predicted_s: float | None) -> Scored:
    layout = repr((case.parallel, case.training.micro_batch_size, case.training.recompute))
    return Scored(
        case.id, case.family, case.evidence, case.sweep, layout, case.measured.step_time_s, predicted_s
    )


def _baseline(cases: Sequence[StepCase], scored: Sequence[Scored], catalog: Catalog) -> dict[str, Any]:
    """Hardware FLOPs over devices x peak x e, with the one e that minimises the mean error of the file."""
    ideal: dict[str, float] = {}
    for case in cases:
        try:
            ideal[case.id] = _ideal_s(case, catalog)
        except PerfsimError:
            continue
    known = [each for each in scored if each.counts and each.id in ideal]
    if not known:
        return summary([])
    efficiency = one_constant([ideal[each.id] for each in known], [each.measured_s for each in known])
    predictions = [replace(each, predicted_s=ideal[each.id] / efficiency) for each in known]
    return {**summary(predictions), "n": len(known), "efficiency": efficiency}


def _ideal_s(case: StepCase, catalog: Catalog) -> float:
    """The step at the full peak of every device, recompute included."""
    job = case_job(case, catalog)
    flop = model_flop_per_step(job) + recompute_flop_per_step(job, case.training.recompute or "none")
    peak = case_system(case, catalog).device.peak[job.recipe.precision]
    return flop / (case.system.num_devices * peak)


def public_cases() -> list[Path]:
    """The files of published runs that come with perfsim."""
    folder = data_root() / "studies" / "validation"
    return sorted(folder.glob("*.yaml"))
