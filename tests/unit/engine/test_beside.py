"""Communication that takes compute units and memory bandwidth from the computation beside it."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.costs.price import MOST_TAKEN
from perfsim.engine import Beside, critical_path, simulate
from perfsim.engine.tables import excess
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph

UNITS = 0.25
MEMORY = 0.125
BOUND = (0.6, 0.3)


def pair(*, waits: bool = False) -> TaskGraph:
    """A computation and a collective on one device, at the same time or one after the other."""
    builder = GraphBuilder()
    first = builder.task(toys.compute("start"), "gpu0/compute").tensor
    sent = builder.task(toys.collective("gather", RankGroup(0, 8, 2)), "gpu0/nccl", [first]).tensor
    builder.task(toys.compute("forward"), "gpu0/compute", [sent] if waits else [first])
    return builder.build()


def beside(taken: tuple[float, float] = (UNITS, MEMORY), bound: tuple[float, float] = BOUND) -> Beside:
    return Beside(np.array([(0.0, 0.0), taken, (0.0, 0.0)]), np.array([(0.0, 0.0), (0.0, 0.0), bound]))


def test_a_hidden_second_costs_g_over_one_plus_g() -> None:
    durations = np.array([1.0, 2.0, 8.0])
    longer = BOUND[0] * UNITS / (1 - UNITS) + BOUND[1] * MEMORY / (1 - MEMORY)
    run = simulate(pair(), durations, beside=beside())
    free = simulate(pair(), durations)
    assert run.end_s[2] == pytest.approx(9.0 + 2.0 * longer / (1 + longer), rel=1e-9)
    assert run.end_s[1] == 3.0, "the communication itself is not slowed"
    assert run.simulated is not None
    assert free.simulated is not None
    assert run.simulated.events - free.simulated.events == 1, "it begins slowed, and is as fast as before"


def test_communication_beside_no_computation_makes_no_events() -> None:
    graph = pair(waits=True)
    durations = np.array([1.0, 2.0, 8.0])
    run = simulate(graph, durations, beside=beside())
    alone = simulate(graph, durations)
    assert run.end_s.tolist() == critical_path(graph, durations).end_s.tolist()
    assert run.simulated == alone.simulated


def test_a_message_slows_the_device_that_receives_it() -> None:
    builder = GraphBuilder()
    first = builder.task(toys.compute("start"), "gpu0/compute").tensor
    builder.task(toys.transfer("send", RankGroup(0, 1, 2)), "gpu0/send", [first])
    builder.task(toys.compute("forward"), "gpu1/compute", [first])
    graph = builder.build()
    run = simulate(graph, np.array([1.0, 2.0, 8.0]), beside=beside())
    assert run.end_s[2] > 9.0


def test_no_share_stops_computation() -> None:
    assert excess(0.0) == 0.0
    assert excess(0.5) == 1.0
    assert excess(5.0) == excess(MOST_TAKEN) == pytest.approx(9.0)
