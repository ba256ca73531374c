"""Every partition of every GEMM is the GEMM."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.numerics.kernels import Partition
from perfsim.numerics.sampling import GemmSample, block_of, error_bound, execute_partitioned, sample_gemms

partitions = st.sampled_from(["none", "column", "row", "sequence", "streamed"])


@st.composite
def gemms(draw: st.DrawFn, most: int = 40) -> GemmSample:
    m, n, k = (draw(st.integers(1, most)) for _ in range(3))
    partition: Partition = draw(partitions)
    limit = {"none": 1, "column": n, "row": k, "sequence": m, "streamed": k}[partition]
    return GemmSample("gemm", m, n, k, partition, draw(st.integers(1, limit)), 2.0 * m * n * k)


@given(gemms(), st.integers(0, 2**32 - 1))
def test_partitioned_integers_are_multiplied_exactly(gemm: GemmSample, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 10, (gemm.m, gemm.k)).astype(np.float32)
    w = rng.integers(-9, 10, (gemm.k, gemm.n)).astype(np.float32)
    y, reference = execute_partitioned(x, w, gemm.partition, gemm.parts)
    assert y.dtype == np.float32
    assert (y == reference).all()


@given(gemms(), st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float64]))
def test_partitioned_products_obey_the_forward_error_bound(
    gemm: GemmSample, seed: int, dtype: type[np.floating]
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((gemm.m, gemm.k)).astype(dtype)
    w = rng.standard_normal((gemm.k, gemm.n)).astype(dtype)
    y, _ = execute_partitioned(x, w, gemm.partition, gemm.parts)
    size = np.abs(x).astype(np.longdouble) @ np.abs(w).astype(np.longdouble)
    exact = x.astype(np.longdouble) @ w.astype(np.longdouble)
    assert (np.abs(y - exact) <= error_bound(gemm.k, np.dtype(dtype)) * size).all()


@given(gemms(most=100_000), st.floats(1e3, 1e9))
def test_a_block_fits_the_gemm_keeps_every_part_and_bounds_its_cost(gemm: GemmSample, flop: float) -> None:
    m, n, k = block_of(gemm, flop)
    assert 1 <= m <= gemm.m
    assert 1 <= n <= gemm.n
    assert 1 <= k <= gemm.k
    assert {"column": n, "row": k, "sequence": m, "streamed": k, "none": 1}[gemm.partition] >= gemm.parts
    rows, columns, depth = {"sequence": (gemm.parts, 1, 1), "column": (1, gemm.parts, 1)}.get(
        gemm.partition, (1, 1, gemm.parts)
    )
    least = min(gemm.m, max(16, rows)) * min(gemm.n, max(16, columns)) * depth
    assert 2 * m * n * k <= max(flop, 2 * least)


@given(st.lists(gemms(), min_size=1, max_size=6), st.integers(1, 8), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_a_step_of_right_partitions_passes_and_no_class_is_drawn_twice(
    step: list[GemmSample], count: int, seed: int
) -> None:
    report = sample_gemms(step, count=count, seed=seed)
    assert report.passed
    assert report.tasks_sampled == min(count, len(step)) == len(report.details)
    assert 0 < report.flop_share <= 1 + 1e-12
