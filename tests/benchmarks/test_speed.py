"""How fast graphs are written, simulated and broken down, layouts are screened, and verbs answer.

Run with `pytest -m benchmark tests/benchmarks`. GPT-3 175B (tensor 8, pipeline 16, sequence parallel) is
measured as verbs run it: `evaluated` plans nothing but writes the graph, places it on the network, prices it,
simulates it and breaks the step down. Verbs are compared with importing NumPy and pydantic in the same run,
since every verb does that. A cold run compiles all modules anew; a warm one finds them compiled.
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

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.costs.price import price
from perfsim.engine import critical_path, simulate
from perfsim.engine.failures import with_stragglers
from perfsim.engine.trace import Trace
from perfsim.machines import network_of
from perfsim.machines.placement import Placed, SharedLinks, place_stragglers
from perfsim.prediction.planner import Search, best_plan, plan_of
from perfsim.prediction.question import Question
from perfsim.prediction.run import Evaluation, Step, evaluated, graph_of
from perfsim.specs.layout import ParallelLayout
from perfsim.work import TaskGraph, unfold

pytestmark = pytest.mark.benchmark

RUNS = 5
MICROBATCHES = 192
FEW_MICROBATCHES = 20
DATA = 8
REPLICAS = (1, 2, 4, 8, 16, 32)
"""Of 128 GPUs each, all of which are written."""
STRAGGLER = 700
WAFERS = 192
PER_WAFER = 50
SLOWER = 1.2


def asked_of(
    model: str, devices: int, recipe: str = "gpt3_pretraining", system: str = "dgx-a100-80gb", **more: Any
) -> Question:
    """A question by names of the catalogue."""
    catalog = default_catalog()
    return Question(
        model=catalog.model(model),
        recipe=catalog.recipe(recipe),
        system=catalog.system(system),
        devices=devices,
        **more,
    )


def case(microbatches: int = MICROBATCHES, data: int = DATA) -> Question:
    """175B in the same layout, with as many micro-batches and replicas."""
    layout = ParallelLayout(tensor=8, pipeline=16, data=data, sequence_parallel=True)
    return asked_of("gpt3_175b", 128 * data, batch=data * microbatches, layout=layout, must_fit=False)


def searched(model: str) -> Question:
    """A question of the planner about 1,024 devices."""
    if model == "gpt3_175b":
        return asked_of(model, 1024, strategy="3d", batch=1536)
    return asked_of(model, 1024, "llm_2024", "h200-sxm5-141gb", strategy="3d", batch=15360)


def folded_run(asked: Question) -> Evaluation:
    """From the layout to the breakdown of the simulated step."""
    return evaluated(asked, plan_of(asked))


def straggling_run(asked: Question) -> Trace:
    """The same with one slow rank, and only the ranks written that it makes unlike others.

    Its tensor peers act with it, which leaves the time of the step as it is; as every verb does it.
    """
    plan = plan_of(asked)
    placed = place_stragglers(graph_of(plan), plan, {STRAGGLER: SLOWER})
    step = Step(placed, asked.costs)
    trace = step.run(with_stragglers(placed.graph, step.duration_s, placed.rank, placed.factors))
    trace.mean_breakdown()
    return trace


def unfolded_run(asked: Question) -> Trace:
    """The same with every rank written."""
    plan = plan_of(asked)
    unfolded = unfold(graph_of(plan))
    links = SharedLinks.of(unfolded.graph, network_of(plan.topology))
    placed = Placed(unfolded.graph, unfolded.rank, links, network_of(plan.topology), unfolded.classes)
    trace = Step(placed, asked.costs).run()
    trace.mean_breakdown()
    return trace


def least_s(function: Callable[[], Any], runs: int = RUNS) -> float:
    """Processor seconds of the fastest of several runs; one thread does everything."""
    taken = []
    for _ in range(runs):
        begin_s = time.process_time()
        function()
        taken.append(time.process_time() - begin_s)
    return min(taken)


MEASURED = """
import sys, time
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
before = peak()
sys.path.insert(0, sys.argv[1])
from test_speed import FEW_MICROBATCHES, case, folded_run, unfolded_run
asked = case(FEW_MICROBATCHES) if sys.argv[2] == "unfolded" else case()
begin_s = time.process_time()
(unfolded_run if sys.argv[2] == "unfolded" else folded_run)(asked)
print(time.process_time() - begin_s, peak() - before)
"""


def cold_run(request: pytest.FixtureRequest, code: str, which: str, runs: int) -> tuple[float, float]:
    """The least of both numbers that runs of some code print, each in a process of its own."""
    command = [sys.executable, "-c", code, str(request.path.parent), which]
    answers = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(runs)
    ]
    seconds, others = zip(*((float(a), float(b)) for a, b in answers), strict=True)
    return min(seconds), min(others)


def test_175b_folded_from_the_layout_to_the_breakdown(figures: Any, request: pytest.FixtureRequest) -> None:
    asked = case()
    graph = folded_run(asked).graph
    cold_s, mebibytes = cold_run(request, MEASURED, "folded", RUNS)
    name = f"175B folded, {len(graph):,} tasks, layout to breakdown"
    figures.add(f"{name}, cold", f"{1e3 * cold_s:,.0f} ms", "250 ms")
    figures.add(f"{name}, warm", f"{1e3 * least_s(lambda: folded_run(asked)):,.0f} ms", "250 ms")
    name = "175B folded: memory over the bare interpreter"
    figures.add(name, f"{mebibytes:.0f} MiB", "120 MiB", "progress of all tasks in three columns")
    figures.add("columns of that graph", f"{bytes_of(graph) / len(graph):.1f} bytes a task", "40")


def bytes_of(graph: TaskGraph) -> int:
    """Bytes of the columns of a graph."""
    columns = (graph.work, graph.stream, graph.tag, graph.block, *graph.reads, *graph.after)
    return sum(column.nbytes for column in (*columns, graph.first_write))


def test_175b_priced_anew_with_its_longest_path(figures: Any) -> None:
    asked = case()
    graph = graph_of(plan_of(asked))
    critical_path(graph, price(graph, asked.costs))
    taken_s = least_s(lambda: critical_path(graph, price(graph, asked.costs)), 3 * RUNS)
    figures.add("175B folded: new prices and longest path", f"{1e3 * taken_s:.1f} ms", "10 ms")


def test_175b_broken_down(figures: Any) -> None:
    trace = folded_run(case()).trace
    taken_s = least_s(lambda: Trace(trace.graph, trace.start_s, trace.end_s).mean_breakdown(), 3 * RUNS)
    figures.add("175B folded: where the time of its trace went", f"{1e3 * taken_s:.1f} ms", "20 ms")


def test_all_1024_ranks_with_contention(figures: Any, request: pytest.FixtureRequest) -> None:
    num_tasks = len(unfolded_run(case(FEW_MICROBATCHES)).graph)
    taken_s, mebibytes = cold_run(request, MEASURED, "unfolded", 2)
    name = f"all 1,024 ranks, {num_tasks:,} tasks, with contention"
    figures.add(name, f"{taken_s:.1f} s", "4 s")
    figures.add(f"{name}: memory over the bare interpreter", f"{mebibytes:.0f} MiB", "400 MiB")


def test_time_against_ranks(figures: Any) -> None:
    cases = [case(FEW_MICROBATCHES, data) for data in REPLICAS]
    times = [least_s(lambda asked=asked: unfolded_run(asked), 2) for asked in cases]
    exponent = np.polyfit(np.log(REPLICAS), np.log(times), 1)[0]
    figures.add(
        f"exponent of time over ranks, all written, {128 * REPLICAS[0]} to {128 * REPLICAS[-1]:,}",
        f"{exponent:.2f} ({times[0]:.2f} to {times[-1]:.1f} s)",
        "1.1",
    )


def test_one_straggler_among_1024(figures: Any) -> None:
    asked = case()
    folded_s, straggling_s = (least_s(lambda run=run: run(asked), 3) for run in (folded_run, straggling_run))
    ratio = straggling_s / folded_s
    figures.add(
        "one straggler in 1,024, over the folded time", f"{ratio:.1f} x ({straggling_s:.2f} s)", "4 x"
    )


def test_20b_on_192_wafers_folded_and_written(figures: Any) -> None:
    asked = asked_of("gpt3_20b", WAFERS, system="cs-2", batch=WAFERS * PER_WAFER)

    def step(*, every_wafer: bool) -> Trace:
        graph = graph_of(best_plan(asked).plan)
        graph = unfold(graph).graph if every_wafer else graph
        return simulate(graph, price(graph, asked.costs))

    assert step(every_wafer=True).step_time_s == step(every_wafer=False).step_time_s
    for every_wafer, words, aim in ((False, "folded", "1 s"), (True, "every wafer written", "5 s")):
        taken_s = least_s(lambda every_wafer=every_wafer: step(every_wafer=every_wafer), 3)
        figures.add(f"20B on {WAFERS} wafers, {words}", f"{taken_s:.2f} s", aim)


def test_time_against_tasks(figures: Any) -> None:
    counts = []
    times = []
    for microbatches in (96, 192, 384, 768):
        asked = case(microbatches)
        counts.append(len(graph_of(plan_of(asked))))
        times.append(least_s(lambda asked=asked: folded_run(asked), 3))
    exponent = np.polyfit(np.log(counts), np.log(times), 1)[0]
    figures.add(f"exponent of time over tasks, up to {counts[-1]:,}", f"{exponent:.2f}", "1.05")


# Layouts that are screened, and verbs from the shell.

BATCHES = tuple(factor * 2**power for power in range(7, 12) for factor in (2, 3))
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
    asked = searched("gpt3_175b")
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
from test_speed import Search, searched
asked = searched(sys.argv[2])
asked.chosen, asked.topology, asked.costs
began_s = time.process_time()
count = Search(asked).screening.screened
print(time.process_time() - began_s, count)
"""


@pytest.mark.parametrize("model", COLD_AIMS)
def test_one_cold_question(model: str, figures: Any, request: pytest.FixtureRequest) -> None:
    taken_s, count = cold_run(request, COLD, model, RUNS)
    figures.add(
        f"screening once, cold, {model} on 1,024, {count:,.0f} layouts",
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
