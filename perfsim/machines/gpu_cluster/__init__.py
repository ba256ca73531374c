"""Nodes of GPUs under a fat tree."""

from perfsim.machines.gpu_cluster.machine import GpuCluster, gpu_plan

__all__ = ["GpuCluster", "gpu_plan"]
