"""Steps, points and studies under perturbations, and collectives as the steps of their algorithm."""

from collections.abc import Callable

import numpy as np
import pytest

import perfsim as ps
from perfsim.base.errors import InputError
from perfsim.prediction.perturbed import _straggling, perturbed, with_jitter
from perfsim.prediction.run import Evaluation
from perfsim.specs.perturbations import parse_perturbations
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup


@pytest.fixture(scope="module")
def gpus() -> Evaluation:
    asked = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 32, "batch": 32}
    return ps.predict(**asked, layout="tp=2,pp=2,dp=8,mbs=1").run


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
def test_a_straggler_delays_by_its_factor_at_most(machine: str, request: pytest.FixtureRequest) -> None:
    evaluation = request.getfixturevalue(machine)
    last = evaluation.plan.topology.num_devices - 1
    times = [step_s(evaluation, f"straggler={factor}@{last}") for factor in (1.2, 2.0)]
    assert evaluation.step_time_s <= times[0] <= times[1] <= 2.0 * evaluation.step_time_s


WAFERS = {"strategy": "weight-streaming", "system": "cs-2", "devices": [2]}
DISTURBED = {"perturbations": {"seed": 3, "stragglers": [{"rank": 1, "factor": 1.5}]}}


def test_a_disturbed_study_takes_longer_by_its_step_and_says_so(study_of: Callable[..., ps.Study]) -> None:
    studies = (study_of(candidates=[WAFERS], **changes) for changes in ({}, DISTURBED))
    before, after = (ps.study(study).candidates[0] for study in studies)
    assert before.perturbed is None
    assert after.perturbed.unperturbed_step_time_s == before.step_time_s
    slowdown = after.step_time_s / before.step_time_s
    assert slowdown > 1.2
    assert after.time_to_accuracy_s == pytest.approx(slowdown * before.time_to_accuracy_s)


def test_a_straggler_computes_longer_and_nothing_else_does() -> None:
    """Not what it sends, nor what other ranks compute, nor what no rank runs alone."""
    builder = GraphBuilder()
    for name in ("gpu0", "gpu1", "all"):
        builder.task(toys.compute("a"), f"{name}/compute")
    builder.task(toys.transfer("send", RankGroup(0, 1, 2)), "gpu0/send")
    ranks = np.array([0, 1, -1, 0], dtype=np.int32)
    assert _straggling(builder.build(), np.ones(4), ranks, {0: 1.5}).tolist() == [1.5, 1.0, 1.0, 1.0]


def noisy(peers: int) -> np.ndarray:
    """Seconds of 20,000 computations and a send with jitter, which take one each without."""
    builder = GraphBuilder()
    for _ in range(20_000):
        builder.task(toys.compute("a"), "gpu0/compute")
    builder.task(toys.transfer("send", RankGroup(0, 1, 2)), "gpu0/send")
    together = np.full(20_001, peers, dtype=np.int32)
    return with_jitter(builder.build(), np.ones(20_001), 0.1, together, np.random.default_rng(1))


def test_jitter_moves_computation_alone_and_adds_nothing_in_the_mean() -> None:
    *computing, sending = noisy(peers=1)
    assert sending == 1.0
    assert np.mean(computing) == pytest.approx(1.0, abs=0.003)
    assert np.log(computing).std() == pytest.approx(0.1, rel=0.03)


def test_peers_that_wait_for_one_another_wait_for_the_slowest() -> None:
    """The mean of the largest of 8 standard normals is 1.4236 (David and Nagaraja, Order Statistics)."""
    assert (np.log(noisy(peers=8)[:-1]) + 0.005).mean() == pytest.approx(0.14236, rel=0.02)
