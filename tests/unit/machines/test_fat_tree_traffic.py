"""What communications of GPUs put on NVLink ports, NICs and uplinks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.engine import simulate
from perfsim.machines import build_topology, network_of
from perfsim.machines.machine import Traffic
from perfsim.machines.placement import SharedLinks
from perfsim.network import FatTree, Group, Topology
from perfsim.network.collectives import CollectiveModel
from perfsim.testing import toys
from perfsim.testing.toys import at_once
from perfsim.work import RankGroup, TaskGraph, Work

SECONDS = 4.0
LONG = 1e12
ALONE = np.zeros(1, dtype=np.int64)


@pytest.fixture
def tree() -> FatTree:
    topology = toys.topology(32)
    assert isinstance(topology, FatTree)
    return topology


def send(name: str, source: int, target: int, n_bytes: float = LONG) -> Work:
    return toys.transfer(name, RankGroup(source, target - source, 2), comm_bytes=n_bytes)


def summed(ranks: RankGroup, n_bytes: float = LONG) -> Work:
    return replace(toys.collective("reduce", ranks), comm_bytes=n_bytes)


def run(written: TaskGraph, topology: Topology) -> list[float]:
    links = SharedLinks.of(written, network_of(topology))
    durations = np.full(len(written), SECONDS)
    return simulate(written, durations, links.flows, links.capacities).end_s.tolist()


def traffic(tree: FatTree, work: Work) -> Traffic:
    crossed = network_of(tree).load(work, ALONE)
    assert crossed is not None
    return crossed


def kinds(tree: FatTree, crossed: Traffic) -> dict[str, list[int]]:
    """How often each link of a kind is crossed."""
    by_kind: dict[str, list[int]] = {}
    for link, times in zip(crossed.links.tolist(), crossed.times.tolist(), strict=True):
        by_kind.setdefault(tree.edges.kinds[tree.edges.kind[link]], []).append(times)
    return by_kind


def test_a_reduction_and_a_send_inside_a_node_share_the_ports_of_their_ranks(tree: FatTree) -> None:
    ring = (summed(RankGroup(0, 1, 4)), "gpu0/nccl-tensor")
    both = run(at_once(ring, (send("s", 3, 4), "gpu3/send")), tree)
    assert both == pytest.approx([2 * SECONDS, 2 * SECONDS], rel=1e-3), "the port out of GPU 3"
    assert run(at_once(ring, (send("s", 4, 5), "gpu4/send")), tree) == [SECONDS, SECONDS]


def test_inside_a_node_every_rank_sends_and_receives_once_at_the_bus_rate(tree: FatTree) -> None:
    n_bytes = 1e8
    crossed = traffic(tree, summed(RankGroup(0, 2, 4), n_bytes))
    assert kinds(tree, crossed) == {"scale_up": [1] * 8}
    assert set(crossed.links.tolist()) == set(tree.ports[[0, 2, 4, 6]].ravel().tolist())
    seconds = CollectiveModel.of_tree(tree).seconds("all_reduce", np.array(n_bytes), Group.inside_node(4))
    assert crossed.bytes_per_s == pytest.approx(2 * 3 / 4 * n_bytes / float(seconds.bytes_s))


def test_rings_across_nodes_pass_the_ports_of_all_ranks_but_their_own(tree: FatTree) -> None:
    """Four ranks on each of two nodes: four rings; each port carries the other three in and out."""
    crossed = traffic(tree, summed(RankGroup(4, 1, 8)))
    assert kinds(tree, crossed) == {"scale_up": [3] * 16, "host": [1] * 16, "nic": [1] * 16}
    assert kinds(tree, traffic(tree, summed(RankGroup(0, 8, 4)))) == {"host": [1] * 8, "nic": [1] * 8}


def test_a_slow_link_slows_what_crosses_it_even_where_ports_are_left_out(tree: FatTree) -> None:
    """A quarter of a port, and half of what joins a GPU and its NIC."""
    port = tree.degraded({"node0/gpu3-node0/nvswitch": 0.25})
    host = tree.degraded({"node0/gpu3-node0/nic3": 0.5})
    for slow, work, longer in (
        (port, summed(RankGroup(0, 1, 8)), 4),
        (port, summed(RankGroup(8, 1, 8)), 1),
        (port, summed(RankGroup(0, 8, 4)), 1),
        (host, send("s", 3, 11), 2),
        (host, send("s", 3, 4), 1),
    ):
        exact = 1e-3 if longer == 4 else 0.0
        assert run(at_once((work, "gpu/stream")), slow) == pytest.approx([longer * SECONDS], rel=exact)


def test_a_dead_port_sends_traffic_of_its_node_over_nics(tree: FatTree) -> None:
    """NVLink has 300 GB/s, a NIC 25."""
    dead = tree.degraded({"node0/gpu3-node0/nvswitch": 0.0})
    crossed = network_of(dead).traffic(send("s", 3, 4), ALONE)
    assert crossed is not None
    assert kinds(dead, crossed) == {"nic": [1, 1]}
    taken = run(at_once((send("s", 3, 4), "gpu3/send")), dead)
    assert taken == pytest.approx([12 * SECONDS], rel=1e-3)


def test_a_calibrated_protocol_is_no_faster_than_its_link() -> None:
    tree = build_topology(default_catalog().system("dgx-a100-80gb"), 8)
    assert isinstance(tree, FatTree)
    half = tree.with_capacities(dict.fromkeys(tree.edges.of_kind("scale_up").tolist(), 150e9))
    inside = Group.inside_node(8)
    sizes = np.array([1e3, 1e9])
    short, long = CollectiveModel.of_tree(tree).time_s("all_gather", sizes, inside)
    slow_short, slow_long = CollectiveModel.of_tree(half).time_s("all_gather", sizes, inside)
    assert slow_short == short, "start-up takes what it takes"
    assert slow_long - long == pytest.approx(7 / 8 * 1e9 * (1 / 150e9 - 1 / 300e9), rel=0.01)
