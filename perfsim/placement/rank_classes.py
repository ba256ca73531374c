"""Which peers of a folded graph differ, because their groups lie differently over the nodes.

A folded graph is priced and simulated for one peer of each pipeline rank, which must hold for all peers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import TaskGraph, peer_classes
from perfsim.graph.symmetry import bases_of
from perfsim.machines.network import Network


def rank_classes(
    graph: TaskGraph,
    network: Network,
    marks: Mapping[int, Hashable] | None = None,
    *,
    shares_links: bool = True,
) -> NDArray[np.int32]:
    """The class of each peer, by its position in the network and by the `marks` of ranks.

    With a single class the graph can stay folded. Unless something `shares_links`, positions that cost the
    same are alike.
    """
    width, marks = graph.width, marks or {}
    places = network.peer_places(graph.works, width, shares_links=shares_links)
    if places is None:
        return peer_classes(graph, marks) if marks else np.zeros(width, dtype=np.int32)
    numbers = np.unique(places, axis=0, return_inverse=True)[1].reshape(-1).tolist()
    keys = {
        base + peer: (numbers[peer], marks.get(base + peer))
        for base in bases_of(graph)
        for peer in range(width)
    }
    return peer_classes(graph, keys)
