"""How fast graphs are written, simulated and broken down, layouts are screened, and verbs answer.

Run with `pytest -m benchmark tests/benchmarks`. GPT-3 175B (tensor 8, pipeline 16, sequence parallel) is
measured as verbs run it: `evaluation_of` plans nothing but writes the graph, places it on the network, prices
it, simulates it and breaks the step down. Verbs are compared with importing NumPy and pydantic in the same
run, since every verb does that. A cold run compiles all modules anew; a warm one finds them compiled.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfsim.costs.price import price
from perfsim.engine import critical_path, simulate
from perfsim.engine.trace import Trace
from perfsim.machines import network_of
from perfsim.machines.placement import Placed, SharedLinks, place
from perfsim.prediction.perturbed import _straggling
from perfsim.prediction.planner import Search, best_plan, plan_of
from perfsim.prediction.question import Question, question_of
from perfsim.prediction.run import Evaluation, Step, evaluation_of
from perfsim.work import unfold

pytestmark = pytest.mark.benchmark

RUNS = 5
FEW_MICROBATCHES = 20
REPLICAS = (1, 2, 4, 8, 16, 32)
"""Of 128 GPUs each, all of which are written."""
WAFERS = 192
Figure = Callable[..., None]


GPUS = {"recipe": "gpt3_pretraining", "system": "dgx-a100-80gb"}


def case(microbatches: int = 192, data: int = 8) -> Question:
    """175B in the same layout, with as many micro-batches and replicas."""
    layout = f"tp=8,pp=16,dp={data},sp=true"
    size = {"devices": 128 * data, "batch": data * microbatches}
    return replace(question_of({**GPUS, **size, "model": "gpt3_175b", "layout": layout}), must_fit=False)


def searched(model: str) -> Question:
    """A question of the planner about 1,024 devices."""
    machine = {**GPUS, "batch": 1536}
    if model == "deepseek_v3":
        machine = {"recipe": "llm_2024", "system": "h200-sxm5-141gb", "batch": 15360}
    return question_of({"model": model, "devices": 1024, "strategy": "3d", **machine})


def folded_run(question: Question) -> Evaluation:
    """From the layout to the breakdown of the simulated step."""
    return evaluation_of(question, plan_of(question))


def straggling_run(question: Question) -> Trace:
    """The same with one slow rank, and only the ranks written that it makes unlike others."""
    plan = plan_of(question)
    placed = place(plan.graph(), plan.topology, marks={700: 1.2})
    step = Step(placed, question.costs)
    trace = step.run(_straggling(placed.graph, step.duration_s, placed.rank, {700: 1.2}))
    trace.mean_breakdown()
    return trace


def unfolded_run(question: Question) -> Trace:
    """The same with every rank written."""
    plan = plan_of(question)
    unfolded = unfold(plan.graph())
    links = SharedLinks.of(unfolded.graph, network_of(plan.topology))
    placed = Placed(unfolded.graph, unfolded.rank, links, network_of(plan.topology), unfolded.classes)
    trace = Step(placed, question.costs).run()
    trace.mean_breakdown()
    return trace


def least_s(function: Callable[..., Any], *arguments: Any, runs: int = RUNS) -> float:
    """Processor seconds of the fastest of several runs; one thread does everything."""
    taken = []
    for _ in range(runs):
        begin_s = time.process_time()
        function(*arguments)
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
question = case(FEW_MICROBATCHES) if sys.argv[2] == "unfolded" else case()
begin_s = time.process_time()
(unfolded_run if sys.argv[2] == "unfolded" else folded_run)(question)
print(time.process_time() - begin_s, peak() - before)
"""


def cold_run(code: str, which: str, runs: int = RUNS) -> tuple[float, float]:
    """The least of both numbers that runs of some code print, each in a process of its own."""
    command = [sys.executable, "-c", code, str(Path(__file__).parent), which]
    done = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(runs)]
    seconds, others = zip(*(map(float, run.stdout.split()) for run in done), strict=True)
    return min(seconds), min(others)


def test_175b_folded_from_the_layout_to_the_breakdown(figure: Figure) -> None:
    graph = folded_run(case()).graph
    cold_s, mebibytes = cold_run(MEASURED, "folded")
    columns = graph.work, graph.stream, graph.tag, graph.block, graph.first_write
    n_bytes = sum(column.nbytes for column in (*columns, *graph.reads, *graph.after))
    name = f"175B folded, {len(graph):,} tasks, layout to breakdown"
    figure(f"{name}, cold", f"{1e3 * cold_s:,.0f} ms", "250 ms")
    figure(f"{name}, warm", f"{1e3 * least_s(folded_run, case()):,.0f} ms", "250 ms")
    name = "175B folded: memory over the bare interpreter"
    figure(name, f"{mebibytes:.0f} MiB", "120 MiB", "progress of all tasks in three columns")
    figure("columns of that graph", f"{n_bytes / len(graph):.1f} bytes a task", "40")


def test_175b_priced_anew_with_its_longest_path_and_broken_down(figure: Figure) -> None:
    trace = folded_run(case()).trace
    graph = plan_of(case()).graph()
    costs = case().costs
    critical_path(graph, price(graph, costs))
    path_s = least_s(lambda: critical_path(graph, price(graph, costs)), runs=3 * RUNS)
    figure("175B folded: new prices and longest path", f"{1e3 * path_s:.1f} ms", "10 ms")
    anew_s = least_s(lambda: Trace(trace.graph, trace.start_s, trace.end_s).mean_breakdown(), runs=3 * RUNS)
    figure("175B folded: where the time of its trace went", f"{1e3 * anew_s:.1f} ms", "20 ms")


def test_all_1024_ranks_with_contention(figure: Figure) -> None:
    num_tasks = len(unfolded_run(case(FEW_MICROBATCHES)).graph)
    taken_s, mebibytes = cold_run(MEASURED, "unfolded", 2)
    name = f"all 1,024 ranks, {num_tasks:,} tasks, with contention"
    figure(name, f"{taken_s:.1f} s", "4 s")
    figure(f"{name}: memory over the bare interpreter", f"{mebibytes:.0f} MiB", "400 MiB")


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def test_time_against_ranks_and_against_tasks(figure: Figure) -> None:
    times = [least_s(unfolded_run, case(FEW_MICROBATCHES, data), runs=2) for data in REPLICAS]
    name = f"exponent of time over ranks, all written, {128 * REPLICAS[0]} to {128 * REPLICAS[-1]:,}"
    figure(name, f"{exponent(REPLICAS, times):.2f} ({times[0]:.2f} to {times[-1]:.1f} s)", "1.1")
    cases = [case(microbatches) for microbatches in (96, 192, 384, 768)]
    counts = [len(plan_of(question).graph()) for question in cases]
    grows = exponent(counts, [least_s(folded_run, question, runs=3) for question in cases])
    figure(f"exponent of time over tasks, up to {counts[-1]:,}", f"{grows:.2f}", "1.05")


def test_one_straggler_among_1024(figure: Figure) -> None:
    folded_s, straggling_s = (least_s(run, case(), runs=3) for run in (folded_run, straggling_run))
    measured = f"{straggling_s / folded_s:.1f} x ({straggling_s:.2f} s)"
    figure("one straggler in 1,024, over the folded time", measured, "4 x", STRAGGLER)


def test_20b_on_192_wafers_folded_and_written(figure: Figure) -> None:
    wafers = {"system": "cs-2", "devices": WAFERS, "batch": WAFERS * 50}
    question = question_of({**GPUS, **wafers, "model": "gpt3_20b"})

    def step(every_wafer: bool) -> Trace:
        graph = best_plan(question).plan.graph()
        graph = unfold(graph).graph if every_wafer else graph
        return simulate(graph, price(graph, question.costs))

    assert step(True).step_time_s == step(False).step_time_s
    for every_wafer, words, aim in ((False, "folded", "1 s"), (True, "every wafer written", "5 s")):
        figure(f"20B on {WAFERS} wafers, {words}", f"{least_s(step, every_wafer, runs=3):.2f} s", aim)


# Layouts that are screened, and verbs from the shell.

BATCHES = tuple(factor * 2**power for power in range(7, 12) for factor in (2, 3))
BARE = ("-c", "import numpy, pydantic")
XL = "--model gpt3_xl --system dgx-a100-80gb --devices 8 --batch 64"
LAYOUT = "tp=8,pp=8,dp=8,mbs=1,schedule=interleaved,vpp=12,zero=1,sp=true"
OF_175B = "--model gpt3_175b --system dgx-a100-80gb"
VERBS = {
    "show systems, one of them": ("show systems dgx-a100-80gb", "1.5"),
    "run, one layout of 1.3B on 8": (f"run {XL} --strategy 3d --layout tp=1,pp=1,dp=8,mbs=1", "3.5"),
    "run, one layout of 175B on 512": (
        f"run {OF_175B} --devices 512 --batch 192 --strategy 3d --layout {LAYOUT}",
        "5",
    ),
    "plan, 20B on 128": ("plan --model gpt3_20b --system dgx-a100-80gb --devices 128 --batch 1024", "5"),
    "plan, 175B on 1,024": (f"plan {OF_175B} --devices 1024 --batch 1536", "10"),
    "plan, DeepSeek-V3 on 2,048": (
        "plan --model deepseek_v3 --system h200-sxm5-141gb --devices 2048 --batch 15360",
        "20",
    ),
    "main study, with its page": ("study gpt3_20b --compare 3d,weight-streaming --out {out}", "20"),
}

STARTS = (
    "each process reads the modules of perfsim and makes their classes anew: 120 ms for `show`, 230 ms for "
    "`run` and `plan`"
)
CAUSES = {
    "run, one layout of 175B on 512": "half of the time is SimPy's, which follows every task of the "
    "reported step",
    "plan, 20B on 128": f"45 % of the time is the start: {STARTS}; 15 % screens layouts, 10 % follows the "
    "passes of 830, 25 % writes 15 graphs and simulates",
    "plan, 175B on 1,024": "40 % writes 15 graphs and simulates, 20 % follows the passes of 850 layouts, "
    "half of it to write their orders, 25 % is the start, 10 % screens layouts",
    "plan, DeepSeek-V3 on 2,048": "45 % screens 407,231 layouts, half of it to write and price 12,000 "
    "distinct works; 35 % writes 30 graphs and simulates, 10 % follows passes, 10 % is the start",
    "main study, with its page": "35 % simulates 68 batches of four candidates, 25 % answers the first two "
    "again on other days, 15 % is the start, 10 % executes sampled layers, 10 % writes the page",
}
"""What takes the time of a verb; the others mostly start."""
STRAGGLER = (
    "2.7 x as many tasks are written, since the slow rank makes 64 ranks unlike the others; one third of "
    "the time unfolds them and finds the links of their groups"
)
SCREENED = (
    "a third of the time writes and prices the works of the first two batches; each other one takes 30 ms, "
    "and 1.1 us for each of its layouts"
)


def process_s(command: Sequence[str], cache: Path) -> float:
    """Processor seconds of one process, which keeps compiled modules in this folder; it must not fail."""
    # Else importing NumPy alone starts threads that take processor time, which perfsim does not do.
    kept = {"PYTHONPYCACHEPREFIX": str(cache), "PYTHONDONTWRITEBYTECODE": "", "OPENBLAS_NUM_THREADS": "1"}
    environment = os.environ | kept
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, *command], check=False, capture_output=True, text=True, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        pytest.fail(f"{' '.join(command)}: {ended.stderr.strip()[-200:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def perfsim(line: str) -> tuple[str, ...]:
    return ("-m", "perfsim", *line.split())


def test_screening_over_the_batches_of_a_sweep(figure: Figure) -> None:
    question = searched("gpt3_175b")
    began_s = time.process_time()
    screened = sum(Search(question.at(batch)).screening.screened for batch in BATCHES)
    rate = f"{screened / (time.process_time() - began_s):,.0f} layouts/s"
    name = f"screening, 175B on 1,024 at {len(BATCHES)} batches, {screened:,} layouts"
    figure(name, rate, "at least 1,000,000 layouts/s", SCREENED)


@pytest.mark.parametrize(
    ("name", "line", "aim"),
    [
        (
            "main study, wafers alone, not verified",
            "study gpt3_20b --compare weight-streaming --verify off --out {out}",
            "10 s",
        ),
        ("proofs of gpt3_20b", "prove gpt3_20b", "60 s"),
    ],
)
def test_a_whole_question(name: str, line: str, aim: str, figure: Figure, tmp_path: Path) -> None:
    taken_s = min(process_s(perfsim(line.format(out=tmp_path)), tmp_path / "warm") for _ in range(2))
    figure(f"perfsim {name}", f"{taken_s:.1f} s", aim)


COLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_speed import Search, searched
question = searched(sys.argv[2])
question.chosen, question.topology, question.costs
began_s = time.process_time()
count = Search(question).screening.screened
print(time.process_time() - began_s, count)
"""


@pytest.mark.parametrize(("model", "aim"), [("gpt3_175b", "60 ms"), ("deepseek_v3", "2000 ms")])
def test_the_first_question_of_a_process(model: str, aim: str, figure: Figure) -> None:
    taken_s, count = cold_run(COLD, model)
    figure(
        f"screening once, cold, {model} on 1,024, {count:,.0f} layouts",
        f"{1e3 * taken_s:.0f} ms",
        aim,
        "every work of a share of a layer is written and priced for the first time; later questions find it",
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_from_the_shell(verb: str, figure: Figure, tmp_path: Path) -> None:
    line, aim = VERBS[verb]
    commands = BARE, perfsim(line.format(out=tmp_path / "page"))
    for words, runs in (("cold", 1), ("warm", RUNS)):
        bare_s, taken_s = (
            min(process_s(command, tmp_path / str(number)) for _ in range(runs))
            for number, command in enumerate(commands)
        )
        text = f"{taken_s / bare_s:.1f} x importing NumPy and pydantic ({taken_s:.2f} s)"
        figure(f"perfsim {verb}, {words}", text, f"{aim} x", CAUSES.get(verb, STARTS))
