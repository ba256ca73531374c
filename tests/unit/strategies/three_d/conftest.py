"""A second way to the activations of a step: what is alive in its simulated run."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pytest

from perfsim.base.arrays import Floats, Ints
from perfsim.engine.trace import Trace
from perfsim.work import Kind, TaskGraph
from perfsim.work.graph import owners_of, rank_of

# Memory of a simulated run: the tensors that are live at the same time on each device.
#
# An independent calculation of the activations that `perfsim.costs.memory` gives in closed form. A tensor is
# live from the start of the task that writes it to the end of its last reader, or of its writer if nothing
# reads it. Weights, gradients and optimizer states are not tensors of the graph, and neither calculation
# contains the workspace of a kernel.


def peak_live_bytes(trace: Trace, names: Collection[str] | None = None) -> dict[str, float]:
    """Peak of live bytes by device (the first part of a stream's name).

    On unfolded graphs a collective's stream names several devices; each holds the tensors written for it.
    `names` restricts the count to tensors of these classes. Devices without any are left out.
    """
    graph = trace.graph
    n_bytes = _bytes(graph, names)
    place = _places(graph)
    born, dead = _lifetimes(trace)
    peaks = {}
    for number, owner in enumerate(_devices(graph)):
        held = np.flatnonzero((place == number) & (n_bytes > 0))
        if len(held):
            peaks[owner] = _peak(born[held], dead[held], n_bytes[held])
    return peaks


def _lifetimes(trace: Trace) -> tuple[Floats, Floats]:
    """Start and end of each tensor's lifetime in seconds."""
    graph = trace.graph
    dead = trace.end_s[graph.writer].copy()
    np.maximum.at(dead, graph.reads.values, trace.end_s[graph.reads.row_of_value])
    return trace.start_s[graph.writer], dead


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


def _places(graph: TaskGraph) -> Ints:
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
    place = table[stream, position // np.maximum(per_device, 1)]
    tensors, devices = _arrivals(graph, table)
    place[tensors] = devices
    return np.asarray(place)


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


def _peak(born: Floats, dead: Floats, n_bytes: Floats) -> float:
    """The largest sum of overlapping lifetimes; at one instant, ends come before starts."""
    times = np.concatenate([dead, born])
    change = np.concatenate([-n_bytes, n_bytes])
    ends_first = np.concatenate([np.zeros(len(dead)), np.ones(len(born))])
    order = np.lexsort((ends_first, times))
    return float(np.cumsum(change[order]).max())


def _devices(graph: TaskGraph) -> list[str]:
    """Every owner of streams (a device or a store) in order of appearance."""
    return list(dict.fromkeys(owner for stream in graph.streams for owner in owners_of(stream)))


@pytest.fixture(scope="session", name="peak_live_bytes")
def _peak_live_bytes() -> Callable[..., dict[str, float]]:
    """Peak of live bytes by device, of a trace and optionally of tensors with these names."""
    return peak_live_bytes
