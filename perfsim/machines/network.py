"""Traffic of communication on a network, counted for all ranks that a folded rank stands for.

A folded graph writes one peer and one replica; the others do the same at the same time, on the same
uplinks. So a class of work is one flow over all links that any of its copies crosses, counted as often as
copies cross it. All copies run at the rate of the most contended link, since peers wait for one another
before the step ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import Kind, RankGroup, TaskGraph, Work

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Traffic:
    """How often a communication crosses each link, and its rate on an idle network."""

    links: Ints
    times: Ints
    bytes_per_s: float


@dataclass(frozen=True)
class PeerClasses:
    """Classes of the peers that a folded device stands for; `numbers` has the class of each peer."""

    numbers: Ints

    @property
    def width(self) -> int:
        """Number of peers."""
        return len(self.numbers)

    def groups_like(self, group: RankGroup) -> Ints:
        """Ranks of the group and of all groups whose members have the same classes, one group a row."""
        ranks = np.arange(group.size) * group.stride + group.start
        block = ranks // self.width
        together = group.size > 1 and block.min() == block.max()
        stride, size = (abs(group.stride), group.size) if together else (1, 1)
        offset = np.arange(self.width)
        firsts = offset[offset // stride % size == 0]
        members = firsts[:, None] + stride * np.arange(size)
        whole = members[:, -1] < self.width
        firsts, members = firsts[whole], members[whole]
        classes = np.sort(self.numbers[members], axis=1)
        own = int(ranks[0] if group.stride > 0 or not together else ranks[-1]) % self.width
        own_classes = classes[np.searchsorted(firsts, own)]
        like = firsts[(classes == own_classes).all(axis=1)]
        return np.asarray(ranks + (like - own)[:, None])


class Network:
    """A topology as communication uses it.

    The default has no shared links, and all ranks have like positions. Kinds of machine override it.
    """

    def of_graph(self, _graph: TaskGraph, /) -> Network:
        """The network for one graph, without links that its communication cannot fill.

        Raises InputError for a graph whose traffic cannot be counted.
        """
        return self

    def traffic(self, _work: Work, _peers: PeerClasses, /) -> Traffic | None:
        """Traffic of a class of communication on shared links; None for none.

        Raises InputError where dead links leave no route.
        """
        return None

    def load(self, work: Work, peers: PeerClasses, /) -> Traffic | None:
        """Traffic of a class of communication on all links, also those that cannot slow it."""
        return self.traffic(work, peers)

    def sent_bytes(self, work: Work, /) -> float:
        """Bytes of a class of communication on a link that it crosses once."""
        return work.comm_bytes

    def alike(self, work: Work, /) -> Hashable:
        """What the traffic of a class of communication depends on."""
        return work.group, work.kind is Kind.COMM_COLL, work.op

    def bytes_per_s(self, links: Ints, /) -> Floats:
        """Capacity of links by the ids that `traffic` uses."""
        return np.full(len(links), np.inf)

    def places(self) -> Mapping[int, Hashable]:
        """The position of each rank, where positions make a difference."""
        return {}

    def peer_places(
        self,
        _works: Sequence[Work],
        _width: int,
        /,
        *,
        shares_links: bool,  # noqa: ARG002
    ) -> Ints | None:
        """The positions of the groups of `width` peers, one row a peer; None where all are alike.

        Without `shares_links`, positions that cost the same are alike.
        """
        return None

    def worst_group(self, work: Work, _width: int, /) -> RankGroup | None:
        """Of the groups in which `width` peers do this work, the one that it takes longest for."""
        return work.group

    def peers_keep_step(self, _layout: Any, /) -> bool:
        """Whether tensor peers never send on shared links before the slowest peer could."""
        return True
