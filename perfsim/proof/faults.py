"""Which faults injected into correct graphs a proof detects, and why the others are harmless."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from perfsim.base.groups import listed
from perfsim.base.limits import present_limits
from perfsim.proof.program import Precedence, task_name
from perfsim.proof.prove import Subject, layout_in_words
from perfsim.strategies import Plan
from perfsim.strategies.three_d.data import LOCAL_NORM, WAIT
from perfsim.work import Kind, RankGroup, Task, Work

# Single faults injected into a correct graph, which a proof must detect. Dependencies that others imply are
# left in place, because their removal changes nothing.


@dataclass(frozen=True)
class _Mutation:
    """One fault: its kind, its description, and the graph with it."""

    kind: str
    description: str
    subject: Subject


_Wrong = Iterator[tuple[str, Subject]]
"""Descriptions of faults, and the graphs with them."""


def _missing_dependencies(subject: Subject, *, of_data: bool) -> _Wrong:
    """Remove each dependency that no other one implies: of data, or one that tells when a buffer is free."""
    graph = subject.graph
    deps = graph.dependencies
    precedence = Precedence(graph, deps)
    edges = graph.reads if of_data else graph.after
    sources = graph.writer[edges.values] if of_data else edges.values
    for task, before in dict.fromkeys(zip(edges.row_of_value.tolist(), sources.tolist(), strict=True)):
        direct = deps.row(task)
        follows_in_stream = graph.stream[task] == graph.stream[before]
        implied = any(source != before and precedence.before(before, source) for source in direct)
        if not (follows_in_stream or implied or before not in direct):
            waits, source = (task_name(graph, graph.task(number)) for number in (task, before))
            yield f"{waits} does not wait for {source}", subject.lacking([(task, before)])


def _early_updates(subject: Subject) -> _Wrong:
    """Remove all waits of each update for gradients, its own and other ranks'."""
    graph = subject.graph
    for task in graph.tasks():
        if task.work.op not in ("optimizer", "memoryx_update"):
            continue
        sources = sorted({int(graph.writer[handle]) for handle in task.reads})
        removed = [(task.id, source) for source in sources if graph.stream[source] != graph.stream[task.id]]
        if removed:
            yield f"{task_name(graph, task)} waits for no gradient", subject.lacking(removed)


def _with_work(subject: Subject, task: Task, said: str, **changes: Any) -> tuple[str, Subject]:
    """The fault that one task has changed work."""
    graph = subject.graph
    work = graph.work.copy()
    work[task.id] = len(graph.works)
    mutated = replace(graph, works=(*graph.works, replace(task.work, **changes)), work=work)
    return f"{task_name(graph, task)} {said}", replace(subject, graph=mutated)


def _wrong_groups(subject: Subject) -> _Wrong:
    """Give each collective a wrong group: half of its ranks, or as many of a stage with another stride."""
    width = subject.graph.width
    for task in subject.graph.tasks():
        group = task.work.group
        if task.work.kind is not Kind.COMM_COLL or group is None or group.size == 1:
            continue
        inside = group.stride < width
        for stride, size in ((group.stride, group.size // 2), (width // group.size, group.size)):
            wrong = RankGroup(group.start, stride, size)
            divides = inside and stride > 0 and width % (stride * size) == 0
            if wrong != group and size > 0 and (divides or stride >= width):
                yield _with_work(subject, task, f"over stride {stride}, {size} ranks", group=wrong)


def _skipped_gradients(subject: Subject) -> _Wrong:
    """Disable each task that reduces or ties weight gradients, computes nothing else, or sums their norm."""
    # Where nothing is clipped, nothing uses the norm.
    clips = math.isfinite(subject.training.max_norm)
    for task in subject.graph.tasks():
        op = task.work.op
        reduces = task.work.name in ("data.all_reduce", "data.reduce_scatter", "pipeline.tied_embedding")
        computes = op.endswith(".wgrad") or op == "embedding.backward"
        norms = task.work.name == LOCAL_NORM.name and clips
        if reduces or computes or op.startswith("reduce") or norms:
            yield _with_work(subject, task, "does nothing", op=WAIT.op, kind=Kind.COMP, group=None)


def _wrong_notes(subject: Subject) -> _Wrong:
    """Let each reduction or gather over replicas say that it is of experts if it is not, and vice versa."""
    for task in subject.graph.tasks():
        work = task.work
        moves = work.category == "data_communication" and work.name != LOCAL_NORM.name
        # Sums over groups of replicas are of what was reduced in a group, whatever they say.
        if moves and work.writes[0].name != "gradient_shards":
            said = "other weights than the experts'" if work.experts else "experts"
            yield _with_work(subject, task, f"is said to be of {said}", experts=not work.experts)


def _wrong_prices(subject: Subject) -> _Wrong:
    """Price one message of each class of work for half of its elements."""
    first: dict[Work, Task] = {}
    for action in subject.interpreter.program.actions:
        if action.message is not None:
            task = subject.graph.task(action.task)
            first.setdefault(task.work, task)
    for work, task in first.items():
        yield _with_work(subject, task, "is priced for half of its bytes", comm_bytes=work.comm_bytes / 2)


KINDS: Mapping[str, Callable[[Subject], _Wrong]] = {
    "data dependency removed": partial(_missing_dependencies, of_data=True),
    "buffer reused too early": partial(_missing_dependencies, of_data=False),
    "wrong group": _wrong_groups,
    "gradient skipped": _skipped_gradients,
    "update before reduction": _early_updates,
    "wrong note": _wrong_notes,
    "bytes priced wrong": _wrong_prices,
}
"""What makes every fault of a kind."""


def mutations(subject: Subject, *kinds: str) -> Iterator[_Mutation]:
    """Every fault of some kinds in a graph, by default of all."""
    for kind in kinds or KINDS:
        for description, wrong in KINDS[kind](subject):
            yield _Mutation(kind, description, wrong)


EXPLAINED = {
    r"buffer reused too early: layer\.fetch.* does not wait for head\.": (
        "The first fetch finds its buffer empty: this wait only delays the fetch, it frees no buffer."
    ),
    r"buffer reused too early: layer\.forward.* does not wait for layer( \(dense\))?\.spill": (
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


class _Tried(NamedTuple):
    """A fault that was injected."""

    kind: str
    missed: str = ""
    """Its kind and description, if it was not detected."""


def try_all(subject: Subject, every: int = 1, first: int = 0) -> list[_Tried]:
    """Inject every `every`-th fault from `first` on; a fault is detected if task and tensor are named."""
    tried = []
    limits = present_limits()
    for number, mutation in enumerate(mutations(subject)):
        if number % every != first % every:
            continue
        limits.in_time(partial("{:,} faults of the present schedule tried".format, number))
        said = "" if mutation.subject.is_wrong else f"{mutation.kind}: {mutation.description}"
        tried.append(_Tried(mutation.kind, said))
    return tried


def _unexplained(tried: Iterable[_Tried]) -> list[str]:
    """Faults that were neither detected nor explained."""
    missed = (fault.missed for fault in tried if fault.missed)
    return [name for name in missed if not any(re.match(pattern, name) for pattern in EXPLAINED)]


def _explained(tried: Sequence[_Tried]) -> list[dict[str, Any]]:
    """Explained faults by reason."""
    classes = []
    for pattern, reason in EXPLAINED.items():
        if names := [fault.missed for fault in tried if re.match(pattern, fault.missed)]:
            classes.append({"why": reason, "count": len(names), "example": names[0]})
    return classes


def _counted(tried: Sequence[_Tried]) -> dict[str, int]:
    return {"injected": len(tried), "caught": sum(not fault.missed for fault in tried)}


def try_plans(
    target: str, plans: Iterable[Plan], every: int, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """The document of `perfsim prove --mutations`: injected and detected faults of each plan's graph."""
    total: list[_Tried] = []
    layouts = []
    for number, plan in enumerate(plans):
        progress(f"faults in {plan.strategy} on {plan.topology.num_devices} ranks")
        # Each sample begins one fault later, so that together they cover all kinds of tasks.
        tried = try_all(Subject.of(plan), every, number)
        total += tried
        named = {"strategy": plan.strategy, "layout": layout_in_words(plan)}
        layouts.append({**named, **_counted(tried), "unexplained": _unexplained(tried)})
    by_kind = listed((fault.kind, fault) for fault in total)
    counted = _counted(total)
    missed = _unexplained(total)
    return {
        "target": target,
        "passed": not missed,
        "every": every,
        **counted,
        "share": counted["caught"] / max(1, counted["injected"]),
        "kinds": {kind: _counted(faults) for kind, faults in by_kind.items()},
        "survivors": _explained(total),
        "unexplained": missed,
        "layouts": layouts,
    }
