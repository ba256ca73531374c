"""Stragglers and jitter on durations."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.engine.failures import with_jitter, with_stragglers
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph

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
