"""The interface of topologies: a graph, its links with ids, routes, shapes of groups."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from perfsim.errors import InputError
from perfsim.hardware import SystemSpec
from perfsim.topology.edges import Cable, Edges, Ints, Part, network_graph
from perfsim.topology.group import Group

if TYPE_CHECKING:
    import networkx as nx


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
        there, duplex = self.links()[::2], self.edges.duplex[::2].tolist()
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
