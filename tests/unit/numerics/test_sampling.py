"""Correctness sampling: what it covers, and that it catches partitions that are wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfsim.errors import InputError
from perfsim.numerics.kernels import Partition
from perfsim.numerics.sampling import (
    Execute,
    GemmSample,
    Matrix,
    block_of,
    error_bound,
    execute_partitioned,
    gamma,
    sample_gemms,
)

PARTITIONS: tuple[Partition, ...] = ("none", "column", "row", "sequence", "streamed")


def gemm(partition: Partition, m: int = 512, n: int = 768, k: int = 1024, weight: float = 1.0) -> GemmSample:
    parts = 1 if partition == "none" else 4
    return GemmSample(f"fc-{partition}", m, n, k, partition, parts, 2.0 * m * n * k, weight)


STEP = [gemm(partition) for partition in PARTITIONS]


def sabotaged(wrong: Execute) -> bool:
    """Whether a step whose GEMMs are executed by `wrong` still passes."""
    big = [gemm("row", k=50_000), gemm("column", k=50_000)]
    return sample_gemms(STEP + big, count=7, seed=1, max_flop_each=5e7, execute=wrong).passed


# ------------------------------------------------------------------------------------ partitions
def test_a_row_split_adds_the_partial_sums_of_its_parts() -> None:
    x, w = np.array([[1.0, 2.0]]), np.array([[3.0], [5.0]])
    y, reference = execute_partitioned(x, w, "row", 2)
    assert y.tolist() == reference.tolist() == [[13.0]]


@pytest.mark.parametrize(("partition", "most"), [("none", 1), ("column", 3), ("row", 4), ("sequence", 2)])
def test_more_parts_than_there_is_to_split_are_refused(partition: Partition, most: int) -> None:
    x, w = np.ones((2, 4)), np.ones((4, 3))
    execute_partitioned(x, w, partition, most)
    with pytest.raises(InputError, match=f"has 1 to {most} parts, not {most + 1}"):
        execute_partitioned(x, w, partition, most + 1)


def test_an_unknown_partition_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown partition 'diagonal'; known are none, column"):
        execute_partitioned(np.ones((1, 1)), np.ones((1, 1)), "diagonal", 1)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------- what is found
def test_right_partitions_pass_far_inside_the_bound() -> None:
    report = sample_gemms(STEP, count=5, seed=0)
    assert report.passed
    assert 0 < report.worst_relative_error < 0.1 * report.bound
    assert all(result.exact for result in report.details)


def drop_last_part(x: Matrix, w: Matrix, partition: Partition, parts: int) -> tuple[Matrix, Matrix]:
    y, reference = execute_partitioned(x, w, partition, parts)
    if partition == "row":
        last = np.array_split(np.arange(x.shape[1]), parts)[-1]
        y = y - x[:, last] @ w[last]
    return y, reference


def add_first_part_twice(x: Matrix, w: Matrix, partition: Partition, parts: int) -> tuple[Matrix, Matrix]:
    y, reference = execute_partitioned(x, w, partition, parts)
    if partition == "row":
        first = np.array_split(np.arange(x.shape[1]), parts)[0]
        y = y + x[:, first] @ w[first]
    return y, reference


def swap_columns(x: Matrix, w: Matrix, partition: Partition, parts: int) -> tuple[Matrix, Matrix]:
    y, reference = execute_partitioned(x, w, partition, parts)
    return (np.roll(y, 1, axis=1) if partition == "column" else y), reference


def lose_a_column(x: Matrix, w: Matrix, partition: Partition, parts: int) -> tuple[Matrix, Matrix]:
    y, reference = execute_partitioned(x, w, partition, parts)
    return (y[:, :-1] if partition == "column" else y), reference


def miss_one_streamed_row(x: Matrix, w: Matrix, partition: Partition, parts: int) -> tuple[Matrix, Matrix]:
    y, reference = execute_partitioned(x, w, partition, parts)
    return (y - x[:, :1] * w[0] if partition == "streamed" else y), reference


def return_no_number(x: Matrix, w: Matrix, partition: Partition, parts: int) -> tuple[Matrix, Matrix]:
    y, reference = execute_partitioned(x, w, partition, parts)
    return np.where(np.arange(y.size).reshape(y.shape) == 0, np.nan, y), reference


@pytest.mark.parametrize(
    "wrong",
    [
        drop_last_part,
        add_first_part_twice,
        swap_columns,
        lose_a_column,
        miss_one_streamed_row,
        return_no_number,
    ],
)
def test_a_wrong_partition_is_caught(wrong: Execute) -> None:
    assert sabotaged(execute_partitioned)
    assert not sabotaged(wrong)


def test_a_dropped_part_breaks_the_error_bound_and_not_only_the_exact_comparison() -> None:
    report = sample_gemms([gemm("row")], count=1, seed=0, execute=drop_last_part)
    assert report.worst_relative_error > report.bound


def test_an_error_that_a_wide_bound_hides_is_seen_on_integers() -> None:
    """One of 200,000 terms added twice is far within the rounding of float32."""

    def one_term_twice(x: Matrix, w: Matrix, partition: Partition, parts: int) -> tuple[Matrix, Matrix]:
        y, reference = execute_partitioned(x, w, partition, parts)
        return y + x[:, :1] * w[0], reference

    sample = gemm("row", m=16, n=16, k=200_000)
    report = sample_gemms([sample], count=1, seed=0, max_flop_each=1e9, execute=one_term_twice)
    (result,) = report.details
    assert result.relative_error < result.bound
    assert not result.exact
    assert not report.passed


# ------------------------------------------------------------------------------------- coverage
def test_the_report_says_what_was_covered() -> None:
    step = [replace(sample, weight=2.0 + i) for i, sample in enumerate(STEP)]
    report = sample_gemms(step, count=3, seed=4)
    drawn = {result.name for result in report.details}
    assert len(drawn) == report.tasks_sampled == 3
    assert report.tasks_total == 2 + 3 + 4 + 5 + 6
    assert report.flop_share == pytest.approx(sum(s.weight for s in step if s.name in drawn) / 20)
    assert sum(covered.flop_share for covered in report.by_partition.values()) == pytest.approx(
        report.flop_share
    )
    assert sum(covered.sampled for covered in report.by_partition.values()) == 3


def test_all_classes_are_drawn_when_more_are_asked_for_than_there_are() -> None:
    report = sample_gemms(STEP, count=100, seed=0)
    assert report.tasks_sampled == len(STEP)
    assert report.flop_share == pytest.approx(1.0)


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


def test_a_small_gemm_is_executed_whole() -> None:
    assert block_of(gemm("none", 8, 9, 10), 1e8) == (8, 9, 10)


# ------------------------------------------------------------------------------------- the bound
def test_gamma_is_the_standard_bound_and_gives_up_where_it_says_nothing() -> None:
    assert gamma(4, 0.125) == 1.0
    assert gamma(8, 0.125) == float("inf")
    assert error_bound(1024, np.dtype(np.float32)) == pytest.approx(1024 * 2.0**-24, rel=1e-3)


@pytest.mark.parametrize(
    ("step", "count", "message"),
    [
        ([], 1, "nothing to draw: 1 of 0"),
        (STEP, 0, "nothing to draw: 0 of 5"),
        ([gemm("none", weight=0.0)], 1, "fc-none: sizes, FLOPs and weight"),
        ([replace(gemm("row"), parts=5000)], 1, "has 1 to 1024 parts, not 5000"),
    ],
)
def test_a_step_that_cannot_be_sampled_is_refused(step: list[GemmSample], count: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sample_gemms(step, count=count, seed=0)


def test_a_precision_without_exact_integers_is_refused() -> None:
    with pytest.raises(InputError, match="float32 or float64, not in float16"):
        sample_gemms(STEP, count=1, seed=0, dtype=np.float16)
