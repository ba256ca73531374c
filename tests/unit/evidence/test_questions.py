"""From a row of a published run to its question: model, recipe, framework, system and layout."""

from __future__ import annotations

from typing import Any

import pytest

from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.evidence.cases import StepCase
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import Question
from perfsim.specs.calibration import FrameworkCalibration
from perfsim.specs.hardware import GpuClusterSpec
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.precisions import Precision
from perfsim.testing.toys import published_run

CATALOG = default_catalog()
ROW = published_run(
    id="run",
    system={"device": "h100-sxm5-80gb", "num_devices": 8, "devices_per_node": 8},
    parallel={"data": 8},
    training={"precision": "bf16", "attention": "flash"},
)
ON_A100 = {"device": "a100-sxm4-80gb"}
ON_WAFERS = {
    "system": {"device": "cs-2", "num_devices": 2, "devices_per_node": None, "software_release": "r1.7"},
    "strategy": "weight-streaming",
    "parallel": {"data": 2},
}
SHARDED = {"strategy": "zero3", "parallel": {"data": 8, "zero_stage": 3}}
STANDARD = {"attention": "standard"}


def run(**changes: Any) -> StepCase:
    """The run with other values in its sections."""
    row = {
        key: {**ROW[key], **value} if isinstance(ROW.get(key), dict) else value
        for key, value in changes.items()
    }
    return StepCase.model_validate(ROW | row)


def asked(**changes: Any) -> Question:
    return run(**changes).question(CATALOG)


def framework_of(**changes: Any) -> FrameworkCalibration:
    framework = asked(**changes).recipe.runtime.stack
    assert framework is not None
    return framework


def test_a_case_becomes_the_job_that_was_run() -> None:
    training = {"precision": "fp16", "recompute": "full"}
    job = asked(**{**ON_WAFERS, "training": training}).job
    assert (job.global_batch_size, job.seq_length, job.model.num_layers) == (64, 512, 4)
    assert (job.recipe.precision, job.runtime.attention, job.recipe.recompute) == ("fp16", "flash", "full")
    assert job.runtime.software_release == "r1.7"
    assert job.model.max_position_embeddings == 512, "learned positions grow with the sequence"


@pytest.mark.parametrize(("changes", "overlap"), [({}, False), (SHARDED, True)])
def test_reduction_overlaps_by_the_habit_of_the_strategy_unless_told(
    changes: dict[str, Any], overlap: bool
) -> None:
    assert asked(**changes).recipe.runtime.overlap_grad_reduce == overlap
    told = asked(**changes, training={"overlap_grad_reduce": not overlap})
    assert told.recipe.runtime.overlap_grad_reduce != overlap


def test_a_case_layout_has_its_degrees_and_modes() -> None:
    parallel = {"tensor": 2, "pipeline": 2, "data": 2, "layers_per_stage": [1, 3], "zero_stage": 1}
    layout = asked(parallel=parallel, training={"micro_batch_size": 4, "recompute": "selective"}).layout
    assert isinstance(layout, ParallelLayout)
    assert (layout.tensor, layout.pipeline, layout.data) == (2, 2, 2)
    assert (layout.layers_per_stage, layout.zero_stage) == ((1, 3), 1)
    assert (layout.micro_batch_size, layout.recompute) == (4, "selective")


def test_the_network_of_a_case_is_shared_equally_by_the_gpus_of_its_node() -> None:
    system = run(system={"devices_per_node": 4, "inter_node": "400 Gb/s"}).system.spec(CATALOG)
    assert isinstance(system, GpuClusterSpec)
    assert system.node.devices == 4
    assert system.node.inter_node_bytes_per_s == pytest.approx(50e9)


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"no system with device 'tpu-v4'.*cs-2"):
        run(system={"device": "tpu-v4"}).system.spec(CATALOG)


def test_a_run_that_happened_is_not_refused_for_memory_and_on_wafers_memory_splits_its_batch() -> None:
    huge = {"num_layers": 64, "hidden_size": 8192, "ffn_hidden_size": 32768, "num_attention_heads": 64}
    assert not all(use.fits for use in plan_of(asked(model=huge)).memory)
    assert plan_of(asked(**ON_WAFERS, training={"global_batch_size": 65536})).num_microbatches > 1


@pytest.mark.parametrize(
    ("changes", "reduced", "states"),
    [(SHARDED, "bf16", "bf16"), (SHARDED, None, "fp32"), ({}, "bf16", "fp32")],
)
def test_fsdp_that_reduces_in_16_bits_trains_in_pure_16_bits(
    changes: dict[str, Any], reduced: Precision | None, states: str
) -> None:
    old = {**ON_A100, "num_devices": 8}
    recipe = asked(**changes, system=old, training={**STANDARD, "reduce_precision": reduced}).recipe
    assert (recipe.reduce_precision, recipe.optimizer_precision) == (reduced, states)


def test_a_run_that_overlaps_all_to_alls_of_two_micro_batches_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="case run: moe_a2a_overlap: all-to-alls of one micro-batch"):
        asked(training={"moe_a2a_overlap": True})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"system": ON_A100, "training": STANDARD}, "megatron-2021"),
        ({"system": ON_A100}, "megatron-2021"),
        ({}, "megatron-core-te"),
        ({"system": ON_A100, "training": {"tp_comm_overlap": True}}, "megatron-core-te"),
        ({"training": {"precision": "fp8"}}, "megatron-core-te"),
        (SHARDED, "fsdp-2023"),
        ({**SHARDED, "training": {**STANDARD, "precision": "fp16"}}, "megatron-2021"),
        ({**SHARDED, "training": {"compiled": False}}, "torchtitan"),
        ({**SHARDED, "training": {"precision": "fp8"}}, "torchtitan"),
        ({**SHARDED, "training": {"cuda_graph": False}}, "maxtext-xla"),
        ({"system": {"device": "mi300x-192gb"}}, "primus-te"),
        ({"framework": "torchtitan"}, "torchtitan"),
    ],
)
def test_a_run_without_a_framework_gets_that_of_its_fields(changes: dict[str, Any], name: str) -> None:
    assert framework_of(**changes).name == name


def test_who_measured_a_run_decides_nothing() -> None:
    mine = run(training={"precision": "fp8"})
    who = {"id": "maxtext", "family": "torchtitan", "sweep": "megatron", "source": {"title": "fsdp-2023"}}
    other = mine.model_copy(update=who)
    assert mine.stack == other.stack
    recipes = [case.question(CATALOG).recipe.model_copy(update={"name": ""}) for case in (mine, other)]
    assert recipes[0] == recipes[1]


@pytest.mark.parametrize(
    ("changes", "dropout"),
    [
        ({"system": ON_A100, "training": STANDARD}, True),
        ({"system": ON_A100}, False),  # fused attention of the time had none
        ({"framework": "megatron-core-te", "training": STANDARD}, False),
    ],
)
def test_only_standard_attention_of_a_framework_with_dropout_has_it(
    changes: dict[str, Any], dropout: bool
) -> None:
    assert asked(**changes).recipe.dropout is dropout


def test_the_runs_own_settings_change_its_framework() -> None:
    assert framework_of(training={"cuda_graph": True}).cuda_graph
    assert not framework_of(**SHARDED, training={"compiled": False}).fused
    reduced = {
        given: asked(training=given_training).recipe.reduce_precision
        for given, given_training in {
            "as Transformer Engine's recipes": {},
            "as given": {"reduce_precision": "fp32"},
            "Megatron-LM without options sums gradients in fp32": {"overlap_grad_reduce": False},
        }.items()
    }
    assert list(reduced.values()) == ["bf16", "fp32", None]


@pytest.mark.parametrize(
    ("system", "training", "overlaps"),
    [
        (ON_A100, {"tp_comm_overlap": True}, True),
        ({}, {"overlap_grad_reduce": True, "tp_comm_overlap": False}, False),
        ({}, {"overlap_grad_reduce": True}, True),
        ({}, {"overlap_grad_reduce": False}, False),
        (ON_A100, {**STANDARD, "overlap_grad_reduce": True}, False),
    ],
)
def test_tensor_communication_overlaps_as_the_run_says_or_as_its_framework_does(
    system: dict[str, str], training: dict[str, Any], overlaps: bool
) -> None:
    question = asked(system=system, training=training, parallel={"tensor": 8, "data": 1})
    assert question.recipe.runtime.overlap_tensor == overlaps


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
        assert framework_of(**given, system=b200, training={"precision": precision}).cuda_graph is graph


def test_a_run_without_fused_attention_has_that_of_the_a100_and_declared_settings_decide() -> None:
    assert framework_of().attention == "asynchronous"
    assert framework_of(training={"attention_kernel": "synchronous"}).attention == "synchronous"
    assert framework_of(notes="GeGLU, NVTE_FUSED_ATTN=0.").attention == "synchronous", "an older file"
    training = {"attention_kernel": "one_block", "cuda_graph": False}
    framework = framework_of(notes="container 26.08; NVTE_FUSED_ATTN=0.", training=training)
    assert (framework.attention, framework.cuda_graph) == ("one_block", False)


def test_settings_of_experts_reach_recipe_and_layout() -> None:
    said = {"moe_dispatcher": "hybridep", "moe_force_balance": True, "moe_capacity_factor": 1.5}
    question = asked(
        model={"experts": 8, "top_k": 2, "moe_ffn_hidden_size": 512},
        parallel={"expert_parallel": 4, "expert_tensor_parallel": 2},
        training={**said, "moe_grouped_gemm": False},
    )
    runtime = question.recipe.runtime
    assert (runtime.dispatcher, runtime.grouped_products) == ("deepep", False)
    assert (question.recipe.routing, question.recipe.expert_capacity) == ("balanced", 1.5)
    assert isinstance(question.layout, ParallelLayout)
    assert (question.layout.expert, question.layout.expert_tensor) == (4, 2)


def test_recompute_of_norms_and_activations_is_left_out_and_named() -> None:
    case = run(training={"recompute": "selective", "recompute_modules": ["layernorm", "moe_act"]})
    assert case.ignored == ["recompute_modules"]
    layout = case.question(CATALOG).layout
    assert isinstance(layout, ParallelLayout)
    assert layout.recompute == "none"
