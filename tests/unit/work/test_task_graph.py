"""What a graph derives from its columns: dependencies, successors, FLOPs, digest."""

from __future__ import annotations

import pytest

from perfsim.base.errors import GraphError
from perfsim.testing import toys
from perfsim.work import GraphBuilder, Kind, TaskGraph, Work
from perfsim.work.kernels import gemm


def test_waiting_for_a_later_task_is_refused_by_name() -> None:
    builder = GraphBuilder()
    builder.task(toys.compute("early"), "s0", [1])
    builder.task(toys.compute("late"), "s1")
    with pytest.raises(GraphError, match="early waits for a task added after it"):
        _ = builder.build().dependencies


@pytest.mark.parametrize("handle", [7, -1])
def test_reading_a_tensor_that_nothing_writes_is_refused_by_name(handle: int) -> None:
    builder = GraphBuilder()
    builder.task(toys.compute("a"), "s0")
    builder.task(toys.compute("lost"), "gpu0/compute", [handle])
    with pytest.raises(GraphError, match="lost on gpu0/compute reads a tensor that nothing writes"):
        _ = builder.build().dependencies


def test_the_name_of_a_task_carries_its_micro_batch() -> None:
    builder = GraphBuilder()
    builder.task(toys.compute("forward"), "s", tag=3)
    builder.task(toys.compute("optimizer"), "s")
    assert [task.name for task in builder.build().tasks()] == ["forward[3]", "optimizer"]


def test_flop_counts_every_task_for_all_the_ranks_it_stands_for() -> None:
    work = Work("a", Kind.COMP, "a", "forward", kernels=(gemm("g", 2, 3, 4),))
    builder = GraphBuilder()
    builder.fold(5)
    builder.task(work, "gpu0/compute")
    builder.task(work, "gpu5/compute")
    builder.task(work, "memoryx/update")
    assert builder.build().flop == (2 * 5 + 1) * 48.0


# ------------------------------------------------------------------------------------- digest
def chain(*, stream: str = "s", extra: str = "b", steps: int = 1) -> TaskGraph:
    builder = GraphBuilder()
    tensor = builder.task(toys.compute("a"), stream).tensor
    if steps > 1:
        builder.end_step()
    builder.task(toys.compute(extra), stream, [tensor])
    return builder.build()


def test_equal_graphs_have_equal_digests_whatever_their_streams_are_called() -> None:
    assert chain().digest() == chain().digest() == chain(stream="other").digest()


def test_work_and_steps_are_part_of_the_digest() -> None:
    digests = {chain().digest(), chain(extra="c").digest(), chain(steps=2).digest()}
    assert len(digests) == 3
