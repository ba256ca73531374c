"""A trace for Perfetto and chrome://tracing: one process per device, one thread per stream.

Format: Trace Event Format, complete events ("ph": "X") with times in microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfsim.errors import PerfsimError
from perfsim.trace import Span, Trace

MICROSECONDS = 1e6


def trace_events(trace: Trace) -> Iterator[dict[str, Any]]:
    """The names of devices and streams, then one event per task."""
    graph = trace.graph
    devices = list(dict.fromkeys(_device(stream) for stream in graph.streams))
    for number, device in enumerate(devices):
        yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": device}}
    for number, stream in enumerate(graph.streams):
        pid = devices.index(_device(stream))
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": stream}}
    pids = [devices.index(_device(stream)) for stream in graph.streams]
    columns = (graph.work, graph.stream, graph.tag, trace.start_s, trace.end_s)
    for work, stream, tag, start_s, end_s in zip(*(column.tolist() for column in columns), strict=True):
        event = {
            "ph": "X",
            "name": graph.works[work].name,
            "cat": graph.works[work].category,
            "pid": pids[stream],
            "tid": stream,
            "ts": round(start_s * MICROSECONDS, 3),
            "dur": round((end_s - start_s) * MICROSECONDS, 3),
        }
        if tag >= 0:
            event["args"] = {"microbatch": tag}
        yield event


def write_chrome_trace(trace: Trace, path: Path) -> Path:
    """Write a trace; gzipped where the name ends in .gz. The same trace gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace_events(trace))
    simulated = None if trace.simulated is None else trace.simulated._asdict()
    about = json.dumps({"simulated": simulated}, separators=(",", ":"))
    data = f'{{"displayTimeUnit":"ms","otherData":{about},"traceEvents":[\n{body}\n]}}\n'.encode()
    path.write_bytes(gzip.compress(data, compresslevel=5, mtime=0) if path.suffix == ".gz" else data)
    return path


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
        """Write it for Perfetto and chrome://tracing; gzipped where the name ends in .gz."""
        try:
            return write_chrome_trace(self.run, Path(path))
        except OSError as error:
            raise PerfsimError(f"{path}: {error.strerror or error}") from None


def _device(stream: str) -> str:
    return stream.split("/", 1)[0]
