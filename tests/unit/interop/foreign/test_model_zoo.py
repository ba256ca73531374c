"""YAML of the Cerebras Model Zoo in its three forms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.base.errors import InputError

SAMPLES = Path(__file__).parents[3] / "samples/foreign"
SHAPE = {
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_heads": 16,
    "filter_size": 8192,
    "max_position_embeddings": 2048,
    "position_embedding_type": "learned",
    "share_embedding_weights": True,
    "nonlinearity": "gelu",
}
BIASES = {"use_projection_bias_in_attention": True, "use_ffn_bias_in_attention": True, "use_ffn_bias": True}
OLDEST, FLAT, TRAINER = (
    yaml.safe_load((SAMPLES / f"zoo_{release}_xl.yaml").read_text("utf-8"))
    for release in ("r16", "r22", "trainer")
)
XL = 1_315_723_264
LLAMA = {
    **SHAPE,
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_heads": 32,
    "filter_size": 14336,
    "position_embedding_type": "rotary",
    "share_embedding_weights": False,
    "norm_type": "rmsnorm",
    "nonlinearity": "swiglu",
    "attention_module": "multiquery_attention",
    "extra_attention_params": {"num_kv_groups": 8},
}
GPTJ = {
    **SHAPE,
    "name": "gptj",
    "vocab_size": 50400,
    "hidden_size": 4096,
    "num_hidden_layers": 28,
    "filter_size": 16384,
    "position_embedding_type": "rotary",
    "share_embedding_weights": False,
    "use_ffn_bias": True,
    "use_bias_in_output": True,
}
GEMMA = {
    **LLAMA,
    "vocab_size": 256000,
    "hidden_size": 3584,
    "num_hidden_layers": 42,
    "num_heads": 16,
    "attention_inner_dim": 4096,
    "attention_sliding_window_length": 4096,
    "norm_first_sandwich": True,
    "nonlinearity": "geglu",
    "share_embedding_weights": True,
}


def test_optimizer_sparsity_and_what_is_not_used_are_read(imported: Callable[..., Any]) -> None:
    oldest, flat, trainer = (imported(document) for document in (OLDEST, FLAT, TRAINER))
    assert [result.unsupported for result in (oldest, flat, trainer)] == [(), (), ()]
    assert (trainer.recipe["optimizer"], flat.recipe["weight_sparsity"]) == ("adamw", 0.75)
    assert {"train_input.shuffle", "runconfig.max_steps"} <= set(oldest.unused_keys)


@pytest.mark.parametrize(
    ("model", "count"),
    [(LLAMA, 8_030_261_248), (GPTJ, 6_050_882_784), (GEMMA, 9_241_705_984)],
    ids=["llama3", "gptj", "gemma2"],
)
def test_other_families_have_their_published_counts(
    imported: Callable[..., Any], model: Any, count: int
) -> None:
    assert imported({"model": model}).parameters == count


def test_a_list_of_phases_is_read_by_its_first(imported: Callable[..., Any]) -> None:
    result = imported({"trainer": [TRAINER, TRAINER]})
    assert result.parameters == XL
    assert "2 phases of training, of which the first is described" in result.unsupported


def test_anchors_and_repeated_keys_are_read(imported: Callable[..., Any]) -> None:
    text = yaml.safe_dump({"model": {**SHAPE, **BIASES, "vocab_size": 50257}})
    text += "a: &a {steps: 1, steps: 2}\nb: *a\nc: 1.0e-5\nd: 1e-5\n"
    assert imported(text).parameters == XL


def test_a_missing_width_is_named_at_both_places(imported: Callable[..., Any]) -> None:
    shape = {key: value for key, value in FLAT["model"].items() if key != "hidden_size"}
    with pytest.raises(InputError, match=r"yaml:\d+: hidden_size is missing in model or trainer.init.model"):
        imported(FLAT | {"model": shape})
    with pytest.raises(InputError, match=r"file.yaml:\d+: model.num_heads: 'many' is not a whole number"):
        imported(FLAT | {"model": {**SHAPE, "num_heads": "many"}})
