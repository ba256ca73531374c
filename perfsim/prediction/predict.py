"""From a question to its prediction: a layout is given or planned, simulated and explained."""

from __future__ import annotations

from dataclasses import replace

from perfsim.interop import gaps_of
from perfsim.machines import machine_of
from perfsim.prediction.caveats import caveats_of, default_batch, default_settings, worst_first
from perfsim.prediction.disturbed import perturbed
from perfsim.prediction.evaluation import Evaluation, evaluate_reported
from perfsim.prediction.expansion import expanded
from perfsim.prediction.network_map import link_use
from perfsim.prediction.planner import best_plan, plan_of
from perfsim.prediction.prediction import MemoryBar, Prediction, Scaling
from perfsim.prediction.question import (
    DEFAULT_BATCH_PER_DEVICE,
    MEMORY_LIMIT,
    Question,
    allowed_share,
    cluster_note,
)
from perfsim.prediction.result import Caveat, Training
from perfsim.prediction.why import why
from perfsim.specs.calibration import ClusterCalibration, GpuCalibration
from perfsim.strategies import Plan


def predict(question: Question) -> Prediction:
    """Predict one step. Raises InputError, LayoutError or PlanError where the question has no answer."""
    evaluation, caveats = _planned(question)
    if question.detail == "chunk":
        finer = machine_of(question.system).in_chunks(evaluation.plan.layout)
        if finer != evaluation.plan.layout:
            plan = question.chosen.plan(question.job, question.topology, finer)
            evaluation = evaluate_reported(question, plan)
            caveats = []
    if question.expand:
        evaluation = expanded(evaluation, question.expand)
    if question.perturbations is not None:
        evaluation = perturbed(evaluation, question.perturbations)
    prediction = prediction_of(evaluation, question.memory_limit)
    caveats = [*prediction.caveats, *batch_caveats(question), *caveats]
    return replace(prediction, caveats=worst_first(caveats))


def _planned(question: Question) -> tuple[Evaluation, list[Caveat]]:
    """The evaluated layout, given or planned, and a caveat on settings that a given layout omits."""
    if question.layout is None:
        return best_plan(question), []
    plan = plan_of(question)
    named = question.named_settings
    return evaluate_reported(question, plan), [] if named is None else default_settings(named, plan)


def batch_caveats(question: Question) -> list[Caveat]:
    """A caveat on the default batch; none where the question gives a batch."""
    if question.batch is not None:
        return []
    own = question.recipe.batch_over(question.devices)
    per_device = DEFAULT_BATCH_PER_DEVICE if own is None else None
    return [default_batch(question.job.global_batch_size, per_device)]


def prediction_of(evaluation: Evaluation, memory_limit: float = MEMORY_LIMIT) -> Prediction:
    """The prediction of an evaluation, with the causes of its step time, its caveats and its plan's notes.

    A plan above `memory_limit`, a share of a device's memory, has a caveat.
    """
    plan = evaluation.plan
    causes = why(plan, evaluation.step, evaluation.trace)
    return Prediction(
        model=plan.job.model.name,
        strategy=plan.strategy,
        system=_system_label(plan),
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
        why=causes,
        simulated=evaluation.trace.simulated,
        utilisation=link_use(evaluation.trace, evaluation.placed),
        cluster_calibration=_scaling(evaluation.cluster),
        perturbed=evaluation.perturbed,
        memory=tuple(
            MemoryBar(use.place, dict(use.parts_bytes), use.capacity_bytes)
            for use in plan.memory
            if use.on_device
        ),
        caveats=caveats_of(evaluation, causes, allowed_share(plan.system, memory_limit)),
        notes=(*plan.notes, *gaps_of(plan.job.model)),
        machine=_marked(plan, plan.system.machine(plan.topology.num_devices)),
        devices_noun=_marked(plan, plan.system.devices_noun),
        training=training_of(plan),
        evaluation=evaluation,
    )


def training_of(plan: Plan) -> Training:
    """What the step of a plan holds for, besides model and machine."""
    recipe = plan.job.recipe
    constants = plan.system.device.calibration
    has_host = recipe.framework is not None and isinstance(constants, GpuCalibration)
    framework = recipe.framework.name if recipe.framework and has_host else ""
    return Training(
        recipe.name, recipe.seq_length, recipe.precision, recipe.attention, recipe.dropout, framework
    )


def _system_label(plan: Plan) -> str:
    """The name of a plan's system; a system at peak is marked as an upper bound."""
    return _marked(plan, plan.system.name)


def _marked(plan: Plan, name: str) -> str:
    """A name of a plan's system; a system at peak is marked as an upper bound."""
    peak = machine_of(plan.system).at_peak(plan.system, plan.job.recipe)
    return f"{name.removesuffix(' at peak')} at peak (upper bound, never observed)" if peak else name


def _scaling(cluster: ClusterCalibration | None) -> Scaling | None:
    """The user's cluster calibration as a plain value."""
    return None if cluster is None else Scaling(cluster.name, cluster.scale, cluster_note(cluster))
