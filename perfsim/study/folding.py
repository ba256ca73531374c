"""Whether ranks that are written once may be: their groups must lie alike over the nodes.

A folded graph is priced and run for one peer of each pipeline rank. That holds for the others if every
communication of theirs spans as many nodes, equally filled, and crosses leaves alike where these are
thinner than the NICs under them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import Kind, TaskGraph, Work, peer_classes
from perfsim.graph.symmetry import bases_of, width_of
from perfsim.topology import FatTree, Topology


def rank_classes(
    graph: TaskGraph, topology: Topology, marks: Mapping[int, Hashable] | None = None
) -> NDArray[np.int32]:
    """The classes of peers that have to be written apart: by where they stand, and by `marks` of ranks.

    A single class: the graph is rightly folded as it is.
    """
    width, known = width_of(graph), marks or {}
    if not isinstance(topology, FatTree) or width == 1:
        return peer_classes(graph, known)
    places = _places(graph, topology, width)
    if (places == places[0]).all():
        return peer_classes(graph, known)
    bases = bases_of(graph)
    every = {
        base + peer: (tuple(places[peer].tolist()), known.get(base + peer))
        for base in bases
        for peer in range(width)
    }
    return peer_classes(graph, every)


def _places(graph: TaskGraph, tree: FatTree, width: int) -> NDArray[np.int64]:
    """How the groups of each peer lie over the nodes: one row a peer, equal where they lie alike."""
    columns = [np.zeros((width, 1), dtype=np.int64)]
    seen = {(work.group, work.kind is Kind.COMM_COLL): work for work in graph.works if work.group is not None}
    columns += [_lies(work, tree, width) for work in seen.values()]
    return np.concatenate(columns, axis=1)


def _lies(work: Work, tree: FatTree, width: int) -> NDArray[np.int64]:
    """For every peer: nodes that its group spans, and how many members each of them holds."""
    group = work.group
    if group is None or group.size < 2:
        return np.zeros((width, 1), dtype=np.int64)
    offset = np.arange(width)
    inside = work.kind is Kind.COMM_COLL and abs(group.stride) < width
    first = offset - offset // group.stride % group.size * group.stride if inside else offset
    ranks = np.sort(group.start + first[:, None] + group.stride * np.arange(group.size), axis=1)
    nodes = ranks // tree.devices_per_node
    enters = np.diff(nodes, axis=1) != 0
    fabric = tree.system.fabric
    if fabric.oversubscription <= 1.0:  # no leaf can be asked for more than it carries
        return np.asarray(enters, dtype=np.int64)
    leaves = np.diff(nodes // fabric.nodes_per_leaf, axis=1) != 0
    return np.concatenate([enters, leaves], axis=1, dtype=np.int64)
