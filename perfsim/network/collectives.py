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
A broadcast between nodes counts a hop of the network for every rank of its ring, since a chunk waits at each.
The form is the one of NCCL's own tuning model (src/graph/tuning.cc). A link without a calibration uses one
line from its datasheet.

If a system names switches that reduce in the network (`in_network`, SHARP), an all-reduce uses them where
that is faster, at a rate of at most the one-way bandwidth of links and NICs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfsim.base.arrays import Bools, Floats
from perfsim.network.fat_tree import FatTree
from perfsim.network.topology import Group
from perfsim.specs.calibration import CollectiveOp, NetworkConstants, NetworkProtocol
from perfsim.specs.hardware import FatTreeSpec, NodeSpec

# What the algorithms move, and in how many steps.
#
# Ring: in each step every rank sends one n-th of the message to its right neighbour. Reduce-scatter and
# all-gather take n - 1 steps and move (n-1)/n of the message over each link; all-reduce is one after the
# other. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009;
# NCCL's bus bandwidth counts the same bytes.
#
# Binomial tree: few steps, so suited to short messages. A reduction halves the number of holders each round,
# a broadcast doubles it, so both take ceil(log2 n) rounds of the whole message. NCCL pipelines two
# complementary trees, each with half of the message, so that every rank sends twice the message in an
# all-reduce at full bandwidth: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
# reduction and scan", 2009.
#
# In the network: switches with as many children as the fan-out copy or add passing data at line rate, and
# forward packets of negligible time. So the message is serialised once, and each of the
# ceil(log_fan_out leaves) levels of switches adds a hop up and a hop down.
#
# Dispatch: items that go to several members of a group. One copy of an item travels to every node that has
# some of them, where it is forwarded to the ranks that do.


def num_steps(op: CollectiveOp, size: int) -> int:
    """Sequential neighbour-to-neighbour hops on the longest path of a ring."""
    if op == "send_recv":
        return min(size - 1, 1)
    return (2 if op == "all_reduce" else 1) * (size - 1)


def wire_factor(op: CollectiveOp, size: int) -> float:
    """Bytes that each rank of a ring sends, over the bytes of the whole message.

    The whole message is what every rank holds after an all-gather or before a reduce-scatter.
    """
    if op in ("send_recv", "broadcast"):
        return float(min(size - 1, 1))
    return (2 if op == "all_reduce" else 1) * (size - 1) / size


DOUBLE_TREE_WIRE_FACTOR = 2.0
"""Bytes that each rank sends in a double-tree all-reduce, over the bytes of the message."""


def _reached(places: int, chosen: int) -> float:
    """Mean number of places reached by so many that are chosen at random: n (1 - (1 - 1/n)^k)."""
    return places * (1.0 - (1.0 - 1.0 / places) ** chosen)


# Seconds of a collective.


class Seconds(NamedTuple):
    """Time of messages of several sizes: what is latency, and what their bytes take."""

    latency_s: Floats
    bytes_s: Floats

    @property
    def total_s(self) -> Floats:
        return self.latency_s + self.bytes_s

    def chosen(self, other: Seconds, where: Bools) -> Seconds:
        """The other time for some of the messages."""
        return Seconds(*(np.where(where, b, a) for a, b in zip(self, other, strict=True)))

    def fastest(self, other: Seconds) -> Seconds:
        """For each message the shorter of two times."""
        return self.chosen(other, other.total_s < self.total_s)

    def slowest(self, other: Seconds) -> Seconds:
        """For each message the longer of two times."""
        return self.chosen(other, other.total_s > self.total_s)


@dataclass(frozen=True, slots=True)
class CollectiveModel:
    """Prices collectives of one kind of node.

    `nic_share_bytes_per_s` is one device's share of its node's NICs, one direction, when all devices
    of the node communicate at once, as in training. Switches of the `fabric` may reduce across nodes.
    """

    node: NodeSpec
    nic_share_bytes_per_s: float
    fabric: FatTreeSpec | None = None
    late_s: tuple[float, float] = (0.0, 0.0)
    """Latency of a hop inside and between nodes beyond what is described, where constants were measured."""

    @classmethod
    def of_node(cls, node: NodeSpec, fabric: FatTreeSpec | None = None) -> CollectiveModel:
        """The model of a node's links and of the fabric above them."""
        return cls(node, node.inter_node_bytes_per_s / node.devices, fabric)

    @classmethod
    def of_tree(cls, tree: FatTree) -> CollectiveModel:
        """The model of a fat tree, with the rated capacities and latencies of its links."""
        node = tree.system.node
        rated = tree.edges.usual
        scale_up = {}
        if "scale_up" in rated.seconds:  # a single device of a mesh has no links
            scale_up = {"bandwidth": rated.bytes_per_s["scale_up"]}
        # A message between nodes is taken to cross leaves where there are several.
        late_s = tree.late_s("scale_up"), tree.late_s("host", "nic", "uplink")
        links = {"scale_up": node.scale_up.model_copy(update=scale_up)}
        return cls(node.model_copy(update=links), tree.nic_share_bytes_per_s, tree.system.fabric, late_s)

    def seconds(self, op: CollectiveOp, n_bytes: ArrayLike, group: Group, fan_out: int = 1) -> Seconds:
        """The parts of the time from the last rank's arrival to the end; 0 for one rank or no bytes.

        `n_bytes` is the whole message as in nccl-tests: the buffer of an all-reduce, broadcast or
        send, the gathered result, the scattered input, all that one rank holds in an all-to-all. With a
        `fan_out`, every item of an all-to-all goes to so many members, one copy a rank and node, and counts
        once for each of these members; inside and between nodes overlap.
        """
        n_bytes = np.asarray(n_bytes, dtype=float)
        if fan_out > 1:
            to_ranks = _reached(group.size, fan_out) / fan_out
            busy = self._inside("all_to_all", n_bytes * to_ranks, group.most_per_node)
            if group.nodes > 1:
                to_nodes = _reached(group.nodes, fan_out) * (group.nodes - 1) / group.nodes / fan_out
                busy = self._send(n_bytes * to_nodes).slowest(busy)
        elif group.nodes == 1:
            busy = self._inside(op, n_bytes, group.size)
        elif op == "send_recv":
            busy = self._send(n_bytes)
        elif op == "all_to_all":
            # Every rank sends 1/size to every other rank; transfers inside and across nodes overlap.
            kept = n_bytes * (group.most_per_node / group.size)
            sent = n_bytes * (1 - group.fewest_per_node / group.size)
            busy = self._send(sent).slowest(self._inside(op, kept, group.most_per_node))
        else:
            # NCCL runs trees across nodes for all-reduces only.
            protocols = [p for p in self._network.protocols if p.algorithm == "ring" or op == "all_reduce"]
            busy = reduce(Seconds.fastest, (self._protocol(p, op, n_bytes, group) for p in protocols))
        if op == "all_reduce":
            busy = busy.fastest(self._in_network(n_bytes, group))
        return Seconds(*(np.where(n_bytes > 0, part, 0.0) for part in busy))

    def port_bytes_per_s(self, op: CollectiveOp, n_bytes: float, size: int) -> float:
        """What a rank sends and receives a second in an operation inside one node, after its latency."""
        bytes_s = float(self.seconds(op, n_bytes, Group.inside_node(size)).bytes_s)
        sent_bytes = n_bytes * wire_factor(op, size)
        return min(sent_bytes / bytes_s, self._port_bytes_per_s(op, size)) if bytes_s > 0.0 else 0.0

    @property
    def _network(self) -> NetworkConstants:
        calibration = self.node.nic.calibration
        if calibration is not None and calibration.network is not None:
            return calibration.network
        # One ring at line rate with the links' own latencies.
        line = NetworkProtocol(
            algorithm="ring",
            name="datasheet",
            latency_base_s=0.0,
            intra_step_s=self.node.scale_up.latency,
            inter_step_s=self.node.nic.latency,
            bandwidth_fraction=1.0,
        )
        latency_s = self.node.nic.latency
        return NetworkConstants(efficiency=1.0, protocols=(line,), send_recv_latency_s=latency_s)

    @property
    def _nic_bytes_per_s(self) -> float:
        constants = self._network
        roce = constants.roce_efficiency if self.node.nic.protocol == "roce" else None
        return self.nic_share_bytes_per_s * (constants.efficiency if roce is None else roce)

    def _port_bytes_per_s(self, op: CollectiveOp, size: int) -> float:
        """What a device can send to `size` - 1 others of its node; a message in a mesh has one link."""
        lanes = 1 if op == "send_recv" else self.node.lanes(size)
        return lanes * self.node.scale_up.bandwidth

    def _lines(self, op: CollectiveOp, ranks: int, size: int) -> list[Seconds]:
        """Seconds of each protocol inside a node with some ranks of a group of this size, for one byte."""
        link = self.node.scale_up
        rate = self._port_bytes_per_s(op, ranks)
        steps = num_steps(op, ranks)
        wire = wire_factor(op, size)
        if link.calibration is None or op not in link.calibration.collectives:
            latency_s = steps * (link.latency + self.late_s[0])
            return [Seconds(np.asarray(latency_s), np.asarray(wire / rate))]
        # On a link so many times faster than the measured one, or on one that carries less.
        measured = link.calibration.measured_on_bytes_per_s
        faster = 1.0 if measured is None else max(1.0, rate / measured)
        lines = []
        for segment in link.calibration.collectives[op]:
            latency_s = segment.latency_base_s + steps * (segment.latency_per_step_s + self.late_s[0])
            local = 0.0 if segment.local_bytes_per_s is None else 1 / segment.local_bytes_per_s
            s_per_byte = wire / min(faster * segment.bandwidth_bytes_per_s, rate) + local
            lines.append(Seconds(np.asarray(latency_s), np.asarray(s_per_byte)))
        return lines

    def _inside(self, op: CollectiveOp, n_bytes: Floats, size: int) -> Seconds:
        """Inside a node; nothing for one rank."""
        if size == 1:
            return Seconds(np.zeros(n_bytes.shape), np.zeros(n_bytes.shape))
        lines = [Seconds(line.latency_s, n_bytes * line.bytes_s) for line in self._lines(op, size, size)]
        return reduce(Seconds.fastest, lines)

    def _send(self, n_bytes: Floats) -> Seconds:
        """What a device sends to other nodes."""
        latency_s = np.asarray(self._network.send_recv_latency_s + self.late_s[1])
        return Seconds(latency_s, n_bytes / self._nic_bytes_per_s)

    def _in_network(self, n_bytes: Floats, group: Group) -> Seconds:
        """An all-reduce in switches, where data passes each link once each way; inf without such switches."""
        fabric = self.fabric
        hops = 2
        hop_s = self.late_s[0]
        spec = self.node.in_network
        link_bytes_per_s = self.node.scale_up.bandwidth
        if group.nodes > 1:
            spec = None if fabric is None else fabric.in_network
            link_bytes_per_s = group.fewest_per_node * self._nic_bytes_per_s
        if spec is None or not spec.enabled:
            return Seconds(np.asarray(np.inf), n_bytes)
        if group.nodes > 1 and fabric is not None:
            levels = 0
            while max(2, fabric.nodes_per_leaf) ** levels < group.nodes:
                levels += 1
            hops = 2 * levels
            hop_s = self.node.nic.latency + fabric.switch_latency + self.late_s[1]
        latency_s = np.asarray(spec.latency + hops * hop_s)
        return Seconds(latency_s, n_bytes / min(spec.bandwidth, link_bytes_per_s))

    def _protocol(
        self, protocol: NetworkProtocol, op: CollectiveOp, n_bytes: Floats, group: Group
    ) -> Seconds:
        if protocol.algorithm == "tree":
            sent = DOUBLE_TREE_WIRE_FACTOR
            intra_steps = 2 * (group.most_per_node - 1)
            inter_steps = 2 * (group.nodes - 1).bit_length()
        else:
            sent = wire_factor(op, group.size)
            inter_steps = num_steps(op, group.size if op == "broadcast" else group.nodes)
            intra_steps = num_steps(op, group.size) - inter_steps
        latency_s = protocol.latency_base_s
        latency_s += intra_steps * (protocol.intra_step_s + self.late_s[0])
        latency_s += inter_steps * (protocol.inter_step_s + self.late_s[1])
        # A ring is a pipeline: its slowest link, between or inside nodes, sets the bandwidth, of which a
        # protocol with flags among its data carries a fraction on every link.
        bus_bytes_per_s = group.fewest_per_node * self._nic_bytes_per_s
        bridge_bytes_per_s = self._network.partial_node_rank_bytes_per_s
        is_even = group.most_per_node == group.fewest_per_node
        whole = is_even and group.most_per_node in (1, self.node.devices)
        shares_nics = self.node.devices_share_nics or self.node.nics < self.node.devices
        if bridge_bytes_per_s is not None and shares_nics and not whole:
            bus_bytes_per_s = min(bus_bytes_per_s, bridge_bytes_per_s * group.fewest_per_node)
        s_per_byte = sent / bus_bytes_per_s
        if group.most_per_node > 1:
            inside = min(float(line.bytes_s) for line in self._lines(op, group.most_per_node, group.size))
            s_per_byte = max(s_per_byte, inside)
        return Seconds(np.asarray(latency_s), n_bytes * s_per_byte / protocol.bandwidth_fraction)
