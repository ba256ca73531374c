"""Fits to tables find the constants that made them, and refuse what is not a table."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from perfsim.base.errors import InputError
from perfsim.base.units import YAML_CONTEXT
from perfsim.catalog import default_catalog
from perfsim.evidence.collective_fit import link_calibration
from perfsim.evidence.fitting import Account, SoftL1, delivered, read_collectives, read_table
from perfsim.evidence.gemm_fit import gpu_calibration
from perfsim.machines.machine import is_borrowed
from perfsim.specs.hardware import DeviceSpec, LinkSpec, MemorySpec

MEMORY = MemorySpec(capacity=40e9, bandwidth=1.5e12)
DEVICE = DeviceSpec(name="some-gpu", kind="gpu", peak={"bf16": 200e12}, memory=MEMORY, compute_units=80)
LINK = LinkSpec(name="some-link", bandwidth=300e9, latency=1e-6)


NVLINK3 = default_catalog().load("calibration", "nvlink3")


def written(folder: Path, text: str, name: str = "bad.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_what_cannot_be_fitted_is_refused(tmp_path: Path) -> None:
    catalog = default_catalog()
    rows = "".join(f"{m},1024,1024,9\n" for m in range(256, 260))
    with pytest.raises(InputError, match=r"bad\.csv(:1)?: holds 4 GEMM shapes(.|\n)*at least 68 are needed"):
        gpu_calibration(written(tmp_path, "m,n,k,time_us\n" + rows), DEVICE)
    header = "collective,num_gpus,bytes,time_us\n"
    with pytest.raises(InputError, match=r"holds 1 sizes of all_reduce(.|\n)*at least 17 are needed"):
        link_calibration([written(tmp_path, header + "all_reduce,8,1024,0.009\n" * 30)], LINK)
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
        link_calibration([tmp_path / "c.csv"], catalog.load("link", "hdr-200"))


def products(folder: Path, unit_s: float, precision: str = "") -> Path:
    """A table of 81 products at 0.6 of the peak of an A100, in some unit of time."""
    sides = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288)
    head = "m,n,k,time_us" + ",precision" * bool(precision)
    rows = [f"2048,{n},{k},{2 * 2048 * n * k / 187e12 / unit_s:.9g}{precision}" for n in sides for k in sides]
    return written(folder, "\n".join([head, *rows]), "products.csv")


def test_times_in_another_unit_are_refused(tmp_path: Path) -> None:
    device = default_catalog().device("a100-sxm4-80gb")
    for unit_s, said in ((1e-3, "599 times"), (1e-9, "0.000599 times")):
        with pytest.raises(InputError, match=rf"{said} the peak of a100(.|\n)*are microseconds"):
            gpu_calibration(products(tmp_path, unit_s), device)
    rows = "".join(f"all_gather,8,{2**n},{2**n / 2e8}\n" for n in range(20, 38))
    with pytest.raises(InputError, match=r"all_gather has 667 times the bandwidth of some-link"):
        link_calibration([written(tmp_path, f"collective,num_gpus,bytes,time_us\n{rows}")], LINK)


def test_a_device_that_extends_another_is_fitted_alone_and_keeps_the_runs_of_its_chip(tmp_path: Path) -> None:
    base = default_catalog().device("a100-sxm4-80gb")
    device = base.model_copy(update={"name": "mine", "chip": base.name})
    table = products(tmp_path, 1e-6, ",bf16")
    with pytest.raises(InputError, match=r"a100-sxm4 has a100-sxm4-80gb.s own bf16(.|\n)*without --like"):
        gpu_calibration(table, base, base.calibration)
    fitted = gpu_calibration(table, device, base.calibration)
    assert "--device mine" in fitted.fit["gemm"].command
    assert re.fullmatch(r"median error \d+\.\d %, p90 \d+\.\d %, \d+ points", fitted.fit["gemm"].words)
    assert (fitted.chip, fitted.date, "date" in fitted.assumed) == ("a100-sxm4", None, False)
    assert fitted.description.startswith("Kernels on mine: matrix products measured")
    own = device.model_copy(update={"calibration": fitted.model_copy(update={"name": "mine-fit"})})
    assert not is_borrowed(own)
    assert own.constants == base.constants


def test_without_scipy_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"all_reduce,8,{2**octave},{2**octave / 1e5}" for octave in range(9, 30)]
    table = written(tmp_path, "\n".join(["collective,num_gpus,bytes,time_us", *rows]))
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(InputError, match=r"pip install .*perfsim\[fit\]"):
        link_calibration([table], LINK)


@pytest.mark.parametrize("name", ["a100-sxm4", "h100-sxm5", "nvlink3", "nvlink4", "infiniband-hdr"])
def test_a_written_calibration_reads_back_as_it_was_under_its_files_name(tmp_path: Path, name: str) -> None:
    calibration = default_catalog().load("calibration", name)
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
def test_an_unusable_output_is_told(tmp_path: Path, name: str, before: str, after: str, message: str) -> None:
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
