"""Wafer clusters: systems under a tree of broadcast-reduce nodes."""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np

from perfsim.base.arrays import Ints
from perfsim.base.errors import InputError
from perfsim.network.topology import Cable, Topology
from perfsim.specs.hardware import WaferClusterSpec

Way = Literal["down", "up"]
"""Towards the systems, or away from them."""
POOLS = ("server", "dram", "flash")
"""Kinds of links that occur once in every weight server."""


class Stream(NamedTuple):
    """What an operation that moves data runs on."""

    lane: str
    """The part of the machine that is busy."""
    way: Way
    kinds: tuple[str, ...]
    """The kinds of links that it crosses."""


_TREE = ("memoryx", "swarmx", "io", "server", "dram")
_AT_SYSTEM = ("io", "feed")
STREAMS: Mapping[str, Stream] = {
    "memoryx_read": Stream("link", "down", _TREE),
    "reduce": Stream("link", "up", _TREE),
    "reduce_part": Stream("link", "up", _TREE),
    # Gradients that SwarmX has summed do not enter MemoryX.
    "reduce_in_tree": Stream("link", "up", ("swarmx", "io")),
    "reduce_in_tree_part": Stream("link", "up", ("swarmx", "io")),
    "flash_read": Stream("flash", "down", ("flash",)),
    "flash_write": Stream("flash", "up", ("flash",)),
    "samples": Stream("input", "down", _AT_SYSTEM),
    "spill": Stream("spilling", "up", _AT_SYSTEM),
    "fetch": Stream("spilling", "down", _AT_SYSTEM),
    "memoryx_update": Stream("update", "down", ("dram",)),
}


class WaferTree(Topology):
    """Wafer-scale systems under a tree of broadcast-reduce nodes, MemoryX at its root.

    The tree has the fewest levels that its fan-out allows, at least one. An edge into a SwarmX node has the
    latency of that node's hop, the edge between a system and its ports the ports' latency. The servers of
    MemoryX, each with DRAM and flash, meet in `memoryx`; servers of activations are at the ports of a system.
    """

    system: WaferClusterSpec
    devices_per_node = 1
    devices_per_server = 1

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

    def device(self, rank: int) -> str:
        self._check_rank(rank)
        return f"cs{rank}"

    def ways(self, way: Way, *kinds: str) -> Ints:
        """Links of some kinds in one direction."""
        return np.concatenate([self.edges.of_kind(kind)[way == "up" :: 2] for kind in kinds])

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
        """The tree from the root down, then the ports of systems, weight servers and activation servers."""
        memoryx = self.system.memoryx
        swarmx = self.system.swarmx
        hop = swarmx.hop_latency
        duplex = swarmx.duplex
        yield Cable("memoryx", "swarmx/0/0", "memoryx", memoryx.bandwidth, (hop, 0.0), duplex)
        for level, nodes in enumerate(self.tree_levels[1:], start=1):
            for node in range(nodes):
                parent = f"swarmx/{level - 1}/{node // swarmx.fan_out}"
                yield Cable(parent, f"swarmx/{level}/{node}", "swarmx", swarmx.bandwidth, (hop, hop), duplex)
        for rank in range(self.num_devices):
            parent = f"swarmx/{len(self.tree_levels) - 1}/{rank // swarmx.fan_out}"
            yield Cable(parent, f"cs{rank}/port", "swarmx", swarmx.bandwidth, (0.0, hop), duplex)
        port_s = (self.system.io_link.latency,) * 2
        for rank in range(self.num_devices):
            yield Cable(f"cs{rank}/port", f"cs{rank}", "io", self.system.io_bytes_per_s, port_s, duplex)
        server = memoryx.server
        flash = server.flash
        for number in range(memoryx.servers):
            name = f"memoryx/server{number}"
            yield Cable(name, "memoryx", "server", server.bandwidth)
            yield Cable(f"{name}/dram", name, "dram", server.dram.bandwidth, duplex=False)
            if flash is not None:
                yield Cable(f"{name}/flash", f"{name}/dram", "flash", flash.bandwidth, duplex=flash.duplex)
        feeders = self.system.activation_servers
        for rank in range(self.num_devices):
            for number in range(feeders.per_system):
                yield Cable(f"cs{rank}/activations{number}", f"cs{rank}/port", "feed", feeders.bandwidth)

    def bundles(self) -> Iterator[tuple[Ints, bool]]:
        """The weight servers, and the activation servers of each system, which share its spills."""
        for way in (0, 1):
            # Layers wait for the slowest weight server: those that are sharded over all of them, and those on
            # one server each too, since they are used in order.
            for kind in POOLS:
                links = self.edges.of_kind(kind)[way::2]
                if len(links):
                    yield links[None], True
            yield self.edges.of_kind("feed")[way::2].reshape(self.num_devices, -1), False

    def latency_s(self, way: Way) -> float:
        """Latency between the memory of MemoryX's servers and the farthest system."""
        edges = self.edges
        at = np.arange(self.num_devices)
        total_s = np.zeros(self.num_devices)
        parent = np.zeros(len(self.vertices), dtype=np.int64)
        links = np.zeros(len(self.vertices), dtype=np.int64)
        down = self.ways("down", "memoryx", "swarmx", "io")
        parent[edges.target[down]] = edges.source[down]
        links[edges.target[down]] = down + (way == "up")
        for _ in range(len(self.tree_levels) + 2):
            total_s += edges.seconds[links[at]]
            at = parent[at]
        return float(total_s.max()) + self.slowest_s(way, "server", "dram")

    def slowest_s(self, way: Way, *kinds: str) -> float:
        """Latency over one link of each kind, the slowest."""
        return sum(float(self.edges.seconds[self.ways(way, kind)].max()) for kind in kinds)
