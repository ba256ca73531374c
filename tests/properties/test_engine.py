"""Simulation and longest path: two ways to the same time, on graphs and durations at random."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.engine import critical_path, simulate
from perfsim.engine.calendar import FINEST_EXPONENT, grid_exponent
from perfsim.engine.fairshare import Flow
from perfsim.engine.trace import Trace
from perfsim.work import GraphBuilder, RankGroup, TaskGraph

INVOLVED = sys.modules["perfsim.engine.involved"]
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
close = st.integers(0, 6).map(lambda n: n * 2.0**FINEST_EXPONENT)
"""A step or two of the finest grid apart."""
flows = st.dictionaries(
    st.integers(0, WORKS - 1),
    st.builds(
        Flow,
        st.lists(st.integers(0, LINKS - 1), min_size=1, max_size=2, unique=True).map(tuple),
        st.sampled_from([0.7, 1.0]),
        st.integers(1, 2),
    ),
    min_size=1,
)
SCARCE = np.array([1.0, 1.3])
AMPLE = np.array([1e3, 1e3])


def graph_of(toys: ModuleType, table: list[Row]) -> TaskGraph:
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
    toys: ModuleType, values: st.SearchStrategy[float], table: list[Row], data: st.DataObject
) -> None:
    graph = graph_of(toys, table)
    durations = drawn_durations(data, len(graph), values)
    path = critical_path(graph, durations)
    assert same_bits(simulate(graph, durations), path)
    assert path.end_s.tolist() == slow_ends(graph, path.end_s - path.start_s)


@given(rows, flows, st.data())
@settings(max_examples=100)
def test_flows_that_nothing_slows_change_no_bit(
    toys: ModuleType, table: list[Row], taken: dict[int, Flow], data: st.DataObject
) -> None:
    graph = graph_of(toys, table)
    durations = drawn_durations(data, len(graph), arbitrary)
    path = critical_path(graph, durations)
    assert same_bits(simulate(graph, durations, taken, AMPLE), path)


@given(rows, flows, st.data())
@settings(max_examples=150)
def test_contention_only_delays_and_never_breaks_the_order(
    toys: ModuleType, table: list[Row], taken: dict[int, Flow], data: st.DataObject
) -> None:
    graph = graph_of(toys, table)
    durations = drawn_durations(data, len(graph), arbitrary)
    run = simulate(graph, durations, taken, SCARCE)
    path = critical_path(graph, durations)
    step = 2.0 ** grid_exponent(run.makespan_s)
    rounding = step * len(graph)  # a longer run may round its durations to a coarser grid
    assert (run.end_s >= path.end_s - rounding).all()
    assert (run.start_s >= path.start_s - rounding).all()
    assert (run.end_s % step == 0).all(), "slowed flows end on the grid as well, so that sums stay exact"
    for task in range(len(graph)):
        waits_for = list(graph.dependencies.row(task))
        assert run.start_s[task] == max(run.end_s[waits_for], default=0.0)


@given(rows, flows, st.data())
@settings(max_examples=100)
def test_leaving_out_the_flows_that_nothing_slows_changes_nothing_but_rounding(
    toys: ModuleType, table: list[Row], taken: dict[int, Flow], data: st.DataObject
) -> None:
    graph = graph_of(toys, table)
    durations = drawn_durations(data, len(graph), data.draw(st.sampled_from([whole, arbitrary])))
    runs = []
    for few, most in ((-1.0, 0.0), (np.inf, np.inf)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(INVOLVED, "FEW_CONTENDING", few)
            patch.setattr(INVOLVED, "MOST_CONTENDING", most)
            runs.append(simulate(graph, durations, taken, SCARCE))
    rounding = 2.0 ** grid_exponent(runs[0].makespan_s) * 4 * len(graph)
    np.testing.assert_allclose(runs[1].end_s, runs[0].end_s, rtol=0, atol=rounding)
    every, some = (run.simulated for run in runs)
    assert every is not None
    assert some is not None
    assert some.flows <= every.flows
    assert some.contended_s == pytest.approx(every.contended_s, rel=1e-9, abs=rounding)


@given(rows, flows, st.data())
@settings(max_examples=50)
def test_the_same_run_gives_the_same_bits_again(
    toys: ModuleType, table: list[Row], taken: dict[int, Flow], data: st.DataObject
) -> None:
    graph = graph_of(toys, table)
    durations = drawn_durations(data, len(graph), arbitrary)
    assert same_bits(*(simulate(graph, durations, taken, SCARCE) for _ in range(2)))


@given(rows, st.integers(1, 12), st.data())
@settings(max_examples=100)
def test_durations_times_a_power_of_two_scale_the_makespan_exactly(
    toys: ModuleType, table: list[Row], power: int, data: st.DataObject
) -> None:
    graph = graph_of(toys, table)
    # On the grid of the longer run, so that rounding has nothing to do in either.
    durations = drawn_durations(data, len(graph), st.integers(0, 2**20).map(lambda n: n * 2.0**-20))
    for engine in (simulate, critical_path):
        once = engine(graph, durations)
        scaled = engine(graph, durations * 2.0**power)
        assert (once.end_s * 2.0**power).tolist() == scaled.end_s.tolist()


def longest_chain(trace: Trace) -> list[int]:
    """The tasks that determine the makespan, first to last; ties go to the lowest id."""
    chain = [int(np.argmax(trace.end_s))]
    while True:
        waits_for = np.array(trace.graph.dependencies.row(chain[-1]), dtype=int)
        binding = waits_for[trace.end_s[waits_for] == trace.start_s[chain[-1]]]
        if not len(binding):
            return chain[::-1]
        chain.append(int(binding[0]))


@given(rows, st.data())
@settings(max_examples=100)
def test_the_longest_chain_adds_up_to_the_makespan_and_no_stream_is_busier(
    toys: ModuleType, table: list[Row], data: st.DataObject
) -> None:
    graph = graph_of(toys, table)
    trace = critical_path(graph, drawn_durations(data, len(graph), arbitrary))
    took_s = trace.end_s - trace.start_s
    chain = longest_chain(trace)
    assert sum(took_s[chain].tolist()) == trace.makespan_s
    assert all(chain[n] in graph.dependencies.row(chain[n + 1]) for n in range(len(chain) - 1))
    for stream in range(len(graph.streams)):
        assert sum(took_s[graph.stream == stream].tolist()) <= trace.makespan_s


@given(rows, st.data())
@settings(max_examples=60)
def test_rounding_to_the_grid_is_invisible(toys: ModuleType, table: list[Row], data: st.DataObject) -> None:
    graph = graph_of(toys, table)
    durations = drawn_durations(data, len(graph), arbitrary)
    step = 2.0 ** grid_exponent(critical_path(graph, durations).makespan_s)
    took_s = np.diff([critical_path(graph, durations).start_s, critical_path(graph, durations).end_s], axis=0)
    assert np.abs(took_s[0] - durations).max() <= step / 2


@given(rows, flows, st.data())
@settings(max_examples=60)
def test_breakdowns_add_up_to_the_step(
    toys: ModuleType, table: list[Row], taken: dict[int, Flow], data: st.DataObject
) -> None:
    builder = GraphBuilder()
    works = [
        toys.transfer(f"w{number}", RankGroup(0, 8, 2), category=f"c{number}") for number in range(WORKS)
    ]
    names = ("gpu0/compute", "gpu0/nccl", "gpu1/compute", "gpu1/send", "memoryx/out")
    builder.task(toys.compute("start"), names[0])
    for number, (work, stream, reads) in enumerate(table, start=1):
        builder.task(works[work], names[stream], [read % number for read in reads])
        if number == len(table) // 2:
            builder.end_step()
    builder.task(toys.compute("end"), names[0], range(1 + len(table)))  # no step ends before the one before
    graph = builder.build()
    durations = drawn_durations(data, len(graph), arbitrary)
    shifted = {number + 1: flow for number, flow in taken.items()}
    trace = simulate(graph, durations, shifted, SCARCE)
    for seconds in trace.device_breakdowns().values():
        assert min(seconds.values()) >= 0
        assert sum(seconds.values()) == pytest.approx(trace.step_time_s, rel=1e-9, abs=1e-9)
