"""Modules of multi-token prediction beside embedding and LM head, against serial training."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from perfsim.proof.faults import mutations
from perfsim.proof.operations import Block
from perfsim.proof.prove import Request, Subject, plans_of, prove_all
from perfsim.proof.provers import small_plan, training_of
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import strategy

EXPERTS = {"num_experts": 4, "top_k": 2, "ffn_hidden_size": 64, "shared_ffn_hidden_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "two, tied": {"mtp_num_layers": 2},
    "attention beside the MLP": {"mtp_num_layers": 1, "norms_per_layer": 1, "head_bias": True},
    "two with experts, untied": {"mtp_num_layers": 2, "experts": EXPERTS, "tied_embeddings": False},
}
LAYOUTS = {
    "none": ParallelLayout(),
    "recomputed": ParallelLayout(data=2, zero_stage=1, recompute="full"),
    "selective, split": ParallelLayout(data=2, zero_stage=2, recompute="selective", schedule="zb1p"),
    "sharded": ParallelLayout(data=2, zero_stage=3),
    "a ring": ParallelLayout(context=2, recompute="full"),
    "stages in a V": ParallelLayout(pipeline=2, virtual_pipeline=2, schedule="zbv", data=2, zero_stage=1),
}


def subject(toys: ModuleType, model: str, layout: str, **recipe: Any) -> Subject:
    of_devices = LAYOUTS[layout]
    job = toys.job(8, recipe, **MODELS[model])
    topology = toys.topology(of_devices.num_devices)
    plan = small_plan(strategy("3d"), job, topology, of_devices, 2)
    assert plan.job.model.mtp_num_layers == MODELS[model]["mtp_num_layers"]
    return Subject(toys.graph_of(plan), plan, training_of(plan, 0))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_rank_with_modules_computes_what_serial_training_does(
    toys: ModuleType, model: str, layout: str
) -> None:
    """The second stage in a V waits for the gathered LM head before the first of its modules."""
    small = subject(toys, model, layout, overlap_grad_reduce=True, overlap_param_gather=True)
    assert small.faults() == []


@pytest.mark.parametrize("name", ["mtp_joint", "mtp_norm.scale", "head_words", "words"])
def test_a_gradient_that_a_module_leaves_out_is_found(
    toys: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    small = subject(toys, "two, tied", "none")
    assert small.faults() == []
    right = Block.take_weights
    monkeypatch.setattr(
        Block, "take_weights", lambda block: [pair for pair in right(block) if pair[0] != name]
    )
    assert any("weight gradient" in fault.detail for fault in small.faults())


def test_faults_in_a_layout_with_modules_are_caught(toys: ModuleType) -> None:
    missed = [
        fault.description
        for number, fault in enumerate(mutations(subject(toys, "two with experts, untied", "recomputed")))
        if number % 61 == 0 and not fault.subject.is_wrong
    ]
    assert missed == []


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("tp=2,sp=true", "multi-token prediction over tensor peers"),
        ("pp=2", "multi-token prediction over pipeline stages"),
        ("dp=2", None),
    ],
)
def test_a_layout_without_the_tables_of_words_on_one_rank_has_no_modules(
    layout: str, said: str | None
) -> None:
    request = Request("deepseek_v3", layout=layout, batch=2, orders=0)
    (plan,) = plans_of(request)
    assert plan.notes == (() if said is None else (said,))
    assert plan.job.model.mtp_num_layers == (said is None)
    assert prove_all(request).passed
