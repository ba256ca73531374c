"""The kind of machine `gpu-cluster`."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.costs.gpu import HOST, LOADS, STORE, GpuCosts, HostCosts
from perfsim.costs.wafer import StreamingRoof
from perfsim.machines.machine import (
    LARGER_BATCH,
    LOOK,
    Lane,
    Machine,
    Network,
    Rate,
    Setting,
    Traffic,
    Unknown,
    is_borrowed,
    measured_on,
)
from perfsim.network import FatTree
from perfsim.network.collectives import CollectiveModel, num_steps, wire_factor
from perfsim.specs.calibration import Calibration, CollectiveOp
from perfsim.specs.hardware import GpuClusterSpec, LinkSpec
from perfsim.specs.layout import ParallelLayout, layers_of_stages
from perfsim.specs.recipe import Job, Recipe
from perfsim.strategies import Plan
from perfsim.strategies.schedules import least_chunks, schedule_called
from perfsim.strategies.three_d.division import Division
from perfsim.strategies.three_d.space import head_layers
from perfsim.work import Kind, RankGroup, Work
from perfsim.work.unfold import Meeting, meeting_of

# How a group of ranks, and the corresponding groups of its peers, lie over nodes and leaves.
#
# A folded graph is priced and simulated for one peer of each pipeline rank. For prices, this holds for all
# peers if their communications span as many nodes, equally filled. Where links are shared, groups must also
# enter nodes at the same members, and cross leaves alike where uplinks are oversubscribed.

_Spread = tuple[RankGroup, Meeting]
"""A group of a folded rank and which peers share it; its position depends on nothing else."""


def _spread(work: Work, tree: FatTree, width: int) -> _Spread:
    """The spread of a work's group, shifted by whole nodes (leaves, where uplinks are thin)."""
    group = work.group or RankGroup(0, 1, 1)
    nodes_per_leaf = tree.system.fabric.nodes_per_leaf
    alike = tree.devices_per_node * (nodes_per_leaf if tree.has_thin_uplinks(rated=True) else 1)
    first = group.start if group.stride > 0 else group.ranks[-1]
    return RankGroup(first % alike, abs(group.stride), group.size), meeting_of(work, width)


def _entries_of_peers(spread: _Spread, tree: FatTree, width: int, *, shares_links: bool) -> Ints:
    """One row a peer: a number for where its group enters nodes, or how its ranks lie on nodes.

    The latter are the number of nodes, and the ranks on the fullest and the emptiest one. Groups are
    compared, of which there are fewer than peers; memory grows with ranks only.
    """
    group, meeting = spread
    offset = np.arange(width)
    first, of_peer = np.unique(meeting.first(offset), return_inverse=True)
    ranks = group.start + first[:, None] + group.stride * np.arange(group.size)
    nodes = tree.node_of[ranks]
    enters = np.diff(nodes, axis=1) != 0
    if shares_links:
        if tree.has_thin_uplinks(rated=True):  # else uplinks carry all that the NICs below can send
            enters = np.concatenate([enters, np.diff(tree.leaf_of[ranks], axis=1) != 0], axis=1)
        number = np.unique(np.packbits(enters, axis=1), axis=0, return_inverse=True)[1]
        return np.asarray(number.reshape(-1, 1)[of_peer], dtype=np.int64)
    groups, size = nodes.shape
    node = np.cumsum(np.insert(enters, 0, True, axis=1), axis=1) - 1
    counts = np.bincount((node + size * np.arange(groups)[:, None]).ravel(), minlength=groups * size)
    counts = counts.reshape(groups, size)
    emptiest = np.where(counts > 0, counts, size).min(axis=1)
    return np.stack([node[:, -1] + 1, counts.max(axis=1), emptiest], axis=1)[of_peer]


# Traffic of GPUs on NVLink ports, NICs, the uplinks of leaf switches and hosts.

COPIES = (*LOADS, STORE)
MOST_KNOWN = 2_000_000
"""Links of loads that a network keeps, 16 bytes each."""


def _groups_like(group: RankGroup, peers: Ints) -> Ints:
    """Ranks of the group and of all groups whose members are of the same classes, one group a row."""
    width = len(peers)
    ranks = np.arange(group.size) * group.stride + group.start
    block = ranks // width
    together = group.size > 1 and block.min() == block.max()
    stride, size = (abs(group.stride), group.size) if together else (1, 1)
    offset = np.arange(width)
    firsts = offset[offset // stride % size == 0]
    members = firsts[:, None] + stride * np.arange(size)
    whole = members[:, -1] < width
    firsts = firsts[whole]
    classes = np.sort(peers[members[whole]], axis=1)
    first = int(ranks[0] if group.stride > 0 or not together else ranks[-1]) % width
    like = firsts[(classes == classes[np.searchsorted(firsts, first)]).all(axis=1)]
    return np.asarray(ranks + (like - first)[:, None])


class _FatTreeNetwork(Network):
    """The links of a fat tree."""

    def __init__(self, tree: FatTree) -> None:
        super().__init__(tree)
        self.tree = tree
        self.collectives = CollectiveModel.of_tree(tree)
        self.host = HostCosts(tree)
        self._known: dict[Hashable, Traffic | None] = {}
        self._num_known = 0
        """Links of all that is known."""

    def _slowed(self, work: Work, load: Traffic, /) -> Traffic | None:
        may_bind = self.tree.may_bind[load.links]
        if work.op in COPIES:
            # Ranks of several stages count on the links of one: these bind only where one copy fills them.
            away = self.tree.edges.kind[load.links] == self.tree.edges.kinds.index("pcie")
            may_bind &= ~away | (self.capacities[load.links] < load.bytes_per_s)
        if not may_bind.any() and not load.late_s:
            return None
        return replace(load, links=load.links[may_bind], times=load.times[may_bind])

    def load(self, work: Work, peers: Ints, /) -> Traffic | None:
        """The load of a class of work on all links; graphs of other layouts often have one that is alike."""
        if work.op in COPIES:
            return self._copies(work, len(peers))
        if work.group is None or work.group.size < 2:
            return None
        key = self._alike(work), len(peers), peers.tobytes()
        if key not in self._known:
            load = self._of_groups(work, _groups_like(work.group, peers))
            self._num_known += len(load.links)
            if self._num_known > MOST_KNOWN:
                self._known.clear()
                self._num_known = len(load.links)
            self._known[key] = load
        return self._known[key]

    def _copies(self, work: Work, width: int) -> Traffic:
        """Copies of the peers on a host: on their own links, and together on its memory or drives."""
        edges = self.tree.edges
        back = work.op != STORE
        # Ranks of other stages are on the same host where a stage has fewer. The slowest links of the system
        # stand for all, since all devices wait for them.
        count = min(self.host.sharing, width)
        links = [edges.of_kind(kind)[back::2] for kind in self.host.crossed(work.op)]
        slowest = [rows[np.argsort(edges.bytes_per_s[rows], kind="stable")] for rows in links]
        shared = [int(rows[0]) & ~1 for rows in slowest[1:]]
        crossed = np.concatenate([slowest[0][:count], shared])
        times = np.repeat([1, count], [len(slowest[0][:count]), len(shared)])
        late_s = sum(float(edges.late_s[rows].max()) for rows in links)
        return Traffic(crossed, times, self.host.rate_bytes_per_s(work.op), late_s)

    def _of_groups(self, work: Work, groups: Ints) -> Traffic:
        """Traffic of a class of work that groups of ranks do at the same time.

        A send goes one way. In a collective inside a node, and in a shift by one rank (a `send_recv` of a
        whole group), each rank sends to its neighbour. In one across nodes each rank of a node is on a ring
        of its own and has an equal share of the node's NICs. So every rank sends to one neighbour and
        receives from another at that share, whatever the algorithm, as collectives are priced. There are as
        many rings as the emptiest node holds ranks, and each passes the ports of all ranks of a node but its
        own. On a fuller node they may use the NIC of any rank: all of its NICs are in use, and peers alike.

        In a full mesh a collective inside a node divides what a rank sends over its links to all others; the
        links inside nodes are not counted for one across nodes.
        """
        tree = self.tree
        nodes = tree.node_of[groups]
        inside = bool((nodes == nodes[:, :1]).all())
        divided = work.kind is Kind.COMM_COLL and work.op != "send_recv"
        meshed = tree.system.node.lanes(groups.shape[1]) if divided and inside else 1
        within = spare = groups[:0, 0]
        if work.kind is not Kind.COMM_COLL:
            source = groups[:, 0]
            target = groups[:, 1]
        elif inside or work.op == "send_recv":
            shifts = range(1, meshed + 1)
            source = np.concatenate([groups.ravel() for _ in shifts])
            target = np.concatenate([np.roll(groups, -shift, axis=1).ravel() for shift in shifts])
        else:
            source, target, spare, within = _ring_hops(groups, tree.node_of)
        passed = tree.ports[within[:0] if tree.full_mesh else within]
        links, hop_s = self._hops(source, target)
        late_s = self._late_s(work, groups, hop_s, passed)
        extra = np.concatenate([tree.nics[spare].ravel(), passed.ravel()])
        links = np.append(links, extra[self.capacities[extra] > 0.0])
        crossed, times = np.unique(links, return_counts=True)
        if inside:  # at the measured bus rate
            op = cast(CollectiveOp, work.op)
            port_rate = self.collectives.port_bytes_per_s(op, work.comm_bytes, groups.shape[1])
            return Traffic(crossed, times, port_rate / meshed, late_s)
        # A ring has its share of the NICs, or of the ports that all rings pass. Ports count at their rated
        # speed, as in prices: a port that is slower is for the flows to share.
        passes = times[np.isin(crossed, tree.ports)].max(initial=1)
        port_bytes_per_s = tree.edges.rated["scale_up"] / passes
        rate = float(min(tree.nic_share_bytes_per_s, port_bytes_per_s))
        return Traffic(crossed, times, rate, late_s)

    def _hops(self, source: Ints, target: Ints) -> tuple[Ints, float]:
        """The links of all hops, and how much later than priced the latest hop is."""
        tree = self.tree
        edges = tree.edges
        rows = tree.crossings(source, target)
        if not edges.dead and not self.late_s.any():
            return rows[rows >= 0], 0.0
        late_s = np.where(rows >= 0, self.late_s[rows], 0.0).sum(axis=1)
        broken = ((rows >= 0) & (self.capacities[rows] <= 0.0)).any(axis=1)
        links = [rows[~broken][rows[~broken] >= 0]]
        # A hop over a dead link takes a detour, which may be longer.
        for hop in np.flatnonzero(broken).tolist():
            detour = tree.route_around(int(source[hop]), int(target[hop]), edges.dead)
            usual = rows[hop][rows[hop] >= 0]
            late_s[hop] = max(0.0, float(edges.seconds[detour].sum() - edges.rated_s[usual].sum()))
            links.append(tree.counted[detour])
        return np.concatenate(links), float(late_s.max(initial=0.0))

    @cached_property
    def late_s(self) -> Floats:
        """How much later than priced each link is; a bundle counts as late as its latest link."""
        late_s = self.tree.edges.late_s.copy()
        for links, _ in self.tree.bundles():
            late_s[links[:, 0]] = late_s[links].max(axis=1)
        return late_s

    def _late_s(self, work: Work, groups: Ints, hop_s: float, passed: Ints) -> float:
        """Latency of late hops, and of ports that rings pass inside nodes; each step waits for the latest."""
        inside_s = float(self.late_s[passed].max(axis=0, initial=0.0).sum())
        if not hop_s + inside_s or work.kind is not Kind.COMM_COLL:
            return hop_s
        op = cast(CollectiveOp, work.op)
        shape = self.tree.group_shape(groups[0].tolist())
        across = num_steps(op, shape.nodes if shape.nodes > 1 else shape.size)
        if op in ("send_recv", "all_to_all") and shape.nodes > 1:
            across = 1
        return across * hop_s + (num_steps(op, shape.size) - num_steps(op, shape.nodes)) * inside_s

    def sent_bytes(self, work: Work, /) -> float:
        """Bytes of a class of work on a link that it crosses once; the rings across nodes share a message."""
        if work.kind is not Kind.COMM_COLL or work.group is None or work.op == "send_recv":
            return work.comm_bytes
        shape = self.tree.group_shape(work.group.ranks)
        rings = shape.fewest_per_node if shape.nodes > 1 else 1
        factor = wire_factor(cast(CollectiveOp, work.op), shape.size)
        lanes = self.tree.system.node.lanes(shape.size) if shape.nodes == 1 else 1
        return work.comm_bytes * factor / (rings * lanes)

    def _alike(self, work: Work, /) -> Hashable:
        """Inside a node the rate depends on the size of a message."""
        group = work.group
        inside = group is not None and (group.size - 1) * abs(group.stride) < self.tree.devices_per_node
        return super()._alike(work), work.comm_bytes if inside else None

    def places(self) -> dict[int, Hashable]:
        """The leaf of each rank where uplinks are thin, and the rank where a link of its node is slow."""
        tree = self.tree
        thin = tree.has_thin_uplinks()
        links = np.concatenate([tree.ports, tree.hosts, tree.nics], axis=1)
        slow = (np.isin(links, tree.edges.slow) | (tree.edges.late_s[links] > 0.0)).any(axis=1)
        slow_nodes = set(tree.node_of[slow].tolist())
        places: dict[int, Hashable] = {}
        for rank, node in enumerate(tree.node_of.tolist()):
            if thin or node in slow_nodes:
                places[rank] = (int(tree.leaf_of[rank]) if thin else 0, rank if node in slow_nodes else None)
        return places

    def peer_places(self, works: Sequence[Work], width: int, shares_links: bool, /) -> Ints | None:
        """Where the groups of each peer enter nodes and leaves."""
        if width == 1:
            return None
        columns = []
        for spread in dict.fromkeys(_spread(work, self.tree, width) for work in works if work.group):
            entries = _entries_of_peers(spread, self.tree, width, shares_links=shares_links)
            if (entries != entries[0]).any():
                columns.append(entries)
        return np.concatenate(columns, axis=1) if columns else None

    def worst_group(self, work: Work, width: int, /) -> RankGroup | None:
        """Of groups on several nodes, if any, that with the emptiest node; of these that on most nodes."""
        if work.group is None:
            return None
        spread = _spread(work, self.tree, width)
        nodes, most, fewest = _entries_of_peers(spread, self.tree, width, shares_links=False).T
        peer = int(np.lexsort((-most, -nodes, fewest, nodes == 1))[0])
        return work.group._replace(start=work.group.start + spread[1].first(peer))


def _ring_hops(groups: Ints, node_of: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Of rings across nodes: sources, targets, ranks on no ring, ranks whose ports other rings pass."""
    ranks = np.sort(groups, axis=1)
    nodes = node_of[ranks]
    across = nodes[:, 0] != nodes[:, -1]
    ranks = ranks[across]
    nodes = nodes[across]
    hops = [(ranks[:0, 0],) * 4]
    enters = np.insert(nodes[:, 1:] != nodes[:, :-1], 0, True, axis=1)
    left = np.ones(len(ranks), dtype=bool)
    while left.any():  # groups that lie alike over nodes at once; usually all do
        pattern = enters[np.argmax(left)]
        rows = left & (enters == pattern).all(axis=1)
        first = np.flatnonzero(pattern)
        # On ring j, rank j of each node sends to rank j of the next node.
        rings = np.arange(np.diff(first, append=len(pattern)).min())
        source = (first[:, None] + rings).ravel()
        members = source, np.roll(source, -len(rings)), np.delete(np.arange(len(pattern)), source)
        passed = np.repeat(np.arange(len(pattern)), len(rings) - 1)
        hops.append(tuple(ranks[rows][:, places].ravel() for places in (*members, passed)))
        left &= ~rows
    source, target, spare, within = (np.concatenate(column) for column in zip(*hops, strict=True))
    return source, target, spare, within


_INSIDE_NODES = ("node.scale_up",)
_BETWEEN_NODES = ("node.nic", "node.nics", "fabric.oversubscription")
_EXPERTS = "exposed expert communication"
_EXPERTS_INSIDE = "a smaller expert degree than {layout.expert}, or faster links {where}"
REMEDIES = {
    "bubble": "more micro-batches than {plan.num_microbatches:,} for {layout.pipeline} stages (a larger "
    "batch or fewer stages), or a schedule with a smaller bubble (interleaved, zb1p)",
    "exposed tensor communication": "a tensor degree below {layout.tensor}, or faster links inside the node",
    _EXPERTS: "a smaller expert degree or one inside a node, one copy of a token a "
    "node (dispatcher: deepep), or faster links",
    "exposed data communication": f"{LARGER_BATCH}, so that gradients are reduced less often, or faster "
    "links {where}",
    "exposed pipeline communication": "fewer than {layout.pipeline} stages, or faster links between them",
    "exposed offload": "a larger micro-batch than {layout.micro_batch_size:,}, more devices so that less is "
    "offloaded, or a faster link to the host",
    HOST: "a CUDA graph (runtime.cuda_graph), a larger micro-batch than {layout.micro_batch_size:,}, or a "
    "faster host",
}
"""What shortens a step, by the wait that limits it; the optimizer, and a lone replica, have other words."""
MOST_CHANNELS = 32
"""The most multiprocessors that a collective of NCCL occupies, one for each channel.

assumed: the library's own limit of channels (MAXCHANNELS); 16 to 24 are usual.
"""


BORROWED = 0.36
"""Error in log time of constants that were fitted to another generation, from public runs on GPUs.

It is the 90th percentile of four runs on H100 predicted with the constants of the A100; that of 29 runs on
A100 with those of the H100 is 0.30.
"""


OTHER_SOFTWARE = 0.22
"""Error in log time of steps whose software nobody named.

With it 91 % of 319 public runs lie in the ranges that users get who say nothing of their software
(`validate`, "as asked, in band"); without it 68 % do.
"""


def _uneven_stages(plan: Plan[Any, Any]) -> str:
    """The remedy where stages wait longer for the fullest of them than for their first micro-batch."""
    division = Division.of(plan.job, plan.layout)
    head = head_layers(plan.job)
    held = np.array(list(map(sum, division.chunks)))
    loads = held.copy()
    loads[division.placement.last_rank] += head
    others = loads.sum() - loads.mean()
    first = schedule_called(division.schedule).bubble * others / division.virtual
    uneven = held.min() < held.max()
    if not (uneven or head > 1) or plan.num_microbatches * (loads.max() - loads.mean()) <= first:
        return ""
    if uneven:
        return (
            f"even stages: with {held.min()} to {held.max()} layers a rank all wait for the fullest (fewer "
            f"stages, or a number that divides {held.sum()} layers)"
        )
    return f"fewer layers next to the LM head (layers_per_stage), which takes as long as {head} layers"


class GpuCluster(Machine):
    """Nodes of GPUs under a fat tree."""

    kind = "gpu-cluster"
    system_type = GpuClusterSpec
    layout_type = ParallelLayout
    unit = "GPUs"
    inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "exposed tensor communication": ("node.scale_up",),
        "exposed context communication": ("node.scale_up", *_BETWEEN_NODES),
        "exposed expert communication": ("node.scale_up", *_BETWEEN_NODES),
        "exposed data communication": _BETWEEN_NODES,
        "exposed pipeline communication": _BETWEEN_NODES,
        "exposed offload": ("node.host",),
    }
    fragments_memory = True
    rates: ClassVar[tuple[Rate, ...]] = (
        *Machine.rates,
        Rate("links inside a node", "node.scale_up.bandwidth", 0.2),
        Rate("the network between nodes", "node.nic.bandwidth", 0.3),
    )
    unread = ("runtime.software_release",)
    recompute_modes = ("none", "selective", "full")
    default_strategy = "3d"

    def topology(self, system: GpuClusterSpec, num_devices: int) -> FatTree:
        return FatTree(system, num_devices)

    def costs(self, topology: FatTree, recipe: Recipe) -> GpuCosts:
        return GpuCosts(topology, recipe)

    def network(self, topology: FatTree, /) -> Network:
        return _FatTreeNetwork(topology)

    def devices_per_node(self, system: GpuClusterSpec, /) -> int:
        return system.node.devices

    def links(self, system: GpuClusterSpec, /) -> tuple[LinkSpec, LinkSpec]:
        return system.node.scale_up, system.node.nic

    def calibrations(self, system: GpuClusterSpec, recipe: Recipe, /) -> list[Calibration]:
        links = (system.node.scale_up.calibration, system.node.nic.calibration)
        return [calibration for calibration in (*links, recipe.runtime.framework) if calibration is not None]

    def unknowns(self, system: GpuClusterSpec, job: Job, _num_devices: int, /) -> Iterator[Unknown]:
        """Software that nobody named, and the constants of another chip.

        `chip` of a device names one that has the same chip with another memory.
        """
        if job.runtime.by_rule:
            most = f"{100 * math.expm1(OTHER_SOFTWARE):.0f} %"
            words = (
                f"no runtime is named, and published runs on other software took up to {most} more or less; "
                "the range allows for it (--runtime NAME)"
            )
            yield Unknown("runtime-unnamed", OTHER_SOFTWARE, words, shared=True)
        device = system.device
        calibration = device.calibration
        if calibration and is_borrowed(device) and device.chip not in measured_on(calibration, "device"):
            words = (
                "constants of another generation missed nine in ten published runs by up to "
                f"{100 * math.expm1(BORROWED):.0f} %, which the band allows"
            )
            yield Unknown("calibration-borrowed", BORROWED, words, shared=True)

    def overlap_slowdown(self, system: GpuClusterSpec, /) -> float:
        """Compute on the multiprocessors that `MOST_CHANNELS` leave it.

        The traffic of a collective in memory (2 to 3 bytes for each on the wire, at the bus rate of NVLink)
        slows kernels that memory limits by no more than that.
        """
        units = system.device.compute_units
        return MOST_CHANNELS / (units - MOST_CHANNELS) if units > MOST_CHANNELS else 1.0

    def inputs_of(self, cause: str, plan: Plan, /) -> tuple[str, ...]:
        """All that a cause may rest on, without links that it does not cross."""
        fields = self.inputs.get(cause, ())
        ranks = plan.topology.num_devices
        if isinstance(layout := plan.layout, ParallelLayout):
            experts = layout.expert * layout.expert_tensor
            widths = {"exposed context communication": layout.tensor * layout.context, _EXPERTS: experts}
            ranks = widths.get(cause, ranks)
        outside = ranks > plan.topology.devices_per_node or _BETWEEN_NODES[0] not in fields
        return fields if outside else _INSIDE_NODES

    def wait_remedy(self, cause: str, plan: Plan, _lane: Lane | None, _roof: StreamingRoof | None, /) -> str:
        """Another degree, schedule or stage of ZeRO, or faster links."""
        layout = plan.layout
        alone = isinstance(layout, ParallelLayout) and layout.replicas == 1
        if cause == "exposed data communication" and alone:
            return (
                "nothing is sent, the host launches collectives of one rank: fewer, larger gradient buckets"
            )
        if cause == "optimizer" and isinstance(layout, ParallelLayout):
            offloaded = layout.offload_optimizer != "none"
            if (layout.zero_stage or alone) and not offloaded:
                return f"{LARGER_BATCH}, for rarer updates, or more replicas that share them (ZeRO 1)"
            spread = "" if layout.zero_stage else "optimizer states sharded over replicas (ZeRO 1), "
            hosts = "more hosts to share the update, its states on the devices, " if offloaded else ""
            return f"{spread}{hosts}or {LARGER_BATCH}"
        if cause == "bubble" and (words := LOOK if layout.pipeline == 1 else _uneven_stages(plan)):
            return words
        inside = self.inputs_of(cause, plan) == _INSIDE_NODES
        words = _EXPERTS_INSIDE if inside and cause == _EXPERTS else REMEDIES.get(cause, LOOK)
        return words.format(plan=plan, layout=layout, where="inside the node" if inside else "between nodes")

    def _more_compute(self, plan: Plan, /) -> str:
        size = f"micro-batch now {plan.layout.micro_batch_size:,}"
        return f"{self.more}, or larger matrices in each kernel ({size}, tensor {plan.layout.tensor})"

    def published_system(self, system: GpuClusterSpec, described: Mapping[str, Any], /) -> GpuClusterSpec:
        """The system with the node size and network of the run, one NIC per device."""
        per_node = described["devices_per_node"]
        server = per_node or system.node.server or system.node.devices
        devices = described["nvlink_domain"] or per_node or system.node.devices
        # A domain of several nodes is a node of that many devices; what was a node is one of its servers.
        several = server if devices > server and devices % server == 0 else None
        node = system.node.model_copy(update={"devices": devices, "server": several})
        if (inter_node := described["inter_node"]) is not None:
            protocol = described["inter_node_protocol"] or node.nic.protocol
            nic = node.nic.model_copy(update={"bandwidth": inter_node / server, "protocol": protocol})
            shared = inter_node < server * system.node.nic.bandwidth
            node = node.model_copy(update={"nics": devices, "nic": nic, "devices_share_nics": shared})
        return system.model_copy(update={"node": node})

    def published_layout(self, settings: Mapping[str, Any], /) -> ParallelLayout:
        """The layout of the run, with the chunks that its schedule needs; other settings are left out."""
        known = {field.name for field in fields(ParallelLayout)}
        given = {name: value for name, value in settings.items() if name in known}
        given["virtual_pipeline"] = max(settings["virtual_pipeline"], least_chunks(settings["schedule"]))
        if settings["pipeline_layout"]:
            given["layers_per_stage"] = layers_of_stages(settings["pipeline_layout"])
        given["context"] = settings["context_parallel"]
        given["expert"] = settings["expert_parallel"]
        given["expert_tensor"] = settings["expert_tensor_parallel"] or 1
        given["context_exchange"] = "all_to_all" if settings["context_comm"] == "a2a" else "ring"
        return ParallelLayout(**given)

    def usual_settings(self, layout: ParallelLayout, recipe: Recipe, /) -> list[Setting]:
        """The settings that Megatron-LM's README recommends."""
        rows = [Setting("micro_batch_size", str(layout.micro_batch_size))]
        if layout.tensor > 1:
            split = layout.sequence_parallel
            rows.append(Setting("sequence_parallel", str(split).lower(), "" if split else "sp=true"))
        if layout.data > 1:
            rows.append(Setting("zero_stage", str(layout.zero_stage), "" if layout.zero_stage else "zero=1"))
        selective = recipe.runtime.attention == "standard" and layout.recompute == "none"
        rows.append(Setting("recompute", layout.recompute, "recompute=selective" if selective else ""))
        if layout.pipeline > 1:
            rows.append(Setting("schedule", layout.schedule))
        return rows

    def _completed(self, given: dict[str, Any], devices: int) -> ParallelLayout:
        """The layout; `dp` follows from the devices, `schedule` from `vpp`, `vpp` from the given stages."""
        layout = ParallelLayout(**given)
        stages = len(given.get("layers_per_stage") or ())
        if stages % layout.pipeline == 0 and stages > layout.pipeline > 1 and "schedule" not in given:
            layout = replace(layout, virtual_pipeline=stages // layout.pipeline)
            given = {**given, "virtual_pipeline": layout.virtual_pipeline}
        schedule_called(layout.schedule)  # LayoutError for an unknown name
        if layout.virtual_pipeline > 1 and "schedule" not in given:
            layout = replace(layout, schedule="interleaved")
        if "virtual_pipeline" not in given:
            layout = replace(layout, virtual_pipeline=least_chunks(layout.schedule))
        if "data" not in given:
            held = layout.tensor * layout.context * layout.pipeline
            layout = replace(layout, data=max(1, devices // held))
        return layout
