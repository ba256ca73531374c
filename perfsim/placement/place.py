"""A graph on a network: ranks that differ are unfolded, and shared links are found.

A folded graph writes one peer for all, so all peers must behave alike. Peers differ by a mark (a straggler),
by how their groups lie over nodes (`rank_classes`), by a degraded link of their own, or by their leaf where
uplinks are oversubscribed, since then only some of them cross uplinks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import TaskGraph, unfold
from perfsim.machines import network_of
from perfsim.placement.rank_classes import rank_classes
from perfsim.placement.shared_links import SharedLinks, shared_links
from perfsim.topology import HEALTHY, LinkHealth, Topology

MOST_TASKS = 3_000_000
"""Above this many tasks peers stay folded, and the first rank stands for all."""


class Placed(NamedTuple):
    """A graph in which ranks that differ have tasks of their own."""

    graph: TaskGraph
    rank: NDArray[np.int32]
    """The (first) rank of each task; -1 on a stream that all ranks share."""
    links: SharedLinks
    note: str = ""
    """A remark on how ranks that differ are simulated; empty where peers are alike."""


def place(
    folded: TaskGraph,
    topology: Topology,
    *,
    marks: Mapping[int, Hashable] | None = None,
    health: LinkHealth = HEALTHY,
    contention: bool = True,
) -> Placed:
    """Unfold the ranks that differ by their marks or by their position in the network.

    Without `contention` no links are shared, and positions matter only where they change prices.
    """
    network = network_of(topology, health)
    links = shared_links(folded, network) if contention else SharedLinks()
    marked = dict(marks or {})
    places = network.places() if links.flows else {}
    keys: dict[int, Hashable] = {
        rank: (marked.get(rank), places.get(rank)) for rank in marked.keys() | places.keys()
    }
    classes = rank_classes(folded, network, keys, shares_links=bool(links.flows))
    count = int(classes.max(initial=0)) + 1
    too_many = not marked and count * len(folded) > MOST_TASKS
    note = _note(count, too_many=too_many) if count > 1 and not marked else ""
    if count == 1 or too_many:
        return Placed(folded, folded.stream_ranks[folded.stream], links, note)
    unfolded = unfold(folded, classes)
    if contention:
        links = shared_links(unfolded.graph, network, peers=classes)
    return Placed(unfolded.graph, unfolded.rank, links, note)


def _note(kinds: int, *, too_many: bool) -> str:
    """The remark on ranks of several kinds."""
    if too_many:
        return (
            f"groups lie unevenly over nodes or leaves: {kinds:,} kinds of ranks are too many tasks to "
            "simulate, so the first rank of each stage stands for all"
        )
    return f"groups lie unevenly over nodes or leaves: {kinds:,} kinds of ranks are simulated"
