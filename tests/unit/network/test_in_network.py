"""Switches that sum in passing (SHARP): off by default, as fast as measured where a system names them."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.network.collectives import CollectiveModel
from perfsim.network.topology import Group
from perfsim.specs.hardware import GpuClusterSpec, InNetworkSpec

GIB = 2.0**30


DGX: GpuClusterSpec = default_catalog().system("dgx-h100")


def with_switches(inside: float | None = None, across: float | None = None) -> CollectiveModel:
    """DGX H100 with switches that sum at these bandwidths."""
    in_node, in_fabric = (
        None if rate is None else InNetworkSpec(bandwidth=rate, latency=5e-6) for rate in (inside, across)
    )
    return CollectiveModel.of_node(
        DGX.node.model_copy(update={"in_network": in_node}),
        DGX.fabric.model_copy(update={"in_network": in_fabric}),
    )


PLAIN = with_switches()
SUMMING = with_switches(274e9, 240e9)


def bus_bandwidth(model: CollectiveModel, n_bytes: float, group: Group) -> float:
    return 2 * (group.size - 1) / group.size * n_bytes / model.time_s("all_reduce", n_bytes, group)


def test_no_system_of_the_catalogue_sums_in_its_switches_unless_told() -> None:
    catalog = default_catalog()
    systems = [catalog.system(name) for name in catalog.names("system")]
    described = [
        spec
        for cluster in systems
        if isinstance(cluster, GpuClusterSpec)
        for spec in (cluster.node.in_network, cluster.fabric.in_network)
        if spec
    ]
    assert described
    assert not any(spec.enabled for spec in described)


@pytest.mark.parametrize("group", [Group.inside_node(8), Group.even(8, 4)])
def test_dgx_h100_reaches_the_published_bus_bandwidth_with_sharp_and_without(group: Group) -> None:
    # NVIDIA, GTC 2024, session 62129: 370 inside a node and 380 GB/s across without, 480 GB/s with SHARP.
    summing = with_switches(480e9 / 1.75, 480e9 / (2 * 31 / 32))
    assert bus_bandwidth(PLAIN, 16 * GIB, group) < 450e9
    assert bus_bandwidth(summing, 16 * GIB, group) == pytest.approx(480e9, rel=0.01)


def test_an_all_reduce_is_never_slower_for_switches_that_sum_and_other_collectives_do_not_change() -> None:
    sizes = 2.0 ** np.arange(9, 34)
    for group in (Group.inside_node(2), Group.inside_node(8), Group.even(2, 16)):
        assert np.all(SUMMING.time_s("all_reduce", sizes, group) <= PLAIN.time_s("all_reduce", sizes, group))
        for op in ("all_gather", "reduce_scatter", "all_to_all", "broadcast"):
            assert SUMMING.time_s(op, GIB, group) == PLAIN.time_s(op, GIB, group)


def test_one_rank_a_node_passes_its_nic_once_where_a_ring_passes_it_twice() -> None:
    models = (with_switches(across=1e12), PLAIN)
    once, twice = (model.time_s("all_reduce", 16 * GIB, Group.even(1, 64)) for model in models)
    assert twice / once == pytest.approx(2 * 63 / 64, rel=0.01)


def test_what_a_link_carries_bounds_what_its_switch_may_sum() -> None:
    bound = with_switches(inside=1e15).time_s("all_reduce", 16 * GIB, Group.inside_node(8))
    assert bound >= 16 * GIB / 450e9


def test_the_time_is_start_up_hops_and_bytes() -> None:
    group = Group.even(8, 2 * DGX.fabric.nodes_per_leaf)
    hops = 2 * 2 * (DGX.node.nic.latency + DGX.fabric.switch_latency)
    expected = 5e-6 + hops + 1e6 / 100e9
    assert expected < CollectiveModel.of_node(DGX.node, DGX.fabric).time_s("all_reduce", 1e6, group)
    assert with_switches(across=100e9).time_s("all_reduce", 1e6, group) == pytest.approx(expected)
