"""The discrete-event engine, on graphs small enough to reckon by hand."""

from __future__ import annotations

import gc
from types import ModuleType

import numpy as np
import pytest

from perfsim.engine import Flow, critical_path, simulate
from perfsim.work import GraphBuilder, RankGroup, TaskGraph


def two_sends(toys: ModuleType, *, start_later_s: float = 0.0) -> tuple[TaskGraph, np.ndarray]:
    """Two GPUs that compute, then send over one link, then join."""
    builder = GraphBuilder()
    sent = []
    for gpu in range(2):
        done = builder.task(toys.compute(f"f{gpu}"), f"gpu{gpu}/compute").tensor
        work = toys.transfer(f"send{gpu}", RankGroup(gpu, 8, 2))
        sent.append(builder.task(work, f"gpu{gpu}/nic", [done]).tensor)
    builder.task(toys.compute("join"), "gpu8/compute", sent)
    return builder.build(), np.array([1.0, 4.0, 1.0 + start_later_s, 4.0, 1.0])


NAMES = ("first", "second", "third", "fourth")
ONE_LINK = {1: Flow((0,), 1.0), 3: Flow((0,), 1.0)}


def test_flows_share_only_while_they_overlap(toys: ModuleType) -> None:
    graph, durations = two_sends(toys, start_later_s=2.0)
    trace = simulate(graph, durations, ONE_LINK, np.array([1.0]))
    # Alone from 1 to 3, shared until the first has its 4 s of service at 7, alone again.
    assert trace.end_s.tolist() == [1.0, 7.0, 3.0, 9.0, 10.0]


def test_a_slowed_flow_may_be_followed_by_another_at_once(toys: ModuleType) -> None:
    builder = GraphBuilder()
    work = toys.transfer("send", RankGroup(0, 8, 2))
    for _ in range(3):
        builder.task(work, "gpu0/nic")
        builder.task(work, "gpu1/nic")
    graph = builder.build()
    durations = np.full(6, 0.1)  # a tenth of a second is on no grid
    trace = simulate(graph, durations, {0: Flow((0,), 1.0)}, np.array([1.5]))
    assert trace.end_s.max() == pytest.approx(0.3 * 2 / 1.5, rel=1e-9)


def test_more_bandwidth_can_be_slower(toys: ModuleType) -> None:
    """Fair sharing is not monotone: a faster link may let a task through that then blocks a longer chain.

    Work 0 crosses link 0 and then frees a second flow on link 1, which the chain to the end needs.
    """
    builder = GraphBuilder()
    early = builder.task(toys.transfer("early", RankGroup(0, 1, 2)), "a").tensor
    builder.task(toys.transfer("rival", RankGroup(1, 1, 2)), "a", [early])
    needed = builder.task(toys.transfer("needed", RankGroup(2, 1, 2)), "b").tensor
    builder.task(toys.compute("long"), "b", [needed])
    graph = builder.build()
    durations = np.array([4.0, 4.0, 8.0, 20.0])
    flows = {0: Flow((0,), 1.0), 1: Flow((1,), 1.0), 2: Flow((1,), 1.0)}
    slow, fast = (simulate(graph, durations, flows, np.array([rate, 1.0])).end_s.max() for rate in (0.5, 1.0))
    assert (slow, fast) == (28.0, 32.0)


def test_flows_that_meet_only_because_others_were_slowed_are_simulated(toys: ModuleType) -> None:
    """The third flow ends at 12 s alone and at 22 s after two that share a link, when the fourth begins."""
    builder = GraphBuilder()
    first = builder.task(toys.transfer("first", RankGroup(0, 8, 2)), "gpu0/nic").tensor
    builder.task(toys.transfer("second", RankGroup(1, 8, 2)), "gpu1/nic")
    builder.task(toys.transfer("third", RankGroup(0, 8, 2)), "gpu0/nic", [first])
    before = builder.task(toys.compute("wait"), "gpu2/compute").tensor
    builder.task(toys.transfer("fourth", RankGroup(2, 8, 2)), "gpu2/nic", [before])
    graph = builder.build()
    durations = np.array([10.0, 10.0, 2.0, 20.0, 2.0])
    names = [work.name for work in graph.works]
    flows = {names.index(name): Flow((link,), 1.0) for name, link in zip(NAMES, (0, 0, 1, 1), strict=True)}
    trace = simulate(graph, durations, flows, np.array([1.0, 1.0]))
    assert trace.end_s.tolist() == [20.0, 20.0, 24.0, 20.0, 24.0]


def test_a_run_leaves_no_cycle_of_references_behind(toys: ModuleType) -> None:
    graph, durations = two_sends(toys)
    gc.collect()
    gc.disable()
    try:
        simulate(graph, durations, ONE_LINK, np.array([1.0]))
        kept = [
            row for row in gc.get_objects() if type(row).__name__ in {"_Devices", "_Links", "_Simulation"}
        ]
    finally:
        gc.enable()
    assert not kept


def test_the_number_of_durations_must_be_the_number_of_tasks(toys: ModuleType) -> None:
    for engine in (critical_path, simulate):
        with pytest.raises(ValueError, match="3 durations for 5 tasks"):
            engine(two_sends(toys)[0], np.ones(3))


def test_a_flow_loads_a_link_as_often_as_it_crosses_it(toys: ModuleType) -> None:
    """The first crosses link 1, which carries two of three, three times; link 0 has room for both."""
    graph, _ = two_sends(toys)
    flows = {1: Flow((0, 1, 1, 1), 1.0), 3: Flow((0,), 1.0)}
    trace = simulate(graph, np.array([0.0, 6.0, 0.0, 6.0, 0.0]), flows, np.array([10.0, 2.0]))
    assert trace.end_s[[1, 3]].tolist() == pytest.approx([9.0, 6.0], rel=1e-12)
