"""Chakra execution traces: written from a run, read back, and read from other writers."""

import sys
from pathlib import Path

import pytest

import perfsim as ps
from perfsim.base.errors import InputError, PerfsimError
from perfsim.interop import chakra
from perfsim.interop.chakra import ExecutionTrace
from perfsim.interop.formats import import_file
from perfsim.prediction.prediction import Prediction


@pytest.fixture(scope="module")
def step() -> Prediction:
    return ps.predict(
        model="gpt3_xl", system="dgx-a100-80gb", devices=16, batch=16, layout="tp=2,pp=4,dp=2,mbs=1"
    )


@pytest.fixture(scope="module")
def ranks(step: Prediction, tmp_path_factory: pytest.TempPathFactory) -> dict[int, ExecutionTrace]:
    """The written traces by their rank."""
    folder = tmp_path_factory.mktemp("chakra")
    step.trace.save(folder / "step.et")
    assert all(ExecutionTrace.recognise(path) for path in folder.iterdir())
    return {int(path.name.split(".")[1]): ExecutionTrace.read(path) for path in folder.iterdir()}


def test_each_class_of_ranks_has_a_file_of_tasks(step: Prediction, ranks: dict[int, ExecutionTrace]) -> None:
    assert {rank: trace.attributes["ranks"] for rank, trace in ranks.items()} == {0: 4, 4: 4, 8: 4, 12: 4}
    trace = step.run.trace
    nodes = {node.id: node for execution in ranks.values() for node in execution.nodes}
    for task in range(len(trace.graph)):
        node = nodes[task]
        assert (node.name, node.start_s) == (trace.graph.task(task).name, trace.start_s[task])
        assert node.duration_s == pytest.approx(trace.end_s[task] - trace.start_s[task])
    flop = sum(node.attributes["num_ops"] * 4 for node in nodes.values() if "num_ops" in node.attributes)
    assert flop == pytest.approx(trace.graph.flop, rel=1e-9)


def test_nodes_wait_for_earlier_ones_and_what_is_sent_is_received(ranks: dict[int, ExecutionTrace]) -> None:
    ends: dict[str, set[tuple[int, int]]] = {"COMM_SEND_NODE": set(), "COMM_RECV_NODE": set()}
    for rank, trace in ranks.items():
        seen: set[int] = set()
        for node in trace.nodes:
            assert {*node.after, *node.reads} <= seen
            seen.add(node.id)
            if node.kind in ends:
                assert rank == node.attributes["comm_dst" if "RECV" in node.kind else "comm_src"]
                ends[node.kind].add((node.attributes["comm_tag"], node.attributes["comm_dst"]))
                assert node.attributes["comm_size"] > 0
    assert ends["COMM_RECV_NODE"] == ends["COMM_SEND_NODE"] != set()


def test_a_wafer_has_one_file_with_its_memory(tmp_path: Path) -> None:
    step = ps.predict(model="gpt3_xl", system="cs-2", devices=2, batch=64)
    (path,) = chakra.ExecutionTrace.write(step.run.trace, tmp_path / "wafer.et")
    summary = ExecutionTrace.read(path).summary()
    assert {"MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_COLL_NODE"} == set(summary["by_type"])
    assert summary["critical_path_s"] == pytest.approx(step.run.trace.end_s.max())


def test_a_file_of_another_tool_is_read(tmp_path: Path) -> None:
    """The bytes of an all-gather of 1 MiB, as ASTRA-sim's micro-benchmark has it, with a long name."""
    name = "n" * 300
    parts = (b"\x0a\x09is_cpu_op\x78\x00", b"\x0a\x09comm_type\x48\x02", b"\x0a\x09comm_size\x48\x80\x80\x40")
    attributes = b"".join(b"\x52" + bytes([len(part)]) + part for part in parts)
    node = b"\x12\xac\x02" + name.encode() + b"\x18\x07\x38\x0c" + attributes
    path = tmp_path / "all_gather.0.et"
    path.write_bytes(b"\x07\x0a\x050.0.4" + bytes([len(node) & 0x7F | 0x80, len(node) >> 7]) + node)
    (read,) = ExecutionTrace.read(path).nodes
    assert (read.name, read.kind, read.duration_s) == (name, "COMM_COLL_NODE", 12e-6)
    assert read.attributes["comm_size"] == 1 << 20
    result = import_file(path)
    assert (result.kind, result.document["nodes"]) == ("trace", 1)
    assert result.document["communication_bytes"] == float(1 << 20)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\xff\xff\xff\xff\x7f", "goes beyond the end"),
        (b"\x05abc", "a message of 5 bytes at byte 1 goes beyond the end"),
        (b"\x03\x0a\x7fa", "is no Chakra trace"),
        (b"\x00", "it has no version and no node"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.et"
    path.write_bytes(data)
    assert not ExecutionTrace.recognise(path)
    with pytest.raises(InputError, match=message):
        ExecutionTrace.read(path)
    with pytest.raises(InputError, match="there is no such file"):
        ExecutionTrace.read(tmp_path / "absent.et")


def test_without_protobuf_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.et"
    path.write_bytes(b"\x00")
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    monkeypatch.setattr(chakra, "_messages", chakra._messages.__wrapped__)
    with pytest.raises(PerfsimError, match=r"perfsim\[chakra\]"):
        ExecutionTrace.read(path)
