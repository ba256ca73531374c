"""Which communications share links, and what sharing costs."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from perfsim.costs.price import price
from perfsim.engine import critical_path, simulate
from perfsim.graph import GraphBuilder, Kind, RankGroup, TaskGraph, Work
from perfsim.study.contention import SharedLinks, shared_links
from perfsim.topology import Topology
from perfsim.workload import ParallelLayout

SECONDS = 4.0


def graph(*works: tuple[Work, str]) -> TaskGraph:
    """Communications that are all ready at once, each on a stream of its own."""
    builder = GraphBuilder()
    for work, stream in works:
        builder.task(work, stream)
    return builder.build()


def send(toys: ModuleType, name: str, source: int, target: int) -> Work:
    return toys.transfer(name, RankGroup(source, target - source, 2))


def reduce(name: str, group: RankGroup) -> Work:
    return Work(name, Kind.COMM_COLL, "all_reduce", "data_communication", comm_bytes=1e6, group=group)


def run(graph: TaskGraph, topology: Topology) -> list[float]:
    links = shared_links(graph, topology)
    durations = np.full(len(graph), SECONDS)
    return simulate(graph, durations, links.flows, links.capacities).end_s.tolist()


@pytest.fixture
def topology(toys: ModuleType) -> Topology:
    return toys.topology(32)


def test_two_overlapping_flows_on_one_nic_take_twice_as_long(toys: ModuleType, topology: Topology) -> None:
    both = graph(
        (send(toys, "next", 0, 8), "gpu0/send-next"),
        (reduce("gradients", RankGroup(0, 8, 4)), "gpu0/nccl-data"),
    )
    assert run(both, topology) == [2 * SECONDS, 2 * SECONDS]


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, 8), (1, 9)), ((0, 8), (8, 0)), ((0, 8), (16, 0))],
    ids=["another nic", "there and back", "out and in"],
)
def test_flows_on_different_links_or_directions_do_not_meet(
    toys: ModuleType, topology: Topology, first: tuple[int, int], second: tuple[int, int]
) -> None:
    apart = graph((send(toys, "a", *first), "gpu0/a"), (send(toys, "b", *second), "gpu0/b"))
    assert shared_links(apart, topology).flows == {}
    assert run(apart, topology) == [SECONDS, SECONDS]


def test_tasks_of_one_stream_never_overlap_so_they_do_not_contend(
    toys: ModuleType, topology: Topology
) -> None:
    builder = GraphBuilder()
    for name in ("a", "b"):
        builder.task(send(toys, name, 0, 8), "gpu0/send-next")
    assert shared_links(builder.build(), topology).flows == {}


def test_a_nic_that_two_gpus_share_is_contended_by_both(toys: ModuleType) -> None:
    shared = toys.topology(16, toys.gpu_cluster(nics=4))
    two = graph((send(toys, "a", 0, 8), "gpu0/send"), (send(toys, "b", 1, 9), "gpu1/send"))
    assert run(two, shared) == [2 * SECONDS, 2 * SECONDS]


@pytest.mark.parametrize("group", [RankGroup(0, 8, 4), RankGroup(0, 8, 2)], ids=["four", "a pair"])
def test_a_collective_loads_both_directions_of_its_nic_and_a_send_only_one(
    toys: ModuleType, topology: Topology, group: RankGroup
) -> None:
    ring = reduce("gradients", group)
    for source, target in ((0, 8), (group.ranks[-1], 0)):
        both = graph((ring, "gpu0/nccl"), (send(toys, "s", source, target), f"gpu{source}/send"))
        assert max(run(both, topology)) == 2 * SECONDS


def test_a_ring_enters_a_node_once_and_leaves_it_once(toys: ModuleType, topology: Topology) -> None:
    """Ranks 0 to 15: the first sends inside its node and receives from the last, on another."""
    ring = reduce("gradients", RankGroup(0, 1, 16))
    out = graph((ring, "gpu0/nccl"), (send(toys, "s", 0, 16), "gpu0/send"))
    into = graph((ring, "gpu0/nccl"), (send(toys, "s", 16, 0), "gpu16/send"))
    assert run(out, topology) == [SECONDS, SECONDS]
    assert run(into, topology) == [2 * SECONDS, 2 * SECONDS]


def test_inside_a_node_and_alone_nothing_is_put_on_the_network(toys: ModuleType, topology: Topology) -> None:
    quiet = graph(
        (reduce("tensor", RankGroup(0, 1, 8)), "gpu0/nccl-tensor"),
        (reduce("alone", RankGroup(0, 8, 1)), "gpu0/nccl-data"),
        (send(toys, "near", 0, 1), "gpu0/send-next"),
        (toys.compute("c"), "gpu0/compute"),
    )
    assert shared_links(quiet, topology) == SharedLinks()


def test_a_wafer_tree_carries_one_stream_each_way_so_nothing_is_shared(toys: ModuleType) -> None:
    layout = ParallelLayout(data=4, micro_batch_size=8)
    plan = toys.plan("weight-streaming", toys.job(32), layout, toys.wafer_cluster())
    assert shared_links(toys.graph_of(plan), plan.topology) == SharedLinks()


def test_reductions_and_pipeline_transfers_of_a_real_step_slow_each_other(toys: ModuleType) -> None:
    job = toys.job(64, {"overlap_grad_reduce": True}, num_layers=16)
    plan = toys.plan("3d", job, ParallelLayout(tensor=8, pipeline=2, data=2))
    written = toys.graph_of(plan)
    durations = price(written, toys.ToyCosts(plan.system))
    links = shared_links(written, plan.topology)
    assert links.flows
    contended = simulate(written, durations, links.flows, links.capacities)
    free = critical_path(written, durations)
    assert (contended.end_s >= free.end_s).all()
    assert contended.end_s.sum() > free.end_s.sum()
