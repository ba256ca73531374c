"""Seconds and bytes of the work in a task graph: GEMMs, memory-bound kernels, memory, prices."""
