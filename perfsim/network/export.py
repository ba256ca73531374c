"""The network in a file, as GraphML or DOT."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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
