"""What a collective of a real group costs, on links whose numbers can be followed by hand, and with SHARP."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.network.collectives import CollectiveModel
from perfsim.network.topology import Group
from perfsim.specs import calibration
from perfsim.specs.hardware import GpuClusterSpec, LinkSpec, NodeSpec

OPS: tuple[calibration.CollectiveOp, ...] = get_args(calibration.CollectiveOp)


def segment(name: str, base_s: float, bytes_per_s: float) -> calibration.ProtocolSegment:
    return calibration.ProtocolSegment(
        name=name, latency_base_s=base_s, latency_per_step_s=0.0, bandwidth_bytes_per_s=bytes_per_s
    )


def protocol(algorithm: Any, name: str, base_s: float, fraction: float) -> calibration.NetworkProtocol:
    steps = {"latency_base_s": base_s, "intra_step_s": 1e-6, "inter_step_s": 5e-6}
    return calibration.NetworkProtocol(algorithm=algorithm, name=name, bandwidth_fraction=fraction, **steps)


NVLINK = calibration.CollectiveCalibration(
    name="nvlink", collectives={"all_reduce": (segment("LL", 1e-6, 1e9), segment("Simple", 11e-6, 200e9))}
)
PROTOCOLS = (protocol("ring", "Simple", 10e-6, 1.0), protocol("tree", "LL", 2e-6, 0.25))


def network_of(**changes: Any) -> calibration.CollectiveCalibration:
    constants = {"efficiency": 0.8, "protocols": PROTOCOLS, "send_recv_latency_s": 20e-6}
    network = calibration.NetworkConstants(**(constants | changes))
    return calibration.CollectiveCalibration(name="infiniband", network=network)


NETWORK = network_of()


def node(nics: int = 8, *, calibrated: bool = True) -> NodeSpec:
    return NodeSpec(
        devices=8,
        scale_up=LinkSpec(
            name="nvlink", bandwidth=300e9, latency=1e-6, calibration=NVLINK if calibrated else None
        ),
        nics=nics,
        nic=LinkSpec(name="hdr", bandwidth=25e9, latency=2e-6, calibration=NETWORK if calibrated else None),
    )


def of_link(lines: calibration.CollectiveCalibration, bandwidth: float) -> CollectiveModel:
    link = LinkSpec(name="x", bandwidth=bandwidth, latency=0.0, calibration=lines)
    return CollectiveModel.of_node(NodeSpec(devices=8, scale_up=link, nics=8, nic=link))


def test_the_fastest_protocol_runs_at_each_size() -> None:
    model = CollectiveModel.of_node(node())
    short, long = model.seconds("all_reduce", np.array([8.0, 8e9]), Group.inside_node(2)).total_s
    assert short == pytest.approx(1e-6 + 8 / 1e9)
    assert long == pytest.approx(11e-6 + 8e9 / 200e9)


def test_local_bytes_are_paid_on_top_of_the_bus() -> None:
    line = segment("Simple", 0.0, 200e9).model_copy(update={"local_bytes_per_s": 500e9})
    lines = calibration.CollectiveCalibration(name="x", collectives={"all_gather": (line,)})
    seconds = of_link(lines, 300e9).seconds("all_gather", 1e9, Group.inside_node(4)).total_s
    assert seconds == pytest.approx(0.75 / 200 + 1 / 500)


def test_a_protocol_with_flags_carries_its_fraction_of_the_slowest_link_inside_nodes_too() -> None:
    """Where NICs outrun the links of a node, as in racks of 72, a ring of low latency stays slow."""
    network = network_of(protocols=(protocol("ring", "LL", 10e-6, 0.25),))
    nic = node().nic.model_copy(update={"bandwidth": 1e12, "calibration": network})
    model = CollectiveModel.of_node(node().model_copy(update={"nic": nic}))
    seconds = model.seconds("all_gather", 1e12, Group.even(8, 2)).total_s
    assert 15 / 16 * 1e12 / seconds == pytest.approx(0.25 * 300e9, rel=1e-3)


@pytest.mark.parametrize(("rated", "times"), [(300e9, 1.0), (600e9, 2.0), (100e9, 0.5)])
def test_a_link_rated_higher_than_the_measured_one_carries_more(rated: float, times: float) -> None:
    lines = NVLINK.model_copy(update={"measured_on_bytes_per_s": 300e9})
    seconds = of_link(lines, rated).seconds("all_reduce", 1e15, Group.inside_node(8)).total_s
    assert 2 * 7 / 8 * 1e15 / seconds == pytest.approx(times * 200e9, rel=1e-3)


def bridged(nics: int = 4) -> NodeSpec:
    """A node whose bridge carries 4.5 GB/s for each rank, less than the 10 GB/s of its share of 4 NICs."""
    limited = network_of(partial_node_rank_bytes_per_s=4.5e9)
    nic = node().nic.model_copy(update={"calibration": limited})
    return node(nics).model_copy(update={"nic": nic})


BUSES = {
    "two ranks of a node have two parts of its bridge": (Group.even(2, 2), bridged(), 2 * 4.5e9),
    "four ranks have four parts, since fewer groups cross it": (Group.even(4, 2), bridged(), 4 * 4.5e9),
    "the emptiest node has two parts": (Group(10, 8, 2, 2), bridged(), 2 * 4.5e9),
    "a lone rank stands next to its NIC": (Group.even(1, 2), bridged(), 0.8 * 4 * 25e9 / 8),
    "a whole node has a rank next to every NIC": (Group.even(8, 2), bridged(), 0.8 * 4 * 25e9),
    "with a NIC a device no group crosses the bridge": (Group.even(2, 2), bridged(nics=8), 0.8 * 2 * 25e9),
    "a lone rank uses no link inside its node": (Group.even(1, 4), node(nics=128), 0.8 * 16 * 25e9),
    "a ring passes the emptiest of three nodes": (Group(14, 8, 3, 2), node(nics=4), 0.8 * 2 * 12.5e9),
    "many NICs leave the links inside the node": (Group.even(8, 2), node(nics=64), 200e9),
}


@pytest.mark.parametrize(("group", "machine", "bytes_per_s"), BUSES.values(), ids=BUSES)
def test_the_slowest_link_bounds_a_ring(group: Group, machine: NodeSpec, bytes_per_s: float) -> None:
    """Of a long all-reduce, with 2 (n - 1) / n bytes over the wire for a byte of the message."""
    wire_bytes = 2 * (group.size - 1) / group.size * 1e12
    seconds = CollectiveModel.of_node(machine).seconds("all_reduce", 1e12, group).total_s
    assert wire_bytes / seconds == pytest.approx(bytes_per_s, rel=1e-3)


ACROSS: dict[str, tuple[calibration.CollectiveOp, float, Group, float]] = {
    "an uneven tree has the depth of its fullest node": (
        *("all_reduce", 1e-3, Group(63 * 8 + 1, 8, 64, 1)),
        2e-6 + 2 * 7 * 1e-6 + 2 * 6 * 5e-6,
    ),
    "a rank alone on its node sends 8/9 to others": ("all_to_all", 9e9, Group(9, 8, 2, 1), 20e-6 + 8 / 20),
    "a rank of 16 sends half to the other node": ("all_to_all", 16e9, Group.even(8, 2), 20e-6 + 8 / 20),
    "a send has the share of one device": ("send_recv", 1e9, Group.even(1, 2), 20e-6 + 1 / 20),
}


@pytest.mark.parametrize(("op", "n_bytes", "group", "seconds"), ACROSS.values(), ids=ACROSS)
def test_what_goes_across_nodes_takes_its_latency_and_its_bytes_over_the_nics(
    op: calibration.CollectiveOp, n_bytes: float, group: Group, seconds: float
) -> None:
    assert CollectiveModel.of_node(node()).seconds(op, n_bytes, group).total_s == pytest.approx(seconds)


@pytest.mark.parametrize("op", OPS)
def test_links_without_calibration_use_their_datasheet(op: calibration.CollectiveOp) -> None:
    plain = CollectiveModel.of_node(node(calibrated=False))
    group = Group.inside_node(2)
    wire = {"all_reduce": 1.0, "send_recv": 1.0, "broadcast": 1.0}.get(op, 0.5)
    latency = 2e-6 if op == "all_reduce" else 1e-6
    assert plain.seconds(op, 3e9, group).total_s == pytest.approx(latency + wire * 3e9 / 300e9)
    across = plain.seconds(op, 3e9, Group.even(1, 2)).total_s
    assert across == pytest.approx(wire * 3e9 / 25e9, rel=1e-3)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("group", [Group.even(8, 1), Group.even(8, 2), Group.even(1, 4), Group(12, 8, 2, 4)])
def test_arrays_give_what_scalars_give_and_one_rank_and_no_bytes_cost_nothing(
    op: calibration.CollectiveOp, group: Group
) -> None:
    model = CollectiveModel.of_node(node())
    sizes = np.array([0.0, *np.geomspace(1, 1e9, 7)])
    times = model.seconds(op, sizes, group).total_s
    assert times.tolist() == [model.seconds(op, float(size), group).total_s for size in sizes]
    assert times[0] == model.seconds(op, 1e9, Group.inside_node(1)).total_s == 0.0


FAST = LinkSpec(name="fast", bandwidth=1e9, latency=0.0)
SLOW = LinkSpec(name="slow", bandwidth=1e8, latency=0.0)
N_BYTES = 1e12


def copies(group: Group, chosen: int) -> float:
    """Copies of an item that travel, from the time on the links that limit."""
    node = NodeSpec(devices=8, scale_up=FAST, nics=8, nic=SLOW)
    seconds = float(CollectiveModel.of_node(node).seconds("all_to_all", N_BYTES, group, chosen).total_s)
    if group.nodes > 1:
        return chosen * seconds * SLOW.bandwidth / N_BYTES
    return chosen * seconds * FAST.bandwidth / N_BYTES * group.size / (group.size - 1)


@pytest.mark.parametrize(("places", "chosen"), [(8, 2), (6, 8), (4, 8)])
def test_places_reached_are_those_that_random_choices_reach(places: int, chosen: int) -> None:
    drawn = np.random.default_rng(1).integers(places, size=(20_000, chosen))
    mean = np.mean([len(set(row)) for row in drawn.tolist()])
    assert copies(Group.inside_node(places), chosen) == pytest.approx(float(mean), rel=0.01)


def test_one_copy_crosses_to_each_other_node_that_has_some_of_the_members() -> None:
    assert copies(Group.even(8, 4), 8) == pytest.approx(3 * (1 - 0.75**8))


GIB = 2.0**30


DGX: GpuClusterSpec = default_catalog().system("dgx-h100")


def with_switches(inside: float | None = None, across: float | None = None) -> CollectiveModel:
    """DGX H100 with switches that sum at these bandwidths."""
    in_node, in_fabric = (
        None if rate is None else {"bandwidth": rate, "latency": 5e-6} for rate in (inside, across)
    )
    return CollectiveModel.of_node(DGX.node.with_(in_network=in_node), DGX.fabric.with_(in_network=in_fabric))


# Switches that sum in passing: off by default, as fast as measured where a system names them.
PLAIN = with_switches()
SUMMING = with_switches(274e9, 240e9)


def bus_bandwidth(model: CollectiveModel, n_bytes: float, group: Group) -> float:
    return 2 * (group.size - 1) / group.size * n_bytes / model.seconds("all_reduce", n_bytes, group).total_s


@pytest.mark.parametrize("group", [Group.inside_node(8), Group.even(8, 4)])
def test_dgx_h100_reaches_the_published_bus_bandwidth_with_sharp_and_without(group: Group) -> None:
    # NVIDIA, GTC 2024, session 62129: 370 inside a node and 380 GB/s across without, 480 GB/s with SHARP.
    summing = with_switches(480e9 / 1.75, 480e9 / (2 * 31 / 32))
    assert bus_bandwidth(PLAIN, 16 * GIB, group) < 450e9
    assert bus_bandwidth(summing, 16 * GIB, group) == pytest.approx(480e9, rel=0.01)


def test_an_all_reduce_is_never_slower_for_switches_that_sum_and_other_collectives_do_not_change() -> None:
    sizes = 2.0 ** np.arange(9, 34)
    for group in (Group.inside_node(2), Group.inside_node(8), Group.even(2, 16)):
        summed_s, plain_s = (model.seconds("all_reduce", sizes, group).total_s for model in (SUMMING, PLAIN))
        assert np.all(summed_s <= plain_s)
        for op in ("all_gather", "reduce_scatter", "all_to_all", "broadcast"):
            assert SUMMING.seconds(op, GIB, group).total_s == PLAIN.seconds(op, GIB, group).total_s


def test_one_rank_a_node_passes_its_nic_once_where_a_ring_passes_it_twice() -> None:
    models = (with_switches(across=1e12), PLAIN)
    once, twice = (model.seconds("all_reduce", 16 * GIB, Group.even(1, 64)).total_s for model in models)
    assert twice / once == pytest.approx(2 * 63 / 64, rel=0.01)


def test_what_a_link_carries_bounds_what_its_switch_may_sum() -> None:
    bound = with_switches(inside=1e15).seconds("all_reduce", 16 * GIB, Group.inside_node(8)).total_s
    assert bound >= 16 * GIB / 450e9


@pytest.mark.parametrize(
    ("group", "levels"),
    [(Group.even(8, 2 * DGX.fabric.nodes_per_leaf), 2), (Group.even(8, 2), 1), (Group.inside_node(8), 0)],
)
def test_the_time_is_start_up_hops_and_bytes(group: Group, levels: int) -> None:
    hops = 2 * levels * (DGX.node.nic.latency + DGX.fabric.switch_latency)
    expected = 5e-6 + hops + 1e6 / (100e9 if levels else 120e9)
    assert expected < CollectiveModel.of_node(DGX.node, DGX.fabric).seconds("all_reduce", 1e6, group).total_s
    assert with_switches(120e9, 100e9).seconds("all_reduce", 1e6, group).total_s == pytest.approx(expected)


def test_leaves_of_two_nodes_take_a_level_for_every_doubling() -> None:
    pairs = DGX.fabric.with_(nodes_per_leaf=2, in_network={"bandwidth": 100e9, "latency": 5e-6})
    hop_s = 2 * (DGX.node.nic.latency + DGX.fabric.switch_latency)
    for levels in (1, 2, 3):
        group = Group.even(8, 2**levels)
        taken_s = CollectiveModel.of_node(DGX.node, pairs).seconds("all_reduce", 1e6, group).total_s
        assert taken_s == pytest.approx(5e-6 + levels * hop_s + 1e6 / 100e9)


def of_one_ring(protocol: Any = None, **changes: Any) -> CollectiveModel:
    network = network_of(protocols=PROTOCOLS[:1], **changes)
    nic = LinkSpec(name="nic", bandwidth=25e9, latency=2e-6, protocol=protocol, calibration=network)
    return CollectiveModel.of_node(node().model_copy(update={"nic": nic}))


def test_a_broadcast_between_nodes_waits_at_every_rank_of_its_ring() -> None:
    """A base, a hop of the network for each rank but one, and the message once over all NICs of a node."""
    model = of_one_ring()
    moved_s = model.seconds("broadcast", 1e9, Group.even(8, 4)).total_s - (10e-6 + 31 * 5e-6)
    assert moved_s == pytest.approx(1e9 / (8 * 0.8 * 25e9), rel=1e-2)


@pytest.mark.parametrize(
    ("protocol", "roce", "share"), [("roce", 0.6, 0.6), ("infiniband", 0.6, 0.8), ("roce", None, 0.8)]
)
def test_roce_nics_have_their_own_share_of_bandwidth(protocol: Any, roce: float | None, share: float) -> None:
    model = of_one_ring(protocol, roce_efficiency=roce)
    long_s = model.seconds("send_recv", 1e12, Group.even(1, 2)).total_s
    assert long_s == pytest.approx(1e12 / (share * 25e9), rel=1e-4)


def test_what_is_late_on_the_way_adds_to_a_send_and_nothing_inside_a_node_is_sent_by_nics() -> None:
    late = replace(CollectiveModel.of_node(node()), late_s=(0.0, 5e-6))
    assert late.seconds("send_recv", 1.0, Group.even(1, 2)).total_s == pytest.approx(25e-6, rel=1e-3)
    assert late.seconds("all_to_all", 8.0, Group.inside_node(8), 2).total_s < 20e-6


def test_what_is_late_inside_a_node_adds_to_each_step_of_a_ring_and_to_both_ways_of_a_switch() -> None:
    ring = replace(CollectiveModel.of_node(node(calibrated=False)), late_s=(3e-6, 0.0))
    assert ring.seconds("all_reduce", 1.0, Group.inside_node(2)).total_s == pytest.approx(8e-6, rel=1e-3)
    switch = replace(with_switches(inside=274e9), late_s=(3e-6, 0.0))
    spread = switch.seconds("all_reduce", 1.0, Group.inside_node(8)).total_s
    assert spread == pytest.approx(5e-6 + 2 * 3e-6, rel=1e-3)
