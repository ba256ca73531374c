"""GPU clusters: nodes of GPUs under a two-level fat tree."""

import math
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from perfsim.base.arrays import Bools, Ints
from perfsim.base.errors import InputError
from perfsim.network.topology import Cable, Group, Part, Topology
from perfsim.specs.hardware import GpuClusterSpec

ROUNDING = 1e-9
"""Relative difference below which two capacities are equal."""


class FatTree(Topology):
    """Nodes of GPUs under leaf and spine switches.

    Where the numbers of GPUs and NICs differ, the NICs that GPUs share are one `nic` with their total
    bytes/s: 8 GPUs have eight or four of them; with 12 NICs, four of three NICs each. The latency of a NIC is
    a message's between two adapters, so each of the two links that it crosses has half; the edge into a
    leaf or spine adds the switch. The link from a GPU to its NIC is as fast as the NIC and adds no latency. A
    leaf has as many uplinks as NICs below it, divided by the oversubscription, each to a different spine.

    All nodes are alike, and so are all leaves, so the network has two parts: a node with its leaf, and a leaf
    with the spines. The GPUs of a node are on one switch, or in a full mesh, where each has a link to every
    other one. Where offload may use them, a node has hosts with their memory and drives.
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
        self.devices_per_server = system.node.server or size
        self.full_mesh = system.node.full_mesh
        self.nodes = -(-num_devices // size)
        self.nics_per_node = math.gcd(size, system.node.nics)
        self.leaves = -(-self.nodes // system.fabric.nodes_per_leaf)
        ports = self.nics_per_node * system.fabric.nodes_per_leaf
        self.spines = math.ceil(ports / system.fabric.oversubscription) if self.leaves > 1 else 0
        self._gpus = min(size, num_devices)

    def device(self, rank: int) -> str:
        self._check_rank(rank)
        node, gpu = divmod(rank, self.devices_per_node)
        return f"node{node}/gpu{gpu}"

    def _vertices(self) -> Iterator[tuple[str, str]]:
        """GPUs by rank, then what else is in each node, leaves, spines."""
        yield from super()._vertices()
        for node in range(self.nodes):
            yield from ((f"node{node}/{name}", kind) for name, kind in self._in_node)
        yield from ((f"leaf{leaf}", "leaf") for leaf in range(self.leaves))
        yield from ((f"spine{spine}", "spine") for spine in range(self.spines))

    @cached_property
    def _in_node(self) -> list[tuple[str, str]]:
        """Name and kind of the switch and the NICs of a node, and of its hosts."""
        inside = [] if self.full_mesh else [("nvswitch", "nvswitch")]
        inside += [(f"nic{nic}", "nic") for nic in range(self.nics_per_node)]
        if (host := self.system.node.host) is None:
            return inside
        kinds = ["cpu", "dram"] if host.nvme is None else ["cpu", "dram", "nvme"]
        hosts = range(-(-self._gpus // host.devices))
        return inside + [(f"{kind}{number}", kind) for number in hosts for kind in kinds]

    def _parts(self) -> list[Part]:
        inside = [name for name, _ in self._in_node]
        spines = [f"spine{spine}" for spine in range(self.spines)]
        first_leaf = self.num_devices + self.nodes * len(inside)
        node = np.arange(self.nodes)[:, None]
        leaf = first_leaf + np.arange(self.leaves)[:, None]
        of_node = (
            node * self._gpus + np.arange(self._gpus),
            self.num_devices + node * len(inside) + np.arange(len(inside)),
            first_leaf + node // self.system.fabric.nodes_per_leaf,
        )
        of_leaf = leaf, first_leaf + self.leaves + np.arange(self.spines) + 0 * leaf
        fabric = self.system.fabric
        up = fabric.nodes_per_leaf * self.system.node.inter_node_bytes_per_s / fabric.oversubscription
        seconds = self._latencies_s["uplink"]
        uplinks = [Cable("leaf", spine, "uplink", up / self.spines, seconds) for spine in spines]
        own = [*(f"gpu{gpu}" for gpu in range(self._gpus)), *inside, "leaf"]
        return [
            Part(own, list(self._node_cables()), np.concatenate(of_node, axis=1)),
            Part(["leaf", *spines], uplinks, np.concatenate(of_leaf, axis=1)),
        ]

    @cached_property
    def _latencies_s(self) -> dict[str, tuple[float, float]]:
        """Latencies there and back by kind of link, as the system describes them; other kinds add none."""
        node = self.system.node
        switch_s = self.system.fabric.switch_latency
        inside_s = node.scale_up.latency / (1 if self.full_mesh else 2)
        return {
            "scale_up": (inside_s, inside_s),
            "host": (0.0, 0.0),
            "nic": (node.nic.latency / 2 + switch_s, node.nic.latency / 2),
            "uplink": (switch_s, switch_s),
        }

    def _node_cables(self) -> Iterator[Cable]:
        """The links of a node: inside it, to its leaf, and to its hosts."""
        node = self.system.node
        nic_bytes_per_s = node.inter_node_bytes_per_s / self.nics_per_node
        up = node.scale_up
        seconds = self._latencies_s
        for gpu in range(self._gpus):
            later = [f"gpu{other}" for other in range(gpu + 1, self._gpus)]
            for other in later if self.full_mesh else ["nvswitch"]:
                yield Cable(f"gpu{gpu}", other, "scale_up", up.bandwidth, seconds["scale_up"])
            own = gpu * self.nics_per_node // self.devices_per_node
            yield Cable(f"gpu{gpu}", f"nic{own}", "host", nic_bytes_per_s)
        for nic in range(self.nics_per_node):
            yield Cable(f"nic{nic}", "leaf", "nic", nic_bytes_per_s, seconds["nic"])
        if node.host is None:
            return
        for gpu in range(self._gpus):
            yield Cable(f"gpu{gpu}", f"cpu{gpu // node.host.devices}", "pcie", node.host.link)
        for number in range(-(-self._gpus // node.host.devices)):
            for kind, tier in (("dram", node.host.memory), ("nvme", node.host.nvme)):
                if tier is not None:
                    yield Cable(f"cpu{number}", f"{kind}{number}", kind, tier.bandwidth, duplex=False)

    def bundles(self) -> Iterator[tuple[Ints, bool]]:
        """The uplinks of a leaf: adaptive routing spreads its messages over all of them."""
        if self.spines:
            yield self.uplinks, False
            yield self.uplinks + 1, False

    @cached_property
    def node_of(self) -> Ints:
        """The node of each rank; consecutive ranks fill one."""
        return np.arange(self.num_devices) // self.devices_per_node

    def group_shape(self, ranks: Iterable[int]) -> Group:
        """How ranks, which are distinct, lie over the nodes."""
        members = np.fromiter(ranks, dtype=np.int64)
        self._check_rank(int(members.min()))
        self._check_rank(int(members.max()))
        on_node = np.bincount(self.node_of[members])
        on_node = on_node[on_node > 0]
        return Group(members.size, int(on_node.max()), on_node.size, int(on_node.min()))

    @cached_property
    def ports(self) -> Ints:
        """Links from each rank to its switch and back, shape (ranks, 2); in a mesh to and from every peer."""
        if not self.full_mesh:
            return self._out_of("scale_up", np.arange(self.num_devices))
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
        return self._out_of("host", np.arange(self.num_devices))

    @cached_property
    def nics(self) -> Ints:
        """Links out of and into the NIC of each rank, shape (ranks, 2)."""
        return self._out_of("nic", self.edges.target[self.hosts[:, 0]])

    def _out_of(self, kind: str, vertices: Ints) -> Ints:
        """The only link of a kind that leaves each of these vertices, and its way back, a row a vertex."""
        links = self.edges.of_kind(kind)
        by_vertex = np.empty(int(self.edges.source[links].max()) + 1, dtype=np.int64)
        by_vertex[self.edges.source[links]] = links
        own = by_vertex[vertices]
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

    def late_s(self, *kinds: str) -> float:
        """Rated latency of a hop over links of these kinds, there and back, beyond what is described."""
        described = self._latencies_s
        rated = self.edges.usual.seconds
        late_s = [rated[own][way] - described[own][way] for own in kinds if own in rated for way in (0, 1)]
        return math.fsum(late_s) / (2 if self.full_mesh and kinds == ("scale_up",) else 1)

    @cached_property
    def may_bind(self) -> Bools:
        """Links that can slow what crosses them."""
        binding = np.ones(len(self.edges), dtype=bool)
        hosts = self.hosts.ravel()
        # A link between a GPU and its NIC carries no more than the NIC: it counts only where it is slower.
        binding[hosts] = self.edges.bytes_per_s[hosts] < self.edges.bytes_per_s[self.nics.ravel()]
        binding[self.edges.slow] = True
        return binding

    def has_thin_uplinks(self, *, rated: bool = False) -> bool:
        """Whether a leaf carries less up or down than its nodes can send; `rated`: at rated capacities."""
        if self.leaves < 2:
            return False
        rate = self.edges.rated
        first = self.uplinks[:, 0]
        below = rate["nic"] * self.nics_per_node * self.system.fabric.nodes_per_leaf
        least = self.spines * rate["uplink"] if rated else self.capacities[[first, first + 1]].min()
        return bool(least < below * (1.0 - ROUNDING))

    def crossings(self, source: Ints, target: Ints) -> Ints:
        """Links on the route between ranks, one row per pair; -1: none.

        The columns are out of the source (to the switch of its node, the target in a mesh, or its NIC), out
        of its NIC, up from its leaf, down to the target's leaf, into its NIC, into it; uplinks as `counted`.
        """
        inside = self.node_of[source] == self.node_of[target]
        out = self._mesh[source, target % self._gpus] if self.full_mesh else self.ports[source, 0]
        into = -1 if self.full_mesh else self.ports[target, 1]
        links = np.full((*source.shape, 6), -1, dtype=np.int64)
        links[..., 0] = np.where(inside, out, self.hosts[source, 0])
        links[..., 5] = np.where(inside, into, self.hosts[target, 1])
        links[..., 1] = np.where(inside, -1, self.nics[source, 0])
        links[..., 4] = np.where(inside, -1, self.nics[target, 1])
        if self.spines:
            leaf_a = self.leaf_of[source]
            leaf_b = self.leaf_of[target]
            links[..., 2] = np.where(leaf_a == leaf_b, -1, self.uplinks[leaf_a, 0])
            links[..., 3] = np.where(leaf_a == leaf_b, -1, self.uplinks[leaf_b, 0] + 1)
        return links
