"""How a group of ranks, and the corresponding groups of its peers, lie over nodes and leaves.

A folded graph is priced and simulated for one peer of each pipeline rank. For prices, this holds for all
peers if their communications span as many nodes, equally filled. Where links are shared, groups must also
enter nodes at the same members, and cross leaves alike where uplinks are oversubscribed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import RankGroup, Work
from perfsim.graph.symmetry import meeting_of
from perfsim.machines.network import Ints
from perfsim.topology import FatTree


class Spread(NamedTuple):
    """A group of a folded rank and which peers share it; its position depends on nothing else."""

    group: RankGroup
    stride: int
    size: int
    """Number of peers in one group."""

    @classmethod
    def of(cls, work: Work, tree: FatTree, width: int) -> Spread:
        """The spread of a work's group, shifted by whole nodes (leaves, where uplinks are thin)."""
        group = work.group or RankGroup(0, 1, 1)
        nodes_per_leaf = tree.system.fabric.nodes_per_leaf
        alike = tree.devices_per_node * (nodes_per_leaf if tree.has_thin_uplinks(rated=True) else 1)
        meeting = meeting_of(work, width)
        first = group.start if group.stride > 0 else group.ranks[-1]
        moved = RankGroup(first % alike, abs(group.stride), group.size)
        return cls(moved, meeting.stride, meeting.size)

    def entries_of_peers(self, tree: FatTree, width: int, *, shares_links: bool) -> Ints:
        """One row a peer: a number for where its group enters nodes, or how ranks lie on nodes (`_shapes`).

        Groups are compared, of which there are fewer than peers; memory grows with ranks only.
        """
        offset = np.arange(width)
        first, of_peer = np.unique(
            offset - offset // self.stride % self.size * self.stride, return_inverse=True
        )
        ranks = self.group.start + first[:, None] + self.group.stride * np.arange(self.group.size)
        nodes = tree.node_of[ranks]
        enters = np.diff(nodes, axis=1) != 0
        if not shares_links:
            return _shapes(enters)[of_peer]
        if tree.has_thin_uplinks(rated=True):  # else uplinks carry all that the NICs below can send
            enters = np.concatenate([enters, np.diff(tree.leaf_of[ranks], axis=1) != 0], axis=1)
        number = np.unique(np.packbits(enters, axis=1), axis=0, return_inverse=True)[1]
        return np.asarray(number.reshape(-1, 1)[of_peer], dtype=np.int64)


def _shapes(enters: NDArray[np.bool_]) -> Ints:
    """Number of nodes of every group, and its ranks on the fullest and the emptiest node."""
    groups, size = len(enters), enters.shape[1] + 1
    first = np.insert(enters, 0, True, axis=1)
    node = np.cumsum(first, axis=1) - 1
    ranks = np.bincount((node + size * np.arange(groups)[:, None]).ravel(), minlength=groups * size)
    ranks = ranks.reshape(groups, size)
    emptiest = np.where(ranks > 0, ranks, size).min(axis=1)
    return np.stack([first.sum(axis=1), ranks.max(axis=1), emptiest], axis=1)
