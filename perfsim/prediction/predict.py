"""From a question to its prediction: a layout is given or planned, simulated and explained."""

from __future__ import annotations

from dataclasses import replace

from perfsim.calibration import ClusterCalibration
from perfsim.machines import machine_of
from perfsim.prediction.cluster import cluster_note
from perfsim.prediction.evaluation import Evaluation, evaluate, graph_of
from perfsim.prediction.expansion import expanded
from perfsim.prediction.perturbation import perturbed
from perfsim.prediction.planner import best_plan, plan_of
from perfsim.prediction.prediction import MemoryBar, Prediction, Scaling
from perfsim.prediction.question import DEFAULT_BATCH_PER_DEVICE, Question
from perfsim.prediction.reached import above_all_published, fewer_than_published
from perfsim.prediction.remarks import defaults_remark
from perfsim.prediction.why import why
from perfsim.strategies import Plan


def predict(question: Question) -> Prediction:
    """Predict one step. Raises InputError, LayoutError or PlanError where the question has no answer."""
    evaluation, remark = _planned(question)
    if question.detail == "chunk":
        finer = machine_of(question.system).in_chunks(evaluation.plan.layout)
        if finer != evaluation.plan.layout:
            plan = question.chosen.plan(question.job, question.topology, finer)
            evaluation, remark = _evaluated(question, plan), ""
    if question.expand:
        evaluation = expanded(evaluation, question.expand)
    if question.perturbations is not None:
        evaluation = perturbed(evaluation, question.perturbations)
    prediction = prediction_of(evaluation)
    remarks = (_batch_remark(question), remark, *published_remarks(prediction))
    return replace(prediction, notes=(*prediction.notes, *filter(None, remarks)))


def _planned(question: Question) -> tuple[Evaluation, str]:
    """The evaluated layout, given or planned, and a remark on settings that a given layout omits."""
    if question.layout is None:
        return best_plan(question), ""
    plan, named = plan_of(question), question.named_settings
    return _evaluated(question, plan), "" if named is None else defaults_remark(named, plan)


def _evaluated(question: Question, plan: Plan) -> Evaluation:
    graph = graph_of(plan, question.chosen)
    return evaluate(plan, question.costs, cluster=question.cluster, graph=graph)


def _batch_remark(question: Question) -> str:
    """A remark on the default batch; empty where the question gives a batch."""
    if question.batch is not None:
        return ""
    of_recipe = question.recipe.batch_over(question.devices)
    if of_recipe is not None:
        return f"no batch was given: the recipe's {of_recipe:,} sequences are used"
    return (
        f"no batch was given: {DEFAULT_BATCH_PER_DEVICE} sequences per device are used, "
        f"{question.job.global_batch_size:,} in all; the step time depends on it "
        "(--batch, --batch-per-device)"
    )


def prediction_of(evaluation: Evaluation) -> Prediction:
    """The prediction of an evaluation, with the causes of its step time and the notes of its plan."""
    plan = evaluation.plan
    return Prediction(
        model=plan.job.model.name,
        strategy=plan.strategy,
        system=system_label(plan),
        num_devices=plan.topology.num_devices,
        layout=plan.layout.as_dict(plan.num_microbatches),
        global_batch_size=plan.job.global_batch_size,
        step_time_s=evaluation.step_time_s,
        tokens_per_s=evaluation.tokens_per_s,
        mfu=evaluation.mfu,
        hfu=evaluation.hfu,
        bubble_fraction=evaluation.bubble_fraction,
        exposed_communication_fraction=evaluation.exposed_communication_fraction,
        peak_memory_bytes=plan.peak_memory_bytes,
        breakdown_s=dict(evaluation.breakdown_s),
        why=why(plan, evaluation.step, evaluation.trace),
        cluster_calibration=_scaling(evaluation.cluster),
        perturbed=evaluation.perturbed,
        memory=tuple(
            MemoryBar(use.place, dict(use.parts_bytes), use.capacity_bytes)
            for use in plan.memory
            if use.on_device
        ),
        notes=plan.notes,
        evaluation=evaluation,
    )


def published_remarks(prediction: Prediction) -> tuple[str, str]:
    """Remarks where a prediction is outside the range of published runs; empty strings elsewhere."""
    if prediction.evaluation is None:
        return "", ""
    plan = prediction.evaluation.plan
    return fewer_than_published(plan, prediction.why.fixed_s), above_all_published(plan, prediction.mfu)


def system_label(plan: Plan) -> str:
    """The name of a plan's system; a system at peak is marked as an upper bound."""
    name, peak = plan.system.name, machine_of(plan.system).at_peak(plan.system, plan.job.recipe)
    return f"{name} at peak (upper bound, never observed)" if peak else name


def _scaling(cluster: ClusterCalibration | None) -> Scaling | None:
    """The user's cluster calibration as a plain value."""
    return None if cluster is None else Scaling(cluster.name, cluster.scale, cluster_note(cluster))
