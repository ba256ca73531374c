"""A graph on a network: ranks that differ are unfolded, and shared links are found.

A folded graph writes one peer for all, so all peers must behave alike. Peers differ by a mark (a straggler),
by how their groups lie over nodes (`rank_classes`), by a degraded link of their own, or by their leaf where
uplinks are oversubscribed, since then only some of them cross uplinks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfsim.base.arrays import Floats, Ids, Ints, distinct
from perfsim.engine.tables import TOLERANCE, Flow
from perfsim.machines import network_of
from perfsim.machines.machine import Network, Traffic
from perfsim.network import Topology
from perfsim.work import TaskGraph, peer_classes, unfold
from perfsim.work.graph import Ragged, offsets

# Which peers of a folded graph differ, because their groups lie differently over the nodes.
#
# A folded graph is priced and simulated for one peer of each pipeline rank, which must hold for all peers.


def rank_classes(
    graph: TaskGraph, network: Network, marks: Mapping[int, Hashable], *, shares_links: bool
) -> Ids:
    """The class of each peer, by its position in the network and by the `marks` of ranks.

    With a single class the graph can stay folded. Unless something `shares_links`, positions that cost the
    same are alike.
    """
    width = graph.width
    places = network.peer_places(graph.works, width, shares_links)
    if places is None:
        return peer_classes(graph, marks) if marks else np.zeros(width, dtype=np.int32)
    numbers = np.unique(places, axis=0, return_inverse=True)[1].reshape(-1).tolist()
    ranks = [(base + peer, peer) for base in graph.bases for peer in range(width)]
    return peer_classes(graph, {rank: (numbers[peer], marks.get(rank)) for rank, peer in ranks})


# Which communications contend for links, so that the engine must share bandwidth among them.
#
# Only links whose peak demand exceeds their capacity matter: a link that can carry all its users at full
# speed at once slows none of them. Of the rest, links that another one implies are left out as well: a link
# with some capacity admits flow rates r with sum(count x r) <= capacity, so link A is implied by link B where
# B's counts over capacity are at least A's for every flow. Max-min fair rates depend only on the rates that
# all links together admit. All links of a tree that a broadcast crosses become one, however many leaves the
# tree has.


class SharedLinks(NamedTuple):
    """Flows by work id, and the capacity of every link on their routes."""

    flows: Mapping[int, Flow]
    capacities: Floats

    @classmethod
    def of(cls, graph: TaskGraph, network: Network, *, peers: ArrayLike | None = None) -> SharedLinks:
        """The communications of `graph` that contention, or a link below their own rate, can slow.

        `peers` are the classes that `unfold` got, if any. Raises InputError where dead links leave no route.
        """
        classes = np.zeros(graph.width, dtype=np.int64) if peers is None else np.asarray(peers)
        network = network.of_graph(graph)
        traffic = network.by_work(graph.works, classes, limiting=True)
        if not traffic:
            return NOTHING_SHARED
        # Works of one traffic are one row of the table of crossings.
        apart = list({id(flow): flow for flow in traffic.values()}.values())
        row_of_flow = {id(flow): row for row, flow in enumerate(apart)}
        row_of_work = {work: row_of_flow[id(flow)] for work, flow in traffic.items()}
        crosses = np.concatenate([flow.links for flow in apart])
        links, index = distinct(crosses, len(network.capacities))
        starts = offsets(np.array([len(flow.links) for flow in apart]))
        crossed = Ragged(starts.astype(np.int32), index.astype(np.int32))
        times = np.concatenate([flow.times for flow in apart])
        capacities = network.capacities[links]
        demand = _demand(graph, row_of_work, apart, crossed, times, len(links))
        hot = np.flatnonzero((demand > capacities * (1 + TOLERANCE))[crossed.values])
        routes, kept = _routes(crossed.row_of_value[hot], crossed.values[hot], times[hot], capacities)
        flow_of_row = {
            row: Flow(tuple(routes.get(row, ())), flow.bytes_per_s, late_s=flow.late_s)
            for row, flow in enumerate(apart)
            if row in routes or flow.late_s
        }
        flows = {work: flow_of_row[row] for work, row in row_of_work.items() if row in flow_of_row}
        return cls(flows, kept) if flows else NOTHING_SHARED


NOTHING_SHARED = SharedLinks({}, np.zeros(0))


def _demand(
    graph: TaskGraph,
    row_of_work: Mapping[int, int],
    traffic: Sequence[Traffic],
    crossed: Ragged,
    times: Ints,
    num_links: int,
) -> Floats:
    """Peak demand on each link in bytes/s, where each stream runs its communications one at a time."""
    rows = np.full(len(graph.works), -1, dtype=np.int64)
    rows[list(row_of_work)] = list(row_of_work.values())
    row = rows[graph.work]
    moves = row >= 0
    width = len(graph.works)
    used, _ = distinct(graph.stream[moves] * np.int64(width) + row[moves], len(graph.streams) * width)
    stream, row = np.divmod(used, width)
    rate = np.array([flow.bytes_per_s for flow in traffic])
    bytes_per_s = times * rate[crossed.row_of_value]
    entry = crossed._replace(values=np.arange(len(times), dtype=np.int32)).rows(row)
    keys = stream[entry.row_of_value] * num_links + crossed.values[entry.values]
    on, cell = distinct(keys, len(graph.streams) * num_links)
    peaks = np.zeros(len(on))
    np.maximum.at(peaks, cell, bytes_per_s[entry.values])
    return np.asarray(np.bincount(on % num_links, peaks, minlength=num_links), dtype=np.float64)


def _routes(rows: Ids, links: Ids, times: Ints, capacities: Floats) -> tuple[dict[int, list[int]], Floats]:
    """Routes of flows over the links that no other one implies, renumbered, and the capacities of these.

    Flow `rows[i]` crosses link `links[i]` so many `times`; rows ascend. A link that every flow crosses a
    multiple of k times becomes one with a k-th of the capacity.
    """
    order = np.argsort(links, kind="stable")
    rows = rows[order]
    links = links[order]
    times = times[order]
    with np.errstate(divide="ignore"):
        share = times / capacities[links]
    starts = np.flatnonzero(np.diff(links, prepend=-1))
    # Of equal links the first is kept.
    unlike: dict[tuple[bytes, bytes], slice] = {}
    for start, end in pairwise([*starts.tolist(), len(links)]):
        of_link = slice(start, end)
        unlike.setdefault((rows[of_link].tobytes(), share[of_link].tobytes()), of_link)
    kept: list[slice] = []
    by_row: dict[int, list[dict[int, float]]] = {}
    most_first = sorted(unlike.values(), key=lambda of: (of.start - of.stop, -sum(share[of].tolist())))
    for of_link in most_first:
        column = dict(zip(rows[of_link].tolist(), share[of_link].tolist(), strict=True))
        rarest = min(column, key=lambda row: len(by_row.get(row, ())))
        others = by_row.get(rarest, ())
        if any(all(other.get(row, 0.0) >= load for row, load in column.items()) for other in others):
            continue
        kept.append(of_link)
        for row in column:
            by_row.setdefault(row, []).append(column)
    kept.sort(key=lambda of_link: of_link.start)
    routes: dict[int, list[int]] = {row: [] for row in dict.fromkeys(np.sort(rows).tolist())}
    bytes_per_s = np.zeros(len(kept))
    for number, of_link in enumerate(kept):
        counts = times[of_link].tolist()
        unit = gcd(*counts)
        bytes_per_s[number] = capacities[links[of_link.start]] / unit
        for row, count in zip(rows[of_link].tolist(), counts, strict=True):
            routes[row] += [number] * (count // unit)
    return routes, bytes_per_s


MOST_TASKS = 3_000_000
"""Above this many tasks replicas with jitter of their own stay folded."""
MOST_UNEVEN_TASKS = 500_000
"""Above this many tasks peers whose groups lie unevenly stay folded; about ten seconds of simulation."""


TOO_MANY = (
    "too many tasks to simulate, so each communication takes what it takes the ranks whose group lies worst"
)


class Placed(NamedTuple):
    """A graph in which ranks that differ have tasks of their own."""

    graph: TaskGraph
    rank: Ids
    """The (first) rank of each task; -1 on a stream that all ranks share."""
    links: SharedLinks
    network: Network
    peers: Ids
    """The class of each peer; peers of one class are written once."""
    note: str = ""
    """A remark on how ranks that differ are simulated; empty where peers are alike."""

    def pacing_links(self) -> dict[int, str]:
        """The kind of link that sets the pace of each class of communication: the fullest that it crosses."""
        network = self.network
        edges = network.topology.edges
        loads = network.by_work(self.graph.works, self.peers.astype(np.int64), limiting=False)
        fullest = {
            number: load.links[np.argmax(load.times / network.capacities[load.links])]
            for number, load in loads.items()
            if len(load.links)
        }
        return {number: edges.kinds[edges.kind[link]] for number, link in fullest.items()}


def place(
    folded: TaskGraph,
    topology: Topology,
    *,
    marks: Mapping[int, Hashable] | None = None,
    contention: bool = True,
) -> Placed:
    """Unfold the ranks that differ by their marks or by their position in the network.

    Without `contention` no links are shared, and positions matter only where they change prices.
    """
    network = network_of(topology)
    links = SharedLinks.of(folded, network) if contention else NOTHING_SHARED
    marked = dict(marks or {})
    places = network.places() if links.flows else {}
    keys: dict[int, Hashable] = {
        rank: (marked.get(rank), places.get(rank)) for rank in marked.keys() | places.keys()
    }
    classes = rank_classes(folded, network, keys, shares_links=bool(links.flows))
    count = int(classes.max(initial=0)) + 1
    too_many = not marked and count > 1 and count * len(folded) > MOST_UNEVEN_TASKS
    note = ""
    if count > 1 and not marked:
        note = f"groups lie unevenly over nodes or leaves: {count:,} kinds of ranks are "
        note += TOO_MANY if too_many else "simulated"
    if too_many:
        # Without contention the step is at least as long as with all peers written out, since no peer has
        # all of these groups.
        groups = (network.worst_group(work, folded.width) for work in folded.works)
        works = (replace(work, group=group) for work, group in zip(folded.works, groups, strict=True))
        folded = replace(folded, works=tuple(works))
        links = SharedLinks.of(folded, network) if contention else links
    if count == 1 or too_many:
        rank = folded.stream_ranks[folded.stream]
        return Placed(folded, rank, links, network, np.zeros_like(classes), note)
    unfolded = unfold(folded, classes)
    if contention:
        links = SharedLinks.of(unfolded.graph, network, peers=classes)
    return Placed(unfolded.graph, unfolded.rank, links, network, classes, note)
