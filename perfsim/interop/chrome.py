"""A trace for Perfetto and chrome://tracing: one process per device, one thread per stream.

Format: Trace Event Format, times in microseconds. On each thread the slices of tasks ("ph": "X") lie in those
of their pass and micro-batch, and these in slices of the optimizer step. Arrows ("s", "f") lead from the task
that writes a tensor to those on other streams that read it. A task says its layer, its link, what it consists
of, and which task its stream waited for and how long. Counters ("C") of each device show its
activations in memory, the load of its links and its busy streams.
"""

import gzip
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.base.files import write_file, writing
from perfsim.engine.trace import Trace
from perfsim.work import WHOLE_DEVICE, Kind
from perfsim.work.graph import block_name

GIGA = 1e9
NANOSECONDS = 1e9
PLACED = ("weights", "gradients", "parameters", "norm")
"""Tensors of the graph that are no activations: they have their place for the whole step."""
MOST_DETAILED = 50_000
"""Tasks of a trace above which arrows and counters are left out: Perfetto opens files of some hundred MB."""
Event = dict[str, Any]
Shares = Mapping[int, Mapping[str, float]]


class _Events:
    """The events of a trace."""

    def __init__(self, trace: Trace, links: Mapping[int, str], shares: Shares) -> None:
        self.graph = trace.graph
        self.links = links
        self.shares = shares
        self.waited_for = trace.waited_for.tolist()
        self.waited_s = trace.waited_s.tolist()
        self.start_ns = np.rint(trace.start_s * NANOSECONDS).astype(np.int64)
        self.end_ns = np.rint(trace.end_s * NANOSECONDS).astype(np.int64)
        # A device, or the devices that meet, are what stands before the first slash of a stream's name.
        owners = [stream.split("/", 1)[0] for stream in self.graph.streams]
        self.devices = {device: number for number, device in enumerate(dict.fromkeys(owners))}
        self.pids: Ints = np.array([self.devices[owner] for owner in owners], dtype=np.int64)

    def __iter__(self) -> Iterator[Event]:
        """Names of devices and streams, the slices of each stream, then arrows and counters."""
        for device, number in self.devices.items():
            yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": device}}
        for number, name in enumerate(self.graph.streams):
            yield {"ph": "M", "name": "thread_name", **self._place(number), "args": {"name": name}}
        by_stream = self.graph.by_stream
        for stream, (first, last) in enumerate(pairwise(by_stream.start.tolist())):
            yield from self._slices(by_stream.values[first:last].tolist(), self._place(stream))
        if len(self.graph) <= MOST_DETAILED:
            yield from self._arrows()
            yield from self._memory()
            yield from self._links()
            yield from self._busy()

    def _place(self, stream: int) -> Event:
        return {"pid": int(self.pids[stream]), "tid": stream}

    def _slices(self, tasks: list[int], thread: Event) -> Iterator[Event]:
        """The tasks of a stream inside slices of their pass and of their step."""
        graph = self.graph

        def pass_of(task: int) -> tuple[str, int]:
            return graph.works[graph.work[task]].category, int(graph.tag[task])

        for step, of_step in groupby(tasks, partial(bisect_right, graph.step_ends)):
            run = list(of_step)
            if len(graph.step_ends) > 1:
                yield self._slice(f"step {step + 1}", "step", run[0], run[-1], thread)
            for (category, microbatch), of_pass in groupby(run, pass_of):
                inner = list(of_pass)
                if len(inner) > 1:
                    suffix = f"[{microbatch}]" if microbatch >= 0 else ""
                    yield self._slice(f"{category}{suffix}", category, inner[0], inner[-1], thread)
                for task in inner:
                    work = graph.works[graph.work[task]]
                    event = self._slice(work.name, work.category, task, task, thread)
                    details = self._details(task)
                    yield event | {"args": details} if details else event

    def _details(self, task: int) -> Event:
        """What a task belongs to and moves, and what ended the wait before it."""
        graph = self.graph
        number = int(graph.work[task])
        details: Event = {"microbatch": int(graph.tag[task])} if graph.tag[task] >= 0 else {}
        if graph.block[task] != WHOLE_DEVICE:
            details["block"] = block_name(int(graph.block[task]))
        if n_bytes := graph.works[number].comm_bytes:
            details["bytes"] = n_bytes
        if shares := self.shares.get(number):
            lasts_us = int(self.end_ns[task] - self.start_ns[task]) / 1e3
            details["of_which_us"] = {part: round(share * lasts_us, 3) for part, share in shares.items()}
        if number in self.links:
            details["link"] = self.links[number]
        if (before := self.waited_for[task]) >= 0:
            ended_by = int(graph.work[before])
            over = f" over {self.links[ended_by]}" if ended_by in self.links else ""
            stream = graph.streams[graph.stream[before]]
            details["waited_for"] = f"{graph.works[ended_by].name} on {stream}{over}"
            details["waited_us"] = round(1e6 * self.waited_s[task], 3)
        return details

    def _slice(self, name: str, category: str, first: int, last: int, thread: Event) -> Event:
        """A slice from the start of one task to the end of another."""
        start_ns = int(self.start_ns[first])
        times = {"ts": start_ns / 1e3, "dur": (int(self.end_ns[last]) - start_ns) / 1e3}
        return {"ph": "X", "name": name, "cat": category, **thread, **times}

    def _arrows(self) -> Iterator[Event]:
        """From the end of a task to the start of each one on another stream that reads its tensor."""
        graph = self.graph
        readers = graph.reads.row_of_value
        writers = graph.writer[graph.reads.values]
        apart = np.flatnonzero(graph.stream[writers] != graph.stream[readers])
        pairs = zip(writers[apart].tolist(), readers[apart].tolist(), strict=True)
        for number, (writer, reader) in enumerate(pairs, 1):
            common = {"name": graph.works[graph.work[writer]].name, "cat": "tensor", "id": number}
            begin_ns = max(int(self.start_ns[writer]), int(self.end_ns[writer]) - 1)
            start = {"ph": "s", **common, **self._place(int(graph.stream[writer]))}
            yield {**start, "ts": begin_ns / 1e3}
            end = {"ph": "f", "bp": "e", **common, **self._place(int(graph.stream[reader]))}
            yield {**end, "ts": int(self.start_ns[reader]) / 1e3}

    def _memory(self) -> Iterator[Event]:
        """Activations of each device, from the start of their task to the end of the last that reads them."""
        graph = self.graph
        writer = graph.writer.astype(np.int64)
        sizes = [[(t.name not in PLACED) * t.n_bytes for t in work.writes] for work in graph.works]
        n_bytes = np.array([size for work in graph.work.tolist() for size in sizes[work]])
        reads = graph.reads.values.astype(np.int64)
        readers = graph.reads.row_of_value.astype(np.int64)
        freed_ns = self.end_ns[writer].copy()
        np.maximum.at(freed_ns, reads, self.end_ns[readers])
        device = self.pids[graph.stream[writer]].copy()
        # What is sent lies on the device of its first reader.
        sends = np.array([work.kind is Kind.COMM_SEND for work in graph.works])[graph.work[writer]]
        tensors, first = np.unique(reads, return_index=True)
        there = np.full(graph.num_tensors, -1)
        there[tensors] = self.pids[graph.stream[readers[first]]]
        device[sends & (there >= 0)] = there[sends & (there >= 0)]
        for number in self.devices.values():
            mine = np.flatnonzero((device == number) & (n_bytes > 0))
            if len(mine):
                lives = self.start_ns[writer[mine]], freed_ns[mine]
                yield from _counter(number, "activations in memory", "GB", *lives, n_bytes[mine] / GIGA)

    def _links(self) -> Iterator[Event]:
        """Bytes of each communication over its duration, by the stream that carries it."""
        carried = np.array([work.comm_bytes for work in self.graph.works])[self.graph.work]
        lasting = self.end_ns > self.start_ns
        for number, stream in enumerate(self.graph.streams):
            tasks = np.flatnonzero((self.graph.stream == number) & (carried > 0) & lasting)
            if len(tasks):
                times = self.start_ns[tasks], self.end_ns[tasks]
                name = f"link load, {stream.split('/', 1)[1]}" if "/" in stream else "link load"
                rates = carried[tasks] / (times[1] - times[0])
                yield from _counter(int(self.pids[number]), name, "GB/s", *times, rates)

    def _busy(self) -> Iterator[Event]:
        """Streams of each device that run a task."""
        device = self.pids[self.graph.stream]
        for number in self.devices.values():
            tasks = np.flatnonzero((device == number) & (self.end_ns > self.start_ns))
            times = self.start_ns[tasks], self.end_ns[tasks]
            yield from _counter(number, "busy streams", "streams", *times, np.ones(len(tasks)))


def _counter(pid: int, name: str, unit: str, low_ns: Ints, high_ns: Ints, heights: Floats) -> Iterator[Event]:
    """The sum of the heights of all intervals that hold at each moment, until the next one."""
    moments = np.concatenate([low_ns, high_ns])
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    sums = np.cumsum(np.concatenate([heights, -heights])[order])
    last = np.append(moments[1:] != moments[:-1], True) if len(moments) else np.zeros(0, dtype=bool)
    # What is left of rounding after equal heights were added and taken away is nothing.
    values = np.where(np.abs(sums) < 1e-9 * np.abs(heights).max(initial=0.0), 0.0, sums)
    for moment_ns, value in zip(moments[last].tolist(), values[last].tolist(), strict=True):
        shown = {unit: float(f"{value:.6g}")}
        yield {"ph": "C", "name": name, "pid": pid, "ts": moment_ns / 1e3, "args": shown}


@dataclass(frozen=True)
class StepTrace:
    """A run of a step to look into or to save."""

    run: Trace = field(repr=False)
    """Start and end of every task of its graph."""
    links: Mapping[int, str] = field(default_factory=dict, repr=False)
    """The kind of link that sets the pace of each class of communication."""
    shares: Shares = field(default_factory=dict, repr=False)
    """The shares of the time of a class of work that have a name, such as rows of weights on a wafer."""

    @property
    def step_time_s(self) -> float:
        return self.run.step_time_s

    def save(self, path: str | Path) -> Path:
        """Write it for Perfetto and chrome://tracing; gzipped where the name ends in .gz.

        The same trace gives the same bytes. A name that ends in .et gives Chakra execution traces, one file
        for each class of ranks.
        """
        with writing(path) as file:
            if file.suffix == ".et":
                from perfsim.interop.chakra import ExecutionTrace

                return ExecutionTrace.write(self.run, file)[0]
            encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
            body = ",\n".join(map(encode, _Events(self.run, self.links, self.shares)))
            about = encode({"simulated": self.run.simulated and asdict(self.run.simulated)})
            data = f'{{"displayTimeUnit":"ms","otherData":{about},"traceEvents":[\n{body}\n]}}\n'.encode()
            if file.suffix == ".gz":
                data = gzip.compress(data, compresslevel=5, mtime=0)
            return write_file(file, data)
