"""NVLink domains of several servers, and nodes whose GPUs are in a full mesh."""

import numpy as np
import pytest

from perfsim.base.errors import CatalogError, InputError
from perfsim.catalog import default_catalog
from perfsim.machines import network_of
from perfsim.network import FatTree, Group
from perfsim.network.collectives import CollectiveModel
from perfsim.testing import toys
from perfsim.work import Kind, RankGroup, Work

ALONE = np.zeros(1, dtype=np.int64)
LONG = 1e12


def tree_of(name: str, devices: int) -> FatTree:
    return FatTree(default_catalog().system(name), devices)


@pytest.mark.parametrize(
    ("devices", "domains", "in_each"), [(64, 1, 72), (72, 1, 72), (128, 2, 64), (144, 2, 72), (512, 8, 64)]
)
def test_a_job_takes_as_many_whole_servers_of_every_domain(devices: int, domains: int, in_each: int) -> None:
    tree = tree_of("gb200-nvl72", devices)
    assert (tree.nodes, tree.devices_per_node) == (domains, in_each)
    assert tree.nic_share_bytes_per_s == pytest.approx(400e9 / 8)
    assert np.bincount(tree.node_of).tolist() == [devices // domains] * domains
    with pytest.raises(InputError, match="148 would leave the last node partly empty"):
        tree_of("gb200-nvl72", 148)  # alike only as four in each of 37 racks


@pytest.mark.parametrize(
    ("system", "changes", "said"),
    [
        ("gb200-nvl72", {"node.server": 5}, "72 devices cannot be divided into servers of 5"),
        ("mi300x-192gb", {"node.devices": 512}, "a full mesh has at most 256 devices, not 512"),
    ],
)
def test_nodes_that_cannot_be_built_are_refused(system: str, changes: dict[str, int], said: str) -> None:
    with pytest.raises(CatalogError, match=said):
        default_catalog().system(system, **changes)


def test_two_gpus_of_a_mesh_have_a_link_of_their_own() -> None:
    tree = tree_of("mi300x-192gb", 16)
    links = tree.crossings(np.array([1, 1]), np.array([6, 9]))
    kinds = [[tree.edges.kinds[tree.edges.kind[link]] for link in row if link >= 0] for row in links]
    assert kinds == [["scale_up"], ["host", "nic", "nic", "host"]]
    assert tree.edges.bytes_per_s[links[0, 0]] == 64e9
    assert len(tree.edges.of_kind("scale_up")) == 2 * 2 * 28
    assert tree.node_of.tolist() == [0] * 8 + [1] * 8


def test_in_a_mesh_a_group_has_a_link_to_each_of_its_members() -> None:
    model = CollectiveModel.of_tree(tree_of("mi300x-192gb", 8))
    n_bytes = 1e10
    for size, at_most in ((2, 64e9), (4, 3 * 64e9), (8, 7 * 64e9)):
        seconds = model.seconds("all_gather", n_bytes, Group.inside_node(size)).total_s
        assert 0.6 * at_most < n_bytes * (size - 1) / size / seconds < at_most
    assert n_bytes / model.seconds("send_recv", n_bytes, Group.inside_node(2)).total_s < 64e9


def test_a_collective_in_a_mesh_loads_every_link_of_its_group_alike() -> None:
    tree = tree_of("mi300x-192gb", 8)
    network = network_of(tree)
    work = toys.collective("reduce", RankGroup(0, 2, 4))
    crossed = network.load(work, ALONE)
    assert (len(crossed.links), set(crossed.times.tolist())) == (12, {1})
    assert crossed.bytes_per_s <= 64e9
    rate = CollectiveModel.of_tree(tree).port_bytes_per_s("all_reduce", work.comm_bytes, 4)
    assert crossed.bytes_per_s == pytest.approx(rate / 3)


def test_a_dead_link_of_a_mesh_sends_messages_another_way() -> None:
    dead = tree_of("mi300x-192gb", 8).degraded({"node0/gpu0-node0/gpu1": 0.0})
    work = toys.transfer("s", RankGroup(0, 1, 2), comm_bytes=LONG)
    crossed = network_of(dead).load(work, ALONE)
    assert len(crossed.links) > 1
    assert dead.edges.dead.isdisjoint(crossed.links.tolist())


def test_rings_across_domains_carry_no_more_than_the_ports_that_they_pass() -> None:
    tree = tree_of("gb300-nvl72", 128)
    group = RankGroup(0, 2, 64)
    gather = Work("g", Kind.COMM_COLL, "all_gather", "data_communication", comm_bytes=1e9, group=group)
    load = network_of(tree).load(gather, ALONE)
    ports = np.isin(load.links, tree.ports)
    assert ports.any()
    assert load.bytes_per_s < tree.nic_share_bytes_per_s
    assert (load.times * load.bytes_per_s)[ports].max() == pytest.approx(900e9)
