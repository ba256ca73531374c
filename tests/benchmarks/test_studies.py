"""How long whole questions take: the main study, from the command to the page.

Run with `pytest -m benchmark tests/benchmarks`. Each run is a process of its own, since what is recorded
and priced once is remembered within one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize(
    "question",
    [
        ("study", "gpt3_20b", "--compare", "3d,weight-streaming"),
        ("study", "gpt3_20b", "--compare", "weight-streaming", "--verify", "off"),
    ],
    ids=["main study", "wafers alone, not verified"],
)
def test_a_study(benchmark: BenchmarkFixture, question: tuple[str, ...], tmp_path: Path) -> None:
    def answer() -> None:
        command = [sys.executable, "-m", "perfsim", *question, "--out", str(tmp_path)]
        subprocess.run(command, check=True, capture_output=True)

    benchmark.pedantic(answer, rounds=3)
    assert (tmp_path / "summary.json").exists()
