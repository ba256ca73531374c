"""The discrete-event engine, on graphs small enough to reckon by hand."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from perfsim.engine import Flow, critical_path, simulate
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph


def two_sends() -> TaskGraph:
    """Two GPUs that compute, then send over one link, then join."""
    builder = GraphBuilder()
    sent = []
    for gpu in range(2):
        done = builder.task(toys.compute(f"f{gpu}"), f"gpu{gpu}/compute").tensor
        work = toys.transfer(f"send{gpu}", RankGroup(gpu, 8, 2))
        sent.append(builder.task(work, f"gpu{gpu}/nic", [done]).tensor)
    builder.task(toys.compute("join"), "gpu8/compute", sent)
    return builder.build()


def test_more_bandwidth_can_be_slower() -> None:
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


def test_a_run_leaves_no_cycle_of_references_behind() -> None:
    graph = two_sends()
    flows = {1: Flow((0,), 1.0), 3: Flow((0,), 1.0)}
    gc.collect()
    gc.disable()
    try:
        simulate(graph, np.array([1.0, 4.0, 1.0, 4.0, 1.0]), flows, np.array([1.0]))
        kept = [
            row for row in gc.get_objects() if type(row).__name__ in {"_Devices", "_Links", "_Simulation"}
        ]
    finally:
        gc.enable()
    assert not kept


def test_the_number_of_durations_must_be_the_number_of_tasks() -> None:
    for engine in (critical_path, simulate):
        with pytest.raises(ValueError, match="3 durations for 5 tasks"):
            engine(two_sends(), np.ones(3))
