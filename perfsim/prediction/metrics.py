"""An evaluation as the plain values of the JSON interface."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from perfsim.calibration import ClusterCalibration
from perfsim.costs.wafer import PEAK
from perfsim.hardware import SystemSpec, WaferClusterSpec
from perfsim.prediction.cluster import cluster_note
from perfsim.prediction.evaluation import Evaluation, Perturbed
from perfsim.prediction.result import Why
from perfsim.prediction.why import why
from perfsim.strategies import Plan
from perfsim.workload import TrainingRecipe


def metrics(evaluation: Evaluation, explained: Why | None = None) -> dict[str, Any]:
    """What one point answers with, by the names of the JSON interface."""
    plan = evaluation.plan
    return {
        "strategy": plan.strategy,
        "system": system_label(plan),
        "num_devices": plan.topology.num_devices,
        "layout": plan.layout.as_dict(plan.num_microbatches),
        "global_batch_size": plan.job.global_batch_size,
        "step_time_s": evaluation.step_time_s,
        "tokens_per_s": evaluation.tokens_per_s,
        "mfu": evaluation.mfu,
        "hfu": evaluation.hfu,
        "bubble_fraction": evaluation.bubble_fraction,
        "exposed_communication_fraction": evaluation.exposed_communication_fraction,
        "peak_memory_bytes": plan.peak_memory_bytes,
        "step_breakdown_s": dict(evaluation.breakdown_s),
        "why": asdict(explained or why_of(evaluation)),
        "cluster_calibration": _scale(evaluation.cluster),
        "perturbed": _perturbed(evaluation.perturbed),
    }


def _perturbed(perturbed: Perturbed | None) -> dict[str, Any] | None:
    """What disturbed the step, the step without it, and the run through failures."""
    if perturbed is None:
        return None
    found = {**asdict(perturbed), "draws_s": list(perturbed.draws_s)}
    if perturbed.run is not None:
        found["run"] = {**asdict(perturbed.run), "goodput": perturbed.run.goodput}
    return found


def system_label(plan: Plan) -> str:
    """The name of a plan's system; one without any inefficiency is named as what it is."""
    name = plan.system.name
    return f"{name} at peak (upper bound, never observed)" if at_peak(plan.system, plan.job.recipe) else name


def at_peak(system: SystemSpec, recipe: TrainingRecipe) -> bool:
    """Whether a system is taken without any inefficiency, as no release of its software is."""
    if not isinstance(system, WaferClusterSpec):
        return False
    return (recipe.software_release or system.software_release) == PEAK


def why_of(evaluation: Evaluation) -> Why:
    """Why the step takes as long as it does."""
    return why(evaluation.plan, evaluation.step, evaluation.trace)


def _scale(cluster: ClusterCalibration | None) -> dict[str, Any] | None:
    """The user's own scale, named wherever its step time stands."""
    if cluster is None:
        return None
    return {"name": cluster.name, "scale": cluster.scale, "note": cluster_note(cluster)}
