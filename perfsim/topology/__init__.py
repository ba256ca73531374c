"""The network of a system: which links a message crosses, how fast they are and how long they take.

A GPU cluster is a fat tree: `node0/gpu0`, `node0/nvswitch`, `node0/nic0`, `leaf0`, `spine0`. A wafer
cluster is a tree: `memoryx`, `swarmx/0/0` (level from the root / index), `cs0`. Every link has two
directions, each an `Edge` with an id of its own; ids count from 0 in the order of construction, so
the same system gives the same ids. Links and graph are made when they are first asked for.
"""

from __future__ import annotations

from perfsim.topology.base import Cable, Edge, GroupShape, LinkKind, Route, Topology
from perfsim.topology.fat_tree import FatTree
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
    "GroupShape",
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
