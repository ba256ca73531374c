"""GPT-3 175B on 1,024 GPUs (tensor 8, pipeline 16, data 8, sequence parallel): from graph to trace."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path, simulate
from perfsim.engine.perturb import with_stragglers
from perfsim.graph import GraphBuilder, TaskGraph, unfold
from perfsim.machines import build_topology, costs_for, network_of
from perfsim.placement.rank_classes import rank_classes
from perfsim.placement.shared_links import shared_links
from perfsim.placement.stragglers import place_stragglers
from perfsim.strategies import Plan, strategy
from perfsim.trace import Trace
from perfsim.workload import Job, ParallelLayout

pytestmark = pytest.mark.benchmark

RUNS = 5
MICROBATCHES = 192
DATA = 8
STRAGGLER = 700
SLOWER = 1.2


class Case(NamedTuple):
    """A plan and its prices."""

    plan: Plan
    costs: Costs


def case(microbatches: int = MICROBATCHES) -> Case:
    catalog = default_catalog()
    recipe = catalog.recipe("gpt3_pretraining")
    job = Job(catalog.model("gpt3_175b"), recipe, DATA * microbatches)
    topology = build_topology(catalog.system("dgx-a100-80gb"), 1024)
    layout = ParallelLayout(tensor=8, pipeline=16, data=DATA, sequence_parallel=True)
    plan = strategy("3d").plan(job, topology, layout, check_memory=False)
    return Case(plan, costs_for(topology, recipe))


def written(plan: Plan) -> TaskGraph:
    builder = GraphBuilder()
    strategy(plan.strategy).emit(plan, builder)
    return builder.build()


def folded_run(each: Case) -> Trace:
    """From building the graph to the simulated trace."""
    graph = written(each.plan)
    duration_s = price(graph, each.costs)
    links = shared_links(
        graph, network_of(each.plan.topology), peers=rank_classes(graph, network_of(each.plan.topology))
    )
    return simulate(graph, duration_s, links.flows, links.capacities)


def straggling_run(each: Case) -> Trace:
    """The same with one slow rank, and only the ranks written that it makes unlike others.

    Its tensor peers act with it, which leaves the time of the step as it is; as every verb does it.
    """
    found = place_stragglers(written(each.plan), each.plan, {STRAGGLER: SLOWER})
    graph, ranks, links, *_ = found.placed
    return simulate(graph, with_stragglers(graph, price(graph, each.costs), ranks, found.factors), *links)


def unfolded_run(each: Case) -> Trace:
    """Every rank written."""
    graph = unfold(written(each.plan)).graph
    links = shared_links(graph, network_of(each.plan.topology))
    return simulate(graph, price(graph, each.costs), links.flows, links.capacities)


def least_s(function: Callable[[], Any], runs: int = RUNS) -> float:
    """Processor seconds of the fastest of several runs; one thread does everything."""
    taken = []
    for _ in range(runs):
        begin_s = time.process_time()
        function()
        taken.append(time.process_time() - begin_s)
    return min(taken)


def test_175b_folded_from_the_graph_to_the_trace(figures: Any) -> None:
    each = case()
    graph = folded_run(each).graph
    figures.add(
        f"175B folded, {len(graph):,} tasks: graph, prices, simulated trace",
        f"{1e3 * least_s(lambda: folded_run(each)):,.0f} ms",
        "250 ms",
    )
    columns = (
        graph.work,
        graph.stream,
        graph.tag,
        graph.block,
        *graph.reads,
        *graph.after,
        graph.first_write,
    )
    figures.add(
        "columns of that graph", f"{sum(c.nbytes for c in columns) / len(graph):.1f} bytes a task", "40"
    )


def test_175b_priced_anew_with_its_longest_path(figures: Any) -> None:
    each = case()
    graph = written(each.plan)
    critical_path(graph, price(graph, each.costs))
    taken_s = least_s(lambda: critical_path(graph, price(graph, each.costs)), 3 * RUNS)
    figures.add("175B folded: new prices and longest path", f"{1e3 * taken_s:.1f} ms", "10 ms")


MEMORY = """
import sys
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
before = peak()
sys.path.insert(0, sys.argv[1])
from test_engine_speed import case, folded_run
folded_run(case())
print(peak() - before)
"""


def test_175b_memory_over_the_interpreter(figures: Any, request: pytest.FixtureRequest) -> None:
    asked = [sys.executable, "-c", MEMORY, str(request.path.parent)]
    found = subprocess.run(asked, capture_output=True, text=True, check=True)
    figures.add("175B folded: memory over the bare interpreter", f"{float(found.stdout):.0f} MiB", "150 MiB")


def test_all_1024_ranks_with_contention(figures: Any) -> None:
    each = case(microbatches=20)
    num_tasks = len(unfolded_run(each).graph)
    taken_s = least_s(lambda: unfolded_run(each), 2)
    figures.add(f"all 1,024 ranks, {num_tasks:,} tasks, with contention", f"{taken_s:.1f} s", "6 s")


def test_one_straggler_among_1024(figures: Any) -> None:
    each = case()
    folded_s, straggling_s = (least_s(lambda run=run: run(each)) for run in (folded_run, straggling_run))
    ratio = straggling_s / folded_s
    figures.add(
        "one straggler in 1,024, over the folded time", f"{ratio:.1f} x ({straggling_s:.2f} s)", "5 x"
    )


def test_time_against_tasks(figures: Any) -> None:
    counts, times = [], []
    for microbatches in (96, 192, 384, 768):
        each = case(microbatches)
        counts.append(len(written(each.plan)))
        times.append(least_s(lambda each=each: folded_run(each), 3))
    exponent = np.polyfit(np.log(counts), np.log(times), 1)[0]
    figures.add(f"exponent of time over tasks, up to {counts[-1]:,}", f"{exponent:.2f}", "1.05")
