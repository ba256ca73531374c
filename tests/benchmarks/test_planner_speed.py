"""How fast layouts are screened, and how long verbs take from the shell.

Run with `pytest -m benchmark tests/benchmarks`. Verbs are compared with importing NumPy and pydantic in the
same run, since every verb does that. A cold run compiles all modules anew; a warm one finds them compiled.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfsim.catalog import default_catalog
from perfsim.prediction.planner import Search
from perfsim.prediction.question import Question

pytestmark = pytest.mark.benchmark

BATCHES = tuple(factor * 2**power for power in range(7, 12) for factor in (2, 3))
RUNS = 5
BARE = ("-c", "import numpy, pydantic")
ASKED = ("--model", "gpt3_175b", "--system", "dgx-a100-80gb", "--devices", "1024", "--batch", "1536")
SMALLER = ("--model", "gpt3_175b", "--system", "dgx-a100-80gb", "--devices", "512", "--batch", "192")
LAYOUT = "tp=8,pp=8,dp=8,mbs=1,schedule=interleaved,vpp=12,zero=1,sp=true"
SMALL = ("--model", "gpt3_xl", "--system", "dgx-a100-80gb", "--devices", "8", "--batch", "64")
VERBS = {
    "perfsim show systems, one of them": (("show", "systems", "dgx-a100-80gb"), "1.5"),
    "perfsim run, one layout of 1.3B on 8": (
        ("run", *SMALL, "--strategy", "3d", "--layout", "tp=1,pp=1,dp=8,mbs=1"),
        "3",
    ),
    "perfsim plan, 175B on 1,024": (("plan", *ASKED), "10"),
    "perfsim run, one layout of 175B on 512": (
        ("run", *SMALLER, "--strategy", "3d", "--layout", LAYOUT),
        "3",
    ),
}

STARTS = (
    "pydantic makes the classes of descriptions anew in every process (about 60 ms), and the modules of "
    "perfsim are read (100 ms for `show`, 150 ms for `run`)"
)


def question(model: str = "gpt3_175b") -> Question:
    recipe, system, batch = {
        "gpt3_175b": ("gpt3_pretraining", "dgx-a100-80gb", 1536),
        "deepseek_v3": ("llm_2024", "h200-sxm5-141gb", 15360),
    }[model]
    catalog = default_catalog()
    return Question(
        model=catalog.model(model),
        recipe=catalog.recipe(recipe),
        system=catalog.system(system),
        devices=1024,
        strategy="3d",
        batch=batch,
    )


def process_s(command: tuple[str, ...], environment: dict[str, str] | None = None) -> float:
    """Processor seconds of one process; a command that fails, fails the benchmark."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, *command], check=False, capture_output=True, text=True, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        pytest.fail(f"{' '.join(command)}: {ended.stderr.strip()[-200:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_screening_over_the_batches_of_a_sweep(figures: Any) -> None:
    asked = question()
    began_s = time.process_time()
    screened = sum(Search(asked.at(batch)).screening.screened for batch in BATCHES)
    rate = screened / (time.process_time() - began_s)
    figures.add(
        f"screening, 175B on 1,024 at {len(BATCHES)} batches, {screened:,} layouts",
        f"{rate:,.0f} layouts/s",
        "at least 1,000,000 layouts/s",
    )


LONG = {
    "main study": (("study", "gpt3_20b", "--compare", "3d,weight-streaming"), "10"),
    "main study, wafers alone, not verified": (
        ("study", "gpt3_20b", "--compare", "weight-streaming", "--verify", "off"),
        "10",
    ),
    "proofs of gpt3_20b": (("prove", "gpt3_20b"), "60"),
}
"""Whole questions, each with the seconds that it may take."""


@pytest.mark.parametrize("name", LONG)
def test_a_whole_question(name: str, figures: Any, tmp_path: Path) -> None:
    arguments, aim = LONG[name]
    out = ("--out", str(tmp_path)) if arguments[0] == "study" else ()
    taken_s = min(process_s(("-m", "perfsim", *arguments, *out)) for _ in range(2))
    figures.add(f"perfsim {name}", f"{taken_s:.1f} s", f"{aim} s")


COLD_AIMS = {"gpt3_175b": 60, "deepseek_v3": 2000}
"""Milliseconds that the first question of a process may take, by model."""
COLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_planner_speed import question, search
asked = question(sys.argv[2])
asked.chosen, asked.topology, asked.costs
began_s = time.process_time()
print(Search(asked).screening.screened, time.process_time() - began_s)
"""


@pytest.mark.parametrize("model", COLD_AIMS)
def test_one_cold_question(model: str, figures: Any, request: pytest.FixtureRequest) -> None:
    command = [sys.executable, "-c", COLD, str(request.path.parent), model]
    answers = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(RUNS)
    ]
    taken_s = min(float(seconds) for _, seconds in answers)
    figures.add(
        f"screening once, cold, {model} on 1,024, {int(answers[0][0]):,} layouts",
        f"{1e3 * taken_s:.0f} ms",
        f"{COLD_AIMS[model]} ms",
        "every work of a share of a layer is written and priced for the first time; later questions find it",
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_from_the_shell(verb: str, figures: Any, tmp_path: Path) -> None:
    arguments, aim = VERBS[verb]
    command = ("-m", "perfsim", *arguments)

    def cold(which: tuple[str, ...], number: int) -> float:
        return process_s(which, os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path / str(number))})

    def least_s(run: Callable[[int], float]) -> float:
        return min(run(number) for number in range(RUNS))

    bare_s = least_s(lambda _: process_s(BARE))
    taken_s = least_s(lambda _: process_s(command))
    text = f"{taken_s / bare_s:.1f} x importing NumPy and pydantic ({taken_s:.2f} s)"
    figures.add(f"{verb}, warm", text, f"{aim} x", STARTS)
    bare_s = cold(BARE, RUNS)
    taken_s = cold(command, RUNS + 1)
    text = f"{taken_s / bare_s:.1f} x importing NumPy and pydantic ({taken_s:.2f} s)"
    figures.add(f"{verb}, cold", text, f"{aim} x", STARTS)
