"""What every communication of a graph puts on the network, counted for all ranks that it stands for.

A folded graph writes one peer and one replica; the others do the same at the same time, on the same
uplinks. So one class of work is one class of flows over all links that any of its *images* crosses,
as often as they cross it, and all images run at the rate that the tightest of those links allows:
peers wait for one another before the step ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from perfsim.calibration import CollectiveOp
from perfsim.collectives import tree
from perfsim.costs.streams import StreamCosts
from perfsim.errors import InputError
from perfsim.graph import Kind, RankGroup, Work
from perfsim.topology import FatTree, LinkHealth, WaferTree, route_around

Ints = NDArray[np.int64]
SPILLING = ("spill", "fetch")
FLASH_OPS = ("flash_read", "flash_write")
FLASH = -1
"""In place of a link's id: the flash of all weight servers, which reads and writes share."""
WAFER_DIRECTIONS: dict[str, Literal["down", "up"]] = {
    "memoryx_read": "down",
    "fetch": "down",
    "spill": "up",
    "reduce": "up",
    "reduce_part": "up",
    "reduce_in_tree": "up",
    "reduce_in_tree_part": "up",
}


@dataclass(frozen=True)
class Traffic:
    """How often a communication crosses each link, and the rate at which it runs on an idle network."""

    links: Ints
    times: Ints
    bytes_per_s: float


@dataclass(frozen=True)
class PeerClasses:
    """Which of the ranks that a written device stands for do the same; `numbers` has one entry a peer."""

    numbers: Ints

    @property
    def width(self) -> int:
        return len(self.numbers)

    def groups_like(self, group: RankGroup) -> Ints:
        """The ranks of a group and of all groups whose members are of the same classes, one a row."""
        ranks = np.arange(group.size) * group.stride + group.start
        block = ranks // self.width
        together = group.size > 1 and block.min() == block.max()
        stride, size = (abs(group.stride), group.size) if together else (1, 1)
        offset = np.arange(self.width)
        firsts = offset[offset // stride % size == 0]
        members = firsts[:, None] + stride * np.arange(size)
        whole = members[:, -1] < self.width
        firsts, members = firsts[whole], members[whole]
        kinds = np.sort(self.numbers[members], axis=1)
        own = int(ranks[0] if group.stride > 0 or not together else ranks[-1]) % self.width
        mine = kinds[np.searchsorted(firsts, own)]
        like = firsts[(kinds == mine).all(axis=1)]
        return np.asarray(ranks + (like - own)[:, None])


def gpu_traffic(work: Work, network: FatTree, peers: PeerClasses, health: LinkHealth) -> Traffic | None:
    """What a class of work puts on NICs and uplinks; None where all of it stays inside nodes.

    A send goes one way. In a collective across nodes the ranks of a node form as many rings, each
    through its own share of the NICs, so that every rank sends to one neighbour and receives from
    another at that share whatever the algorithm: this is what collectives are priced by.
    """
    if work.group is None or work.group.size < 2:
        return None
    groups = peers.groups_like(work.group)
    if work.op.startswith("tree."):
        source, target = _round_hops(groups, work.op)
    elif work.kind is Kind.COMM_COLL:
        source, target = _ring_hops(groups, network.devices_per_node)
    else:
        source, target = groups[:, 0], groups[:, 1]
    links = network.crossings(source, target)
    if health.dead:
        links = _around(links, source, target, network, health)
    found, times = np.unique(links[links >= 0], return_counts=True)
    if not len(found):
        return None
    share = network.system.node.inter_node_bytes_per_s / network.devices_per_node
    return Traffic(found, times, share)


def _round_hops(groups: Ints, op: str) -> tuple[Ints, Ints]:
    """Who sends to whom in `tree.all_reduce.2`: that round of a tree (`study.expansion`)."""
    _, name, number = op.split(".")
    pairs = np.array(tree.round_pairs(cast(CollectiveOp, name), groups.shape[1], int(number)))
    return groups[:, pairs[:, 0]].ravel(), groups[:, pairs[:, 1]].ravel()


def _ring_hops(groups: Ints, devices_per_node: int) -> tuple[Ints, Ints]:
    """Who sends to whom across nodes: rank j of each node to rank j of the group's next node."""
    ranks = np.sort(groups, axis=1)
    nodes = ranks // devices_per_node
    across = nodes[:, 0] != nodes[:, -1]
    ranks, nodes = ranks[across], nodes[across]
    target = np.empty_like(ranks)
    enters = np.insert(nodes[:, 1:] != nodes[:, :-1], 0, True, axis=1)
    left = np.ones(len(ranks), dtype=bool)
    while left.any():  # one way over the nodes at a time; mostly there is one
        begins = enters[np.argmax(left)]
        rows = left & (enters == begins).all(axis=1)
        target[rows] = ranks[rows][:, _next_in_ring(begins)]
        left &= ~rows
    return ranks.ravel(), target.ravel()


def _next_in_ring(enters: NDArray[np.bool_]) -> Ints:
    """For each place of a group, in the order of ranks, the place that it sends to."""
    first = np.flatnonzero(enters)
    count = np.diff(np.append(first, len(enters)))
    node = np.cumsum(enters) - 1
    after = (node + 1) % len(first)
    return np.asarray(first[after] + (np.arange(len(enters)) - first[node]) % count[after])


def _around(links: Ints, source: Ints, target: Ints, network: FatTree, health: LinkHealth) -> Ints:
    """The links of all routes, those of a route that is cut replaced by a way around the cut."""
    used = np.unique(links[links >= 0])
    cut = used[network.crossed_bytes_per_s(used, health.left) == 0.0]
    broken = np.isin(links, cut).any(axis=1)
    rest = [links[~broken].ravel()]
    for a, b in zip(source[broken].tolist(), target[broken].tolist(), strict=True):
        rest.append(np.array(network.crossed(route_around(network, a, b, health.dead)), dtype=np.int64))
    return np.concatenate(rest)


def wafer_traffic(work: Work, network: WaferTree, health: LinkHealth) -> Traffic | None:
    """What a class of work puts on MemoryX and the tree: weights go down all of it, gradients up.

    Where flash is not duplex what is read and written shares the bandwidth of all servers' flash.
    Gradients that are summed in SwarmX do not enter MemoryX. What spills passes the ports of its own
    system alone, seen from the first. Where links are not duplex the two directions are one link, the
    lower id of the two. Samples are left out: a few megabytes beside gigabytes of weights.
    A tree has one way to each system: InputError where it is cut.
    """
    costs, memoryx = StreamCosts(network), network.system.memoryx
    if work.op in FLASH_OPS and memoryx.server.flash is not None and not memoryx.server.flash.duplex:
        return Traffic(np.array([FLASH]), np.ones(1, dtype=np.int64), costs.flash_bytes_per_s())
    if work.op not in WAFER_DIRECTIONS:
        return None
    links = network.tree_links(WAFER_DIRECTIONS[work.op])
    rate = costs.stream_bytes_per_s
    if work.op in SPILLING:
        own = network.route("memoryx", 0) if work.op == "fetch" else network.route(0, "memoryx")
        links, rate = network.link_ids([edge for edge in own if edge.kind == "io"]), costs.feed_bytes_per_s
    elif work.op.startswith("reduce_in_tree"):
        kinds, rate = network.links(), costs.tree_bytes_per_s
        links = tuple(link for link in links if kinds[link].kind != "memoryx")
    for link in sorted(health.dead.intersection(links)):
        edge = network.links()[link]
        raise InputError(
            f"no route is left over {edge.source}-{edge.target}: a wafer that is cut off is a failure; "
            "give at= or mttf= with checkpoint= and restart="
        )
    if not network.system.swarmx.duplex:
        links = tuple(link - link % 2 for link in links)
    return Traffic(np.array(links), np.ones(len(links), dtype=np.int64), rate)


def wafer_bytes_per_s(link: int, network: WaferTree, health: LinkHealth) -> float:
    """Capacity of what wafers share: a link, or the flash of all weight servers."""
    flash = network.system.memoryx.server.flash
    if link == FLASH and flash is not None:
        return network.system.memoryx.servers * flash.bandwidth
    return health.bytes_per_s(network.links()[link])
