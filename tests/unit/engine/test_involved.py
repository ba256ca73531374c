"""Tasks that a run shows to matter although the longest path does not."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

from perfsim.engine import critical_path, simulate
from perfsim.engine.fairshare import Flow
from perfsim.engine.involved import FlowsOnLinks, Involved
from perfsim.engine.slowdown import Beside
from perfsim.work import GraphBuilder, RankGroup, TaskGraph

NAMES = ("send", "other", "gather", "wait", "late")
SECONDS = np.array([4.0, 4.0, 3.0, 10.0, 8.0])
CAPACITIES = np.array([1.0])


@pytest.fixture
def graph(toys: ModuleType) -> TaskGraph:
    """A gather from 4 s to 7 s, before a computation from 10 s on, unless two sends share their link."""
    builder = GraphBuilder()
    sent = builder.task(toys.transfer("send", RankGroup(1, 8, 2)), "gpu1/nic").tensor
    builder.task(toys.transfer("other", RankGroup(2, 8, 2)), "gpu2/nic")
    builder.task(toys.collective("gather", RankGroup(0, 8, 2)), "gpu0/nccl", [sent])
    waited = builder.task(toys.compute("wait"), "gpu3/compute").tensor
    builder.task(toys.compute("late"), "gpu0/compute", [waited])
    return builder.build()


def sides(graph: TaskGraph) -> tuple[FlowsOnLinks, Beside]:
    number = {work.name: place for place, work in enumerate(graph.works)}
    flows = {number[name]: Flow((0,), 1.0) for name in ("send", "other")}
    taken, bound = np.zeros((2, len(number), 2))
    taken[number["gather"], 0], bound[number["late"], 0] = 0.5, 1.0
    return FlowsOnLinks(flows, CAPACITIES), Beside(taken, bound)


def test_a_communication_that_contention_delays_into_a_computation_slows_it(graph: TaskGraph) -> None:
    (flows, _), beside = sides(graph)
    run = simulate(graph, SECONDS, flows, CAPACITIES, beside)
    assert run.end_s.tolist()[:4] == [8.0, 8.0, 11.0, 10.0]
    assert run.end_s[4] == pytest.approx(18.5), "one second at half the rate"
    apart = simulate(graph, SECONDS, flows, 2 * CAPACITIES, beside)
    assert apart.end_s.tolist() == critical_path(graph, SECONDS).end_s.tolist()


def test_a_run_that_shows_no_others_is_not_repeated(graph: TaskGraph) -> None:
    links, beside = sides(graph)
    run = simulate(graph, SECONDS, *links, beside)
    expected = Involved.expected(graph, links, beside, critical_path(graph, SECONDS))
    assert not expected.aside.any()
    more = expected.with_those_of(graph, links, beside, run, 0)
    assert more is not None
    assert [NAMES[task] for task in np.flatnonzero(more.aside | more.slowed)] == ["gather", "late"]
    assert more.with_those_of(graph, links, beside, run, 0) is None


ROWS = (
    ("c0", 0, (), 1.0),
    ("c0", 1, (), 8.0),
    ("t0", 0, (0,), 2.0),
    ("t1", 1, (1, 2), 2.0),
    ("c1", 0, (0, 3), 5.0),
    ("t1", 1, (0, 3), 4.0),
    ("t0", 1, (0,), 2.0),
    ("t0", 0, (2,), 5.0),
    ("t1", 0, (), 5.0),
    ("c0", 0, (2, 4), 5.0),
)
"""Work, device, tensors read and seconds.

A communication that contends only in the second run stands in a chain with a computation that others slow.
"""


def test_a_communication_in_a_slowed_chain_may_be_followed_in_a_repeated_run(
    toys: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = GraphBuilder()
    for name, device, reads, _ in ROWS:
        work = toys.compute(name) if name[0] == "c" else toys.transfer(name, RankGroup(0, 8, 2))
        stream = "compute" if name[0] == "c" else name
        builder.task(work, f"gpu{device}/{stream}", list(reads))
    graph = builder.build()
    seconds = np.array([row[-1] for row in ROWS])
    sends = np.array([work.name[0] == "t" for work in graph.works])[:, None]
    beside = Beside(np.where(sends, (0.4, 0.3), 0.0), np.where(sends, 0.0, (0.5, 0.4)))
    flows = {number: Flow((0,), 1.0) for number in np.flatnonzero(sends).tolist()}
    ends = []
    for few, most in ((np.inf, np.inf), (-1.0, 0.0)):
        monkeypatch.setattr(import_module("perfsim.engine.involved"), "FEW_CONTENDING", few)
        monkeypatch.setattr(import_module("perfsim.engine.involved"), "MOST_CONTENDING", most)
        ends.append(simulate(graph, seconds, flows, np.array([1.2]), beside=beside).end_s.tolist())
    assert ends[0] == pytest.approx(ends[1]), "as if all flows had been followed from the start"
