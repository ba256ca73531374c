"""Peers whose groups lie alike over nodes and leaves have one number, whatever the number of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.machines.gpu_cluster import Spread
from perfsim.network import FatTree
from perfsim.specs.hardware import GpuClusterSpec
from perfsim.work import RankGroup


def tree_of(devices: int, oversubscription: float = 1.0) -> FatTree:
    system = default_catalog().system("dgx-h100")
    assert isinstance(system, GpuClusterSpec)
    fabric = system.fabric.model_copy(update={"oversubscription": oversubscription, "nodes_per_leaf": 4})
    return FatTree(system.model_copy(update={"fabric": fabric}), devices)


def written_out(spread: Spread, tree: FatTree, width: int) -> list[tuple[tuple[bool, ...], ...]]:
    """Of each peer, where its group enters nodes, and leaves where uplinks are thin."""
    rows = []
    for peer in range(width):
        first = peer - peer // spread.stride % spread.size * spread.stride
        ranks = [spread.group.start + first + spread.group.stride * k for k in range(spread.group.size)]
        places = [tree.node_of[ranks]] + [tree.leaf_of[ranks]] * tree.has_thin_uplinks(rated=True)
        rows.append(tuple(tuple(np.diff(place) != 0) for place in places))
    return rows


@pytest.mark.parametrize("oversubscription", [1.0, 2.0])
@pytest.mark.parametrize(
    ("start", "stride", "size"), [(0, 1, 8), (0, 1, 6), (0, 6, 16), (4, 12, 8), (0, 1, 1), (0, 3, 32)]
)
def test_peers_have_one_number_if_their_groups_lie_alike(
    start: int, stride: int, size: int, oversubscription: float
) -> None:
    tree = tree_of(128, oversubscription)
    width = 96
    spread = Spread(RankGroup(start, stride, size), stride, size)
    numbers = spread.entries_of_peers(tree, width, shares_links=True)
    assert numbers.shape == (width, 1)
    rows = written_out(spread, tree, width)
    alike = {(int(number), row) for number, row in zip(numbers[:, 0], rows, strict=True)}
    assert len(alike) == len({number for number, _ in alike}) == len({row for _, row in alike})
