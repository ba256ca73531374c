"""Failures, stragglers and jitter, reckoned by hand and held against closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from perfsim.base.errors import InputError, LimitError
from perfsim.base.limits import Limits, limited
from perfsim.engine.failures import (
    Checkpoints,
    exponential_failures,
    run_with_failures,
    with_jitter,
    with_stragglers,
)
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph

REST = Checkpoints(30.0, 5.0)
RUNS: dict[str, tuple[float, Checkpoints, list[float], dict[str, float]]] = {
    "without failures only checkpoints are added": (
        *(100.0, Checkpoints(30.0, 5.0, 2.0), []),
        {"wall_s": 106.0, "write_s": 6.0, "lost_s": 0.0, "failures": 0, "goodput": 100.0 / 106.0},
    ),
    "0..30 kept, 30..45 lost, restart until 50, then 70 more": (
        *(100.0, REST, [45.0]),
        {"wall_s": 120.0, "lost_s": 15.0, "restart_s": 5.0, "failures": 1},
    ),
    "a failure while a checkpoint is written loses that checkpoint": (
        *(60.0, Checkpoints(30.0, 5.0, 4.0), [32.0]),
        {"lost_s": 32.0, "wall_s": 32.0 + 5.0 + 30.0 + 4.0 + 30.0},
    ),
    "a failure during a restart begins it anew": (
        *(40.0, REST, [10.0, 13.0]),
        {"lost_s": 10.0, "restart_s": 8.0, "wall_s": 58.0},
    ),
    "a failure after the end is none": (40.0, REST, [41.0], {"failures": 0}),
}


@pytest.mark.parametrize(("useful_s", "checkpoints", "failures", "expected"), RUNS.values(), ids=RUNS)
def test_a_failure_loses_what_was_done_since_the_last_checkpoint(
    useful_s: float, checkpoints: Checkpoints, failures: list[float], expected: dict[str, float]
) -> None:
    run = run_with_failures(useful_s, checkpoints, iter(failures))
    assert {name: getattr(run, name) for name in expected} == expected


@pytest.mark.parametrize(("mttf_s", "interval_s"), [(1000.0, 100.0), (300.0, 200.0)])
def test_random_failures_leave_the_goodput_of_the_closed_form(mttf_s: float, interval_s: float) -> None:
    checkpoints = Checkpoints(interval_s, 20.0, 5.0)
    run = run_with_failures(2000 * mttf_s, checkpoints, exponential_failures(mttf_s, seed=7))
    # Failures at any time, during restarts too: tau / (M e^(R/M) (e^((tau + delta)/M) - 1)) [Daly 2006].
    expected = interval_s / mttf_s / (math.exp(20.0 / mttf_s) * math.expm1((interval_s + 5.0) / mttf_s))
    assert run.goodput == pytest.approx(expected, rel=0.03)
    parts = run.useful_s + run.lost_s + run.restart_s + run.write_s
    assert run.wall_s == pytest.approx(parts, rel=1e-9)


def test_the_same_seed_gives_the_same_failures() -> None:
    first, again, other = (list(itertools.islice(exponential_failures(1.0, seed), 5)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_run_with_failures_ends_at_the_limit_of_time() -> None:
    failures = exponential_failures(1e9, seed=0)
    with limited(Limits(max_seconds=0.0)), pytest.raises(LimitError, match="with failures was simulated"):
        run_with_failures(1e5, Checkpoints(1.0, 1.0), failures)


@pytest.mark.parametrize(
    ("useful_s", "interval_s", "message"),
    [
        (math.inf, 100.0, "failures come faster than checkpoints"),
        (1e5, 1e-6, r"every 1e-06 s of 1e\+05 s of training makes 100,000,000,000"),
    ],
)
def test_a_run_that_does_not_end_or_cannot_be_simulated_is_refused(
    useful_s: float, interval_s: float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run_with_failures(useful_s, Checkpoints(interval_s, 5.0), exponential_failures(1.0, seed=0))


DURATIONS = np.array([1.0, 2.0, 4.0])
RANKS = np.array([0, 0, 1], dtype=np.int32)


def three() -> TaskGraph:
    """Computation and a send on rank 0, computation on rank 1."""
    builder = GraphBuilder()
    builder.task(toys.compute("a"), "gpu0/compute")
    builder.task(toys.transfer("send", RankGroup(0, 1, 2)), "gpu0/send")
    builder.task(toys.compute("b"), "gpu1/compute")
    return builder.build()


def test_a_straggler_computes_longer_and_sends_as_fast_as_before() -> None:
    slow = with_stragglers(three(), DURATIONS, RANKS, {0: 1.5})
    assert slow.tolist() == [1.5, 2.0, 4.0]


def test_what_no_rank_runs_alone_is_not_slowed() -> None:
    shared = np.full(3, -1, dtype=np.int32)
    assert with_stragglers(three(), DURATIONS, shared, {0: 2.0, 1: 2.0}).tolist() == DURATIONS.tolist()


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
