"""Simulation and longest path: two ways to the same time, on graphs and durations at random."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.base.limits import Limits, limited
from perfsim.costs.price import MOST_TAKEN
from perfsim.engine import Flow, Slowdown, critical_path, simulate
from perfsim.engine.trace import Trace
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph

WORKS = 3
LINKS = 2
STREAMS = ("gpu0/compute", "gpu0/nccl", "gpu1/compute", "gpu0+gpu1/nccl", "memoryx/out")

Row = tuple[int, int, tuple[int, ...]]
"""Work class, stream, and tensors read (modulo what there is)."""
Pair = tuple[float, float]

reads = st.lists(st.integers(0, 99), max_size=3).map(tuple)
rows = st.lists(
    st.tuples(st.integers(0, WORKS - 1), st.integers(0, len(STREAMS) - 1), reads), min_size=1, max_size=30
)
whole = st.integers(0, 9).map(float)
arbitrary = st.floats(0, 1e3, allow_subnormal=False)
close = st.integers(0, 6).map(lambda n: n * 2.0**-40)
"""So close to one another that sums of them are rounded."""
flows = st.dictionaries(
    st.integers(0, WORKS - 1),
    st.builds(
        Flow,
        st.lists(st.integers(0, LINKS - 1), min_size=1, max_size=2, unique=True).map(tuple),
        st.sampled_from([0.7, 1.0]),
        st.sampled_from([0.0, 0.25, 1 / 3, 1.0]),
        st.just(0.0),
    ),
    min_size=1,
)
late = st.sampled_from([0.0, 0.5, 1 / 7])
SCARCE = np.array([1.0, 1.3])


def graph_of(table: list[Row], ranks: RankGroup | None = None, streams: Sequence[str] = "abcde") -> TaskGraph:
    builder = GraphBuilder()
    works = [toys.transfer(f"w{number}", ranks or RankGroup(0, 8, 2)) for number in range(WORKS)]
    for number, (work, stream, read) in enumerate(table):
        builder.task(works[work], streams[stream], [tensor % number for tensor in read] if number else [])
    return builder.build()


def drawn_durations(data: st.DataObject, graph: TaskGraph, values: st.SearchStrategy[float]) -> np.ndarray:
    return np.array(data.draw(st.lists(values, min_size=len(graph), max_size=len(graph))))


def same_bits(left: Trace, right: Trace) -> bool:
    return (left.start_s.tobytes(), left.end_s.tobytes()) == (right.start_s.tobytes(), right.end_s.tobytes())


def starts_when_all_is_there(run: Trace) -> bool:
    """Straight from the definition: a task starts when the last one that it waits for ends, to the bit."""
    waits_for = [list(run.graph.dependencies.row(task)) for task in range(len(run.graph))]
    return run.start_s.tolist() == [max(run.end_s[others], default=0.0) for others in waits_for]


@pytest.mark.parametrize("values", [whole, arbitrary, close], ids=["whole", "arbitrary", "close"])
@given(rows, st.data())
@settings(max_examples=100)
def test_without_contention_simulation_is_the_longest_path_to_the_bit(
    values: st.SearchStrategy[float], table: list[Row], data: st.DataObject
) -> None:
    graph = graph_of(table)
    durations = drawn_durations(data, graph, values)
    path = critical_path(graph, durations)
    assert same_bits(simulate(graph, durations), path)
    assert starts_when_all_is_there(path)
    assert path.end_s.tolist() == (path.start_s + durations).tolist()


@given(rows, flows, st.data())
@settings(max_examples=150)
def test_contention_delays_in_order(table: list[Row], taken: dict[int, Flow], data: st.DataObject) -> None:
    graph = graph_of(table)
    durations = drawn_durations(data, graph, arbitrary)
    run = simulate(graph, durations, taken, SCARCE)
    path = critical_path(graph, durations)
    rounding = 1e-12 * run.end_s.max()
    assert (run.end_s >= path.end_s - rounding).all()
    assert (run.start_s >= path.start_s - rounding).all()
    assert starts_when_all_is_there(run)


def beside_of(data: st.DataObject) -> Slowdown:
    """Some works take part of their devices, the others are limited by what is taken."""
    share = st.sampled_from([0.0, 0.125, 0.5, 0.95])
    taken = np.zeros((WORKS, 2))
    bound = np.zeros((WORKS, 2))
    for work in range(WORKS):
        chosen = taken if data.draw(st.booleans()) else bound
        chosen[work] = data.draw(share), data.draw(share)
    return Slowdown(taken, bound)


@given(rows, flows, st.sampled_from([whole, arbitrary, close]), st.data())
@settings(max_examples=300)
def test_both_engines_give_the_same_bits_with_ties_flows_and_loads(
    table: list[Row], taken: dict[int, Flow], values: st.SearchStrategy[float], data: st.DataObject
) -> None:
    graph = graph_of(table, RankGroup(0, 1, 2), STREAMS)
    durations = drawn_durations(data, graph, values)
    beside = beside_of(data)
    taken = {work: flow._replace(late_s=data.draw(late)) for work, flow in taken.items()}
    runs = []
    for engine in ("simpy", "fast"):
        with limited(Limits(engine=engine)):
            runs.append(simulate(graph, durations, taken, SCARCE, beside))
    assert same_bits(*runs)
    counts = [replace(run.simulated, engine="") for run in runs if run.simulated is not None]
    assert counts[0] == counts[1]
    assert np.array_equal(runs[0].waited_for, runs[1].waited_for)


@given(rows, flows, st.sampled_from([whole, arbitrary, close]), st.data())
@settings(max_examples=150)
def test_every_wait_of_a_stream_is_ended_by_a_task_of_another_stream_that_it_needs(
    table: list[Row], taken: dict[int, Flow], values: st.SearchStrategy[float], data: st.DataObject
) -> None:
    graph = graph_of(table, RankGroup(0, 1, 2), STREAMS)
    trace = simulate(graph, drawn_durations(data, graph, values), taken, SCARCE, beside_of(data)).scaled(1.1)
    for task, before in enumerate(trace.waited_for.tolist()):
        earlier = np.flatnonzero(graph.stream[:task] == graph.stream[task])
        free_s = max([0.0, *trace.end_s[earlier]])
        assert (before >= 0) == (trace.start_s[task] > free_s)
        if before >= 0:
            assert before in graph.dependencies.row(task)
            assert graph.stream[before] != graph.stream[task]
            assert trace.end_s[before] == trace.start_s[task]


DEVICES = 2
COMPUTES = 3
COMMUNICATIONS = 2
shares = st.tuples(*[st.floats(0.0, 1.0)] * 2)
slowed_rows = st.lists(
    st.tuples(
        st.integers(0, COMPUTES + COMMUNICATIONS - 1),
        st.integers(0, DEVICES - 1),
        st.lists(st.integers(0, 99), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=25,
)


def slowed_graph(table: list[Row]) -> TaskGraph:
    """Computations on the compute stream of a device, collectives on one of two other streams of it."""
    builder = GraphBuilder()
    works = [toys.compute(f"c{number}") for number in range(COMPUTES)]
    works += [toys.collective(f"t{number}", RankGroup(0, 8, 2)) for number in range(COMMUNICATIONS)]
    for device in range(DEVICES):
        builder.task(works[0], f"gpu{device}/compute")
    for number, (work, device, read) in enumerate(table, start=DEVICES):
        stream = "compute" if work < COMPUTES else f"nccl{work}"
        builder.task(works[work], f"gpu{device}/{stream}", [tensor % number for tensor in read])
    return builder.build()


def slow_ends(graph: TaskGraph, duration_s: np.ndarray, beside: Slowdown) -> list[float]:
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
            beside_it = [t for t in live if device[graph.stream[t]] == on and left[t] > 0]
            part = np.minimum(beside.taken[graph.work[beside_it]].sum(axis=0), MOST_TAKEN)
            rate[task] = 1 / (1 + float((beside.bound[graph.work[task]] * part / (1 - part)).sum()))
        step = min(left[task] / rate[task] for task in live)
        now += step
        for task in live:
            left[task] -= rate[task] * step
            if left[task] <= 1e-12:
                left[task], ends[task] = 0.0, now
    return ends


@given(
    slowed_rows,
    st.lists(shares, min_size=COMMUNICATIONS, max_size=COMMUNICATIONS),
    st.lists(shares, min_size=COMPUTES, max_size=COMPUTES),
    st.data(),
)
@settings(max_examples=150)
def test_every_task_ends_when_the_plain_simulation_says(
    table: list[Row], taken: list[Pair], bound: list[Pair], data: st.DataObject
) -> None:
    graph = slowed_graph(table)
    durations = drawn_durations(data, graph, st.floats(0.01, 10.0))
    none = (0.0, 0.0)
    names = [work.name for work in graph.works]
    beside = Slowdown(
        taken=np.array([taken[int(name[1:])] if name[0] == "t" else none for name in names]),
        bound=np.array([bound[int(name[1:])] if name[0] == "c" else none for name in names]),
    )
    run = simulate(graph, durations, slowdown=beside)
    assert run.end_s.tolist() == pytest.approx(slow_ends(graph, durations, beside), rel=1e-5, abs=1e-5)
    assert starts_when_all_is_there(run)
    unlimited = beside._replace(bound=np.zeros_like(beside.bound))
    assert same_bits(simulate(graph, durations, slowdown=unlimited), critical_path(graph, durations))
