"""GPU clusters: nodes of GPUs under a two-level fat tree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Floats, Ints
from perfsim.base.errors import InputError
from perfsim.network.topology import Cable, Part, Topology, network_graph
from perfsim.specs.hardware import GpuClusterSpec

ROUNDING = 1e-9
"""Relative difference below which two capacities are equal."""


class FatTree(Topology):
    """Nodes of GPUs under leaf and spine switches.

    Where the numbers of GPUs and NICs differ, the NICs that GPUs share are one `nic` with their total
    bytes/s: 8 GPUs have eight or four of them; with 12 NICs, four of three NICs each. The latency of a NIC
    is that of a message between two adapters, so each of the two links that it crosses has half; the
    edge into a leaf or spine adds the switch. The link from a GPU to its NIC is as fast as the NIC and adds
    no latency. A leaf has as many uplinks as NICs below it, divided by the oversubscription, each to a
    different spine. The destination determines the spine of a message, so that nodes which all send to
    the same distance do not collide.

    All nodes are alike, and so are all leaves, so the graph of one of each is compiled and repeated. The GPUs
    of a node are on one switch, or in a full mesh, where each has a link to every other one.
    """

    system: GpuClusterSpec

    def __init__(self, system: GpuClusterSpec, num_devices: int) -> None:
        node = system.node.of_job(num_devices)
        if node is not system.node:
            system = system.model_copy(update={"node": node})
        super().__init__(system, num_devices)
        size = system.node.devices
        if num_devices > size and num_devices % size:
            below = num_devices // size * size
            raise InputError(
                f"{system.name} has {size} devices a node, so {num_devices} would leave the last node "
                f"partly empty; use {below} or {below + size}"
            )
        self.devices_per_node = size
        self.full_mesh = system.node.full_mesh
        self.nodes = -(-num_devices // size)
        self.nics_per_node = math.gcd(size, system.node.nics)
        self.leaves = -(-self.nodes // system.fabric.nodes_per_leaf)
        ports = self.nics_per_node * system.fabric.nodes_per_leaf
        self.spines = math.ceil(ports / system.fabric.oversubscription) if self.leaves > 1 else 0

    def device(self, rank: int) -> str:
        """Name of a rank's GPU, such as `node0/gpu0`."""
        self._check_rank(rank)
        node, gpu = divmod(rank, self.devices_per_node)
        return f"node{node}/gpu{gpu}"

    # ---------------------------------------------------------------------------------- the graph
    def _vertices(self) -> Iterator[tuple[str, str]]:
        """GPUs by rank, then switches, NICs, leaves, spines."""
        for rank in range(self.num_devices):
            yield self.device(rank), "device"
        for node in range(self.switches):
            yield f"node{node}/nvswitch", "nvswitch"
        for node in range(self.nodes):
            for nic in range(self.nics_per_node):
                yield f"node{node}/nic{nic}", "nic"
        for leaf in range(self.leaves):
            yield f"leaf{leaf}", "leaf"
        for spine in range(self.spines):
            yield f"spine{spine}", "spine"
        for node in range(self.nodes):
            yield from self._host_vertices(node)

    def _host_vertices(self, node: int) -> Iterator[tuple[str, str]]:
        """The hosts of a node with their memory and drives, where offload may use them."""
        spec = self.system.node.host
        for host in range(self.hosts_per_node):
            yield f"node{node}/cpu{host}", "cpu"
            yield f"node{node}/dram{host}", "dram"
            if spec is not None and spec.nvme is not None:
                yield f"node{node}/nvme{host}", "nvme"

    def _host_cables(self, node: int) -> Iterator[Cable]:
        """PCIe or chip-to-chip links of devices, and the media that the devices of a host share."""
        spec = self.system.node.host
        if spec is None:
            return
        for gpu in range(self._gpus):
            host = f"node{node}/cpu{gpu // spec.devices}"
            yield Cable(f"node{node}/gpu{gpu}", host, "pcie", spec.link, (0.0, 0.0))
        for number in range(self.hosts_per_node):
            host = f"node{node}/cpu{number}"
            media = {"dram": spec.memory, "nvme": spec.nvme}
            for kind, tier in media.items():
                if tier is not None:
                    medium = f"node{node}/{kind}{number}"
                    yield Cable(host, medium, kind, tier.bandwidth, (0.0, 0.0), duplex=False)

    def _cables(self) -> Iterator[Cable]:
        for node in range(self.nodes):
            yield from self._node_cables(node)
        for leaf in range(self.leaves):
            yield from self._leaf_cables(leaf)

    def _node_cables(self, node: int) -> Iterator[Cable]:
        scale_up = self.system.node.scale_up
        nic = self.system.node.nic
        switch_s = self._switch_s
        here = f"node{node}"
        nic_bytes_per_s = self.system.node.inter_node_bytes_per_s / self.nics_per_node
        for gpu in range(self._gpus):
            gpu_name = f"{here}/gpu{gpu}"
            half_s = scale_up.latency / 2
            if not self.full_mesh:
                yield Cable(gpu_name, f"{here}/nvswitch", "scale_up", scale_up.bandwidth, (half_s, half_s))
            for other in range(gpu + 1, self._gpus if self.full_mesh else 0):
                both_s = (scale_up.latency, scale_up.latency)
                yield Cable(gpu_name, f"{here}/gpu{other}", "scale_up", scale_up.bandwidth, both_s)
            own = f"{here}/nic{gpu * self.nics_per_node // self.devices_per_node}"
            yield Cable(gpu_name, own, "host", nic_bytes_per_s, (0.0, 0.0))
        leaf = f"leaf{node // self.system.fabric.nodes_per_leaf}"
        to_leaf = (nic.latency / 2 + switch_s, nic.latency / 2)
        for index in range(self.nics_per_node):
            yield Cable(f"{here}/nic{index}", leaf, "nic", nic_bytes_per_s, to_leaf)
        yield from self._host_cables(node)

    def _leaf_cables(self, leaf: int) -> Iterator[Cable]:
        fabric = self.system.fabric
        up = fabric.nodes_per_leaf * self.system.node.inter_node_bytes_per_s / fabric.oversubscription
        for spine in range(self.spines):
            switch_s = (self._switch_s, self._switch_s)
            yield Cable(f"leaf{leaf}", f"spine{spine}", "uplink", up / self.spines, switch_s)

    @property
    def switches(self) -> int:
        """Switches inside nodes: one in each, none in a full mesh."""
        return 0 if self.full_mesh else self.nodes

    @property
    def hosts_per_node(self) -> int:
        """Hosts of a node whose memory is described."""
        host = self.system.node.host
        return 0 if host is None else -(-self._gpus // host.devices)

    @property
    def _switch_s(self) -> float:
        return self.system.fabric.switch_latency

    @property
    def _gpus(self) -> int:
        return min(self.devices_per_node, self.num_devices)

    def _parts(self) -> list[Part]:
        """One node with its leaf, for every node; one leaf with the spines, for every leaf."""
        gpus = self._gpus
        nics = self.nics_per_node
        node = np.arange(self.nodes)[:, None]
        leaf = np.arange(self.leaves)[:, None]
        first_nic = self.num_devices + self.switches
        first_leaf = first_nic + self.nodes * nics
        in_node = [
            node * gpus + np.arange(gpus),
            *([] if self.full_mesh else [self.num_devices + node]),
            first_nic + node * nics + np.arange(nics),
            first_leaf + node // self.system.fabric.nodes_per_leaf,
        ]
        first_spine = first_leaf + self.leaves + np.zeros_like(leaf)
        hosts = list(self._host_vertices(0))
        in_node.append(first_leaf + self.leaves + self.spines + node * len(hosts) + np.arange(len(hosts)))
        on_leaf = [first_leaf + leaf, first_spine + np.arange(self.spines)]
        names = [(self.device(gpu), "device") for gpu in range(gpus)]
        names += [("node0/nvswitch", "nvswitch")] * bool(self.switches)
        names += [*((f"node0/nic{nic}", "nic") for nic in range(nics)), ("leaf0", "leaf"), *hosts]
        spines = [("leaf0", "leaf"), *((f"spine{spine}", "spine") for spine in range(self.spines))]
        return [
            Part(network_graph(names, self._node_cables(0)), np.concatenate(in_node, axis=1)),
            Part(network_graph(spines, self._leaf_cables(0)), np.concatenate(on_leaf, axis=1)),
        ]

    # ------------------------------------------------------- what the compiled graph says of ranks
    @cached_property
    def node_of(self) -> Ints:
        """The node of each rank; consecutive ranks fill one."""
        return np.arange(self.num_devices) // self.devices_per_node

    @cached_property
    def ports(self) -> Ints:
        """Links from each rank to its switch and back, shape (ranks, 2); in a mesh to and from every peer."""
        if not self.full_mesh:
            return self._own_links("scale_up")
        out = self._mesh.reshape(self.num_devices, -1)
        out = out[out >= 0].reshape(self.num_devices, -1)
        return np.concatenate([out, out ^ 1], axis=1)

    @cached_property
    def _mesh(self) -> Ints:
        """The link from each rank to each device of its node, by its place there; -1 to itself."""
        edges = self.edges
        size = self._gpus
        links = edges.of_kind("scale_up")
        mesh = np.full((self.num_devices, size), -1, dtype=np.int64)
        mesh[edges.source[links], edges.target[links] % size] = links
        return mesh

    @cached_property
    def hosts(self) -> Ints:
        """Links from each rank to its NIC and back, shape (ranks, 2)."""
        return self._own_links("host")

    def _own_links(self, kind: str) -> Ints:
        edges = self.edges
        out = edges.of_kind(kind)
        out = out[edges.source[out] < self.num_devices]
        own = np.empty(self.num_devices, dtype=np.int64)
        own[edges.source[out]] = out
        return np.stack([own, own ^ 1], axis=1)

    @cached_property
    def nics(self) -> Ints:
        """Links out of and into the NIC of each rank, shape (ranks, 2)."""
        edges = self.edges
        out = edges.of_kind("nic")[::2]
        of_nic = np.empty(int(edges.source[out].max()) + 1, dtype=np.int64)
        of_nic[edges.source[out]] = out
        own = of_nic[edges.target[self.hosts[:, 0]]]
        return np.stack([own, own ^ 1], axis=1)

    @cached_property
    def leaf_of(self) -> Ints:
        """The leaf of each rank, counted from 0."""
        leaf = self.edges.target[self.nics[:, 0]]
        return np.asarray(leaf - leaf.min())

    @cached_property
    def uplinks(self) -> Ints:
        """Links from each leaf to its spines, shape (leaves, spines)."""
        return self.edges.of_kind("uplink")[::2].reshape(self.leaves, self.spines)

    @cached_property
    def nic_share_bytes_per_s(self) -> float:
        """A rank's share of the NICs of its node, one direction, at their rated capacity."""
        return self.edges.rated["nic"] * self.nics_per_node / self.devices_per_node

    @cached_property
    def counted(self) -> Ints:
        """The link that each link counts as: itself, or for an uplink the first of its leaf and direction.

        Adaptive routing spreads the messages of a leaf over all its uplinks.
        """
        counted = np.arange(len(self.edges))
        for way in (0, 1):
            counted[self.uplinks + way] = self.uplinks[:, :1] + way
        return counted

    @cached_property
    def capacities(self) -> Floats:
        """Bytes/s of every link; the first uplink of a leaf has those of all, in each direction."""
        capacities = self.edges.bytes_per_s.copy()
        if self.spines:
            for links in np.concatenate([self.uplinks, self.uplinks + 1]).tolist():
                capacities[links[0]] = math.fsum(self.edges.bytes_per_s[links].tolist())
        return capacities

    @cached_property
    def may_bind(self) -> NDArray[np.bool_]:
        """Links that can slow what crosses them, apart from the NVLink ports of a node at rated capacity.

        A link between a GPU and its NIC carries no more than the NIC, so it does not count unless it is
        slower.
        """
        binding = np.ones(len(self.edges), dtype=bool)
        hosts = self.hosts.ravel()
        nics = self.nics.ravel()
        binding[hosts] = self.edges.bytes_per_s[hosts] < self.edges.bytes_per_s[nics]
        binding[self.ports.ravel()] = False
        binding[self.edges.slow] = True
        return binding

    @cached_property
    def slow_nodes(self) -> frozenset[int]:
        """Nodes with a link that has less than its rated capacity."""
        own = np.concatenate([self.ports, self.hosts, self.nics], axis=1)
        slow = np.isin(own, self.edges.slow).any(axis=1)
        return frozenset(self.node_of[slow].tolist())

    def has_thin_uplinks(self, *, rated: bool = False) -> bool:
        """Whether a leaf carries less up or down than its nodes can send; `rated`: at rated capacities."""
        if self.leaves < 2:
            return False
        rate = self.edges.rated
        first = self.uplinks[:, 0]
        below = rate["nic"] * self.nics_per_node * self.system.fabric.nodes_per_leaf
        least = self.spines * rate["uplink"] if rated else self.capacities[[first, first + 1]].min()
        return bool(least < below * (1.0 - ROUNDING))

    # ---------------------------------------------------------------------------------- crossings
    def crossings(self, source: Ints, target: Ints) -> Ints:
        """Links on the route between ranks, one row per pair; -1: none.

        The columns are out of the source (to the switch of its node, the target in a mesh, or its NIC), out
        of its NIC, up from its leaf, down to the target's leaf, into its NIC, into it; uplinks as `counted`.
        """
        inside = self.node_of[source] == self.node_of[target]
        links = np.full((*source.shape, 6), -1, dtype=np.int64)
        out = self._mesh[source, target % self._gpus] if self.full_mesh else self.ports[source, 0]
        links[..., 0] = np.where(inside, out, self.hosts[source, 0])
        links[..., 5] = np.where(
            inside, -1 if self.full_mesh else self.ports[target, 1], self.hosts[target, 1]
        )
        links[..., 1] = np.where(inside, -1, self.nics[source, 0])
        links[..., 4] = np.where(inside, -1, self.nics[target, 1])
        if self.spines:
            leaf_a = self.leaf_of[source]
            leaf_b = self.leaf_of[target]
            links[..., 2] = np.where(leaf_a == leaf_b, -1, self.uplinks[leaf_a, 0])
            links[..., 3] = np.where(leaf_a == leaf_b, -1, self.uplinks[leaf_b, 0] + 1)
        return links

    @cached_property
    def _rank(self) -> dict[str, int]:
        return {self.device(rank): rank for rank in range(self.num_devices)}

    def _path(self, source: str, target: str) -> list[int]:
        if source in self._rank and target in self._rank:
            return self._path_of_ranks(self._rank[source], self._rank[target])
        return super()._path(source, target)

    def _path_of_ranks(self, source: int, target: int) -> list[int]:
        """The links of `crossings`, with the uplinks of the spine that the target's NIC determines."""
        links = self.crossings(np.array([source]), np.array([target]))[0]
        if links[2] >= 0:
            leaf = self.leaf_of[target]
            below = np.unique(self.nics[self.leaf_of == leaf, 0])
            spine = int(np.searchsorted(below, self.nics[target, 0])) % self.spines
            links[2:4] = self.uplinks[self.leaf_of[source], spine], self.uplinks[leaf, spine] + 1
        return [link for link in links.tolist() if link >= 0]
