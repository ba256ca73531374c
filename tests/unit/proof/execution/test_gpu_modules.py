"""Modules of multi-token prediction next to embedding and LM head, against serial training."""

from collections.abc import Callable
from typing import Any

import pytest

from perfsim.proof.faults import try_all
from perfsim.proof.operations import Block
from perfsim.proof.prove import Request, Subject, plans_of, prove_all
from perfsim.specs.layout import ParallelLayout

EXPERTS = {"num_experts": 4, "top_k": 2, "ffn_hidden_size": 64, "shared_ffn_hidden_size": 32}
Make = Callable[..., Subject]
MODELS: dict[str, dict[str, Any]] = {
    "two, tied": {"mtp_num_layers": 2},
    "attention next to the MLP": {"mtp_num_layers": 1, "norms_per_layer": 1, "head_bias": True},
    "two with experts, untied": {"mtp_num_layers": 2, "experts": EXPERTS, "tied_embeddings": False},
}
LAYOUTS = {
    "none": ParallelLayout(),
    "recomputed": ParallelLayout(data=2, zero_stage=1, recompute="full"),
    "selective, split": ParallelLayout(data=2, zero_stage=2, recompute="selective", schedule="zb1p"),
    "the MLP alone": ParallelLayout(data=2, zero_stage=1, recompute="mlp", schedule="zb1p"),
    "norms alone, split": ParallelLayout(data=2, zero_stage=2, recompute="norms", schedule="zb1p"),
    "sharded": ParallelLayout(data=2, zero_stage=3),
    "norms in a ring": ParallelLayout(context=2, recompute="norms"),
    "a ring": ParallelLayout(context=2, recompute="full"),
    "stages in a V": ParallelLayout(pipeline=2, virtual_pipeline=2, schedule="zbv", data=2, zero_stage=1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_rank_with_modules_computes_as_serial_training(toy_subject: Make, model: str, layout: str) -> None:
    """The second stage in a V waits for the gathered LM head before the first of its modules."""
    overlaps = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    small = toy_subject(LAYOUTS[layout], overlaps, **MODELS[model])
    assert small.training.model.mtp_num_layers == MODELS[model]["mtp_num_layers"]
    assert small.faults() == []


@pytest.mark.parametrize("name", ["mtp_joint", "mtp_norm.scale", "head_words", "words"])
def test_a_gradient_left_out_is_found(toy_subject: Make, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    small = toy_subject(LAYOUTS["none"], **MODELS["two, tied"])
    assert small.faults() == []
    right = Block.take_weights
    monkeypatch.setattr(
        Block, "take_weights", lambda block: [pair for pair in right(block) if pair[0] != name]
    )
    assert any("weight gradient" in fault.detail for fault in small.faults())


@pytest.mark.parametrize("layout", ["recomputed", "the MLP alone", "norms alone, split"])
def test_faults_in_a_layout_with_modules_are_caught(toy_subject: Make, layout: str) -> None:
    right = toy_subject(LAYOUTS[layout], **MODELS["two with experts, untied"])
    assert not any(fault.missed for fault in try_all(right, every=61))


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("tp=2,sp=true", "multi-token prediction over tensor peers"),
        ("pp=2", "multi-token prediction over pipeline stages"),
        ("dp=2", None),
    ],
)
def test_a_layout_without_the_word_tables_on_one_rank_has_no_modules(layout: str, said: str | None) -> None:
    request = Request("deepseek_v3", layout=layout, batch=2, orders=0)
    (plan,) = plans_of(request)
    assert plan.notes == (() if said is None else (said,))
    assert plan.job.model.mtp_num_layers == (said is None)
    assert prove_all(request).passed
