"""From a row of a published run to its question: model, recipe, framework, system and layout."""

from __future__ import annotations

from typing import Any

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
