"""Traffic of GPUs on NICs and on the uplinks of leaf switches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

import numpy as np

from perfsim.calibration import CollectiveOp
from perfsim.collectives import CollectiveModel, ring, tree
from perfsim.costs.host import LOADS, STORE, HostCosts
from perfsim.graph import Kind, RankGroup, TaskGraph, Work
from perfsim.graph.symmetry import meeting_of
from perfsim.machines.gpu_cluster.spread import Spread
from perfsim.machines.network import Floats, Ints, Network, PeerClasses, Traffic
from perfsim.strategies.schedules import schedule_called
from perfsim.topology import FatTree, route_around
from perfsim.workload import ParallelLayout

COPIES = (*LOADS, STORE)


class FatTreeNetwork(Network):
    """The links of a fat tree: NVLink ports, NICs and uplinks."""

    def __init__(self, tree: FatTree, *, ports: bool = False) -> None:
        self.tree = tree
        self.collectives = CollectiveModel.of_tree(tree)
        self.may_bind = tree.may_bind.copy()
        if ports:
            self.may_bind[tree.ports] = True
        self.host = HostCosts(tree.system, tree.num_devices)
        self.counts_ports = bool(self.may_bind[tree.ports].any())

    @property
    def counted(self) -> Ints:
        """The link that each link counts as."""
        return self.tree.counted

    def of_graph(self, graph: TaskGraph, /) -> FatTreeNetwork:
        """The network with its NVLink ports where communications that may overlap can fill one."""
        tree = self.tree
        asked = port_demand(graph, tree, self.collectives)
        port_bytes_per_s = tree.system.node.lanes(tree.devices_per_node) * tree.edges.rated.get(
            "scale_up", 0.0
        )
        return FatTreeNetwork(tree, ports=asked > port_bytes_per_s)

    def traffic(self, work: Work, peers: PeerClasses, /) -> Traffic | None:
        """The load of a class of work on the links that may slow it; None where there are none."""
        if work.op in COPIES:
            return self._copies(work, peers)
        if work.group is None or work.group.size < 2:
            return None
        groups = peers.groups_like(work.group)
        if not self.counts_ports and self._is_inside(groups):
            return None
        load = self._load(work, groups)
        may_bind = self.may_bind[load.links]
        if not may_bind.any():
            return None
        return Traffic(load.links[may_bind], load.times[may_bind], load.bytes_per_s)

    def load(self, work: Work, peers: PeerClasses, /) -> Traffic | None:
        """Traffic of a class of work on all links."""
        if work.op in COPIES:
            return self._copies(work, peers, links=True)
        if work.group is None or work.group.size < 2:
            return None
        return self._load(work, peers.groups_like(work.group))

    def _copies(self, work: Work, peers: PeerClasses, *, links: bool = False) -> Traffic:
        """Copies of the peers on a host: on its memory or drives, with `links` also on their own links.

        Ranks of other stages are on the same host where a stage has fewer.
        """
        edges, count = self.tree.edges, min(self.host.sharing, peers.width)
        media = ("dram", "nvme") if work.op.startswith("nvme") else ("dram",)
        shared = [int(edges.of_kind(kind)[0]) for kind in media]
        away = edges.of_kind("pcie")
        away = away[edges.source[away] < self.tree.num_devices][: count if links else 0]
        crossed = np.concatenate([away if work.op == STORE else away ^ 1, shared])
        times = np.repeat([1, count], [len(away), len(shared)])
        return Traffic(crossed, times, self.host.rate_bytes_per_s(work.op))

    def _is_inside(self, groups: Ints) -> bool:
        """Whether all groups are inside nodes."""
        nodes = self.tree.node_of[groups]
        return bool((nodes == nodes[:, :1]).all())

    def _load(self, work: Work, groups: Ints) -> Traffic:
        """Traffic of a class of work that groups of ranks do at the same time.

        A send goes one way. In a collective inside a node, and in a shift by one rank (a `send_recv` of a
        whole group), each rank sends to its neighbour.
        In one across nodes each rank of a node is on a ring of its own and has an equal share of the node's
        NICs. So every rank sends to one neighbour and receives from another at that share, whatever the
        algorithm, which agrees with how collectives are priced. There are as many rings as the emptiest node
        holds ranks, and each passes the ports of all ranks of a node but its own. On a fuller node they may
        use the NIC of any rank, so all of its NICs are taken to be in use, and peers stay alike.

        In a full mesh a collective inside a node divides what a rank sends over its links to all others; the
        links inside nodes are not counted for one across nodes.
        """
        inside = self._is_inside(groups)
        meshed = self._meshes(work, groups) if self.tree.full_mesh and inside else 1
        within = spare = groups[:0, 0]
        if work.op.startswith("tree."):
            source, target = _round_hops(groups, work.op)
        elif work.kind is not Kind.COMM_COLL:
            source, target = groups[:, 0], groups[:, 1]
        elif inside or work.op == "send_recv":
            shifts = range(1, meshed + 1)
            source = np.concatenate([groups.ravel() for _ in shifts])
            target = np.concatenate([np.roll(groups, -shift, axis=1).ravel() for shift in shifts])
        else:
            source, target, spare, within = _ring_hops(groups, self.tree.node_of)
        links = self.tree.crossings(source, target)
        if self.tree.edges.dead:
            links = self._around(links, source, target)
        passed = self.tree.ports[within[:0] if self.tree.full_mesh else within]
        beside = self.tree.nics[spare].ravel(), passed.ravel()
        links = np.append(links[links >= 0], self._left_of(np.concatenate(beside)))
        crossed, times = np.unique(links, return_counts=True)
        if inside:
            return Traffic(crossed, times, _inside_bytes_per_s(work, self.collectives) / meshed)
        return Traffic(crossed, times, self._ring_bytes_per_s(crossed, times))

    def _ring_bytes_per_s(self, links: Ints, times: Ints) -> float:
        """What each ring across nodes carries: its share of the NICs, or of the ports that all rings pass.

        Ports count at their rated speed, as in prices: a port that is slower is for the flows to share.
        """
        passed = times[np.isin(links, self.tree.ports)].max(initial=1)
        return float(min(self.tree.nic_share_bytes_per_s, self.tree.edges.rated["scale_up"] / passed))

    def _meshes(self, work: Work, groups: Ints) -> int:
        """Links over which a rank divides what it sends inside the node of a full mesh."""
        divided = work.kind is Kind.COMM_COLL and not work.op.startswith("tree.") and work.op != "send_recv"
        return max(1, groups.shape[1] - 1) if divided else 1

    def sent_bytes(self, work: Work, /) -> float:
        """Bytes of a class of work on a link that it crosses once; the rings across nodes share a message."""
        if work.kind is not Kind.COMM_COLL or work.group is None or work.op.startswith("tree."):
            return work.comm_bytes
        shape = self.tree.group_shape(work.group.ranks)
        if work.op == "send_recv":
            return work.comm_bytes
        rings = shape.fewest_per_node if shape.nodes > 1 else 1
        is_step = work.op.startswith("ring.")
        factor = 1.0 if is_step else ring.wire_factor(cast(CollectiveOp, work.op), shape.size)
        lanes = self.tree.system.node.lanes(shape.size) if shape.nodes == 1 else 1
        return work.comm_bytes * factor / (rings * lanes)

    def alike(self, work: Work, /) -> Hashable:
        """Inside a node the rate depends on the size of a message."""
        inside = self.counts_ports and work.group is not None and may_be_inside(work.group, self.tree)
        return (super().alike(work), work.comm_bytes if inside else None)

    def _around(self, links: Ints, source: Ints, target: Ints) -> Ints:
        """The links of all routes; routes over dead links take a detour."""
        used = np.unique(links[links >= 0])
        broken = ~np.isin(links, [-1, *self._left_of(used)]).all(axis=1)
        rest = [links[~broken].ravel()]
        for a, b in zip(source[broken].tolist(), target[broken].tolist(), strict=True):
            detour = route_around(self.tree, a, b, self.tree.edges.dead)
            rest.append(self.tree.counted[[edge.link for edge in detour]])
        return np.concatenate(rest)

    def _left_of(self, links: Ints) -> Ints:
        """Those of the links that are not dead."""
        return links[self.bytes_per_s(links) > 0.0]

    def bytes_per_s(self, links: Ints, /) -> Floats:
        """Capacity of links, and of all uplinks of a leaf together."""
        return self.tree.capacities[links]

    def places(self) -> dict[int, Hashable]:
        """The leaf of each rank where uplinks are thin, and the rank where a link of its node is slow."""
        tree = self.tree
        thin, slow_nodes = tree.has_thin_uplinks(), tree.slow_nodes
        places: dict[int, Hashable] = {}
        for rank, node in enumerate(tree.node_of.tolist()):
            if thin or node in slow_nodes:
                places[rank] = (int(tree.leaf_of[rank]) if thin else 0, rank if node in slow_nodes else None)
        return places

    def peer_places(self, works: Sequence[Work], width: int, /, *, shares_links: bool) -> Ints | None:
        """Where the groups of each peer enter nodes and leaves."""
        if width == 1:
            return None
        columns = []
        for spread in dict.fromkeys(Spread.of(work, self.tree, width) for work in works if work.group):
            entries = spread.entries_of_peers(self.tree, width, shares_links=shares_links)
            if (entries != entries[0]).any():
                columns.append(entries)
        return np.concatenate(columns, axis=1) if columns else None

    def worst_group(self, work: Work, width: int, /) -> RankGroup | None:
        """Of groups on several nodes, if any, that with the emptiest node; of these that on most nodes."""
        if work.group is None:
            return None
        shapes = Spread.of(work, self.tree, width).entries_of_peers(self.tree, width, shares_links=False)
        nodes, most, fewest = shapes.T
        peer = int(np.lexsort((-most, -nodes, fewest, nodes == 1))[0])
        start = work.group.start + meeting_of(work, width).first(peer)
        return RankGroup(start, work.group.stride, work.group.size)

    def peers_keep_step(self, layout: ParallelLayout, /) -> bool:
        """Whether tensor peers are in one node, synchronise after every block, and uplinks are not thin.

        Where weight gradients are a pass of their own, peers synchronise only at its end.
        """
        inside = self.tree.devices_per_node % layout.tensor == 0
        thin = self.tree.has_thin_uplinks(rated=True)
        return inside and not thin and not schedule_called(layout.schedule).splits_backward


def _round_hops(groups: Ints, op: str) -> tuple[Ints, Ints]:
    """Sources and targets of a round of a tree, such as `tree.all_reduce.2` (`prediction.expansion`)."""
    _, name, number = op.split(".")
    pairs = np.array(tree.round_pairs(cast(CollectiveOp, name), groups.shape[1], int(number)))
    return groups[:, pairs[:, 0]].ravel(), groups[:, pairs[:, 1]].ravel()


def _ring_hops(groups: Ints, node_of: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Of rings across nodes: sources, targets, ranks on no ring, ranks whose ports a ring of others passes.

    On ring j, rank j of each node sends to rank j of the next node.
    """
    ranks = np.sort(groups, axis=1)
    nodes = node_of[ranks]
    across = nodes[:, 0] != nodes[:, -1]
    ranks, nodes = ranks[across], nodes[across]
    hops = [(ranks[:0, 0],) * 4]
    enters = np.insert(nodes[:, 1:] != nodes[:, :-1], 0, True, axis=1)
    left = np.ones(len(ranks), dtype=bool)
    while left.any():  # groups that lie alike over nodes at once; usually all do
        pattern = enters[np.argmax(left)]
        rows = left & (enters == pattern).all(axis=1)
        first = np.flatnonzero(pattern)
        rings = np.arange(np.diff(first, append=len(pattern)).min())
        source = (first[:, None] + rings).ravel()
        members = source, np.roll(source, -len(rings)), np.delete(np.arange(len(pattern)), source)
        passed = np.repeat(np.arange(len(pattern)), len(rings) - 1)
        hops.append(tuple(ranks[rows][:, places].ravel() for places in (*members, passed)))
        left &= ~rows
    source, target, spare, within = (np.concatenate(column) for column in zip(*hops, strict=True))
    return source, target, spare, within


def port_demand(graph: TaskGraph, tree: FatTree, collectives: CollectiveModel) -> float:
    """The most bytes/s that overlapping communications can ask of one NVLink port, an upper bound.

    Tasks of one stream never overlap, and streams of one name are those of different devices, so each name
    counts once, with the largest rate of its tasks.
    """
    known: dict[tuple[str, float, int, int], float] = {}
    rates = np.zeros(len(graph.works))
    for number, work in enumerate(graph.works):
        group = work.group
        if work.kind is Kind.COMP or group is None or group.size < 2:
            continue
        key = (work.op, work.comm_bytes, group.size, abs(group.stride))
        if key not in known:
            known[key] = _port_bytes_per_s(work, group, tree, collectives)
        rates[number] = known[key]
    roles: dict[str, int] = {}
    role = [roles.setdefault(stream.partition("/")[2], len(roles)) for stream in graph.streams]
    codes = graph.work * np.int64(len(roles)) + np.array(role)[graph.stream]
    counts = np.bincount(codes, minlength=len(rates) * len(roles)).reshape(-1, len(roles))
    return float(np.where(counts > 0, rates[:, None], 0.0).max(axis=0, initial=0.0).sum())


def _port_bytes_per_s(work: Work, group: RankGroup, tree: FatTree, collectives: CollectiveModel) -> float:
    """The most that a group loads a port with, wherever it lies."""
    in_node = min(group.size, -(-tree.devices_per_node // abs(group.stride)))
    across = (in_node - 1) * tree.nic_share_bytes_per_s
    return max(across, _inside_bytes_per_s(work, collectives)) if may_be_inside(group, tree) else across


def may_be_inside(group: RankGroup, tree: FatTree) -> bool:
    """Whether a node has room for all ranks of a group."""
    return (group.size - 1) * abs(group.stride) < tree.devices_per_node


def _inside_bytes_per_s(work: Work, collectives: CollectiveModel) -> float:
    """Measured bus rate of a communication inside a node: bytes on each port over its time."""
    size = 0 if work.group is None else work.group.size
    if work.op.startswith("tree."):
        op, size, n_bytes = "send_recv", 2, work.comm_bytes
    elif work.op.startswith("ring."):
        op, n_bytes = work.op.removeprefix("ring."), work.comm_bytes * size
    else:
        op, n_bytes = work.op, work.comm_bytes
    return collectives.port_bytes_per_s(cast(CollectiveOp, op), n_bytes, size)
