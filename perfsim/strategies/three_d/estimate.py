"""A closed form of a pipelined step, to screen layouts; the best are then simulated.

With m micro-batches and t = f + b + w, the passes of one micro-batch on a rank:

    step = m max over ranks of t + bubble of the schedule (see `schedules/`)
           + exposed gradient reduction + tied embedding + optimizer

It omits effects that need simulation: hidden transfers, imbalance during warm-up, contention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from perfsim.costs.memory import reduced_grad_bytes, stage_parameters
from perfsim.graph import GraphBuilder, RankGroup, Template, Work
from perfsim.strategies.plan import Duration
from perfsim.strategies.schedules import PassTimes, bubble_s, schedule_called
from perfsim.strategies.three_d.data import Replicas
from perfsim.strategies.three_d.pipeline import (
    backward_template,
    dgrad_template,
    forward_template,
    wgrad_template,
)
from perfsim.strategies.three_d.stages import ThreeDPlan
from perfsim.strategies.three_d.tensor import layer_works, split_works
from perfsim.strategies.three_d.virtual_stage import VirtualStage, tied_embedding_work
from perfsim.strategies.three_d.zero import SHARDED, Shards

Writer = Callable[[GraphBuilder, VirtualStage], Template]


def estimate_step_s(
    plan: ThreeDPlan, stages: Sequence[VirtualStage], replicas: Sequence[Replicas], duration: Duration
) -> float:
    """Step time of a plan by the formula above."""
    layout, microbatches = plan.layout, plan.num_microbatches
    ranks = _rank_times(plan, stages, replicas, duration)
    together = True if _tied_apart(plan, stages) else None
    idle = bubble_s(layout.schedule, ranks, layout.virtual_pipeline, microbatches, together=together)
    pipelined = microbatches * max(times.total_s for times in ranks) + idle
    gradients = _reduction_s(plan, stages, replicas, duration) + _tie_s(plan, stages, replicas, duration)
    return pipelined + gradients + _update_s(replicas, duration)


def _rank_times(
    plan: ThreeDPlan, stages: Sequence[VirtualStage], replicas: Sequence[Replicas], duration: Duration
) -> list[PassTimes]:
    """Pass times of all chunks of each rank, with exposed reductions of every micro-batch."""
    passes = _pass_times(stages, duration, split=schedule_called(plan.layout.schedule).splits_backward)
    ranks = []
    for rank, group in enumerate(replicas):
        own = [stage for stage in stages if stage.rank == rank]
        times = [sum(part) for part in zip(*(passes[stage.number] for stage in own), strict=True)]
        if group.shards_gradients:
            reducing = sum(_scatter_s(stage, group, duration) for stage in own)
            hidden = sum(times) if plan.job.recipe.overlap_grad_reduce else 0.0
            times[-1 if times[-1] else 1] += max(0.0, reducing - hidden)
        ranks.append(PassTimes(*times))
    return ranks


def _scatter_s(stage: VirtualStage, replicas: Replicas, duration: Duration) -> float:
    """Seconds to reduce all gradients of a virtual stage, layer by layer."""
    part = stage.group.part
    layer = stage_parameters(part, 1, first=False, last=False)
    embedding_and_head = stage_parameters(part, 0, first=stage.first, last=stage.last)
    seconds = stage.num_layers * duration(replicas.reduce_work(layer))
    return seconds + (duration(replicas.reduce_work(embedding_and_head)) if embedding_and_head else 0.0)


def _pass_times(stages: Sequence[VirtualStage], duration: Duration, *, split: bool) -> list[PassTimes]:
    """Pass times of one micro-batch on each virtual stage, including sends.

    The time of a stage is linear in its layers, so each kind of stage (first, middle, last) is priced
    with no layer and with one.
    """
    if stages[0].shards is not None:
        return [PassTimes(_sharded_pass_s(stages[0], stages[0].shards, duration), 0.0)]
    writers: tuple[Writer, ...] = (forward_template, backward_template)
    if split:
        writers = (forward_template, dgrad_template, wgrad_template)
    known: dict[tuple[bool, bool], tuple[PassTimes, PassTimes]] = {}
    times = []
    for stage in stages:
        kind = (stage.first, stage.last)
        if kind not in known:
            known[kind] = _bare_and_layered_s(stage, writers, duration)
        bare, layered = known[kind]
        count = stage.num_layers
        times.append(PassTimes(*(a + count * (b - a) for a, b in zip(bare, layered, strict=True))))
    return times


@lru_cache(maxsize=4096)
def _sharded_pass_s(stage: VirtualStage, shards: Shards, duration: Duration) -> float:
    """Both passes of a sharded stage: compute and communication overlap, so the longer counts.

    The first gather, of embedding and LM head, is exposed.
    """
    total = duration(shards.gather_work(shards.root_parameters))
    for works in _works(stage, (forward_template, backward_template)):
        seconds = [duration(work) for work in works]
        moving = [work.category == "data_communication" for work in works]
        communication = sum(s for s, moves in zip(seconds, moving, strict=True) if moves)
        total += max(communication, sum(seconds) - communication)
    return total


@lru_cache(maxsize=4096)
def _bare_and_layered_s(
    stage: VirtualStage, writers: tuple[Writer, ...], duration: Duration
) -> tuple[PassTimes, PassTimes]:
    """Pass times of a stage with no layer and with one; cached, since batches of a study repeat them."""
    bare, layered = (_pass_s(replace(stage, num_layers=count), writers, duration) for count in (0, 1))
    return bare, layered


def _pass_s(stage: VirtualStage, writers: tuple[Writer, ...], duration: Duration) -> PassTimes:
    return PassTimes(*(sum(map(duration, works)) for works in _works(stage, writers)))


@lru_cache(maxsize=4096)
def _works(stage: VirtualStage, writers: tuple[Writer, ...]) -> tuple[tuple[Work, ...], ...]:
    """The work of each pass of a stage."""
    builder = GraphBuilder()
    templates = [write(builder, stage) for write in writers]
    works = builder.works
    return tuple(tuple(works[number] for number in template.work_ids) for template in templates)


def _reduction_s(
    plan: ThreeDPlan, stages: Sequence[VirtualStage], replicas: Sequence[Replicas], duration: Duration
) -> float:
    """Exposed gradient reduction: all of it, or what remains after the last backward.

    With overlap, a layer's gradients are reduced while earlier layers run backward. Those of embedding and LM
    head are complete only at the end, so their reduction is exposed.
    """
    largest = max(replicas, key=lambda group: group.num_parameters)
    if largest.size == 1 or stages[0].shards is not None:
        return 0.0
    if not plan.job.recipe.overlap_grad_reduce:
        return 0.0 if largest.shards_gradients else duration(largest.reduce_work(largest.num_parameters))
    part, own = stages[0].group.part, [stage for stage in stages if stage.rank == replicas.index(largest)]
    body = stage_parameters(part, sum(stage.num_layers for stage in own), first=False, last=False)
    embedding_and_head = largest.num_parameters - body
    seconds = duration(largest.reduce_work(embedding_and_head)) if embedding_and_head >= 1 else 0.0
    layer = stage_parameters(part, 1, first=False, last=False)
    per_bucket, pass_s = largest.layers_per_bucket(layer), _layer_pass_s(plan, own[0], duration)
    full, rest = divmod(max(stage.num_layers for stage in own), per_bucket)
    computed, reduced = 0.0, 0.0
    for count, buckets in ((per_bucket, full), (rest, 1 if rest else 0)):
        bucket_s = duration(largest.reduce_work(count * layer)) if buckets else 0.0
        for _ in range(buckets):
            computed += count * pass_s
            reduced = max(reduced, computed) + bucket_s
    return seconds + reduced - computed


def _layer_pass_s(plan: ThreeDPlan, stage: VirtualStage, duration: Duration) -> float:
    """Compute of one layer in the pass that completes its gradients, with recomputation."""
    part = stage.group.part
    if schedule_called(plan.layout.schedule).splits_backward:
        split = split_works(part)
        return duration(split.mlp_wgrad) + duration(split.attention_wgrad)
    works = layer_works(part, plan.layout.recompute)
    parts = (works.attention_recompute, works.mlp_recompute, works.mlp_backward, works.attention_backward)
    return sum(duration(work) for work in parts if work is not None)


def _tied_apart(plan: ThreeDPlan, stages: Sequence[VirtualStage]) -> bool:
    """Whether the two uses of a tied embedding are on different ranks."""
    return plan.job.model.tied_embeddings and stages[0].rank != stages[-1].rank


def _tie_s(
    plan: ThreeDPlan, stages: Sequence[VirtualStage], replicas: Sequence[Replicas], duration: Duration
) -> float:
    """Seconds to sum the gradient of a tied embedding over the first and last stage."""
    if not _tied_apart(plan, stages):
        return 0.0
    first, last = stages[0].group, stages[-1].group
    ends = RankGroup(first.ranks.start, last.ranks.start - first.ranks.start, 2)
    grad_bytes = reduced_grad_bytes(plan.job.recipe) / replicas[0].gradient_shards
    return duration(tied_embedding_work(first, ends, grad_bytes))


def _update_s(replicas: Sequence[Replicas], duration: Duration) -> float:
    largest = max(replicas, key=lambda group: group.num_parameters)
    update = duration(largest.optimizer_work())
    if 0 < largest.zero_stage < SHARDED and largest.size > 1:
        update += duration(largest.gather_work(largest.num_parameters))
    return update
