"""Nodes of GPUs under a fat tree."""

from perfsim.machines.gpu_cluster.machine import GpuCluster

__all__ = ["GpuCluster"]
