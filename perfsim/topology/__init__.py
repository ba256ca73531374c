"""The network of a system: the links that a message crosses, with their bandwidth and latency.

A GPU cluster is a fat tree: `node0/gpu0`, `node0/nvswitch`, `node0/nic0`, `leaf0`, `spine0`. A wafer
cluster is a tree: `memoryx`, `swarmx/0/0` (level from the root / index), `cs0`. Each direction of a link
is an `Edge` with its own id; ids count from 0 in the order of construction, so the same system has the same
ids. Links and graph are built at first use.
"""

from __future__ import annotations

from perfsim.topology.base import Cable, Edge, LinkKind, Route, Topology
from perfsim.topology.fat_tree import FatTree
from perfsim.topology.group import Group
from perfsim.topology.health import (
    HEALTHY,
    LinkHealth,
    ends_of,
    link_health,
    links_with_state,
    nearest_link,
    route_around,
)
from perfsim.topology.wafer_tree import WaferTree

__all__ = [
    "HEALTHY",
    "Cable",
    "Edge",
    "FatTree",
    "Group",
    "LinkHealth",
    "LinkKind",
    "Route",
    "Topology",
    "WaferTree",
    "ends_of",
    "link_health",
    "links_with_state",
    "nearest_link",
    "route_around",
]
