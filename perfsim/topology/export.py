"""Writes a topology's graph as GraphML or DOT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from perfsim.errors import InputError
from perfsim.topology.base import Topology

if TYPE_CHECKING:
    import networkx as nx


def write_graph(topology: Topology, path: Path) -> None:
    """Write the whole network to a file, as its name ends: `.graphml`, or `.dot` or `.gv` for Graphviz.

    Vertices have their `kind`; edges, one for each direction, have `link` (their id), `kind`, `bytes_per_s`,
    `seconds` (latency) and `duplex`. Raises InputError for another ending.
    """
    text_of = FORMATS.get(path.suffix.lower())
    if text_of is None:
        raise InputError(f"{path}: the name of a graph's file ends in {', '.join(FORMATS)}")
    path.write_text(text_of(topology.graph), encoding="utf-8")


def _graphml(graph: nx.MultiDiGraph[str]) -> str:
    import networkx as nx

    return "\n".join(nx.generate_graphml(graph)) + "\n"


def _dot(graph: nx.MultiDiGraph[str]) -> str:
    return "\n".join(["digraph {", *_dot_lines(graph), "}", ""])


def _dot_lines(graph: nx.MultiDiGraph[str]) -> Iterator[str]:
    for name, data in graph.nodes(data=True):
        yield f'  "{name}" [kind="{data["kind"]}"];'
    for a, b, data in graph.edges(data=True):
        values = ", ".join(f'{name}="{_text(value)}"' for name, value in data.items())
        yield f'  "{a}" -> "{b}" [{values}];'


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


FORMATS: dict[str, Callable[[nx.MultiDiGraph[str]], str]] = {
    ".graphml": _graphml,
    ".dot": _dot,
    ".gv": _dot,
}
