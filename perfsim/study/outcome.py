"""From a run to the plain values of a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from perfsim.calibration import ClusterCalibration
from perfsim.costs.wafer import PEAK
from perfsim.hardware import SystemSpec, WaferClusterSpec
from perfsim.strategies import Plan
from perfsim.study.batches import BatchChoice
from perfsim.study.cluster import cluster_note
from perfsim.study.evaluate import Evaluation, Perturbed
from perfsim.study.published.reached import above_all_published, fewer_than_published
from perfsim.study.remarks import edge_remark
from perfsim.study.result import BatchPoint, CandidateResult, MemoryBar, TimelineBar, Why
from perfsim.study.why import why
from perfsim.workload import TrainingRecipe

MOST_BARS = 4000
"""Timeline bars of one candidate; a whole step of a large run has hundreds of thousands of tasks."""


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
    return why(evaluation.plan, evaluation.graph, evaluation.trace, evaluation.costs)


def _scale(cluster: ClusterCalibration | None) -> dict[str, Any] | None:
    """The user's own scale, named wherever its step time stands."""
    if cluster is None:
        return None
    return {"name": cluster.name, "scale": cluster.scale, "note": cluster_note(cluster)}


def candidate_result(
    evaluation: Evaluation, choice: BatchChoice, curve: Sequence[BatchChoice], tried: Sequence[int] = ()
) -> CandidateResult:
    """A candidate at its best batch, the best of those `tried`."""
    explained = why_of(evaluation)
    few = fewer_than_published(evaluation.plan, explained.fixed_s)
    edge = edge_remark(tried, evaluation.plan.job.global_batch_size)
    return CandidateResult(
        **{**metrics(evaluation, explained), "why": explained},
        steps=choice.answer.steps,
        time_to_accuracy_s=choice.answer.time_s,
        time_to_accuracy_band_s=choice.answer.band_s,
        memory=tuple(
            MemoryBar(use.place, dict(use.parts_bytes), use.capacity_bytes)
            for use in evaluation.plan.memory
            if use.on_device
        ),
        batch_curve=tuple(_point(each) for each in curve),
        timeline=timeline(evaluation),
        notes=(
            *evaluation.plan.notes,
            choice.answer.regime_text,
            *filter(None, [edge, few, above_all_published(evaluation.plan, evaluation.mfu)]),
            *([cluster_note(evaluation.cluster)] if evaluation.cluster else []),
        ),
        batch_at_edge=edge,
    )


def _point(choice: BatchChoice) -> BatchPoint:
    return BatchPoint(
        global_batch_size=choice.plan.job.global_batch_size,
        batch_tokens=choice.answer.batch_tokens,
        step_time_s=choice.step_time_s,
        steps=choice.answer.steps,
        time_to_accuracy_s=choice.answer.time_s,
        time_to_accuracy_band_s=choice.answer.band_s,
        layout=layout_fields(choice.plan),
    )


def timeline(evaluation: Evaluation) -> tuple[TimelineBar, ...]:
    """The tasks of the measured step as bars; neighbours of one kind on one stream become one bar.

    Times count from the start of the measured step. Bars past `MOST_BARS` are left out from the end.
    """
    trace = evaluation.trace
    graph = trace.graph
    low, high = trace.step_window_s
    chosen = np.flatnonzero((trace.end_s > low) & (trace.start_s < high) & (trace.end_s > trace.start_s))
    chosen = chosen[np.lexsort((chosen, trace.start_s[chosen], graph.stream[chosen]))]
    bars: list[TimelineBar] = []
    for task in chosen.tolist():
        span = trace.span(task)
        start, end = max(span.start_s, low) - low, min(span.end_s, high) - low
        last = bars[-1] if bars else None
        joins = (
            last is not None
            and (last.lane, last.category, last.microbatch) == (span.stream, span.category, span.tag)
            and start <= last.end_s
        )
        if last is not None and joins:
            bars[-1] = TimelineBar(last.lane, last.name, last.category, last.start_s, end, last.microbatch)
        else:
            bars.append(TimelineBar(span.stream, span.name, span.category, start, end, span.tag))
    bars.sort(key=lambda bar: bar.start_s)
    return tuple(bars[:MOST_BARS])
