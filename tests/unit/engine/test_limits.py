"""Limits on events and seconds, and who is told how far a run has come."""

import sys

import numpy as np
import pytest

from perfsim.base.errors import LimitError
from perfsim.base.limits import Engine, Limits, limited
from perfsim.engine import Flow, simulate
from perfsim.engine.trace import Trace
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph


def long(count: int) -> TaskGraph:
    """Two streams whose every task is a chain of its own."""
    builder = GraphBuilder()
    left = right = builder.task(toys.compute("root"), "gpu0/compute").tensor
    for _ in range(count):
        one = builder.task(toys.transfer("a", RankGroup(0, 1, 2)), "gpu0/compute", [right])
        other = builder.task(toys.transfer("b", RankGroup(0, 1, 2)), "gpu1/compute", [left])
        left = one.tensor
        right = other.tensor
    return builder.build()


def run(graph: TaskGraph, capacity: float | None = None) -> Trace:
    """In whole seconds; all messages over one link, where it has a capacity."""
    if capacity is None:
        return simulate(graph, np.ones(len(graph)))
    flows = {number: Flow((0,), 1.0) for number, work in enumerate(graph.works) if work.name in "ab"}
    return simulate(graph, np.ones(len(graph)), flows, np.array([capacity]))


def test_a_run_within_its_limits_is_not_touched_and_counts_its_tasks() -> None:
    graph = long(10)
    with limited(Limits(max_events=100, max_seconds=60)) as limits:
        trace = run(graph)
    assert trace.end_s.tolist() == run(graph).end_s.tolist()
    assert limits.events == len(graph)


def test_a_simulation_of_too_many_tasks_is_not_begun() -> None:
    graph = long(5000)
    told = []
    limits = Limits(max_events=3000, tell=lambda ended, total: told.append(ended))
    with limited(limits), pytest.raises(LimitError, match=r"after 0 events: .* has 10,001 tasks"):
        run(graph)
    assert (limits.events, told) == (0, [])


def test_events_that_other_processes_use_up_meanwhile_end_a_run_where_it_is() -> None:
    graph = long(5000)
    limits = Limits(max_events=len(graph), engine="simpy")

    def others(ended: int, total: int) -> None:
        limits.events += 9000

    limits.tell = others
    with limited(limits), pytest.raises(LimitError, match=r"10,001 events .* [1-9],\d+ of 10,001 tasks"):
        run(graph)


def test_time_is_looked_at_every_few_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes with each look: before the run, and whenever rates were set 64 times."""
    clock = iter(range(10))
    monkeypatch.setattr("perfsim.base.limits.time.monotonic", lambda: next(clock))
    limits = Limits(max_seconds=2.5, started_s=0.0, engine="simpy")
    with limited(limits), pytest.raises(LimitError, match="of 401 tasks of the present"):
        run(long(200), 0.5)


def test_whoever_listens_is_told_of_tasks_ended_and_of_how_many() -> None:
    graph = long(5000)
    told = []
    with limited(Limits(tell=lambda ended, total: told.append((ended, total)), engine="simpy")):
        run(graph)
    assert len(told) >= 2
    assert told == sorted(told)
    assert told[-1] == (len(graph), len(graph))


@pytest.mark.parametrize(
    ("reported", "asked", "most", "named"),
    [
        (False, None, 21, ""),
        (True, None, 21, "simpy"),
        (True, None, 20, "fast"),
        (True, "fast", 21, "fast"),
        (False, "simpy", 20, "simpy"),
    ],
)
def test_a_step_names_its_engine_where_it_is_reported_or_asked_for(
    monkeypatch: pytest.MonkeyPatch, reported: bool, asked: Engine | None, most: int, named: str
) -> None:
    """SimPy follows up to `most` of the 21 tasks; both engines give the same times."""
    graph = long(10)
    monkeypatch.setattr(sys.modules["perfsim.engine.simulate"], "MOST_WITH_SIMPY", most)
    with limited(Limits(engine=asked)):
        trace = simulate(graph, np.ones(len(graph)), reported=reported)
    assert trace.simulated.engine == named
    assert trace.end_s.tolist() == run(graph).end_s.tolist()


def test_events_of_workers_add_up() -> None:
    limits = Limits(max_events=5)
    limits.add(3)
    limits.add(2)
    with pytest.raises(LimitError, match=r"after 5 events \(--max-events\): that many"):
        limits.add(1)


def test_a_limit_that_a_caller_swallowed_is_remembered() -> None:
    with limited(Limits(max_seconds=0.0)) as limits:
        with pytest.raises(LimitError) as stopped:
            limits.in_time(lambda: "nothing was done")
        assert limits.reached is stopped.value
