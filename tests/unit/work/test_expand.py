"""Tasks replaced by chains: the same dependencies, tensors and times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.base.errors import GraphError
from perfsim.engine import critical_path
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph, Work
from perfsim.work.unfold import expand

Row = tuple[int, int, tuple[int, ...]]
rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.lists(st.integers(0, 99), max_size=3).map(tuple)),
    min_size=1,
    max_size=25,
)


def works() -> list[Work]:
    return [toys.transfer(f"w{number}", RankGroup(0, 8, 2)) for number in range(3)]


def graph_of(table: list[Row]) -> TaskGraph:
    builder = GraphBuilder()
    kinds = works()
    for number, (work, stream, reads) in enumerate(table):
        after = [reads[0] % number] if reads and number and number % 3 == 0 else []
        builder.task(kinds[work], f"s{stream}", [read % number for read in reads] if number else [], after)
        if number == len(table) // 2:
            builder.end_step()
    return builder.build()


def chain(work: Work, length: int) -> list[Work]:
    step = toy_step(work)
    return [*[step] * (length - 1), work]


def toy_step(work: Work) -> Work:
    return Work(f"{work.name}.step", work.kind, work.op, work.category, group=work.group)


@given(rows, st.integers(1, 4), st.integers(1, 4))
def test_chains_end_when_their_task_ended(table: list[Row], first: int, second: int) -> None:
    graph = graph_of(table)
    lengths = {"w0": first, "w1": second}
    chains = {
        number: chain(work, lengths[work.name])
        for number, work in enumerate(graph.works)
        if work.name in lengths
    }
    longer = expand(graph, chains)
    count = np.array([lengths.get(work.name, 1) for work in graph.works])
    assert len(longer) == count[graph.work].sum()
    assert longer.num_tensors == graph.num_tensors
    whole = 12.0 * (1 + np.arange(len(graph)) % 5)
    equal_parts = np.repeat(whole / count[graph.work], count[graph.work])
    last = np.cumsum(count[graph.work]) - 1
    run = critical_path(longer, equal_parts)
    expected = critical_path(graph, whole)
    assert run.end_s[last].tolist() == expected.end_s.tolist()
    assert run.step_end_s == expected.step_end_s


def test_only_the_last_of_a_chain_writes_and_only_the_first_waits() -> None:
    graph = graph_of([(0, 0, ()), (1, 1, (0,)), (2, 0, (1,))])
    longer = expand(graph, {1: chain(graph.works[1], 3)})
    assert [task.name for task in longer.tasks()] == ["w0", "w1.step", "w1.step", "w1", "w2"]
    assert [len(task.writes) for task in longer.tasks()] == [1, 0, 0, 1, 1]
    assert [task.reads for task in longer.tasks()] == [(), (0,), (), (), (1,)]


def test_a_chain_must_write_what_its_task_wrote() -> None:
    graph = graph_of([(0, 0, ())])
    for bad in ([], [toy_step(graph.works[0])]):
        with pytest.raises(GraphError, match="must end in work that writes the same"):
            expand(graph, {0: bad})
