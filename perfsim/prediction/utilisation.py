"""How much of the network's capacity a step uses, by kind of link."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import Kind
from perfsim.machines import network_of
from perfsim.machines.network import Network, PeerClasses, Traffic
from perfsim.placement.place import Placed
from perfsim.prediction.result import LinkUse
from perfsim.trace import Trace

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
    topology, network = placed.topology, network_of(placed.topology)
    crossings = _crossings(trace, network, PeerClasses(placed.peers.astype(np.int64)))
    if not len(crossings.link):
        return {}
    window = _Window.of(trace)
    edges, moved = topology.edges, crossings.n_bytes * window.runs(trace)[crossings.work]
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
        start, end = trace.start_s[tasks], trace.end_s[tasks]
        rate = n_bytes[trace.graph.work[tasks]] / lasting[tasks]
        when, change = np.concatenate([end, start]), np.concatenate([-rate, rate])
        order = np.argsort(when, kind="stable")  # at one instant communications end before others start
        total = np.cumsum(change[order])
        within = (when[order] >= self.low) & (when[order] < self.high)
        return float(total[within].max(initial=0.0))
