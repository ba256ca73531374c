"""Who waits for what when a run cannot proceed."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.base.errors import DeadlockError
from perfsim.engine import Flow, simulate
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph


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
