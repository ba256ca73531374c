"""From a row of a published run to its question: model, recipe, framework, system and layout."""

from __future__ import annotations

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
ON_WAFERS = {
    "system": {"device": "cs-2", "num_devices": 2, "devices_per_node": None, "software_release": "r1.7"},
    "strategy": "weight-streaming",
    "parallel": {"data": 2},
}


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


def test_zero_2_runs_under_an_fsdp_stack_as_zero_3_does_and_zero_1_under_megatron() -> None:
    h100 = {"device": "h100-sxm5-80gb", "num_devices": 8}
    for stage, framework in ((1, "megatron-core-te"), (2, "fsdp-2023")):
        parallel = {"data": 8, "zero_stage": stage}
        case = run({"parallel": parallel, "system": h100}, attention="flash", precision="bf16")
        assert case.stack.framework == framework


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
