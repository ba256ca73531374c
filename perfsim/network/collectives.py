"""Time of a collective on a real group: NCCL's algorithms and protocols with calibrated constants.

Inside a node each operation has a few protocols, each a straight line in the message size; the fastest
one is used (`ProtocolSegment`). Across nodes a ring enters and leaves each node once, so its bus bandwidth
is bounded by the NICs that the group may use,

    bus = ranks of a node x NIC share x efficiency,  NIC share = NICs of a node / devices of a node,

and by the links inside the node. Where devices share NICs, a ring through several but not all ranks of a
node enters next to one rank and leaves next to another, so one direction crosses the host bridge to a NIC
(`partial_node_rank_bytes_per_s`); with one NIC per device no direction does. All groups of a node cross the
same bridge, so a group's part of it grows with its ranks there. The bound is fitted where two ranks share a
node; with more it is an extrapolation.

Where nodes hold different numbers of ranks, the slowest node limits all: every ring passes every node, and
all ranks agree on the fewest channels and the lowest bandwidth that any of them has (NCCL's
`initTransportsRank`, src/init.cc). That is the emptiest node; some node of such a group is assumed to cross
its host bridge. A double tree is as deep inside nodes as the fullest one, and in an all-to-all the emptiest
node sends the largest part of its data to other nodes.

Small all-reduces use a double tree instead of rings. Latency counts steps inside and across nodes separately.
The form is that of NCCL's own tuning model (src/graph/tuning.cc). A link without a calibration uses one
line from its datasheet.

If a system names switches that reduce in the network (`in_network`, SHARP), an all-reduce uses them where
that is faster, at a rate of at most the one-way bandwidth of links and NICs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from perfsim.base.arrays import Floats
from perfsim.network import algorithms
from perfsim.network.algorithms import num_steps, wire_factor
from perfsim.network.fat_tree import FatTree
from perfsim.network.topology import Group
from perfsim.specs.calibration import CollectiveOp, NetworkConstants, NetworkProtocol, ProtocolSegment
from perfsim.specs.hardware import FatTreeSpec, InNetworkSpec, LinkSpec, NodeSpec


@dataclass(frozen=True, slots=True)
class CollectiveModel:
    """Prices collectives of one kind of node.

    `nic_share_bytes_per_s` is one device's share of its node's NICs, one direction, when all devices
    of the node communicate at once, as in training.
    """

    scale_up: LinkSpec
    nic: LinkSpec
    nic_share_bytes_per_s: float
    devices_per_node: int
    shared_nics: bool = False

    inside_switches: InNetworkSpec | None = None
    """Reduces all-reduces inside a node where it is faster (NVLink SHARP)."""
    full_mesh: bool = False
    """Whether `scale_up` is the link between two devices of a node, and each has one to every other."""
    fabric: FatTreeSpec | None = None
    """Its switches may reduce all-reduces across nodes (InfiniBand SHARP)."""

    @classmethod
    def of_node(cls, node: NodeSpec, fabric: FatTreeSpec | None = None) -> CollectiveModel:
        """The model of a node's links and of the fabric above them."""
        return cls(
            node.scale_up,
            node.nic,
            node.inter_node_bytes_per_s / node.devices,
            node.devices,
            node.has_shared_nics,
            node.in_network,
            node.full_mesh,
            fabric,
        )

    @classmethod
    def of_tree(cls, tree: FatTree) -> CollectiveModel:
        """The model of a fat tree, with the rated capacities and the latencies of its links."""
        node = tree.system.node
        rated = tree.edges.rated
        edges = tree.edges
        hops = 1.0 if tree.full_mesh else 2.0
        scale_up = {}  # a single device of a mesh has no links
        if "scale_up" in rated:
            scale_up = {"bandwidth": rated["scale_up"], "latency": hops * edges.latency_s("scale_up", 0)}
        nic = {"latency": 2.0 * edges.latency_s("nic", 1)}
        return replace(
            cls.of_node(node, tree.system.fabric),
            scale_up=node.scale_up.model_copy(update=scale_up),
            nic=node.nic.model_copy(update=nic),
            nic_share_bytes_per_s=tree.nic_share_bytes_per_s,
        )

    @overload
    def time_s(self, op: CollectiveOp, n_bytes: float, group: Group) -> float: ...
    @overload
    def time_s(self, op: CollectiveOp, n_bytes: ArrayLike, group: Group) -> Floats: ...
    def time_s(self, op: CollectiveOp, n_bytes: ArrayLike, group: Group) -> float | Floats:
        """Seconds from the last rank's arrival to the end; 0 for one rank or no bytes.

        `n_bytes` is the whole message as in nccl-tests: the buffer of an all-reduce, broadcast or
        send, the gathered result, the scattered input, all that one rank holds in an all-to-all.
        """
        size = np.asarray(n_bytes, dtype=float)
        if group.size == 1:
            seconds = np.zeros(size.shape)
        else:
            busy = self._inside(op, size, group.size) if group.nodes == 1 else self._across(op, size, group)
            if op == "all_reduce":
                busy = np.minimum(busy, self._in_network(size, group))
            seconds = np.where(size > 0, busy, 0.0)
        return float(seconds) if size.ndim == 0 else seconds

    def dispatch_s(self, n_bytes: ArrayLike, group: Group, fan_out: int) -> Floats:
        """Seconds of an all-to-all in which every item goes to `fan_out` members, one copy a rank and node.

        `n_bytes` counts an item once for each of these members. Inside and between nodes overlap.
        """
        size = np.asarray(n_bytes, dtype=float)
        if group.size == 1:
            return np.zeros(size.shape)
        share = algorithms.copies(group, fan_out)
        inside = self._inside("all_to_all", size * share.inside, max(2, group.most_per_node))
        if group.nodes == 1:
            return np.where(size > 0, inside, 0.0)
        inside = inside if group.most_per_node > 1 else np.zeros(size.shape)
        across = self._network.send_recv_latency_s + size * share.across / self._nic_bytes_per_s
        return np.where(size > 0, np.maximum(inside, across), 0.0)

    def port_bytes_per_s(self, op: CollectiveOp, n_bytes: float, size: int) -> float:
        """What a rank sends and receives a second in an operation inside one node: its bus bandwidth."""
        seconds = self.time_s(op, n_bytes, Group.inside_node(size))
        sent_bytes = n_bytes * wire_factor(op, size)
        return min(sent_bytes / seconds, self._port_bytes_per_s(op, size)) if seconds > 0.0 else 0.0

    @property
    def _network(self) -> NetworkConstants:
        calibration = self.nic.calibration
        if calibration is not None and calibration.network is not None:
            return calibration.network
        return _datasheet_network(self.scale_up, self.nic)

    @property
    def _nic_bytes_per_s(self) -> float:
        return self.nic_share_bytes_per_s * self._network.efficiency

    def _port_bytes_per_s(self, op: CollectiveOp, size: int) -> float:
        """What a device can send to `size` - 1 others of its node; a message in a mesh has one link."""
        lanes = max(1, size - 1) if self.full_mesh and op != "send_recv" else 1
        return lanes * self.scale_up.bandwidth

    def _segments(self, op: CollectiveOp, size: int) -> tuple[ProtocolSegment, ...]:
        link = self.scale_up
        port_bytes_per_s = self._port_bytes_per_s(op, size)
        if link.calibration is not None and op in link.calibration.collectives:
            segments = link.calibration.collectives[op]
            measured = link.calibration.measured_on_bytes_per_s
            faster = 1.0 if measured is None else max(1.0, port_bytes_per_s / measured)
            fits = all(segment.bandwidth_bytes_per_s <= port_bytes_per_s for segment in segments)
            if fits and faster == 1.0:
                return segments
            # On a link so many times faster than the measured one, or on one that carries less.
            rates = [min(faster * one.bandwidth_bytes_per_s, port_bytes_per_s) for one in segments]
            return tuple(
                segment.model_copy(update={"bandwidth_bytes_per_s": rate})
                for segment, rate in zip(segments, rates, strict=True)
            )
        return (
            ProtocolSegment(
                name="datasheet",
                latency_base_s=0.0,
                latency_per_step_s=link.latency,
                bandwidth_bytes_per_s=port_bytes_per_s,
            ),
        )

    def _inside(self, op: CollectiveOp, n_bytes: Floats, size: int) -> Floats:
        lines = [
            segment.latency_base_s
            + num_steps(op, size) * segment.latency_per_step_s
            + n_bytes * _s_per_byte(segment, op, size)
            for segment in self._segments(op, size)
        ]
        return np.asarray(np.min(lines, axis=0))

    def _in_network(self, n_bytes: Floats, group: Group) -> Floats:
        """An all-reduce in switches, where data passes each link once each way; inf without such switches."""
        if group.nodes == 1:
            spec = self.inside_switches
            leaves = group.size
            fan_out = group.size
            hop_s = 0.0
            link_bytes_per_s = self.scale_up.bandwidth
        else:
            spec = None if self.fabric is None else self.fabric.in_network
            leaves = group.nodes
            fan_out = 2 if self.fabric is None else max(2, self.fabric.nodes_per_leaf)
            hop_s = self.nic.latency + (0.0 if self.fabric is None else self.fabric.switch_latency)
            link_bytes_per_s = group.fewest_per_node * self._nic_bytes_per_s
        if spec is None or not spec.enabled:
            return np.full(n_bytes.shape, np.inf)
        rate = min(spec.bandwidth, link_bytes_per_s)
        return spec.latency + algorithms.all_reduce_in_network_s(n_bytes, leaves, fan_out, rate, hop_s)

    def _across(self, op: CollectiveOp, n_bytes: Floats, group: Group) -> Floats:
        if op == "send_recv":
            return self._network.send_recv_latency_s + n_bytes / self._nic_bytes_per_s
        if op == "all_to_all":
            return self._all_to_all_across(n_bytes, group)
        # NCCL runs trees across nodes for all-reduces only.
        protocols = [p for p in self._network.protocols if p.algorithm == "ring" or op == "all_reduce"]
        return np.asarray(np.min([self._protocol_s(p, op, n_bytes, group) for p in protocols], axis=0))

    def _protocol_s(
        self, protocol: NetworkProtocol, op: CollectiveOp, n_bytes: Floats, group: Group
    ) -> Floats:
        if protocol.algorithm == "tree":
            sent = algorithms.DOUBLE_TREE_WIRE_FACTOR
            intra_steps = 2 * (group.most_per_node - 1)
            inter_steps = 2 * algorithms.tree_depth(group.nodes)
        else:
            sent = wire_factor(op, group.size)
            inter_steps = num_steps(op, group.nodes)
            intra_steps = num_steps(op, group.size) - inter_steps
        latency_s = protocol.latency_base_s
        latency_s += intra_steps * protocol.intra_step_s + inter_steps * protocol.inter_step_s
        # A ring is a pipeline: its slowest link, between or inside nodes, sets the bandwidth, of which a
        # protocol with flags among its data carries a fraction on every link.
        s_per_byte = max(sent / self._bus_bytes_per_s(group), self._inside_s_per_byte(op, group))
        return latency_s + n_bytes * s_per_byte / protocol.bandwidth_fraction

    def _bus_bytes_per_s(self, group: Group) -> float:
        """Bus bandwidth between nodes: that of the emptiest, less if data crosses the host bridge."""
        share = group.fewest_per_node * self._nic_bytes_per_s
        limit = self._network.partial_node_rank_bytes_per_s
        whole = group.is_even and group.most_per_node in (1, self.devices_per_node)
        if limit is None or whole or not self.shared_nics:
            return share
        return min(share, limit * group.fewest_per_node)

    def _inside_s_per_byte(self, op: CollectiveOp, group: Group) -> float:
        """Time per byte of a ring across nodes on the links inside one; 0 with one rank per node."""
        if group.most_per_node == 1:
            return 0.0
        segments = self._segments(op, group.most_per_node)
        return min(_s_per_byte(segment, op, group.size) for segment in segments)

    def _all_to_all_across(self, n_bytes: Floats, group: Group) -> Floats:
        """Every rank sends 1/size to every other rank; transfers inside and across nodes overlap."""
        inside = np.zeros(n_bytes.shape)
        if group.most_per_node > 1:
            kept = n_bytes * (group.most_per_node / group.size)
            inside = self._inside("all_to_all", kept, group.most_per_node)
        sent = n_bytes * (1 - group.fewest_per_node / group.size)
        across = self._network.send_recv_latency_s + sent / self._nic_bytes_per_s
        return np.maximum(inside, self._network.all_to_all_slowdown * across)


def _s_per_byte(segment: ProtocolSegment, op: CollectiveOp, size: int) -> float:
    local = 0.0 if segment.local_bytes_per_s is None else 1 / segment.local_bytes_per_s
    return wire_factor(op, size) / segment.bandwidth_bytes_per_s + local


def _datasheet_network(scale_up: LinkSpec, nic: LinkSpec) -> NetworkConstants:
    """One ring at line rate with the links' own latencies."""
    line = NetworkProtocol(
        algorithm="ring",
        name="datasheet",
        latency_base_s=0.0,
        intra_step_s=scale_up.latency,
        inter_step_s=nic.latency,
        bandwidth_fraction=1.0,
    )
    return NetworkConstants(efficiency=1.0, protocols=(line,), send_recv_latency_s=nic.latency)
