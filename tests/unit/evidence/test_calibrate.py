"""Fits find the constants that made a table, and refuse what is not a table."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from perfsim.base.errors import InputError
from perfsim.base.units import YAML_CONTEXT
from perfsim.catalog import default_catalog
from perfsim.costs.gemm import GemmModel
from perfsim.evidence import calibrate
from perfsim.evidence.collective_fit import fit_collectives
from perfsim.evidence.gemm_fit import fit_gemm
from perfsim.evidence.tables import Account, read_table
from perfsim.network.collectives import CollectiveModel
from perfsim.network.topology import Group
from perfsim.specs.calibration import CollectiveCalibration, CollectiveOp, GpuCalibration
from perfsim.specs.hardware import DeviceSpec, LinkSpec, MemorySpec, NodeSpec

DEVICE = DeviceSpec(
    name="some-gpu",
    kind="gpu",
    peak={"bf16": 200e12},
    memory=MemorySpec(capacity=40e9, bandwidth=1.5e12),
    compute_units=80,
)
LINK = LinkSpec(name="some-link", bandwidth=300e9, latency=1e-6)


def a100_gpu() -> GpuCalibration:
    calibration = default_catalog().calibration("a100-sxm4")
    assert isinstance(calibration, GpuCalibration)
    return calibration


def nvlink3() -> CollectiveCalibration:
    calibration = default_catalog().calibration("nvlink3")
    assert isinstance(calibration, CollectiveCalibration)
    return calibration


def write_gemm_table(path: Path, rows: int = 400) -> Path:
    """Times of the A100's library on a made-up device, with 1 % noise."""
    generator = np.random.default_rng(1)
    m, n, k = (2 ** generator.integers(low, 14, rows) for low in (6, 9, 9))
    model = GemmModel(a100_gpu().gemm, 200e12, 1.5e12, 80)
    time_us = model.time_s(m, n, k) * generator.normal(1, 0.01, rows) * 1e6
    lines = [f"{a},{b},{c},{t}" for a, b, c, t in zip(m, n, k, time_us, strict=True)]
    path.write_text("\n".join(["m,n,k,time_us", *lines]) + "\n")
    return path


def write_collective_table(path: Path, factor: float = 1.0) -> Path:
    """Times of the fitted NVLink on its own sizes, times `factor`."""
    link = LINK.model_copy(update={"calibration": nvlink3()})
    model = CollectiveModel.of_node(NodeSpec(devices=8, scale_up=link, nics=8, nic=link))
    lines = ["collective,num_gpus,bytes,time_us"]
    names: dict[str, CollectiveOp] = {"all_reduce": "all_reduce", "alltoall": "all_to_all"}
    for name, op in names.items():
        for size in (2, 4, 8):
            for n_bytes in 2.0 ** np.arange(9, 30):
                seconds = factor * model.time_s(op, float(n_bytes), Group.inside_node(size))
                lines.append(f"{name},{size},{n_bytes},{seconds * 1e6}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_gemm_fit_predicts_rows_that_it_did_not_see(tmp_path: Path) -> None:
    table = write_gemm_table(tmp_path / "gemm.csv")
    constants, record, _ = fit_gemm(table, DEVICE, evaluations=600)
    assert record.command == "perfsim calibrate gemm gemm.csv --device some-gpu"
    assert record.points == 400
    assert record.median_ape < 0.06
    known = a100_gpu().gemm
    assert constants.memory_fraction == pytest.approx(known.memory_fraction, rel=0.1)


def test_collective_fit_finds_the_lines_again(tmp_path: Path) -> None:
    table = write_collective_table(tmp_path / "nccl.csv")
    segments, records, _ = fit_collectives([table], LINK, source="here")
    assert records["collectives.all_reduce"].median_ape < 0.02
    assert records["collectives.all_reduce"].table == "here"
    assert len(segments["all_to_all"]) == 4
    send = segments["send_recv"][-1]
    assert send.bandwidth_bytes_per_s == segments["all_to_all"][-1].bandwidth_bytes_per_s


def test_a_fit_accounts_for_every_constant_that_it_gives(tmp_path: Path) -> None:
    table = write_collective_table(tmp_path / "nccl.csv")
    calibration = calibrate.collective_calibration([table], LINK)
    assert calibration.fit["collectives.all_reduce"].standard_errors
    assert calibration.unaccounted() == []


def test_the_first_table_wins_where_two_contradict(tmp_path: Path) -> None:
    first = write_collective_table(tmp_path / "first.csv")
    second = write_collective_table(tmp_path / "second.csv", factor=3.0)
    alone, _, _ = fit_collectives([first], LINK)
    both, records, _ = fit_collectives([first, second], LINK)
    assert both == alone
    assert records["collectives.all_reduce"].note.startswith("octaves weigh the same; 63 rows contradict")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m,n,k\n1,2,3\n", r"bad\.csv:1: has no column time_us"),
        ("m,n,k,time_us\n1,2,3,4\n1,x,3,4\n", r"bad\.csv:3: n must be a positive number, not 'x'"),
        ("m,n,k,time_us\n1,2,-3,4\n", r"bad\.csv:2: k must be a positive number"),
        ("m,n,k,time_us\n1,2,3\n", r"bad\.csv:2: time_us must be a positive number, not None"),
        ("m,n,k,time_us\n1,2,3,inf\n", r"bad\.csv:2: time_us must be"),
        ("m,n,k,time_us\n", r"bad\.csv:1: holds no measurement"),
        ("", r"bad\.csv:1: has no column"),
    ],
)
def test_a_bad_table_is_refused_at_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        fit_gemm(path, DEVICE)


def test_every_bad_line_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("m,n,k,time_us\n0,2,3,4\n1,2,3,4\n1,2,3,?\n")
    with pytest.raises(InputError) as refusal:
        fit_gemm(path, DEVICE)
    assert [problem.line for problem in refusal.value.problems] == [2, 4]


def test_a_missing_file_and_a_binary_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: cannot be read"):
        fit_gemm(tmp_path / "none.csv", DEVICE)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00m,n")
    with pytest.raises(InputError, match="is not a CSV table"):
        fit_gemm(binary, DEVICE)


def test_an_unknown_collective_is_refused_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("collective,num_gpus,bytes,time_us\nall_reduce,2,512,9\nall_scatter,2,512,9\n")
    with pytest.raises(InputError, match=r"bad\.csv:3: unknown collective 'all_scatter'"):
        fit_collectives([path], LINK)


def test_without_scipy_the_refusal_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(InputError, match=r"pip install .*perfsim\[fit\]"):
        fit_gemm(write_gemm_table(tmp_path / "gemm.csv"), DEVICE)


@pytest.mark.parametrize("name", ["a100-sxm4", "h100-sxm5", "nvlink3", "nvlink4", "infiniband-hdr"])
def test_a_written_calibration_reads_back_as_it_was(tmp_path: Path, name: str) -> None:
    calibration = default_catalog().calibration(name)
    path = tmp_path / f"{name}.yaml"
    calibrate.write_yaml(calibration, path)
    content = yaml.safe_load(path.read_text())
    assert type(calibration).model_validate(content, context=YAML_CONTEXT) == calibration


def test_calibrating_a_link_keeps_what_the_tables_do_not_tell(tmp_path: Path) -> None:
    known = nvlink3()
    link = LINK.model_copy(update={"calibration": known})
    table = write_collective_table(tmp_path / "nccl.csv")
    calibration = calibrate.collective_calibration([table], link)
    assert calibration.collectives["all_gather"] == known.collectives["all_gather"]
    assert "nccl.csv" in calibration.fit["collectives.all_reduce"].command
    assert calibration.fit["collectives.all_gather"] == known.fit["collectives.all_gather"]


@pytest.fixture
def _fit_of_the_a100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fit to a table finds the A100's constants, at once."""
    known = a100_gpu()
    found = (known.gemm, known.fit["gemm"], Account())
    monkeypatch.setattr(calibrate, "fit_gemm", lambda *_args, **_options: found)


@pytest.mark.usefixtures("_fit_of_the_a100")
def test_calibrate_writes_a_file_that_the_catalogue_finds_by_its_name(tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    assert calibrate.calibrate_gemm(tmp_path / "gemm.csv", "a100-sxm4-80gb", out) == f"Calibration: {out}"
    assert yaml.safe_load(out.read_text())["name"] == "mine"
    text = calibrate.calibrate_gemm(tmp_path / "gemm.csv", "a100-sxm4-80gb")
    assert yaml.safe_load(text)["name"] == "a100-sxm4"


@pytest.mark.usefixtures("_fit_of_the_a100")
def test_a_device_without_calibration_gets_a_whole_one_that_says_what_is_assumed(tmp_path: Path) -> None:
    calibration = calibrate.gpu_calibration(tmp_path / "gemm.csv", DEVICE)
    assert calibration.name == "some-gpu"
    assert {"memory", "sustained_fraction", "sustained_spread"} <= set(calibration.assumed)
    burst = a100_gpu().gemm.burst_fraction
    assert calibration.sustained_fraction == pytest.approx(calibrate.SUSTAINED_OVER_BURST * burst, rel=1e-3)
    assert all(path.startswith("gemm.") for path in calibration.unaccounted()), "no fit of them is given"


def test_a_table_that_is_not_utf_8_is_refused_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"m,time\n1,\xff\n")
    with pytest.raises(InputError, match="is not a CSV table") as caught:
        read_table(path, ["m", "time"])
    assert caught.value.problems[0].line == 2
