"""A graph on a network: ranks that differ are unfolded, and shared links are found.

A folded graph writes one peer for all, so all peers must behave alike. Peers differ by a mark (a straggler),
by how their groups lie over nodes (`rank_classes`), by a degraded link of their own, or by their leaf where
uplinks are oversubscribed, since then only some of them cross uplinks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import TaskGraph, unfold
from perfsim.machines import network_of
from perfsim.machines.network import Network
from perfsim.placement.rank_classes import rank_classes
from perfsim.placement.shared_links import SharedLinks, shared_links
from perfsim.topology import Topology

MOST_TASKS = 3_000_000
"""Above this many tasks replicas with jitter of their own stay folded."""
MOST_UNEVEN_TASKS = 500_000
"""Above this many tasks peers whose groups lie unevenly stay folded; about ten seconds of simulation."""


class Placed(NamedTuple):
    """A graph in which ranks that differ have tasks of their own."""

    graph: TaskGraph
    rank: NDArray[np.int32]
    """The (first) rank of each task; -1 on a stream that all ranks share."""
    links: SharedLinks
    topology: Topology
    peers: NDArray[np.int32]
    """The class of each peer; peers of one class are written once."""
    note: str = ""
    """A remark on how ranks that differ are simulated; empty where peers are alike."""


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
    links = shared_links(folded, network) if contention else SharedLinks()
    marked = dict(marks or {})
    places = network.places() if links.flows else {}
    keys: dict[int, Hashable] = {
        rank: (marked.get(rank), places.get(rank)) for rank in marked.keys() | places.keys()
    }
    classes = rank_classes(folded, network, keys, shares_links=bool(links.flows))
    count = int(classes.max(initial=0)) + 1
    too_many = not marked and count > 1 and count * len(folded) > MOST_UNEVEN_TASKS
    note = _note(count, too_many=too_many) if count > 1 and not marked else ""
    if too_many:
        folded = _at_worst(folded, network)
        links = shared_links(folded, network) if contention else links
    if count == 1 or too_many:
        rank = folded.stream_ranks[folded.stream]
        return Placed(folded, rank, links, topology, np.zeros_like(classes), note)
    unfolded = unfold(folded, classes)
    if contention:
        links = shared_links(unfolded.graph, network, peers=classes)
    return Placed(unfolded.graph, unfolded.rank, links, topology, classes, note)


def _at_worst(folded: TaskGraph, network: Network) -> TaskGraph:
    """The folded graph with each communication in the group of those peers that it takes longest for.

    Without contention the step is at least as long as with all peers written out, since no peer has all
    of these groups.
    """
    groups = (network.worst_group(work, folded.width) for work in folded.works)
    works = (replace(work, group=group) for work, group in zip(folded.works, groups, strict=True))
    return replace(folded, works=tuple(works))


def _note(kinds: int, *, too_many: bool) -> str:
    """The remark on ranks of several kinds."""
    if too_many:
        return (
            f"groups lie unevenly over nodes or leaves: {kinds:,} kinds of ranks are too many tasks to "
            "simulate, so each communication takes what it takes the ranks whose group lies worst"
        )
    return f"groups lie unevenly over nodes or leaves: {kinds:,} kinds of ranks are simulated"
