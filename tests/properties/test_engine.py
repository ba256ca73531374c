"""Simulation and longest path: two ways to the same time, on graphs and durations at random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.engine import Beside, Flow, critical_path, simulate
from perfsim.engine.limits import Limits, limited
from perfsim.engine.trace import Trace
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph

WORKS = 3
LINKS = 2

Row = tuple[int, int, tuple[int, ...]]
"""Work class, stream, and tensors read (modulo what there is)."""

rows = st.lists(
    st.tuples(
        st.integers(0, WORKS - 1), st.integers(0, 4), st.lists(st.integers(0, 99), max_size=3).map(tuple)
    ),
    min_size=1,
    max_size=30,
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
        st.integers(1, 2),
        st.sampled_from([0.0, 0.25, 1 / 3, 1.0]),
        st.just(0.0),
    ),
    min_size=1,
)
late = st.sampled_from([0.0, 0.5, 1 / 7])
SCARCE = np.array([1.0, 1.3])


def graph_of(table: list[Row]) -> TaskGraph:
    builder = GraphBuilder()
    works = [toys.transfer(f"w{number}", RankGroup(0, 8, 2)) for number in range(WORKS)]
    for number, (work, stream, reads) in enumerate(table):
        builder.task(works[work], f"s{stream}", [read % number for read in reads] if number else [])
    return builder.build()


def drawn_durations(data: st.DataObject, count: int, values: st.SearchStrategy[float]) -> np.ndarray:
    return np.array(data.draw(st.lists(values, min_size=count, max_size=count)))


def same_bits(left: Trace, right: Trace) -> bool:
    return (left.start_s.tobytes(), left.end_s.tobytes()) == (right.start_s.tobytes(), right.end_s.tobytes())


def slow_ends(graph: TaskGraph, took_s: np.ndarray) -> list[float]:
    """Straight from the definition: a task starts when the last one that it waits for ends."""
    ends: list[float] = []
    for task in range(len(graph)):
        ready = max((ends[other] for other in graph.dependencies.row(task)), default=0.0)
        ends.append(ready + float(took_s[task]))
    return ends


@pytest.mark.parametrize("values", [whole, arbitrary, close], ids=["whole", "arbitrary", "close"])
@given(rows, st.data())
@settings(max_examples=100)
def test_without_contention_simulation_is_the_longest_path_to_the_bit(
    values: st.SearchStrategy[float], table: list[Row], data: st.DataObject
) -> None:
    graph = graph_of(table)
    durations = drawn_durations(data, len(graph), values)
    path = critical_path(graph, durations)
    assert same_bits(simulate(graph, durations), path)
    assert path.end_s.tolist() == slow_ends(graph, durations)


@given(rows, flows, st.data())
@settings(max_examples=150)
def test_contention_only_delays_and_never_breaks_the_order(
    table: list[Row], taken: dict[int, Flow], data: st.DataObject
) -> None:
    graph = graph_of(table)
    durations = drawn_durations(data, len(graph), arbitrary)
    run = simulate(graph, durations, taken, SCARCE)
    path = critical_path(graph, durations)
    rounding = 1e-12 * run.end_s.max()
    assert (run.end_s >= path.end_s - rounding).all()
    assert (run.start_s >= path.start_s - rounding).all()
    for task in range(len(graph)):
        waits_for = list(graph.dependencies.row(task))
        assert run.start_s[task] == max(run.end_s[waits_for], default=0.0)


def beside_of(data: st.DataObject) -> Beside:
    """Some works take part of their devices, the others are limited by what is taken."""
    share = st.sampled_from([0.0, 0.125, 0.5, 0.95])
    taken = np.zeros((WORKS, 2))
    bound = np.zeros((WORKS, 2))
    for work in range(WORKS):
        chosen = taken if data.draw(st.booleans()) else bound
        chosen[work] = data.draw(share), data.draw(share)
    return Beside(taken, bound)


@given(rows, flows, st.sampled_from([whole, arbitrary, close]), st.data())
@settings(max_examples=300)
def test_both_engines_give_the_same_bits_with_ties_flows_and_loads(
    table: list[Row], taken: dict[int, Flow], values: st.SearchStrategy[float], data: st.DataObject
) -> None:
    builder = GraphBuilder()
    works = [toys.transfer(f"w{number}", RankGroup(0, 1, 2)) for number in range(WORKS)]
    names = ("gpu0/compute", "gpu0/nccl", "gpu1/compute", "gpu0+gpu1/nccl", "memoryx/out")
    for number, (work, stream, reads) in enumerate(table):
        builder.task(works[work], names[stream], [read % number for read in reads] if number else [])
    graph = builder.build()
    durations = drawn_durations(data, len(graph), values)
    beside = beside_of(data)
    taken = {work: flow._replace(late_s=data.draw(late)) for work, flow in taken.items()}
    runs = []
    for engine in ("simpy", "fast"):
        with limited(Limits(engine=engine)):
            runs.append(simulate(graph, durations, taken, SCARCE, beside))
    assert same_bits(*runs)
    counts = [run.simulated._replace(engine="") for run in runs if run.simulated is not None]
    assert counts[0] == counts[1]


@given(rows, st.integers(1, 12), st.data())
@settings(max_examples=100)
def test_durations_times_a_power_of_two_scale_the_makespan_exactly(
    table: list[Row], power: int, data: st.DataObject
) -> None:
    graph = graph_of(table)
    # On the grid of the longer run, so that rounding has nothing to do in either.
    durations = drawn_durations(data, len(graph), st.integers(0, 2**20).map(lambda n: n * 2.0**-20))
    for engine in (simulate, critical_path):
        once = engine(graph, durations)
        scaled = engine(graph, durations * 2.0**power)
        assert (once.end_s * 2.0**power).tolist() == scaled.end_s.tolist()
