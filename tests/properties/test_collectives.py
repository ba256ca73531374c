"""Collectives: stepping equals the closed form, moves compute what they claim, times behave."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.network import hierarchical, in_network, ring, tree
from perfsim.network.collectives import CollectiveModel
from perfsim.network.topology import Group
from perfsim.specs.calibration import CollectiveOp
from perfsim.specs.hardware import GpuClusterSpec
from perfsim.testing.independent import lockstep_s, pipelined_s, replay, uniform_link

sizes = st.integers(2, 12)
message_bytes = st.floats(1.0, 1e10)
latencies = st.floats(0.0, 1e-3)
bandwidths = st.floats(1e8, 1e12)
RING_OPS: list[CollectiveOp] = ["all_reduce", "reduce_scatter", "all_gather", "broadcast"]
OPS: list[CollectiveOp] = [*RING_OPS, "all_to_all", "send_recv"]


def even_groups() -> st.SearchStrategy[Group]:
    return st.builds(Group.even, st.integers(1, 6), st.integers(1, 6))


def uneven_groups() -> st.SearchStrategy[Group]:
    """Up to 8 ranks on each of several nodes, in any order."""
    on_node = st.lists(st.integers(1, 8), min_size=2, max_size=16)
    return on_node.map(lambda ranks: Group(sum(ranks), max(ranks), len(ranks), min(ranks)))


def random_buffers(ranks: int, chunks: int) -> list[np.ndarray]:
    """Whole numbers, so that a sum is exact in any order."""
    generator = np.random.default_rng(ranks * 1000 + chunks)
    return [generator.integers(-1000, 1000, (chunks, 3)).astype(float) for _ in range(ranks)]


@given(st.sampled_from(RING_OPS), sizes, message_bytes, latencies, bandwidths)
def test_stepping_round_a_ring_takes_the_closed_form(
    op: CollectiveOp, size: int, n_bytes: float, latency_s: float, bytes_per_s: float
) -> None:
    stepped = lockstep_s(ring.steps(op, size, n_bytes), uniform_link(latency_s, bytes_per_s))
    assert stepped == pytest.approx(float(ring.time_s(op, size, n_bytes, latency_s, bytes_per_s)))


@given(st.sampled_from(["all_reduce", "broadcast"]), sizes, message_bytes, latencies, bandwidths)
def test_stepping_up_and_down_a_tree_takes_the_closed_form(
    op: CollectiveOp, size: int, n_bytes: float, latency_s: float, bytes_per_s: float
) -> None:
    stepped = lockstep_s(tree.steps(op, size, n_bytes), uniform_link(latency_s, bytes_per_s))
    assert stepped == pytest.approx(float(tree.time_s(op, size, n_bytes, latency_s, bytes_per_s)))


@given(even_groups(), message_bytes, latencies, bandwidths, latencies, bandwidths)
def test_stepping_through_two_tiers_takes_the_closed_form(
    group: Group, n_bytes: float, near_s: float, near_rate: float, far_s: float, far_rate: float
) -> None:
    def link(src: int, dst: int) -> tuple[float, float]:
        same_node = src // group.most_per_node == dst // group.most_per_node
        return (near_s, near_rate) if same_node else (far_s, far_rate)

    stepped = lockstep_s(hierarchical.steps(group, n_bytes), link)
    closed = hierarchical.time_s(group, n_bytes, near_s, near_rate, far_s, far_rate)
    assert stepped == pytest.approx(float(closed))


@given(st.sampled_from(RING_OPS), even_groups())
def test_steps_are_numbered_from_0_in_the_order_in_which_they_follow(op: CollectiveOp, group: Group) -> None:
    rounds = [hierarchical.steps(group, 1.0)]
    if group.size > 1:
        rounds += [ring.steps(op, group.size, 1.0), tree.steps("all_reduce", group.size, 1.0)]
    for moves in rounds:
        steps = [move.step for move in moves]
        assert steps == sorted(steps)
        assert set(steps) == set(range(len(set(steps))))


@given(
    st.sampled_from(["broadcast", "reduce"]),
    st.integers(1, 20),
    st.integers(2, 5),
    st.integers(1, 9),
    latencies,
    bandwidths,
)
def test_a_pipelined_walk_through_the_network_takes_the_closed_form(
    op: str, leaves: int, fan_out: int, chunks: int, hop_s: float, bytes_per_s: float
) -> None:
    def link(src: int, dst: int) -> tuple[float, float]:
        # A switch adds a hop; the source hangs on the first switch directly.
        return (0.0 if 0 in (src, dst) else hop_s), bytes_per_s

    chunk = 1e6
    n_bytes = chunks * 1e6
    walked = pipelined_s(in_network.steps(op, leaves, fan_out, n_bytes, chunk), link)  # type: ignore[arg-type]
    assert walked == pytest.approx(
        float(in_network.time_s(n_bytes, leaves, fan_out, bytes_per_s, hop_s, chunk))
    )


@given(sizes)
def test_a_ring_all_reduce_sums_everywhere(size: int) -> None:
    buffers = random_buffers(size, size)
    total = np.sum(buffers, axis=0)
    replay(ring.steps("all_reduce", size, 1.0), buffers)
    assert all(np.array_equal(buffer, total) for buffer in buffers)


@given(sizes)
def test_a_ring_reduce_scatter_leaves_chunk_i_on_rank_i(size: int) -> None:
    buffers = random_buffers(size, size)
    total = np.sum(buffers, axis=0)
    replay(ring.steps("reduce_scatter", size, 1.0), buffers)
    assert all(np.array_equal(buffer[rank], total[rank]) for rank, buffer in enumerate(buffers))


@given(sizes)
def test_a_ring_all_gather_collects_chunk_i_from_rank_i(size: int) -> None:
    buffers = random_buffers(size, size)
    gathered = np.array([buffer[rank] for rank, buffer in enumerate(buffers)])
    replay(ring.steps("all_gather", size, 1.0), buffers)
    assert all(np.array_equal(buffer, gathered) for buffer in buffers)


@given(st.sampled_from(["ring", "tree"]), sizes)
def test_a_broadcast_gives_every_rank_what_rank_0_holds(algorithm: str, size: int) -> None:
    module, chunks = (ring, size) if algorithm == "ring" else (tree, 1)
    buffers = random_buffers(size, chunks)
    sent = buffers[0].copy()
    replay(module.steps("broadcast", size, 1.0), buffers)
    assert all(np.array_equal(buffer, sent) for buffer in buffers)


@given(sizes)
def test_a_tree_all_reduce_sums_everywhere(size: int) -> None:
    buffers = random_buffers(size, 1)
    total = np.sum(buffers, axis=0)
    replay(tree.steps("all_reduce", size, 1.0), buffers)
    assert all(np.array_equal(buffer, total) for buffer in buffers)


@given(even_groups())
def test_a_hierarchical_all_reduce_sums_everywhere(group: Group) -> None:
    buffers = random_buffers(group.size, group.size)
    total = np.sum(buffers, axis=0)
    replay(hierarchical.steps(group, 1.0), buffers)
    assert all(np.array_equal(buffer, total) for buffer in buffers)


@given(st.integers(1, 20), st.integers(2, 5), st.integers(1, 4))
def test_the_network_broadcasts_and_sums(leaves: int, fan_out: int, chunks: int) -> None:
    moves = in_network.steps("broadcast", leaves, fan_out, chunks, 1.0)
    vertices = 1 + max(move.dst for move in moves)
    buffers = random_buffers(vertices, chunks)
    sent = buffers[0].copy()
    replay(in_network.steps("broadcast", leaves, fan_out, chunks, 1.0), buffers)
    assert all(np.array_equal(buffer, sent) for buffer in buffers[-leaves:])
    buffers = random_buffers(vertices, chunks)
    for buffer in buffers[:-leaves]:
        buffer[:] = 0.0
    total = np.sum(buffers[-leaves:], axis=0)
    replay(in_network.steps("reduce", leaves, fan_out, chunks, 1.0), buffers)
    assert np.array_equal(buffers[0], total)


@given(st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]), sizes, message_bytes)
def test_each_rank_of_a_ring_sends_what_the_textbook_says(
    op: CollectiveOp, size: int, n_bytes: float
) -> None:
    sent: Counter[int] = Counter()
    for move in ring.steps(op, size, n_bytes):
        sent[move.src] += move.n_bytes  # type: ignore[assignment]
    expected = (2 if op == "all_reduce" else 1) * (size - 1) / size * n_bytes
    assert [sent[rank] for rank in range(size)] == pytest.approx([expected] * size)
    assert ring.wire_factor(op, size) * n_bytes == pytest.approx(expected)


@given(even_groups(), message_bytes)
def test_a_hierarchical_all_reduce_crosses_nodes_with_a_share_of_the_message(
    group: Group, n_bytes: float
) -> None:
    across = sum(
        move.n_bytes
        for move in hierarchical.steps(group, n_bytes)
        if move.src // group.most_per_node == 0 and move.dst // group.most_per_node != 0
    )
    assert across == pytest.approx(2 * (group.nodes - 1) / group.nodes * n_bytes)


def calibrated_model() -> CollectiveModel:
    system = default_catalog().system("dgx-a100-80gb")
    assert isinstance(system, GpuClusterSpec)
    return CollectiveModel.of_node(system.node)


MODEL = calibrated_model()


@given(st.sampled_from(OPS), even_groups() | uneven_groups(), st.floats(1.0, 1e11), st.floats(1.0, 100.0))
def test_more_bytes_never_take_less_time_nor_more_than_in_proportion(
    op: CollectiveOp, group: Group, n_bytes: float, factor: float
) -> None:
    one = MODEL.time_s(op, n_bytes, group)
    more = MODEL.time_s(op, factor * n_bytes, group)
    assert one <= more * (1 + 1e-12)
    assert more <= factor * one * (1 + 1e-12)


@given(st.sampled_from(OPS), uneven_groups(), st.floats(1e6, 1e10))
def test_spreading_a_group_over_nodes_never_beats_the_line_rate(
    op: CollectiveOp, group: Group, n_bytes: float
) -> None:
    fewest = group.fewest_per_node
    rate = fewest * MODEL.nic_share_bytes_per_s
    factors = {"all_to_all": (1 - fewest / group.size) * fewest, "send_recv": fewest}
    factor = factors.get(op, ring.wire_factor(op, group.size))
    assert MODEL.time_s(op, n_bytes, group) > factor * n_bytes / rate


MODELS = {
    name: CollectiveModel.of_node(system.node, system.fabric)
    for name in ("dgx-a100-80gb", "dgx-h100")
    if isinstance(system := default_catalog().system(name), GpuClusterSpec)
}
"""Two devices to a NIC, and a NIC and switches that reduce for each device."""
worse_groups = uneven_groups().flatmap(
    lambda group: st.tuples(
        st.just(group),
        st.builds(
            lambda most, nodes, fewest: (group.size, most, nodes, fewest),
            st.integers(group.most_per_node, 8),
            st.integers(group.nodes, group.nodes + 3),
            st.integers(1, group.fewest_per_node),
        ),
    )
)
"""A group, and where it could lie less evenly or over more nodes."""


@given(st.sampled_from(sorted(MODELS)), st.sampled_from(OPS), worse_groups, message_bytes)
def test_as_many_ranks_less_evenly_or_on_more_nodes_are_never_faster(
    name: str, op: CollectiveOp, groups: tuple[Group, tuple[int, int, int, int]], n_bytes: float
) -> None:
    group, numbers = groups
    try:
        worse = Group(*numbers)
    except InputError:
        return
    assert MODELS[name].time_s(op, n_bytes, worse) >= MODELS[name].time_s(op, n_bytes, group) * (1 - 1e-12)


@given(st.sampled_from(["all_gather", "reduce_scatter"]), uneven_groups())
def test_a_long_message_takes_as_long_for_each_byte_on_the_wire_as_if_all_nodes_were_as_empty(
    op: CollectiveOp, group: Group
) -> None:
    even = Group.even(group.fewest_per_node, group.nodes)
    per_byte = [MODEL.time_s(op, 1e18, shape) / ring.wire_factor(op, shape.size) for shape in (group, even)]
    assert per_byte[0] == pytest.approx(per_byte[1], rel=1e-6)


@given(
    st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]),
    st.integers(1, 8),
    st.integers(2, 9),
    message_bytes,
    st.booleans(),
)
def test_an_even_group_takes_what_the_formulas_of_even_groups_say(
    op: CollectiveOp, ranks: int, nodes: int, n_bytes: float, shared_nics: bool
) -> None:
    """The same protocols written out for `ranks` on each of `nodes`, without regard to uneven groups."""
    calibration = MODEL.nic.calibration
    assert calibration is not None
    assert calibration.network is not None
    network = calibration.network
    bus = ranks * MODEL.nic_share_bytes_per_s * network.efficiency
    if shared_nics and ranks not in (1, MODEL.devices_per_node):
        assert network.partial_node_rank_bytes_per_s is not None
        bus = min(bus, ranks * network.partial_node_rank_bytes_per_s)
    lines = []
    for line in network.protocols:
        across = ring.num_steps(op, nodes)
        inside = ring.num_steps(op, ranks * nodes)
        hops = (across, inside - across)
        wire = ring.wire_factor(op, ranks * nodes)
        if line.algorithm == "tree":
            hops = (2 * tree.depth(nodes), 2 * (ranks - 1))
            wire = 2.0
        steps_s = hops[0] * line.inter_step_s + hops[1] * line.intra_step_s
        moving_s = n_bytes * wire / (line.bandwidth_fraction * bus)
        if line.algorithm == "ring" or op == "all_reduce":
            lines.append(line.latency_base_s + steps_s + moving_s)
    model = replace(MODEL, shared_nics=shared_nics)
    assert model.time_s(op, n_bytes, Group.even(ranks, nodes)) == pytest.approx(min(lines), rel=1e-12)
