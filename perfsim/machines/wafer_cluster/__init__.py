"""Systems that weights are streamed to, under a tree of SwarmX nodes."""

from perfsim.machines.wafer_cluster.machine import WaferCluster

__all__ = ["WaferCluster"]
