"""Which communications share links, so that the engine must arbitrate them.

Only links that can be asked for more than they carry matter: a link whose users, all at full speed
at once, stay under its capacity slows nobody and is left out. Tasks of one stream never overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfsim.engine.fairshare import Flow
from perfsim.graph import RankGroup, TaskGraph, Work
from perfsim.hardware import GpuClusterSpec
from perfsim.topology import Topology


@dataclass(frozen=True)
class SharedLinks:
    """Flows by work id, and the capacity of every link of the topology."""

    flows: dict[int, Flow] = field(default_factory=dict)
    capacities: NDArray[np.float64] | None = None


def shared_links(graph: TaskGraph, topology: Topology) -> SharedLinks:
    """The communications of `graph` that others can slow."""
    system = topology.system
    if not isinstance(system, GpuClusterSpec):
        return SharedLinks()
    candidates = {
        number: Flow(topology.link_ids(route), _nominal_bytes_per_s(work, topology))
        for number, work in enumerate(graph.works)
        if work.kind.is_communication and work.group is not None
        for route in [_crossing(work.group, topology)]
        if route is not None
    }
    if not candidates:
        return SharedLinks()
    contended = _contended_links(graph, candidates, topology.link_bytes_per_s)
    flows = {
        number: flow._replace(route=tuple(link for link in flow.route if link in contended))
        for number, flow in candidates.items()
        if any(link in contended for link in flow.route)
    }
    return SharedLinks(flows, topology.link_bytes_per_s)
