"""Models of Hugging Face: the count of each family's published weights, and what cannot be expressed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.catalog import default_catalog
from perfsim.errors import InputError
from perfsim.interop.foreign.formats import import_file, read_model
from perfsim.interop.models import model_named
from perfsim.transformer import parameters

PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("published_counts.yaml").read_text("utf-8")
)
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": None,
    "rope_theta": 1e6,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a config.json with these keys."""

    def written(keys: Any, name: str = "config.json") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(keys), encoding="utf-8")
        return path

    return written


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_family_has_the_count_of_its_published_weights_to_the_last_digit(write: Write, name: str) -> None:
    count, keys = PUBLISHED[name]
    assert import_file(write(keys)).parameters == count


def test_a_dense_model_becomes_the_same_model_of_the_catalogue(write: Write) -> None:
    path = write(LLAMA, "meta--Llama-3.1-8B_config.json")
    result, model = import_file(path), read_model(path)
    assert (result.kind, result.format, result.parameters) == ("model", "huggingface", 8_030_261_248)
    assert (result.unsupported, result.unused_keys) == ((), ())
    assert (model.name, parameters(model).total) == ("meta--Llama-3.1-8B", 8_030_261_248)
    assert (model.query_groups, model.gated_mlp, model.position_embedding) == (8, True, "rotary")


def test_the_yaml_of_an_import_is_a_model_of_the_catalogue(write: Write, tmp_path: Path) -> None:
    path = write(LLAMA | {"rope_theta": 5e5, "use_cache": True})
    text = import_file(path).text()
    assert "# 8,030,261,248 parameters" in text
    assert "# 2 keys not used: rope_theta, use_cache" in text
    (tmp_path / "ours.yaml").write_text(text, encoding="utf-8")
    ours = default_catalog().model(str(tmp_path / "ours.yaml"))
    assert ours.model_dump() == read_model(path).model_dump()


def test_experts_are_counted_named_and_no_model_of_their_own(write: Write) -> None:
    path = write(MIXTRAL)
    result = import_file(path)
    assert result.parameters == 46_702_792_704
    assert "8 experts of width 14336, 2 for each token" in result.unsupported[0]
    assert result.document["ffn_hidden_size"] == 2 * 14336
    with pytest.raises(InputError, match="cannot be expressed: a mixture of 8 experts"):
        model_named(str(path), default_catalog())


def test_a_sliding_window_is_named_and_taken_as_full_attention(write: Write) -> None:
    result = import_file(write(LLAMA | {"model_type": "mistral", "sliding_window": 4096}))
    assert result.unsupported == ("attention in a sliding window of 4096; taken as full attention",)
    assert not result.changes_model
    assert not import_file(write(LLAMA | {"sliding_window": 131072})).unsupported


def test_the_text_model_of_a_model_for_images_is_read(write: Write) -> None:
    keys = {"model_type": "llava", "text_config": LLAMA, "vision_config": {"hidden_size": 1024}}
    result = import_file(write(keys))
    assert result.parameters == 8_030_261_248
    assert "encoders of images" in result.unsupported[0]
    assert result.unused_keys == ("vision_config.hidden_size",)


def test_an_unknown_family_is_read_as_llama_and_says_so(write: Write) -> None:
    result = import_file(write(LLAMA | {"model_type": "novel"}))
    assert result.parameters == 8_030_261_248
    assert "'novel' is unknown" in result.unsupported[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "4096"}, r":6: hidden_size: '4096' is not a whole number\n.*\n.*without quotes"),
        ({"hidden_size": 10**400}, "a very large number is out of range; 1 to 1048576"),
        ({"num_hidden_layers": -1}, "num_hidden_layers: -1 is out of range"),
        ({"num_attention_heads": True}, "True is not a whole number"),
        ({"num_attention_heads": 3.5}, "3.5 is not a whole number"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": [4096]}, "a list is not a whole number"),
        ({"tie_word_embeddings": "maybe"}, "'maybe' is not true or false"),
        ({"model_type": "t5"}, "an encoder with a decoder, which perfsim cannot describe"),
        ({"model_type": "mamba"}, "a model without attention"),
    ],
)
def test_wrong_values_are_refused_at_their_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | change, indent=1), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        import_file(path)
