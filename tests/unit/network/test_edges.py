"""The columns of a network: as its graph says, of repeated parts, and with other capacities."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from perfsim.base.errors import InputError
from perfsim.machines import build_topology
from perfsim.network import Edges, FatTree, Topology, WaferTree, degraded
from perfsim.network.topology import Part, network_graph
from perfsim.specs.hardware import FatTreeSpec

COLUMNS = ("source", "target", "kind", "bytes_per_s", "seconds", "duplex")


def fat_tree(toys: ModuleType, nodes: int = 6, nics: int = 4, oversubscription: float = 2.0) -> FatTree:
    fabric = FatTreeSpec(nodes_per_leaf=4, oversubscription=oversubscription, switch_latency=1e-7)
    system = toys.gpu_cluster(nics=nics).model_copy(update={"fabric": fabric})
    topology = build_topology(system, 8 * nodes)
    assert isinstance(topology, FatTree)
    return topology


def wafer_tree(toys: ModuleType) -> WaferTree:
    topology = build_topology(toys.wafer_cluster(), 6)
    assert isinstance(topology, WaferTree)
    return topology


@pytest.mark.parametrize(("nodes", "nics", "oversubscription"), [(1, 8, 1.0), (6, 4, 2.0), (9, 12, 3.0)])
def test_a_node_and_a_leaf_repeated_are_the_columns_of_the_whole_graph(
    toys: ModuleType, nodes: int, nics: int, oversubscription: float
) -> None:
    tree = fat_tree(toys, nodes, nics, oversubscription)
    whole = network_graph(tree._vertices(), tree._cables())
    edges = Edges.of([Part(whole, np.arange(len(whole))[None])])
    for name in COLUMNS:
        assert getattr(tree.edges, name).tolist() == getattr(edges, name).tolist(), name
    assert tree.edges.kinds == edges.kinds
    assert dict(whole.nodes) == dict(tree.graph.nodes)
    assert list(whole.edges(keys=True, data=True)) == list(tree.graph.edges(keys=True, data=True))


def test_a_weight_server_has_dram_and_flash_and_a_system_its_activation_servers(toys: ModuleType) -> None:
    tree = wafer_tree(toys)
    kinds = [kind for _, kind in tree.vertices]
    servers = tree.system.memoryx.servers
    assert kinds.count("server") == kinds.count("dram") == servers
    assert kinds.count("flash") == (servers if tree.system.memoryx.server.flash else 0)
    assert kinds.count("activation server") == 6 * tree.system.activation_servers.per_system
    way = [edge.kind for edge in tree.route("memoryx/server1/dram", 5)]
    assert way == ["dram", "server", "memoryx", "swarmx", "swarmx", "io"]


def test_both_directions_of_a_link_that_is_not_duplex_have_one_capacity(toys: ModuleType) -> None:
    tree = wafer_tree(toys)
    dram = tree.edges.of_kind("dram")[:2]
    port = tree.edges.of_kind("io")[:2]
    assert tree.edges.medium[dram].tolist() == [dram[0], dram[0]]
    assert tree.edges.medium[port].tolist() == port.tolist()
    slower = tree.with_capacities({int(dram[1]): 1e9, int(port[1]): 1e9})
    assert slower.edges.bytes_per_s[dram].tolist() == [1e9, 1e9]
    assert slower.edges.bytes_per_s[port].tolist() == [tree.edges.bytes_per_s[port[0]], 1e9]


def test_an_edge_unlike_its_kind_is_slow_and_a_kind_that_changes_is_rated_anew(toys: ModuleType) -> None:
    tree = fat_tree(toys)
    nics = tree.edges.of_kind("nic").tolist()
    one = tree.with_capacities({nics[0]: 1e9})
    assert one.edges.rated == tree.edges.rated
    assert one.edges.slow.tolist() == [nics[0]]
    every = tree.with_capacities(dict.fromkeys(nics, 1e9))
    assert every.edges.rated["nic"] == 1e9
    assert not len(every.edges.slow)
    kept = tree.with_capacities(dict.fromkeys(nics, 1e9), rate=False)
    assert kept.edges.slow.tolist() == nics, "prices stay, so that all of them slow what crosses them"


@pytest.mark.parametrize("tree_of", [fat_tree, wafer_tree])
def test_the_graph_of_a_changed_network_has_its_capacities(toys: ModuleType, tree_of: type) -> None:
    tree: Topology = tree_of(toys)
    assert tree.graph is not None
    assert len(tree.route(0, 5)) > 0
    links = [int(tree.edges.of_kind(kind)[0]) for kind in tree.edges.kinds]
    changed = tree.with_capacities(dict.fromkeys(links, 7.0))
    for edge in changed.links():
        assert changed.graph.edges[edge.source, edge.target, edge.link]["bytes_per_s"] == edge.bytes_per_s
        asked = edge.link in links or (not tree.edges.duplex[edge.link] and edge.link ^ 1 in links)
        assert edge.bytes_per_s == (7.0 if asked else tree.edges.bytes_per_s[edge.link])


def test_a_system_in_the_name_of_a_link_stands_for_its_port(toys: ModuleType) -> None:
    slow = degraded(wafer_tree(toys), {"cs1-swarmx/1/0": 0.5}).edges.slow
    edges = [wafer_tree(toys).links()[link] for link in slow.tolist()]
    assert {(edge.source, edge.target) for edge in edges[::2]} == {
        ("swarmx/1/0", "cs1/port"),
        ("cs1/port", "cs1"),
    }
    assert len(edges) == 4, "both directions of both"


def test_an_end_of_a_link_may_leave_out_the_node_that_the_other_end_names(toys: ModuleType) -> None:
    tree = fat_tree(toys)
    names = ("node1/gpu0-nvswitch", "node1/gpu0-node1/nvswitch")
    short, full = (degraded(tree, {name: 0.5}).edges.bytes_per_s.tolist() for name in names)
    assert short == full != tree.edges.bytes_per_s.tolist()
    with pytest.raises(InputError, match=r"no link 'node1/gpu0-nvswich'\n.*did you mean `node1/gpu0-node1"):
        degraded(tree, {"node1/gpu0-nvswich": 0.5})
