"""Topologies: what is in them, the way of a message, and where they are thinnest."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from perfsim.base.errors import InputError
from perfsim.machines import build_topology
from perfsim.network import Group, Topology, WaferTree
from perfsim.specs.hardware import FatTreeSpec, GpuClusterSpec, WaferClusterSpec
from perfsim.testing import toys

NVLINK = 300e9
NIC = 25e9
NVLINK_S = 1e-6
NIC_S = 2e-6
SWITCH_S = 0.1e-6


def cluster(*, nics: int = 8, nodes_per_leaf: int = 4, oversubscription: float = 1.0) -> GpuClusterSpec:
    fabric = FatTreeSpec(
        nodes_per_leaf=nodes_per_leaf, oversubscription=oversubscription, switch_latency=SWITCH_S
    )
    return toys.gpu_cluster(nics=nics).model_copy(update={"fabric": fabric})


def names(topology: Topology, source: int | str, target: int | str) -> list[str]:
    route = topology.route(source, target)
    assert all(a.target == b.source for a, b in pairwise(route))
    return [route[0].source, *(edge.target for edge in route)] if route else []


# ---------------------------------------------------------------------------------- what there is
def test_a_fat_tree_has_the_nodes_and_links_of_its_parts() -> None:
    topology = build_topology(cluster(), 6 * 8)
    kinds = [name.rsplit("/", 1)[-1].rstrip("0123456789") for name in topology.graph]
    # 6 nodes under 2 leaves of up to 4 nodes; 4 x 8 uplinks a leaf, each to its own spine.
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "gpu": 48,
        "nvswitch": 6,
        "nic": 48,
        "leaf": 2,
        "spine": 32,
    }
    assert topology.graph.number_of_edges() == 2 * (48 + 48 + 48 + 2 * 32) == len(topology.links())


@pytest.mark.parametrize(("nics", "nodes", "bytes_per_s"), [(4, 4, NIC), (12, 4, 3 * NIC), (1, 1, NIC)])
def test_nics_that_a_set_of_gpus_shares_are_one(nics: int, nodes: int, bytes_per_s: float) -> None:
    topology = build_topology(cluster(nics=nics), 16)
    uplinks = [edge for edge in topology.links() if edge.kind == "nic" and edge.source.startswith("node0/")]
    assert [edge.bytes_per_s for edge in uplinks] == [bytes_per_s] * nodes


def test_a_wafer_tree_has_the_fewest_nodes_that_the_fan_out_allows() -> None:
    topology = build_topology(toys.wafer_cluster(), 18)
    assert topology.tree_levels == (1, 2, 5)
    assert topology.tree_depth == 3
    own = ("", "/port", "/activations0")
    assert set(topology.graph) == {
        "memoryx",
        *(f"memoryx/server{i}{part}" for i in range(10) for part in ("", "/dram", "/flash")),
        "swarmx/0/0",
        *(f"swarmx/1/{i}" for i in range(2)),
        *(f"swarmx/2/{i}" for i in range(5)),
        *(f"cs{i}{part}" for i in range(18) for part in own),
    }
    degrees = [degree for name, degree in topology.graph.out_degree() if name.startswith("swarmx")]
    assert max(degrees) == 4 + 1


@pytest.mark.parametrize(
    ("systems", "levels"),
    [(1, (1,)), (4, (1,)), (5, (1, 2)), (16, (1, 4)), (64, (1, 4, 16)), (65, (1, 2, 5, 17))],
)
def test_the_depth_of_a_wafer_tree_is_the_logarithm_of_its_size(
    systems: int, levels: tuple[int, ...]
) -> None:
    assert build_topology(toys.wafer_cluster(), systems).tree_levels == levels


def test_the_graph_carries_what_the_links_say() -> None:
    topology = build_topology(toys.wafer_cluster(), 5)
    for edge in topology.links():
        data = topology.graph.edges[edge.source, edge.target, edge.link]
        assert data == {
            "link": edge.link,
            "kind": edge.kind,
            "bytes_per_s": edge.bytes_per_s,
            "seconds": edge.seconds,
            "duplex": edge.kind not in ("dram", "flash"),
        }


# -------------------------------------------------------------------------------------- refusals
def test_a_last_node_that_is_partly_empty_is_refused_with_what_would_fit() -> None:
    with pytest.raises(InputError, match=r"8 devices a node, so 12 would leave .* use 8 or 16"):
        build_topology(cluster(), 12)


def test_part_of_a_single_node_is_a_system() -> None:
    topology = build_topology(cluster(), 3)
    assert len([name for name in topology.graph if "gpu" in name]) == 3
    assert names(topology, 0, 2) == ["node0/gpu0", "node0/nvswitch", "node0/gpu2"]


def test_more_systems_than_the_cluster_can_have_are_refused() -> None:
    build_topology(toys.wafer_cluster(), 192)
    with pytest.raises(InputError, match="at most 192 systems, not 193"):
        build_topology(toys.wafer_cluster(), 193)


@pytest.mark.parametrize("spec", [cluster(), toys.wafer_cluster()])
def test_no_device_and_unknown_ranks_and_places_are_refused(spec: GpuClusterSpec | WaferClusterSpec) -> None:
    with pytest.raises(InputError, match="at least one device"):
        build_topology(spec, 0)
    topology = build_topology(spec, 4)
    for refused in (
        lambda: topology.device(4),
        lambda: topology.group_shape([-1]),
        lambda: topology.route(0, 4),
    ):
        with pytest.raises(InputError, match="ranks 0 to 3"):
            refused()
    with pytest.raises(InputError, match="has no 'node9/gpu0'"):
        topology.route(0, "node9/gpu0")
    with pytest.raises(InputError, match="at least one rank"):
        topology.group_shape([])


# ---------------------------------------------------------------------------------------- routes
def test_gpus_of_a_node_talk_through_its_nvswitch() -> None:
    topology = build_topology(cluster(nics=1), 16)
    assert names(topology, 1, 6) == ["node0/gpu1", "node0/nvswitch", "node0/gpu6"]
    assert min(edge.bytes_per_s for edge in topology.route(1, 6)) == NVLINK
    assert topology.route_seconds(1, 6) == pytest.approx(NVLINK_S)


def test_gpus_under_one_leaf_talk_through_their_own_nics() -> None:
    topology = build_topology(cluster(nics=4), 16)
    assert names(topology, 5, 8) == ["node0/gpu5", "node0/nic2", "leaf0", "node1/nic0", "node1/gpu0"]
    assert min(edge.bytes_per_s for edge in topology.route(5, 8)) == NIC
    assert topology.route_seconds(5, 8) == pytest.approx(NIC_S + SWITCH_S)


def test_gpus_under_two_leaves_talk_through_a_spine() -> None:
    topology = build_topology(cluster(), 48)
    way = names(topology, 3, 5 * 8 + 6)
    assert way == [
        "node0/gpu3",
        "node0/nic3",
        "leaf0",
        "spine14",  # the second node of its leaf, NIC 6
        "leaf1",
        "node5/nic6",
        "node5/gpu6",
    ]
    assert topology.route_seconds(3, 46) == pytest.approx(NIC_S + 3 * SWITCH_S)


def test_an_oversubscribed_leaf_has_fewer_uplinks() -> None:
    topology = build_topology(cluster(oversubscription=2.0), 64)
    uplinks = [edge for edge in topology.links() if edge.kind == "uplink" and edge.source == "leaf0"]
    assert sum(edge.bytes_per_s for edge in uplinks) == pytest.approx(4 * 8 * NIC / 2)
    assert len(uplinks) == 16


@pytest.mark.parametrize("shift", [1, 3, 4, 5, 8])
def test_messages_that_all_go_equally_far_share_no_link(shift: int) -> None:
    topology = build_topology(cluster(), 12 * 8)
    used = [edge.link for rank in range(96) for edge in topology.route(rank, (rank + 8 * shift) % 96)]
    assert len(used) == len(set(used))


def test_routes_between_gpus_are_shortest_by_latency() -> None:
    topology = build_topology(cluster(nodes_per_leaf=2), 4 * 8)
    for source in (0, 7, 13):
        seconds = nx.single_source_dijkstra_path_length(
            topology.graph, topology.device(source), weight="seconds"
        )
        for target in range(32):
            assert topology.route_seconds(source, target) == pytest.approx(seconds[topology.device(target)])


def test_other_places_of_a_cluster_have_routes_too() -> None:
    topology = build_topology(cluster(), 16)
    assert names(topology, "leaf0", "node1/gpu2") == ["leaf0", "node1/nic2", "node1/gpu2"]


def test_weights_go_down_the_tree_a_hop_a_level_and_gradients_up_the_same_way() -> None:
    topology = build_topology(toys.wafer_cluster(), 16)
    down = names(topology, "memoryx", 6)
    assert down == ["memoryx", "swarmx/0/0", "swarmx/1/1", "cs6/port", "cs6"]
    assert names(topology, 6, "memoryx") == down[::-1]
    assert topology.route_seconds("memoryx", 6) == pytest.approx(2 * 10e-6 + 1e-6)
    assert topology.route_seconds(6, "memoryx") == pytest.approx(2 * 10e-6 + 1e-6)
    assert min(edge.bytes_per_s for edge in topology.route("memoryx", 6)) == 150e9


def test_wafers_meet_at_the_lowest_node_above_both() -> None:
    topology = build_topology(toys.wafer_cluster(), 64)
    assert names(topology, 0, 3) == ["cs0", "cs0/port", "swarmx/2/0", "cs3/port", "cs3"]
    between = ["swarmx/2/0", "swarmx/1/0", "swarmx/2/3"]
    assert names(topology, 0, 15) == ["cs0", "cs0/port", *between, "cs15/port", "cs15"]


def test_a_broadcast_crosses_every_link_down_and_a_reduction_every_link_up() -> None:
    topology = build_topology(toys.wafer_cluster(), 18)
    assert isinstance(topology, WaferTree)
    down = {edge.link for rank in range(18) for edge in topology.route("memoryx", rank)}
    up = {edge.link for rank in range(18) for edge in topology.route(rank, "memoryx")}
    assert set(topology.tree_links("down")) == down
    assert set(topology.tree_links("up")) == up
    assert not up & down


# ----------------------------------------------------------------------------------------- groups
@pytest.mark.parametrize(
    ("ranks", "shape"),
    [
        (range(8), (8, 8, 1, 8)),  # tensor parallel in a node
        (range(16), (16, 8, 2, 8)),  # tensor parallel over two nodes
        (range(0, 64, 8), (8, 1, 8, 1)),  # one peer a node
        (range(0, 64, 4), (16, 2, 8, 2)),  # data parallel beside tensor parallel 4
        (range(0, 42, 3), (14, 3, 5, 2)),  # data parallel beside tensor parallel 3
        (range(14, 28), (14, 8, 3, 2)),  # the fullest node in the middle
        ((0, 1, 40), (3, 2, 2, 1)),
        ((5,), (1, 1, 1, 1)),
    ],
)
def test_the_shape_of_a_group(ranks: range | tuple[int, ...], shape: tuple[int, int, int, int]) -> None:
    topology = build_topology(cluster(), 64)
    assert topology.group_shape(ranks) == Group(*shape)
    assert topology.group_shape(np.array(ranks).tolist()) == Group(*shape)
