"""A trace for Perfetto: what its reader finds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from perfsim.graph import GraphBuilder
from perfsim.interop.chrome import trace_events, write_chrome_trace
from perfsim.trace import Trace


@pytest.fixture
def trace(toys: ModuleType) -> Trace:
    builder = GraphBuilder()
    builder.task(toys.compute("f", "forward"), "gpu0/compute", tag=3)
    builder.task(toys.compute("send", "pipeline_communication"), "gpu0/send-next")
    builder.task(toys.compute("f", "forward"), "gpu8/compute")
    return Trace(builder.build(), np.array([0.0, 1e-3, 2e-3]), np.array([1e-3, 1.5e-3, 4e-3]))


def loaded(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return events


def test_devices_are_processes_and_streams_are_threads(trace: Trace) -> None:
    names = [
        (event["name"], event["pid"], event["args"]["name"])
        for event in trace_events(trace)
        if event["ph"] == "M"
    ]
    assert names == [
        ("process_name", 0, "gpu0"),
        ("process_name", 1, "gpu8"),
        ("thread_name", 0, "gpu0/compute"),
        ("thread_name", 0, "gpu0/send-next"),
        ("thread_name", 1, "gpu8/compute"),
    ]


def test_every_task_is_one_event_in_microseconds(trace: Trace) -> None:
    first, send, second = (event for event in trace_events(trace) if event["ph"] == "X")
    assert (first["name"], first["cat"], first["ts"], first["dur"]) == ("f", "forward", 0.0, 1000.0)
    assert first["args"] == {"microbatch": 3}
    assert (send["pid"], send["tid"], "args" in send) == (0, 1, False)
    assert (second["pid"], second["ts"], second["dur"]) == (1, 2000.0, 2000.0)


@pytest.mark.parametrize("name", ["trace.json", "deep/er/trace.json.gz"])
def test_a_written_trace_reads_back_and_is_the_same_bytes_again(
    trace: Trace, tmp_path: Path, name: str
) -> None:
    path = write_chrome_trace(trace, tmp_path / name)
    assert loaded(path) == list(trace_events(trace))
    again = write_chrome_trace(trace, tmp_path / f"again-{path.name}")
    assert again.read_bytes() == path.read_bytes()
