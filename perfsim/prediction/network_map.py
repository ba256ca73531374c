"""A network folded by kind of place: what repeats is drawn once, with how often it is there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfsim.topology import Topology


@dataclass(frozen=True, slots=True)
class Place:
    """All vertices of a kind, such as the NICs."""

    kind: str
    """Kind of place."""
    count: int
    """Places of this kind."""
    homes: int
    """Nodes, systems or stores over which they are spread evenly; 1 where they are not."""
    home: str
    """What a home is called in the names of vertices: `node`, `cs`."""


@dataclass(frozen=True, slots=True)
class Cables:
    """All links of a kind between two kinds of places."""

    kind: str
    """Kind of link."""
    a: str
    """Kind of place at one end."""
    b: str
    """Kind of place at the other end."""
    count: int
    """Links of this kind."""
    bytes_per_s: float
    """Of one link in one direction, the rated capacity."""


@dataclass(frozen=True, slots=True)
class NetworkMap:
    """The folded network; the first place are the devices."""

    places: tuple[Place, ...]
    cables: tuple[Cables, ...]


def network_map(topology: Topology) -> NetworkMap:
    """The kinds of vertices of a topology's graph, and the kinds of edges between them."""
    kinds = list(dict.fromkeys(kind for _, kind in topology.vertices))
    number = {kind: place for place, kind in enumerate(kinds)}
    of_vertex = np.array([number[kind] for _, kind in topology.vertices])
    homes: list[set[str]] = [set() for _ in kinds]
    for name, kind in topology.vertices:
        homes[number[kind]].add(name.split("/", 1)[0])
    counts = np.bincount(of_vertex, minlength=len(kinds)).tolist()
    places = tuple(
        Place(kind, count, *_spread(count, own))
        for kind, count, own in zip(kinds, counts, homes, strict=True)
    )
    edges = topology.edges
    there = slice(0, len(edges), 2)
    ends = np.sort(np.stack([of_vertex[edges.source[there]], of_vertex[edges.target[there]]]), axis=0)
    rows, number_of = np.unique(np.vstack([ends, edges.kind[there]]), axis=1, return_counts=True)
    cables = tuple(
        Cables(edges.kinds[kind], kinds[a], kinds[b], count, edges.rated[edges.kinds[kind]])
        for (a, b, kind), count in zip(rows.T.tolist(), number_of.tolist(), strict=True)
    )
    return NetworkMap(places, cables)


def _spread(count: int, homes: set[str]) -> tuple[int, str]:
    """Over how many homes so many vertices are spread evenly, and what a home is called."""
    even = len(homes) if count % len(homes) == 0 else 1
    return even, min(homes).rstrip("0123456789")
