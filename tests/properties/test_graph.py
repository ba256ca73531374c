"""Graphs written at random: derived dependencies against a slow reading, stamping against single tasks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.testing import toys
from perfsim.work import GraphBuilder, Slots, TaskGraph

STREAMS = ("s0", "s1", "s2")

Row = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""Stream, tensors written, tensors read and tasks waited for (both taken modulo what there is)."""

handles = st.lists(st.integers(0, 200), max_size=3).map(tuple)
rows = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2), handles, handles), min_size=1, max_size=25)


def written(table: list[Row]) -> TaskGraph:
    builder = GraphBuilder()
    tensors = 0
    for number, (stream, writes, reads, after) in enumerate(table):
        builder.task(
            toys.compute(f"w{writes}", writes=writes),
            STREAMS[stream],
            [read % tensors for read in reads] if tensors else [],
            [task % number for task in after] if number else [],
        )
        tensors += writes
    return builder.build()


def slow_dependencies(graph: TaskGraph) -> list[set[int]]:
    """Straight from the definition, one task at a time."""
    writer = {tensor: task.id for task in graph.tasks() for tensor in task.writes}
    last_on: dict[str, int] = {}
    result = []
    for task in graph.tasks():
        direct = {writer[tensor] for tensor in task.reads} | set(task.after)
        before = last_on.get(task.stream)
        waits_for = {other for other in direct if graph.task(other).stream != task.stream}
        result.append(waits_for | ({before} if before is not None else set()))
        last_on[task.stream] = task.id
    return result


@given(rows)
@settings(max_examples=150)
def test_dependencies_are_those_of_a_slow_reading_and_successors_the_same_edges(table: list[Row]) -> None:
    graph = written(table)
    derived = [graph.dependencies.row(task) for task in range(len(graph))]
    assert [set(row) for row in derived] == slow_dependencies(graph)
    assert all(list(row) == sorted(set(row)) for row in derived), "each once, ascending"
    forward = {(other, task) for task, row in enumerate(derived) for other in row}
    assert forward == {(task, other) for task in range(len(graph)) for other in graph.successors.row(task)}


Recorded = list[tuple[int, int, tuple[int, ...]]]
"""Tasks of a template: stream, tensors written, and what is read modulo ports and tensors so far."""

recordings = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 2), handles.filter(bool)), min_size=1, max_size=5
)
PORTS = ("left", "right")


def choices(read: tuple[int, ...], tensors: int) -> list[int]:
    """Negative: a port; else a tensor of the template."""
    return [value % (tensors + len(PORTS)) - len(PORTS) for value in read]


@given(st.lists(recordings, min_size=1, max_size=3), st.lists(st.integers(0, 99), max_size=8))
@settings(max_examples=150)
def test_stamping_gives_the_same_columns_as_single_tasks(passages: list[Recorded], order: list[int]) -> None:
    which = [number % len(passages) for number in order]
    stamped = _stamped(passages, which)
    single = _single(passages, which)
    assert stamped.works == single.works
    assert stamped.streams == single.streams
    assert stamped.digest() == single.digest()
    assert stamped.dependencies.values.tolist() == single.dependencies.values.tolist()


def _stamped(passages: list[Recorded], which: list[int]) -> TaskGraph:
    """Slot 0 is a seed; each other slot reads the one before it (left) and the seed (right)."""
    builder = GraphBuilder()
    seed = builder.template()
    seed.output("out", seed.task(toys.compute("seed"), STREAMS[0]).tensor)
    templates = [seed]
    for passage in passages:
        template = builder.template()
        tensors = 0
        for stream, writes, read in passage:
            chosen = choices(read, tensors)
            reads = [template.port(PORTS[value]) if value < 0 else value for value in chosen]
            after = [template.port("left")]
            template.task(toys.compute(f"w{writes}", writes=writes), STREAMS[stream], reads, after)
            tensors += writes
        template.output("out", tensors - 1)
        templates.append(template)
    numbers = np.arange(len(which) + 1)
    slots = Slots(
        template=np.array([0, *(1 + number for number in which)]),
        tag=numbers,
        sources={"left": (numbers - 1, "out"), "right": (0 * numbers, "out")},
    )
    builder.stamp(templates, slots)
    return builder.build()


def _single(passages: list[Recorded], which: list[int]) -> TaskGraph:
    builder = GraphBuilder()
    recorded = builder.template()
    recorded.task(toys.compute("seed"), STREAMS[0])
    for passage in passages:  # classes and streams get their numbers when a passage is recorded
        for stream, writes, _ in passage:
            recorded.task(toys.compute(f"w{writes}", writes=writes), STREAMS[stream])
    seed = last = builder.task(toys.compute("seed"), STREAMS[0], tag=0)
    left = seed.tensor
    for slot, number in enumerate(which, start=1):
        first = left + 1
        before = last.id
        tensors = 0
        for stream, writes, read in passages[number]:
            from_outside = {-len(PORTS): left, 1 - len(PORTS): seed.tensor}
            reads = [from_outside.get(value, first + value) for value in choices(read, tensors)]
            work = toys.compute(f"w{writes}", writes=writes)
            last = builder.task(work, STREAMS[stream], reads, [before], tag=slot)
            tensors += writes
        left = first + tensors - 1
    return builder.build()
