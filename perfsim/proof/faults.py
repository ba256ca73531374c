"""Which faults injected into correct graphs a proof detects, and why the others are harmless."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from perfsim.engine.limits import present_limits
from perfsim.proof.hazards import Edge, Precedence
from perfsim.proof.program import Fault, task_name
from perfsim.proof.prove import Subject, described, subject_of
from perfsim.strategies import Plan
from perfsim.work import Kind, RankGroup, TaskGraph, Work
from perfsim.work.unfold import meeting_of

# Single faults injected into a correct graph, which a proof must detect.
#
# A data dependency is removed although the tensor is still read; a buffer is reused before it is free; a
# collective has a wrong group; a task that computes or reduces gradients does nothing; the update precedes
# the reduction; a message is priced for other bytes than it moves, or said to be of other weights.
# Dependencies that others imply are left in place, because their removal changes nothing.

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
    for make in (missing_dependencies, early_buffers, wrong_groups, skipped_gradients, _early_updates):
        yield from make(subject)
    yield from _wrong_notes(subject)
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
    graph = subject.graph
    width = subject.graph.width
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

    graph = subject.graph
    for task in graph.tasks():
        if skips(task.work):
            idle = replace(task.work, op=IDLE, kind=Kind.COMP, group=None)
            description = f"{task_name(graph, task)} does nothing"
            mutated = _with_work(graph, task.id, idle)
            yield Mutation("gradient skipped", description, replace(subject, graph=mutated))


def _early_updates(subject: Subject) -> Iterator[Mutation]:
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


def _wrong_notes(subject: Subject) -> Iterator[Mutation]:
    """Let each reduction or gather over replicas say that it is of experts if it is not, and the other way.

    Sums over groups of replicas are of what was reduced in a group, whatever they say.
    """
    graph = subject.graph
    for task in graph.tasks():
        work = task.work
        if work.category == "data_communication" and work.writes[0].name != "gradient_shards":
            said = "other weights than those of experts" if work.experts else "experts"
            mutated = _with_work(graph, task.id, replace(work, experts=not work.experts))
            description = f"{task_name(graph, task)} is said to be of {said}"
            yield Mutation("wrong note", description, replace(subject, graph=mutated))


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


EXPLAINED = {
    r"buffer reused too early: layer\.fetch.* does not wait for head\.": (
        "The first fetch finds its buffer empty: this wait only delays the fetch, it frees no buffer."
    ),
    r"buffer reused too early: layer\.forward.* does not wait for layer\.spill": (
        "The last layer's output waits for a buffer like the others, though it never leaves the wafer."
    ),
    r"buffer reused too early: (embedding\.backward|head\.).* does not wait for data\..* of embedding and": (
        "Under zbv one rank keeps embedding and LM head. The strategy gives both one buffer, so each waits "
        "for the reduction of the other; the executor has a buffer for each."
    ),
    r"buffer reused too early: offload\.parameters.* does not wait for mlp\.forward": (
        "A copy of parameters waits for the same layer as the all-gather that reads it, and for the one "
        "before the last, which frees the buffer of the copy: the first of these waits only delays it."
    ),
    r"buffer reused too early: mlp\.backward.* does not wait for offload\.gradients.*/d2h": (
        "Where the reduction runs between the backwards, on their stream, it frees the buffer of a layer's "
        "whole gradients itself; the buffer of shards is protected by the wait of the next reduction."
    ),
    r"buffer reused too early: offload\.activations.* of layer 1 on .*/h2d.* does not wait for tensor\.": (
        "The second copy of a micro-batch that returns waits for the LM head, but a layer of the micro-batch "
        "before used its buffer last: this wait only delays the copy."
    ),
}
"""Faults that change no result, by a pattern of their description, with the reason."""


@dataclass
class MutationTally:
    """Injected and detected faults by kind, and those that were not detected."""

    injected: Counter[str] = field(default_factory=Counter)
    detected: Counter[str] = field(default_factory=Counter)
    survivors: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Fraction of the faults that were detected."""
        return self.detected.total() / max(1, self.injected.total())

    def add(self, tally: MutationTally) -> None:
        """Add the counts of another graph."""
        self.injected += tally.injected
        self.detected += tally.detected
        self.survivors += tally.survivors

    @property
    def unexplained(self) -> list[str]:
        """Faults that were neither detected nor explained."""
        return [name for name in self.survivors if not any(re.match(pattern, name) for pattern in EXPLAINED)]

    def classes(self) -> list[dict[str, Any]]:
        """Explained faults by reason."""
        by_reason = [
            (reason, [name for name in self.survivors if re.match(pattern, name)])
            for pattern, reason in EXPLAINED.items()
        ]
        return [
            {"why": reason, "count": len(names), "example": names[0]} for reason, names in by_reason if names
        ]


def try_all(subject: Subject, every: int = 1, first: int = 0) -> MutationTally:
    """Inject every `every`-th fault from `first` on; a fault is detected if task and tensor are named."""
    result = MutationTally()
    limits = present_limits()
    for number, mutation in enumerate(mutations(subject)):
        if number % every != first % every:
            continue
        limits.in_time(partial("{:,} faults of the present schedule tried".format, number))
        result.injected[mutation.kind] += 1
        if any(fault.task and fault.tensor for fault in mutation.faults()):
            result.detected[mutation.kind] += 1
        else:
            result.survivors.append(f"{mutation.kind}: {mutation.description}")
    return result


def try_plans(
    target: str, plans: Iterable[Plan], every: int, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """The document of `perfsim prove --mutations`: injected and detected faults of each plan's graph.

    The sample of each graph begins one fault later than that of the one before, so that together the
    samples cover all kinds of tasks.
    """
    total = MutationTally()
    layouts = []
    for number, plan in enumerate(plans):
        progress(f"faults in {plan.strategy} on {plan.topology.num_devices} ranks")
        tally = try_all(subject_of(plan), every, number)
        total.add(tally)
        layouts.append(
            {
                "strategy": plan.strategy,
                "layout": described(plan),
                "injected": tally.injected.total(),
                "caught": tally.detected.total(),
                "unexplained": tally.unexplained,
            }
        )
    kinds = {name: {"injected": n, "caught": total.detected[name]} for name, n in total.injected.items()}
    return {
        "target": target,
        "passed": not total.unexplained,
        "every": every,
        "injected": total.injected.total(),
        "caught": total.detected.total(),
        "share": total.share,
        "kinds": kinds,
        "survivors": total.classes(),
        "unexplained": total.unexplained,
        "layouts": layouts,
    }
