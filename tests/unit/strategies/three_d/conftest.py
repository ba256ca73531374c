"""A second way to the activations of a step: what is alive in its simulated run."""

from collections import defaultdict
from collections.abc import Callable, Collection
from itertools import accumulate

import pytest

from perfsim.engine.trace import Trace
from perfsim.work import Kind, Task, TaskGraph
from perfsim.work.graph import owners_of, rank_of


def peak_live_bytes(trace: Trace, names: Collection[str] | None = None) -> dict[str, float]:
    """Peak of live bytes by device (the first part of a stream's name), apart from `perfsim.costs.memory`.

    A tensor is live from the start of the task that writes it to the end of its last reader, or of its writer
    if nothing reads it; weights, gradients and optimizer states are no tensors of the graph. On unfolded
    graphs a collective's stream names several devices; each holds the tensors written for it. `names`
    restricts the count to tensors of these classes. Devices without any are left out.
    """
    tasks = list(trace.graph.tasks())
    dead_s = {tensor: trace.end_s[task.id] for task in tasks for tensor in task.writes}
    for task in tasks:
        for tensor in task.reads:
            dead_s[tensor] = max(dead_s[tensor], trace.end_s[task.id])
    holder = _holders(trace.graph, tasks)
    changes = defaultdict(list)
    for task in tasks:
        for tensor, written in zip(task.writes, task.work.writes, strict=True):
            if written.n_bytes and (names is None or written.name in names):
                # At one time ends come before starts.
                born = (trace.start_s[task.id], 1, written.n_bytes)
                changes[holder[tensor]] += [born, (dead_s[tensor], 0, -written.n_bytes)]
    owners = dict.fromkeys(owner for stream in trace.graph.streams for owner in owners_of(stream))
    changed = {owner: sorted(changes[owner]) for owner in owners if owner in changes}
    return {owner: max(accumulate(change for *_, change in rows)) for owner, rows in changed.items()}


def _holders(graph: TaskGraph, tasks: list[Task]) -> dict[int, str]:
    """The device that holds each tensor: its writer's, or the target's for a tensor that was sent and read.

    A task of several devices writes their tensors one device after the other.
    """
    holder = {}
    for task in tasks:
        owners = owners_of(task.stream)
        for number, tensor in enumerate(task.writes):
            holder[tensor] = owners[number * len(owners) // len(task.writes)]
    for task in tasks:
        owners = owners_of(task.stream)
        for tensor in task.reads:
            sent = graph.works[graph.work[graph.writer[tensor]]]
            if sent.kind is Kind.COMM_SEND:
                target = None if sent.group is None else sent.group.ranks[-1]
                holder[tensor] = next((owner for owner in owners if rank_of(owner) == target), owners[0])
    return holder


@pytest.fixture(scope="session", name="peak_live_bytes")
def _peak_live_bytes() -> Callable[..., dict[str, float]]:
    """Peak of live bytes by device, of a trace and optionally of tensors with these names."""
    return peak_live_bytes
