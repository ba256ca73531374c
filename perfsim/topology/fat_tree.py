"""GPU clusters: nodes of GPUs under a two-level fat tree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from perfsim.errors import InputError
from perfsim.hardware import GpuClusterSpec
from perfsim.topology.base import Cable, Route, Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class FatTree(Topology):
    """Nodes of GPUs under leaf and spine switches.

    Where the numbers of GPUs and NICs differ, the NICs that GPUs share are one `nic` with their total
    bytes/s: 8 GPUs have eight or four of them; with 12 NICs, four of three NICs each. The latency of a NIC
    is that of a message between two adapters, so each of the two links that it crosses has half; the
    edge into a leaf or spine adds the switch. The link from a GPU to its NIC is as fast as the NIC and adds
    no latency. A leaf has as many uplinks as NICs below it, divided by the oversubscription, each to a
    different spine. The destination determines the spine of a message, so that nodes which all send to
    the same distance do not collide.
    """

    system: GpuClusterSpec

    def __init__(self, system: GpuClusterSpec, num_devices: int) -> None:
        super().__init__(system, num_devices)
        size = system.node.devices
        if num_devices > size and num_devices % size:
            below = num_devices // size * size
            raise InputError(
                f"{system.name} has {size} devices a node, so {num_devices} would leave the last node "
                f"partly empty; use {below} or {below + size}"
            )
        self.devices_per_node = size
        self.nodes = -(-num_devices // size)
        self.nics_per_node = math.gcd(size, system.node.nics)
        self.leaves = -(-self.nodes // system.fabric.nodes_per_leaf)
        ports = self.nics_per_node * system.fabric.nodes_per_leaf
        self.spines = math.ceil(ports / system.fabric.oversubscription) if self.leaves > 1 else 0
        self._rank = {self.device(rank): rank for rank in range(num_devices)}

    def device(self, rank: int) -> str:
        """Name of a rank's GPU, such as `node0/gpu0`."""
        self._check_rank(rank)
        node, gpu = divmod(rank, self.devices_per_node)
        return f"node{node}/gpu{gpu}"

    @property
    def nic_bytes_per_s(self) -> float:
        """Bandwidth of one `nic{k}`, the NICs that it stands for together, one direction."""
        return self.system.node.inter_node_bytes_per_s / self.nics_per_node

    @property
    def leaf_bytes_per_s(self) -> float:
        """Bandwidth from one leaf to all spines, one direction."""
        fabric = self.system.fabric
        return fabric.nodes_per_leaf * self.system.node.inter_node_bytes_per_s / fabric.oversubscription

    def _nic_of(self, gpu: int) -> int:
        return gpu * self.nics_per_node // self.devices_per_node

    def _cables(self) -> Iterator[Cable]:
        for node in range(self.nodes):
            yield from self._node_cables(node)
        switch = (self.system.fabric.switch_latency,) * 2
        for leaf in range(self.leaves):
            for spine in range(self.spines):
                bytes_per_s = self.leaf_bytes_per_s / self.spines
                yield Cable(f"leaf{leaf}", f"spine{spine}", "uplink", bytes_per_s, switch)

    def _node_cables(self, node: int) -> Iterator[Cable]:
        scale_up, nic = self.system.node.scale_up, self.system.node.nic
        here = f"node{node}"
        for gpu in range(min(self.devices_per_node, self.num_devices)):
            to_switch = (scale_up.latency / 2, scale_up.latency / 2)
            yield Cable(f"{here}/gpu{gpu}", f"{here}/nvswitch", "scale_up", scale_up.bandwidth, to_switch)
            own = f"{here}/nic{self._nic_of(gpu)}"
            yield Cable(f"{here}/gpu{gpu}", own, "host", self.nic_bytes_per_s, (0.0, 0.0))
        leaf = f"leaf{node // self.system.fabric.nodes_per_leaf}"
        to_leaf = (nic.latency / 2 + self.system.fabric.switch_latency, nic.latency / 2)
        for index in range(self.nics_per_node):
            yield Cable(f"{here}/nic{index}", leaf, "nic", self.nic_bytes_per_s, to_leaf)

    # ---------------------------------------------------------------------------------- crossings
    @property
    def _cables_of_node(self) -> int:
        return 2 * min(self.devices_per_node, self.num_devices) + self.nics_per_node

    @property
    def _first_uplink(self) -> int:
        return 2 * self.nodes * self._cables_of_node

    def nics(self, ranks: Ints) -> Ints:
        """The links out of and into the NICs of ranks, one row a rank."""
        node, gpu = np.divmod(ranks, self.devices_per_node)
        first_nic = 2 * min(self.devices_per_node, self.num_devices)
        nic = gpu * self.nics_per_node // self.devices_per_node
        out = 2 * (node * self._cables_of_node + first_nic + nic)
        return np.stack([out, out + 1], axis=-1)

    def crossings(self, source: Ints, target: Ints) -> Ints:
        """NIC links and uplinks on the route between ranks, one row per pair; -1: none.

        The columns are out of the source's NIC, up from its leaf, down to the target's leaf and into
        the target's NIC. Adaptive routing spreads the messages of a leaf over all its uplinks, so these
        count as one link, with the id of the first uplink.
        """
        a, b = source // self.devices_per_node, target // self.devices_per_node
        out, into = self.nics(source)[..., 0], self.nics(target)[..., 1]
        leaf_a, leaf_b = a // self.system.fabric.nodes_per_leaf, b // self.system.fabric.nodes_per_leaf
        up = self._first_uplink + 2 * leaf_a * self.spines
        down = self._first_uplink + 2 * leaf_b * self.spines + 1
        links = np.stack([out, up, down, into], axis=-1)
        links[leaf_a == leaf_b, 1:3] = -1
        links[a == b] = -1
        return links

    def crossed_bytes_per_s(self, links: Ints, left: Mapping[int, float]) -> Floats:
        """Capacity of links by the ids of `crossings`; `left` is the remaining share of degraded links."""
        shares = [self._share_left(link, left) if left else 1.0 for link in links.tolist()]
        whole = np.where(links >= self._first_uplink, self.leaf_bytes_per_s, self.nic_bytes_per_s)
        return np.asarray(whole * shares)

    def _share_left(self, link: int, left: Mapping[int, float]) -> float:
        if link < self._first_uplink:
            return left.get(link, 1.0)
        return math.fsum(left.get(link + 2 * spine, 1.0) for spine in range(self.spines)) / self.spines

    def is_thin(self, left: Mapping[int, float]) -> bool:
        """Whether uplinks are thin: a leaf carries less up than its nodes can send."""
        thin = self.system.fabric.oversubscription > 1.0
        return self.leaves > 1 and (thin or any(link >= self._first_uplink for link in left))

    def node_of_nic(self, link: int) -> int | None:
        """The node of a NIC link; None for an uplink."""
        return link // 2 // self._cables_of_node if link < self._first_uplink else None

    def crossed(self, route: Route) -> list[int]:
        """The links of a route by the ids of `crossings`."""
        links = []
        for edge in route:
            if edge.kind == "nic":
                links.append(edge.link)
            elif edge.kind == "uplink":
                cable = (edge.link - self._first_uplink) // 2
                links.append(edge.link - 2 * (cable % self.spines))
        return links

    def _path(self, source: str, target: str) -> list[str]:
        if source in self._rank and target in self._rank:
            return self._path_of_ranks(self._rank[source], self._rank[target])
        import networkx as nx

        path: list[str] = nx.shortest_path(self.graph, source, target, weight="seconds")
        return path

    def _path_of_ranks(self, source: int, target: int) -> list[str]:
        (a, gpu_a), (b, gpu_b) = divmod(source, self.devices_per_node), divmod(target, self.devices_per_node)
        if a == b:
            return [self.device(source), f"node{a}/nvswitch", self.device(target)]
        nodes_per_leaf = self.system.fabric.nodes_per_leaf
        nic_b = self._nic_of(gpu_b)
        switches = [f"leaf{a // nodes_per_leaf}"]
        if a // nodes_per_leaf != b // nodes_per_leaf:
            spine = (b % nodes_per_leaf * self.nics_per_node + nic_b) % self.spines
            switches += [f"spine{spine}", f"leaf{b // nodes_per_leaf}"]
        return [
            self.device(source),
            f"node{a}/nic{self._nic_of(gpu_a)}",
            *switches,
            f"node{b}/nic{nic_b}",
            self.device(target),
        ]
