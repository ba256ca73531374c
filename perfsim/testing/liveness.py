"""Memory as the simulated run uses it: which tensors are alive at the same time on each device.

A second way to the activations that `perfsim.costs.memory` counts in closed form. A tensor is alive from
the start of the task that writes it to the end of the last one that reads it; one that nobody reads, to
the end of its writer. Weights, gradients and optimizer states are no tensors of the graph, and what a
kernel needs for itself while it runs is in neither.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import Kind, TaskGraph
from perfsim.graph.task_graph import rank_of
from perfsim.trace import Trace

SAVED = "saved"
"""The tensor class of what a layer keeps for its backward."""

Floats = NDArray[np.float64]
Wide = NDArray[np.int64]


def peak_live_bytes(trace: Trace, names: Collection[str] | None = None) -> dict[str, float]:
    """The most bytes that are alive at once, by device (the first part of a stream's name).

    On unfolded graphs a collective's stream names several devices; each holds what is written for it.
    `names` counts tensors of these classes only. Devices that hold none are left out.
    """
    graph = trace.graph
    n_bytes, place = _bytes(graph, names), _places(graph)
    born, dead = _lifetimes(trace)
    peaks = {}
    for number, owner in enumerate(_devices(graph)):
        mine = np.flatnonzero((place == number) & (n_bytes > 0))
        if len(mine):
            peaks[owner] = _peak(born[mine], dead[mine], n_bytes[mine])
    return peaks


def _lifetimes(trace: Trace) -> tuple[Floats, Floats]:
    """When each tensor begins and when it is needed no more, in seconds."""
    graph = trace.graph
    dead = trace.end_s[graph.writer].copy()
    np.maximum.at(dead, graph.reads.values, trace.end_s[graph.reads.row_of_value])
    return trace.start_s[graph.writer], dead


def _bytes(graph: TaskGraph, names: Collection[str] | None) -> Floats:
    """Bytes of each tensor; 0 for those of other classes."""
    most = max((len(work.writes) for work in graph.works), default=0)
    table = np.zeros((len(graph.works), max(most, 1)))
    for row, work in enumerate(graph.works):
        for column, tensor in enumerate(work.writes):
            if names is None or tensor.name in names:
                table[row, column] = tensor.n_bytes
    position = np.arange(graph.num_tensors) - graph.first_write[graph.writer]
    return np.asarray(table[graph.work[graph.writer], position])


def _places(graph: TaskGraph) -> Wide:
    """Which device holds each tensor: its writer's, or its reader's for what was sent.

    What devices do together writes for one of them after the other.
    """
    number = {name: i for i, name in enumerate(_devices(graph))}
    owners = [[number[owner] for owner in _owners(stream)] for stream in graph.streams]
    table = np.full((len(owners), max(map(len, owners), default=1)), -1, dtype=np.int64)
    for row, members in enumerate(owners):
        table[row, : len(members)] = members
    joined = np.array([len(members) for members in owners], dtype=np.int64)
    stream = graph.stream[graph.writer]
    position = np.arange(graph.num_tensors) - graph.first_write[graph.writer]
    each = np.diff(graph.first_write)[graph.writer] // joined[stream]
    place = table[stream, position // np.maximum(each, 1)]
    arrives, lies = _arrivals(graph, table)
    place[arrives] = lies
    return np.asarray(place)


def _arrivals(graph: TaskGraph, table: Wide) -> tuple[Wide, Wide]:
    """Tensors that were sent and are read, and the device where: of several the one that it was sent to."""
    sends = np.array([work.kind is Kind.COMM_SEND for work in graph.works])
    arrives = np.flatnonzero(sends[graph.work[graph.writer]][graph.reads.values])
    tensor = graph.reads.values[arrives].astype(np.int64)
    members = table[graph.stream[graph.reads.row_of_value[arrives]]]
    rank = np.array([-1 if (found := rank_of(name)) is None else found for name in _devices(graph)])
    target = np.array([-2 if work.group is None else work.group.ranks[-1] for work in graph.works])
    meant = (rank[members] == target[graph.work[graph.writer[tensor]]][:, None]) & (members >= 0)
    return tensor, members[np.arange(len(tensor)), meant.argmax(axis=1)]


def _peak(born: Floats, dead: Floats, n_bytes: Floats) -> float:
    """The largest sum of overlapping lifetimes; what ends at an instant is gone for what begins there."""
    times = np.concatenate([dead, born])
    change = np.concatenate([-n_bytes, n_bytes])
    ends_first = np.concatenate([np.zeros(len(dead)), np.ones(len(born))])
    order = np.lexsort((ends_first, times))
    return float(np.cumsum(change[order]).max())


def _devices(graph: TaskGraph) -> list[str]:
    """Every device, or what else owns streams, in the order in which they appear."""
    return list(dict.fromkeys(owner for stream in graph.streams for owner in _owners(stream)))


def _owners(stream: str) -> list[str]:
    """Whose stream it is: one device's, or on unfolded graphs that of several that act together."""
    return stream.split("/", 1)[0].split("+")
