"""Faults put into a right graph, each by one change: what a proof must find.

A dependency is taken away although the tensor is read all the same; a collective has another group; a
task that makes or reduces gradients does nothing; the update comes before the reduction; a buffer is
taken before it is free; a message is priced for other bytes than it moves. Dependencies that others
imply are no dependencies: they are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from perfsim.graph import Kind, RankGroup, TaskGraph, Work
from perfsim.graph.symmetry import meeting_of, width_of
from perfsim.proof.execution.faults import Fault
from perfsim.proof.execution.order import Edge, Precedence
from perfsim.proof.execution.program import task_name
from perfsim.proof.proof import Subject

IDLE = "wait"
"""The operation that does nothing."""


@dataclass(frozen=True)
class Mutation:
    """One fault: its kind, what was done, and the graph with it."""

    kind: str
    what: str
    subject: Subject

    def found(self) -> list[Fault]:
        """What a proof says about it, by the graph alone or from one run in the order of ids."""
        return self.subject.faults()


def mutations(subject: Subject) -> Iterator[Mutation]:
    """Every fault of every kind in a graph."""
    for make in (missing_dependencies, early_buffers, wrong_groups, skipped_gradients, early_updates):
        yield from make(subject)
    yield from wrong_prices(subject)


def missing_dependencies(subject: Subject) -> Iterator[Mutation]:
    """Take away each data dependency that nothing implies."""
    graph = subject.graph
    reads = zip(graph.reads.row_of_value.tolist(), graph.writer[graph.reads.values].tolist(), strict=True)
    yield from _without(subject, "data dependency removed", dict.fromkeys(reads))


def early_buffers(subject: Subject) -> Iterator[Mutation]:
    """Take away each control dependency that nothing implies: those say when a buffer is free."""
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
        implied = any(other != before and precedence.before(before, other) for other in direct)
        if follows_in_stream or implied or before not in direct:
            continue
        what = (
            f"{task_name(graph, graph.task(task))} does not wait for {task_name(graph, graph.task(before))}"
        )
        yield Mutation(kind, what, subject.lacking([(task, before)]))


def wrong_groups(subject: Subject) -> Iterator[Mutation]:
    """Let each collective meet over other peers: half of its own, or as many of another kind."""
    graph, width = subject.graph, width_of(subject.graph)
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
            what = f"{task_name(graph, task)} over stride {stride}, {size} ranks"
            mutated = _with_work(graph, task.id, replace(task.work, group=wrong))
            yield Mutation("wrong group", what, replace(subject, graph=mutated))


def skipped_gradients(subject: Subject) -> Iterator[Mutation]:
    """Let each task that reduces, ties or (where it does only that) makes weight gradients do nothing."""

    def skips(work: Work) -> bool:
        reduces = work.name in ("data.all_reduce", "data.reduce_scatter", "pipeline.tied_embedding")
        makes = work.op in ("mlp.wgrad", "attention.wgrad", "head.wgrad", "embedding.backward")
        return reduces or makes or work.op.startswith("reduce")

    yield from _idle(subject, "gradient skipped", skips)


def _idle(subject: Subject, kind: str, chosen: Callable[[Work], bool]) -> Iterator[Mutation]:
    graph = subject.graph
    for task in graph.tasks():
        if not chosen(task.work):
            continue
        idle = replace(task.work, op=IDLE, kind=Kind.COMP, group=None)
        what = f"{task_name(graph, task)} does nothing"
        yield Mutation(kind, what, replace(subject, graph=_with_work(graph, task.id, idle)))


def early_updates(subject: Subject) -> Iterator[Mutation]:
    """Let each update wait for no reduction: neither for its own gradients nor for the others'."""
    graph = subject.graph
    for task in graph.tasks():
        if task.work.op not in ("optimizer", "memoryx_update"):
            continue
        sources = {int(graph.writer[handle]) for handle in task.reads}
        edges = [(task.id, source) for source in sorted(sources)]
        unlike = [edge for edge in edges if graph.stream[edge[1]] != graph.stream[task.id]]
        if unlike:
            what = f"{task_name(graph, task)} waits for no gradient"
            yield Mutation("update before reduction", what, subject.lacking(unlike))


def wrong_prices(subject: Subject) -> Iterator[Mutation]:
    """Price a message of each class of work for half of its elements, once."""
    graph, (program, _) = subject.graph, subject.compiled
    first: dict[Work, int] = {}
    for action in program.actions:
        if action.message is not None:
            first.setdefault(graph.task(action.task).work, action.task)
    for work, task in first.items():
        mutated = _with_work(graph, task, replace(work, comm_bytes=work.comm_bytes / 2))
        what = f"{task_name(graph, graph.task(task))} is priced for half of its bytes"
        yield Mutation("bytes priced wrong", what, replace(subject, graph=mutated))


def _with_work(graph: TaskGraph, task: int, work: Work) -> TaskGraph:
    """A graph in which one task does other work."""
    column = graph.work.copy()
    column[task] = len(graph.works)
    return replace(graph, works=(*graph.works, work), work=np.asarray(column))
