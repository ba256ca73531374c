"""What the algorithms of collectives move, and in how many steps.

Ring: in each step every rank sends one n-th of the message to its right neighbour. Reduce-scatter and
all-gather take n - 1 steps and move (n-1)/n of the message over each link; all-reduce is one after the other.
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; NCCL's bus
bandwidth counts the same bytes.

Binomial tree: few steps, so suited to short messages. A reduction halves the number of holders each round, a
broadcast doubles it, so both take ceil(log2 n) rounds of the whole message. NCCL pipelines two complementary
trees, each with half of the message, so that every rank sends twice the message in an all-reduce at full
bandwidth: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
2009.

In the network: switches copy or add passing data. This is SwarmX, between MemoryX and wafers; on GPU clusters
it is SHARP.

Dispatch: items that go to several members of a group. One copy of an item travels to every node that has some
of them, where it is forwarded to the ranks that do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfsim.base.errors import InputError
from perfsim.network.topology import Group
from perfsim.specs.calibration import CollectiveOp


def num_steps(op: CollectiveOp, size: int) -> int:
    """Sequential neighbour-to-neighbour hops on the longest path of a ring."""
    if op == "send_recv":
        return min(size - 1, 1)
    return (2 if op == "all_reduce" else 1) * (size - 1)


def wire_factor(op: CollectiveOp, size: int) -> float:
    """Bytes that each rank of a ring sends, over the bytes of the whole message.

    The whole message is what every rank holds after an all-gather or before a reduce-scatter.
    """
    if op in ("send_recv", "broadcast"):
        return float(min(size - 1, 1))
    return (2 if op == "all_reduce" else 1) * (size - 1) / size


DOUBLE_TREE_WIRE_FACTOR = 2.0
"""Bytes that each rank sends in a double-tree all-reduce, over the bytes of the message."""


def tree_depth(size: int) -> int:
    """Rounds of one reduction or broadcast: ceil(log2 size)."""
    return (size - 1).bit_length()


def tree_rounds(op: CollectiveOp, size: int) -> list[list[tuple[int, int]]]:
    """(sender, receiver) pairs of each round of a broadcast from rank 0, or of an all-reduce over it.

    Raises InputError for another operation.
    """
    if op not in ("all_reduce", "broadcast"):
        raise InputError(f"{op} does not run as a tree")
    down = []
    for level in reversed(range(tree_depth(size))):
        distance = 1 << level
        down.append([(lower, lower + distance) for lower in range(0, size - distance, 2 * distance)])
    up = [[(upper, lower) for lower, upper in pairs] for pairs in reversed(down)]
    return up + down if op == "all_reduce" else down


def all_reduce_in_network_s(
    n_bytes: ArrayLike, leaves: int, fan_out: int, bytes_per_s: float, hop_latency_s: float
) -> NDArray[np.float64]:
    """Seconds of a sum up a tree of switches and its broadcast down, which overlap on full-duplex links.

    Switches with `fan_out` children work at line rate and forward packets of negligible time, so the message
    is serialised once, and each level of switches adds two hops: bytes/bandwidth + 2 depth hop, with
    depth = ceil(log_fan_out leaves). Raises InputError for no leaf or a fan-out below 2.
    """
    if leaves < 1 or fan_out < 2:
        raise InputError(f"a tree needs a leaf and a fan-out of 2 or more, not {leaves} and {fan_out}")
    depth = 0
    reach = 1
    while reach < leaves:
        depth += 1
        reach *= fan_out
    up = np.asarray(n_bytes, dtype=float) / bytes_per_s + depth * hop_latency_s
    return np.asarray(up + depth * hop_latency_s)


class _Copies(NamedTuple):
    """Copies that travel, over the items counted once for each of their members."""

    inside: float
    """To ranks, of all nodes."""
    across: float
    """To other nodes."""


def copies(group: Group, fan_out: int) -> _Copies:
    """Copies of the items of one rank where each goes to `fan_out` members of a group."""
    inside = _reached(group.size, fan_out) / fan_out
    nodes = _reached(group.nodes, fan_out) * (group.nodes - 1) / group.nodes
    return _Copies(inside, nodes / fan_out)


def _reached(places: int, chosen: int) -> float:
    """Mean number of places reached by so many that are chosen at random: n (1 - (1 - 1/n)^k)."""
    return places * (1.0 - (1.0 - 1.0 / places) ** chosen)
