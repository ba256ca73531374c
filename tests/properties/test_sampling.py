"""Every partition of every GEMM is the GEMM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.numerics.partitions import (
    GemmPass,
    GemmShape,
    Partition,
    error_bound,
    execute_partitioned,
    layer_gemms,
    layer_of,
    product,
)
from perfsim.numerics.sampling import GemmSample, block_of, operands, sample_gemms

partitions = st.sampled_from(["none", "column", "row", "sequence", "heads", "streamed"])
passes = st.sampled_from(["forward", "dgrad", "wgrad"])


@st.composite
def gemms(draw: st.DrawFn, most: int = 40) -> GemmSample:
    m, n, k, b = (draw(st.integers(1, most)) for _ in range(4))
    partition: Partition = draw(partitions)
    batch = b if partition == "heads" else 1
    limit = {"none": 1, "column": n, "row": k, "sequence": m, "heads": b, "streamed": k}[partition]
    parts = draw(st.integers(1, limit))
    which = draw(passes)
    return GemmSample("gemm", m, n, k, partition, parts, 2.0 * m * n * k, 1.0, which, batch)


@given(gemms(), st.integers(0, 2**32 - 1))
def test_partitioned_integers_are_multiplied_exactly(gemm: GemmSample, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = operands(gemm, gemm.product)
    left, right = (rng.integers(-9, 10, shape).astype(np.float32) for shape in shapes)
    y = execute_partitioned(left, right, gemm.cut)
    assert y.dtype == np.float32
    assert (y == product(left, right, gemm.which)).all()


@given(gemms(), st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float64]))
def test_partitioned_products_obey_the_forward_error_bound(
    gemm: GemmSample, seed: int, dtype: type[np.floating]
) -> None:
    rng = np.random.default_rng(seed)
    shapes = operands(gemm, gemm.product)
    left, right = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    y = execute_partitioned(left, right, gemm.cut)
    wide = [operand.astype(np.longdouble) for operand in (left, right)]
    size = product(*map(np.abs, wide), gemm.which)
    exact = product(*wide, gemm.which)
    assert (np.abs(y - exact) <= error_bound(gemm.product.k, np.dtype(dtype)) * size).all()


@given(gemms(), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_zero_weights_that_are_not_sent_change_nothing(gemm: GemmSample, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    streamed = replace(gemm, partition="streamed", parts=1, batch=1)
    left, right = (rng.integers(-9, 10, shape).astype(float) for shape in operands(streamed, gemm.product))
    right[rng.random(right.shape) < share] = 0.0
    assert (execute_partitioned(left, right, streamed.cut) == product(left, right, gemm.which)).all()


@given(st.tuples(*[st.integers(1, 99)] * 3), passes)
def test_a_product_and_its_layer_tell_one_another(sizes: tuple[int, int, int], which: GemmPass) -> None:
    layer = GemmShape(*sizes)
    assert layer_of(layer_gemms(layer)[which], which) == layer


@given(gemms(most=100_000), st.floats(1e3, 1e9))
def test_a_block_fits_the_gemm_keeps_every_part_and_bounds_its_cost(gemm: GemmSample, flop: float) -> None:
    m, n, k = block_of(gemm, flop)
    assert 1 <= m <= gemm.product.m
    assert 1 <= n <= gemm.product.n
    assert 1 <= k <= gemm.product.k
    left, _ = operands(gemm, GemmShape(m, n, k))
    batch = left[0] if gemm.partition == "heads" else 1
    rows, columns, depth = {
        "sequence": (gemm.parts, 1, 1),
        "column": (1, gemm.parts, 1),
        "row": (1, 1, gemm.parts),
        "streamed": {
            "forward": (1, 1, gemm.parts),
            "dgrad": (1, gemm.parts, 1),
            "wgrad": (gemm.parts, 1, 1),
        }[gemm.which],
    }.get(gemm.split, (1, 1, 1))
    assert (m >= rows, n >= columns, k >= depth) == (True, True, True)
    least = min(gemm.product.m, max(16, rows)) * min(gemm.product.n, max(16, columns)) * depth
    assert 2 * batch * m * n * k <= max(flop, 2 * batch * least) * (1 + 1e-9)


@given(st.lists(gemms(), min_size=1, max_size=6), st.integers(1, 8), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_a_step_of_right_partitions_passes_and_no_class_is_drawn_twice(
    step: list[GemmSample], count: int, seed: int
) -> None:
    report = sample_gemms(step, count=count, seed=seed)
    assert report.passed
    assert report.tasks_sampled == min(count, len(step)) == len(report.details)
    assert 0 < report.flop_share <= 1 + 1e-12
