"""Writes a topology's graph as GraphML or DOT."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.base.errors import InputError
from perfsim.specs.hardware import SystemSpec

if TYPE_CHECKING:
    import networkx as nx


# The ranks of a collective, as they lie over nodes.


@dataclass(frozen=True, slots=True)
class Group:
    """`size` ranks on `nodes` nodes: `most_per_node` on the fullest, `fewest_per_node` on the emptiest.

    Raises InputError if the four contradict one another.
    """

    size: int
    most_per_node: int
    nodes: int
    fewest_per_node: int

    def __post_init__(self) -> None:
        others = self.nodes - 1
        least = self.most_per_node + self.fewest_per_node * others
        most = self.most_per_node * others + self.fewest_per_node
        positive = self.nodes > 0 and 0 < self.fewest_per_node <= self.most_per_node
        if not positive or not least <= self.size <= most:
            raise InputError(
                f"a group of {self.size} ranks cannot stand on {self.nodes} nodes "
                f"with {self.fewest_per_node} to {self.most_per_node} ranks each"
            )

    @classmethod
    def even(cls, ranks_per_node: int, nodes: int) -> Group:
        """A group with as many ranks on each node."""
        return cls(ranks_per_node * nodes, ranks_per_node, nodes, ranks_per_node)

    @classmethod
    def inside_node(cls, size: int) -> Group:
        """A group on one node."""
        return cls.even(size, 1)

    @property
    def is_even(self) -> bool:
        """Whether all nodes hold as many ranks."""
        return self.most_per_node == self.fewest_per_node


# The edges of a network as columns, compiled from its networkx graph.


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


# The interface of topologies: a graph, its links with ids, routes, shapes of groups.


class Edge(NamedTuple):
    """One direction of a link: `seconds` is its latency, including the switch that it enters."""

    link: int
    source: str
    target: str
    kind: str
    bytes_per_s: float
    seconds: float


Route = tuple[Edge, ...]


class Topology(ABC):
    """A network of devices 0 to `num_devices` - 1, and the routes between them.

    A kind of network gives its vertices and cables. They make a networkx graph, and the graph is compiled to
    columns (`edges`), from which prices, loads, routes and nodes are read.
    """

    devices_per_node: int
    """Ranks on one node that is full."""

    def __init__(self, system: SystemSpec, num_devices: int) -> None:
        if num_devices < 1:
            raise InputError(f"{system.name}: at least one device is needed, not {num_devices}")
        self.system = system
        self.num_devices = num_devices
        self._changed = False

    @abstractmethod
    def device(self, rank: int) -> str:
        """Name of the device of a rank; InputError for a rank that does not exist."""

    @abstractmethod
    def _cables(self) -> Iterator[Cable]:
        """Every link once."""

    def _vertices(self) -> Iterator[tuple[str, str]]:
        """Name and kind of every vertex: first the devices by rank; by default there is nothing else."""
        for rank in range(self.num_devices):
            yield self.device(rank), "device"

    def _parts(self) -> list[Part]:
        """The parts of the network; by default one, the whole."""
        graph = network_graph(self._vertices(), self._cables())
        return [Part(graph, np.arange(len(graph))[None])]

    # ------------------------------------------------------------------------------------ links
    @cached_property
    def edges(self) -> Edges:
        """All edges as columns; devices are vertices 0 to `num_devices` - 1."""
        return Edges.of(self._built)

    @cached_property
    def _built(self) -> list[Part]:
        return self._parts()

    @cached_property
    def vertices(self) -> tuple[tuple[str, str], ...]:
        """Name and kind of every vertex, by number."""
        return tuple(self._vertices())

    @cached_property
    def _links(self) -> Route:
        names = [name for name, _ in self.vertices]
        edges = self.edges
        columns = (edges.source, edges.target, edges.kind, edges.bytes_per_s, edges.seconds)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return tuple(
            Edge(link, names[source], names[target], edges.kinds[kind], bytes_per_s, seconds)
            for link, (source, target, kind, bytes_per_s, seconds) in enumerate(rows)
        )

    def links(self) -> Route:
        """All edges with the names of their ends; the index of an edge is its id."""
        return self._links

    @cached_property
    def graph(self) -> nx.MultiDiGraph[str]:
        """The whole network as a networkx graph, as `network_graph` describes it."""
        if not self._changed and len(self._built) == len(self._built[0].vertices) == 1:
            return self._built[0].graph
        there = self.links()[::2]
        duplex = self.edges.duplex[::2].tolist()
        back_s = self.edges.seconds[1::2].tolist()
        graph = network_graph(
            self.vertices,
            (
                Cable(edge.source, edge.target, edge.kind, edge.bytes_per_s, (edge.seconds, seconds), both)
                for edge, seconds, both in zip(there, back_s, duplex, strict=True)
            ),
        )
        for edge in self.links()[1::2]:
            graph.edges[edge.source, edge.target, edge.link]["bytes_per_s"] = edge.bytes_per_s
        return graph

    def with_capacities(self, bytes_per_s: Mapping[int, float], *, rate: bool = True) -> Self:
        """The same network with other capacities of links, by id.

        A kind of link is rated at the most common capacity of its edges, which prices assume; an edge below
        it slows what crosses it. Without `rate` prices stay, so that all changed edges act like that.
        """
        twin = copy(self)
        for name in [name for name in vars(self) if isinstance(_member(type(self), name), cached_property)]:
            del twin.__dict__[name]
        vars(twin).update(_changed=True, edges=self.edges.with_capacities(bytes_per_s, rate=rate))
        return twin

    # ----------------------------------------------------------------------------------- routes
    def route(self, source: int | str, target: int | str) -> Route:
        """Edges from one rank or named place to another; empty from a place to itself.

        It is the route of lowest latency, and between devices crosses no other device. Raises InputError
        for a place that does not exist.
        """
        ends = (self._name(source), self._name(target))
        if ends not in self._routes:
            links = self._path(*ends) if ends[0] != ends[1] else []
            self._routes[ends] = tuple(self.links()[link] for link in links)
        return self._routes[ends]

    @cached_property
    def _routes(self) -> dict[tuple[str, str], Route]:
        return {}

    def _path(self, source: str, target: str) -> list[int]:
        """Links of the route between two places, which exist and differ."""
        import networkx as nx

        path = nx.shortest_path(self.graph, source, target, weight="seconds")
        return [min(data["link"] for data in self.graph[a][b].values()) for a, b in pairwise(path)]

    def route_seconds(self, source: int | str, target: int | str) -> float:
        """Latency of a route: the sum over its edges."""
        return math.fsum(edge.seconds for edge in self.route(source, target))

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.vertices)

    def _name(self, place: int | str) -> str:
        if not isinstance(place, str):
            return self.device(place)
        if place not in self._names:
            raise InputError(f"{self.system.name} with {self.num_devices} devices has no {place!r}")
        return place

    # ----------------------------------------------------------------------------------- groups
    @cached_property
    def node_of(self) -> Ints:
        """The node of each rank: devices on one switch share a node, others have one of their own."""
        edges = self.edges
        up = edges.of_kind("scale_up")
        up = up[(edges.source[up] < self.num_devices) & (edges.target[up] >= self.num_devices)]
        home = np.arange(self.num_devices)
        home[edges.source[up]] = edges.target[up]
        return np.unique(home, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def group_shape(self, ranks: Iterable[int]) -> Group:
        """How ranks, which are distinct, lie over the nodes."""
        members = np.fromiter(ranks, dtype=np.int64)
        if not members.size:
            raise InputError("a group needs at least one rank")
        self._check_rank(int(members.min()))
        self._check_rank(int(members.max()))
        on_node = np.bincount(self.node_of[members])
        on_node = on_node[on_node > 0]
        return Group(members.size, int(on_node.max()), on_node.size, int(on_node.min()))

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.num_devices:
            raise InputError(f"{self.system.name} has ranks 0 to {self.num_devices - 1}, not {rank}")


def _member(cls: type, name: str) -> object:
    """An attribute of a class as it is written, without binding; None where there is none."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


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


# The network folded by kind of place: what repeats is drawn once, with how often it is there.


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
    number = {kind: index for index, kind in enumerate(kinds)}
    of_vertex = np.array([number[kind] for _, kind in topology.vertices])
    homes: list[set[str]] = [set() for _ in kinds]
    for name, kind in topology.vertices:
        homes[number[kind]].add(name.split("/", 1)[0])
    counts = np.bincount(of_vertex, minlength=len(kinds)).tolist()
    places = tuple(
        Place(kind, count, *_spread(count, within))
        for kind, count, within in zip(kinds, counts, homes, strict=True)
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
