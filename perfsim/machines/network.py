"""What communication puts on a network, counted for all ranks that a written one stands for.

A folded graph writes one peer and one replica; the others do the same at the same time, on the same
uplinks. So one class of work is one class of flows over all links that any of its *images* crosses,
as often as they cross it, and all images run at the rate that the tightest of those links allows:
peers wait for one another before the step ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import RankGroup, TaskGraph, Work

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Traffic:
    """How often a communication crosses each link, and the rate at which it runs on an idle network."""

    links: Ints
    times: Ints
    bytes_per_s: float


@dataclass(frozen=True)
class PeerClasses:
    """Which of the ranks that a written device stands for do the same; `numbers` has one entry a peer."""

    numbers: Ints

    @property
    def width(self) -> int:
        return len(self.numbers)

    def groups_like(self, group: RankGroup) -> Ints:
        """The ranks of a group and of all groups whose members are of the same classes, one a row."""
        ranks = np.arange(group.size) * group.stride + group.start
        block = ranks // self.width
        together = group.size > 1 and block.min() == block.max()
        stride, size = (abs(group.stride), group.size) if together else (1, 1)
        offset = np.arange(self.width)
        firsts = offset[offset // stride % size == 0]
        members = firsts[:, None] + stride * np.arange(size)
        whole = members[:, -1] < self.width
        firsts, members = firsts[whole], members[whole]
        kinds = np.sort(self.numbers[members], axis=1)
        own = int(ranks[0] if group.stride > 0 or not together else ranks[-1]) % self.width
        mine = kinds[np.searchsorted(firsts, own)]
        like = firsts[(kinds == mine).all(axis=1)]
        return np.asarray(ranks + (like - own)[:, None])


class Network:
    """A topology in some state of health, as communication meets it.

    This one is wide enough for everything: nothing shares a link, and all ranks stand alike. Kinds of
    machine override what is otherwise on theirs.
    """

    def check(self, _graph: TaskGraph, /) -> None:
        """Raises InputError for a graph whose traffic cannot be counted as it is written."""

    def traffic(self, _work: Work, _peers: PeerClasses, /) -> Traffic | None:
        """What a class of communication puts on shared links; None for nothing.

        Raises InputError where dead links leave no route.
        """
        return None

    def bytes_per_s(self, links: Ints, /) -> Floats:
        """Capacity of links as `traffic` names them."""
        return np.full(len(links), np.inf)

    def places(self) -> Mapping[int, Hashable]:
        """What the network makes of each rank, where it makes a difference."""
        return {}

    def peer_places(
        self,
        _works: Sequence[Work],
        _width: int,
        /,
        *,
        shares_links: bool,  # noqa: ARG002
    ) -> Ints | None:
        """How the groups of each of `width` peers lie, one row a peer; None where they all lie alike.

        Without `shares_links` groups lie alike that cost the same.
        """
        return None

    def peers_keep_step(self, _layout: Any, /) -> bool:
        """Whether tensor peers put nothing on shared links before the slowest of them could."""
        return True
