"""What a run with experts says of its stack: graphs by container, attention by a setting, dispatcher."""

from __future__ import annotations

from typing import Any

import pytest

from perfsim.catalog import default_catalog
from perfsim.evidence.cases import StepCase
from perfsim.evidence.plans import case_question, ignored

CASE: dict[str, Any] = {
    "id": "sparse",
    "family": "toy",
    "evidence": "A",
    "system": {"device": "h100-sxm5-80gb", "num_devices": 8, "devices_per_node": 8},
    "model": {
        "num_layers": 4,
        "hidden_size": 1024,
        "ffn_hidden_size": 4096,
        "num_attention_heads": 8,
        "vocab_size": 32000,
        "seq_length": 1024,
        "experts": 8,
        "top_k": 2,
        "moe_ffn_hidden_size": 512,
    },
    "strategy": "3d",
    "framework": "megatron-core-te",
    "parallel": {"data": 8, "expert_parallel": 4, "expert_tensor_parallel": 2},
    "training": {"global_batch_size": 8, "precision": "bf16", "attention": "flash"},
    "measured": {"step_time_s": 1.0},
}


def case(notes: str = "", **training: Any) -> StepCase:
    return StepCase.model_validate(CASE | {"notes": notes, "training": CASE["training"] | training})


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
    devices = {"device": "b200-sxm-180gb", "num_devices": 8, "devices_per_node": 8, "inter_node": "1 Tb/s"}
    changes = {"system": devices | system, "training": CASE["training"] | {"precision": precision}}
    of_older_file = {"notes": f"printed 8047 tokens/s/GPU; container {container}. Same layout"}
    for given in ({"container": container}, of_older_file):
        question = case_question(StepCase.model_validate(CASE | changes | given), default_catalog())
        assert question.recipe.runtime.stack is not None
        assert question.recipe.runtime.stack.cuda_graph is graph


def test_a_run_without_fused_attention_has_that_of_the_a100() -> None:
    plain, printed = (
        case_question(case(note), default_catalog()) for note in ("", "GeGLU, NVTE_FUSED_ATTN=0.")
    )
    assert plain.recipe.runtime.stack is not None
    assert printed.recipe.runtime.stack is not None
    assert plain.recipe.runtime.stack.attention == "asynchronous"
    assert printed.recipe.runtime.stack.attention == "synchronous"


def test_a_declared_setting_decides_whatever_the_notes_say() -> None:
    run = case("container 26.08; NVTE_FUSED_ATTN=0.", attention_kernel="one_block", cuda_graph=False)
    framework = case_question(run, default_catalog()).recipe.runtime.stack
    assert framework is not None
    assert (framework.attention, framework.cuda_graph) == ("one_block", False)


def test_settings_of_experts_reach_recipe_and_layout() -> None:
    said = {"moe_dispatcher": "hybridep", "moe_force_balance": True, "moe_capacity_factor": 1.5}
    run = case(**said, moe_grouped_gemm=False)
    recipe = case_question(run, default_catalog()).recipe
    assert (recipe.runtime.dispatcher, recipe.routing, recipe.expert_capacity) == ("deepep", "balanced", 1.5)
    assert not recipe.runtime.grouped_products
    layout = case_question(run, default_catalog()).layout
    assert (layout.expert, layout.expert_tensor) == (4, 2)  # type: ignore[union-attr]  # on GPUs


def test_recompute_of_norms_and_activations_is_left_out_and_named() -> None:
    run = case(recompute="selective", recompute_modules=["layernorm", "moe_act"])
    assert ignored(run) == ["recompute_modules"]
    layout = case_question(run, default_catalog()).layout
    assert layout.recompute == "none"  # type: ignore[union-attr]  # on GPUs
