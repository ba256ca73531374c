"""The network of a system: the links that a message crosses, with their bandwidth and latency.

A topology has devices, switches, NICs and servers as vertices, compiled once with their cables to columns
(`Topology.edges`), from which prices, loads, routes and nodes are read. A GPU cluster is a fat tree:
`node0/gpu0`, `node0/nvswitch`, `node0/nic0`, `leaf0`, `spine0`. A wafer cluster is a tree:
`memoryx/server0/dram`, `memoryx`, `swarmx/0/0` (level from the root / index), `cs0/port`, `cs0`. Each
direction of a link is an edge with its own id; ids count from 0 in the order of construction, so the same
system has the same ids. `Topology.graph` is the network in networkx. Both are built at first use.
"""

from perfsim.network.fat_tree import FatTree
from perfsim.network.topology import Cable, Group, Topology, nearest_link
from perfsim.network.wafer_tree import WaferTree

__all__ = ["Cable", "FatTree", "Group", "Topology", "WaferTree", "nearest_link"]
