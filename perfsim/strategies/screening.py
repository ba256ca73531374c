"""A closed form for a pipelined step, to screen layouts with; the simulation confirms the best.

With stage times f_k + b_k, m micro-batches and v chunks a rank [2104.04473 section 2.2]:

    step = sum over k of (f_k + b_k) / v + (m - 1/v) max over ranks of (f + b)
           + exposed gradient reduction + optimizer

It leaves out what only events show: transfers that hide, warm-up imbalance, contention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfsim.graph import GraphBuilder
from perfsim.strategies.data import Replicas
from perfsim.strategies.pipeline import VirtualStage, backward_template, forward_template
from perfsim.strategies.plan import Duration, Plan
from perfsim.strategies.tensor import layer_works


def estimate_step_s(
    plan: Plan, stages: Sequence[VirtualStage], replicas: Sequence[Replicas], duration: Duration
) -> float:
    """Step time of a plan, as the formula above."""
    layout = plan.layout
    passes = _pass_times(stages, duration)
    per_rank = [sum(passes[rank :: layout.pipeline]) for rank in range(layout.pipeline)]
    fill = sum(passes) / layout.virtual_pipeline
    pipelined = fill + (plan.num_microbatches - 1 / layout.virtual_pipeline) * max(per_rank)
    return pipelined + _reduction_s(plan, stages, replicas, duration) + _update_s(replicas, duration)


def _pass_times(stages: Sequence[VirtualStage], duration: Duration) -> list[float]:
    """Forward and backward of one micro-batch on each virtual stage, with what it sends.

    A stage's time is linear in its layers, so each kind of stage (first, middle, last) is priced
    with none and with one.
    """
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


def _pass_s(stage: VirtualStage, duration: Duration) -> float:
    builder = GraphBuilder()
    templates = [forward_template(builder, stage), backward_template(builder, stage)]
    seconds = [duration(work) for work in builder.works]
    return sum(seconds[number] for template in templates for number in template.work_ids)


def _reduction_s(
    plan: Plan, stages: Sequence[VirtualStage], replicas: Sequence[Replicas], duration: Duration
) -> float:
    """Gradient reduction that nothing hides: all of it, or what outlasts the last backward."""
    largest = max(replicas, key=lambda each: each.num_parameters)
    if largest.size == 1:
        return 0.0
    whole = duration(largest.reduce_work(largest.num_parameters))
    if not plan.job.recipe.overlap_grad_reduce:
        return whole
    layers = max(stage.num_layers for stage in stages)
    works = layer_works(stages[0].group.part, plan.layout.recompute)
    backward = layers * (duration(works.mlp_backward) + duration(works.attention_backward))
    return max(whole / max(layers, 1), whole - backward)


def _update_s(replicas: Sequence[Replicas], duration: Duration) -> float:
    largest = max(replicas, key=lambda each: each.num_parameters)
    update = duration(largest.optimizer_work())
    if largest.zero_stage and largest.size > 1:
        update += duration(largest.gather_work())
    return update
