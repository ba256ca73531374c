"""Collectives: moves compute what they claim, as many as the formulas say; times behave."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfsim.catalog import default_catalog
from perfsim.network.collectives import CollectiveModel, num_steps, wire_factor
from perfsim.network.topology import Group
from perfsim.specs.calibration import CollectiveOp

sizes = st.integers(2, 12)
message_bytes = st.floats(1.0, 1e10)
RING_OPS: list[CollectiveOp] = ["all_reduce", "reduce_scatter", "all_gather"]
OPS: list[CollectiveOp] = [*RING_OPS, "broadcast", "all_to_all", "send_recv"]


def even_groups() -> st.SearchStrategy[Group]:
    return st.builds(Group.even, st.integers(1, 6), st.integers(1, 6))


def uneven_groups() -> st.SearchStrategy[Group]:
    """Up to 8 ranks on each of several nodes, in any order."""
    on_node = st.lists(st.integers(1, 8), min_size=2, max_size=16)
    return on_node.map(lambda ranks: Group(sum(ranks), max(ranks), len(ranks), min(ranks)))


Move = tuple[int, int, int, bool]
"""Sender, receiver, chunk, and whether the receiver adds the chunk to its own."""


def ring(op: CollectiveOp, size: int) -> list[list[Move]]:
    """The steps of a ring; a reducing round starts one chunk earlier, so that chunk i ends on rank i."""
    reducing = {"all_reduce": (True, False), "reduce_scatter": (True,), "all_gather": (False,)}[op]
    return [
        [(rank, (rank + 1) % size, (rank - step - reduces) % size, reduces) for rank in range(size)]
        for reduces in reducing
        for step in range(size - 1)
    ]


def replayed(steps: list[list[Move]], ranks: int, chunks: int) -> tuple[np.ndarray, np.ndarray]:
    """Random buffers (rank, chunk, numbers) before and after; a step reads the state before it."""
    generator = np.random.default_rng(ranks * 1000 + chunks)
    # Whole numbers, so that a sum is exact in any order.
    before = generator.integers(-1000, 1000, (ranks, chunks, 3)).astype(float)
    after = before.copy()
    for moves in steps:
        sent = after.copy()
        for source, target, chunk, reduces in moves:
            after[target, chunk] = sent[source, chunk] + (sent[target, chunk] if reduces else 0.0)
    return before, after


@given(sizes)
def test_rings_leave_what_their_operation_promises(size: int) -> None:
    before, after = replayed(ring("all_reduce", size), size, size)
    assert (after == before.sum(axis=0)).all()
    before, after = replayed(ring("reduce_scatter", size), size, size)
    assert all((after[rank, rank] == before[:, rank].sum(axis=0)).all() for rank in range(size))
    before, after = replayed(ring("all_gather", size), size, size)
    assert (after == before[range(size), range(size)]).all()


@given(st.sampled_from(RING_OPS), sizes)
def test_a_ring_has_the_steps_and_sends_the_bytes_of_its_formulas(op: CollectiveOp, size: int) -> None:
    steps = ring(op, size)
    assert len(steps) == num_steps(op, size)
    sent = Counter(source for moves in steps for source, *_ in moves)
    assert sent == dict.fromkeys(range(size), round(size * wire_factor(op, size)))


SYSTEMS = {name: default_catalog().system(name) for name in ("dgx-a100-80gb", "dgx-h100")}
MODELS = {name: CollectiveModel.of_node(system.node, system.fabric) for name, system in SYSTEMS.items()}
"""Two devices to a NIC, and a NIC and switches that reduce for each device."""
MODEL = MODELS["dgx-a100-80gb"]


@given(st.sampled_from(OPS), even_groups() | uneven_groups(), st.floats(1.0, 1e11), st.floats(1.0, 100.0))
def test_time_grows_at_most_as_bytes(op: CollectiveOp, group: Group, n_bytes: float, factor: float) -> None:
    one = MODEL.seconds(op, n_bytes, group).total_s
    more = MODEL.seconds(op, factor * n_bytes, group).total_s
    assert one <= more * (1 + 1e-12)
    assert more <= factor * one * (1 + 1e-12)


worse_groups = uneven_groups().flatmap(
    lambda group: st.tuples(
        st.just(group),
        st.builds(
            lambda most, nodes, fewest: Group(group.size, most, nodes, fewest),
            st.integers(group.most_per_node, 8),
            st.integers(group.nodes, group.nodes + 3),
            st.integers(1, group.fewest_per_node),
        ),
    )
)
"""A group, and where it could lie less evenly or over more nodes."""


@given(st.sampled_from(sorted(MODELS)), st.sampled_from(OPS), worse_groups, message_bytes)
def test_as_many_ranks_less_evenly_or_on_more_nodes_are_never_faster(
    name: str, op: CollectiveOp, groups: tuple[Group, Group], n_bytes: float
) -> None:
    group, worse = groups
    least = worse.most_per_node + worse.fewest_per_node * (worse.nodes - 1)
    assume(least <= group.size <= worse.most_per_node * (worse.nodes - 1) + worse.fewest_per_node)
    usual_s, worse_s = (MODELS[name].seconds(op, n_bytes, shape).total_s for shape in (group, worse))
    assert worse_s >= usual_s * (1 - 1e-12)


@given(st.sampled_from(["all_gather", "reduce_scatter"]), uneven_groups())
def test_long_messages_take_as_long_a_byte_as_on_nodes_as_empty(op: CollectiveOp, group: Group) -> None:
    even = Group.even(group.fewest_per_node, group.nodes)
    shapes = (group, even)
    per_byte = [MODEL.seconds(op, 1e18, shape).total_s / wire_factor(op, shape.size) for shape in shapes]
    assert per_byte[0] == pytest.approx(per_byte[1], rel=1e-6)


@given(st.sampled_from(RING_OPS), st.integers(1, 8), st.integers(2, 9), message_bytes, st.booleans())
def test_an_even_group_takes_what_the_formulas_of_even_groups_say(
    op: CollectiveOp, ranks: int, nodes: int, n_bytes: float, shared_nics: bool
) -> None:
    """The same protocols written out for `ranks` on each of `nodes`, without regard to uneven groups."""
    network = MODEL.node.nic.calibration.network
    bus = ranks * MODEL.nic_share_bytes_per_s * network.efficiency
    if shared_nics and ranks not in (1, MODEL.node.devices):
        bus = min(bus, ranks * network.partial_node_rank_bytes_per_s)
    lines = []
    for line in network.protocols:
        across = num_steps(op, nodes)
        inside = num_steps(op, ranks * nodes)
        hops = (across, inside - across)
        wire = wire_factor(op, ranks * nodes)
        if line.algorithm == "tree":
            hops = (2 * math.ceil(math.log2(nodes)), 2 * (ranks - 1))
            wire = 2.0
        steps_s = hops[0] * line.inter_step_s + hops[1] * line.intra_step_s
        moving_s = n_bytes * wire / (line.bandwidth_fraction * bus)
        if line.algorithm == "ring" or op == "all_reduce":
            lines.append(line.latency_base_s + steps_s + moving_s)
    node = MODEL.node.model_copy(update={"nics": 8, "devices_share_nics": shared_nics})
    model = replace(MODEL, node=node)
    seconds = model.seconds(op, n_bytes, Group.even(ranks, nodes)).total_s
    assert seconds == pytest.approx(min(lines), rel=1e-12)
