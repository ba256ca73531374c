"""What a communication is priced for is what it moves, element by element."""

from dataclasses import replace
from itertools import product

import pytest

from perfsim.catalog import default_catalog
from perfsim.proof.faults import mutations
from perfsim.proof.prove import Case, Subject
from perfsim.specs.layout import ParallelLayout, StreamingLayout
from perfsim.specs.precisions import Precision

CASES = {
    "zero 3": Case("zero3", ParallelLayout(tensor=2, data=2, zero_stage=3), 2),
    "zero 1": Case("3d", ParallelLayout(tensor=2, data=2, sequence_parallel=True, zero_stage=1), 2),
    "zero 1, tied over stages": Case("3d", ParallelLayout(tensor=2, pipeline=2, data=2, zero_stage=1), 2),
    "sequence parallel": Case("3d", ParallelLayout(tensor=2, pipeline=2, sequence_parallel=True), 2),
    "embedding and LM head on one rank": Case(
        "3d", ParallelLayout(pipeline=2, data=2, virtual_pipeline=2, schedule="zbv", zero_stage=2), 3, True
    ),
    "weight streaming, spilled": Case(
        "weight-streaming",
        StreamingLayout(data=2, micro_batch_size=2, recompute="full", recompute_layers=2, spill=True),
        2,
    ),
}


ON_GPUS = [name for name in CASES if CASES[name].strategy != "weight-streaming"]


@pytest.mark.parametrize(
    ("name", "model", "recipe"),
    [
        *product(CASES, ["gpt3_20b", "gptj_6b"], [{}]),
        ("zero 1", "deepseek_v3", {}),  # routers and projections down to latents are whole
        *product(ON_GPUS, ["gpt3_20b"], [{"precision": "fp32"}]),
        *product(ON_GPUS, ["gpt3_20b"], [{"precision": "fp32", "reduce_precision": "bf16"}]),
    ],
)
def test_messages_move_what_they_are_priced_for(name: str, model: str, recipe: dict[str, Precision]) -> None:
    catalog = default_catalog()
    plan = CASES[name].plan(catalog.model(model), catalog)
    job = replace(plan.job, recipe=plan.job.recipe.model_copy(update=recipe))
    assert Subject.of(replace(plan, job=job)).faults() == []


@pytest.mark.parametrize("name", CASES)
def test_half_of_the_bytes_is_found_with_both_numbers(name: str) -> None:
    """Every class of messages; tied tables, and all that a wafer streams, among them."""
    catalog = default_catalog()
    subject = Subject.of(CASES[name].plan(catalog.model("gpt3_20b"), catalog))
    made = list(mutations(subject, "bytes priced wrong"))
    assert made
    for mutation in made:
        assert any("is priced for" in str(fault) for fault in mutation.subject.faults()), mutation.description
