"""A second way to the activations of a step: what is alive in its simulated run."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pytest

from perfsim.base.arrays import Floats, Ints
from perfsim.engine.trace import Trace
from perfsim.work import Kind, TaskGraph
from perfsim.work.graph import owners_of, rank_of


def peak_live_bytes(trace: Trace, names: Collection[str] | None = None) -> dict[str, float]:
    """Peak of live bytes by device (the first part of a stream's name), apart from `perfsim.costs.memory`.

    A tensor is live from the start of the task that writes it to the end of its last reader, or of its writer
    if nothing reads it; weights, gradients and optimizer states are no tensors of the graph. On unfolded
    graphs a collective's stream names several devices; each holds the tensors written for it. `names`
    restricts the count to tensors of these classes. Devices without any are left out.
    """
    graph = trace.graph
    n_bytes = _bytes(graph, names)
    holder = _holders(graph)
    born = trace.start_s[graph.writer]
    dead = trace.end_s[graph.writer].copy()
    np.maximum.at(dead, graph.reads.values, trace.end_s[graph.reads.row_of_value])
    peaks = {}
    for number, owner in enumerate(_devices(graph)):
        held = np.flatnonzero((holder == number) & (n_bytes > 0))
        if len(held):
            times = np.concatenate([dead[held], born[held]])
            ends_first = np.repeat([0, 1], len(held))
            change = np.concatenate([-n_bytes[held], n_bytes[held]])
            peaks[owner] = float(np.cumsum(change[np.lexsort((ends_first, times))]).max())
    return peaks


def _bytes(graph: TaskGraph, names: Collection[str] | None) -> Floats:
    """Bytes of each tensor; 0 for other classes."""
    most = max((len(work.writes) for work in graph.works), default=0)
    table = np.zeros((len(graph.works), max(most, 1)))
    for row, work in enumerate(graph.works):
        for column, tensor in enumerate(work.writes):
            if names is None or tensor.name in names:
                table[row, column] = tensor.n_bytes
    position = np.arange(graph.num_tensors) - graph.first_write[graph.writer]
    return np.asarray(table[graph.work[graph.writer], position])


def _holders(graph: TaskGraph) -> Ints:
    """The device that holds each tensor: its writer's, or its reader's for a tensor that was sent.

    A task of several devices writes their tensors one device after the other.
    """
    number = {name: i for i, name in enumerate(_devices(graph))}
    owners = [[number[owner] for owner in owners_of(stream)] for stream in graph.streams]
    table = np.full((len(owners), max(map(len, owners), default=1)), -1, dtype=np.int64)
    for row, members in enumerate(owners):
        table[row, : len(members)] = members
    joined = np.array([len(members) for members in owners], dtype=np.int64)
    stream = graph.stream[graph.writer]
    position = np.arange(graph.num_tensors) - graph.first_write[graph.writer]
    per_device = np.diff(graph.first_write)[graph.writer] // joined[stream]
    holder = table[stream, position // np.maximum(per_device, 1)]
    tensors, devices = _arrivals(graph, table)
    holder[tensors] = devices
    return np.asarray(holder)


def _arrivals(graph: TaskGraph, table: Ints) -> tuple[Ints, Ints]:
    """Tensors that are sent and then read, and the device that reads them: the target of the send."""
    sends = np.array([work.kind is Kind.COMM_SEND for work in graph.works])
    arrives = np.flatnonzero(sends[graph.work[graph.writer]][graph.reads.values])
    tensor = graph.reads.values[arrives].astype(np.int64)
    members = table[graph.stream[graph.reads.row_of_value[arrives]]]
    rank = np.array([-1 if (number := rank_of(name)) is None else number for name in _devices(graph)])
    target = np.array([-2 if work.group is None else work.group.ranks[-1] for work in graph.works])
    meant = (rank[members] == target[graph.work[graph.writer[tensor]]][:, None]) & (members >= 0)
    return tensor, members[np.arange(len(tensor)), meant.argmax(axis=1)]


def _devices(graph: TaskGraph) -> list[str]:
    """Every owner of streams (a device or a store) in order of appearance."""
    return list(dict.fromkeys(owner for stream in graph.streams for owner in owners_of(stream)))


@pytest.fixture(scope="session", name="peak_live_bytes")
def _peak_live_bytes() -> Callable[..., dict[str, float]]:
    """Peak of live bytes by device, of a trace and optionally of tensors with these names."""
    return peak_live_bytes
