"""Degraded and dead links, and routes around dead links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from perfsim.errors import InputError, Problem
from perfsim.suggest import nearest
from perfsim.topology.base import Edge, Route, Topology

MOST_NAMES = 6
Ends = frozenset[str]
"""The two ends of a link."""


@dataclass(frozen=True)
class LinkHealth:
    """The remaining share of capacity of degraded links, by id; other links are healthy."""

    left: Mapping[int, float] = field(default_factory=dict)

    @property
    def dead(self) -> frozenset[int]:
        """Ids of the dead links."""
        return frozenset(link for link, left in self.left.items() if left == 0.0)

    def bytes_per_s(self, edge: Edge) -> float:
        """The remaining bandwidth of an edge."""
        return edge.bytes_per_s * self.left.get(edge.link, 1.0)


HEALTHY = LinkHealth()


def link_health(topology: Topology, left: Mapping[str, float]) -> LinkHealth:
    """Health of links named by their ends, such as `leaf0-spine3`, for both directions; 0 is dead.

    Links of NICs, leaves and SwarmX can be degraded; those inside a node cannot. Raises InputError for a link
    that does not exist, with the nearest name, and for a share that is not between 0 and 1.
    """
    if not left:
        return HEALTHY
    ends = links_with_state(topology)
    shares: dict[int, float] = {}
    for name, share in left.items():
        if not 0.0 <= share <= 1.0:
            raise InputError(f"link {name}: {share:g} of its capacity is not between 0 and 1")
        links = ends.get(ends_of(name))
        if links is None:
            problem = f"{topology.system.name} has no link {name!r}"
            raise InputError([Problem(problem, help=nearest_link(name, ends))])
        shares.update(dict.fromkeys(links, share))
    return LinkHealth(shares)


def ends_of(name: str) -> Ends:
    """The two ends in the name of a link, in either order."""
    return frozenset(name.split("-"))


def links_with_state(topology: Topology) -> dict[Ends, list[int]]:
    """Ids of the links that can be degraded, both directions, by their ends."""
    ends: dict[Ends, list[int]] = {}
    for edge in topology.links():
        if edge.kind in ("scale_up", "host"):
            continue  # flows do not share links inside a node, so these are not simulated
        ends.setdefault(frozenset((edge.source, edge.target)), []).append(edge.link)
    return ends


def nearest_link(name: str, ends: Iterable[Ends]) -> str:
    """A line of help: the link most like `name`, or a few examples."""
    names = ["-".join(sorted(pair, key=_order)) for pair in ends]
    if not names:
        return "this network has no link that can be degraded"
    near = nearest(name, names)
    return f"did you mean `{near}`?" if near else f"for example {', '.join(names[-MOST_NAMES:])}"


def _order(name: str) -> tuple[int, str]:
    """Sort key of the ends of a link, from devices up."""
    kinds = ("gpu", "nic", "leaf", "spine", "cs", "swarmx", "memoryx")
    return next((rank for rank, kind in enumerate(kinds) if kind in name.rsplit("/", 1)[-1]), 99), name


def route_around(topology: Topology, source: int, target: int, dead: frozenset[int]) -> Route:
    """The route of lowest latency without dead links; it may pass other devices of a node.

    The destination chooses among routes of equal latency, so that traffic spreads. Raises InputError where
    there is no route.
    """
    import networkx as nx

    ends = topology.device(source), topology.device(target)
    cut = [(*_ends(topology, link), link) for link in dead]
    left = nx.restricted_view(topology.graph, [], cut)
    try:
        paths = sorted({tuple(path) for path in nx.all_shortest_paths(left, *ends, weight="seconds")})
    except nx.NetworkXNoPath:
        names = ", ".join(sorted({"-".join(_ends(topology, link)) for link in dead if link % 2 == 0}))
        raise InputError(f"no route is left from {ends[0]} to {ends[1]} without {names}") from None
    path = paths[target % len(paths)]
    edges = (min(left[a][b].items())[1]["link"] for a, b in pairwise(path))
    return tuple(topology.links()[link] for link in edges)


def _ends(topology: Topology, link: int) -> tuple[str, str]:
    edge = topology.links()[link]
    return edge.source, edge.target
