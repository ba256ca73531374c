"""How long whole questions take: the main study, from the command to the page, a shortlist, all proofs.

Run with `pytest -m benchmark tests/benchmarks`. Each run is a process of its own, since what is recorded
and priced once is remembered within one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture


def children_s() -> float:
    """Processor time of the processes that have ended."""
    took = os.times()
    return took.children_user + took.children_system


pytestmark = pytest.mark.benchmark(timer=children_s)


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

    benchmark.extra_info["aim"] = "10 s"
    benchmark.pedantic(answer, rounds=2)
    assert (tmp_path / "summary.json").exists()


def test_a_shortlist_of_175b_on_1024_gpus(benchmark: BenchmarkFixture) -> None:
    asked = ("--model", "gpt3_175b", "--system", "dgx-a100-80gb", "--devices", "1024", "--batch", "1536")

    def plan() -> None:
        subprocess.run([sys.executable, "-m", "perfsim", "plan", *asked], check=True, capture_output=True)

    benchmark.extra_info["aim"] = "2 s"
    benchmark.pedantic(plan, rounds=2)


def test_proving_the_whole_catalogue(benchmark: BenchmarkFixture) -> None:
    def prove() -> None:
        subprocess.run(
            [sys.executable, "-m", "perfsim", "prove", "gpt3_20b"], check=True, capture_output=True
        )

    benchmark.extra_info["aim"] = "60 s"
    benchmark.pedantic(prove, rounds=1)
