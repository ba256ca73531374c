"""Systems that weights are streamed to, under a tree of SwarmX nodes."""

from perfsim.machines.wafer_cluster.machine import WaferCluster, wafer_plan

__all__ = ["WaferCluster", "wafer_plan"]
