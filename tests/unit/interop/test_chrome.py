"""A trace for Perfetto: what its reader finds."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import perfsim as ps
from perfsim.engine.trace import Trace
from perfsim.interop import chrome
from perfsim.interop.chrome import StepTrace
from perfsim.work import GraphBuilder, Kind
from perfsim.work.graph import TensorClass


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
    return json.loads(text)["traceEvents"]


def events(trace: Trace) -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        return loaded(StepTrace(trace).save(Path(folder) / "trace.json"))


def slices(trace: Trace) -> list[dict[str, Any]]:
    return [event for event in events(trace) if event["ph"] == "X"]


def steps(toys: ModuleType) -> Trace:
    """Two optimizer steps of two micro-batches with two layers each, and a message between devices."""
    builder = GraphBuilder()
    start_s: list[float] = []
    for _ in range(2):
        handle = -1
        for microbatch in range(2):
            for layer in range(2):
                work = replace(toys.compute(f"layer{layer}", "forward"), writes=(TensorClass("hidden", 2e9),))
                reads = [handle] if handle >= 0 else []
                handle = builder.task(work, "gpu0/compute", reads, tag=microbatch).tensor
                start_s.append(float(len(start_s)))
        moved = {"kind": Kind.COMM_SEND, "comm_bytes": 3e9, "writes": (TensorClass("hidden", 1e9),)}
        send = replace(toys.compute("send", "pipeline_communication"), **moved)
        handle = builder.task(send, "gpu0/send", [handle]).tensor
        builder.task(toys.compute("head", "forward"), "gpu1/compute", [handle])
        start_s += [float(len(start_s)), float(len(start_s)) + 1]
        builder.end_step()
    starts = np.array(start_s)
    return Trace(builder.build(), starts, starts + 1.0)


def test_tasks_lie_in_slices_of_their_pass_and_these_in_their_step(toys: ModuleType) -> None:
    mine = [event for event in slices(steps(toys)) if event["tid"] == 0]
    names = [event["name"] for event in mine]
    assert names[:7] == ["step 1", "forward[0]", "layer0", "layer1", "forward[1]", "layer0", "layer1"]
    assert names[7] == "step 2"
    open_until: list[float] = []
    for event in mine:
        end = event["ts"] + event["dur"]
        while open_until and open_until[-1] <= event["ts"]:
            open_until.pop()
        assert not open_until or end <= open_until[-1], "a slice lies inside the one that it begins in"
        open_until.append(end)


def test_a_task_says_its_layer_its_link_and_what_its_stream_waited_for(tmp_path: Path) -> None:
    asked = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 16, "batch": 16}
    prediction = ps.predict(**asked, layout="tp=2,pp=4,dp=2")
    told = [event for event in loaded(prediction.trace.save(tmp_path / "step.json")) if event["ph"] == "X"]
    ends = {(event["name"], event["tid"], round(event["ts"] + event["dur"], 3)) for event in told}
    streams = prediction.run.trace.graph.streams
    waits = [event for event in told if "waited_for" in event.get("args", {})]
    updates = [event["args"]["waited_for"] for event in told if event["name"] == "optimizer"]
    assert updates == ["gradients.norm on gpu0/send-previous over host"] * 4
    assert any("pipeline.send" in event["args"]["waited_for"] for event in waits)
    for event in waits:
        name, _, stream = event["args"]["waited_for"].partition(" over ")[0].partition(" on ")
        assert (name, streams.index(stream), event["ts"]) in ends
        assert event["args"]["waited_us"] > 0
    blocks = {event["args"]["block"] for event in told if event["name"] == "mlp.forward"}
    assert blocks == {f"layer {number}" for number in range(24)}
    links = {event["name"]: event["args"]["link"] for event in told if "link" in event.get("args", {})}
    assert links["tensor.all_reduce"] == "scale_up"
    assert links["data.all_reduce"] == "scale_up"


def test_counters_show_activations_links_and_streams_of_each_device(toys: ModuleType) -> None:
    trace = steps(toys)
    tracks: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for event in events(trace):
        if event["ph"] == "C":
            (value,) = event["args"].values()
            tracks.setdefault((event["pid"], event["name"]), []).append((event["ts"] / 1e6, value))
    load = tracks[0, "link load, send"]
    assert load == [(4.0, 3.0), (5.0, 0.0), (10.0, 3.0), (11.0, 0.0)]
    assert tracks[1, "activations in memory"][0] == (4.0, 1.0), "what is sent lies where it is read"
    assert max(value for _, value in tracks[0, "activations in memory"]) == 4.0
    assert {value for _, value in tracks[0, "busy streams"]} == {0.0, 1.0}
    assert all(values[-1][1] == 0.0 for values in tracks.values())


def test_the_counter_of_activations_peaks_where_the_memory_of_the_layout_does() -> None:
    step = ps.predict(
        model="gpt3_xl", system="dgx-a100-80gb", devices=16, batch=32, layout="tp=2,pp=4,dp=2,mbs=1"
    )
    counters = [event for event in events(step.run.trace) if (event["ph"], event["pid"]) == ("C", 0)]
    peak = max(event["args"]["GB"] for event in counters if event["name"] == "activations in memory")
    assert peak * 1e9 == pytest.approx(step.memory[0].parts_bytes["activations"], rel=0.02)


def test_a_very_long_trace_has_slices_only(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome, "MOST_DETAILED", 2)
    assert {event["ph"] for event in events(trace)} == {"M", "X"}


@pytest.mark.parametrize("name", ["trace.json", "deep/er/trace.json.gz"])
def test_a_written_trace_reads_back_to_the_same_bytes(trace: Trace, tmp_path: Path, name: str) -> None:
    path = StepTrace(trace).save(tmp_path / name)
    assert loaded(path) == events(trace)
    again = StepTrace(trace).save(tmp_path / f"again-{path.name}")
    assert again.read_bytes() == path.read_bytes()
