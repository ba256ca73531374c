"""The recipe of a published run."""

from __future__ import annotations

import pytest

from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.evidence.cases import StepCase
from perfsim.evidence.plans import case_question
from perfsim.specs.precisions import Precision


def case(strategy: str, reduced: Precision | None) -> StepCase:
    return StepCase.model_validate(
        {
            "id": "a",
            "family": "f",
            "evidence": "A",
            "system": {"device": "a100-sxm4-80gb", "num_devices": 8, "devices_per_node": 8},
            "model": {
                "num_layers": 2,
                "hidden_size": 256,
                "ffn_hidden_size": 1024,
                "num_attention_heads": 4,
                "vocab_size": 1000,
                "seq_length": 128,
            },
            "strategy": strategy,
            "parallel": {"data": 8},
            "training": {"global_batch_size": 8, "precision": "bf16", "reduce_precision": reduced},
            "measured": {"step_time_s": 1.0},
        }
    )


@pytest.mark.parametrize(
    ("strategy", "reduced", "states"),
    [("zero3", "bf16", "bf16"), ("zero3", None, "fp32"), ("3d", "bf16", "fp32"), ("3d", None, "fp32")],
)
def test_fsdp_that_reduces_in_16_bits_trains_in_pure_16_bits(
    strategy: str, reduced: Precision | None, states: str
) -> None:
    recipe = case_question(case(strategy, reduced), default_catalog()).recipe
    assert (recipe.reduce_precision, recipe.optimizer_precision) == (reduced, states)


def test_a_run_that_overlaps_all_to_alls_of_two_micro_batches_is_refused_by_name() -> None:
    plain = case("3d", None)
    training = plain.training.model_copy(update={"moe_a2a_overlap": True})
    with pytest.raises(InputError, match="case a: moe_a2a_overlap: all-to-alls of one micro-batch"):
        case_question(plain.model_copy(update={"training": training}), default_catalog())
