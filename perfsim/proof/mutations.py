"""Single faults injected into a correct graph, which a proof must detect.

A data dependency is removed although the tensor is still read; a buffer is reused before it is free; a
collective has a wrong group; a task that computes or reduces gradients does nothing; the update precedes
the reduction; a message is priced for other bytes than it moves. Dependencies that others imply are left
in place, because their removal changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from perfsim.graph import Kind, RankGroup, TaskGraph, Work
from perfsim.graph.symmetry import meeting_of
from perfsim.proof.execution.faults import Fault
from perfsim.proof.execution.order import Edge, Precedence
from perfsim.proof.execution.program import task_name
from perfsim.proof.proof import Subject

IDLE = "wait"
"""The operation that does nothing."""


@dataclass(frozen=True)
class Mutation:
    """One fault: its kind, its description, and the graph with it."""

    kind: str
    description: str
    subject: Subject

    def faults(self) -> list[Fault]:
        """What a proof detects, by the graph alone or else in one run in the order of ids."""
        return self.subject.faults()


def mutations(subject: Subject) -> Iterator[Mutation]:
    """Every fault of every kind in a graph."""
    for make in (missing_dependencies, early_buffers, wrong_groups, skipped_gradients, early_updates):
        yield from make(subject)
    yield from wrong_prices(subject)


def missing_dependencies(subject: Subject) -> Iterator[Mutation]:
    """Remove each data dependency that no other one implies."""
    graph = subject.graph
    reads = zip(graph.reads.row_of_value.tolist(), graph.writer[graph.reads.values].tolist(), strict=True)
    yield from _without(subject, "data dependency removed", dict.fromkeys(reads))


def early_buffers(subject: Subject) -> Iterator[Mutation]:
    """Remove each control dependency that no other one implies; they tell when a buffer is free."""
    after = subject.graph.after
    edges = zip(after.row_of_value.tolist(), after.values.tolist(), strict=True)
    yield from _without(subject, "buffer reused too early", dict.fromkeys(edges))


def _without(subject: Subject, kind: str, edges: dict[Edge, None]) -> Iterator[Mutation]:
    graph = subject.graph
    precedence = Precedence(graph, graph.dependencies)
    deps = graph.dependencies
    for task, before in edges:
        direct = deps.row(task)
        follows_in_stream = graph.stream[task] == graph.stream[before]
        implied = any(source != before and precedence.before(before, source) for source in direct)
        if follows_in_stream or implied or before not in direct:
            continue
        waits, source = (task_name(graph, graph.task(number)) for number in (task, before))
        yield Mutation(kind, f"{waits} does not wait for {source}", subject.lacking([(task, before)]))


def wrong_groups(subject: Subject) -> Iterator[Mutation]:
    """Give each collective a wrong group: half of its peers, or as many peers with another stride."""
    graph, width = subject.graph, subject.graph.width
    for task in graph.tasks():
        group = task.work.group
        if task.work.kind is not Kind.COMM_COLL or group is None or meeting_of(task.work, width).size == 1:
            continue
        for stride, size in ((group.stride, group.size // 2), (width // group.size, group.size)):
            wrong = RankGroup(
                group.start, stride if group.stride != stride or size != group.size else 0, size
            )
            if size < 1 or wrong.stride < 1 or (stride, size) == (group.stride, group.size):
                continue
            if width % (stride * size):
                continue
            description = f"{task_name(graph, task)} over stride {stride}, {size} ranks"
            mutated = _with_work(graph, task.id, replace(task.work, group=wrong))
            yield Mutation("wrong group", description, replace(subject, graph=mutated))


def skipped_gradients(subject: Subject) -> Iterator[Mutation]:
    """Disable each task that reduces or ties weight gradients, computes nothing else, or sums their norm.

    Where nothing is clipped, nothing uses the norm.
    """
    clips = math.isfinite(subject.training.max_norm)

    def skips(work: Work) -> bool:
        reduces = work.name in ("data.all_reduce", "data.reduce_scatter", "pipeline.tied_embedding")
        computes = work.op.endswith(".wgrad") or work.op == "embedding.backward"
        return reduces or computes or work.op.startswith("reduce") or (work.op == "norm" and clips)

    yield from _idle(subject, "gradient skipped", skips)


def _idle(subject: Subject, kind: str, disables: Callable[[Work], bool]) -> Iterator[Mutation]:
    graph = subject.graph
    for task in graph.tasks():
        if not disables(task.work):
            continue
        idle = replace(task.work, op=IDLE, kind=Kind.COMP, group=None)
        description = f"{task_name(graph, task)} does nothing"
        yield Mutation(kind, description, replace(subject, graph=_with_work(graph, task.id, idle)))


def early_updates(subject: Subject) -> Iterator[Mutation]:
    """Remove all waits of each update for gradients, its own and those of other ranks."""
    graph = subject.graph
    for task in graph.tasks():
        if task.work.op not in ("optimizer", "memoryx_update"):
            continue
        sources = {int(graph.writer[handle]) for handle in task.reads}
        edges = [(task.id, source) for source in sorted(sources)]
        removed = [edge for edge in edges if graph.stream[edge[1]] != graph.stream[task.id]]
        if removed:
            description = f"{task_name(graph, task)} waits for no gradient"
            yield Mutation("update before reduction", description, subject.lacking(removed))


def wrong_prices(subject: Subject) -> Iterator[Mutation]:
    """Price one message of each class of work for half of its elements."""
    graph, (program, _) = subject.graph, subject.compiled
    first: dict[Work, int] = {}
    for action in program.actions:
        if action.message is not None:
            first.setdefault(graph.task(action.task).work, action.task)
    for work, task in first.items():
        mutated = _with_work(graph, task, replace(work, comm_bytes=work.comm_bytes / 2))
        description = f"{task_name(graph, graph.task(task))} is priced for half of its bytes"
        yield Mutation("bytes priced wrong", description, replace(subject, graph=mutated))


def _with_work(graph: TaskGraph, task: int, work: Work) -> TaskGraph:
    """A copy of the graph in which one task has other work."""
    column = graph.work.copy()
    column[task] = len(graph.works)
    return replace(graph, works=(*graph.works, work), work=np.asarray(column))
