"""Links that are slow or dead, and the way around the dead ones."""

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
    """What is left of the capacity of each link, by id; links that are not named are whole."""

    left: Mapping[int, float] = field(default_factory=dict)

    @property
    def dead(self) -> frozenset[int]:
        return frozenset(link for link, left in self.left.items() if left == 0.0)

    def bytes_per_s(self, edge: Edge) -> float:
        """What an edge carries in this state."""
        return edge.bytes_per_s * self.left.get(edge.link, 1.0)


HEALTHY = LinkHealth()


def link_health(topology: Topology, left: Mapping[str, float]) -> LinkHealth:
    """State of links named by their ends, `leaf0-spine3`, both directions alike; 0 is dead.

    Links of NICs, leaves and SwarmX have a state; those inside a node have none. Raises InputError for
    a link that is not there, with the nearest that is, and for a share that is not between 0 and 1.
    """
    if not left:
        return HEALTHY
    ends = links_with_state(topology)
    found: dict[int, float] = {}
    for name, share in left.items():
        if not 0.0 <= share <= 1.0:
            raise InputError(f"link {name}: {share:g} of its capacity is not between 0 and 1")
        links = ends.get(ends_of(name))
        if links is None:
            problem = f"{topology.system.name} has no link {name!r}"
            raise InputError([Problem(problem, help=nearest_link(name, ends))])
        found.update(dict.fromkeys(links, share))
    return LinkHealth(found)


def ends_of(name: str) -> Ends:
    """The two ends that the name of a link gives, in either order."""
    return frozenset(name.split("-"))


def links_with_state(topology: Topology) -> dict[Ends, list[int]]:
    """Ids of the links that can be slow or dead, both directions, by their ends."""
    ends: dict[Ends, list[int]] = {}
    for edge in topology.links():
        if edge.kind in ("scale_up", "host"):
            continue  # inside a node nothing is shared by flows, so nothing there could be slow
        ends.setdefault(frozenset((edge.source, edge.target)), []).append(edge.link)
    return ends


def nearest_link(name: str, ends: Iterable[Ends]) -> str:
    """A line of help: the link most like `name`, or a few of those that there are."""
    names = ["-".join(sorted(each, key=_order)) for each in ends]
    if not names:
        return "there is no link that could be slow"
    near = nearest(name, names)
    return f"did you mean `{near}`?" if near else f"for example {', '.join(names[-MOST_NAMES:])}"


def _order(name: str) -> tuple[int, str]:
    """From the devices up, as links are written."""
    kinds = ("gpu", "nic", "leaf", "spine", "cs", "swarmx", "memoryx")
    return next((rank for rank, kind in enumerate(kinds) if kind in name.rsplit("/", 1)[-1]), 99), name


def route_around(topology: Topology, source: int, target: int, dead: frozenset[int]) -> Route:
    """The fastest way for a first byte that crosses no dead link; it may pass other devices of a node.

    Of equally fast ways it takes the one that the destination determines, so that traffic spreads.
    Raises InputError where no way is left.
    """
    import networkx as nx

    ends = topology.device(source), topology.device(target)
    cut = [(*_ends(topology, link), link) for link in dead]
    left = nx.restricted_view(topology.graph, [], cut)
    try:
        ways = sorted({tuple(way) for way in nx.all_shortest_paths(left, *ends, weight="seconds")})
    except nx.NetworkXNoPath:
        names = ", ".join(sorted({"-".join(_ends(topology, link)) for link in dead if link % 2 == 0}))
        raise InputError(f"no route is left from {ends[0]} to {ends[1]} without {names}") from None
    way = ways[target % len(ways)]
    edges = (min(left[a][b].items())[1]["link"] for a, b in pairwise(way))
    return tuple(topology.links()[link] for link in edges)


def _ends(topology: Topology, link: int) -> tuple[str, str]:
    edge = topology.links()[link]
    return edge.source, edge.target
