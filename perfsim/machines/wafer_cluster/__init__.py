"""Systems under a SwarmX tree, to which weights are streamed."""

from perfsim.machines.wafer_cluster.machine import WaferCluster, wafer_plan

__all__ = ["WaferCluster", "wafer_plan"]
