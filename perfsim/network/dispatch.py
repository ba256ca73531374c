"""An all-to-all in which every item goes to several members chosen at random, one copy to a rank and node.

That is how DeepEP and HybridEP send tokens to experts: between nodes a token travels once for every node that
holds some of its experts, and inside it is forwarded to the ranks that do. Of k members chosen at random
among n equal places, n (1 - (1 - 1/n)^k) are reached.
"""

from __future__ import annotations

from typing import NamedTuple

from perfsim.network.topology import Group


class Copies(NamedTuple):
    """Copies that travel, over the items counted once for each of their members."""

    inside: float
    """To ranks, of all nodes."""
    across: float
    """To other nodes."""


def copies(group: Group, fan_out: int) -> Copies:
    """Copies of the items of one rank where each goes to `fan_out` members of a group."""
    inside = reached(group.size, fan_out) / fan_out
    nodes = reached(group.nodes, fan_out) * (group.nodes - 1) / group.nodes
    return Copies(inside, nodes / fan_out)


def reached(places: int, chosen: int) -> float:
    """Places reached by so many that are chosen at random; all of them by 1 is 1."""
    return places * (1.0 - (1.0 - 1.0 / places) ** chosen)
