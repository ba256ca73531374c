"""A trace for Perfetto and chrome://tracing: one process per device, one thread per stream.

Format: Trace Event Format, times in microseconds. On each thread the slices of tasks ("ph": "X") lie in those
of their pass and micro-batch, and these in those of the optimizer step. Arrows ("s", "f") lead from the task
that writes a tensor to those on other streams that read it. Counters ("C") of each device show its
activations in memory, the load of its links and its busy streams.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.base.errors import PerfsimError
from perfsim.base.files import write_file
from perfsim.engine.trace import Span, Trace
from perfsim.work import Kind, TaskGraph

# Counters of a trace over time: activations in memory, load of links and busy streams of each device.
#
# Memory is that of activations, from the task that writes a tensor to the last one that reads it. Parameters,
# gradients and optimizer states have their place for the whole step (`Prediction.memory` has them).

GIGA = 1e9
PLACED = ("weights", "gradients", "parameters", "norm")
"""Tensors of the graph that are no activations."""


Event = dict[str, Any]


def _counters(graph: TaskGraph, start_ns: Ints, end_ns: Ints, device_of_stream: Ints) -> Iterator[Event]:
    """All counters, device by device."""
    yield from _memory(graph, start_ns, end_ns, device_of_stream)
    yield from _links(graph, start_ns, end_ns, device_of_stream)
    device = device_of_stream[graph.stream]
    for number in range(device_of_stream.max(initial=-1) + 1):
        tasks = np.flatnonzero((device == number) & (end_ns > start_ns))
        ones = np.ones(len(tasks))
        yield from _counter(number, "busy streams", "streams", start_ns[tasks], end_ns[tasks], ones)


def _memory(graph: TaskGraph, start_ns: Ints, end_ns: Ints, device_of_stream: Ints) -> Iterator[Event]:
    """From the start of the task that writes a tensor to the end of the last one that reads it.

    What is sent lies on the device of its first reader.
    """
    writer = graph.writer.astype(np.int64)
    position = np.arange(graph.num_tensors) - graph.first_write[:-1][writer]
    sizes = [
        [0.0 if tensor.name in PLACED else tensor.n_bytes for tensor in work.writes] for work in graph.works
    ]
    written = zip(graph.work[writer].tolist(), position.tolist(), strict=True)
    n_bytes = np.array([sizes[work][place] for work, place in written])
    reads = graph.reads.values.astype(np.int64)
    readers = graph.reads.row_of_value.astype(np.int64)
    freed_ns = end_ns[writer].copy()
    np.maximum.at(freed_ns, reads, end_ns[readers])
    place = device_of_stream[graph.stream[writer]].copy()
    sends = np.array([work.kind is Kind.COMM_SEND for work in graph.works])[graph.work[writer]]
    first = np.unique(reads, return_index=True)
    there = np.full(graph.num_tensors, -1)
    there[first[0]] = device_of_stream[graph.stream[readers[first[1]]]]
    place[sends & (there >= 0)] = there[sends & (there >= 0)]
    for number in range(device_of_stream.max(initial=-1) + 1):
        mine = np.flatnonzero((place == number) & (n_bytes > 0))
        if len(mine):
            written_ns = start_ns[writer[mine]]
            sizes_gb = n_bytes[mine] / GIGA
            yield from _counter(number, "activations in memory", "GB", written_ns, freed_ns[mine], sizes_gb)


def _links(graph: TaskGraph, start_ns: Ints, end_ns: Ints, device_of_stream: Ints) -> Iterator[Event]:
    """Bytes of each communication over its duration, by the stream that carries it."""
    carried = np.array([work.comm_bytes for work in graph.works])[graph.work]
    for number, stream in enumerate(graph.streams):
        tasks = np.flatnonzero((graph.stream == number) & (carried > 0) & (end_ns > start_ns))
        if len(tasks):
            rates = carried[tasks] / (end_ns[tasks] - start_ns[tasks])
            name = f"link load, {stream.split('/', 1)[1]}" if "/" in stream else "link load"
            device = int(device_of_stream[number])
            yield from _counter(device, name, "GB/s", start_ns[tasks], end_ns[tasks], rates)


def _counter(pid: int, name: str, unit: str, low_ns: Ints, high_ns: Ints, heights: Floats) -> Iterator[Event]:
    """The sum of the heights of all intervals that hold at each moment, until the next one."""
    moments = np.concatenate([low_ns, high_ns])
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    sums = np.cumsum(np.concatenate([heights, -heights])[order])
    last = np.append(moments[1:] != moments[:-1], True) if len(moments) else np.zeros(0, dtype=bool)
    # What is left of rounding after equal heights were added and taken away is nothing.
    values = np.where(np.abs(sums) < 1e-9 * max(1e-9, float(np.abs(heights).max(initial=0.0))), 0.0, sums)
    for moment_ns, value in zip(moments[last].tolist(), values[last].tolist(), strict=True):
        shown = {unit: float(f"{value:.6g}")}
        yield {"ph": "C", "name": name, "pid": pid, "ts": moment_ns / 1e3, "args": shown}


NANOSECONDS = 1e9
MOST_DETAILED = 50_000
"""Tasks of a trace above which arrows and counters are left out: Perfetto opens files of some hundred MB."""


def trace_events(trace: Trace) -> Iterator[Event]:
    """Names of devices and streams, the slices of each stream, then arrows and counters."""
    graph = trace.graph
    # A device, or the devices that meet, are what stands before the first slash of a stream's name.
    owners = [stream.split("/", 1)[0] for stream in graph.streams]
    devices = {device: number for number, device in enumerate(dict.fromkeys(owners))}
    pids = [devices[owner] for owner in owners]
    for device, number in devices.items():
        yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": device}}
    for number, name in enumerate(graph.streams):
        named = {"name": name}
        yield {"ph": "M", "name": "thread_name", "pid": pids[number], "tid": number, "args": named}
    start_ns, end_ns = (
        np.rint(times * NANOSECONDS).astype(np.int64) for times in (trace.start_s, trace.end_s)
    )
    by_stream = graph.by_stream
    for stream, (first, last) in enumerate(pairwise(by_stream.start.tolist())):
        tasks = by_stream.values[first:last]
        yield from _slices(graph, tasks.tolist(), start_ns, end_ns, {"pid": pids[stream], "tid": stream})
    if len(graph) <= MOST_DETAILED:
        yield from _arrows(graph, start_ns, end_ns, pids)
        yield from _counters(graph, start_ns, end_ns, np.array(pids))


# ---------------------------------------------------------------------------------------- slices
def _slices(graph: TaskGraph, tasks: list[int], start_ns: Any, end_ns: Any, place: Event) -> Iterator[Event]:
    """The tasks of a stream inside slices of their pass and of their step."""
    works = graph.works
    tag = graph.tag
    work = graph.work

    def step_of(task: int) -> int:
        return bisect_right(graph.step_ends, task)

    def pass_of(task: int) -> tuple[int, str, int]:
        return step_of(task), works[work[task]].category, int(tag[task])

    def outer(name: str, category: str, run: list[int]) -> Event:
        return _slice(name, category, int(start_ns[run[0]]), int(end_ns[run[-1]]), place)

    for run in _runs(tasks, step_of):
        if len(graph.step_ends) > 1:
            yield outer(f"step {step_of(run[0]) + 1}", "step", run)
        for inner in _runs(run, pass_of):
            _, category, microbatch = pass_of(inner[0])
            if len(inner) > 1:
                suffix = f"[{microbatch}]" if microbatch >= 0 else ""
                yield outer(f"{category}{suffix}", category, inner)
            for task in inner:
                yield _task(graph, task, int(start_ns[task]), int(end_ns[task]), place)


def _slice(name: str, category: str, start_ns: int, end_ns: int, place: Event) -> Event:
    times = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
    return {"ph": "X", "name": name, "cat": category, **place, **times}


def _task(graph: TaskGraph, task: int, start_ns: int, end_ns: int, place: Event) -> Event:
    known = graph.works[graph.work[task]]
    tag = int(graph.tag[task])
    event = _slice(known.name, known.category, start_ns, end_ns, place)
    details: Event = {"microbatch": tag} if tag >= 0 else {}
    if known.comm_bytes:
        details["bytes"] = known.comm_bytes
    return event | {"args": details} if details else event


def _runs(tasks: list[int], key: Any) -> Iterator[list[int]]:
    """Consecutive tasks with the same key."""
    run: list[int] = []
    for task in tasks:
        if run and key(run[-1]) != key(task):
            yield run
            run = []
        run.append(task)
    if run:
        yield run


# ------------------------------------------------------------------------------ arrows, counters
def _arrows(graph: TaskGraph, start_ns: Any, end_ns: Any, pids: list[int]) -> Iterator[Event]:
    """From the end of a task to the start of each one on another stream that reads its tensor."""
    readers = graph.reads.row_of_value
    writers = graph.writer[graph.reads.values]
    stream = graph.stream
    apart = np.flatnonzero(stream[writers] != stream[readers])
    for number, (writer, reader) in enumerate(
        zip(writers[apart].tolist(), readers[apart].tolist(), strict=True), 1
    ):
        name = graph.works[graph.work[writer]].name
        begin = max(int(start_ns[writer]), int(end_ns[writer]) - 1)
        common = {"name": name, "cat": "tensor", "id": number}
        ends = (({"ph": "s"}, writer, begin), ({"ph": "f", "bp": "e"}, reader, int(start_ns[reader])))
        for kind, task, time_ns in ends:
            tid = int(stream[task])
            yield {**kind, **common, "pid": pids[tid], "tid": tid, "ts": time_ns / 1e3}


# ----------------------------------------------------------------------------------------- files
def write_chrome_trace(trace: Trace, path: Path) -> Path:
    """Write a trace; gzipped where the name ends in .gz. The same trace gives the same bytes."""
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    body = ",\n".join(map(encode, trace_events(trace)))
    about = encode({"simulated": None if trace.simulated is None else trace.simulated._asdict()})
    data = f'{{"displayTimeUnit":"ms","otherData":{about},"traceEvents":[\n{body}\n]}}\n'.encode()
    return write_file(path, gzip.compress(data, compresslevel=5, mtime=0) if path.suffix == ".gz" else data)


@dataclass(frozen=True)
class StepTrace:
    """A run of a step to look into or to save."""

    run: Trace = field(repr=False)

    @property
    def step_time_s(self) -> float:
        """Seconds of the measured step."""
        return self.run.step_time_s

    def spans(self) -> Iterator[Span]:
        """Every task with its stream, category, start and end."""
        return (self.run.span(task) for task in range(len(self.run.graph)))

    def save(self, path: str | Path) -> Path:
        """Write it for Perfetto and chrome://tracing; gzipped where the name ends in .gz.

        A name that ends in .et gives Chakra execution traces, one file for each class of ranks.
        """
        try:
            if Path(path).suffix == ".et":
                from perfsim.interop.chakra import write_chakra

                return write_chakra(self.run, Path(path))[0]
            return write_chrome_trace(self.run, Path(path))
        except OSError as error:
            raise PerfsimError(f"{path}: {error.strerror or error}") from None
