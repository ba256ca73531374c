"""The edges of a network as columns, compiled from its networkx graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import networkx as nx

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Cable(NamedTuple):
    """Both directions of a link: `seconds` are the latencies from `a` to `b` and back.

    With `duplex` each direction has the capacity; otherwise both share it.
    """

    a: str
    b: str
    kind: str
    bytes_per_s: float
    seconds: tuple[float, float]
    duplex: bool = True


class Part(NamedTuple):
    """A graph that occurs several times in a network.

    `vertices` has one row a copy: the numbers, in the network, of the graph's vertices in their order.
    """

    graph: nx.MultiDiGraph[str]
    vertices: Ints


def network_graph(vertices: Iterable[tuple[str, str]], cables: Iterable[Cable]) -> nx.MultiDiGraph[str]:
    """A networkx graph of vertices (name, kind) and cables; both directions of a cable follow one another.

    Edges have `link` (their key, counted from 0), `kind`, `bytes_per_s`, `seconds` and `duplex`.
    """
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for name, kind in vertices:
        graph.add_node(name, kind=kind)
    link = 0
    for a, b, kind, bytes_per_s, seconds, duplex in cables:
        for (source, target), latency_s in zip(((a, b), (b, a)), seconds, strict=True):
            data = {"kind": kind, "bytes_per_s": bytes_per_s, "seconds": latency_s, "duplex": duplex}
            graph.add_edge(source, target, key=link, link=link, **data)
            link += 1
    return graph


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a network; the row of an edge is the id of its link, and `link ^ 1` is its way back."""

    source: Ints
    target: Ints
    """Numbers of vertices."""
    kind: Ints
    """Index in `kinds`."""
    kinds: tuple[str, ...]
    bytes_per_s: Floats
    seconds: Floats
    duplex: Bools
    rated: Mapping[str, float]
    """The capacity of an edge by its kind, which prices assume; a slower edge slows what crosses it."""

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Edges:
        """The edges of all copies of all parts, copy by copy."""
        kinds: dict[str, int] = {}
        columns = [_columns(part, kinds) for part in parts]
        source, target, kind, bytes_per_s, seconds, duplex = (
            np.concatenate(column) for column in zip(*columns, strict=True)
        )
        rated = _rated(kind, tuple(kinds), bytes_per_s)
        return cls(source, target, kind, tuple(kinds), bytes_per_s, seconds, duplex, rated)

    def __len__(self) -> int:
        return len(self.source)

    def of_kind(self, kind: str) -> Ints:
        """Ids of the links of a kind, ascending."""
        if kind not in self.kinds:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(self.kind == self.kinds.index(kind))

    def latency_s(self, kind: str, direction: int) -> float:
        """Latency of the first link of a kind: there (0) or back (1)."""
        return float(self.seconds[self.of_kind(kind)[direction]])

    @cached_property
    def medium(self) -> Ints:
        """The link whose capacity each link uses: its own, or the lower of both directions that share it."""
        link = np.arange(len(self))
        return np.where(self.duplex, link, link & ~1)

    @cached_property
    def slow(self) -> Ints:
        """Ids of the links with less capacity than is rated for their kind."""
        rated = np.array([self.rated[kind] for kind in self.kinds])
        return np.flatnonzero(self.bytes_per_s < rated[self.kind])

    @cached_property
    def dead(self) -> frozenset[int]:
        """Ids of the links without capacity."""
        return frozenset(np.flatnonzero(self.bytes_per_s == 0.0).tolist())

    def with_capacities(self, bytes_per_s: Mapping[int, float], *, rate: bool) -> Edges:
        """The edges with other capacities by link; both directions of a link that is not duplex change.

        With `rate` the capacities of kinds are rated anew; otherwise prices stay as they are.
        """
        changed = self.bytes_per_s.copy()
        for link, capacity in bytes_per_s.items():
            changed[[link] if self.duplex[link] else [link, link ^ 1]] = capacity
        rated = _rated(self.kind, self.kinds, changed) if rate else self.rated
        return replace(self, bytes_per_s=changed, rated=rated)


def _columns(part: Part, kinds: dict[str, int]) -> tuple[NDArray[Any], ...]:
    """The columns of `Edges` of all copies of a part; new kinds are added to `kinds`."""
    place = {name: index for index, name in enumerate(part.graph)}
    rows = sorted(
        (link, place[a], place[b], kinds.setdefault(data["kind"], len(kinds)), data)
        for a, b, link, data in part.graph.edges(keys=True, data=True)
    )
    ends = np.array([row[1:4] for row in rows], dtype=np.int64).reshape(-1, 3)
    values = [(row[4]["bytes_per_s"], row[4]["seconds"]) for row in rows]
    numbers = np.array(values, dtype=np.float64).reshape(-1, 2)
    duplex = np.array([row[4]["duplex"] for row in rows], dtype=bool)
    copies = len(part.vertices)
    return (
        part.vertices[:, ends[:, 0]].ravel(),
        part.vertices[:, ends[:, 1]].ravel(),
        np.tile(ends[:, 2], copies),
        np.tile(numbers[:, 0], copies),
        np.tile(numbers[:, 1], copies),
        np.tile(duplex, copies),
    )


def _rated(kind: Ints, kinds: Sequence[str], bytes_per_s: Floats) -> dict[str, float]:
    """The most common capacity of each kind, of several the largest."""
    rated = {}
    for number, name in enumerate(kinds):
        values, counts = np.unique(bytes_per_s[kind == number], return_counts=True)
        rated[name] = float(values[counts == counts.max()].max())
    return rated
