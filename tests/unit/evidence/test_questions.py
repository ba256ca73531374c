"""From a row of a published run to its question: model, recipe, framework, system and layout."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.evidence.cases import StepCase
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import Question
from perfsim.testing.toys import published_run

CATALOG = default_catalog()
ROW = published_run(
    id="run",
    system={"device": "h100-sxm5-80gb", "num_devices": 8, "devices_per_node": 8},
    parallel={"data": 8},
    training={"precision": "bf16", "attention": "flash"},
)
ON_A100 = {"system": {"device": "a100-sxm4-80gb"}}
ON_WAFERS = {
    "system": {"device": "cs-2", "num_devices": 2, "devices_per_node": None, "software_release": "r1.7"},
    "strategy": "weight-streaming",
    "parallel": {"data": 2},
}
SHARDED = {"strategy": "zero3", "parallel": {"data": 8, "zero_stage": 3}}
STANDARD = {"attention": "standard"}


def run(changes: dict[str, Any], **training: Any) -> StepCase:
    """The run with other values in its sections."""
    if training:
        changes = {**changes, "training": {**changes.get("training", {}), **training}}
    row = {
        key: {**ROW[key], **value} if isinstance(ROW.get(key), dict) else value
        for key, value in changes.items()
    }
    return StepCase.model_validate(ROW | row)


def question(changes: dict[str, Any], **training: Any) -> Question:
    return run(changes, **training).question(CATALOG)


FRAMEWORK = "recipe.runtime.stack.name"
OVERLAP = "recipe.runtime.overlap_grad_reduce"
OVERLAP_TENSOR = "recipe.runtime.overlap_tensor"
REDUCED = "recipe.reduce_precision"
STATES = "recipe.optimizer_precision"
GRAPH = "recipe.runtime.stack.cuda_graph"
KERNEL = "recipe.runtime.stack.attention"


@pytest.mark.parametrize(
    ("changes", "training", "path", "value"),
    [
        # On wafers; learned positions grow with the sequence.
        (ON_WAFERS, {}, "job.global_batch_size", 64),
        (ON_WAFERS, {}, "job.seq_length", 512),
        (ON_WAFERS, {}, "job.model.num_layers", 4),
        (ON_WAFERS, {}, "job.model.max_position_embeddings", 512),
        (ON_WAFERS, {"precision": "fp16"}, "job.recipe.precision", "fp16"),
        (ON_WAFERS, {"recompute": "full"}, "job.recipe.recompute", "full"),
        (ON_WAFERS, {}, "job.runtime.attention", "flash"),
        (ON_WAFERS, {}, "job.runtime.software_release", "r1.7"),
        # The layout; recompute of norms and activations is left out.
        ({"parallel": {"tensor": 2, "pipeline": 2, "data": 2}}, {}, "layout.tensor", 2),
        ({"parallel": {"tensor": 2, "pipeline": 2, "data": 2}}, {}, "layout.pipeline", 2),
        ({"parallel": {"pipeline": 2, "layers_per_stage": [1, 3]}}, {}, "layout.layers_per_stage", (1, 3)),
        ({"parallel": {"zero_stage": 1}}, {}, "layout.zero_stage", 1),
        ({}, {"micro_batch_size": 4}, "layout.micro_batch_size", 4),
        ({}, {"recompute": "selective"}, "layout.recompute", "selective"),
        (
            {},
            {"recompute": "selective", "recompute_modules": ["layernorm", "moe_act"]},
            "layout.recompute",
            "none",
        ),
        ({"parallel": {"expert_parallel": 4}}, {}, "layout.expert", 4),
        ({"parallel": {"expert_tensor_parallel": 2}}, {}, "layout.expert_tensor", 2),
        # The GPUs of a node share its network equally.
        (
            {"system": {"num_devices": 4, "devices_per_node": 4, "inter_node": "400 Gb/s"}},
            {},
            "system.node.inter_node_bytes_per_s",
            pytest.approx(50e9),
        ),
        # Reduction overlaps by the habit of the strategy unless told.
        ({}, {}, OVERLAP, False),
        ({}, {"overlap_grad_reduce": True}, OVERLAP, True),
        (SHARDED, {}, OVERLAP, True),
        (SHARDED, {"overlap_grad_reduce": False}, OVERLAP, False),
        # Tensor communication overlaps as the run says, or as its framework does.
        (ON_A100, {"tp_comm_overlap": True}, OVERLAP_TENSOR, True),
        ({}, {"overlap_grad_reduce": True, "tp_comm_overlap": False}, OVERLAP_TENSOR, False),
        ({}, {"overlap_grad_reduce": True}, OVERLAP_TENSOR, True),
        ({}, {"overlap_grad_reduce": False}, OVERLAP_TENSOR, False),
        (ON_A100, {**STANDARD, "overlap_grad_reduce": True}, OVERLAP_TENSOR, False),
        # FSDP that reduces in 16 bits trains in pure 16 bits; without options Megatron-LM sums in fp32.
        (SHARDED, {"reduce_precision": "bf16"}, REDUCED, "bf16"),
        (SHARDED, {"reduce_precision": "bf16"}, STATES, "bf16"),
        (SHARDED, {}, STATES, "fp32"),
        ({}, {"reduce_precision": "bf16"}, STATES, "fp32"),
        ({}, {}, REDUCED, "bf16"),
        ({}, {"reduce_precision": "fp32"}, REDUCED, "fp32"),
        ({}, {"overlap_grad_reduce": False}, REDUCED, None),
        # A run without a framework gets that of its fields.
        (ON_A100, STANDARD, FRAMEWORK, "megatron-2021"),
        (ON_A100, {}, FRAMEWORK, "megatron-2021"),
        ({}, {}, FRAMEWORK, "megatron-core-te"),
        (ON_A100, {"tp_comm_overlap": True}, FRAMEWORK, "megatron-core-te"),
        ({}, {"precision": "fp8"}, FRAMEWORK, "megatron-core-te"),
        (SHARDED, {}, FRAMEWORK, "fsdp-2023"),
        (SHARDED, {**STANDARD, "precision": "fp16"}, FRAMEWORK, "megatron-2021"),
        (SHARDED, {"compiled": False}, FRAMEWORK, "torchtitan"),
        (SHARDED, {"precision": "fp8"}, FRAMEWORK, "torchtitan"),
        (SHARDED, {"cuda_graph": False}, FRAMEWORK, "maxtext-xla"),
        ({"system": {"device": "mi300x-192gb"}}, {}, FRAMEWORK, "primus-te"),
        ({"framework": "torchtitan"}, {}, FRAMEWORK, "torchtitan"),
        # Only standard attention of a framework with dropout has it: fused attention of the time had none.
        (ON_A100, STANDARD, "recipe.dropout", True),
        (ON_A100, {}, "recipe.dropout", False),
        ({"framework": "megatron-core-te"}, STANDARD, "recipe.dropout", False),
        # The run's own settings change its framework, before the notes of an older file.
        ({}, {"cuda_graph": True}, GRAPH, True),
        (SHARDED, {"compiled": False}, "recipe.runtime.stack.fused", ()),
        ({}, {}, KERNEL, "asynchronous"),
        ({}, {"attention_kernel": "synchronous"}, KERNEL, "synchronous"),
        ({"notes": "GeGLU, NVTE_FUSED_ATTN=0."}, {}, KERNEL, "synchronous"),
        ({"notes": "NVTE_FUSED_ATTN=0."}, {"attention_kernel": "one_block"}, KERNEL, "one_block"),
        ({"notes": "container 26.08"}, {"precision": "mxfp8", "cuda_graph": False}, GRAPH, False),
        # Experts.
        ({}, {"moe_dispatcher": "hybridep"}, "recipe.runtime.dispatcher", "deepep"),
        ({}, {"moe_grouped_gemm": False}, "recipe.runtime.grouped_products", False),
        ({}, {"moe_force_balance": True}, "recipe.routing", "balanced"),
        ({}, {"moe_capacity_factor": 1.5}, "recipe.expert_capacity", 1.5),
    ],
)
def test_a_row_says_it_in_its_question(
    changes: dict[str, Any], training: dict[str, Any], path: str, value: object
) -> None:
    if "expert" in path:
        changes = {**changes, "model": {"experts": 8, "top_k": 2, "moe_ffn_hidden_size": 512}}
    assert attrgetter(path)(question(changes, **training)) == value


@pytest.mark.parametrize(
    ("container", "precision", "system", "graph"),
    [
        ("26.04.01", "mxfp8", {}, False),
        ("26.06", "mxfp8", {}, True),
        ("26.06", "mxfp8", {"devices_per_node": 4}, False),
        ("26.06", "mxfp8", {"devices_per_node": 4, "nvlink_domain": 72}, True),
        ("26.08", "bf16", {}, False),
    ],
)
def test_a_container_and_the_nvlink_domain_decide_whether_8_bit_steps_are_replayed(
    container: str, precision: str, system: dict[str, int], graph: bool
) -> None:
    b200 = {"device": "b200-sxm-180gb", "inter_node": "1 Tb/s", **system}
    notes = f"printed 8047 tokens/s/GPU; container {container}. Same layout"
    for given in ({"container": container}, {"notes": notes}):
        assert attrgetter(GRAPH)(question({**given, "system": b200}, precision=precision)) is graph


def test_who_measured_a_run_decides_nothing() -> None:
    mine = run({}, precision="fp8")
    who = {"id": "maxtext", "family": "torchtitan", "sweep": "megatron", "source": {"title": "fsdp-2023"}}
    other = mine.model_copy(update=who)
    assert mine.stack == other.stack
    recipes = [case.question(CATALOG).recipe.model_copy(update={"name": ""}) for case in (mine, other)]
    assert recipes[0] == recipes[1]


def test_a_run_that_happened_is_not_refused_for_memory_and_on_wafers_memory_splits_its_batch() -> None:
    huge = {"num_layers": 64, "hidden_size": 8192, "ffn_hidden_size": 32768, "num_attention_heads": 64}
    assert not all(use.fits for use in plan_of(question({"model": huge})).memory)
    assert plan_of(question(ON_WAFERS, global_batch_size=65536)).num_microbatches > 1


def test_what_has_no_model_is_refused_by_name_or_named_as_left_out() -> None:
    with pytest.raises(InputError, match=r"unknown device or system 'tpu-v4'(.|\n)*cs-2"):
        run({"system": {"device": "tpu-v4"}}).system.spec(CATALOG)
    with pytest.raises(InputError, match="case run: moe_a2a_overlap: all-to-alls of one micro-batch"):
        question({}, moe_a2a_overlap=True)
    assert run({}, recompute_modules=["layernorm", "moe_act"]).ignored == ["recompute_modules"]
