"""A step of a 20-billion-parameter model on 192 CS-2: one wafer that stands for all, and every wafer present.

Run with `pytest -m benchmark tests/benchmarks`. Wanted: under 1 s folded, under 5 s with all wafers.
"""

from __future__ import annotations

import time

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from perfsim.catalog import Catalog, data_root
from perfsim.costs.price import price
from perfsim.engine import simulate
from perfsim.engine.trace import Trace
from perfsim.machines import build_topology, costs_for
from perfsim.prediction.planner import best_plan
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.testing import toys
from perfsim.work import GraphBuilder, unfold

pytestmark = pytest.mark.benchmark(timer=time.process_time)

SYSTEMS = 192
PER_SYSTEM = 50


def job() -> Job:
    catalog = Catalog([data_root()])
    return Job(catalog.model("gpt3_20b"), catalog.recipe("gpt3_pretraining"), SYSTEMS * PER_SYSTEM)


def step(*, every_wafer: bool) -> Trace:
    """Topology, plan, graph, prices and run of one step."""
    asked = job()
    topology = build_topology(Catalog([data_root()]).system("cs-2"), SYSTEMS)
    costs = costs_for(topology, asked.recipe)
    chosen = strategy("weight-streaming")
    plan = best_plan(toys.question(chosen, asked, topology, costs)).plan
    builder = GraphBuilder()
    chosen.emit(plan, builder)
    graph = builder.build()
    if every_wafer:
        graph = unfold(graph).graph
    return simulate(graph, price(graph, costs))


def test_a_step_on_192_systems_folded(benchmark: BenchmarkFixture) -> None:
    benchmark.extra_info["aim"] = "1 s"
    assert benchmark(step, every_wafer=False).step_time_s > 0


def test_a_step_on_192_systems_with_every_wafer(benchmark: BenchmarkFixture) -> None:
    benchmark.extra_info["aim"] = "5 s"
    trace = benchmark(step, every_wafer=True)
    assert trace.step_time_s == step(every_wafer=False).step_time_s
