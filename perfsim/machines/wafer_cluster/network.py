"""Traffic of wafers on MemoryX, the SwarmX tree, flash, and the ports of each system."""

from __future__ import annotations

from typing import Literal

import numpy as np

from perfsim.costs.streams import StreamCosts
from perfsim.errors import InputError
from perfsim.graph import TaskGraph, Work
from perfsim.machines.network import Floats, Ints, Network, PeerClasses, Traffic
from perfsim.topology import LinkHealth, WaferTree

SPILLING = ("spill", "fetch")
FLASH_OPS = ("flash_read", "flash_write")
FLASH = -1
"""A link id for the flash of all weight servers, which reads and writes share."""
DIRECTIONS: dict[str, Literal["down", "up"]] = {
    "memoryx_read": "down",
    "fetch": "down",
    "spill": "up",
    "reduce": "up",
    "reduce_part": "up",
    "reduce_in_tree": "up",
    "reduce_in_tree_part": "up",
}


class WaferNetwork(Network):
    """A tree that streams weights down to all systems and gradients up."""

    def __init__(self, tree: WaferTree, health: LinkHealth) -> None:
        self.tree, self.health, self.costs = tree, health, StreamCosts(tree)
        flash = tree.system.memoryx.server.flash
        self.flash_bytes_per_s = 0.0 if flash is None else tree.system.memoryx.servers * flash.bandwidth
        self.flash_is_half_duplex = flash is not None and not flash.duplex

    def check(self, graph: TaskGraph, /) -> None:
        """Raises InputError for several unfolded wafers: spills are counted for the first system only."""
        wafers = sum(stream.endswith("/spill") for stream in graph.streams)
        if wafers > 1:
            raise InputError(
                f"the graph has {wafers} unfolded wafers; spilled activations are counted for one only"
            )

    def traffic(self, work: Work, _peers: PeerClasses, /) -> Traffic | None:
        """Traffic of a class of work on MemoryX and the tree: weights go down the whole tree, gradients up.

        Reads and writes share half-duplex flash. Gradients summed in SwarmX do not enter MemoryX. Spilled
        activations pass only the ports of their own system; those of the first system are counted.
        Half-duplex links count as one link, the lower id of the two directions. Samples are left out,
        as megabytes beside gigabytes of weights. InputError where the only route to a system is cut.
        """
        if work.op in FLASH_OPS and self.flash_is_half_duplex:
            return Traffic(np.array([FLASH]), np.ones(1, dtype=np.int64), self.costs.flash_bytes_per_s())
        if work.op not in DIRECTIONS:
            return None
        links, rate = self.tree.tree_links(DIRECTIONS[work.op]), self.costs.stream_bytes_per_s
        if work.op in SPILLING:
            ends = ("memoryx", 0) if work.op == "fetch" else (0, "memoryx")
            links = tuple(edge.link for edge in self.tree.route(*ends) if edge.kind == "io")
            rate = self.costs.feed_bytes_per_s
        elif work.op.startswith("reduce_in_tree"):
            kinds, rate = self.tree.links(), self.costs.tree_bytes_per_s
            links = tuple(link for link in links if kinds[link].kind != "memoryx")
        self._refuse_cuts(links)
        if not self.tree.system.swarmx.duplex:
            links = tuple(link - link % 2 for link in links)
        return Traffic(np.array(links), np.ones(len(links), dtype=np.int64), rate)

    def _refuse_cuts(self, links: tuple[int, ...]) -> None:
        for link in sorted(self.health.dead.intersection(links)):
            edge = self.tree.links()[link]
            raise InputError(
                f"no route without {edge.source}-{edge.target}: a wafer that is cut off is a failure; "
                "give at= or mttf= with checkpoint= and restart="
            )

    def bytes_per_s(self, links: Ints, /) -> Floats:
        """Capacity of links, and of the flash of all weight servers together."""
        edges = self.tree.links()
        return np.array(
            [
                self.flash_bytes_per_s if link == FLASH else self.health.bytes_per_s(edges[link])
                for link in links.tolist()
            ]
        )
