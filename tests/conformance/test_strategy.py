"""What every strategy in the registry must keep; a new one passes this suite or does not enter.

Systems and prices are toys, so nothing here depends on a calibration. A plug-in strategy that is
installed while the tests run is tested as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from perfsim.costs.price import Costs, price
from perfsim.costs.wafer import WaferCosts
from perfsim.engine import critical_path, simulate
from perfsim.errors import InputError, MemoryCapacityError, PlanError
from perfsim.graph import GraphBuilder, TaskGraph
from perfsim.placement.shared_links import shared_links
from perfsim.prediction.planner import screen
from perfsim.strategies import Plan, Strategy, strategy, strategy_names
from perfsim.strategies.three_d.zero import SHARDED
from perfsim.topology import Topology
from perfsim.trace import Trace
from perfsim.transformer import model_flop_per_step, recompute_flop_per_step
from perfsim.workload import Job

MOST_PLANS = 6
"""Plans of each question that are run: spread over all of its layouts."""

QUESTIONS: dict[str, dict[str, Any]] = {
    "one device": {"devices": 1, "batch": 16},
    "one node": {"devices": 8, "batch": 32},
    "a node with little memory": {"devices": 8, "batch": 32, "capacity": 10e9},
    "two nodes, reduction overlapped": {
        "devices": 16,
        "batch": 64,
        "recipe_changes": {"overlap_grad_reduce": True},
        "num_layers": 16,
    },
    "four nodes, flash attention": {
        "devices": 32,
        "batch": 64,
        "recipe_changes": {"attention": "flash", "dropout": False},
        "num_layers": 32,
        "hidden_size": 1024,
        "ffn_hidden_size": 4096,
        "num_attention_heads": 32,
    },
    "a gated model with grouped queries and its own head": {
        "devices": 4,
        "batch": 16,
        "gated_mlp": True,
        "num_query_groups": 4,
        "tied_embeddings": False,
        "position_embedding": "rotary",
    },
}


@dataclass(frozen=True)
class Question:
    """A job, its machine and its prices."""

    strategy: Strategy
    job: Job
    topology: Topology
    costs: Costs


@pytest.fixture(params=strategy_names())
def chosen(request: pytest.FixtureRequest) -> Strategy:
    return strategy(request.param)


@pytest.fixture(params=QUESTIONS, ids=lambda name: name.replace(" ", "_"))
def question(request: pytest.FixtureRequest, toys: ModuleType, chosen: Strategy) -> Question:
    fields = dict(QUESTIONS[request.param])
    devices = fields.pop("devices")
    memory = {"capacity": fields.pop("capacity")} if "capacity" in fields else {}
    job = toys.job(**fields)
    make = toys.gpu_cluster if chosen.system_kind == "gpu-cluster" else toys.wafer_cluster
    system = make(**memory)
    topology = toys.topology(devices, system)
    costs = toys.ToyCosts(system) if chosen.system_kind == "gpu-cluster" else WaferCosts(topology, job.recipe)
    return Question(chosen, job, topology, costs)


def feasible(question: Question) -> list[Plan]:
    plans = []
    for layout in question.strategy.layouts(question.job, question.topology):
        try:
            plans.append(question.strategy.plan(question.job, question.topology, layout))
        except MemoryCapacityError:
            continue
    stride = -(-len(plans) // MOST_PLANS) if plans else 1
    return plans[::stride]


def graph_of(plan: Plan) -> TaskGraph:
    builder = GraphBuilder()
    strategy(plan.strategy).emit(plan, builder)
    return builder.build()


def runs(question: Question) -> Iterator[tuple[Plan, TaskGraph, np.ndarray, Trace]]:
    for plan in feasible(question):
        graph = graph_of(plan)
        durations = price(graph, question.costs)
        links = shared_links(graph, plan.topology)
        yield plan, graph, durations, simulate(graph, durations, links.flows, links.capacities)


def may_be_without_layout(question: Question) -> bool:
    """A plain strategy may have no way to use all devices; anything else must have one."""
    return question.strategy.name in ("tensor", "pipeline") and question.topology.num_devices > 8


# ------------------------------------------------------------------------------------- planning
def test_it_says_what_it_is(chosen: Strategy) -> None:
    assert chosen.name in strategy_names()
    assert chosen.summary
    assert chosen.system_kind in ("gpu-cluster", "wafer-cluster")


def test_every_listed_layout_fits_or_is_refused_for_memory_alone(question: Question) -> None:
    layouts = list(question.strategy.layouts(question.job, question.topology))
    assert feasible(question) or may_be_without_layout(question)
    for layout in layouts:
        unchecked = question.strategy.plan(question.job, question.topology, layout, check_memory=False)
        if all(use.fits for use in unchecked.memory):
            assert question.strategy.plan(question.job, question.topology, layout) == unchecked
        else:  # a refusal names what is too large, and a change
            with pytest.raises(MemoryCapacityError, match=r"needs .* try "):
                question.strategy.plan(question.job, question.topology, layout)


def test_every_variant_is_legal_and_no_copy(question: Question) -> None:
    chosen, job, topology = question.strategy, question.job, question.topology
    for layout in chosen.layouts(job, topology):
        variants = list(chosen.variants(job, topology, layout))
        assert layout not in variants
        assert len(set(variants)) == len(variants)
        for variant in variants:
            chosen.plan(job, topology, variant, check_memory=False)


def test_the_planner_plans_only_what_is_listed(question: Question) -> None:
    chosen, job, topology = question.strategy, question.job, question.topology
    layouts = list(chosen.layouts(job, topology))
    variants = [variant for layout in layouts for variant in chosen.variants(job, topology, layout)]
    try:
        screened = screen(toys.question(chosen, job, topology, question.costs))
    except PlanError:
        assert not feasible(question)
        return
    assert {choice.plan.layout for choice in screened} <= {*layouts, *variants}


def test_memory_is_itemised_and_positive(question: Question) -> None:
    for plan in feasible(question):
        assert plan.peak_memory_bytes > 0
        for use in plan.memory:
            assert use.total_bytes == pytest.approx(sum(use.parts_bytes.values()))
            assert all(n_bytes >= 0 for n_bytes in use.parts_bytes.values())


def test_the_other_kind_of_system_is_refused_by_name(toys: ModuleType, chosen: Strategy) -> None:
    other = toys.wafer_cluster() if chosen.system_kind == "gpu-cluster" else toys.gpu_cluster()
    topology, job = toys.topology(4, other), toys.job()
    own = toys.gpu_cluster() if chosen.system_kind == "gpu-cluster" else toys.wafer_cluster()
    layout = next(iter(chosen.layouts(job, toys.topology(4, own))))
    with pytest.raises(InputError, match=other.name):
        chosen.plan(job, topology, layout)


# ---------------------------------------------------------------------------------------- graph
def test_all_ranks_together_do_the_flop_of_the_model_and_of_the_recompute(question: Question) -> None:
    job = question.job
    for plan in feasible(question):
        layout, graph = plan.layout, graph_of(plan)
        done = graph.flop / len(graph.step_ends)
        again = recompute_flop_per_step(job, layout.recompute, stops_early=layout.zero_stage == SHARDED)
        expected = model_flop_per_step(job) + again
        expected -= masked_flop(job, layout.recompute) if plan.strategy != "weight-streaming" else 0.0
        assert done == pytest.approx(expected, rel=0.01), layout


def masked_flop(job: Job, recompute: str) -> float:
    """What fused attention leaves out (the causal half) less what it does again (scores, backward)."""
    if job.recipe.attention == "standard":
        return 0.0
    matmul = 2.0 * job.seq_length * job.model.hidden_size * job.model.num_layers * job.tokens_per_step
    forwards = 2 if recompute == "full" else 1
    return forwards * matmul * (2 - 2 / 2) + matmul * (4 - 5 / 2)


def test_writing_it_twice_gives_the_same_graph(question: Question) -> None:
    for plan in feasible(question)[:3]:
        assert graph_of(plan).digest() == graph_of(plan).digest()


def test_a_plan_may_be_written_for_more_steps(question: Question) -> None:
    for plan in feasible(question)[:2]:
        assert len(graph_of(replace(plan, least_steps=3)).step_ends) == 3


def test_tasks_name_the_layer_that_they_concern(question: Question) -> None:
    for plan in feasible(question)[:2]:
        graph = graph_of(plan)
        assert set(range(question.job.model.num_layers)) <= set(graph.block.tolist())
        for task in graph.tasks():
            if task.work.op.startswith(("attention.", "mlp.", "layer.")):
                assert task.block >= 0


def test_streams_name_a_device_and_communication_its_group(question: Question) -> None:
    for plan in feasible(question)[:3]:
        graph = graph_of(plan)
        assert all(name.count("/") == 1 for name in graph.streams)
        assert any(name.endswith("/compute") for name in graph.streams)
        assert all(work.group is not None for work in graph.works if work.kind.is_communication)


# ----------------------------------------------------------------------------------------- runs
def test_it_runs_to_the_end_and_contention_only_delays(question: Question) -> None:
    for _, graph, durations, run in runs(question):
        path = critical_path(graph, durations)
        assert (run.end_s >= path.end_s).all()
        assert run.step_time_s > 0


def test_without_contention_simulation_is_the_longest_path_to_the_bit(question: Question) -> None:
    for plan in feasible(question):
        graph = graph_of(plan)
        durations = price(graph, question.costs)
        run, path = simulate(graph, durations), critical_path(graph, durations)
        assert run.start_s.tobytes() == path.start_s.tobytes()
        assert run.end_s.tobytes() == path.end_s.tobytes()


def test_the_screening_formula_is_within_15_percent_of_the_simulation(question: Question) -> None:
    for plan, _, _, run in runs(question):
        estimate = question.strategy.estimate_s(plan, question.costs.duration_s)
        assert estimate == pytest.approx(run.step_time_s, rel=0.15), plan.layout


def test_every_second_of_every_device_is_accounted_for(question: Question) -> None:
    for _, _, _, run in runs(question):
        devices = run.device_breakdowns()
        assert devices
        for seconds in devices.values():
            assert min(seconds.values()) >= 0
            assert sum(seconds.values()) == pytest.approx(run.step_time_s, rel=1e-9)
