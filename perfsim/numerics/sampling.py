"""Correctness sampling: GEMMs drawn from a step, done in NumPy in the partition the strategy chose.

Every sample is executed twice, on blocks cut down to a cost bound:

* On random operands in the machine's precision. The result is compared with the unpartitioned
  product in float64, and every entry must obey |y - x w| <= g |x| |w| with g = gamma_k of the
  precision + gamma_k of float64 and gamma_n = n u / (1 - n u). That bound holds for every order of
  summation: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition (2002),
  lemma 3.1 and section 3.5.
* On small integers, whose products and sums are exact: the two results must be equal, entry by
  entry. The first comparison grows blind as k^2 u grows; this one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from perfsim.errors import InputError, Problem
from perfsim.numerics.kernels import Partition

Matrix = NDArray[np.floating[Any]]
Execute = Callable[[Matrix, Matrix, Partition, int], tuple[Matrix, Matrix]]

SMALLEST_SIDE = 16
"""A block keeps at least this many rows and columns, and at least one of each part."""
STREAMED_ROWS = 4096
"""At most so many rows are streamed in a sample: each is a NumPy call of its own."""
INTEGERS = 3
"""Exact operands are integers from -INTEGERS to INTEGERS."""
EXACT_SIDE = 32
"""The exact comparison uses at most this many rows and columns, unless there are more parts."""


@dataclass(frozen=True, slots=True)
class GemmSample:
    """A class of equal GEMM tasks in a step: y (m, n) = x (m, k) w (k, n), unpartitioned.

    `parts` says in how many parts it is split; `flop` is the cost of one task and `weight` how many
    such tasks the step has.
    """

    name: str
    m: int
    n: int
    k: int
    partition: Partition
    parts: int
    flop: float
    weight: float = 1.0

    @property
    def total_flop(self) -> float:
        return self.flop * self.weight


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One executed sample: the sizes of the block, its error and what the error may be.

    `relative_error` is the largest |y - x w| / (|x| |w|) over the entries of the block; `exact` says
    whether the results on integers were equal.
    """

    name: str
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
        return self.exact and self.relative_error <= self.bound


@dataclass(frozen=True, slots=True)
class PartitionCoverage:
    """What was sampled of one partition; `flop_share` is of all FLOPs of the step."""

    sampled: int
    flop_share: float
    worst_relative_error: float
    passed: bool


@dataclass(frozen=True, slots=True)
class SamplingReport:
    """What was drawn, how much of the step it stands for, and whether it was right.

    `tasks_sampled` counts executed samples, one task of each drawn class; `tasks_total` counts the
    step's GEMM tasks; `flop_share` is the part of their FLOPs that lies in drawn classes.
    `worst_relative_error` and `bound` belong to the sample that came closest to its bound.
    """

    tasks_sampled: int
    tasks_total: int
    flop_share: float
    worst_relative_error: float
    bound: float
    passed: bool
    by_partition: dict[Partition, PartitionCoverage]
    details: tuple[SampleResult, ...]


# --------------------------------------------------------------------------------- the partitions
def execute_partitioned(x: Matrix, w: Matrix, partition: Partition, parts: int) -> tuple[Matrix, Matrix]:
    """The product x w computed in `parts` parts, and unpartitioned in float64.

    x is (m, k), w is (k, n); the first result has the precision of x. Raises InputError for an
    unknown partition or more parts than there are rows or columns to split.
    """
    _check_parts(x.shape[0], w.shape[1], x.shape[1], partition, parts)
    reference = x.astype(np.float64) @ w.astype(np.float64)
    return _PARTITIONS[partition](x, w, parts), reference


def _whole(x: Matrix, w: Matrix, _parts: int) -> Matrix:
    return x @ w


def _by_columns(x: Matrix, w: Matrix, parts: int) -> Matrix:
    return np.concatenate([x @ shard for shard in np.array_split(w, parts, axis=1)], axis=1)


def _by_rows(x: Matrix, w: Matrix, parts: int) -> Matrix:
    shards = zip(np.array_split(x, parts, axis=1), np.array_split(w, parts, axis=0), strict=True)
    y = np.zeros((x.shape[0], w.shape[1]), dtype=x.dtype)
    for x_shard, w_shard in shards:
        y += x_shard @ w_shard
    return y


def _by_sequence(x: Matrix, w: Matrix, parts: int) -> Matrix:
    return np.concatenate([shard @ w for shard in np.array_split(x, parts, axis=0)], axis=0)


def _streamed(x: Matrix, w: Matrix, parts: int) -> Matrix:
    y = np.zeros((x.shape[0], w.shape[1]), dtype=x.dtype)
    product = np.empty_like(y)
    for rows in np.array_split(np.arange(x.shape[1]), parts):
        for i in rows.tolist():
            np.multiply(x[:, i : i + 1], w[i], out=product)
            y += product
    return y


_PARTITIONS: dict[Partition, Callable[[Matrix, Matrix, int], Matrix]] = {
    "none": _whole,
    "column": _by_columns,
    "row": _by_rows,
    "sequence": _by_sequence,
    "streamed": _streamed,
}


def _check_parts(m: int, n: int, k: int, partition: Partition, parts: int) -> None:
    if partition not in _PARTITIONS:
        raise InputError(f"unknown partition {partition!r}; known are {', '.join(_PARTITIONS)}")
    most = {"none": 1, "column": n, "row": k, "sequence": m, "streamed": k}[partition]
    if not 1 <= parts <= most:
        raise InputError(f"partition {partition!r} of m={m}, n={n}, k={k} has 1 to {most} parts, not {parts}")


# ------------------------------------------------------------------------------------- the sample
def sample_gemms(
    samples: Sequence[GemmSample],
    *,
    count: int,
    seed: int,
    max_flop_each: float = 1e8,
    dtype: DTypeLike = np.float32,
    execute: Execute = execute_partitioned,
) -> SamplingReport:
    """Draw up to `count` of the classes by their FLOPs, none twice, and execute a block of each.

    A block keeps its parts, and the full k where 2 m n k <= `max_flop_each` allows. The same seed
    gives the same draw and the same numbers. `dtype` is float32 or float64. Raises InputError when
    there is nothing to draw from or a class contradicts itself.
    """
    _check_samples(samples, count)
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise InputError(f"GEMMs are sampled in float32 or float64, not in {np.dtype(dtype)}")
    rng = np.random.default_rng(seed)
    weights = np.array([sample.total_flop for sample in samples])
    drawn = rng.choice(len(samples), size=min(count, len(samples)), replace=False, p=weights / weights.sum())
    chosen = [samples[i] for i in sorted(drawn.tolist())]
    details = tuple(_run(sample, rng, max_flop_each, np.dtype(dtype), execute) for sample in chosen)
    worst = max(details, key=_closeness)
    return SamplingReport(
        tasks_sampled=len(details),
        tasks_total=round(sum(sample.weight for sample in samples)),
        flop_share=float(sum(sample.total_flop for sample in chosen) / weights.sum()),
        worst_relative_error=worst.relative_error,
        bound=worst.bound,
        passed=all(result.passed for result in details),
        by_partition=_by_partition(chosen, details, float(weights.sum())),
        details=details,
    )


def _check_samples(samples: Sequence[GemmSample], count: int) -> None:
    if not samples or count < 1:
        raise InputError(f"nothing to draw: {count} of {len(samples)} classes of GEMMs")
    problems = [
        Problem(f"{sample.name}: sizes, FLOPs and weight of a GEMM must be above zero")
        for sample in samples
        if min(sample.m, sample.n, sample.k, sample.flop, sample.weight) <= 0
    ]
    if problems:
        raise InputError(problems)
    for sample in samples:
        _check_parts(sample.m, sample.n, sample.k, sample.partition, sample.parts)


def _run(
    sample: GemmSample, rng: np.random.Generator, max_flop: float, dtype: np.dtype[Any], execute: Execute
) -> SampleResult:
    m, n, k = block_of(sample, max_flop)
    x = (2 * rng.random((m, k), dtype=np.float32) - 1).astype(dtype)
    w = (2 * rng.random((k, n), dtype=np.float32) - 1).astype(dtype)
    y, reference = execute(x, w, sample.partition, sample.parts)
    bound = error_bound(k, dtype)
    return SampleResult(
        name=sample.name,
        partition=sample.partition,
        parts=sample.parts,
        m=m,
        n=n,
        k=k,
        relative_error=_relative_error(y, reference, np.abs(x) @ np.abs(w)),
        bound=bound,
        exact=_is_exact(sample, (m, n, k), rng, dtype, execute),
    )


def block_of(sample: GemmSample, max_flop: float) -> tuple[int, int, int]:
    """Sizes (m, n, k) of the block that is executed, of about `max_flop` FLOPs at most.

    m and n shrink first, k only when even the smallest block is too dear. Every part stays.
    """
    rows, columns, depth = _parts_along(sample)
    least_m, least_n = min(sample.m, max(SMALLEST_SIDE, rows)), min(sample.n, max(SMALLEST_SIDE, columns))
    most_k = max(STREAMED_ROWS, depth) if sample.partition == "streamed" else sample.k
    k = min(sample.k, most_k, max(depth, 1, int(max_flop / (2 * least_m * least_n))))
    area = max_flop / (2 * k)
    m = min(sample.m, max(least_m, int(min(area**0.5, area / least_n))))
    n = min(sample.n, max(least_n, int(area / m)))
    return m, n, k


def _parts_along(sample: GemmSample) -> tuple[int, int, int]:
    """How many parts m, n and k are cut into."""
    parts = sample.parts
    along = {
        "sequence": (parts, 1, 1),
        "column": (1, parts, 1),
        "row": (1, 1, parts),
        "streamed": (1, 1, parts),
    }
    return along.get(sample.partition, (1, 1, 1))


def gamma(n: int, unit_roundoff: float) -> float:
    """Higham's gamma_n = n u / (1 - n u); infinite where n u >= 1 and nothing can be said."""
    product = n * unit_roundoff
    return product / (1 - product) if product < 1 else float("inf")


def error_bound(k: int, dtype: np.dtype[Any]) -> float:
    """What |y - x w| / (|x| |w|) may be when y has precision `dtype` and x w was formed in float64.

    u is half the spacing of numbers at 1. `|x| |w|` itself is computed in `dtype`, which can make
    it too small by a factor of 1 - gamma_k.
    """
    own = gamma(k, float(np.finfo(dtype).eps) / 2)
    return (own + gamma(k, float(np.finfo(np.float64).eps) / 2)) * (1 + own)


def _relative_error(y: Matrix, reference: Matrix, size: Matrix) -> float:
    """Largest |y - reference| / size; infinite for a wrong shape or a number that is none."""
    if y.shape != reference.shape:
        return float("inf")
    difference = np.abs(y.astype(np.float64) - reference)
    if not np.isfinite(difference).all():
        return float("inf")
    return float(np.max(difference / np.maximum(size, np.finfo(np.float32).tiny)))


def _is_exact(
    sample: GemmSample,
    block: tuple[int, int, int],
    rng: np.random.Generator,
    dtype: np.dtype[Any],
    execute: Execute,
) -> bool:
    """Whether the partition gives the very product of two matrices of small integers."""
    rows, columns, _ = _parts_along(sample)
    m, n, k = min(block[0], max(EXACT_SIDE, rows)), min(block[1], max(EXACT_SIDE, columns)), block[2]
    x = rng.integers(-INTEGERS, INTEGERS, (m, k), endpoint=True, dtype=np.int8).astype(dtype)
    w = rng.integers(-INTEGERS, INTEGERS, (k, n), endpoint=True, dtype=np.int8).astype(dtype)
    y, reference = execute(x, w, sample.partition, sample.parts)
    return y.shape == reference.shape and bool((y == reference).all())


def _closeness(result: SampleResult) -> float:
    return result.relative_error / result.bound if result.exact else float("inf")


def _by_partition(
    chosen: Sequence[GemmSample], details: Sequence[SampleResult], step_flop: float
) -> dict[Partition, PartitionCoverage]:
    covered: dict[Partition, PartitionCoverage] = {}
    for partition in sorted({sample.partition for sample in chosen}):
        results = [result for result in details if result.partition == partition]
        flop = sum(sample.total_flop for sample in chosen if sample.partition == partition)
        covered[partition] = PartitionCoverage(
            sampled=len(results),
            flop_share=flop / step_flop,
            worst_relative_error=max(result.relative_error for result in results),
            passed=all(result.passed for result in results),
        )
    return covered
