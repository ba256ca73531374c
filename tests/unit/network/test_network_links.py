"""Links of a network in bulk, and links that are slow or dead."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from perfsim.base.errors import InputError
from perfsim.machines import build_topology
from perfsim.network import FatTree, degraded, route_around
from perfsim.specs.hardware import FatTreeSpec, GpuClusterSpec


def tree(
    toys: ModuleType, *, nodes: int = 8, nics: int = 8, nodes_per_leaf: int = 4, oversubscription: float = 1.0
) -> FatTree:
    system: GpuClusterSpec = toys.gpu_cluster(nics=nics)
    fabric = FatTreeSpec(
        nodes_per_leaf=nodes_per_leaf, oversubscription=oversubscription, switch_latency=1e-7
    )
    topology = build_topology(system.model_copy(update={"fabric": fabric}), 8 * nodes)
    assert isinstance(topology, FatTree)
    return topology


@pytest.mark.parametrize(("nics", "oversubscription"), [(8, 1.0), (4, 2.0), (12, 3.0), (1, 4.0)])
def test_links_found_in_bulk_are_those_of_the_routes(
    toys: ModuleType, nics: int, oversubscription: float
) -> None:
    network = tree(toys, nodes=9, nics=nics, oversubscription=oversubscription)
    ranks = np.random.default_rng(0).integers(0, 72, (300, 2))
    crossed = network.crossings(ranks[:, 0], ranks[:, 1])
    for (source, target), row in zip(ranks.tolist(), crossed.tolist(), strict=True):
        route = network.route(source, target)
        counted = network.counted[[edge.link for edge in route]]
        if source != target:
            assert [link for link in row if link >= 0] == counted.tolist()
        capacity = network.capacities[counted].tolist()
        each = [edge.bytes_per_s * (network.spines if edge.kind == "uplink" else 1) for edge in route]
        assert capacity == pytest.approx(each, rel=1e-12), "the uplinks of a leaf stand as one"


def test_a_dead_uplink_takes_its_share_of_the_leaf(toys: ModuleType) -> None:
    network = tree(toys, oversubscription=4.0)
    left = degraded(network, {"leaf0-spine0": 0.0, "leaf0-spine1": 0.5})
    leaf0, leaf1 = network.crossings(np.array([0]), np.array([32]))[0, 2:4]
    assert network.spines == 8
    links = np.array([leaf0, leaf0 + 1, leaf1])
    assert (left.capacities[links] / network.capacities[links]).tolist() == [6.5 / 8, 6.5 / 8, 1.0]


def test_a_message_goes_around_a_dead_uplink_over_another_spine(toys: ModuleType) -> None:
    network = tree(toys)
    usual = network.route(0, 32)
    spine = usual[3].source
    dead = degraded(network, {f"leaf0-{spine}": 0.0}).edges.dead
    assert len(dead) == 2, "both directions"
    way = route_around(network, 0, 32, dead)
    assert dead.isdisjoint(edge.link for edge in way)
    assert [edge.kind for edge in way] == [edge.kind for edge in usual]


def test_a_message_goes_around_a_dead_nic_through_a_neighbour(toys: ModuleType) -> None:
    network = tree(toys)
    way = route_around(network, 0, 32, degraded(network, {"node0/nic0-leaf0": 0.0}).edges.dead)
    assert [edge.kind for edge in way[:2]] == ["scale_up", "scale_up"]
    assert way[-1].target == "node4/gpu0"


def test_traffic_around_a_dead_link_spreads_over_the_spines_that_are_left(toys: ModuleType) -> None:
    network = tree(toys)
    dead = degraded(network, {f"leaf0-spine{spine}": 0.0 for spine in range(4)}).edges.dead
    spines = {route_around(network, 0, target, dead)[3].source for target in range(32, 36)}
    assert len(spines) == 4


def test_where_no_way_is_left_the_message_says_between_whom_and_without_what(toys: ModuleType) -> None:
    network = tree(toys)
    dead = degraded(network, {f"leaf0-spine{spine}": 0.0 for spine in range(32)}).edges.dead
    with pytest.raises(
        InputError, match="no route is left from node0/gpu0 to node4/gpu0 without leaf0-spine0"
    ):
        route_around(network, 0, 32, dead)


def test_a_link_is_named_in_either_order(toys: ModuleType) -> None:
    network = tree(toys)
    capacities = [degraded(network, {name: 0.5}).capacities for name in ("spine1-leaf0", "leaf0-spine1")]
    assert (capacities[0] == capacities[1]).all()
    assert (capacities[0] != network.capacities).sum() == 4, "both directions, and the leaf's sum of each"


@pytest.mark.parametrize(
    ("name", "left", "message"),
    [
        ("leaf0-spine99", 0.5, "has no link 'leaf0-spine99'\n.*did you mean `leaf0-spine"),
        ("cable", 0.5, "has no link 'cable'"),
        ("leaf0-spine0", 1.5, "1.5 of its capacity is not between 0 and 1"),
    ],
)
def test_a_link_that_is_not_there_is_refused(toys: ModuleType, name: str, left: float, message: str) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        degraded(tree(toys), {name: left})
