"""NumPy doing what the simulated machines would do, to see that the partitions are right."""

from perfsim.numerics.kernels import GemmShape, Partition, layer_gemms, partition_of
from perfsim.numerics.sampling import (
    GemmSample,
    PartitionCoverage,
    SampleResult,
    SamplingReport,
    execute_partitioned,
    sample_gemms,
)

__all__ = [
    "GemmSample",
    "GemmShape",
    "Partition",
    "PartitionCoverage",
    "SampleResult",
    "SamplingReport",
    "execute_partitioned",
    "layer_gemms",
    "partition_of",
    "sample_gemms",
]
