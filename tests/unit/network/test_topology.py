"""Topologies: what is in them, the columns of their edges, links by name, and ways around dead ones."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from perfsim.base.errors import InputError
from perfsim.machines import build_topology
from perfsim.network import FatTree, Group, Topology, WaferTree
from perfsim.specs.hardware import FatTreeSpec, GpuClusterSpec, WaferClusterSpec
from perfsim.testing import toys

NIC = 25e9


def cluster(*, nics: int = 8, nodes_per_leaf: int = 4, oversubscription: float = 1.0) -> GpuClusterSpec:
    fabric = FatTreeSpec(
        nodes_per_leaf=nodes_per_leaf, oversubscription=oversubscription, switch_latency=1e-7
    )
    return toys.gpu_cluster(nics=nics).model_copy(update={"fabric": fabric})


def fat_tree(nodes: int = 8, **changes: float) -> FatTree:
    return build_topology(cluster(**changes), 8 * nodes)


def wafers(systems: int) -> WaferTree:
    return build_topology(toys.wafer_cluster(), systems)


def kind(topology: Topology, link: int) -> str:
    return topology.edges.kinds[topology.edges.kind[link]]


@pytest.mark.parametrize(("nics", "number", "bytes_per_s"), [(4, 4, NIC), (12, 4, 3 * NIC), (1, 1, NIC)])
def test_nics_that_a_set_of_gpus_shares_are_one(nics: int, number: int, bytes_per_s: float) -> None:
    topology = fat_tree(2, nics=nics)
    out = topology.edges.of_kind("nic")[::2]
    assert topology.edges.bytes_per_s[out].tolist() == [bytes_per_s] * 2 * number
    assert len(np.unique(topology.nics[:8, 0])) == number


def test_an_oversubscribed_leaf_has_fewer_uplinks() -> None:
    topology = fat_tree(oversubscription=2.0)
    assert topology.uplinks.shape == (2, 16)
    assert topology.capacities[topology.uplinks[:, 0]].tolist() == pytest.approx([4 * 8 * NIC / 2] * 2)


@pytest.mark.parametrize(
    ("systems", "levels"),
    [(1, (1,)), (4, (1,)), (5, (1, 2)), (16, (1, 4)), (18, (1, 2, 5)), (64, (1, 4, 16)), (65, (1, 2, 5, 17))],
)
def test_a_wafer_tree_has_the_fewest_nodes_of_its_fan_out(systems: int, levels: tuple[int, ...]) -> None:
    topology = wafers(systems)
    assert topology.tree_levels == levels
    assert set(topology.graph) == {
        "memoryx",
        *(f"memoryx/server{i}{part}" for i in range(10) for part in ("", "/dram", "/flash")),
        *(f"swarmx/{level}/{i}" for level, nodes in enumerate(levels) for i in range(nodes)),
        *(f"cs{i}{part}" for i in range(systems) for part in ("", "/port", "/activations0")),
    }
    degrees = [degree for name, degree in topology.graph.out_degree() if name.startswith("swarmx")]
    assert max(degrees) <= 4 + 1


def test_the_farthest_system_is_as_far_as_the_shortest_path_says() -> None:
    topology = wafers(18)
    far_s = nx.single_source_dijkstra_path_length(topology.graph, "memoryx", weight="seconds")
    assert topology.latency_s("down") == pytest.approx(max(far_s[f"cs{rank}"] for rank in range(18)))
    assert topology.latency_s("up") == pytest.approx(3 * 1e-5 + 1e-6)


def test_a_broadcast_crosses_every_link_down_and_a_reduction_every_link_up() -> None:
    topology = wafers(18)
    down = topology.ways("down", "memoryx", "swarmx", "io")
    up = topology.ways("up", "memoryx", "swarmx", "io")
    assert sorted(down ^ 1) == sorted(up)
    tree = nx.DiGraph(topology.ends(link) for link in down.tolist())
    assert nx.is_arborescence(tree)
    assert {name for name, degree in tree.out_degree() if not degree} == {f"cs{rank}" for rank in range(18)}


@pytest.mark.parametrize(
    ("spec", "most", "devices", "message"),
    [
        (cluster(), 3, 12, r"8 devices a node, so 12 would leave .* use 8 or 16"),
        (toys.wafer_cluster(), 192, 193, "at most 192 systems, not 193"),
    ],
    ids=["a last node that is partly empty", "more systems than the cluster can have"],
)
def test_a_number_of_devices_that_the_machine_cannot_have_is_refused(
    spec: GpuClusterSpec | WaferClusterSpec, most: int, devices: int, message: str
) -> None:
    """Part of a single node is a system."""
    assert build_topology(spec, most).num_devices == most
    with pytest.raises(InputError, match=message):
        build_topology(spec, devices)


@pytest.mark.parametrize("spec", [cluster(), toys.wafer_cluster()])
def test_no_device_and_unknown_ranks_are_refused(spec: GpuClusterSpec | WaferClusterSpec) -> None:
    with pytest.raises(InputError, match="at least one device"):
        build_topology(spec, 0)
    topology = build_topology(spec, 4)
    for rank in (4, -1):
        with pytest.raises(InputError, match="ranks 0 to 3"):
            topology.device(rank)


@pytest.mark.parametrize(("nics", "oversubscription"), [(8, 1.0), (4, 2.0), (12, 3.0), (1, 4.0)])
def test_links_found_in_bulk_are_a_path_of_lowest_latency(nics: int, oversubscription: float) -> None:
    topology = fat_tree(9, nics=nics, oversubscription=oversubscription)
    ranks = np.random.default_rng(0).integers(0, 72, (60, 2))
    crossed = topology.crossings(ranks[:, 0], ranks[:, 1])
    for (source, target), row in zip(ranks.tolist(), crossed.tolist(), strict=True):
        links = [link for link in row if link >= 0]
        ends = [topology.ends(link) for link in links]
        assert all(a[1] == b[0] or "spine" in a[1] for a, b in pairwise(ends))
        if source != target:
            assert (ends[0][0], ends[-1][1]) == (topology.device(source), topology.device(target))
            if nics != 8:  # two GPUs on one NIC are nearer over it, which no message takes
                continue
            shortest_s = nx.shortest_path_length(topology.graph, ends[0][0], ends[-1][1], weight="seconds")
            assert topology.edges.seconds[links].sum() == pytest.approx(shortest_s)


def test_what_repeats_is_numbered_as_the_whole_graph_says() -> None:
    topology = fat_tree(9, nics=12, oversubscription=3.0)
    bandwidths = topology.edges.bytes_per_s.tolist()
    for link, (kinds, bytes_per_s) in enumerate(zip(topology.edges.kind.tolist(), bandwidths, strict=True)):
        a, b = topology.ends(link)
        assert topology.ends(link ^ 1) == (b, a)
        data = topology.graph.edges[a, b, link]
        assert (data["kind"], data["bytes_per_s"]) == (topology.edges.kinds[kinds], bytes_per_s)
        assert a.split("/")[0] == b.split("/")[0] or kind(topology, link) in ("nic", "uplink")


def test_both_directions_of_a_link_that_is_not_duplex_have_one_capacity() -> None:
    tree = wafers(6)
    dram = tree.edges.of_kind("dram")[:2]
    port = tree.edges.of_kind("io")[:2]
    assert tree.edges.medium[dram].tolist() == [dram[0], dram[0]]
    assert tree.edges.medium[port].tolist() == port.tolist()
    slower = tree.with_capacities({int(dram[1]): 1e9, int(port[1]): 1e9})
    assert slower.edges.bytes_per_s[dram].tolist() == [1e9, 1e9]
    assert slower.edges.bytes_per_s[port].tolist() == [tree.edges.bytes_per_s[port[0]], 1e9]


def test_an_edge_unlike_its_kind_is_slow_and_a_kind_that_changes_is_rated_anew() -> None:
    tree = fat_tree(6, nics=4)
    nics = tree.edges.of_kind("nic").tolist()
    one = tree.with_capacities({nics[0]: 1e9})
    assert one.edges.rated == tree.edges.rated
    assert one.edges.slow.tolist() == [nics[0]]
    every = tree.with_capacities(dict.fromkeys(nics, 1e9))
    assert every.edges.rated["nic"] == 1e9
    assert not len(every.edges.slow)
    kept = tree.with_capacities(dict.fromkeys(nics, 1e9), rate=False)
    assert kept.edges.slow.tolist() == nics, "prices stay, so that all of them slow what crosses them"


@pytest.mark.parametrize("tree", [fat_tree(6, nics=4), wafers(6)])
def test_the_graph_of_a_changed_network_has_its_capacities(tree: Topology) -> None:
    links = [int(tree.edges.of_kind(kind)[0]) for kind in tree.edges.kinds]
    changed = tree.with_capacities(dict.fromkeys(links, 7.0))
    for a, b, link, data in changed.graph.edges(keys=True, data=True):
        changes = link in links or (not tree.edges.duplex[link] and link ^ 1 in links)
        assert data["bytes_per_s"] == (7.0 if changes else tree.edges.bytes_per_s[link]), (a, b)


def test_a_link_has_short_names() -> None:
    """A system stands for its port; one end may leave out the node that the other end names."""
    slow = wafers(6).degraded({"cs1-swarmx/1/0": 0.5})
    ends = [slow.ends(link) for link in slow.edges.slow.tolist()]
    assert set(ends[::2]) == {("swarmx/1/0", "cs1/port"), ("cs1/port", "cs1")}
    assert len(ends) == 4, "both directions of both"
    tree = fat_tree(6)
    names = ("node1/gpu0-nvswitch", "node1/nvswitch-node1/gpu0")
    short, full = (tree.degraded({name: 0.5}).edges.bytes_per_s.tolist() for name in names)
    assert short == full != tree.edges.bytes_per_s.tolist()


@pytest.mark.parametrize(
    ("name", "left", "message"),
    [
        ("leaf0-spine99", 0.5, "has no link 'leaf0-spine99'\n.*did you mean `leaf0-spine"),
        ("node1/gpu0-nvswich", 0.5, "no link 'node1/gpu0-nvswich'\n.*did you mean `node1/gpu0-node1"),
        ("cable", 0.5, "has no link 'cable'"),
    ],
)
def test_a_link_that_is_not_there_is_refused(name: str, left: float, message: str) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        fat_tree().degraded({name: left})


def test_a_dead_uplink_takes_its_share_of_the_leaf() -> None:
    network = fat_tree(oversubscription=4.0)
    left = network.degraded({"leaf0-spine0": 0.0, "leaf0-spine1": 0.5})
    leaf0, leaf1 = network.crossings(np.array([0]), np.array([32]))[0, 2:4]
    assert network.spines == 8
    links = np.array([leaf0, leaf0 + 1, leaf1])
    assert (left.capacities[links] / network.capacities[links]).tolist() == [6.5 / 8, 6.5 / 8, 1.0]


def test_a_message_goes_around_a_dead_nic_through_a_neighbour() -> None:
    network = fat_tree()
    way = network.route_around(0, 32, network.degraded({"node0/nic0-leaf0": 0.0}).edges.dead)
    assert [kind(network, link) for link in way[:2]] == ["scale_up", "scale_up"]
    assert network.ends(way[-1])[1] == "node4/gpu0"


def test_traffic_around_a_dead_link_spreads_over_the_spines_that_are_left() -> None:
    network = fat_tree()
    dead = network.degraded({f"leaf0-spine{spine}": 0.0 for spine in range(4)}).edges.dead
    assert len(dead) == 8, "both directions"
    ways = [network.route_around(0, target, dead) for target in range(32, 36)]
    assert all(dead.isdisjoint(way) for way in ways)
    assert len({network.ends(way[3])[0] for way in ways}) == 4


def test_where_no_way_is_left_the_message_says_between_whom_and_without_what() -> None:
    network = fat_tree()
    dead = network.degraded({f"leaf0-spine{spine}": 0.0 for spine in range(32)}).edges.dead
    message = "no route is left from node0/gpu0 to node4/gpu0 without leaf0-spine0"
    with pytest.raises(InputError, match=message):
        network.route_around(0, 32, dead)


@pytest.mark.parametrize(
    ("ranks", "shape"),
    [
        (range(8), (8, 8, 1, 8)),  # tensor parallel in a node
        (range(16), (16, 8, 2, 8)),  # tensor parallel over two nodes
        (range(0, 64, 8), (8, 1, 8, 1)),  # one peer a node
        (range(0, 64, 4), (16, 2, 8, 2)),  # data parallel next to tensor parallel 4
        (range(0, 42, 3), (14, 3, 5, 2)),  # data parallel next to tensor parallel 3
        (range(14, 28), (14, 8, 3, 2)),  # the fullest node in the middle
        ((0, 1, 40), (3, 2, 2, 1)),
        ((5,), (1, 1, 1, 1)),
    ],
)
def test_the_shape_of_a_group(ranks: range | tuple[int, ...], shape: tuple[int, int, int, int]) -> None:
    assert fat_tree().group_shape(ranks) == Group(*shape)


@pytest.mark.parametrize("ranks", [(-1, 3), (3, 64)])
def test_a_group_with_a_rank_that_is_not_there_is_refused(ranks: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="rank"):
        fat_tree().group_shape(ranks)
