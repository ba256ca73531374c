"""Where ranks stand decides whether they may be written once."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from perfsim.machines import network_of
from perfsim.machines.placement import rank_classes
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.streaming_layout import StreamingLayout


def classes(toys: ModuleType, gpus: int, marks: dict[int, float] | None = None, **layout: int) -> list[int]:
    system = toys.gpu_cluster(gpus=gpus, nics=gpus)
    chosen = ParallelLayout(**layout)
    plan = toys.plan("3d", toys.job(12 * chosen.data), chosen, system)
    return rank_classes(toys.graph_of(plan), network_of(plan.topology), marks).tolist()


def test_groups_that_fill_nodes_evenly_may_be_folded(toys: ModuleType) -> None:
    assert classes(toys, 4, tensor=2, data=4, pipeline=2) == [0] * 8


def test_sends_of_which_some_leave_the_node_may_not(toys: ModuleType) -> None:
    numbers = classes(toys, 4, tensor=1, data=2, pipeline=4)
    assert numbers == [0, 0], "all peers of a stage stand in one node"
    assert classes(toys, 4, tensor=1, data=3, pipeline=4) != [0, 0, 0], "stages of three over nodes of four"


def test_a_mark_parts_ranks_beside_where_they_stand(toys: ModuleType) -> None:
    assert classes(toys, 4, {9: 1.5}, tensor=2, data=4, pipeline=2) == [0, 1, 2, 3, 2, 3, 2, 3]


def test_wafers_are_alike(toys: ModuleType) -> None:
    layout = StreamingLayout(data=3, micro_batch_size=2)
    plan = toys.plan("weight-streaming", toys.job(12), layout, toys.wafer_cluster())
    graph = toys.graph_of(plan)
    assert not rank_classes(graph, network_of(plan.topology)).any()
    assert np.array_equal(rank_classes(graph, network_of(plan.topology), {1: 2.0}), [0, 1, 0])
