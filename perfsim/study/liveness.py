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
from perfsim.trace import Trace

SAVED = "saved"
"""The tensor class of what a layer keeps for its backward."""

Floats = NDArray[np.float64]
Wide = NDArray[np.int64]


def peak_live_bytes(trace: Trace, names: Collection[str] | None = None) -> dict[str, float]:
    """The most bytes that are alive at once, by device (the first part of a stream's name).

    `names` counts tensors of these classes only. Devices that hold none are left out.
    """
    graph = trace.graph
    n_bytes, place = _bytes(graph, names), _places(graph)
    born, dead = _lifetimes(trace)
    owners = list(dict.fromkeys(_owner(stream) for stream in graph.streams))
    peaks = {}
    for number, owner in enumerate(owners):
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
    """Which device holds each tensor: its writer's, or its reader's for what was sent."""
    owners = {name: i for i, name in enumerate(dict.fromkeys(_owner(stream) for stream in graph.streams))}
    of_stream = np.array([owners[_owner(stream)] for stream in graph.streams], dtype=np.int64)
    place = of_stream[graph.stream[graph.writer]]
    sends = np.array([work.kind is Kind.COMM_SEND for work in graph.works])
    sent = sends[graph.work[graph.writer]]
    readers = of_stream[graph.stream[graph.reads.row_of_value]]
    arrives = sent[graph.reads.values]
    place[graph.reads.values[arrives]] = readers[arrives]
    return place


def _peak(born: Floats, dead: Floats, n_bytes: Floats) -> float:
    """The largest sum of overlapping lifetimes; what ends at an instant is gone for what begins there."""
    times = np.concatenate([dead, born])
    change = np.concatenate([-n_bytes, n_bytes])
    ends_first = np.concatenate([np.zeros(len(dead)), np.ones(len(born))])
    order = np.lexsort((ends_first, times))
    return float(np.cumsum(change[order]).max())


def _owner(stream: str) -> str:
    return stream.split("/", 1)[0]
