"""Fits to tables find the constants that made them, and refuse what is not a table."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import yaml

from perfsim.base.errors import InputError
from perfsim.base.units import YAML_CONTEXT
from perfsim.catalog import default_catalog
from perfsim.costs.gemm import GemmModel, narrow_constants
from perfsim.evidence.collective_fit import link_calibration
from perfsim.evidence.fitting import Account, SoftL1, delivered, read_collectives, read_table
from perfsim.evidence.gemm_fit import gpu_calibration
from perfsim.network.collectives import CollectiveModel
from perfsim.network.topology import Group
from perfsim.specs.calibration import CollectiveCalibration, CollectiveOp, GpuCalibration, NarrowGemmConstants
from perfsim.specs.hardware import DeviceSpec, LinkSpec, MemorySpec, NodeSpec

DEVICE = DeviceSpec(
    name="some-gpu",
    kind="gpu",
    peak={"bf16": 200e12},
    memory=MemorySpec(capacity=40e9, bandwidth=1.5e12),
    compute_units=80,
)
LINK = LinkSpec(name="some-link", bandwidth=300e9, latency=1e-6)


A100 = cast(GpuCalibration, default_catalog().calibration("a100-sxm4"))
NARROW = NarrowGemmConstants(
    efficiency=0.8, overhead=1.5, memory_fraction=0.7, burst_fraction=0.7, cast_bytes=3.0, cast_s=5e-6
)
NVLINK3 = cast(CollectiveCalibration, default_catalog().calibration("nvlink3"))


def written(folder: Path, text: str, name: str = "bad.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_device_without_calibration_gets_a_whole_one_that_says_what_is_fitted_and_what_assumed(
    tmp_path: Path,
) -> None:
    """The fit to times of the A100's library on a made-up device, with 1 % noise."""
    generator = np.random.default_rng(1)
    m, n, k = (2 ** generator.integers(low, 14, 400) for low in (6, 9, 9))
    model = GemmModel(A100.gemm, 200e12, 1.5e12, 80)
    time_us = model.time_s(m, n, k) * generator.normal(1, 0.01, 400) * 1e6
    rows = [f"{a},{b},{c},{t}" for a, b, c, t in zip(m, n, k, time_us, strict=True)]
    table = written(tmp_path, "\n".join(["m,n,k,time_us", *rows]) + "\n", "gemm.csv")
    fitted = gpu_calibration(table, DEVICE, evaluations=600)
    record = fitted.fit["gemm"]
    assert record.command == "perfsim calibrate gemm gemm.csv --device some-gpu"
    assert (record.points, record.table) == (400, "gemm.csv")
    assert record.median_ape < 0.06
    assert fitted.gemm.memory_fraction == pytest.approx(A100.gemm.memory_fraction, rel=0.1)
    determined = {"launch_s", "memory_fraction", "split_latency_s", "tiles.128x128.efficiency"}
    decisive = {"tiles.128x64.choice_efficiency", "tiles.64x64.choice_efficiency"}
    assert determined | decisive <= set(record.standard_errors)
    assert max(record.standard_errors.values()) < 1 / 3
    loose = {name for name in fitted.assumed if name.startswith("gemm.tiles.32x32.choice")}
    assert loose, "too few rows choose the smallest tile"
    assert fitted.name == "some-gpu"
    assert {"memory", "sustained_fraction", "sustained_spread"} <= set(fitted.assumed)
    assert fitted.sustained_fraction == pytest.approx(0.91 * fitted.gemm.burst_fraction, rel=1e-3)
    assert fitted.unaccounted() == []


def test_factors_on_the_tiles_of_another_device_are_found_again(tmp_path: Path) -> None:
    """The fit to times of a device with the A100's tiles, a tenth less efficient, and in 8 bits a fifth."""
    m, n, k = 2.0 ** np.random.default_rng(2).integers(7, 14, (3, 300))
    tiles = tuple(
        tile.model_copy(update={"efficiency": 0.9 * tile.efficiency, "overhead_k": 1.2 * tile.overhead_k})
        for tile in A100.gemm.tiles
    )
    shared = {"memory_fraction": 0.8, "burst_fraction": 0.8, "launch_s": 3e-6}
    gemm = A100.gemm.model_copy(update={"tiles": tiles, **shared})
    model = GemmModel(gemm, 200e12, 1.5e12, 80)
    narrow = replace(model, constants=narrow_constants(gemm, NARROW), peak_flop_per_s=400e12, element_bytes=1)
    cast_s = NARROW.cast_s + NARROW.cast_bytes * m * k / 1.5e12
    seconds = {"bf16": model.time_s(m, n, k), "fp8": narrow.time_s(m, n, k) + cast_s}
    lines = [
        f"{precision},{a},{b},{c},{1e6 * t}"
        for precision, times in seconds.items()
        for a, b, c, t in zip(m, n, k, times, strict=True)
    ]
    table = written(tmp_path, "\n".join(["precision,m,n,k,time_us", *lines]), "gemm.csv")
    device = DEVICE.model_copy(update={"peak": {"bf16": 200e12, "fp8": 400e12}})
    factors = gpu_calibration(table, device, A100)
    ratios = [
        (mine.efficiency / other.efficiency, mine.overhead_k / other.overhead_k)
        for mine, other in zip(factors.gemm.tiles, A100.gemm.tiles, strict=True)
    ]
    assert ratios == [pytest.approx((0.9, 1.2), rel=0.03)] * len(ratios)
    constants = (factors.gemm.memory_fraction, factors.gemm.burst_fraction, factors.gemm.launch_s)
    assert constants == pytest.approx((0.8, 0.8, 3e-6), rel=0.03)
    assert factors.narrow["fp8"].model_dump() == pytest.approx(NARROW.model_dump(), rel=0.1)
    command = "perfsim calibrate gemm gemm.csv --device some-gpu --like a100-sxm4"
    assert {name: (row.command, row.points) for name, row in factors.fit.items()} == dict.fromkeys(
        ("gemm", "narrow.fp8"), (command, 300)
    )
    assert [set(row.standard_errors) & {"overhead", "overhead_k"} for row in factors.fit.values()] == [
        {"overhead_k"},
        {"overhead"},
    ]
    assert factors.assumed["gemm.split_traffic"].startswith("as in a100-sxm4, whose tiles")
    assert not {"gemm.launch_s", "gemm.tiles.128x128.efficiency"} & set(factors.assumed)


def write_collective_table(path: Path, factor_of_8: float = 1.0) -> Path:
    """Times of the fitted NVLink on its own sizes, those of eight ranks times a factor."""
    link = LINK.model_copy(update={"calibration": NVLINK3})
    model = CollectiveModel.of_node(NodeSpec(devices=8, scale_up=link, nics=8, nic=link))
    lines = ["collective,num_gpus,bytes,time_us"]
    names: dict[str, CollectiveOp] = {"all_reduce": "all_reduce", "alltoall": "all_to_all"}
    for name, op in names.items():
        for size in (2, 4, 8):
            for n_bytes in 2.0 ** np.arange(9, 30):
                factor = factor_of_8 if size == 8 else 1.0
                seconds = factor * model.time_s(op, float(n_bytes), Group.inside_node(size))
                lines.append(f"{name},{size},{n_bytes},{seconds * 1e6}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_collective_table(tmp_path_factory.mktemp("nccl") / "nccl.csv")


@pytest.fixture(scope="module")
def lines(nccl: Path) -> CollectiveCalibration:
    return link_calibration([nccl], LINK, source="here")


def test_collective_fit_finds_the_lines_again_and_accounts_for_them(lines: CollectiveCalibration) -> None:
    record = lines.fit["collectives.all_reduce"]
    assert record.median_ape < 0.02
    assert record.table == "here"
    assert record.standard_errors
    assert len(lines.collectives["all_to_all"]) == 4
    send = lines.collectives["send_recv"][-1]
    assert send.bandwidth_bytes_per_s == lines.collectives["all_to_all"][-1].bandwidth_bytes_per_s
    assert lines.unaccounted() == []


def test_the_first_table_wins_where_two_contradict_and_what_they_do_not_tell_is_kept(
    nccl: Path, lines: CollectiveCalibration, tmp_path: Path
) -> None:
    second = write_collective_table(tmp_path / "second.csv", factor_of_8=3.0)
    both = link_calibration([nccl, second], LINK.model_copy(update={"calibration": NVLINK3}))
    record = both.fit["collectives.all_reduce"]
    assert record.note.startswith("octaves weigh the same; 21 rows contradict")
    assert (record.points, lines.fit["collectives.all_reduce"].points) == (126 - 21, 63)
    assert record.median_ape < 0.02
    assert "nccl.csv second.csv" in record.command
    assert both.collectives["all_gather"] == NVLINK3.collectives["all_gather"]
    assert both.fit["collectives.all_gather"] == NVLINK3.fit["collectives.all_gather"]


@pytest.mark.parametrize(
    ("text", "lines", "message"),
    [
        ("m,n,k\n1,2,3\n", [1], "has no column time_us"),
        ("m,n,k,time_us\n1,2,3,4\n1,x,3,4\n", [3], "n must be a positive number, not 'x'"),
        ("m,n,k,time_us\n1,2,-3,4\n", [2], "k must be a positive number"),
        ("m,n,k,time_us\n1,2,3\n", [2], "time_us must be a positive number, not None"),
        ("m,n,k,time_us\n1,2,3,inf\n", [2], "time_us must be"),
        ("m,n,k,time_us\n0,2,3,4\n1,2,3,4\n1,2,3,?\n", [2, 4], "m must be a positive number, not '0'"),
        ("m,n,k,time_us\n", [1], "holds no measurement"),
        ("", [1], "has no column"),
        ("m,n,k,time_us\n1,\udcff\n", [2], "is not UTF-8 text"),
    ],
)
def test_a_bad_table_is_refused_at_its_lines(
    tmp_path: Path, text: str, lines: list[int], message: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=message) as refusal:
        read_table(path, ("m", "n", "k", "time_us"))
    assert [problem.line for problem in refusal.value.problems] == lines
    assert all(problem.file == str(path) for problem in refusal.value.problems)


def test_what_cannot_be_fitted_is_refused(tmp_path: Path) -> None:
    catalog = default_catalog()
    rows = "".join(f"{m},1024,1024,9\n" for m in range(256, 260))
    with pytest.raises(InputError, match=r"bad\.csv(:1)?: holds 4 GEMM shapes(.|\n)*at least 68 are needed"):
        gpu_calibration(written(tmp_path, "m,n,k,time_us\n" + rows), DEVICE)
    header = "collective,num_gpus,bytes,time_us\n"
    with pytest.raises(InputError, match=r"holds 1 sizes of all_reduce(.|\n)*at least 17 are needed"):
        link_calibration([written(tmp_path, header + "all_reduce,8,1024,9\n" * 30)], LINK)
    unknown = written(tmp_path, header + "all_reduce,2,512,9\nall_scatter,2,512,9\n")
    with pytest.raises(InputError, match=r"bad\.csv:3: unknown collective 'all_scatter'"):
        link_calibration([unknown], LINK)
    with pytest.raises(InputError, match=r"none\.csv: there is no such file"):
        gpu_calibration(tmp_path / "none.csv", DEVICE)
    with pytest.raises(InputError, match="wse-2 is a wafer; GEMM tables are of GPUs"):
        gpu_calibration(tmp_path / "g.csv", catalog.device("wse-2"))
    with pytest.raises(InputError, match="nvlink3 is no calibration of a GPU"):
        gpu_calibration(tmp_path / "g.csv", DEVICE, NVLINK3)
    with pytest.raises(InputError, match=r"hdr-200 joins nodes; .* nvlink3, nvlink4"):
        link_calibration([tmp_path / "c.csv"], catalog.link("hdr-200"))


def test_without_scipy_the_refusal_says_how_to_install_it(
    nccl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(InputError, match=r"pip install .*perfsim\[fit\]"):
        link_calibration([nccl], LINK)


@pytest.mark.parametrize("name", ["a100-sxm4", "h100-sxm5", "nvlink3", "nvlink4", "infiniband-hdr"])
def test_a_written_calibration_reads_back_as_it_was_under_its_files_name(tmp_path: Path, name: str) -> None:
    calibration = default_catalog().calibration(name)
    out = tmp_path / "new" / "folder" / "mine.yaml"
    assert delivered(calibration, out) == f"Calibration: {out}"
    read = type(calibration).model_validate(yaml.safe_load(out.read_text()), context=YAML_CONTEXT)
    assert read == calibration.model_copy(update={"name": "mine"})
    assert yaml.safe_load(delivered(calibration, None))["name"] == name


# Outputs of nccl-tests have the columns of `src/util.cu` of its repository, and times of perfsim's own lines.

OLD = """\
# nThread 1 nGpus 4 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid  14 on     node-1 device  0 [0x07] A100-SXM4-40GB
#   Rank  1 Pid  14 on     node-1 device  1 [0x0b] A100-SXM4-40GB
#
#                                             out-of-place                       in-place
#       size         count    type      time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)              (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0   float     8.11    0.00    0.00  0e+00     8.00    0.00    0.00  0e+00
          32             4   float     9.27    0.00    0.00  0e+00     9.10    0.00    0.00    N/A
          64             8   float    1.2e+06    0.01    0.01  0e+00     9.41    0.01    0.01  0e+00
# Out of bounds values : 0 OK
"""


OPERATIONS = ("all_reduce", "all_gather")


def test_the_out_of_place_times_of_a_new_release_are_read(repository: Path) -> None:
    samples = repository / "tests" / "samples" / "nccl"
    reduced, gathered = (read_collectives(samples / f"{name}.txt", OPERATIONS) for name in OPERATIONS)
    assert {row["collective"] for row in gathered} == {"all_gather"}
    assert {(row["collective"], row["num_gpus"]) for row in reduced} == {("all_reduce", "8")}
    assert len(reduced) == 19
    assert (reduced[0]["bytes"], reduced[-1]["bytes"]) == ("8192", str(2**31))
    assert reduced[0]["time_us"] == "18.34"


def test_an_old_release_without_columns_of_the_operation_is_read_by_its_header(tmp_path: Path) -> None:
    rows = read_collectives(written(tmp_path, OLD, "my_all_gather_2.txt"), OPERATIONS)
    shared = {"collective": "all_gather", "num_gpus": "2"}
    times = {"32": "9.27", "64": "1.2e+06"}
    assert rows == [{**shared, "bytes": n_bytes, "time_us": time_us} for n_bytes, time_us in times.items()]


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("out.txt", "-", "-", r"does not name its operation\n    help: name the file after it"),
        ("all_gather.txt", "1 Pid  14 on     node-1", "1 Pid  14 on     node-2", "measured over 2 nodes"),
        ("all_gather.txt", "Rank", "rang", "names no ranks"),
        ("all_gather.txt", "9.27", "oops", r"all_gather\.txt:11: time_us must be a positive .*'oops'"),
        ("all_gather.txt", "Rank  1", "Rank  1 Group  1", "several groups of ranks"),
    ],
)
def test_an_output_that_cannot_be_used_is_refused(
    tmp_path: Path, name: str, before: str, after: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_collectives(written(tmp_path, OLD.replace(before, after), name), OPERATIONS)


# The script that users run on their GPU writes the table that `perfsim calibrate gemm` reads.


def measured(repository: Path, modules: Path) -> subprocess.CompletedProcess[str]:
    """The script, run with the PyTorch that lies in `modules`."""
    command = [sys.executable, repository / "hardware" / "measure_gemms.py"]
    environment = {**os.environ, "PYTHONPATH": str(modules)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_it_writes_every_shape_with_microseconds(repository: Path, tmp_path: Path) -> None:
    done = measured(repository, repository / "tests" / "samples" / "no_gpu")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("\n180 of 180\n")
    rows = read_table(written(tmp_path, done.stdout), ("m", "n", "k", "time_us"))
    assert len({(row["m"], row["n"], row["k"]) for row in rows}) == len(rows) == 180
    largest = rows[-1]
    assert (largest["m"], largest["n"], largest["k"]) == ("32768", "16384", "16384")
    assert float(largest["time_us"]) == pytest.approx(4 + 1e6 * 2 * 32768 * 16384**2 / (0.7 * 1600e12), 1e-4)


def test_without_a_gpu_or_pytorch_it_says_what_is_missing(repository: Path, tmp_path: Path) -> None:
    written(tmp_path, "class cuda:\n    is_available = staticmethod(lambda: False)\n", "torch.py")
    done = measured(repository, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "measure_gemms.py needs a GPU; PyTorch finds none here\n"
    written(tmp_path, "raise ImportError\n", "torch.py")
    assert "needs PyTorch, which is not installed here" in measured(repository, tmp_path).stderr


# Standard errors are right where a closed form exists, and honest where nothing was measured.


def account(errors: np.ndarray, jacobian: np.ndarray, times: int = 1) -> Account:
    """The account of the constants `first` and `second`; each error stands in so many rows."""
    error = np.repeat(errors, times)
    cluster = np.repeat(np.arange(errors.size), times)
    names = ["first", "second"][: jacobian.shape[1]]
    return SoftL1(error, np.ones_like(error), np.zeros_like(error), cluster).account(names, jacobian)


@pytest.fixture(scope="module")
def errors() -> np.ndarray:
    drawn = np.random.default_rng(0).normal(0, 0.1, 400)
    return drawn - drawn.mean()


def test_the_error_of_a_mean_is_the_spread_over_the_root_of_the_clusters(errors: np.ndarray) -> None:
    alone = account(errors, np.ones((400, 1)))
    assert alone.errors["first"] == pytest.approx(errors.std(ddof=1) / 20, rel=0.01)
    assert not alone.assumed
    assert account(errors, np.ones((3600, 1)), times=9).errors == alone.errors, "rows that err together"


def test_constants_that_rows_cannot_tell_apart_or_do_not_depend_on_are_held(errors: np.ndarray) -> None:
    alike = account(errors, np.stack([np.ones(400), 1 + 1e-4 * errors[::-1]], axis=1))
    ((_, error),) = alike.errors.items()
    assert error < 0.01
    assert "not determined" in next(iter(alike.assumed.values()))
    idle = account(errors, np.stack([np.ones(400), np.zeros(400)], axis=1))
    assert list(idle.errors) == ["first"]
    assert idle.assumed["second"].startswith("no row of the table depends on it")
