"""A graph on a network: the ranks that differ written out, and the links that they share.

Peers that a folded graph writes once must do the same. What parts them is a mark (a straggler), groups
that lie unlike over nodes (`folding`), a link of their own that is not whole, or the leaf that they are
under where uplinks are thin: then some of them cross and others do not.
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
"""Past this peers stay folded, and run as the slowest of them."""


class Placed(NamedTuple):
    """A graph in which every rank that differs is written."""

    graph: TaskGraph
    rank: NDArray[np.int32]
    """The (first) rank of each task; -1 on a stream that all share."""
    links: SharedLinks
    note: str = ""
    """What is written where peers do not all stand alike."""


def place(
    folded: TaskGraph,
    topology: Topology,
    *,
    marks: Mapping[int, Hashable] | None = None,
    health: LinkHealth = HEALTHY,
    contention: bool = True,
) -> Placed:
    """A folded graph with the ranks written out that marks, their places or the network tell apart.

    Without `contention` no links are shared, and only what places cost tells ranks apart.
    """
    network = network_of(topology, health)
    links = shared_links(folded, network) if contention else SharedLinks()
    told = dict(marks or {})
    places = network.places() if links.flows else {}
    together: dict[int, Hashable] = {
        rank: (told.get(rank), places.get(rank)) for rank in told.keys() | places.keys()
    }
    classes = rank_classes(folded, network, together, shares_links=bool(links.flows))
    count = int(classes.max(initial=0)) + 1
    too_many = not told and count * len(folded) > MOST_TASKS
    note = _note(count, too_many=too_many) if count > 1 and not told else ""
    if count == 1 or too_many:
        return Placed(folded, folded.stream_ranks[folded.stream], links, note)
    found = unfold(folded, classes)
    if contention:
        links = shared_links(found.graph, network, peers=classes)
    return Placed(found.graph, found.rank, links, note)


def _note(kinds: int, *, too_many: bool) -> str:
    """What to tell of ranks of several kinds."""
    if too_many:
        return (
            f"ranks of {kinds:,} kinds, because groups lie unevenly over nodes or leaves: too many tasks to "
            "write, so that the first rank of each stage stands for all"
        )
    return f"ranks of {kinds:,} kinds written: groups lie unevenly over nodes or leaves"
