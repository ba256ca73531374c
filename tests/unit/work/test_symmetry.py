"""Which peers are alike: meetings, classes by colour refinement, and what cannot be folded."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.base.errors import GraphError
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup, TaskGraph, peer_classes, unfold
from perfsim.work.graph import rank_of
from perfsim.work.unfold import ALONE, Meeting, meeting_of


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


def test_peers_meet_in_tensor_groups_and_in_data_groups() -> None:
    graph = folded(tensor=4, data=2)
    assert graph.width == 8
    assert {meeting_of(work, 8) for work in graph.works} == {ALONE, Meeting(1, 4), Meeting(4, 2)}
    assert list(Meeting(1, 4).offsets(6)) == [4, 5, 6, 7]
    assert list(Meeting(4, 2).offsets(6)) == [2, 6]


@pytest.mark.parametrize("straggler", [1, 13])
def test_a_straggler_anywhere_in_the_pipeline_parts_its_tensor_group_its_replicas_and_the_rest(
    straggler: int,
) -> None:
    classes = peer_classes(folded(4, 3), {straggler: 2.0})
    assert classes.reshape(3, 4).tolist() == [[0, 1, 0, 0], [2, 3, 2, 2], [2, 3, 2, 2]]


def test_two_like_stragglers_in_like_places_share_a_class() -> None:
    graph = folded(2, 4)
    classes = peer_classes(graph, {0: "slow", 2: "slow"})
    assert classes.reshape(4, 2).tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert len(set(peer_classes(graph, {0: "slow", 2: "dead"}).tolist())) == 6


def test_one_straggler_among_1024_ranks_needs_64_written_ones() -> None:
    graph = folded(tensor=8, data=8, pipeline=16)
    classes = peer_classes(graph, {700: 1.5})
    unfolded = unfold(graph, classes)
    assert len(set(unfolded.rank.tolist())) == 64


def test_shared_streams_have_no_rank() -> None:
    names = ("gpu12/compute", "cs0/compute", "memoryx/out", "gpu0+gpu1/nccl")
    assert [rank_of(name) for name in names] == [12, 0, None, None]


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


PARTLY = unfold(folded(2, 3), peer_classes(folded(2, 3), {0: 2.0})).graph


@pytest.mark.parametrize(
    ("graph", "classes", "message"),
    [
        (folded(2, 2), [0, 0, 0], "stands for 4 ranks, but 3 have a class"),
        (folded(2, 2), [0, 0, 2, 2], "must be numbered"),
        (folded(2, 2), [0, 1, 0, 0], "meet peers of unlike classes"),
        (PARTLY, None, "partly unfolded"),
    ],
)
def test_what_cannot_be_unfolded_is_refused(
    graph: TaskGraph, classes: list[int] | None, message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        unfold(graph, None if classes is None else np.array(classes))
