"""A closed form for a pipelined step, to screen layouts with; the simulation confirms the best.

With stage times f_k + b_k, m micro-batches and v chunks a rank [2104.04473 section 2.2]:

    step = sum over k of (f_k + b_k) / v + (m - 1/v) max over ranks of (f + b)
           + exposed gradient reduction + tied embedding + optimizer

It leaves out what only events show: transfers that hide, warm-up imbalance, contention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfsim.costs.memory import main_grad_bytes, stage_parameters
from perfsim.graph import GraphBuilder, RankGroup
from perfsim.strategies.data import Replicas
from perfsim.strategies.pipeline import (
    VirtualStage,
    backward_template,
    forward_template,
    tied_embedding_work,
)
from perfsim.strategies.plan import Duration, Plan
from perfsim.strategies.tensor import LayerWorks, layer_works
from perfsim.strategies.zero import SHARDED, Shards


def estimate_step_s(
    plan: Plan, stages: Sequence[VirtualStage], replicas: Sequence[Replicas], duration: Duration
) -> float:
    """Step time of a plan, as the formula above."""
    layout = plan.layout
    passes = _pass_times(stages, duration)
    per_rank = [sum(passes[rank :: layout.pipeline]) for rank in range(layout.pipeline)]
    fill = sum(passes) / layout.virtual_pipeline
    pipelined = fill + (plan.num_microbatches - 1 / layout.virtual_pipeline) * max(per_rank)
    gradients = _reduction_s(plan, stages, replicas, duration) + _tie_s(plan, stages, duration)
    return pipelined + gradients + _update_s(replicas, duration)


def _pass_times(stages: Sequence[VirtualStage], duration: Duration) -> list[float]:
    """Forward and backward of one micro-batch on each virtual stage, with what it sends.

    A stage's time is linear in its layers, so each kind of stage (first, middle, last) is priced
    with none and with one.
    """
    if stages[0].shards is not None:
        return [_sharded_pass_s(stages[0], stages[0].shards, duration)]
    known: dict[tuple[bool, bool], tuple[float, float]] = {}
    times = []
    for stage in stages:
        kind = (stage.first, stage.last)
        if kind not in known:
            known[kind] = (
                _pass_s(replace(stage, num_layers=0), duration),
                _pass_s(replace(stage, num_layers=1), duration),
            )
        none, one = known[kind]
        times.append(none + stage.num_layers * (one - none))
    return times


def _sharded_pass_s(stage: VirtualStage, shards: Shards, duration: Duration) -> float:
    """Both passes of a sharded stage: compute and communication hide one another, the longer counts.

    The first gather, of embedding and head, stands alone.
    """
    total = duration(shards.gather_work(shards.root_parameters))
    for write in (forward_template, backward_template):
        builder = GraphBuilder()
        recorded = write(builder, stage)
        works = [builder.works[number] for number in recorded.work_ids]
        seconds = [duration(work) for work in works]
        moving = [work.category == "data_communication" for work in works]
        communication = sum(s for s, moves in zip(seconds, moving, strict=True) if moves)
        total += max(communication, sum(seconds) - communication)
    return total


def _pass_s(stage: VirtualStage, duration: Duration) -> float:
    builder = GraphBuilder()
    templates = [forward_template(builder, stage), backward_template(builder, stage)]
    seconds = [duration(work) for work in builder.works]
    return sum(seconds[number] for template in templates for number in template.work_ids)


def _reduction_s(
    plan: Plan, stages: Sequence[VirtualStage], replicas: Sequence[Replicas], duration: Duration
) -> float:
    """Gradient reduction that nothing hides: all of it, or what outlasts the last backward.

    With overlap a layer's gradients are reduced while earlier layers run backward; the tables of
    the first and last stage are complete at the very end, so theirs is exposed.
    """
    rank = max(range(len(replicas)), key=lambda rank: replicas[rank].num_parameters)
    largest = replicas[rank]
    if largest.size == 1 or stages[0].shards is not None:
        return 0.0
    if not plan.job.recipe.overlap_grad_reduce:
        return duration(largest.reduce_work(largest.num_parameters))
    part, mine = stages[0].group.part, stages[rank :: len(replicas)]
    body = stage_parameters(part, sum(stage.num_layers for stage in mine), first=False, last=False)
    tables = largest.num_parameters - body
    seconds = duration(largest.reduce_work(tables)) if tables >= 1 else 0.0
    layers = max(stage.num_layers for stage in mine)
    if layers:
        bucket = duration(largest.reduce_work(stage_parameters(part, 1, first=False, last=False)))
        backward = _layer_backward_s(layer_works(part, plan.layout.recompute), duration)
        seconds += bucket + (layers - 1) * max(0.0, bucket - backward)
    return seconds


def _layer_backward_s(works: LayerWorks, duration: Duration) -> float:
    """Compute of one layer's backward, with what it makes again."""
    again = (works.attention_recompute, works.mlp_recompute)
    each = (*again, works.mlp_backward, works.attention_backward)
    return sum(duration(work) for work in each if work is not None)


def _tie_s(plan: Plan, stages: Sequence[VirtualStage], duration: Duration) -> float:
    """Sum of a tied embedding's gradient over the first and the last stage."""
    if plan.layout.pipeline == 1 or not plan.job.model.tied_embeddings:
        return 0.0
    first, last = stages[0].group, stages[-1].group
    ends = RankGroup(first.ranks.start, last.ranks.start - first.ranks.start, 2)
    return duration(tied_embedding_work(first, ends, main_grad_bytes(plan.job.recipe)))


def _update_s(replicas: Sequence[Replicas], duration: Duration) -> float:
    largest = max(replicas, key=lambda each: each.num_parameters)
    update = duration(largest.optimizer_work())
    if 0 < largest.zero_stage < SHARDED and largest.size > 1:
        update += duration(largest.gather_work(largest.num_parameters))
    return update
