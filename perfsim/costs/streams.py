"""Seconds of movement around a wafer: weights, gradients, samples, spilled activations, updates.

Weights and gradients cross the tree at line rate: a layer occupies MemoryX and the tree for its bytes
over the bandwidth of the slowest link, and its first byte takes one hop and one chunk per level. MemoryX has
many weight servers: all of them send, read and update a layer that is sharded over them; a layer on a single
server moves at the rate of that server. An update takes the longer of its memory traffic and its arithmetic.

Not counted: adding the gradients of micro-batches in MemoryX. That moves 10 B per parameter in DRAM for 2 B
on the wire, which is hidden where a server's DRAM is five times as fast as its port (12 times on CS-2).
"""

from __future__ import annotations

from perfsim.errors import CatalogError
from perfsim.graph import Work
from perfsim.topology import WaferTree


class StreamCosts:
    """Prices movement on one wafer cluster."""

    def __init__(self, topology: WaferTree) -> None:
        system = self.system = topology.system
        store, rated = system.memoryx, topology.edges.rated
        self.shares = store.servers if store.placement == "sharded" else 1
        """Servers that work on one layer."""
        self.rated_bytes_per_s = rated
        """Capacity of a link by its kind."""
        self.part_bytes_per_s = {
            "io": rated["io"],
            "swarmx": rated["swarmx"],
            "memoryx": rated["memoryx"],
            "server": self.shares * rated["server"],
            "dram": self.shares * rated["dram"],
        }
        """The most that each kind of link on the way of a layer carries."""
        self.update_bytes_per_s = self.part_bytes_per_s["dram"]
        self.tree_bytes_per_s = min(rated["swarmx"], rated["io"])
        self.stream_bytes_per_s = min(self.part_bytes_per_s.values())
        feeders_bytes_per_s = system.activation_servers.per_system * rated["feed"]
        self.feed_bytes_per_s = min(feeders_bytes_per_s, rated["io"])
        self._path_s = topology.route_seconds("memoryx", 0)
        self._depth = topology.tree_depth

    def duration_s(self, work: Work) -> float | None:
        """Seconds of one task that moves; None for one that computes."""
        match work.op:
            case "memoryx_read":
                return work.comm_bytes / self.stream_bytes_per_s
            case "broadcast":
                return self.tree_latency_s(work.comm_bytes)
            case "memoryx_update":
                return self.update_s(work.comm_bytes, work.flop)
            case "flash_read" | "flash_write":
                return work.comm_bytes / self.flash_bytes_per_s()
            case "samples" | "spill" | "fetch":
                return work.comm_bytes / self.feed_bytes_per_s
        return self._reduce_s(work) if work.op.startswith("reduce") else None

    def _reduce_s(self, work: Work) -> float:
        """A gradient up to MemoryX or SwarmX; only its last chunk shows the latency of the hops."""
        rate = self.tree_bytes_per_s if work.op.startswith("reduce_in_tree") else self.stream_bytes_per_s
        latency_s = 0.0 if work.op.endswith("_part") else self.tree_latency_s(work.comm_bytes)
        return work.comm_bytes / rate + latency_s

    def tree_latency_s(self, n_bytes: float) -> float:
        """First byte between MemoryX and a system: the hops of its path and a chunk per level."""
        forwarded = min(self.system.swarmx.chunk, n_bytes)
        return self._path_s + self._depth * forwarded / self.rated_bytes_per_s["swarmx"]

    def update_s(self, n_bytes: float, flop: float) -> float:
        """The optimizer on the servers that hold the layer: the longer of traffic and arithmetic."""
        arithmetic = self.system.memoryx.server.arithmetic
        return max(n_bytes / self.rated_bytes_per_s["dram"], flop / arithmetic) / self.shares

    def flash_bytes_per_s(self) -> float:
        """Flash bandwidth of the servers that hold a layer, when it only reads or only writes."""
        if "flash" not in self.rated_bytes_per_s:
            raise CatalogError(f"{self.system.name}: MemoryX has no flash")
        return self.shares * self.rated_bytes_per_s["flash"]
