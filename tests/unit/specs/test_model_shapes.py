"""Shapes of models: kinds of layers, and combinations that contradict themselves."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from perfsim.specs.model import PLAIN, LayerKind, layer_kinds

EXPERTS: dict[str, Any] = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 256}


def test_a_dense_model_has_layers_of_one_kind(toys: ModuleType) -> None:
    assert layer_kinds(toys.model()) == (PLAIN,) * 8


def test_experts_stand_in_every_nth_layer_behind_the_dense_ones(toys: ModuleType) -> None:
    model = toys.model(experts=EXPERTS | {"first_dense_layers": 3, "interval": 2})
    assert [kind.experts for kind in layer_kinds(model)] == [False] * 3 + [True, False] * 2 + [True]


def test_every_nth_layer_of_a_pattern_attends_to_all_positions(toys: ModuleType) -> None:
    model = toys.model(sliding_window=128, sliding_window_pattern=2)
    assert [kind.window for kind in layer_kinds(model)] == [128, None] * 4
    assert {kind.window for kind in layer_kinds(toys.model(sliding_window=64))} == {64}


def test_layers_of_multi_token_prediction_come_last_and_are_like_the_last_layer(toys: ModuleType) -> None:
    kinds = layer_kinds(toys.model(experts=EXPERTS, mtp_num_layers=1))
    assert kinds == (*[LayerKind(experts=True)] * 8, LayerKind(experts=True, mtp=True))


def test_models_that_differ_in_a_new_field_alone_are_not_taken_for_each_other(toys: ModuleType) -> None:
    changes = ({}, {"experts": EXPERTS}, {"experts": EXPERTS | {"top_k": 4}}, {"mtp_num_layers": 1})
    models = [toys.model(**change) for change in changes]
    assert len({*models}) == len({hash(model) for model in models}) == 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"experts": EXPERTS | {"top_k": 9}}, "top_k 9 is more than the 8 experts"),
        ({"experts": EXPERTS | {"groups": 3}}, "num_experts 8 is not a multiple of groups 3"),
        ({"experts": EXPERTS | {"groups": 8}}, "top_groups 1 of 8 groups hold 1 experts; a token needs 2"),
        ({"experts": EXPERTS | {"first_dense_layers": 8}}, "none of 8 layers has any"),
        ({"experts": EXPERTS, "norms_per_layer": 1}, "the MLP runs next to the attention"),
        ({"sliding_window_pattern": 2}, "sliding_window_pattern needs sliding_window"),
        ({"sliding_window": 64, "causal": False}, "need causal attention"),
        (
            {
                "head_dim": 64,
                "latent_attention": {
                    "kv_lora_rank": 64,
                    "qk_nope_head_dim": 32,
                    "qk_rope_head_dim": 16,
                    "v_head_dim": 32,
                },
            },
            "remove head_dim",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_refused_in_words(
    toys: ModuleType, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        toys.model(**fields)
