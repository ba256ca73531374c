"""Graphs written out: which peers are alike, what an unfolded graph holds, and tasks replaced by chains."""

from typing import Any

import numpy as np
import pytest

from perfsim.base.errors import GraphError
from perfsim.specs.layout import ParallelLayout, StreamingLayout
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph, peer_classes, unfold


def graph_of(batch: int, **layout: Any) -> TaskGraph:
    return toys.plan("3d", toys.job(batch), ParallelLayout(**layout)).graph()


def test_a_collective_is_written_once_for_its_group_and_holds_up_every_member() -> None:
    """One compute task, a sum over three replicas on the compute stream, and one more compute task."""
    builder = GraphBuilder()
    builder.fold(3)
    first = builder.task(toys.compute("a"), "gpu0/compute", tag=7).tensor
    builder.task(toys.collective("sum", RankGroup(0, 1, 3)), "gpu0/compute", [first])
    builder.task(toys.compute("b"), "gpu0/compute")
    graph = unfold(builder.build()).graph
    assert [task.name for task in graph.tasks()] == ["a[7]"] * 3 + ["sum"] + ["b"] * 3
    computing = [f"gpu{rank}/compute" for rank in range(3)]
    assert [task.stream for task in graph.tasks()] == [*computing, "gpu0+gpu1+gpu2/compute", *computing]
    waits = [graph.dependencies.row(task) for task in range(7)]
    assert waits == [(), (), (), (0, 1, 2), (0, 3), (1, 3), (2, 3)]
    assert graph.task(3).reads == (0, 1, 2), "the input of each member, in order"
    assert len(graph.task(3).writes) == len(graph.task(3).work.writes) == 3, "the output of each member"


def test_groups_and_sends_shift_with_the_rank() -> None:
    graph = unfold(graph_of(16, tensor=2, data=2, pipeline=2, zero_stage=1)).graph
    groups = {(work.name, work.group) for work in graph.works if work.group is not None}
    tensor = {group for name, group in groups if name.startswith("tensor")}
    assert tensor == {RankGroup(start, 1, 2) for start in (0, 2, 4, 6)}
    data = {group for name, group in groups if name.startswith("data")}
    assert data == {RankGroup(start, 2, 2) for start in (0, 1, 4, 5)}
    sends = {group for name, group in groups if name == "pipeline.send"}
    assert sends == {RankGroup(o, 4, 2) for o in range(4)} | {RankGroup(4 + o, -4, 2) for o in range(4)}
    tied = {group for name, group in groups if name == "pipeline.tied_embedding"}
    assert tied == {RankGroup(o, 4, 2) for o in range(4)}


def test_wafers_share_memoryx_and_swarmx() -> None:
    layout = StreamingLayout(data=3, micro_batch_size=2)
    folded = toys.plan("weight-streaming", toys.job(12), layout, toys.wafer_cluster()).graph()
    unfolded = unfold(folded)
    graph = unfolded.graph
    shared = np.array([not name.startswith("cs") for name in folded.streams])[folded.stream]
    assert len(graph) == shared.sum() + 3 * (~shared).sum()
    assert set(unfolded.rank.tolist()) == {-1, 0, 1, 2}
    reduce = next(task for task in graph.tasks() if task.work.op == "reduce")
    writers = [graph.task(int(graph.writer[tensor])).stream for tensor in reduce.reads[:3]]
    assert writers == ["cs0/compute", "cs1/compute", "cs2/compute"]


@pytest.mark.parametrize("more", [{"tensor": 2, "zero_stage": 2}, {"schedule": "zb2p"}])
def test_unfolding_maps_tasks_both_ways_and_keeps_the_ends_of_steps(more: dict[str, Any]) -> None:
    folded = graph_of(16, data=2, pipeline=2, **more)
    unfolded = unfold(folded)
    for peer in range(folded.width):
        assert (unfolded.task[unfolded.of_peer(peer)] == np.arange(len(folded))).all()
    assert (unfolded.graph.tag == folded.tag[unfolded.task]).all()
    assert set(unfolded.rank.tolist()) == set(range(2 * folded.width))
    for end, before in zip(unfolded.graph.step_ends, folded.step_ends, strict=True):
        assert int(unfolded.task[end - 1]) == before - 1
        assert end == len(unfolded.graph) or int(unfolded.task[end]) == before


def folded(tensor: int, data: int, pipeline: int = 2) -> TaskGraph:
    """Every pipeline rank computes, sums over tensor peers, then over replicas, and sends on."""
    builder = GraphBuilder()
    width = tensor * data
    builder.fold(width)
    sent: list[int] = []
    for rank in range(pipeline):
        base = rank * width
        gpu = f"gpu{base}"
        hidden = builder.task(toys.compute("forward"), f"{gpu}/compute", sent).tensor
        for name, group in (("tensor", RankGroup(base, 1, tensor)), ("data", RankGroup(base, tensor, data))):
            hidden = builder.task(toys.collective(f"{name}.sum", group), f"{gpu}/{name}", [hidden]).tensor
        to_next = RankGroup(base, width, 2)
        sent = [builder.task(toys.transfer("send", to_next), f"{gpu}/send", [hidden]).tensor]
    return builder.build()


@pytest.mark.parametrize("straggler", [1, 13])
def test_a_straggler_anywhere_parts_its_tensor_group_its_replicas_and_the_rest(straggler: int) -> None:
    classes = peer_classes(folded(4, 3), {straggler: 2.0})
    assert classes.reshape(3, 4).tolist() == [[0, 1, 0, 0], [2, 3, 2, 2], [2, 3, 2, 2]]


def test_two_like_stragglers_in_like_places_share_a_class() -> None:
    graph = folded(2, 4)
    classes = peer_classes(graph, {0: "slow", 2: "slow"})
    assert classes.reshape(4, 2).tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert len(set(peer_classes(graph, {0: "slow", 2: "dead"}).tolist())) == 6


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (RankGroup(0, 1, 3), "sum does not divide 8 peers evenly"),
        (RankGroup(1, 1, 4), "sum on rank 0 must begin with it"),
    ],
)
def test_a_group_that_does_not_fit_its_peers_is_refused(group: RankGroup, message: str) -> None:
    builder = GraphBuilder()
    builder.fold(8)
    builder.task(toys.collective("sum", group), "gpu0/nccl")
    with pytest.raises(GraphError, match=message):
        peer_classes(builder.build())


def test_a_graph_that_is_partly_unfolded_is_refused() -> None:
    graph = folded(2, 3)
    with pytest.raises(GraphError, match="partly unfolded"):
        unfold(unfold(graph, peer_classes(graph, {0: 2.0})).graph)
