"""Architectures, and the small graphs of layouts that proofs execute."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from perfsim.catalog import default_catalog
from perfsim.proof.prove import Request, Subject, plans_of
from perfsim.proof.provers import small_plan, training_of
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import strategy

LATENTS = {"q_lora_rank": 8, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4}
EXPERTS = {"num_experts": 5, "top_k": 2, "ffn_hidden_size": 6}
SHARED = {"shared_ffn_hidden_size": 4, "first_dense_layers": 1}
LLAMA = {"gated_mlp": True, "num_query_groups": 2, "position_embedding": "rotary", "bias": False}
NORMED = {"qk_layernorm": True, "num_query_groups": 2, "position_embedding": "rotary"}
BESIDE = {"norms_per_layer": 1, "head_bias": True, "attention_bias": False, "position_embedding": "rotary"}
UNTIED = {"tied_embeddings": False}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped queries, gated": LLAMA | UNTIED,
    "attention next to the MLP": BESIDE | UNTIED,
    "encoder": {"causal": False},
    "ALiBi": {"position_embedding": "alibi"},
    "norms of queries and keys": NORMED,
    "latents": {"latent_attention": LATENTS, "position_embedding": "rotary", "bias": False},
    "latents of keys and values only": {"latent_attention": LATENTS | {"q_lora_rank": None}},
    "windows": {"sliding_window": 2, "sliding_window_pattern": 2},
    "experts": {"experts": EXPERTS},
    "experts behind a dense layer, with shared ones": LLAMA | {"experts": EXPERTS | SHARED},
    "multi-token prediction": {"mtp_num_layers": 2},
    "multi-token prediction with experts": BESIDE
    | UNTIED
    | {"mtp_num_layers": 1, "experts": EXPERTS, "norms_per_layer": 2},
}


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a model has besides the defaults; by default every one."""
    return ARCHITECTURES[request.param]


@pytest.fixture
def toy_subject(toys: ModuleType) -> Callable[..., Subject]:
    """The graph of a layout of `3d`, for a toy with some features."""

    def subject(layout: ParallelLayout, recipe: dict[str, Any] | None = None, **model: Any) -> Subject:
        job = toys.job(8, recipe, **model)
        plan = small_plan(strategy("3d"), job, toys.topology(layout.num_devices), layout, 2)
        return Subject(plan.graph(), plan, training_of(plan, 0))

    return subject


@pytest.fixture
def subject_of() -> Callable[..., Subject]:
    """The graph of a request for a layout, with a framework of the catalogue and other runtime settings."""

    def subject(model: str, layout: str, batch: int = 2, framework: str = "", **runtime: Any) -> Subject:
        (plan,) = plans_of(Request(model, layout=layout, batch=batch))
        if framework:
            runtime["framework"] = default_catalog().framework(framework)
        recipe = plan.job.recipe.ran_with(**runtime)
        return Subject.of(replace(plan, job=replace(plan.job, recipe=recipe)))

    return subject
