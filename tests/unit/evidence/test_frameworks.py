"""Frameworks of published runs: named, or chosen from what the run says of its stack."""

from __future__ import annotations

from typing import Any

import pytest

from perfsim.catalog import default_catalog
from perfsim.evidence.cases import StepCase
from perfsim.evidence.plans import case_question, suggested
from perfsim.specs.calibration import FrameworkCalibration

CATALOG = default_catalog()
MODEL = {
    "num_layers": 8,
    "hidden_size": 4096,
    "ffn_hidden_size": 16384,
    "num_attention_heads": 32,
    "vocab_size": 51200,
    "seq_length": 2048,
}


def case(strategy: str = "3d", device: str = "h100-sxm5-80gb", **changes: Any) -> StepCase:
    training = {"global_batch_size": 8, "precision": "bf16", "attention": "flash", **changes}
    fields = {
        key: training.pop(key)
        for key in ("framework", "id", "family", "sweep", "source", "parallel")
        if key in training
    }
    return StepCase.model_validate(
        {
            "id": "run",
            "family": "some",
            "evidence": "A",
            "system": {"device": device, "num_devices": 8, "devices_per_node": 8},
            "model": MODEL,
            "strategy": strategy,
            "parallel": {"tensor": 8} if strategy == "3d" else {"data": 8, "zero_stage": 3},
            "training": training,
            "measured": {"step_time_s": 1.0},
            **fields,
        }
    )


def framework_of(run: StepCase) -> FrameworkCalibration:
    framework = case_question(run, CATALOG).recipe.runtime.stack
    assert framework is not None
    return framework


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (case(attention="standard", device="a100-sxm4-80gb"), "megatron-2021"),
        (case(device="a100-sxm4-80gb"), "megatron-2021"),
        (case(), "megatron-core-te"),
        (case(device="a100-sxm4-80gb", tp_comm_overlap=True), "megatron-core-te"),
        (case(precision="fp8"), "megatron-core-te"),
        (case("zero3"), "fsdp-2023"),
        (case("zero3", attention="standard", precision="fp16"), "megatron-2021"),
        (case("zero3", compiled=False), "torchtitan"),
        (case("zero3", precision="fp8"), "torchtitan"),
        (case("zero3", cuda_graph=False), "maxtext-xla"),
        (case(device="mi300x-192gb"), "primus-te"),
    ],
)
def test_a_run_without_a_framework_gets_that_of_its_fields(run: StepCase, name: str) -> None:
    assert suggested(run)[0] == name
    assert framework_of(run).name == name


def test_who_measured_a_run_decides_nothing() -> None:
    plain = case(precision="fp8")
    other = case(
        precision="fp8", id="maxtext", family="torchtitan", sweep="megatron", source={"title": "fsdp-2023"}
    )
    assert suggested(plain) == suggested(other)
    jobs = [case_question(run, CATALOG).recipe.model_copy(update={"name": ""}) for run in (plain, other)]
    assert jobs[0] == jobs[1]


def test_a_named_framework_comes_before_the_rule() -> None:
    assert framework_of(case(framework="torchtitan")).name == "torchtitan"


def test_the_runs_own_settings_change_its_framework() -> None:
    assert framework_of(case(cuda_graph=True)).cuda_graph
    assert not framework_of(case("zero3", compiled=False)).fused
    assert case_question(case(), CATALOG).recipe.reduce_precision == "bf16", "as Transformer Engine's recipes"
    assert case_question(case(reduce_precision="fp32"), CATALOG).recipe.reduce_precision == "fp32"
    plain = case_question(case(overlap_grad_reduce=False), CATALOG).recipe.reduce_precision
    assert plain is None, "Megatron-LM without options sums gradients in fp32"


def test_tensor_communication_overlaps_as_the_run_says_or_as_its_framework_does() -> None:
    overlapped = {
        name: case_question(run, CATALOG).recipe.runtime.overlap_tensor
        for name, run in {
            "said": case("3d", "a100-sxm4-80gb", tp_comm_overlap=True),
            "denied": case(overlap_grad_reduce=True, tp_comm_overlap=False),
            "usual": case(overlap_grad_reduce=True),
            "nothing overlaps": case(overlap_grad_reduce=False),
            "2021": case(attention="standard", device="a100-sxm4-80gb", overlap_grad_reduce=True),
        }.items()
    }
    assert overlapped == {
        "said": True,
        "denied": False,
        "usual": True,
        "nothing overlaps": False,
        "2021": False,
    }
