"""Sampled GEMMs computed in NumPy as the simulated machines would, to verify the partitions."""

from __future__ import annotations

from perfsim.numerics.kernels import GemmPass, GemmShape, Partition, layer_gemms, layer_of, partition_of
from perfsim.numerics.partitions import Cut, execute_partitioned
from perfsim.numerics.sampling import (
    GemmSample,
    PartitionCoverage,
    SampleResult,
    SamplingReport,
    sample_gemms,
)

__all__ = [
    "Cut",
    "GemmPass",
    "GemmSample",
    "GemmShape",
    "Partition",
    "PartitionCoverage",
    "SampleResult",
    "SamplingReport",
    "execute_partitioned",
    "layer_gemms",
    "layer_of",
    "partition_of",
    "sample_gemms",
]
