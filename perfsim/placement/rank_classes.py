"""Whether ranks that are written once may be: their groups must lie alike over the nodes.

A folded graph is priced and run for one peer of each pipeline rank, which must hold for all others.
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
    """The classes of peers that have to be written apart: by where they stand, and by `marks` of ranks.

    A single class: the graph is rightly folded as it is. Where nothing `shares_links`, places are
    alike already if they cost the same.
    """
    width, known = graph.width, marks or {}
    places = network.peer_places(graph.works, width, shares_links=shares_links)
    if places is None:
        return peer_classes(graph, known) if known else np.zeros(width, dtype=np.int32)
    numbers = np.unique(places, axis=0, return_inverse=True)[1].reshape(-1).tolist()
    every = {
        base + peer: (numbers[peer], known.get(base + peer))
        for base in bases_of(graph)
        for peer in range(width)
    }
    return peer_classes(graph, every)
