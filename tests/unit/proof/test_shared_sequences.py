"""Attention in parts equals serial training for every kind of attention that a model may have."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from perfsim.proof.prove import Subject
from perfsim.proof.provers import small_plan, training_of
from perfsim.proof.ranks import places_of
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import strategy

MODELS: dict[str, dict[str, Any]] = {
    "ALiBi": {"position_embedding": "alibi"},
    "an encoder": {"causal": False},
    "grouped queries": {
        "num_query_groups": 4,
        "position_embedding": "rotary",
        "gated_mlp": True,
        "bias": False,
    },
    "attention beside the MLP": {"norms_per_layer": 1},
    "latents": {
        "latent_attention": {
            "q_lora_rank": 8,
            "kv_lora_rank": 4,
            "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 2,
            "v_head_dim": 4,
        },
        "position_embedding": "rotary",
    },
    "norms of queries and keys": {
        "qk_layernorm": True,
        "position_embedding": "rotary",
        "num_query_groups": 4,
    },
    "windows": {"sliding_window": 4, "sliding_window_pattern": 4},
}


@pytest.mark.parametrize("exchange", ["ring", "all_to_all"])
@pytest.mark.parametrize("model", MODELS)
def test_ranks_that_share_sequences_compute_what_one_does(
    toys: ModuleType, model: str, exchange: Any
) -> None:
    for layout in (
        ParallelLayout(tensor=2, context=2, context_exchange=exchange),
        ParallelLayout(context=4, context_exchange=exchange, recompute="full"),
    ):
        job = toys.job(8, **MODELS[model])
        topology = toys.topology(layout.num_devices)
        plan = small_plan(strategy("3d"), job, topology, layout, 2)
        assert Subject(toys.graph_of(plan), plan, training_of(plan, 0)).faults() == []


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_gives_every_rank_as_many_earlier_positions(ranks: int) -> None:
    length = 4 * ranks
    places = [places_of(length, ranks, rank, "ring") for rank in range(ranks)]
    assert sorted(position for part in places for position in part) == list(range(length))
    assert len({sum(part) for part in places}) == 1
