"""How many flows a second the network model carries: on shared NICs, and on SwarmX trees of any size.

Run with `pytest -m benchmark tests/benchmarks`. Each stream of flows starts the next flow when the last
one ends, so that the number alive stays what it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import simpy
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from perfsim.engine.calendar import Calendar
from perfsim.engine.fairshare import FairShare, Flow
from perfsim.testing.independent import reduced

pytestmark = pytest.mark.benchmark(timer=time.process_time)

TOTAL = 100_000
GRID_S = 2.0**-40


def carry(flows: Sequence[Flow], capacities: NDArray[np.float64], durations: Sequence[float]) -> FairShare:
    """One stream for each of `flows`, until all `durations` are used up."""
    env = simpy.Environment()
    share = FairShare(Calendar(env), capacities, grid_s=GRID_S)
    left = iter(durations)

    def following(flow: Flow) -> None:
        duration_s = next(left, None)
        if duration_s is not None:
            share.start(flow, duration_s, partial(following, flow))

    for flow in flows:
        following(flow)
    assert share.live_flows == len(flows)
    env.run()
    assert share.live_flows == 0
    return share


def durations(count: int, *, distinct: bool) -> list[float]:
    seconds = np.random.default_rng(0).uniform(0.5e-3, 1.5e-3, count) if distinct else np.full(count, 1e-3)
    return list((np.rint(seconds / GRID_S) * GRID_S).tolist())


def on_nics() -> list[Flow]:
    """9,600 streams on 200 NICs: four kinds of flow on each, of four speeds, two that also enter."""
    return [
        Flow((2 * nic, 2 * nic + 1) if kind % 2 else (2 * nic,), 0.25 + 0.25 * kind)
        for nic in range(200)
        for kind in range(4)
        for _ in range(12)
    ]


def in_training(nodes: int = 128, rails: int = 8, stages: int = 16) -> list[Flow]:
    """8,832 streams of 1,024 ranks: rings over the replicas of each stage, sends between stages."""
    replicas = nodes // stages
    flows = []
    for rail in range(rails):
        for stage in range(stages):
            ports = [2 * ((stage * replicas + replica) * rails + rail) for replica in range(replicas)]
            flows += [Flow(tuple(port + way for port in ports for way in (0, 1)), 1.0)] * (3 * replicas)
            for port in ports:
                hop = 2 * replicas * rails
                if stage + 1 < stages:
                    flows += [Flow((port, port + hop + 1), 1.0)] * 3
                if stage:
                    flows += [Flow((port, port - hop + 1), 1.0)] * 3
    return flows


JOINED = (
    "when a flow ends that none replaces, the rates of all 256 classes that rings join on a rail are solved "
    "anew from about 2,000 crossings, in some 0.7 ms; flows whose ends coincide share one solution"
)


def measured(
    benchmark: BenchmarkFixture,
    flows: Sequence[Flow],
    capacities: Sequence[float],
    seconds: Sequence[float],
    cause: str = "",
) -> None:
    """Time a run, links reduced before it as before every run; note flows a second."""
    fewer, left = reduced(list(dict.fromkeys(flows)), capacities)
    known = dict(zip(dict.fromkeys(flows), fewer, strict=True))
    share = benchmark.pedantic(carry, ([known[flow] for flow in flows], left, seconds), rounds=3)
    benchmark.extra_info["alive"] = len(flows)
    benchmark.extra_info["instants"] = share.solves
    benchmark.extra_info["aim"] = "at least 100,000 flows/s"
    benchmark.extra_info["cause"] = cause
    benchmark.extra_info["flows/s"] = len(seconds) / benchmark.stats["min"]


@pytest.mark.parametrize("distinct", [False, True], ids=["equal", "distinct"])
def test_flows_on_shared_nics(benchmark: BenchmarkFixture, distinct: bool) -> None:
    measured(benchmark, on_nics(), [1.0] * 400, durations(TOTAL, distinct=distinct))


def test_flows_of_a_training_step_of_all_ranks(benchmark: BenchmarkFixture) -> None:
    measured(benchmark, in_training(), [1.0] * 2048, durations(TOTAL, distinct=False))


def test_flows_of_all_ranks_no_two_of_which_end_together(benchmark: BenchmarkFixture) -> None:
    """The worst case: a third of the flows end unreplaced, which changes the rates of all 256 classes."""
    measured(benchmark, in_training(rails=1), [1.0] * 256, durations(3_000, distinct=True), JOINED)


@pytest.mark.parametrize("wafers", [1, 16, 192, 2048])
def test_flows_on_swarmx(benchmark: BenchmarkFixture, wafers: int) -> None:
    down = tuple(range(0, 2 * wafers, 2))
    up = tuple(range(1, 2 * wafers, 2))
    flows = [Flow(down, 1.0)] * 40 + [Flow(up, 1.0)] * 40
    measured(benchmark, flows, [1.0] * 2 * wafers, durations(20_000, distinct=True))
