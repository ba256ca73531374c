"""The script that users run on their GPU writes the table that `perfsim calibrate gemm` reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfsim.evidence.fitting import read_table


def measured(repository: Path, modules: Path) -> subprocess.CompletedProcess[str]:
    """The script, run with the PyTorch that lies in `modules`."""
    return subprocess.run(
        [sys.executable, repository / "hardware" / "measure_gemms.py"],
        env={**os.environ, "PYTHONPATH": str(modules)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_writes_every_shape_with_microseconds(repository: Path, tmp_path: Path) -> None:
    done = measured(repository, repository / "tests" / "samples" / "no_gpu")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("\n180 of 180\n")
    table = tmp_path / "gemms.csv"
    table.write_text(done.stdout)
    rows = read_table(table, ("m", "n", "k", "time_us"))
    assert len({(row["m"], row["n"], row["k"]) for row in rows}) == len(rows) == 180
    largest = rows[-1]
    assert (largest["m"], largest["n"], largest["k"]) == ("32768", "16384", "16384")
    assert float(largest["time_us"]) == pytest.approx(4 + 1e6 * 2 * 32768 * 16384**2 / (0.7 * 1600e12), 1e-4)


def test_without_a_gpu_or_pytorch_it_says_what_is_missing(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    done = measured(repository, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "measure_gemms.py needs a GPU; PyTorch finds none here\n"
    (tmp_path / "torch.py").write_text("raise ImportError\n")
    assert "needs PyTorch, which is not installed here" in measured(repository, tmp_path).stderr
