"""GEMMs drawn from a simulated step and done for real."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfsim.graph import GraphBuilder, Kind, TensorClass, Work
from perfsim.study.evaluate import Evaluation
from perfsim.study.point import Point, answer_point
from perfsim.study.sampling import gemm_samples, sample_step
from perfsim.transformer import Kernel


@pytest.fixture(scope="module")
def step() -> Evaluation:
    point = Point("gpt3_xl", "dgx-a100-80gb", 4, "3d", "tp=2,pp=2,dp=1,mbs=1", 4)
    return answer_point(point)[1]


def gemm(name: str, **changes: object) -> Kernel:
    return replace(Kernel(name, "gemm", flop=2.0 * 8 * 16 * 32, m=8, n=16, k=32), **changes)


def written(*works: tuple[Work, int]) -> GraphBuilder:
    builder = GraphBuilder()
    for work, times in works:
        for _ in range(times):
            builder.task(work, "gpu0/compute")
    return builder


def compute(name: str, *kernels: Kernel) -> Work:
    return Work(name, Kind.COMP, name, "forward", writes=(TensorClass(name, 1.0),), kernels=kernels)


def test_a_class_counts_as_often_as_the_step_runs_it() -> None:
    shared, batched = gemm("shared"), gemm("batched", batch=5, flop=5 * 2.0 * 8 * 16 * 32)
    glue = Kernel("add", "elementwise", bytes_accessed=1.0)
    graph = written((compute("a", shared, glue), 3), (compute("b", shared, batched), 2)).build()
    found = {sample.name: sample for sample in gemm_samples(graph)}
    assert set(found) == {"shared", "batched"}
    assert (found["shared"].weight, found["batched"].weight) == (5.0, 10.0)
    assert found["batched"].flop == 2.0 * 8 * 16 * 32, "of one product of the batch"


@pytest.mark.parametrize(
    ("partition", "n", "k"), [("none", 16, 32), ("column", 64, 32), ("row", 16, 128), ("streamed", 16, 32)]
)
def test_a_sample_is_the_product_before_it_was_cut(partition: str, n: int, k: int) -> None:
    cut = gemm("cut", partition=partition, parts=4)
    (sample,) = gemm_samples(written((compute("a", cut), 1)).build())
    assert (sample.m, sample.n, sample.k, sample.parts) == (8, n, k, 4)


def test_the_samples_carry_all_gemm_flops_of_the_step(step: Evaluation) -> None:
    total = 0.0
    for work in step.graph.work.tolist():
        total += sum(kernel.flop for kernel in step.graph.works[work].kernels if kernel.op == "gemm")
    assert sum(sample.total_flop for sample in gemm_samples(step.graph)) == pytest.approx(total, rel=1e-12)


def test_a_step_passes_and_says_what_was_covered(step: Evaluation) -> None:
    summary = sample_step(step, tasks=4, seed=0)
    assert summary is not None
    assert summary.passed
    assert summary.tasks_sampled == 4 == sum(summary.by_partition.values())
    assert summary.tasks_total > 4
    assert 0 < summary.worst_relative_error <= summary.bound
    assert 0 < summary.flop_share <= 1
    assert {"column", "row"} <= set(summary.by_partition), "tensor parallelism cuts both ways"


def test_the_same_seed_draws_the_same_tasks(step: Evaluation) -> None:
    assert sample_step(step, 2, seed=3) == sample_step(step, 2, seed=3)
    assert sample_step(step, 2, seed=3) != sample_step(step, 2, seed=4)


def test_nothing_is_sampled_where_nothing_is_wanted(step: Evaluation) -> None:
    assert sample_step(step, tasks=0, seed=0) is None
