"""A step of many micro-batches from a simulated step of fewer.

Contention and computation beside communication stretch a task of the short step by

    f(work, stream, micro-batch) = simulated seconds / seconds alone

and the task of the same work, stream and micro-batch of the whole step takes f times its seconds alone.
Micro-batches are counted from the nearer end of the step; those around the middle of the short step stand
for all between. The times of the whole step are the longest path of its graph with these durations, so that
fill, drain and uneven stages are exact; only what f says of the middle is taken from fewer micro-batches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import TaskGraph
from perfsim.placement.place import place
from perfsim.prediction.evaluation import Evaluation, evaluation_of, graph_of
from perfsim.prediction.question import Question
from perfsim.prediction.run import Step
from perfsim.prediction.steady import few_microbatches, with_microbatches
from perfsim.strategies import Plan
from perfsim.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LONG_TASKS = 50_000
"""Tasks from which on a step that is compared with others is found from a shorter one."""
MOST_IN_FULL = 200_000
"""Tasks up to which a step that is reported on its own is simulated in full, in about two seconds."""
FEWEST = 32
"""Micro-batches of a short step at least, so that some are neither among the first nor among the last."""
MIDDLE = 4
"""The middle of a short step is this part of its first half."""


def evaluate_from_fewer(
    question: Question, plan: Plan, graph: TaskGraph, step: Step, long_tasks: int | None = None
) -> Evaluation:
    """The evaluation of a placed plan; a step of `long_tasks` tasks is found from fewer micro-batches.

    `long_tasks` is `LONG_TASKS` unless given. Steps with too few micro-batches are simulated in full.
    """
    ranks = plan.layout.pipeline
    few = max(few_microbatches(plan), -(-FEWEST // ranks) * ranks)
    trace = None
    if len(graph) >= (LONG_TASKS if long_tasks is None else long_tasks) and 2 * few <= plan.num_microbatches:
        trace = _from_fewer(question, plan, few, step)
    return evaluation_of(plan, graph, step, step.run() if trace is None else trace, question.cluster)


def evaluate_reported(question: Question, plan: Plan) -> Evaluation:
    """The evaluation of a plan that is reported on its own, in full unless its graph is very large."""
    graph = graph_of(plan, question.chosen)
    step = Step(place(graph, question.topology), question.costs, question.scale)
    return evaluate_from_fewer(question, plan, graph, step, MOST_IN_FULL)


def in_full(run: Evaluation) -> Evaluation:
    """The same plan with all its micro-batches simulated, unless its graph is very large."""
    counts = run.trace.simulated
    if counts is None or counts.microbatches is None or len(run.graph) >= MOST_IN_FULL:
        return run
    trace = run.step.run()
    return replace(run, trace=trace, breakdown_s=trace.mean_breakdown())


def _from_fewer(question: Question, plan: Plan, few: int, step: Step) -> Trace | None:
    """The trace of a whole step; None where the short step lacks some of its work."""
    shorter = with_microbatches(question, plan, few)
    short = Step(place(graph_of(shorter, question.chosen), shorter.topology), step.costs)
    trace = short.run()
    stretch = _stretch(short, trace, step.placed.graph, few, plan.num_microbatches)
    counts = trace.scaled(step.scale).simulated
    if stretch is None or counts is None:
        return None
    whole = step.run(step.duration_s * stretch, contention=False)
    return replace(whole, simulated=counts._replace(microbatches=few))


def _stretch(short: Step, trace: Trace, graph: TaskGraph, few: int, count: int) -> Floats | None:
    """How much longer each task of a graph takes than alone; shape (tasks,)."""
    known = short.placed.graph
    works, streams = ({name: n for n, name in enumerate(names)} for names in (known.works, known.streams))
    work = np.array([works.get(work, -1) for work in graph.works])
    stream = np.array([streams.get(name, -1) for name in graph.streams])
    if (work < 0).any() or (stream < 0).any():
        return None
    keys = _keys(known, np.arange(len(works)), np.arange(len(streams)), known.tag.astype(np.int64))
    wanted = _keys(graph, work, stream, _like(graph.tag.astype(np.int64), few, count))
    alone_s = short.duration_s
    took = np.divide(trace.end_s - trace.start_s, alone_s, where=alone_s > 0.0, out=np.ones(len(alone_s)))
    kinds, kind = np.unique(keys, return_inverse=True)
    mean = np.bincount(kind, took) / np.bincount(kind)
    place_of = np.minimum(np.searchsorted(kinds, wanted), len(kinds) - 1)
    return mean[place_of] if (kinds[place_of] == wanted).all() else None


def _keys(graph: TaskGraph, work: Ints, stream: Ints, tag: Ints) -> Ints:
    """One number for the work, stream and micro-batch of every task; micro-batches are -1 or more."""
    highest = max(int(stream.max(initial=0)), 0) + 1
    return np.asarray((work[graph.work] * highest + stream[graph.stream]) * (1 << 24) + tag + 1)


def _like(tag: Ints, few: int, count: int) -> Ints:
    """The micro-batch of the short step that behaves as each of the whole one; -1 stays."""
    half = few // 2
    middle = max(1, half // MIDDLE)
    between = half - middle + (tag - half) % middle
    return np.where(tag < half, tag, np.where(tag >= count - (few - half), tag - (count - few), between))
