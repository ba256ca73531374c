"""Counters of a trace over time: activations in memory, load of links and busy streams of each device.

Memory is that of activations, from the task that writes a tensor to the last one that reads it. Parameters,
gradients and optimizer states have their place for the whole step (`Prediction.memory` has them).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import Kind, TaskGraph

GIGA = 1e9
PLACED = ("weights", "gradients", "parameters", "norm")
"""Tensors of the graph that are no activations."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Counter(NamedTuple):
    """A quantity of a device as a step function: each value holds from its moment to the next."""

    device: str
    name: str
    unit: str
    moments_ns: Ints
    values: Floats


def counters(graph: TaskGraph, start_ns: Ints, end_ns: Ints) -> Iterator[Counter]:
    """All counters, device by device."""
    owner = [stream.split("/", 1)[0] for stream in graph.streams]
    devices = list(dict.fromkeys(owner))
    device_of_stream = np.array([devices.index(name) for name in owner])
    yield from _memory(graph, start_ns, end_ns, devices, device_of_stream)
    yield from _links(graph, start_ns, end_ns, owner)
    device = device_of_stream[graph.stream]
    for number, name in enumerate(devices):
        tasks = np.flatnonzero((device == number) & (end_ns > start_ns))
        ones = np.ones(len(tasks))
        yield _counter(name, "busy streams", "streams", start_ns[tasks], end_ns[tasks], ones)


def _memory(
    graph: TaskGraph, start_ns: Ints, end_ns: Ints, devices: list[str], device_of_stream: Ints
) -> Iterator[Counter]:
    """From the start of the task that writes a tensor to the end of the last one that reads it.

    What is sent lies on the device of its first reader.
    """
    writer = graph.writer.astype(np.int64)
    position = np.arange(graph.num_tensors) - graph.first_write[:-1][writer]
    sizes = [
        tuple(0.0 if tensor.name in PLACED else tensor.n_bytes for tensor in work.writes)
        for work in graph.works
    ]
    n_bytes = np.array(
        [
            sizes[work][place]
            for work, place in zip(graph.work[writer].tolist(), position.tolist(), strict=True)
        ]
    )
    reads, readers = graph.reads.values.astype(np.int64), graph.reads.row_of_value.astype(np.int64)
    freed_ns = end_ns[writer].copy()
    np.maximum.at(freed_ns, reads, end_ns[readers])
    place = device_of_stream[graph.stream[writer]].copy()
    sends = np.array([work.kind is Kind.COMM_SEND for work in graph.works])[graph.work[writer]]
    first = np.unique(reads, return_index=True)
    there = np.full(graph.num_tensors, -1)
    there[first[0]] = device_of_stream[graph.stream[readers[first[1]]]]
    place[sends & (there >= 0)] = there[sends & (there >= 0)]
    for number, name in enumerate(devices):
        mine = np.flatnonzero((place == number) & (n_bytes > 0))
        if len(mine):
            yield _counter(
                name,
                "activations in memory",
                "GB",
                start_ns[writer[mine]],
                freed_ns[mine],
                n_bytes[mine] / GIGA,
            )


def _links(graph: TaskGraph, start_ns: Ints, end_ns: Ints, owner: list[str]) -> Iterator[Counter]:
    """Bytes of each communication over its duration, by the stream that carries it."""
    carried = np.array([work.comm_bytes for work in graph.works])[graph.work]
    for number, stream in enumerate(graph.streams):
        tasks = np.flatnonzero((graph.stream == number) & (carried > 0) & (end_ns > start_ns))
        if len(tasks):
            rates = carried[tasks] / (end_ns[tasks] - start_ns[tasks])
            name = f"link load, {stream.split('/', 1)[1]}" if "/" in stream else "link load"
            yield _counter(owner[number], name, "GB/s", start_ns[tasks], end_ns[tasks], rates)


def _counter(device: str, name: str, unit: str, low_ns: Ints, high_ns: Ints, heights: Floats) -> Counter:
    """The sum of the heights of all intervals that hold at each moment."""
    moments = np.concatenate([low_ns, high_ns])
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    sums = np.cumsum(np.concatenate([heights, -heights])[order])
    last = np.append(moments[1:] != moments[:-1], True) if len(moments) else np.zeros(0, dtype=bool)
    # What is left of rounding after equal heights were added and taken away is nothing.
    values = np.where(np.abs(sums) < 1e-9 * max(1e-9, float(np.abs(heights).max(initial=0.0))), 0.0, sums)
    return Counter(device, name, unit, moments[last], values[last])
