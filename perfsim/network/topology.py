"""The network of a machine: its vertices and cables, compiled once to the columns of its edges.

They are given for each distinct part, such as a node with its leaf, with the number of its copies.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.base.errors import InputError
from perfsim.base.groups import listed
from perfsim.base.text import nearest
from perfsim.specs.hardware import SystemSpec

if TYPE_CHECKING:
    import networkx as nx


# The ranks of a collective, as they lie over nodes.


@dataclass(frozen=True, slots=True)
class Group:
    """`size` ranks on `nodes` nodes: `most_per_node` on the fullest, `fewest_per_node` on the emptiest."""

    size: int
    most_per_node: int
    nodes: int
    fewest_per_node: int

    @classmethod
    def even(cls, ranks_per_node: int, nodes: int) -> Group:
        return cls(ranks_per_node * nodes, ranks_per_node, nodes, ranks_per_node)

    @classmethod
    def inside_node(cls, size: int) -> Group:
        return cls.even(size, 1)


# The parts of a network, and their edges as columns.


class Cable(NamedTuple):
    """A link: `seconds` from `a` to `b` and back; both directions share its capacity unless `duplex`."""

    a: str
    b: str
    kind: str
    bytes_per_s: float
    seconds: tuple[float, float] = (0.0, 0.0)
    duplex: bool = True


class Part(NamedTuple):
    """Vertices and cables that occur several times; `vertices` numbers those called `names`, a row a copy."""

    names: Sequence[str]
    cables: Sequence[Cable]
    vertices: Ints


class Rated(NamedTuple):
    """What prices assume of an edge, by its kind; an edge that is worse slows what crosses it."""

    bytes_per_s: dict[str, float]
    seconds: dict[str, tuple[float, float]]
    """Latencies there and back."""

    @classmethod
    def of(cls, kinds: Sequence[str], kind: Ints, bytes_per_s: Floats, seconds: Floats) -> Rated:
        """The most common values of each kind of edge; the columns are those that `_Edges` has."""
        usual = cls({}, {})
        for number, name in enumerate(kinds):
            links = np.flatnonzero(kind == number)
            usual.bytes_per_s[name] = _most_common(bytes_per_s[links])
            usual.seconds[name] = _most_common(seconds[links[::2]]), _most_common(seconds[links[1::2]])
        return usual


@dataclass(frozen=True, eq=False)
class _Edges:
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
    usual: Rated

    @classmethod
    def of(cls, parts: Iterable[Part]) -> _Edges:
        """The edges of all parts, copy by copy; both directions of a cable follow one another."""
        kinds: dict[str, int] = {}
        columns: list[tuple[NDArray[Any], ...]] = []
        for part in parts:
            number = {name: index for index, name in enumerate(part.names)}
            rows = [
                (number[a], number[b], kinds.setdefault(kind, len(kinds)), bytes_per_s, late_s, duplex)
                for one, other, kind, bytes_per_s, seconds, duplex in part.cables
                for a, b, late_s in ((one, other, seconds[0]), (other, one, seconds[1]))
            ]
            start, end, *per_copy = np.array(rows, dtype=float).reshape(-1, 6).T
            ends = (part.vertices[:, at.astype(np.int64)].ravel() for at in (start, end))
            columns.append((*ends, *(np.tile(column, len(part.vertices)) for column in per_copy)))
        source, target, kind, bytes_per_s, seconds, duplex = map(np.concatenate, zip(*columns, strict=True))
        kind = kind.astype(np.int64)
        usual = Rated.of(tuple(kinds), kind, bytes_per_s, seconds)
        return cls(source, target, kind, tuple(kinds), bytes_per_s, seconds, duplex.astype(bool), usual)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def rated(self) -> Mapping[str, float]:
        """The capacity of an edge by its kind, which prices assume."""
        return self.usual.bytes_per_s

    def of_kind(self, kind: str) -> Ints:
        """Ids of the links of a kind, ascending."""
        return self._by_kind.get(kind, np.empty(0, dtype=np.int64))

    @cached_property
    def _by_kind(self) -> dict[str, Ints]:
        return {kind: np.flatnonzero(self.kind == number) for number, kind in enumerate(self.kinds)}

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
    def late_s(self) -> Floats:
        """Latency of every link beyond what is rated."""
        return np.maximum(0.0, self.seconds - self.rated_s)

    @cached_property
    def rated_s(self) -> Floats:
        """Latency of every link that is rated for its kind and direction."""
        rated = np.array([self.usual.seconds[kind] for kind in self.kinds])
        return np.asarray(rated[self.kind, np.arange(len(self)) % 2])

    @cached_property
    def dead(self) -> frozenset[int]:
        """Ids of the links without capacity."""
        return frozenset(np.flatnonzero(self.bytes_per_s == 0.0).tolist())


def _most_common(values: Floats) -> float:
    """The most common value, of several the largest."""
    distinct, counts = np.unique(values, return_counts=True)
    return float(distinct[counts == counts.max()].max())


class Topology(ABC):
    """A network of devices 0 to `num_devices` - 1; a kind gives its vertices and cables, or its parts."""

    devices_per_node: int
    """Ranks on one node that is full."""
    devices_per_server: int
    """Ranks of one server that is full; a node may have several."""

    def __init__(self, system: SystemSpec, num_devices: int) -> None:
        if num_devices < 1:
            raise InputError(f"{system.name}: at least one device is needed, not {num_devices}")
        self.system = system
        self.num_devices = num_devices

    @property
    def filled_nodes(self) -> float:
        """Nodes that the devices fill, which draw their power; a part of one counts in proportion."""
        return self.num_devices / self.devices_per_node

    @property
    def num_nodes(self) -> int:
        """Nodes, or wafer-scale systems: what fails as a whole."""
        return -(-self.num_devices // self.devices_per_node)

    @abstractmethod
    def device(self, rank: int) -> str:
        """Name of the device of a rank; InputError for a rank that does not exist."""

    def _cables(self) -> Iterator[Cable]:
        """Every link once; none where `_parts` are given."""
        yield from ()

    def _vertices(self) -> Iterator[tuple[str, str]]:
        """Name and kind of every vertex: first the devices by rank; by default there is nothing else."""
        for rank in range(self.num_devices):
            yield self.device(rank), "device"

    def _parts(self) -> list[Part]:
        """Every distinct part that the system describes, with its copies; by default one, the whole."""
        names = [name for name, _ in self.vertices]
        return [Part(names, list(self._cables()), np.arange(len(names))[None])]

    def bundles(self) -> Iterator[tuple[Ints, bool]]:
        """Links that carry together what crosses them, a bundle a row; whether each waits for its slowest."""
        yield from ()

    @cached_property
    def edges(self) -> _Edges:
        """All edges as columns; devices are vertices 0 to `num_devices` - 1."""
        return _Edges.of(self._parts())

    @cached_property
    def vertices(self) -> tuple[tuple[str, str], ...]:
        """Name and kind of every vertex, by number."""
        return tuple(self._vertices())

    def ends(self, link: int) -> tuple[str, str]:
        """Names of the vertices that a link leaves and enters."""
        return self.vertices[self.edges.source[link]][0], self.vertices[self.edges.target[link]][0]

    @cached_property
    def counted(self) -> Ints:
        """The link that each link counts as: itself, its way back if they share one, its bundle's first."""
        counted = self.edges.medium.copy()
        for links, _ in self.bundles():
            counted[links] = counted[links[:, :1]]
        return counted

    @cached_property
    def capacities(self) -> Floats:
        """Bytes/s of every link; the first of a bundle has the capacity of all of them."""
        carried = self.edges.bytes_per_s
        capacities = carried.copy()
        for links, waits in self.bundles():
            together = [len(row) * min(row) if waits else math.fsum(row) for row in carried[links].tolist()]
            capacities[links[:, 0]] = together
        return capacities

    @cached_property
    def graph(self) -> nx.MultiDiGraph[str]:
        """The whole network as one graph; the key of an edge is the id of its link."""
        import networkx as nx

        graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
        for name, kind in self.vertices:
            graph.add_node(name, kind=kind)
        edges = self.edges
        columns = (edges.kind, edges.bytes_per_s, edges.seconds, edges.duplex)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for link, (kind, bytes_per_s, seconds, duplex) in enumerate(rows):
            data = {"bytes_per_s": bytes_per_s, "seconds": seconds, "duplex": duplex}
            graph.add_edge(*self.ends(link), key=link, link=link, kind=edges.kinds[kind], **data)
        return graph

    def with_capacities(
        self, bytes_per_s: Mapping[int, float], seconds: Floats | None = None, *, rate: bool = True
    ) -> Self:
        """The same network with other capacities of links, by id; both directions change that share one.

        `seconds` are the latencies of all links; None: as they are. A kind of link is rated at the most
        common capacity of its edges, which prices assume; an edge below it slows what crosses it. Without
        `rate` prices stay, so that all changed edges act like that.
        """
        edges = self.edges
        carried = edges.bytes_per_s.copy()
        for link, capacity in bytes_per_s.items():
            carried[link] = capacity
            if not edges.duplex[link]:
                carried[link ^ 1] = capacity
        seconds = edges.seconds if seconds is None else seconds
        usual = Rated.of(edges.kinds, edges.kind, carried, seconds) if rate else edges.usual
        twin = type(self)(self.system, self.num_devices)
        vars(twin)["edges"] = replace(edges, bytes_per_s=carried, seconds=seconds, usual=usual)
        return twin

    @cached_property
    def links_by_ends(self) -> dict[frozenset[str], list[int]]:
        """Ids of all links, both directions, by their ends."""
        ends = listed((frozenset(self.ends(link)), link) for link in range(len(self.edges)))
        # A device behind its port names the links on both sides: `swarmx/0/0-cs1` the links of `cs1/port`.
        behind: dict[frozenset[str], list[int]] = {}
        for pair, links in ends.items():
            if len(devices := _without_port(pair)) == 1:
                behind[devices] = links
        for pair, links in list(ends.items()):
            if (devices := _without_port(pair)) != pair and len(devices) == 2:
                own = [behind[frozenset({name})] for name in devices if frozenset({name}) in behind]
                ends[devices] = sum(own, links)
        return ends

    def links_named(self, name: str) -> list[int]:
        """Ids of the links between two ends, `leaf0-spine3`, in either order; empty where there are none."""
        parts = name.split("-")
        # An end may leave out the node that the other one names: `node0/gpu0-nvswitch`.
        nodes = ["", *(f"{part.rpartition('/')[0]}/" for part in parts if "/" in part)]
        for node in nodes:
            pair = frozenset(part if "/" in part else node + part for part in parts)
            if pair in self.links_by_ends:
                return self.links_by_ends[pair]
        return []

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.num_devices:
            raise InputError(f"{self.system.name} has ranks 0 to {self.num_devices - 1}, not {rank}")

    def degraded(self, left: Mapping[str, float]) -> Self:
        """The network with a share left of the capacity of some links, named by their ends; 0 is dead.

        `leaf0-spine3` names both directions. Prices are of healthy links. Raises InputError for a link
        that does not exist, with the nearest name.
        """
        if not left:
            return self
        capacities: dict[int, float] = {}
        for name, share in left.items():
            if not (links := self.links_named(name)):
                raise InputError(f"{self.system.name} has no link {name!r}", nearest_link(name, [self]))
            capacities |= {link: share * float(self.edges.bytes_per_s[link]) for link in links}
        return self.with_capacities(capacities, rate=False)

    def route_around(self, source: int, target: int, dead: frozenset[int]) -> list[int]:
        """Links of the fastest route without dead ones, also past devices of a node; InputError if none."""
        import networkx as nx

        ends = self.device(source), self.device(target)
        left = nx.restricted_view(self.graph, [], [(*self.ends(link), link) for link in dead])
        try:
            paths = sorted({tuple(path) for path in nx.all_shortest_paths(left, *ends, weight="seconds")})
        except nx.NetworkXNoPath:
            names = ", ".join(sorted({"-".join(self.ends(link)) for link in dead if link % 2 == 0}))
            raise InputError(f"no route is left from {ends[0]} to {ends[1]} without {names}") from None
        # The destination chooses among routes of equal latency, so that traffic spreads.
        keys = [[int(key) for key in left[a][b]] for a, b in pairwise(paths[target % len(paths)])]
        return [min(links) for links in keys]


MOST_NAMES = 6
PORT = "/port"


def nearest_link(name: str, topologies: Iterable[Topology]) -> str:
    """A line of help: the link of some networks most like `name`, or a few examples."""
    kinds = ("gpu", "nic", "leaf", "spine", "cs", "swarmx", "memoryx")

    def from_devices_up(end: str) -> tuple[int, str]:
        return next((rank for rank, kind in enumerate(kinds) if kind in end.rsplit("/", 1)[-1]), 99), end

    pairs = dict.fromkeys(pair for topology in topologies for pair in topology.links_by_ends)
    names = ["-".join(sorted(pair, key=from_devices_up)) for pair in pairs]
    if not names:
        return "this network has no link that can be degraded"
    near = nearest(name, names)
    return f"did you mean `{near}`?" if near else f"for example {', '.join(names[-MOST_NAMES:])}"


def _without_port(pair: frozenset[str]) -> frozenset[str]:
    return frozenset(name.removesuffix(PORT) for name in pair)
