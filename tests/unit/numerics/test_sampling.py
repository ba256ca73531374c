"""Correctness sampling: what it covers, and that it catches partitions that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from perfsim.base.errors import InputError
from perfsim.numerics.partitions import (
    Cut,
    Execute,
    GemmPass,
    Matrix,
    Partition,
    error_bound,
    execute_partitioned,
    gamma,
    streamed_rows,
)
from perfsim.numerics.sampling import GemmSample, block_of, operands, sample_gemms

PARTITIONS: tuple[Partition, ...] = ("none", "column", "row", "sequence", "heads", "streamed")
PASSES: tuple[GemmPass, ...] = ("forward", "dgrad", "wgrad")


def gemm(
    partition: Partition,
    m: int = 512,
    n: int = 768,
    k: int = 1024,
    weight: float = 1.0,
    which: GemmPass = "forward",
) -> GemmSample:
    parts = 1 if partition == "none" else 4
    batch = 12 if partition == "heads" else 1
    name = f"fc-{partition}-{which}"
    return GemmSample(name, m, n, k, partition, parts, 2.0 * m * n * k, weight, which, batch)


STEP = [gemm(partition, which=which) for partition in PARTITIONS for which in PASSES]
FORWARD = [gemm(partition) for partition in PARTITIONS]


# ------------------------------------------------------------------------------------ partitions
def test_a_row_split_adds_the_partial_sums_of_its_parts() -> None:
    x = np.array([[1.0, 2.0]])
    w = np.array([[3.0], [5.0]])
    assert execute_partitioned(x, w, Cut("row", 2)).tolist() == [[13.0]]


@pytest.mark.parametrize(("partition", "most"), [("none", 1), ("column", 3), ("row", 4), ("sequence", 2)])
def test_more_parts_than_there_is_to_split_are_refused(partition: Partition, most: int) -> None:
    x = np.ones((2, 4))
    w = np.ones((4, 3))
    execute_partitioned(x, w, Cut(partition, most))
    with pytest.raises(InputError, match=f"has 1 to {most} parts, not {most + 1}"):
        execute_partitioned(x, w, Cut(partition, most + 1))


def test_an_unknown_partition_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown partition 'diagonal'; known are none, column"):
        execute_partitioned(np.ones((1, 1)), np.ones((1, 1)), Cut("diagonal"))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------- what is found
def test_right_partitions_pass_far_inside_the_bound() -> None:
    report = sample_gemms(STEP, count=len(STEP), seed=0)
    assert report.passed
    assert 0 < report.worst_relative_error < 0.1 * report.bound
    assert all(result.exact for result in report.details)


def broken(
    partition: Partition, which: GemmPass, change: Callable[[Matrix, Matrix, Matrix, int], Matrix]
) -> Execute:
    """An execution that is wrong for one partition of one pass."""

    def execute(left: Matrix, right: Matrix, cut: Cut) -> Matrix:
        y = execute_partitioned(left, right, cut)
        return change(y, left, right, cut.parts) if (cut.partition, cut.which) == (partition, which) else y

    return execute


def drop_last_part(y: Matrix, x: Matrix, w: Matrix, parts: int) -> Matrix:
    last = np.array_split(np.arange(x.shape[1]), parts)[-1]
    return y - x[:, last] @ w[last]


def drop_last_columns(y: Matrix, dy: Matrix, w: Matrix, parts: int) -> Matrix:
    last = np.array_split(np.arange(dy.shape[1]), parts)[-1]
    return y - dy[:, last] @ w[:, last].T


def add_first_part_twice(y: Matrix, x: Matrix, w: Matrix, parts: int) -> Matrix:
    first = np.array_split(np.arange(x.shape[1]), parts)[0]
    return y + x[:, first] @ w[first]


def skip_the_last_ranks_tokens(y: Matrix, x: Matrix, dy: Matrix, parts: int) -> Matrix:
    last = np.array_split(np.arange(x.shape[0]), parts)[-1]
    return y - x[last].T @ dy[last]


def swap_columns(y: Matrix, *_: object) -> Matrix:
    return np.roll(y, 1, axis=1)


def lose_a_column(y: Matrix, *_: object) -> Matrix:
    return y[:, :-1]


def mix_up_heads(y: Matrix, *_: object) -> Matrix:
    return np.roll(y, 1, axis=0)


def miss_one_streamed_row(y: Matrix, x: Matrix, w: Matrix, parts: int) -> Matrix:
    return y - x[:, :1] * w[0]


def forget_to_transpose(y: Matrix, dy: Matrix, w: Matrix, parts: int) -> Matrix:
    return np.resize(dy @ np.resize(w, (w.shape[1], w.shape[0])), y.shape)


def pack_the_rows_that_are_sent(y: Matrix, x: Matrix, w: Matrix, parts: int) -> Matrix:
    """Skipped rows are forgotten on the wafer too, so that later ones meet the wrong activations."""
    rows = np.array([i for i, _ in streamed_rows(w)], dtype=int)
    return x[:, : rows.size] @ w[rows]


def return_no_number(y: Matrix, *_: object) -> Matrix:
    return np.where(np.arange(y.size).reshape(y.shape) == 0, np.nan, y)


FAULTS: list[tuple[Partition, GemmPass, Callable[..., Matrix]]] = [
    ("row", "forward", drop_last_part),
    ("row", "forward", add_first_part_twice),
    ("row", "dgrad", swap_columns),
    ("row", "wgrad", mix_up_heads),
    ("column", "forward", swap_columns),
    ("column", "forward", lose_a_column),
    ("column", "dgrad", drop_last_columns),
    ("column", "dgrad", forget_to_transpose),
    ("column", "wgrad", swap_columns),
    ("sequence", "forward", mix_up_heads),
    ("sequence", "wgrad", skip_the_last_ranks_tokens),
    ("heads", "forward", mix_up_heads),
    ("heads", "dgrad", mix_up_heads),
    ("heads", "wgrad", mix_up_heads),
    ("streamed", "forward", miss_one_streamed_row),
    ("streamed", "forward", pack_the_rows_that_are_sent),
    ("streamed", "dgrad", swap_columns),
    ("streamed", "wgrad", mix_up_heads),
    ("none", "forward", return_no_number),
]


@pytest.mark.parametrize(("partition", "which", "change"), FAULTS)
def test_a_wrong_partition_is_caught_and_named(
    partition: Partition, which: GemmPass, change: Callable[..., Matrix]
) -> None:
    wrong = broken(partition, which, change)
    report = sample_gemms(STEP, count=len(STEP), seed=1, max_flop_each=1e6, execute=wrong)
    assert [each.name for each in report.details if not each.passed] == [f"fc-{partition}-{which}"]
    assert not report.passed
    assert report.worst.name == f"fc-{partition}-{which}", "the worst is the one that is wrong"


def test_a_dropped_part_breaks_the_error_bound_and_not_only_the_exact_comparison() -> None:
    report = sample_gemms([gemm("row")], count=1, seed=0, execute=broken("row", "forward", drop_last_part))
    assert report.worst_relative_error > report.bound


def test_an_error_that_a_wide_bound_hides_is_seen_on_integers() -> None:
    """One of 200,000 terms added twice is far within the rounding of float32."""

    def one_term_twice(x: Matrix, w: Matrix, cut: Cut) -> Matrix:
        return execute_partitioned(x, w, cut) + x[:, :1] * w[0]

    sample = gemm("row", m=16, n=16, k=200_000)
    report = sample_gemms([sample], count=1, seed=0, max_flop_each=1e9, execute=one_term_twice)
    (result,) = report.details
    assert result.relative_error < result.bound
    assert not result.exact
    assert not report.passed


# ------------------------------------------------------------------------------------- coverage
def test_the_report_says_what_was_covered() -> None:
    step = [replace(sample, weight=2.0 + i) for i, sample in enumerate(FORWARD)]
    report = sample_gemms(step, count=3, seed=4)
    drawn = {result.name for result in report.details}
    assert len(drawn) == report.tasks_sampled == 3
    assert report.tasks_total == 2 + 3 + 4 + 5 + 6 + 7
    assert report.flop_share == pytest.approx(sum(s.weight for s in step if s.name in drawn) / 27)
    assert sum(covered.flop_share for covered in report.by_partition.values()) == pytest.approx(
        report.flop_share
    )
    assert sum(covered.sampled for covered in report.by_partition.values()) == 3


def test_the_same_seed_gives_the_same_report_and_another_one_another() -> None:
    first, again, other = (sample_gemms(STEP, count=2, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first.worst_relative_error != other.worst_relative_error


def test_classes_with_most_of_the_work_are_drawn_most_often() -> None:
    step = [gemm("none", weight=97.0), *(gemm(p, weight=1.0) for p in ("column", "row", "sequence"))]
    drawn = [sample_gemms(step, count=1, seed=seed, max_flop_each=1e4) for seed in range(40)]
    assert sum("none" in report.by_partition for report in drawn) >= 30


# ---------------------------------------------------------------------------------- the block
def test_a_block_keeps_the_full_depth_and_all_parts_within_its_cost() -> None:
    sample = GemmSample("fc2", 8192, 6144, 24576, "row", 8, 2.0 * 8192 * 6144 * 24576)
    m, n, k = block_of(sample, 1e8)
    assert k == 24576
    assert 0.9e8 < 2 * m * n * k <= 1e8


def test_a_block_cuts_the_depth_only_when_its_smallest_sides_are_too_dear() -> None:
    sample = GemmSample("logits", 8192, 51200, 50257, "column", 64, 1.0)
    assert block_of(sample, 5e7) == (16, 64, int(5e7 / (2 * 16 * 64)))


def test_the_depth_of_a_gradient_is_what_it_sums_over() -> None:
    sample = replace(gemm("column", m=4096, n=2048, k=1024), which="dgrad")
    assert (sample.split, block_of(sample, 1e7).k) == ("row", 2048)
    sample = replace(sample, which="wgrad")
    assert (sample.split, block_of(sample, 1e7).k) == ("column", 4096)


def test_a_batch_keeps_two_products_a_part_so_that_a_mix_up_shows() -> None:
    sample = gemm("heads", 256, 256, 64)
    left, right = operands(sample, block_of(sample, 1e6))
    assert left[0] == right[0] == 8
    assert 8 * 2 * left[1] * left[2] * right[2] <= 1e6


# ------------------------------------------------------------------------------------- the bound
def test_gamma_is_the_standard_bound_and_gives_up_where_it_says_nothing() -> None:
    assert gamma(4, 0.125) == 1.0
    assert gamma(8, 0.125) == float("inf")
    assert error_bound(1024, np.dtype(np.float32)) == pytest.approx(1024 * 2.0**-24, rel=1e-3)


@pytest.mark.parametrize(
    ("step", "count", "message"),
    [
        ([], 1, "nothing to draw: 1 of 0"),
        (STEP, 0, "nothing to draw: 0 of 18"),
        ([gemm("none", weight=0.0)], 1, "fc-none-forward: sizes, FLOPs and weight"),
        ([replace(gemm("row"), parts=5000)], 1, "has 1 to 1024 parts, not 5000"),
    ],
)
def test_a_step_that_cannot_be_sampled_is_refused(step: list[GemmSample], count: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sample_gemms(step, count=count, seed=0)


def test_a_precision_without_exact_integers_is_refused() -> None:
    with pytest.raises(InputError, match="float32 or float64, not in float16"):
        sample_gemms(STEP, count=1, seed=0, dtype=np.float16)


# ------------------------------------------------------------------------------------ zero weights
def test_rows_of_zeros_are_not_sent_and_of_the_others_only_what_is_not_zero() -> None:
    w = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    assert [(i, columns.tolist()) for i, columns in streamed_rows(w)] == [(0, [0, 2]), (2, [1])]
    x = np.array([[1.0, np.nan, 2.0]])
    assert execute_partitioned(x, w, Cut("streamed")).tolist() == [[1.0, 6.0, 2.0]], "row 1 never touched x"
