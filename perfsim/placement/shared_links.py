"""Which communications contend for links, so that the engine must share bandwidth among them.

Only links whose peak demand exceeds their capacity matter: a link that can carry all its users at full
speed at once slows none of them and is left out. Of the rest, only binding links are kept (`binding_links`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfsim.engine.fairshare import Flow
from perfsim.engine.max_min import TOLERANCE
from perfsim.graph import Kind, TaskGraph, Work
from perfsim.graph.ragged import Ragged, offsets
from perfsim.machines.network import Ints, Network, PeerClasses, Traffic
from perfsim.placement.binding_links import flows_on

NO_FLOWS: Mapping[int, Flow] = {}


class SharedLinks(NamedTuple):
    """Flows by work id, and the capacity of every link on their routes."""

    flows: Mapping[int, Flow] = NO_FLOWS
    capacities: NDArray[np.float64] | None = None


def shared_links(graph: TaskGraph, network: Network, *, peers: ArrayLike | None = None) -> SharedLinks:
    """The communications of `graph` that contention, or a link below their own rate, can slow.

    `peers` is the class of each peer that `unfold` got; a folded graph needs none. Raises InputError where
    dead links leave no route.
    """
    classes = np.zeros(graph.width, dtype=np.int64) if peers is None else np.asarray(peers)
    network = network.of_graph(graph)
    traffic = _traffic(graph.works, network, PeerClasses(classes))
    if not traffic:
        return SharedLinks()
    # Works of one traffic are one row of the table of crossings.
    distinct = list({id(flow): flow for flow in traffic.values()}.values())
    row_of_flow = {id(flow): row for row, flow in enumerate(distinct)}
    row = {work: row_of_flow[id(flow)] for work, flow in traffic.items()}
    links, crossed = _crossings(distinct)
    capacities = network.bytes_per_s(links)
    demand = _demand(distinct, len(links), crossed, *_rows_on_streams(graph, row))
    loads = _loads(distinct, crossed, demand > capacities * (1 + TOLERANCE))
    rates = [distinct[number].bytes_per_s for number in loads]
    flows, kept = flows_on(list(loads.values()), rates, capacities.tolist())
    flow_of_row = dict(zip(loads, flows, strict=True))
    by_work = {work: flow_of_row[number] for work, number in row.items() if number in flow_of_row}
    return SharedLinks(by_work, kept) if by_work else SharedLinks()


def _crossings(traffic: Sequence[Traffic]) -> tuple[Ints, Ragged]:
    """The ids of all links, ascending, and which of them each communication crosses, by their index."""
    links, index = np.unique(np.concatenate([flow.links for flow in traffic]), return_inverse=True)
    start = offsets(np.array([len(flow.links) for flow in traffic]))
    return links, Ragged(start.astype(np.int32), index.astype(np.int32))


def _demand(
    traffic: Sequence[Traffic], num_links: int, crossed: Ragged, stream: Ints, row: Ints
) -> NDArray[np.float64]:
    """Peak demand on each link in bytes/s, where each stream runs its rows one at a time."""
    bytes_per_s = np.concatenate([flow.times * flow.bytes_per_s for flow in traffic])
    entry = crossed._replace(values=np.arange(len(bytes_per_s), dtype=np.int32)).rows(row)
    keys = stream[entry.row_of_value] * num_links + crossed.values[entry.values]
    order = np.argsort(keys, kind="stable")
    keys, bytes_per_s = keys[order], bytes_per_s[entry.values[order]]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    peaks = np.maximum.reduceat(bytes_per_s, first)
    return np.asarray(np.bincount(keys[first] % num_links, peaks, minlength=num_links), dtype=np.float64)


def _loads(traffic: Sequence[Traffic], crossed: Ragged, hot: NDArray[np.bool_]) -> dict[int, dict[int, int]]:
    """How often each communication, by its row, crosses each hot link; those that cross none are left out."""
    entries = np.flatnonzero(hot[crossed.values])
    rows = crossed.row_of_value[entries].tolist()
    times = np.concatenate([flow.times for flow in traffic])[entries].tolist()
    loads: dict[int, dict[int, int]] = {}
    for row, link, count in zip(rows, crossed.values[entries].tolist(), times, strict=True):
        loads.setdefault(row, {})[link] = count
    return loads


def _rows_on_streams(graph: TaskGraph, row_of_work: Mapping[int, int]) -> tuple[Ints, Ints]:
    """Every stream and row that occur together."""
    rows = np.full(len(graph.works), -1, dtype=np.int64)
    rows[list(row_of_work)] = list(row_of_work.values())
    row = rows[graph.work]
    moves = row >= 0
    width = len(graph.works)
    stream, row = np.divmod(np.unique(graph.stream[moves] * np.int64(width) + row[moves]), width)
    return stream, row


def _traffic(works: Sequence[Work], network: Network, peers: PeerClasses) -> dict[int, Traffic]:
    """Traffic by work id; works that are alike to the network have the same."""
    known: dict[Hashable, Traffic | None] = {}
    by_work: dict[int, Traffic] = {}
    for number, work in enumerate(works):
        if work.kind is Kind.COMP:
            continue
        key = network.alike(work)
        if key not in known:
            known[key] = network.traffic(work, peers)
        if (traffic := known[key]) is not None:
            by_work[number] = traffic
    return by_work
