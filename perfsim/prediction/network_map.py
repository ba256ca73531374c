"""A network folded by kind of place: what repeats is drawn once, with how often it is there."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.engine.trace import Trace
from perfsim.machines import network_of
from perfsim.machines.machine import Network, PeerClasses, Traffic
from perfsim.machines.placement import Placed
from perfsim.network import Topology
from perfsim.prediction.result import LinkUse
from perfsim.work import Kind

# How much of the network's capacity a step uses, by kind of link.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ROUNDED = 1.0 + 1e-6
"""A peak up to this is a full link; a higher one is more than the link carries, and is shown as it is."""


def link_use(trace: Trace, placed: Placed) -> dict[str, LinkUse]:
    """Use of each kind of link that a step's communication crosses, from the trace of a placed graph.

    A communication is spread evenly over its duration, contention included. Bytes are those on the wire:
    what a ring sends, not the message. Communications priced apart, such as updates and streams in the
    memory of one weight server, may together exceed a capacity: a peak above 1 says so.
    """
    topology = placed.topology
    network = network_of(placed.topology)
    crossings = _crossings(trace, network, PeerClasses(placed.peers.astype(np.int64)))
    if not len(crossings.link):
        return {}
    window = _Window.of(trace)
    edges = topology.edges
    moved = crossings.n_bytes * window.runs(trace)[crossings.work]
    on_link = np.bincount(crossings.link, moved, minlength=len(edges))
    shared = edges.bytes_per_s * (edges.medium == np.arange(len(edges)))
    capacity = np.bincount(edges.kind, shared, minlength=len(edges.kinds)) * (window.high - window.low)
    total = np.bincount(edges.kind, on_link, minlength=len(edges.kinds))
    share = np.divide(on_link, network.bytes_per_s(np.arange(len(edges))), where=on_link > 0, out=0 * on_link)
    use = {}
    for number, kind in enumerate(edges.kinds):
        if total[number] > 0.0:
            links = np.flatnonzero(edges.kind == number)
            busiest = int(links[np.argmax(share[links])])
            peak = window.peak(trace, crossings, busiest) / float(network.bytes_per_s(np.array([busiest]))[0])
            use[kind] = LinkUse(
                float(total[number] / capacity[number]), peak if peak > ROUNDED else min(1.0, peak)
            )
    return use


class _Crossings(NamedTuple):
    """One row for each class of work and link that it crosses, and the bytes of one run on the link."""

    work: Ints
    link: Ints
    n_bytes: Floats


def _crossings(trace: Trace, network: Network, peers: PeerClasses) -> _Crossings:
    known: dict[Hashable, Traffic | None] = {}
    works: list[Ints] = [np.empty(0, dtype=np.int64)]
    links: list[Ints] = [np.empty(0, dtype=np.int64)]
    sizes: list[Floats] = [np.empty(0)]
    for number, work in enumerate(trace.graph.works):
        if work.kind is Kind.COMP:
            continue
        key = network.alike(work)
        if key not in known:
            known[key] = network.load(work, peers)
        load = known[key]
        if load is not None:
            works.append(np.full(len(load.links), number))
            links.append(load.links)
            sizes.append(load.times.astype(np.float64) * network.sent_bytes(work))
    return _Crossings(np.concatenate(works), np.concatenate(links), np.concatenate(sizes))


class _Window(NamedTuple):
    """The interval of a step."""

    low: float
    high: float

    @classmethod
    def of(cls, trace: Trace) -> _Window:
        return cls(*trace.step_window_s)

    def runs(self, trace: Trace) -> Floats:
        """How often each class of work runs in the interval; a part counts as a part."""
        inside = np.minimum(trace.end_s, self.high) - np.maximum(trace.start_s, self.low)
        lasting = trace.end_s - trace.start_s
        part = np.divide(inside.clip(0.0), lasting, where=lasting > 0, out=np.zeros_like(lasting))
        runs = np.bincount(trace.graph.work, part, minlength=len(trace.graph.works))
        return np.asarray(runs, dtype=np.float64)

    def peak(self, trace: Trace, crossings: _Crossings, link: int) -> float:
        """The most bytes/s on a link at any instant of the interval."""
        n_bytes = np.zeros(len(trace.graph.works))
        rows = crossings.link == link
        n_bytes[crossings.work[rows]] = crossings.n_bytes[rows]
        lasting = trace.end_s - trace.start_s
        tasks = np.flatnonzero((n_bytes[trace.graph.work] > 0) & (lasting > 0))
        start = trace.start_s[tasks]
        end = trace.end_s[tasks]
        rate = n_bytes[trace.graph.work[tasks]] / lasting[tasks]
        when = np.concatenate([end, start])
        change = np.concatenate([-rate, rate])
        order = np.argsort(when, kind="stable")  # at one instant communications end before others start
        total = np.cumsum(change[order])
        within = (when[order] >= self.low) & (when[order] < self.high)
        return float(total[within].max(initial=0.0))


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
    number = {kind: place for place, kind in enumerate(kinds)}
    of_vertex = np.array([number[kind] for _, kind in topology.vertices])
    homes: list[set[str]] = [set() for _ in kinds]
    for name, kind in topology.vertices:
        homes[number[kind]].add(name.split("/", 1)[0])
    counts = np.bincount(of_vertex, minlength=len(kinds)).tolist()
    places = tuple(
        Place(kind, count, *_spread(count, own))
        for kind, count, own in zip(kinds, counts, homes, strict=True)
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
