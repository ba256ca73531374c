"""Questions and plans of published runs, with the layout of the case or of the planner."""

from __future__ import annotations

from pathlib import Path

from perfsim.calibration import Calibration
from perfsim.catalog import Catalog, data_root
from perfsim.prediction.evaluation import Evaluation, evaluate
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import Question
from perfsim.published.cases import StepCase, case_job, case_layout, case_system
from perfsim.published.contradictions import refuse_contradictions
from perfsim.strategies import Plan


def case_question(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> Question:
    """The question of a published run; a fit passes its own `calibration`.

    The run is known to fit in memory, so the memory model cannot refuse it. Raises InputError for a case
    that contradicts itself or names something that the catalogue lacks.
    """
    system = case_system(case, catalog)
    refuse_contradictions(case, system)
    if calibration is not None:
        device = system.device.model_copy(update={"calibration": calibration})
        system = system.model_copy(update={"device": device})
    job = case_job(case, catalog)
    return Question(
        model=job.model,
        recipe=job.recipe,
        system=system,
        devices=case.system.num_devices,
        strategy=case.strategy,
        batch=job.global_batch_size,
        layout=case_layout(case, system),
        must_fit=False,
    )


def case_plan(case: StepCase, catalog: Catalog) -> Plan:
    """The plan of a case. Raises PerfsimError if it cannot be planned."""
    return plan_of(case_question(case, catalog))


def predict_s(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> float:
    """Step time of a published run from its description alone."""
    return evaluate_case(case, catalog, calibration).step_time_s


def evaluate_case(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> Evaluation:
    """A published run simulated from its description alone."""
    question = case_question(case, catalog, calibration)
    return evaluate(plan_of(question), question.costs)


def public_cases() -> list[Path]:
    """The case files that come with perfsim."""
    folder = data_root() / "studies" / "validation"
    return sorted(folder.glob("*.yaml"))
