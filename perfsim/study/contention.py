"""Which communications share links, so that the engine must arbitrate them.

Only links that can be asked for more than they carry matter: a link whose users, all at full speed
at once, stay under its capacity slows nobody and is left out. Tasks of one stream never overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfsim.engine.fairshare import Flow
from perfsim.graph import Kind, TaskGraph, Work
from perfsim.hardware import GpuClusterSpec
from perfsim.study.wafer_links import check_written_once, wafer_flows
from perfsim.topology import Topology

NETWORK_LINKS = ("host", "nic", "uplink")


@dataclass(frozen=True)
class SharedLinks:
    """Flows by work id, and the capacity of every link of the topology."""

    flows: dict[int, Flow] = field(default_factory=dict)
    capacities: NDArray[np.float64] | None = None


def shared_links(graph: TaskGraph, topology: Topology) -> SharedLinks:
    """The communications of `graph` that others can slow.

    Written ranks stand for their like, which load their own NICs in the same way; so a link of one
    written rank is loaded by that rank's streams alone.
    """
    system = topology.system
    if isinstance(system, GpuClusterSpec):
        found = ((number, _flow(work, topology)) for number, work in enumerate(graph.works))
        candidates = {number: flow for number, flow in found if flow is not None}
    else:
        candidates = wafer_flows(graph, system, topology)
    if not candidates:
        return SharedLinks()
    contended = _contended_links(graph, candidates, topology.link_bytes_per_s)
    if not isinstance(system, GpuClusterSpec):
        check_written_once(graph, contended=bool(contended))
    flows = {
        number: flow._replace(route=tuple(link for link in flow.route if link in contended))
        for number, flow in candidates.items()
    }
    return SharedLinks(
        {number: flow for number, flow in flows.items() if flow.route}, topology.link_bytes_per_s
    )


def _flow(work: Work, topology: Topology) -> Flow | None:
    """What a communication puts on the network, seen from its first rank; None where all stays in a node.

    A send goes one way. In a collective the rank sends to one neighbour of a ring and receives from
    the other at the NIC's rate, whatever the algorithm.
    """
    if work.group is None or work.group.size < 2:
        return None
    ranks = work.group.ranks
    hops = [(ranks[0], ranks[1])]
    if work.kind is Kind.COMM_COLL:
        hops.append((ranks[-1], ranks[0]))
    across = [hop for hop in hops if topology.node_of(hop[0]) != topology.node_of(hop[1])]
    route = [edge for hop in across for edge in topology.route(*hop) if edge.kind in NETWORK_LINKS]
    if not route:
        return None
    return Flow(topology.link_ids(route), min(edge.bytes_per_s for edge in route))


def _contended_links(
    graph: TaskGraph, candidates: dict[int, Flow], capacities: NDArray[np.float64]
) -> frozenset[int]:
    """Links whose streams, all at full speed at once, ask for more than there is."""
    most: dict[tuple[int, int], float] = {}
    pairs = np.unique(np.stack([graph.work, graph.stream]), axis=1).T.tolist()
    for work, stream in pairs:
        flow = candidates.get(work)
        for link in flow.route if flow else ():
            most[link, stream] = max(most.get((link, stream), 0.0), candidates[work].bytes_per_s)
    demand: dict[int, float] = {}
    for (link, _), bytes_per_s in most.items():
        demand[link] = demand.get(link, 0.0) + bytes_per_s
    return frozenset(link for link, asked in demand.items() if asked > capacities[link] * (1 + 1e-9))
