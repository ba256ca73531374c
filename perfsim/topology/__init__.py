"""The network of a system: which links a message crosses, how fast they are and how long they take.

A GPU cluster is a fat tree: `node0/gpu0`, `node0/nvswitch`, `node0/nic0`, `leaf0`, `spine0`. A wafer
cluster is a tree: `memoryx`, `swarmx/0/0` (level from the root / index), `cs0`. Every link has two
directions, each an `Edge` with an id of its own; ids count from 0 in the order of construction, so
the same system gives the same ids. Links and graph are made when they are first asked for.
"""

from __future__ import annotations

from perfsim.errors import InputError
from perfsim.hardware import SystemSpec, WaferClusterSpec
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
    "build_topology",
    "ends_of",
    "link_health",
    "links_with_state",
    "nearest_link",
    "route_around",
]


def build_topology(system: SystemSpec, num_devices: int) -> Topology:
    """The network of the first `num_devices` devices of a system.

    Raises InputError for no device, more systems than the cluster can have, or a last node that
    would stay partly empty (a single node may).
    """
    if num_devices < 1:
        raise InputError(f"{system.name}: at least one device is needed, not {num_devices}")
    if isinstance(system, WaferClusterSpec):
        return WaferTree(system, num_devices)
    return FatTree(system, num_devices)
