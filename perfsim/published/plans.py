"""Plans of published runs: each case with its own layout, or the memory policy's choice on wafers."""

from __future__ import annotations

from pathlib import Path

from perfsim.calibration import Calibration
from perfsim.catalog import Catalog, data_root
from perfsim.machines import build_topology, costs_for
from perfsim.prediction.evaluation import evaluate
from perfsim.prediction.planner import screen
from perfsim.published.cases import StepCase, case_job, case_layout, case_system
from perfsim.published.contradictions import refuse_contradictions
from perfsim.strategies import Plan, strategy


def case_plan(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> Plan:
    """The plan of a case: its own layout on GPUs, the memory policy's choice on wafers.

    That it did fit is known, so a memory model that says otherwise does not refuse it.
    """
    chosen = strategy(case.strategy)
    system = case_system(case, catalog)
    refuse_contradictions(case, system)
    if calibration is not None:
        device = system.device.model_copy(update={"calibration": calibration})
        system = system.model_copy(update={"device": device})
    topology = build_topology(system, case.system.num_devices)
    job = case_job(case, catalog)
    if chosen.system_kind == "wafer-cluster":
        return screen(chosen, job, topology, costs_for(topology, job.recipe))[0].plan
    return chosen.plan(job, topology, case_layout(case), check_memory=False)


def public_cases() -> list[Path]:
    """The files of published runs that come with perfsim."""
    folder = data_root() / "studies" / "validation"
    return sorted(folder.glob("*.yaml"))


def predict_s(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> float:
    """Step time of a published run from its description alone; a fit tries a `calibration` of its own."""
    plan = case_plan(case, catalog, calibration)
    return evaluate(plan, costs_for(plan.topology, plan.job.recipe)).step_time_s
