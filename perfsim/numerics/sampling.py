"""Correctness sampling: GEMMs drawn from a step and computed in NumPy in the strategy's partition.

Every sample runs on blocks of bounded cost:

* On random operands in the machine's precision. The result is compared with the unpartitioned
  product in float64, entry by entry, within the forward-error bound of `partitions.py`.
* On small integers, whose products and sums are exact: the two results must be equal, entry by
  entry. The first comparison loses power as k^2 u grows; this one does not.
* With streamed weights, also on small integers with half of the weights and a quarter of the rows zero,
  because zeros are not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from perfsim.base.errors import InputError, Problem
from perfsim.numerics.partitions import (
    Cut,
    Execute,
    GemmPass,
    GemmShape,
    Matrix,
    Partition,
    check_parts,
    error_bound,
    execute_partitioned,
    layer_gemms,
    layer_of,
    partition_of,
    product,
    relative_error,
)

SMALLEST_SIDE = 16
"""A block has at least this many rows and columns, and at least one of each part."""
STREAMED_ROWS = 1024
"""Most rows streamed in a sample, since each is a separate NumPy call."""
INTEGERS = 3
"""Exact operands are integers from -INTEGERS to INTEGERS."""
EXACT_SIDE = 32
"""Most rows and columns of the exact comparison, unless there are more parts."""
EXACT_ROWS = 256
"""Most rows of a streamed weight in it, unless there are more parts; an error shows at any depth."""
ZERO_WEIGHTS = 0.5
ZERO_ROWS = 0.25
"""Fractions of zero weights and of all-zero rows in a sparse streamed weight."""


@dataclass(frozen=True, slots=True)
class GemmSample:
    """A class of equal GEMM tasks in a step: one pass of a layer y (m, n) = x (m, k) w (k, n).

    Sizes are those of the unpartitioned layer; `parts` is the number of its parts; `batch` the number of
    independent products (attention heads). `flop` is the cost of one task, `weight` the number of such
    tasks in the step.
    """

    name: str
    m: int
    n: int
    k: int
    partition: Partition
    parts: int
    flop: float
    weight: float = 1.0
    which: GemmPass = "forward"
    batch: int = 1

    @property
    def total_flop(self) -> float:
        """FLOPs of all tasks of the class."""
        return self.flop * self.weight

    @property
    def product(self) -> GemmShape:
        """The shape of this pass's own GEMM."""
        return layer_gemms(GemmShape(self.m, self.n, self.k))[self.which]

    @property
    def split(self) -> Partition:
        """Partition of this pass's own GEMM."""
        return partition_of(self.partition, self.which)

    @property
    def cut(self) -> Cut:
        return Cut(self.partition, self.parts, self.which)


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One executed sample: partition of its own GEMM, block sizes, error and bound.

    `relative_error` is the largest |y - x w| / (|x| |w|) over the entries of the block; `exact` tells
    whether the results on integers were equal.
    """

    name: str
    which: GemmPass
    partition: Partition
    parts: int
    m: int
    n: int
    k: int
    relative_error: float
    bound: float
    exact: bool

    @property
    def passed(self) -> bool:
        """Whether integers were exact and the error is within the bound."""
        return self.exact and self.relative_error <= self.bound

    @property
    def closeness(self) -> float:
        """The error in units of the bound; infinite if the results on integers differ."""
        return self.relative_error / self.bound if self.exact else float("inf")


@dataclass(frozen=True, slots=True)
class PartitionCoverage:
    """The samples of one partition; `flop_share` is relative to all GEMM FLOPs of the step."""

    sampled: int
    flop_share: float
    worst_relative_error: float
    passed: bool


@dataclass(frozen=True, slots=True)
class SamplingReport:
    """The drawn samples, the share of the step that they represent, and their results.

    `tasks_sampled` counts executed samples, one task of each drawn class; `tasks_total` counts the
    step's GEMM tasks; `flop_share` is the fraction of their FLOPs in drawn classes. `worst` is the
    sample closest to its bound.
    """

    tasks_sampled: int
    tasks_total: int
    flop_share: float
    worst: SampleResult
    by_partition: dict[Partition, PartitionCoverage]
    details: tuple[SampleResult, ...]

    @property
    def worst_relative_error(self) -> float:
        return self.worst.relative_error

    @property
    def bound(self) -> float:
        return self.worst.bound

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.details)


def sample_gemms(
    samples: Sequence[GemmSample],
    *,
    count: int,
    seed: int,
    max_flop_each: float = 1e8,
    dtype: DTypeLike = np.float32,
    execute: Execute = execute_partitioned,
) -> SamplingReport:
    """Draw up to `count` distinct classes, weighted by their FLOPs, and execute a block of each.

    A block keeps all parts, and the full depth k if 2 m n k <= `max_flop_each` allows it. The same seed
    gives the same draw and the same numbers. `dtype` is float32 or float64. Raises InputError if there
    is nothing to draw from or a class is inconsistent.
    """
    _check_samples(samples, count)
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise InputError(f"GEMMs are sampled in float32 or float64, not in {np.dtype(dtype)}")
    rng = np.random.default_rng(seed)
    weights = np.array([sample.total_flop for sample in samples])
    drawn = rng.choice(len(samples), size=min(count, len(samples)), replace=False, p=weights / weights.sum())
    chosen = [samples[i] for i in sorted(drawn.tolist())]
    details = tuple(_run(sample, rng, max_flop_each, np.dtype(dtype), execute) for sample in chosen)
    return SamplingReport(
        tasks_sampled=len(details),
        tasks_total=round(sum(sample.weight for sample in samples)),
        flop_share=float(sum(sample.total_flop for sample in chosen) / weights.sum()),
        worst=max(details, key=lambda result: result.closeness),
        by_partition=_by_partition(chosen, details, float(weights.sum())),
        details=details,
    )


def _check_samples(samples: Sequence[GemmSample], count: int) -> None:
    if not samples or count < 1:
        raise InputError(f"nothing to draw: {count} of {len(samples)} classes of GEMMs")
    problems = [
        Problem(f"{sample.name}: sizes, FLOPs and weight of a GEMM must be above zero")
        for sample in samples
        if min(sample.m, sample.n, sample.k, sample.batch, sample.flop, sample.weight) <= 0
    ]
    if problems:
        raise InputError(problems)
    for sample in samples:
        check_parts({"m": sample.m, "n": sample.n, "k": sample.k, "b": sample.batch}, sample.cut)


def _run(
    sample: GemmSample, rng: np.random.Generator, max_flop: float, dtype: np.dtype[Any], execute: Execute
) -> SampleResult:
    block = block_of(sample, max_flop)
    left, right = (
        (2 * rng.random(shape, dtype=np.float32) - 1).astype(dtype) for shape in operands(sample, block)
    )
    reference = product(left.astype(np.float64), right.astype(np.float64), sample.which)
    y = execute(left, right, sample.cut)
    return SampleResult(
        name=sample.name,
        which=sample.which,
        partition=sample.split,
        parts=sample.parts,
        m=block.m,
        n=block.n,
        k=block.k,
        relative_error=relative_error(y, reference, product(np.abs(left), np.abs(right), sample.which)),
        bound=error_bound(block.k, dtype),
        exact=_is_exact(sample, block, rng, dtype, execute),
    )


def block_of(sample: GemmSample, max_flop: float) -> GemmShape:
    """Sizes of the executed block of the pass's own GEMM, with at most about `max_flop` FLOPs.

    m and n shrink first; k only if even the smallest block is too expensive. Every part remains.
    """
    shape = sample.product
    max_flop = max_flop / _products(sample)
    rows, columns, depth = _parts_along(sample)
    least_m = min(shape.m, max(SMALLEST_SIDE, rows))
    least_n = min(shape.n, max(SMALLEST_SIDE, columns))
    # Only the forward streams along k: rows of the weight are its depth.
    streams_depth = sample.partition == "streamed" and sample.which == "forward"
    most_k = max(STREAMED_ROWS, depth) if streams_depth else shape.k
    k = min(shape.k, most_k, max(depth, 1, int(max_flop / (2 * least_m * least_n))))
    area = max_flop / (2 * k)
    m = min(shape.m, max(least_m, int(min(area**0.5, area / least_n))))
    n = min(shape.n, max(least_n, int(area / m)))
    return GemmShape(m, n, k)


def _products(sample: GemmSample) -> int:
    """Number of executed products of a batch: two per part where possible, so that a mix-up shows."""
    return min(sample.batch, 2 * sample.parts)


def operands(sample: GemmSample, block: GemmShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the two stored operands of a block: x and w, dy and w, or x and dy."""
    m, n, k = layer_of(block, sample.which)
    left, right = {
        "forward": ((m, k), (k, n)),
        "dgrad": ((m, n), (k, n)),
        "wgrad": ((m, k), (m, n)),
    }[sample.which]
    if sample.partition != "heads":
        return left, right
    return (_products(sample), *left), (_products(sample), *right)


def _parts_along(sample: GemmSample) -> tuple[int, int, int]:
    """Numbers of parts along m, n and k of the pass's own GEMM."""
    along = {
        "sequence": (sample.parts, 1, 1),
        "column": (1, sample.parts, 1),
        "row": (1, 1, sample.parts),
    }
    if sample.partition == "streamed":  # rows of the weight are k of the layer
        return {
            "forward": (1, 1, sample.parts),
            "dgrad": (1, sample.parts, 1),
            "wgrad": (sample.parts, 1, 1),
        }[sample.which]
    return along.get(sample.split, (1, 1, 1))


def _is_exact(
    sample: GemmSample, block: GemmShape, rng: np.random.Generator, dtype: np.dtype[Any], execute: Execute
) -> bool:
    """Whether the partition gives the exact product of two matrices of small integers."""
    rows, columns, depth = _parts_along(sample)
    exact_block = GemmShape(
        min(block.m, max(EXACT_SIDE, rows)),
        min(block.n, max(EXACT_SIDE, columns)),
        min(block.k, max(EXACT_ROWS, depth)) if sample.partition == "streamed" else block.k,
    )
    left, right = (
        rng.integers(-INTEGERS, INTEGERS, shape, endpoint=True, dtype=np.int8).astype(dtype)
        for shape in operands(sample, exact_block)
    )
    return _equal(sample, left, right, execute) and (
        sample.partition != "streamed"
        or sample.which == "wgrad"  # reads no weight
        or _equal(sample, left, _sparse(right, rng), execute)
    )


def _equal(sample: GemmSample, left: Matrix, right: Matrix, execute: Execute) -> bool:
    y = execute(left, right, sample.cut)
    expected = product(left.astype(np.float64), right.astype(np.float64), sample.which)
    return y.shape == expected.shape and bool((y == expected).all())


def _sparse(w: Matrix, rng: np.random.Generator) -> Matrix:
    """The weight with random entries and whole rows set to zero."""
    kept = rng.random(w.shape, dtype=np.float32) >= ZERO_WEIGHTS
    kept &= rng.random((w.shape[0], 1), dtype=np.float32) >= ZERO_ROWS
    return np.where(kept, w, np.zeros_like(w))


def _by_partition(
    chosen: Sequence[GemmSample], details: Sequence[SampleResult], step_flop: float
) -> dict[Partition, PartitionCoverage]:
    covered: dict[Partition, PartitionCoverage] = {}
    for partition in sorted({sample.split for sample in chosen}):
        results = [result for result in details if result.partition == partition]
        flop = sum(sample.total_flop for sample in chosen if sample.split == partition)
        covered[partition] = PartitionCoverage(
            sampled=len(results),
            flop_share=flop / step_flop,
            worst_relative_error=max(result.relative_error for result in results),
            passed=all(result.passed for result in results),
        )
    return covered
