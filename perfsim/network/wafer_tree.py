"""Wafer clusters: systems under a tree of broadcast-reduce nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from perfsim.base.arrays import Ints
from perfsim.base.errors import InputError
from perfsim.network.topology import Cable, Topology
from perfsim.specs.hardware import WaferClusterSpec

TREE_KINDS = ("memoryx", "swarmx", "io")
"""Kinds of the links between MemoryX and the systems."""


class WaferTree(Topology):
    """Wafer-scale systems under a tree of broadcast-reduce nodes, MemoryX at its root.

    The tree has the fewest levels that its fan-out allows, at least one. An edge into a SwarmX node has the
    latency of that node's hop, and the edge between a system and its ports that of the ports. The servers of
    MemoryX, each with DRAM and flash, meet in `memoryx`; the activation servers of a system are at its
    ports.
    """

    system: WaferClusterSpec
    devices_per_node = 1

    def __init__(self, system: WaferClusterSpec, num_devices: int) -> None:
        super().__init__(system, num_devices)
        if num_devices > system.max_systems:
            raise InputError(
                f"{system.name} clusters have at most {system.max_systems} systems, not {num_devices}"
            )
        levels = [-(-num_devices // system.swarmx.fan_out)]
        while levels[0] > 1:
            levels.insert(0, -(-levels[0] // system.swarmx.fan_out))
        self.tree_levels = tuple(levels)
        """Number of SwarmX nodes on each level, from the root down."""

    @property
    def tree_depth(self) -> int:
        """Levels of SwarmX nodes between MemoryX and a system."""
        return len(self.tree_levels)

    def device(self, rank: int) -> str:
        """Name of a rank's system, such as `cs0`."""
        self._check_rank(rank)
        return f"cs{rank}"

    def tree_links(self, direction: Literal["down", "up"]) -> Ints:
        """Links that a broadcast from MemoryX to all systems crosses, or a reduction to MemoryX."""
        return np.concatenate([self.ways(kind, direction) for kind in TREE_KINDS])

    def ways(self, kind: str, direction: Literal["down", "up"]) -> Ints:
        """Links of a kind towards the systems, or away from them."""
        return self.edges.of_kind(kind)[direction == "up" :: 2]

    def _vertices(self) -> Iterator[tuple[str, str]]:
        ranks = range(self.num_devices)
        yield from ((self.device(rank), "device") for rank in ranks)
        yield from ((f"cs{rank}/port", "port") for rank in ranks)
        yield "memoryx", "memoryx"
        for level, nodes in enumerate(self.tree_levels):
            yield from ((f"swarmx/{level}/{node}", "swarmx") for node in range(nodes))
        for server in range(self.system.memoryx.servers):
            yield f"memoryx/server{server}", "server"
            yield f"memoryx/server{server}/dram", "dram"
            if self.system.memoryx.server.flash is not None:
                yield f"memoryx/server{server}/flash", "flash"
        for rank in ranks:
            for server in range(self.system.activation_servers.per_system):
                yield f"cs{rank}/activations{server}", "activation server"

    def _cables(self) -> Iterator[Cable]:
        swarmx = self.system.swarmx
        duplex = self.system.swarmx.duplex
        hop = swarmx.hop_latency
        bytes_per_s = swarmx.bandwidth
        yield Cable("memoryx", "swarmx/0/0", "memoryx", self.system.memoryx.bandwidth, (hop, 0.0), duplex)
        for level, nodes in enumerate(self.tree_levels[1:], start=1):
            for node in range(nodes):
                parent = f"swarmx/{level - 1}/{node // swarmx.fan_out}"
                yield Cable(parent, f"swarmx/{level}/{node}", "swarmx", bytes_per_s, (hop, hop), duplex)
        for rank in range(self.num_devices):
            parent = f"swarmx/{len(self.tree_levels) - 1}/{rank // swarmx.fan_out}"
            yield Cable(parent, f"cs{rank}/port", "swarmx", bytes_per_s, (0.0, hop), duplex)
        port_s = (self.system.io_link.latency,) * 2
        for rank in range(self.num_devices):
            yield Cable(f"cs{rank}/port", f"cs{rank}", "io", self.system.io_bytes_per_s, port_s, duplex)
        yield from self._server_cables()

    def _server_cables(self) -> Iterator[Cable]:
        server = self.system.memoryx.server
        feeders = self.system.activation_servers
        free = (0.0, 0.0)
        for number in range(self.system.memoryx.servers):
            name = f"memoryx/server{number}"
            yield Cable(name, "memoryx", "server", server.bandwidth, free)
            yield Cable(f"{name}/dram", name, "dram", server.dram.bandwidth, free, duplex=False)
            if server.flash is not None:
                flash = server.flash
                yield Cable(f"{name}/flash", f"{name}/dram", "flash", flash.bandwidth, free, flash.duplex)
        for rank in range(self.num_devices):
            for number in range(feeders.per_system):
                name = f"cs{rank}/activations{number}"
                yield Cable(name, f"cs{rank}/port", "feed", feeders.bandwidth, free)
