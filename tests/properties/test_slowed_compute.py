"""Computation that communication slows, against a plain simulation of every task."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.costs.price import MOST_TAKEN
from perfsim.engine import Beside, critical_path, simulate
from perfsim.engine.trace import Trace
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph

DEVICES = 2
COMPUTES = 3
COMMUNICATIONS = 2
Row = tuple[int, int, tuple[int, ...]]
"""Class of work, device, and tensors read (modulo what there is)."""

rows = st.lists(
    st.tuples(
        st.integers(0, COMPUTES + COMMUNICATIONS - 1),
        st.integers(0, DEVICES - 1),
        st.lists(st.integers(0, 99), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=25,
)
share = st.floats(0.0, 0.4)
shares = st.tuples(share, share)


def graph_of(table: list[Row]) -> TaskGraph:
    """Computations on the compute stream of a device, collectives on one of two other streams of it."""
    builder = GraphBuilder()
    works = [toys.compute(f"c{number}") for number in range(COMPUTES)]
    works += [toys.collective(f"t{number}", RankGroup(0, 8, 2)) for number in range(COMMUNICATIONS)]
    for device in range(DEVICES):
        builder.task(works[0], f"gpu{device}/compute")
    for number, (work, device, reads) in enumerate(table, start=DEVICES):
        stream = "compute" if work < COMPUTES else f"nccl{work}"
        builder.task(works[work], f"gpu{device}/{stream}", [read % number for read in reads])
    return builder.build()


def beside_of(graph: TaskGraph, taken: list[tuple[float, float]], bound: list[tuple[float, float]]) -> Beside:
    none = (0.0, 0.0)
    names = [work.name for work in graph.works]
    return Beside(
        taken=np.array([taken[int(name[1:])] if name[0] == "t" else none for name in names]),
        bound=np.array([bound[int(name[1:])] if name[0] == "c" else none for name in names]),
    )


def slow_ends(graph: TaskGraph, duration_s: np.ndarray, beside: Beside) -> list[float]:
    """End of every task, following the rate of each from event to event."""
    device = [name.split("/")[0] for name in graph.streams]
    left = duration_s.tolist()
    ends = [math.inf] * len(graph)
    waits = [set(graph.dependencies.row(task)) for task in range(len(graph))]
    now = 0.0
    while any(end == math.inf for end in ends):
        live = [t for t in range(len(graph)) if ends[t] == math.inf and all(ends[w] <= now for w in waits[t])]
        rate = {}
        for task in live:
            on = device[graph.stream[task]]
            total = sum(
                (
                    beside.taken[graph.work[other]]
                    for other in live
                    if device[graph.stream[other]] == on and left[other] > 0
                ),
                start=np.zeros(2),
            )
            part = np.minimum(total, MOST_TAKEN)
            rate[task] = 1 / (1 + float((beside.bound[graph.work[task]] * part / (1 - part)).sum()))
        step = min(left[task] / rate[task] for task in live)
        now += step
        for task in live:
            left[task] -= rate[task] * step
            if left[task] <= 1e-12:
                left[task], ends[task] = 0.0, now
    return ends


def same(left: Trace, right: Trace) -> bool:
    return (left.start_s.tobytes(), left.end_s.tobytes()) == (right.start_s.tobytes(), right.end_s.tobytes())


@given(rows, st.lists(shares, min_size=2, max_size=2), st.lists(shares, min_size=3, max_size=3), st.data())
@settings(max_examples=150)
def test_every_task_ends_when_the_plain_simulation_says(
    table: list[Row], taken: list[tuple[float, float]], bound: list[tuple[float, float]], data: st.DataObject
) -> None:
    graph = graph_of(table)
    times = st.floats(0.01, 10.0)
    durations = np.array(data.draw(st.lists(times, min_size=len(graph), max_size=len(graph))))
    beside = beside_of(graph, taken, bound)
    run = simulate(graph, durations, beside=beside)
    assert run.end_s.tolist() == pytest.approx(slow_ends(graph, durations, beside), rel=1e-5, abs=1e-5)
    for task in range(len(graph)):
        waits_for = list(graph.dependencies.row(task))
        assert run.start_s[task] == max(run.end_s[waits_for], default=0.0), "to the bit"


@given(rows, st.lists(shares, min_size=2, max_size=2), st.data())
@settings(max_examples=60)
def test_computation_that_nothing_limits_is_not_slowed(
    table: list[Row], taken: list[tuple[float, float]], data: st.DataObject
) -> None:
    graph = graph_of(table)
    times = st.floats(0.01, 10.0)
    durations = np.array(data.draw(st.lists(times, min_size=len(graph), max_size=len(graph))))
    beside = beside_of(graph, taken, [(0.0, 0.0)] * 3)
    assert same(simulate(graph, durations, beside=beside), critical_path(graph, durations))
