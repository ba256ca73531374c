"""Traffic of wafers on MemoryX, the SwarmX tree, and the ports of each system."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np

from perfsim.costs.streams import StreamCosts
from perfsim.errors import InputError
from perfsim.graph import TaskGraph, Work
from perfsim.machines.network import Floats, Ints, Network, PeerClasses, Traffic
from perfsim.topology import WaferTree

FLASH_OPS = {"flash_read": 0, "flash_write": 1}
"""Operations on flash, and the direction of their link."""
DIRECTIONS: dict[str, Literal["down", "up"]] = {
    "memoryx_read": "down",
    "samples": "down",
    "fetch": "down",
    "spill": "up",
    "reduce": "up",
    "reduce_part": "up",
    "reduce_in_tree": "up",
    "reduce_in_tree_part": "up",
}
UPDATE = "memoryx_update"
AT_SYSTEMS = ("samples", "spill", "fetch")
"""Operations between a system and its activation servers."""
POOLS = ("server", "dram", "flash")
"""Kinds of links that occur once in every weight server."""


class WaferNetwork(Network):
    """A tree that streams weights down to all systems and gradients up."""

    def __init__(self, tree: WaferTree) -> None:
        self.tree, self.costs = tree, StreamCosts(tree)

    def of_graph(self, graph: TaskGraph, /) -> WaferNetwork:
        """Raises InputError for several unfolded wafers: spills of all systems are counted together."""
        wafers = sum(stream.endswith("/spill") for stream in graph.streams)
        if wafers > 1:
            raise InputError(
                f"the graph has {wafers} unfolded wafers; spilled activations are counted for one only"
            )
        return self

    def traffic(self, work: Work, peers: PeerClasses, /) -> Traffic | None:
        """The load of a class of work that may share links.

        Samples are megabytes beside gigabytes of weights, so they count only where an activation server is
        slow; updates, which their own bytes limit, only where DRAM is. InputError where the only route to a
        system is cut.
        """
        load = self.load(work, peers)
        if load is None:
            return None
        if work.op in ("samples", UPDATE) and (self.capacities[load.links] >= load.bytes_per_s).all():
            return None
        self._refuse_cuts(load.links)
        return load

    def load(self, work: Work, _peers: PeerClasses, /) -> Traffic | None:
        """Traffic of a class of work on all links: weights go down the whole tree, gradients up.

        Gradients summed in SwarmX do not enter MemoryX. Samples and spilled activations pass the ports of
        their systems, all at the same time. Links that are not duplex count as one. The weight servers count
        as one, with the first link of each kind, and so do the activation servers of a system.
        """
        costs, tree = self.costs, self.tree
        if work.op in FLASH_OPS:
            return self._once(tree.edges.of_kind("flash")[FLASH_OPS[work.op] :: 2], costs.flash_bytes_per_s())
        if work.op == UPDATE:
            return self._once(tree.edges.of_kind("dram"), costs.update_bytes_per_s)
        if work.op not in DIRECTIONS:
            return None
        way = DIRECTIONS[work.op]
        if work.op in AT_SYSTEMS:
            own = np.concatenate([tree.ways(kind, way) for kind in ("io", "feed")])
            return self._once(own, costs.feed_bytes_per_s)
        links = tree.tree_links(way)
        if work.op.startswith("reduce_in_tree"):
            inside = np.setdiff1d(links, tree.edges.of_kind("memoryx"))
            return self._once(inside, costs.tree_bytes_per_s)
        servers = [tree.ways(kind, way) for kind in ("server", "dram")]
        return self._once(np.concatenate([links, *servers]), costs.stream_bytes_per_s)

    def _once(self, links: Ints, bytes_per_s: float) -> Traffic:
        """Traffic that crosses each link once."""
        links = np.unique(self.counted[links])
        return Traffic(links, np.ones(len(links), dtype=np.int64), bytes_per_s)

    def _refuse_cuts(self, links: Ints) -> None:
        cut = links[self.capacities[links] == 0.0]
        dead = np.array(sorted(self.tree.edges.dead), dtype=np.int64)
        for link in dead[np.isin(self.counted[dead], cut)].tolist():
            edge = self.tree.links()[link]
            raise InputError(
                f"no route without {edge.source}-{edge.target}: a wafer that is cut off is a failure; "
                "give at= or mttf= with checkpoint= and restart="
            )

    @cached_property
    def counted(self) -> Ints:
        """The link that each link counts as: itself, its way back, or the first of several servers."""
        edges, counted = self.tree.edges, self.tree.edges.medium.copy()
        for kind in POOLS:
            links = edges.of_kind(kind).reshape(-1, 2)
            counted[links] = counted[links[:1]]
        feeders = edges.of_kind("feed").reshape(self.tree.num_devices, -1, 2)
        counted[feeders] = feeders[:, :1]
        return counted

    @cached_property
    def capacities(self) -> Floats:
        """Bytes/s of every link; the first of several that count as one has their joint capacity.

        Layers wait for the slowest weight server: those that are sharded over all of them, and those on one
        server each too, since they are used in order. Activation servers of a system share its spills.
        """
        edges = self.tree.edges
        capacities, carried = edges.bytes_per_s.copy(), edges.bytes_per_s
        for kind in POOLS:
            links = edges.of_kind(kind).reshape(-1, 2)
            capacities[links[:1]] = len(links) * carried[links].min(axis=0, initial=np.inf)
        feeders = edges.of_kind("feed").reshape(self.tree.num_devices, -1, 2)
        capacities[feeders[:, 0]] = carried[feeders].sum(axis=1)
        return capacities

    def bytes_per_s(self, links: Ints, /) -> Floats:
        """Capacity of links, those of several servers together."""
        return self.capacities[links]
