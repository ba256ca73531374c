"""Whether the ranks of a pipeline hold as many micro-batches in flight as their schedule promises.

Memory is planned for what a schedule promises. The order of the graph may hold more, which overflows, or
less, where a warm-up that is too short makes neighbours wait.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfsim.graph import TaskGraph
from perfsim.graph.task_graph import rank_of
from perfsim.proof.execution.faults import Fault
from perfsim.strategies import Plan
from perfsim.strategies.schedules import Held, Pass, Slot, in_flight
from perfsim.strategies.schedules.liveness import held_at_peak
from perfsim.workload import ParallelLayout

PASSES: dict[str, Pass] = {"forward": "F", "backward": "B", "dgrad": "B", "wgrad": "W"}
"""By the last part of an operation's name."""
COUNTED = ("attention", "attention.qkv", "layer")
"""The part of a layer that is counted, of attention one task, or layers that are written as one task."""
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Bytes of weight inputs over those of activations, for which the peaks are compared."""


def held_unlike_promised(graph: TaskGraph, plan: Plan) -> Iterator[Fault]:
    """Each rank whose peak, in micro-batches of its whole stage, is not what its schedule promises.

    Only plans of layouts with pipeline schedules promise this. Stages whose chunks have different numbers of
    layers are left out, because a promise in micro-batches does not tell their layers.
    """
    layout = plan.layout
    if not isinstance(layout, ParallelLayout) or layout.layers_per_stage is not None:
        return
    split = any(work.op.endswith(".wgrad") for work in graph.works)
    for rank, passes in _passes_of_layers(graph).items():
        stage = rank // layout.width
        sizes = (stage, layout.pipeline, layout.virtual_pipeline, plan.num_microbatches)
        promised = in_flight(layout.schedule, *map(np.array, sizes))
        layers = len({slot.chunk for slot in passes})
        if layers % layout.virtual_pipeline:
            continue
        held = [Held(*map(np.array, moment)) for moment in held_at_peak(passes, layers)]
        for weight in WEIGHTS if split else WEIGHTS[:1]:
            actual, planned = (_peak(moments, weight) for moments in (held, promised))
            if abs(actual - planned) > 1e-9:
                detail = (
                    f"at its peak it holds {actual:.4g} micro-batches, "
                    f"schedule {layout.schedule} promises {planned:.4g}"
                )
                yield Fault("memory", f"stage {stage} (gpu{rank})", "activations in flight", detail)
                break


def _passes_of_layers(graph: TaskGraph) -> dict[int, list[Slot]]:
    """By rank: the passes of every layer in the order of its tasks, with the layer as the chunk."""
    parts = [work.op.rpartition(".") for work in graph.works]
    which = [PASSES.get(end) if name in COUNTED else None for name, _, end in parts]
    wanted = np.flatnonzero(np.array([passed is not None for passed in which])[graph.work])
    passes: dict[int, list[Slot]] = {}
    ranks = [rank_of(stream) for stream in graph.streams]
    columns = (column[wanted].tolist() for column in (graph.work, graph.stream, graph.block, graph.tag))
    for work, stream, block, tag in zip(*columns, strict=True):
        rank, passed = ranks[stream], which[work]
        if rank is not None and passed is not None:
            passes.setdefault(rank, []).append(Slot(passed, rank, block, tag))
    return passes


def _peak(moments: tuple[Held, ...] | list[Held], weight: float) -> float:
    """The most that is held, in activations; weight inputs count `weight` each."""
    return max(float(held.activations + weight * held.weight_inputs) for held in moments)
