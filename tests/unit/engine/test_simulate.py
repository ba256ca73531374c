"""The discrete-event engine on graphs small enough to reckon by hand."""

import gc

import numpy as np
import pytest

from perfsim.base.errors import DeadlockError
from perfsim.engine import Flow, Slowdown, critical_path, simulate
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


UNITS = 0.25
MEMORY = 0.125
BOUND = (0.6, 0.3)


def pair() -> TaskGraph:
    """A computation and a collective on one device at the same time."""
    builder = GraphBuilder()
    first = builder.task(toys.compute("start"), "gpu0/compute").tensor
    builder.task(toys.collective("gather", RankGroup(0, 8, 2)), "gpu0/nccl", [first])
    builder.task(toys.compute("forward"), "gpu0/compute", [first])
    return builder.build()


def beside(taken: tuple[float, float] = (UNITS, MEMORY), bound: tuple[float, float] = BOUND) -> Slowdown:
    return Slowdown(np.array([(0.0, 0.0), taken, (0.0, 0.0)]), np.array([(0.0, 0.0), (0.0, 0.0), bound]))


def test_a_hidden_second_costs_g_over_one_plus_g() -> None:
    durations = np.array([1.0, 2.0, 8.0])
    longer = BOUND[0] * UNITS / (1 - UNITS) + BOUND[1] * MEMORY / (1 - MEMORY)
    run = simulate(pair(), durations, slowdown=beside())
    free = simulate(pair(), durations)
    assert run.end_s[2] == pytest.approx(9.0 + 2.0 * longer / (1 + longer), rel=1e-9)
    assert run.end_s[1] == 3.0, "the communication itself is not slowed"
    assert run.simulated.events - free.simulated.events == 1, "it begins slowed, and is as fast as before"


def test_a_message_slows_the_device_that_receives_it() -> None:
    builder = GraphBuilder()
    first = builder.task(toys.compute("start"), "gpu0/compute").tensor
    builder.task(toys.transfer("send", RankGroup(0, 1, 2)), "gpu0/send", [first])
    builder.task(toys.compute("forward"), "gpu1/compute", [first])
    graph = builder.build()
    run = simulate(graph, np.array([1.0, 2.0, 8.0]), slowdown=beside())
    assert run.end_s[2] > 9.0


def stalled() -> TaskGraph:
    """A compute task, a send over a link, and two that wait for the send."""
    builder = GraphBuilder()
    ready = builder.task(toys.compute("forward"), "gpu0/compute").tensor
    sent = builder.task(toys.transfer("send", RankGroup(0, 8, 2)), "gpu0/nic", [ready], tag=2).tensor
    arrived = builder.task(toys.compute("receive"), "gpu8/compute", [sent]).tensor
    builder.task(toys.compute("backward"), "gpu0/compute", [arrived])
    return builder.build()


def test_a_flow_over_a_link_without_capacity_never_ends_and_everyone_behind_it_is_named() -> None:
    graph = stalled()
    with pytest.raises(DeadlockError) as caught:
        simulate(graph, np.ones(4), {1: Flow((0,), 1.0)}, np.array([0.0]))
    assert str(caught.value).splitlines() == [
        "the run cannot proceed: 3 of 4 tasks never ended",
        "  gpu0/nic: send[2] waits for a link without capacity",
        "  gpu8/compute: receive waits for send[2] on gpu0/nic",
        "  gpu0/compute: backward waits for receive on gpu8/compute",
    ]


def test_only_the_first_stuck_task_of_a_stream_is_listed_and_many_streams_are_counted() -> None:
    builder = GraphBuilder()
    root = builder.task(toys.transfer("root", RankGroup(0, 8, 2)), "root").tensor
    for number in range(12):
        builder.task(toys.compute("a"), f"s{number}", [root])
        builder.task(toys.compute("b"), f"s{number}")
    graph = builder.build()
    with pytest.raises(DeadlockError) as caught:
        simulate(graph, np.ones(len(graph)), {0: Flow((0,), 1.0)}, np.array([0.0]))
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + 8 + 1
    assert "b waits" not in "\n".join(lines)
    assert lines[2] == "  s0: a waits for root on root"
    assert lines[-1] == "  and 5 more streams"
