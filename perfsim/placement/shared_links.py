"""Which communications share links, so that the engine must arbitrate them.

Only links that can be asked for more than they carry matter: a link whose users, all at full speed
at once, stay under its capacity slows nobody and is left out. Of the others only those are kept that
no other one implies (`engine.binding_links`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfsim.engine.fairshare import Flow
from perfsim.engine.max_min import TOLERANCE
from perfsim.graph import Kind, RankGroup, TaskGraph, Work
from perfsim.machines.network import Network, PeerClasses, Traffic
from perfsim.placement.binding_links import flows_on


class SharedLinks(NamedTuple):
    """Flows by work id, and the capacity of every link that they name."""

    flows: Mapping[int, Flow] = MappingProxyType({})
    capacities: NDArray[np.float64] | None = None


def shared_links(graph: TaskGraph, network: Network, *, peers: ArrayLike | None = None) -> SharedLinks:
    """The communications of `graph` that others can slow, or that the network is too thin for.

    `peers` numbers the classes of the ranks that a written device stands for, as `unfold` was given
    them; a folded graph needs none. Raises InputError where dead links leave no route.
    """
    classes = np.zeros(graph.width, dtype=np.int64) if peers is None else np.asarray(peers)
    network.check(graph)
    traffic = _traffic(graph.works, network, PeerClasses(classes))
    if not traffic:
        return SharedLinks()
    row = {number: each for each, number in enumerate(traffic)}
    table, capacities = _table(list(traffic.values()), network)
    demand = np.zeros(len(capacities))
    streams: dict[int, list[int]] = {}
    for work, stream in _works_on_streams(graph):
        if work in row:
            streams.setdefault(stream, []).append(row[work])
    for rows in streams.values():  # tasks of one stream never overlap
        demand += table[rows].max(axis=0)
    hot = np.flatnonzero(demand > capacities * (1 + TOLERANCE))
    contended = [number for number in traffic if table[row[number], hot].any()]
    loads = [_crossings(traffic[number], table[row[number]], hot) for number in contended]
    rates = [traffic[number].bytes_per_s for number in contended]
    flows, kept = flows_on(loads, rates, dict(enumerate(capacities.tolist())))
    return SharedLinks(dict(zip(contended, flows, strict=True)), kept) if flows else SharedLinks()


def _table(traffic: Sequence[Traffic], network: Network) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What each communication asks of each link, in bytes/s, and their capacities; like links once."""
    links = np.unique(np.concatenate([each.links for each in traffic]))
    table = np.zeros((len(traffic) + 1, len(links)))
    for row, each in enumerate(traffic):
        table[row, np.searchsorted(links, each.links)] = each.times * each.bytes_per_s
    table[-1] = network.bytes_per_s(links)
    columns = np.ascontiguousarray(table.T)
    first = {column.tobytes(): index for index, column in reversed(list(enumerate(columns)))}
    table = table[:, sorted(first.values())]
    return table[:-1], table[-1]


def _crossings(traffic: Traffic, asked: NDArray[np.float64], links: NDArray[np.intp]) -> dict[int, int]:
    times = np.rint(asked[links] / traffic.bytes_per_s).astype(np.int64)
    return {link: each for link, each in zip(links.tolist(), times.tolist(), strict=True) if each}


def _traffic(works: Sequence[Work], network: Network, peers: PeerClasses) -> dict[int, Traffic]:
    """By work id; works of one group and direction put the same on the network."""
    known: dict[tuple[RankGroup | None, bool, str], Traffic | None] = {}
    found: dict[int, Traffic] = {}
    for number, work in enumerate(works):
        if work.kind is Kind.COMP:
            continue
        key = (work.group, work.kind is Kind.COMM_COLL, work.op)
        if key not in known:
            known[key] = network.traffic(work, peers)
        if (traffic := known[key]) is not None:
            found[number] = traffic
    return found


def _works_on_streams(graph: TaskGraph) -> list[tuple[int, int]]:
    """Every (work, stream) that occurs."""
    width = len(graph.streams)
    found = np.bincount(graph.work * np.int64(width) + graph.stream, minlength=1)
    return [divmod(each, width) for each in np.flatnonzero(found).tolist()]
