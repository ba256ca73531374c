"""YAML of the Cerebras Model Zoo in its three forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.base.errors import InputError
from perfsim.interop.formats import Imported, import_file

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


def imported(tmp_path: Path, document: Any) -> Imported:
    path = tmp_path / "params.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document), encoding="utf-8")
    return import_file(path)


@pytest.mark.parametrize("document", [OLDEST, FLAT, TRAINER], ids=["1.6", "2.2", "trainer"])
def test_all_generations_give_the_same_model(tmp_path: Path, document: Any) -> None:
    result = imported(tmp_path, document)
    assert (result.format, result.kind, result.parameters) == ("modelzoo", "model", XL)
    assert result.unsupported == ()


def test_batch_precision_optimizer_systems_and_sparsity_are_read(tmp_path: Path) -> None:
    oldest, flat, trainer = (imported(tmp_path, document) for document in (OLDEST, FLAT, TRAINER))
    batches = [result.recipe and result.recipe["global_batch_size"] for result in (oldest, flat, trainer)]
    assert batches == [121, 528, 528]
    assert [result.recipe and result.recipe["precision"] for result in (oldest, flat)] == ["fp16", "bf16"]
    assert trainer.recipe is not None
    assert (trainer.recipe["optimizer"], trainer.recipe["precision"]) == ("adamw", "bf16")
    assert (flat.layout, flat.devices) == ("dp=2,mbs=88", 2)
    assert flat.recipe is not None
    assert flat.recipe["weight_sparsity"] == 0.75
    assert (oldest.layout, trainer.layout) == ("", "dp=4,mbs=132")
    assert {"train_input.shuffle", "runconfig.max_steps"} <= set(oldest.unused_keys)


@pytest.mark.parametrize(
    ("model", "count"),
    [(LLAMA, 8_030_261_248), (GPTJ, 6_050_882_784), (GEMMA, 9_241_705_984)],
    ids=["llama3", "gptj", "gemma2"],
)
def test_other_families_have_their_published_counts(tmp_path: Path, model: Any, count: int) -> None:
    assert imported(tmp_path, {"model": model}).parameters == count


def test_a_list_of_phases_is_read_by_its_first(tmp_path: Path) -> None:
    result = imported(tmp_path, {"trainer": [TRAINER, TRAINER]})
    assert result.parameters == XL
    assert "2 phases of training, of which the first is described" in result.unsupported


def test_anchors_and_repeated_keys_are_read(tmp_path: Path) -> None:
    text = yaml.safe_dump({"model": {**SHAPE, **BIASES, "vocab_size": 50257}})
    text += "a: &a {steps: 1, steps: 2}\nb: *a\nc: 1.0e-5\nd: 1e-5\n"
    assert imported(tmp_path, text).parameters == XL


def test_a_missing_width_is_named_at_both_places(tmp_path: Path) -> None:
    shape = {key: value for key, value in FLAT["model"].items() if key != "hidden_size"}
    with pytest.raises(InputError, match=r"yaml:\d+: hidden_size is missing in model or trainer.init.model"):
        imported(tmp_path, FLAT | {"model": shape})
    with pytest.raises(InputError, match=r"params.yaml:\d+: model.num_heads: 'many' is not a whole number"):
        imported(tmp_path, FLAT | {"model": {**SHAPE, "num_heads": "many"}})
