"""Writing a graph: single tasks, recorded passages, what a graph derives from them, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from perfsim.base.errors import GraphError
from perfsim.testing import toys
from perfsim.work import GraphBuilder, Kind, RankGroup, Slots, TaskGraph, TensorClass, Work
from perfsim.work.kernels import elementwise, gemm

KERNELS = (gemm("a", 4, 5, 6), elementwise("b", 100.0, launches=3))
WORK = Work("w", Kind.COMP, "op", "forward", kernels=KERNELS, writes=(TensorClass("t", 1.0),))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "v"},
        {"kind": Kind.MEM_LOAD},
        {"op": "other"},
        {"category": "backward"},
        {"kernels": ()},
        {"comm_bytes": 2.0},
        {"group": RankGroup(0, 1, 2)},
        {"writes": ()},
    ],
)
def test_equal_works_share_one_class_and_every_field_tells_them_apart(changes: dict[str, object]) -> None:
    builder = GraphBuilder()
    for work in (WORK, replace(WORK), replace(WORK, **changes)):
        builder.task(work, "s")
    assert builder.build().work.tolist() == [0, 0, 1]


def test_the_last_step_ends_with_the_graph_even_if_nobody_said_so() -> None:
    builder = GraphBuilder()
    builder.task(toys.compute("a"), "s")
    builder.end_step()
    builder.task(toys.compute("b"), "s")
    assert builder.build().step_ends == (1, 2)


def test_flop_counts_every_task_for_all_the_ranks_it_stands_for() -> None:
    work = Work("a", Kind.COMP, "a", "forward", kernels=(gemm("g", 2, 3, 4),))
    builder = GraphBuilder()
    builder.fold(5)
    for stream in ("gpu0/compute", "gpu5/compute", "memoryx/update"):
        builder.task(work, stream)
    assert builder.build().flop == (2 * 5 + 1) * 48.0


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ([], "no task"),
        ([[1], []], "w0 waits for a task added after it"),
        ([[], [7]], "w1 on gpu0/compute reads a tensor that nothing writes"),
        ([[], [-1]], "w1 on gpu0/compute reads a tensor that nothing writes"),
    ],
)
def test_a_graph_that_cannot_run_is_refused_by_name(reads: list[list[int]], message: str) -> None:
    builder = GraphBuilder()
    for number, read in enumerate(reads):
        builder.task(toys.compute(f"w{number}"), f"gpu{1 - number}/compute", read)
    with pytest.raises(GraphError, match=message):
        _ = builder.build().dependencies


def chain(*, stream: str = "s", extra: str = "b", steps: int = 1) -> TaskGraph:
    builder = GraphBuilder()
    tensor = builder.task(toys.compute("a"), stream).tensor
    if steps > 1:
        builder.end_step()
    builder.task(toys.compute(extra), stream, [tensor])
    return builder.build()


def test_work_and_steps_are_part_of_the_digest_and_names_of_streams_are_not() -> None:
    assert chain().digest() == chain().digest() == chain(stream="other").digest()
    assert len({chain().digest(), chain(extra="c").digest(), chain(steps=2).digest()}) == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "port 'moved' has no source"),
        ((np.array([-1]), "moved"), "port 'moved' is read by a slot that has no source"),
        ((np.array([0]), "activation"), "port 'moved' reads output 'activation'"),
    ],
)
def test_a_port_without_its_tensor_is_named(source: tuple[np.ndarray, str] | None, message: str) -> None:
    """One task that reads what the forward left, and starts after the input's writer."""
    builder = GraphBuilder()
    template = builder.template()
    reads = [template.port(name) for name in ("moved", "kept", "moved")]
    done = template.task(toys.compute("back"), "gpu/compute", reads, [template.port("entry")])
    template.output("gradient", done.tensor)
    zero = np.zeros(1, dtype=np.int64)
    sources = {} if source is None else dict.fromkeys(("moved", "kept", "entry"), source)
    with pytest.raises(GraphError, match=message):
        builder.stamp([template], Slots(zero, zero, sources))


def test_joined_slots_run_in_turns_that_a_category_ends_and_keep_what_each_task_reads() -> None:
    builder = GraphBuilder()
    sends = replace(WORK, name="send", category="sent", kernels=())
    templates = [builder.template() for _ in "ab"]
    for name, template in zip("ab", templates, strict=True):
        tensor = template.port("before")
        for work in (replace(WORK, name=name), sends, replace(WORK, name=f"{name} end")):
            tensor = template.task(work, "gpu0/compute", [tensor]).tensor
        template.output("after", tensor)
    builder.task(replace(WORK, name="first"), "gpu0/compute")
    begin = builder.template()
    begin.output("after", begin.task(WORK, "gpu0/compute").tensor)
    numbers = np.arange(3)
    slots = Slots(numbers, numbers, {"before": (np.array([-1, 0, 0]), "after")})
    stamped = builder.stamp([begin, *templates], slots, [1], "sent")
    graph = builder.build()
    names = [task.work.name for task in graph.tasks()]
    assert names == ["first", "w", "b", "send", "a", "send", "b end", "a end"]
    assert [task.reads for task in graph.tasks()] == [(), (), (1,), (2,), (1,), (4,), (3,), (5,)]
    assert [stamped.tensor(slot, "after") for slot in range(3)] == [1, 7, 6]
