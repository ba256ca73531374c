"""Writing a graph: single tasks, recorded passages, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.base.errors import GraphError
from perfsim.testing import toys
from perfsim.work import GraphBuilder, Slots, Template


def test_handles_count_tasks_and_tensors_from_the_first_one() -> None:
    builder = GraphBuilder()
    first = builder.task(toys.compute("a", writes=2), "gpu0/compute")
    second = builder.task(toys.compute("b"), "gpu0/compute", [first.tensor, first.tensor + 1])
    assert (first.id, first.tensor, second.id, second.tensor) == (0, 0, 1, 2)
    task = builder.build().task(1)
    assert (task.reads, task.writes, task.stream) == ((0, 1), (2,), "gpu0/compute")


def test_equal_works_share_one_class() -> None:
    builder = GraphBuilder()
    for _ in range(3):
        builder.task(toys.compute("a"), "s")
    builder.task(toys.compute("a", category="backward"), "s")
    graph = builder.build()
    assert graph.work.tolist() == [0, 0, 0, 1]


def test_a_graph_without_tasks_is_refused() -> None:
    with pytest.raises(GraphError, match="no task"):
        GraphBuilder().build()


def test_the_last_step_ends_with_the_graph_even_if_nobody_said_so() -> None:
    builder = GraphBuilder()
    builder.task(toys.compute("a"), "s")
    builder.end_step()
    builder.task(toys.compute("b"), "s")
    assert builder.build().step_ends == (1, 2)


# ---------------------------------------------------------------------------------- templates
def backward(builder: GraphBuilder) -> Template:
    """One task that reads what the forward left, and starts after the input's writer."""
    template = builder.template()
    reads = [template.port("moved"), template.port("kept"), template.port("moved")]
    done = template.task(toys.compute("back"), "gpu/compute", reads, [template.port("entry")])
    template.output("gradient", done.tensor)
    return template


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "port 'moved' has no source"),
        ((np.array([-1]), "moved"), "port 'moved' is read by a slot that has no source"),
        ((np.array([0]), "activation"), "port 'moved' reads output 'activation'"),
    ],
)
def test_a_port_whose_tensor_is_not_there_is_named(
    source: tuple[np.ndarray, str] | None, message: str
) -> None:
    builder = GraphBuilder()
    template = backward(builder)
    zero = np.zeros(1, dtype=np.int64)
    sources = {} if source is None else dict.fromkeys(("moved", "kept", "entry"), source)
    with pytest.raises(GraphError, match=message):
        builder.stamp([template], Slots(zero, zero, sources))


def test_block_and_tag_are_said_by_name() -> None:
    """The two kinds of `task` once took different things in the fifth place."""
    for target in (GraphBuilder(), GraphBuilder().template()):
        with pytest.raises(TypeError, match="positional"):
            target.task(toys.compute("forward"), "gpu/compute", (), (), 3)
