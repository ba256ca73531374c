"""Which communications share links, so that the engine must arbitrate them.

Only links that can be asked for more than they carry matter: a link whose users, all at full speed
at once, stay under its capacity slows nobody and is left out. Of the others only those are kept that
no other one implies (`engine.binding_links`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfsim.engine.binding_links import flows_on
from perfsim.engine.fairshare import Flow
from perfsim.graph import Kind, RankGroup, TaskGraph, Work
from perfsim.study.traffic import PeerClasses, Traffic, gpu_traffic, hot_links, wafer_traffic
from perfsim.topology import WHOLE, FatTree, LinkHealth, Topology, WaferTree


@dataclass(frozen=True)
class SharedLinks:
    """Flows by work id, and the capacity of every link that they name."""

    flows: dict[int, Flow] = field(default_factory=dict)
    capacities: NDArray[np.float64] | None = None


def shared_links(
    graph: TaskGraph, topology: Topology, *, peers: ArrayLike = (0,), health: LinkHealth = WHOLE
) -> SharedLinks:
    """The communications of `graph` that others can slow, or that the network is too thin for.

    `peers` numbers the classes of the ranks that a written device stands for, as `unfold` was given
    them; without it every written device stands for itself. Raises InputError where dead links leave
    no route.
    """
    traffic = _traffic(graph.works, topology, PeerClasses(np.asarray(peers)), health)
    if not traffic:
        return SharedLinks()
    capacities = _capacities(traffic, topology, health)
    pairs = np.unique(np.stack([graph.work, graph.stream]), axis=1).T.tolist()
    demands = (
        (link, stream, times * traffic[work].bytes_per_s)
        for work, stream in pairs
        if work in traffic
        for link, times in traffic[work].crossings.items()
    )
    hot = hot_links(demands, capacities)
    contended = [number for number, each in traffic.items() if not hot.isdisjoint(each.crossings)]
    loads = [
        {link: times for link, times in traffic[number].crossings.items() if link in hot}
        for number in contended
    ]
    flows, kept = flows_on(loads, [traffic[number].bytes_per_s for number in contended], capacities)
    if not flows:
        return SharedLinks()
    return SharedLinks(dict(zip(contended, flows, strict=True)), kept)


def _traffic(
    works: Sequence[Work], topology: Topology, peers: PeerClasses, health: LinkHealth
) -> dict[int, Traffic]:
    """By work id; works of one group and direction put the same on the network."""
    known: dict[tuple[RankGroup | None, bool, str], Traffic | None] = {}
    found: dict[int, Traffic] = {}
    for number, work in enumerate(works):
        if not (work.kind.is_communication or work.kind is Kind.MEM_LOAD):
            continue
        key = (work.group, work.kind is Kind.COMM_COLL, work.op)
        if key not in known and isinstance(topology, FatTree):
            known[key] = gpu_traffic(work, topology, peers, health)
        elif key not in known:
            known[key] = wafer_traffic(work, topology) if isinstance(topology, WaferTree) else None
        if (traffic := known[key]) is not None:
            found[number] = traffic
    return found


def _capacities(traffic: dict[int, Traffic], topology: Topology, health: LinkHealth) -> dict[int, float]:
    links = {link for each in traffic.values() for link in each.crossings}
    if isinstance(topology, FatTree):
        return {link: topology.network_bytes_per_s(link) * health.left.get(link, 1.0) for link in links}
    return {link: health.bytes_per_s(topology.links()[link]) for link in links}
