"""The interface of topologies: links with ids, routes, shapes of groups."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from perfsim.errors import InputError
from perfsim.hardware import SystemSpec
from perfsim.topology.group import Group

if TYPE_CHECKING:
    import networkx as nx

LinkKind = Literal["scale_up", "host", "nic", "uplink", "memoryx", "swarmx", "io"]


class Edge(NamedTuple):
    """One direction of a link: `seconds` is its latency, including the switch that it enters."""

    link: int
    source: str
    target: str
    kind: LinkKind
    bytes_per_s: float
    seconds: float


Route = tuple[Edge, ...]


class Cable(NamedTuple):
    """Both directions of a link: `seconds` are the latencies from `a` to `b` and back."""

    a: str
    b: str
    kind: LinkKind
    bytes_per_s: float
    seconds: tuple[float, float]


class Topology(ABC):
    """A network of devices 0 to `num_devices` - 1, and the routes between them."""

    devices_per_node: int
    """Ranks on one node: rank r is on node r // devices_per_node."""

    def __init__(self, system: SystemSpec, num_devices: int) -> None:
        if num_devices < 1:
            raise InputError(f"{system.name}: at least one device is needed, not {num_devices}")
        self.system = system
        self.num_devices = num_devices
        self._routes: dict[tuple[str, str], Route] = {}

    @abstractmethod
    def device(self, rank: int) -> str:
        """Name of the device of a rank; InputError for a rank that does not exist."""

    @abstractmethod
    def _cables(self) -> Iterator[Cable]:
        """Every link once."""

    @abstractmethod
    def _path(self, source: str, target: str) -> list[str]:
        """Names along the route, including both ends, which exist and differ."""

    # ------------------------------------------------------------------------------------ links
    @cached_property
    def _edges(self) -> Route:
        edges: list[Edge] = []
        for a, b, kind, bytes_per_s, (there_s, back_s) in self._cables():
            edges.append(Edge(len(edges), a, b, kind, bytes_per_s, there_s))
            edges.append(Edge(len(edges), b, a, kind, bytes_per_s, back_s))
        return tuple(edges)

    @cached_property
    def _between(self) -> dict[tuple[str, str], Edge]:
        return {(edge.source, edge.target): edge for edge in self._edges}

    def links(self) -> Route:
        """All edges; the index of an edge is its id."""
        return self._edges

    @cached_property
    def graph(self) -> nx.MultiDiGraph[str]:
        """The networkx graph; edges have `link` (their key), `kind`, `bytes_per_s`, `seconds`."""
        import networkx as nx

        graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
        graph.add_nodes_from(self.device(rank) for rank in range(self.num_devices))
        for link, source, target, kind, bytes_per_s, seconds in self._edges:
            graph.add_edge(
                source, target, key=link, link=link, kind=kind, bytes_per_s=bytes_per_s, seconds=seconds
            )
        return graph

    # ----------------------------------------------------------------------------------- routes
    def route(self, source: int | str, target: int | str) -> Route:
        """Edges from one rank or named place to another; empty from a place to itself.

        Between devices it is the route of lowest latency that crosses no other device, through the NICs of
        source and target. Raises InputError for a place that does not exist.
        """
        ends = (self._name(source), self._name(target))
        if ends not in self._routes:
            names = self._path(*ends) if ends[0] != ends[1] else []
            self._routes[ends] = tuple(self._between[hop] for hop in pairwise(names))
        return self._routes[ends]

    def route_seconds(self, source: int | str, target: int | str) -> float:
        """Latency of a route: the sum over its edges."""
        return math.fsum(edge.seconds for edge in self.route(source, target))

    @cached_property
    def _places(self) -> frozenset[str]:
        names = (name for edge in self._edges for name in (edge.source, edge.target))
        return frozenset(names) | {self.device(rank) for rank in range(self.num_devices)}

    def _name(self, place: int | str) -> str:
        if not isinstance(place, str):
            return self.device(place)
        if place not in self._places:
            raise InputError(f"{self.system.name} with {self.num_devices} devices has no {place!r}")
        return place

    # ----------------------------------------------------------------------------------- groups
    def group_shape(self, ranks: Iterable[int]) -> Group:
        """How ranks, which are distinct, lie over the nodes."""
        members = np.fromiter(ranks, dtype=np.int64)
        if not members.size:
            raise InputError("a group needs at least one rank")
        self._check_rank(int(members.min()))
        self._check_rank(int(members.max()))
        on_node = np.bincount(members // self.devices_per_node)
        on_node = on_node[on_node > 0]
        return Group(members.size, int(on_node.max()), on_node.size, int(on_node.min()))

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.num_devices:
            raise InputError(f"{self.system.name} has ranks 0 to {self.num_devices - 1}, not {rank}")
