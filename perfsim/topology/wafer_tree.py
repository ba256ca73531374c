"""Wafer clusters: systems under a tree of broadcast-reduce nodes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

from perfsim.errors import InputError
from perfsim.hardware import WaferClusterSpec
from perfsim.topology.base import Cable, Topology


class WaferTree(Topology):
    """Wafer-scale systems under a tree of broadcast-reduce nodes, MemoryX at its root.

    The tree has the fewest levels that its fan-out allows, at least one. An edge into a SwarmX node has the
    latency of that node's hop; the edges of a system also have the latency of its ports.
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

    def tree_links(self, direction: Literal["down", "up"]) -> tuple[int, ...]:
        """Links that a broadcast from MemoryX to all systems crosses, or a reduction to MemoryX."""
        return tuple(edge.link for edge in self._edges if edge.link % 2 == (direction == "up"))

    def _cables(self) -> Iterator[Cable]:
        memoryx, swarmx = self.system.memoryx, self.system.swarmx
        hop, port = swarmx.hop_latency, self.system.io_link.latency
        yield Cable("memoryx", "swarmx/0/0", "memoryx", memoryx.bandwidth, (hop, 0.0))
        for level, nodes in enumerate(self.tree_levels[1:], start=1):
            for node in range(nodes):
                parent = f"swarmx/{level - 1}/{node // swarmx.fan_out}"
                yield Cable(parent, f"swarmx/{level}/{node}", "swarmx", swarmx.bandwidth, (hop, hop))
        for rank in range(self.num_devices):
            parent = f"swarmx/{len(self.tree_levels) - 1}/{rank // swarmx.fan_out}"
            yield Cable(parent, self.device(rank), "io", self.port_bytes_per_s, (port, port + hop))

    @property
    def port_bytes_per_s(self) -> float:
        """Bandwidth between the tree and one system, one direction."""
        return min(self.system.io_bytes_per_s, self.system.swarmx.bandwidth)

    @cached_property
    def _parent(self) -> dict[str, str]:
        return {edge.target: edge.source for edge in self._edges if edge.link % 2 == 0}

    def _path(self, source: str, target: str) -> list[str]:
        up, down = self._to_root(source), self._to_root(target)
        meet = next(name for name in up if name in down)
        return [*up[: up.index(meet) + 1], *reversed(down[: down.index(meet)])]

    def _to_root(self, name: str) -> list[str]:
        names = [name]
        while names[-1] in self._parent:
            names.append(self._parent[names[-1]])
        return names
