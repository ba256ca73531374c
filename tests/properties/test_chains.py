"""Chains of tasks: what a chain promises, whole or cut around tasks of unknown duration."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.engine import critical_path
from perfsim.work import GraphBuilder, TaskGraph
from perfsim.work.graph import Chains

Row = tuple[int, list[int], list[int]]
"""Stream, tensors read and tasks waited for (modulo what there is)."""

numbers = st.lists(st.integers(0, 99), max_size=5)
rows = st.lists(st.tuples(st.integers(0, 5), numbers, st.lists(st.integers(0, 99), max_size=2)), min_size=1)


def graph_of(toys: ModuleType, table: list[Row]) -> TaskGraph:
    builder = GraphBuilder()
    work = toys.compute("w")
    for number, (stream, reads, after) in enumerate(table):
        known = max(number, 1)
        builder.task(
            work,
            f"s{stream}",
            [read % known for read in reads if number],
            [task % known for task in after if number],
        )
    return builder.build()


def check(graph: TaskGraph, chains: Chains) -> None:
    """Chains hold every task once, heads ascend, and each head waits for all its dependencies."""
    assert sorted(chains.order.tolist()) == list(range(len(graph)))
    members = [chains.order[a:b].tolist() for a, b in pairwise(chains.first.tolist())]
    assert [head for head, *_ in members] == sorted(head for head, *_ in members)
    assert len(members) == len(chains)
    for number, tasks in enumerate(members):
        assert tasks == sorted(tasks)
        assert (chains.chain[tasks] == number).all()
        waited = chains.waits_for.row(number)
        needed = set(graph.dependencies.row(tasks[0]))
        assert list(waited) == sorted(set(waited))
        assert needed <= set(waited)
        for implied in set(waited) - needed:
            assert graph.stream[implied] == graph.stream[tasks[0]]
            assert implied < tasks[0]


@given(rows, st.data())
@settings(max_examples=150)
def test_every_task_of_a_chain_starts_when_the_one_before_it_ends(
    toys: ModuleType, table: list[Row], data: st.DataObject
) -> None:
    graph = graph_of(toys, table)
    check(graph, graph.chains)
    duration_s = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(graph), max_size=len(graph))))
    trace = critical_path(graph, duration_s.astype(np.float64))
    order = graph.chains.order
    begins = np.isin(np.arange(len(graph)), graph.chains.first)
    assert (trace.start_s[order[1:]] == trace.end_s[order[:-1]])[~begins[1:]].all()
    for task in range(len(graph)):
        ends = trace.end_s[list(graph.dependencies.row(task))]
        assert trace.start_s[task] == ends.max(initial=0.0)


@given(rows, st.data())
@settings(max_examples=150)
def test_chains_around_tasks_are_the_whole_chains_cut_at_these_tasks(
    toys: ModuleType, table: list[Row], data: st.DataObject
) -> None:
    graph = graph_of(toys, table)
    apart = np.array(data.draw(st.lists(st.booleans(), min_size=len(graph), max_size=len(graph))))
    chains = graph.chains_around(apart)
    check(graph, chains)
    parts = {tuple(chains.order[a:b].tolist()) for a, b in pairwise(chains.first.tolist())}
    expected: set[tuple[int, ...]] = set()
    for a, b in pairwise(graph.chains.first.tolist()):
        part: list[int] = []
        for task in graph.chains.order[a:b].tolist():
            if part and (apart[task] or apart[part[-1]]):
                expected.add(tuple(part))
                part = []
            part.append(task)
        expected.add(tuple(part))
    assert parts == expected
