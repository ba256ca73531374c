"""Steps, points and studies under perturbations, and collectives as the steps of their algorithm."""

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

GPUS = {
    "model": "gpt3_xl",
    "system": "dgx-a100-80gb",
    "devices": 32,
    "strategy": "3d",
    "layout": "tp=2,pp=2,dp=8,mbs=1",
    "batch": 32,
}


@pytest.fixture(scope="module")
def gpus() -> Evaluation:
    return ps.predict(**GPUS).run


@pytest.fixture(scope="module")
def wafers() -> Evaluation:
    return ps.predict(model="gpt3_xl", system="cs-2", devices=4, strategy="weight-streaming", batch=64).run


def step_s(evaluation: Evaluation, text: str) -> float:
    return perturbed(evaluation, parse_perturbations(text)).step_time_s


@pytest.mark.parametrize("text", ["straggler=1@rank3", "jitter=0", "seed=9", "step-straggler=2@0"])
def test_what_disturbs_nothing_changes_no_bit(gpus: Evaluation, wafers: Evaluation, text: str) -> None:
    for evaluation in (gpus, wafers):
        same = perturbed(evaluation, parse_perturbations(text))
        assert same.trace.end_s.tobytes() == evaluation.trace.end_s.tobytes()
        assert same.breakdown_s == evaluation.breakdown_s


@pytest.mark.parametrize(
    "text", ["jitter=0.05,seed=3", "step-straggler=1.5@0.2,seed=3", "straggler=1.4@2,jitter=0.02"]
)
def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(gpus: Evaluation, text: str) -> None:
    another = f"{text.removesuffix(',seed=3')},seed=4"
    first, again, other = (perturbed(gpus, parse_perturbations(said)) for said in (text, text, another))
    assert first.trace.end_s.tobytes() == again.trace.end_s.tobytes()
    assert first.perturbed == again.perturbed
    assert other.trace.end_s.tobytes() != first.trace.end_s.tobytes()


def test_a_slow_wafer_slows_all_of_them_by_its_computation(wafers: Evaluation) -> None:
    """Every reduction waits for it: the step follows, but for what the network takes."""
    slowdown = step_s(wafers, "straggler=1.5@cs2") / wafers.step_time_s
    computing = sum(wafers.by_category_s.get(name, 0.0) for name in ("forward", "backward", "recompute"))
    assert slowdown == pytest.approx(1 + 0.5 * computing / wafers.step_time_s, rel=0.02)


def test_which_rank_is_slow_does_not_matter_among_peers_and_matters_between_stages(gpus: Evaluation) -> None:
    peers = [step_s(gpus, f"straggler=1.5@{rank}") for rank in (0, 7, 15)]
    assert peers == pytest.approx([peers[0]] * 3, rel=1e-9)
    assert step_s(gpus, "straggler=1.5@16") != pytest.approx(peers[0], rel=1e-6)


def test_a_dead_link_is_gone_around_and_a_slow_one_waited_for(gpus: Evaluation) -> None:
    for text in ("dead=node0/nic0-leaf0", "slow=0.25@node0/nic0-leaf0"):
        assert step_s(gpus, text) >= gpus.step_time_s
    assert step_s(gpus, "slow=0.01@node0/nic0-leaf0") > 1.05 * gpus.step_time_s


@pytest.mark.parametrize(
    ("machine", "text", "message"),
    [
        ("gpus", "straggler=2@32", "the ranks are 0 to 31"),
        ("gpus", "dead=node0/gpu0-node1/nvswitch", "has no link 'node0/gpu0-node1/nvswitch'"),
        ("gpus", "dead=", "has no link ''"),
        ("wafers", "dead=cs1-swarmx/0/0", "a wafer that is cut off is a failure"),
    ],
)
def test_ranks_links_and_routes_that_are_not_there_are_refused(
    machine: str, text: str, message: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(InputError, match=message):
        step_s(request.getfixturevalue(machine), text)


@pytest.mark.parametrize("machine", ["gpus", "wafers"])
def test_a_slower_straggler_never_shortens_a_step_and_delays_it_by_its_own_factor_at_most(
    machine: str, request: pytest.FixtureRequest
) -> None:
    evaluation = request.getfixturevalue(machine)
    last = evaluation.plan.topology.num_devices - 1
    times = [step_s(evaluation, f"straggler={factor}@{last}") for factor in (1.2, 2.0)]
    assert evaluation.step_time_s <= times[0] <= times[1] <= 2.0 * evaluation.step_time_s


STUDY = {
    "name": "tiny_study",
    "model": "gpt3_xl",
    "recipe": "gpt3_20b_chinchilla",
    "candidates": [{"strategy": "weight-streaming", "system": "cs-2", "devices": [2]}],
    "batch_sizes": [8],
    "sampling": {"tasks": 0},
}
DISTURBED = {"perturbations": {"seed": 3, "stragglers": [{"rank": 1, "factor": 1.5}]}}


def test_a_disturbed_study_takes_longer_by_its_step_and_says_so() -> None:
    calm, rough = (ps.study({**STUDY, **changes}) for changes in ({}, DISTURBED))
    before = calm.candidates[0]
    after = rough.candidates[0]
    assert before.perturbed is None
    assert after.perturbed is not None
    assert after.perturbed.unperturbed_step_time_s == before.step_time_s
    slowdown = after.step_time_s / before.step_time_s
    assert slowdown > 1.2
    assert after.time_to_accuracy_s == pytest.approx(slowdown * before.time_to_accuracy_s)


REDUCED = {**GPUS, "layout": "tp=8,pp=1,dp=4,mbs=1,zero=0,sp=true"}


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return ps.predict(**REDUCED).run


def test_the_steps_of_a_ring_take_what_the_collective_is_priced_at(evaluation: Evaluation) -> None:
    steps = expanded(evaluation, "data.all_reduce=ring")
    added = len(steps.graph) - len(evaluation.graph)
    reductions = sum(task.work.name == "data.all_reduce" for task in evaluation.graph.tasks())
    assert added == reductions * (num_steps("all_reduce", 4) - 1)
    bound_s = len(steps.graph) * 1e-12
    assert steps.step_time_s == pytest.approx(evaluation.step_time_s, abs=bound_s)


def test_steps_are_priced_by_their_own_group_where_those_of_stages_lie_unlike() -> None:
    """Seven replicas lie 7, 1 | 6, 2 | 5, ... ranks to a node, from stage to stage."""
    uneven = ps.predict(
        **{**REDUCED, "devices": 56, "layout": "tp=1,pp=8,dp=7,mbs=1,zero=0", "batch": 56}
    ).run
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
    steps = ps.predict(**{**REDUCED, "expand": "data.all_reduce=tree"}).run
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
