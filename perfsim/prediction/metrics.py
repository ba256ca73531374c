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


def layout_fields(plan: Plan) -> dict[str, Any]:
    """A layout by the names it has in YAML; only what its kind of system uses."""
    layout = plan.layout
    common: dict[str, Any] = {
        "data": layout.data,
        "micro_batch_size": layout.micro_batch_size,
        "num_microbatches": plan.num_microbatches,
        "recompute": layout.recompute,
    }
    if isinstance(plan.system, WaferClusterSpec):
        chunks = {"stream_chunks": layout.stream_chunks} if layout.stream_chunks > 1 else {}
        return {**common, "recompute_layers": layout.recompute_layers, "spill": layout.spill, **chunks}
    return {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        **common,
        "virtual_pipeline": layout.virtual_pipeline,
        "sequence_parallel": layout.sequence_parallel,
        "zero_stage": layout.zero_stage,
        "schedule": layout.schedule,
        "layers_per_stage": None if layout.layers_per_stage is None else list(layout.layers_per_stage),
    }


def metrics(evaluation: Evaluation, explained: Why | None = None) -> dict[str, Any]:
    """What one point answers with, by the names of the JSON interface."""
    plan = evaluation.plan
    return {
        "strategy": plan.strategy,
        "system": system_label(plan),
        "num_devices": plan.topology.num_devices,
        "layout": layout_fields(plan),
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
