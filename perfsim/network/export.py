"""The network in a file, as GraphML or DOT, and folded by kind of place for a drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfsim.base.errors import InputError
from perfsim.network.topology import Topology

if TYPE_CHECKING:
    import networkx as nx


def write_graph(topology: Topology, path: Path) -> None:
    """Write the whole network to a file, as its name ends: `.graphml`, or `.dot` or `.gv` for Graphviz.

    Vertices have their `kind`; edges, one for each direction, have `link` (their id), `kind`, `bytes_per_s`,
    `seconds` (latency) and `duplex`. Raises InputError for another ending.
    """
    lines_of = FORMATS.get(path.suffix.lower())
    if lines_of is None:
        raise InputError(f"{path}: the name of a graph's file ends in {', '.join(FORMATS)}")
    path.write_text("\n".join([*lines_of(topology.graph), ""]), encoding="utf-8")


def _graphml(graph: nx.MultiDiGraph[str]) -> Iterable[str]:
    import networkx as nx

    lines: Iterable[str] = nx.generate_graphml(graph)
    return lines


def _dot(graph: nx.MultiDiGraph[str]) -> Iterator[str]:
    yield "digraph {"
    for name, data in graph.nodes(data=True):
        yield f'  "{name}" [kind="{data["kind"]}"];'
    for a, b, data in graph.edges(data=True):
        duplex = str(data["duplex"]).lower()
        values = ", ".join(f'{name}="{value}"' for name, value in (data | {"duplex": duplex}).items())
        yield f'  "{a}" -> "{b}" [{values}];'
    yield "}"


FORMATS: dict[str, Callable[[nx.MultiDiGraph[str]], Iterable[str]]] = {
    ".graphml": _graphml,
    ".dot": _dot,
    ".gv": _dot,
}


# The network folded by kind of place: what repeats is drawn once, with how often it is there.


@dataclass(frozen=True, slots=True)
class Place:
    """All vertices of a kind, such as the NICs."""

    kind: str
    """Kind of place."""
    count: int
    """Vertices of this kind."""
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

    @classmethod
    def of(cls, topology: Topology) -> NetworkMap:
        """The kinds of vertices of a topology's graph, and the kinds of edges between them."""
        kinds = list(dict.fromkeys(kind for _, kind in topology.vertices))
        number = {kind: index for index, kind in enumerate(kinds)}
        of_vertex = np.array([number[kind] for _, kind in topology.vertices])
        homes: list[set[str]] = [set() for _ in kinds]
        for name, kind in topology.vertices:
            homes[number[kind]].add(name.split("/", 1)[0])
        counts = np.bincount(of_vertex, minlength=len(kinds)).tolist()
        places = tuple(
            Place(kind, count, len(names) if count % len(names) == 0 else 1, min(names).rstrip("0123456789"))
            for kind, count, names in zip(kinds, counts, homes, strict=True)
        )
        edges = topology.edges
        there = slice(0, len(edges), 2)
        ends = np.sort(np.stack([of_vertex[edges.source[there]], of_vertex[edges.target[there]]]), axis=0)
        rows, number_of = np.unique(np.vstack([ends, edges.kind[there]]), axis=1, return_counts=True)
        cables = tuple(
            Cables(edges.kinds[kind], kinds[a], kinds[b], count, edges.rated[edges.kinds[kind]])
            for (a, b, kind), count in zip(rows.T.tolist(), number_of.tolist(), strict=True)
        )
        return cls(places, cables)
