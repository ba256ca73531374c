"""GPT-3 175B on 1,024 GPUs, once folded and once with every rank written: the same to the bit."""

from __future__ import annotations

import pytest

from perfsim.catalog import default_catalog
from perfsim.costs.price import price
from perfsim.engine import simulate
from perfsim.machines import build_topology, costs_for, network_of
from perfsim.machines.placement import SharedLinks, rank_classes
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.work import GraphBuilder, unfold


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_175b_on_1024_ranks_with_contention_is_its_folded_run(overlap: bool) -> None:
    catalog = default_catalog()
    recipe = catalog.recipe("gpt3_pretraining").ran_with(overlap_grad_reduce=overlap)
    topology = build_topology(catalog.system("dgx-a100-80gb"), 1024)
    layout = ParallelLayout(tensor=8, pipeline=16, data=8, sequence_parallel=True)
    job = Job(catalog.model("gpt3_175b"), recipe, 8 * 20)
    chosen = strategy("3d")
    plan = chosen.plan(job, topology, layout, check_memory=False)
    builder = GraphBuilder()
    chosen.emit(plan, builder)
    graph = builder.build()
    costs = costs_for(topology, recipe)
    classes = rank_classes(graph, network_of(topology))
    assert not classes.any(), "all ranks of a stage stand alike, so they may be folded"
    links = SharedLinks.of(graph, network_of(topology), peers=classes)
    folded = simulate(graph, price(graph, costs), links.flows, links.capacities)
    unfolded = unfold(graph)
    assert len(unfolded.graph) >= 600_000
    links = SharedLinks.of(unfolded.graph, network_of(topology))
    assert links.flows
    run = simulate(unfolded.graph, price(unfolded.graph, costs), links.flows, links.capacities)
    assert run.start_s.tobytes() == folded.start_s[unfolded.task].tobytes()
    assert run.end_s.tobytes() == folded.end_s[unfolded.task].tobytes()
