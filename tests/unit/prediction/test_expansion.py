"""Collectives as the steps of their algorithm."""

from __future__ import annotations

from types import ModuleType

import pytest

import perfsim as ps
from perfsim.base.errors import InputError
from perfsim.costs.price import price
from perfsim.engine import simulate
from perfsim.machines import network_of
from perfsim.machines.placement import SharedLinks
from perfsim.network.collectives import num_steps
from perfsim.prediction.disturbed import expanded, in_steps, perturbed
from perfsim.prediction.run import Evaluation
from perfsim.specs.hardware import FatTreeSpec
from perfsim.specs.perturbations import parse_perturbations
from perfsim.work import GraphBuilder, Kind, RankGroup, TensorClass, Work

POINT = {
    "model": "gpt3_xl",
    "system": "dgx-a100-80gb",
    "devices": 32,
    "strategy": "3d",
    "layout": "tp=8,pp=1,dp=4,mbs=1,zero=0,sp=true",
    "batch": 32,
}


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return ps.predict(**POINT).run


def test_the_steps_of_a_ring_take_what_the_collective_is_priced_at(evaluation: Evaluation) -> None:
    steps = expanded(evaluation, "data.all_reduce=ring")
    added = len(steps.graph) - len(evaluation.graph)
    reductions = sum(task.work.name == "data.all_reduce" for task in evaluation.graph.tasks())
    assert added == reductions * (num_steps("all_reduce", 4) - 1)
    bound_s = len(steps.graph) * 1e-12
    assert steps.step_time_s == pytest.approx(evaluation.step_time_s, abs=bound_s)


def test_steps_are_priced_by_their_own_group_where_those_of_stages_lie_unlike() -> None:
    """Seven replicas lie 7, 1 | 6, 2 | 5, ... ranks to a node, from stage to stage."""
    uneven = ps.predict(**{**POINT, "devices": 56, "layout": "tp=1,pp=8,dp=7,mbs=1,zero=0", "batch": 56}).run
    steps = expanded(uneven, "data.all_reduce=ring")
    whole_s, stepwise_s = (run.step.run(contention=False).step_time_s for run in (uneven, steps))
    assert stepwise_s == pytest.approx(whole_s, abs=len(steps.graph) * 1e-12)
    assert steps.step_time_s == pytest.approx(uneven.step_time_s, rel=1e-3), "a latency before each step"


def test_the_rounds_of_a_tree_take_what_its_closed_form_says(evaluation: Evaluation) -> None:
    """Groups of 4 nodes that are alike: 2 x 2 rounds of the whole message, one latency each."""
    work = next(work for work in evaluation.graph.works if work.name == "data.all_reduce")
    graph, costs = in_steps(evaluation.graph, evaluation.step.costs, {"data.all_reduce": "tree"})
    rounds = [part for part in graph.works if part.op.startswith("tree.")]
    rounds = [part for part in rounds if part.comm_bytes == work.comm_bytes]
    pair = evaluation.step.costs.group(RankGroup(0, 8, 2))
    model = evaluation.step.costs.collectives
    latency_s = model.time_s("send_recv", 1e-9, pair)
    rate = 1e9 / (model.time_s("send_recv", 1e9, pair) - latency_s)
    closed_s = 4 * (latency_s + work.comm_bytes / rate)
    assert len(rounds) == 4
    assert sum(map(costs.duration_s, rounds)) == pytest.approx(closed_s, rel=1e-6)


def on_thin_uplinks(toys: ModuleType, evaluation: Evaluation, steps: str) -> tuple[list[float], float]:
    """How many times as long a sum over four nodes takes, task by task, and how long it takes in all.

    Leaves of two nodes: 16 NICs of 25 GB/s below, a fourth of that above, so 4 uplinks of 25 GB/s. All 8
    GPUs of a node send at once.
    """
    fabric = FatTreeSpec(nodes_per_leaf=2, oversubscription=4.0, switch_latency=1e-7)
    topology = toys.topology(32, toys.gpu_cluster().model_copy(update={"fabric": fabric}))
    builder = GraphBuilder()
    written = (TensorClass("gradients", 1e9),)
    work = Work("sum", Kind.COMM_COLL, "all_reduce", "data", (), 1e9, RankGroup(0, 8, 4), written)
    builder.task(work, "gpu0/nccl")
    builder.fold(32)
    graph, costs = in_steps(builder.build(), evaluation.step.costs, {"sum": steps} if steps else {})
    durations = price(graph, costs)
    links = SharedLinks.of(graph, network_of(topology))
    assert links.flows
    took = simulate(graph, durations, links.flows, links.capacities)
    return ((took.end_s - took.start_s) / durations).tolist(), took.end_s.max()


def test_steps_wait_for_uplinks_where_they_leave_a_leaf(evaluation: Evaluation, toys: ModuleType) -> None:
    """In the two far rounds of a tree 8 messages share 4 uplinks; in each of 2 x 3 steps of a ring 8 do."""
    (whole, whole_s), (tree, _), (ring, ring_s) = (
        on_thin_uplinks(toys, evaluation, steps) for steps in ("", "tree", "ring")
    )
    assert tree == pytest.approx([1.0, 2.0, 2.0, 1.0], rel=1e-9)
    assert whole == pytest.approx([2.0], rel=1e-9)
    assert ring == pytest.approx([2.0] * 6, rel=1e-9)
    assert ring_s == pytest.approx(whole_s, rel=1e-9)


def test_a_point_may_ask_for_steps_and_disturb_them(evaluation: Evaluation) -> None:
    steps = ps.predict(**{**POINT, "expand": "data.all_reduce=tree"}).run
    assert steps.step_time_s > evaluation.step_time_s, "whole messages, unpipelined"
    assert perturbed(steps, parse_perturbations("straggler=1.5@9")).step_time_s > steps.step_time_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data.all_reduce=star", "must be one of ring, tree"),
        ("data.all_reduc=ring", "did you mean `data.all_reduce`"),
        ("nothing=ring", "known: data.all_reduce, "),
        ("tensor.all_gather=tree", "cannot run as a tree; these can: all_reduce, broadcast"),
    ],
)
def test_what_does_not_run_so_is_refused(evaluation: Evaluation, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        expanded(evaluation, text)
