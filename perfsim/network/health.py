"""Degraded and dead links, and routes around dead links."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import pairwise
from typing import TypeVar

from perfsim.base.errors import InputError, Problem
from perfsim.base.text import nearest
from perfsim.network.topology import Route, Topology

MOST_NAMES = 6
PORT = "/port"
Ends = frozenset[str]
"""The two ends of a link."""
AnyTopology = TypeVar("AnyTopology", bound=Topology)


def degraded(topology: AnyTopology, left: Mapping[str, float]) -> AnyTopology:
    """The network with a share left of the capacity of some links, named by their ends; 0 is dead.

    `leaf0-spine3` names both directions. Prices stay those of healthy links. Raises InputError for a link
    that does not exist, with the nearest name, and for a share that is not between 0 and 1.
    """
    if not left:
        return topology
    ends = links_by_ends(topology)
    capacities: dict[int, float] = {}
    for name, share in left.items():
        if not 0.0 <= share <= 1.0:
            raise InputError(f"link {name}: {share:g} of its capacity is not between 0 and 1")
        pair = ends_of(name, ends)
        if pair is None:
            problem = f"{topology.system.name} has no link {name!r}"
            raise InputError([Problem(problem, help=nearest_link(name, ends))])
        for link in ends[pair]:
            capacities[link] = share * float(topology.edges.bytes_per_s[link])
    return topology.with_capacities(capacities, rate=False)


def ends_of(name: str, present: Container[Ends]) -> Ends | None:
    """The two ends that the name of a link has, in either order; None where no such link is present.

    An end may leave out the node that the other one names: `node0/gpu0-nvswitch`.
    """
    parts = name.split("-")
    nodes = [f"{part.rpartition('/')[0]}/" for part in parts if "/" in part]
    pairs = [frozenset(parts), *(frozenset(p if "/" in p else node + p for p in parts) for node in nodes)]
    return next((pair for pair in pairs if pair in present), None)


def links_by_ends(topology: Topology) -> dict[Ends, list[int]]:
    """Ids of all links, both directions, by their ends.

    A device at the far side of its port names the links on both sides: `swarmx/0/0-cs1` are those of
    `cs1/port`.
    """
    ends: dict[Ends, list[int]] = {}
    for edge in topology.links():
        ends.setdefault(frozenset((edge.source, edge.target)), []).append(edge.link)
    behind: dict[Ends, list[int]] = {}
    for pair, links in ends.items():
        if len(devices := _without_port(pair)) == 1:
            behind[devices] = links
    for pair, links in list(ends.items()):
        if (devices := _without_port(pair)) != pair and len(devices) == 2:
            own = [behind[frozenset({name})] for name in devices if frozenset({name}) in behind]
            ends[devices] = sum(own, links)
    return ends


def _without_port(pair: Ends) -> Ends:
    return frozenset(name.removesuffix(PORT) for name in pair)


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
