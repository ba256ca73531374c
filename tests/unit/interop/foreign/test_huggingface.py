"""Models of Hugging Face: the count of each family's published weights, and what cannot be expressed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.interop import model_named
from perfsim.interop.formats import import_file, read_model
from perfsim.work.counts import parameters

SAMPLES = Path(__file__).parents[3] / "samples/foreign"
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("published_counts.yaml").read_text("utf-8")
)
MIXTRAL = json.loads((SAMPLES / "mixtral_8x7b_config.json").read_text("utf-8"))
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
    result = import_file(path)
    model = read_model(path)
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


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("mixtral", "mixtral_8x7b"),
        ("dsv3", "deepseek_v3"),
        ("qwen3_30a3", "qwen3_30b_a3b"),
        ("gptoss120", "gpt_oss_120b"),
    ],
)
def test_a_model_with_experts_becomes_that_of_the_catalogue(write: Write, name: str, ours: str) -> None:
    gptoss = PUBLISHED["gptoss20"][1] | {"num_hidden_layers": 36, "num_local_experts": 128}
    keys = {"mixtral": MIXTRAL, "gptoss120": gptoss}.get(name) or PUBLISHED[name][1]
    groups = {"n_group": 8, "topk_group": 4} if name == "dsv3" else {}
    model = model_named(str(write(keys | groups)), default_catalog())
    known = default_catalog().model(ours)
    described = {"name", "description", "sources", "assumed", "released", "max_position_embeddings"}
    assert model.model_dump(exclude=described) == known.model_dump(exclude=described)


def test_experts_in_irregular_layers_are_described_in_as_many(write: Write) -> None:
    keys = PUBLISHED["qwen3_30a3"][1]
    dense_last = import_file(write(keys | {"mlp_only_layers": [47]}))
    assert dense_last.document["experts"]["first_dense_layers"] == 1
    assert "experts in layers 1, 2, 3" in dense_last.unsupported[0]
    assert not dense_last.changes_model


@pytest.mark.parametrize(
    ("keys", "window", "every"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 4096, None),
        ({"sliding_window": 131072}, None, None),
        ({"sliding_window": 1024, "sliding_window_pattern": 6}, 1024, 6),
        ({"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 16}, 512, 2),
        ({"sliding_window": 512, "layer_types": ["full_attention"] * 32}, None, None),
    ],
)
def test_sliding_windows_are_read_with_the_layers_that_have_them(
    write: Write, keys: dict[str, Any], window: int | None, every: int | None
) -> None:
    result = import_file(write(LLAMA | keys))
    assert result.unsupported == ()
    assert result.document.get("sliding_window") == window
    assert result.document.get("sliding_window_pattern") == every


def test_windows_in_irregular_layers_are_named_and_taken_as_full_attention(write: Write) -> None:
    types = ["full_attention"] * 3 + ["sliding_attention"] * 29
    result = import_file(write(LLAMA | {"sliding_window": 512, "layer_types": types}))
    assert "window of 512 in some layers" in result.unsupported[0]
    assert "sliding_window" not in result.document


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
def test_wrong_values_are_refused_at_their_line(
    imported: Callable[..., Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        imported(LLAMA | change, "config.json")
