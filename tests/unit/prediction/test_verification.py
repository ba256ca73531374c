"""GEMMs drawn from a simulated step and done for real."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import perfsim as ps
from perfsim.base.errors import VerificationError
from perfsim.catalog import default_catalog
from perfsim.numerics.partitions import Cut, Matrix, execute_partitioned
from perfsim.numerics.sampling import sample_gemms
from perfsim.prediction.run import Evaluation
from perfsim.prediction.verification import (
    SamplingSpec,
    SamplingSummary,
    gemm_samples,
    must_be_right,
    sample_step,
)
from perfsim.specs.model import TransformerConfig
from perfsim.work import GraphBuilder, Kind, TensorClass, Work
from perfsim.work.kernels import Kernel, LayerSlice, linear, linear_dgrad, linear_wgrad
from perfsim.work.layer import attention_core

GPT = TransformerConfig(
    name="toy",
    num_layers=2,
    hidden_size=256,
    ffn_hidden_size=1024,
    num_attention_heads=8,
    vocab_size=512,
    max_position_embeddings=128,
)


@pytest.fixture(scope="module")
def step() -> Evaluation:
    point = {
        "model": "gpt3_xl",
        "system": "dgx-a100-80gb",
        "devices": 4,
        "strategy": "3d",
        "layout": "tp=2,pp=2,dp=1,mbs=1",
        "batch": 4,
    }
    return ps.predict(**point).run


def gemm(name: str, **changes: Any) -> Kernel:
    return Kernel(name, "gemm", flop=2.0 * 8 * 16 * 32, m=8, n=16, k=32)._replace(**changes)


def written(*works: tuple[Work, int]) -> GraphBuilder:
    builder = GraphBuilder()
    for work, times in works:
        for _ in range(times):
            builder.task(work, "gpu0/compute")
    return builder


def compute(name: str, *kernels: Kernel) -> Work:
    return Work(name, Kind.COMP, name, "forward", writes=(TensorClass(name, 1.0),), kernels=kernels)


def test_a_class_counts_as_often_as_the_step_runs_it() -> None:
    shared = gemm("shared")
    batched = gemm("batched", batch=5, flop=5 * 2.0 * 8 * 16 * 32)
    glue = Kernel("add", "elementwise", bytes_accessed=1.0)
    graph = written((compute("a", shared, glue), 3), (compute("b", shared, batched), 2)).build()
    found = {sample.name: sample for sample in gemm_samples(graph)}
    assert set(found) == {"shared", "batched"}
    assert (found["shared"].weight, found["batched"].weight) == (5.0, 10.0)
    assert found["batched"].flop == 2.0 * 8 * 16 * 32, "of one product of the batch"


@pytest.mark.parametrize(
    ("partition", "n", "k"), [("none", 16, 32), ("column", 64, 32), ("row", 16, 128), ("streamed", 16, 32)]
)
def test_a_sample_is_the_layer_before_it_was_cut(partition: str, n: int, k: int) -> None:
    cut = gemm("cut", partition=partition, parts=4)
    (sample,) = gemm_samples(written((compute("a", cut), 1)).build())
    assert (sample.m, sample.n, sample.k, sample.parts) == (8, n, k, 4)


@pytest.mark.parametrize("strategy", [("column", "row", "column"), ("row", "column", "sequence")])
def test_gradients_of_a_cut_layer_are_samples_of_the_same_layer(strategy: tuple[str, str, str]) -> None:
    """Its forward GEMM, the input gradient over the transposed weight, the weight gradient."""
    forward = linear("fc", 64, 256, 512, strategy[0], 4)
    gradients = (linear_dgrad(forward), *linear_wgrad(forward, 4.0, bias=True))
    graph = written((compute("a", forward, *gradients), 1)).build()
    found = gemm_samples(graph)
    assert [(each.m, each.n, each.k, each.parts) for each in found] == [(64, 512, 256, 4)] * 3
    assert [each.which for each in found] == ["forward", "dgrad", "wgrad"]
    assert tuple(each.split for each in found) == strategy


@pytest.mark.parametrize("flash", [False, True])
def test_attention_is_sampled_head_by_head_in_all_six_products(flash: bool) -> None:
    part = LayerSlice(GPT, 128, 2, tensor=4, attention="flash" if flash else "standard")
    kernels = (*attention_core(part), *attention_core(part, backward=True))
    found = gemm_samples(written((compute("a", *kernels), 1)).build(), tensor=4)
    assert {(each.partition, each.parts, each.batch) for each in found} == {("heads", 4, 2 * 8)}
    shapes = {(each.name.split(".")[-2 if flash else 0], each.m, each.n, each.k) for each in found}
    assert {shape[1:] for shape in shapes} == {(128, 128, 32), (128, 32, 128)}
    assert len(found) == (7 if flash else 6), "flash forms the scores again"
    total = sum(kernel.flop for kernel in kernels if kernel.op != "elementwise")
    assert sum(each.total_flop for each in found) == pytest.approx(total)


def test_every_partition_of_the_catalogue_is_right_for_every_class_of_gemm() -> None:
    """All classes of a 3D step with a whole and a split backward, and of weight streaming."""
    short = default_catalog().recipe("llm_2021").model_copy(update={"seq_length": 64})
    questions = [
        {
            "model": "cerebras_gpt_111m",
            "system": "dgx-a100-80gb",
            "devices": 4,
            "strategy": "3d",
            "layout": "tp=2,pp=2,dp=1,mbs=1,sp=true",
            "batch": 4,
        },
        {
            "model": "cerebras_gpt_111m",
            "system": "dgx-a100-80gb",
            "devices": 4,
            "strategy": "3d",
            "layout": "tp=2,pp=2,dp=1,mbs=1,schedule=zb1p,recompute=full",
            "batch": 4,
        },
        {
            "model": "cerebras_gpt_111m",
            "system": "cs-2",
            "devices": 1,
            "strategy": "weight-streaming",
            "layout": "",
            "batch": 4,
        },
    ]
    for point in questions:
        summary = sample_step(ps.predict(**point, recipe=short).run, SamplingSpec(mode="full"))
        assert summary is not None
        assert (summary.passed, summary.failed) == (True, ())
        assert summary.flop_share == pytest.approx(1.0)


def test_a_partition_that_a_strategy_gets_wrong_is_named(step: Evaluation) -> None:
    """A strategy that forgot the all-reduce after its row-parallel layers."""

    def without_reduction(left: Matrix, right: Matrix, cut: Cut) -> Matrix:
        if cut != Cut("row", 2, "forward"):
            return execute_partitioned(left, right, cut)
        return left[:, : left.shape[1] // 2] @ right[: left.shape[1] // 2]

    report = sample_gemms(
        gemm_samples(step.graph, 2), count=99, seed=0, max_flop_each=1e6, execute=without_reduction
    )
    assert {each.name for each in report.details if not each.passed} == {"projection", "fc2"}


def test_a_failed_sample_ends_a_verb_with_its_name() -> None:
    wrong = SamplingSummary(1, 1, 1.0, 1.0, 1e-5, False, failed=("fc2 (forward): row in 8 parts",))
    with pytest.raises(VerificationError, match=r"differ.*: fc2 \(forward\): row in 8 parts"):
        must_be_right([wrong])
    must_be_right([replace(wrong, passed=True, failed=())])


def test_the_samples_carry_all_gemm_flops_of_the_step(step: Evaluation) -> None:
    total = 0.0
    for work in step.graph.work.tolist():
        total += sum(kernel.flop for kernel in step.graph.works[work].kernels if kernel.op == "gemm")
    assert sum(sample.total_flop for sample in gemm_samples(step.graph)) == pytest.approx(total, rel=1e-12)


def test_a_step_passes_and_says_what_was_covered(step: Evaluation) -> None:
    summary = sample_step(step, SamplingSpec(tasks=4))
    assert summary is not None
    assert summary.passed
    assert summary.tasks_sampled == 4 == sum(summary.by_partition.values())
    assert summary.tasks_total > 4
    assert 0 < summary.worst_relative_error <= summary.bound
    assert 0 < summary.flop_share <= 1
    assert {"column", "row"} <= set(summary.by_partition), "tensor parallelism cuts both ways"
