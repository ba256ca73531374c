"""Collectives: stepping equals the closed form, moves compute what they claim, times behave."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.calibration import CollectiveOp
from perfsim.catalog import default_catalog
from perfsim.collectives import CollectiveModel, Group, hierarchical, in_network, ring, tree
from perfsim.hardware import GpuClusterSpec
from perfsim.testing.stepping import lockstep_s, pipelined_s, replay, uniform_link

sizes = st.integers(2, 12)
message_bytes = st.floats(1.0, 1e10)
latencies = st.floats(0.0, 1e-3)
bandwidths = st.floats(1e8, 1e12)
RING_OPS: list[CollectiveOp] = ["all_reduce", "reduce_scatter", "all_gather", "broadcast"]
OPS: list[CollectiveOp] = [*RING_OPS, "all_to_all", "send_recv"]


def even_groups() -> st.SearchStrategy[Group]:
    return st.builds(lambda r, n: Group(r * n, r, n), st.integers(1, 6), st.integers(1, 6))


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
        same_node = src // group.ranks_per_node == dst // group.ranks_per_node
        return (near_s, near_rate) if same_node else (far_s, far_rate)

    stepped = lockstep_s(hierarchical.steps(group, n_bytes), link)
    closed = hierarchical.time_s(group, n_bytes, near_s, near_rate, far_s, far_rate)
    assert stepped == pytest.approx(float(closed))


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

    chunk, n_bytes = 1e6, chunks * 1e6
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
        if move.src // group.ranks_per_node == 0 and move.dst // group.ranks_per_node != 0
    )
    assert across == pytest.approx(2 * (group.nodes - 1) / group.nodes * n_bytes)


def calibrated_model() -> CollectiveModel:
    system = default_catalog().system("dgx-a100-80gb")
    assert isinstance(system, GpuClusterSpec)
    return CollectiveModel.of_node(system.node)


MODEL = calibrated_model()


@given(st.sampled_from(OPS), even_groups(), st.floats(1.0, 1e11), st.floats(1.0, 100.0))
def test_more_bytes_never_take_less_time_nor_more_than_in_proportion(
    op: CollectiveOp, group: Group, n_bytes: float, factor: float
) -> None:
    one, more = MODEL.time_s(op, n_bytes, group), MODEL.time_s(op, factor * n_bytes, group)
    assert one <= more * (1 + 1e-12)
    assert more <= factor * one * (1 + 1e-12)


@given(st.sampled_from(OPS), st.integers(1, 8), st.integers(2, 16), st.floats(1e6, 1e10))
def test_spreading_a_group_over_nodes_never_beats_the_line_rate(
    op: CollectiveOp, ranks_per_node: int, nodes: int, n_bytes: float
) -> None:
    group = Group(ranks_per_node * nodes, ranks_per_node, nodes)
    rate = ranks_per_node * MODEL.nic_share_bytes_per_s
    factors = {"all_to_all": (1 - 1 / nodes) * ranks_per_node, "send_recv": ranks_per_node}
    factor = factors.get(op, ring.wire_factor(op, group.size))
    assert MODEL.time_s(op, n_bytes, group) > factor * n_bytes / rate
