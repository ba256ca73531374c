"""Models of Hugging Face: the count of each family's published weights, and what cannot be expressed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.interop import model_named
from perfsim.interop.formats import Imported, read_model
from perfsim.work.counts import parameters

SAMPLES = Path(__file__).parents[3] / "samples/foreign"
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("published_counts.yaml").read_text("utf-8")
)
MIXTRAL = json.loads((SAMPLES / "mixtral_8x7b_config.json").read_text("utf-8"))
HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8}
SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, **HEADS, "intermediate_size": 14336}
TABLES = {"vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES, **TABLES}

Import = Callable[..., Imported]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_family_has_the_count_of_its_published_weights_to_the_digit(imported: Import, name: str) -> None:
    count, keys = PUBLISHED[name]
    assert imported(keys, "config.json").parameters == count


def test_a_dense_model_becomes_the_same_model_of_the_catalogue(imported: Import, tmp_path: Path) -> None:
    name = "meta--Llama-3.1-8B_config.json"
    result = imported(LLAMA | {"rope_theta": 5e5, "use_cache": True}, name)
    model = read_model(tmp_path / name)
    assert (result.kind, result.format, result.parameters) == ("model", "huggingface", 8_030_261_248)
    assert (result.unsupported, result.unused_keys) == ((), ("rope_theta", "use_cache"))
    assert (model.name, parameters(model).total) == ("meta--Llama-3.1-8B", 8_030_261_248)
    assert (model.query_groups, model.gated_mlp, model.position_embedding) == (8, True, "rotary")
    text = result.text()
    assert "# 8,030,261,248 parameters" in text
    assert "# 2 keys not used: rope_theta, use_cache" in text
    (tmp_path / "ours.yaml").write_text(text, encoding="utf-8")
    assert default_catalog().model(str(tmp_path / "ours.yaml")).model_dump() == model.model_dump()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("mixtral", "mixtral_8x7b"),
        ("dsv3", "deepseek_v3"),
        ("qwen3_30a3", "qwen3_30b_a3b"),
        ("gptoss120", "gpt_oss_120b"),
    ],
)
def test_a_model_with_experts_becomes_that_of_the_catalogue(
    tmp_path: Path, name: str, ours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gptoss = PUBLISHED["gptoss20"][1] | {"num_hidden_layers": 36, "num_local_experts": 128}
    keys = {"mixtral": MIXTRAL, "gptoss120": gptoss}.get(name) or PUBLISHED[name][1]
    groups = {"n_group": 8, "topk_group": 4} if name == "dsv3" else {}
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(keys | groups), encoding="utf-8")
    model = model_named("config.json", default_catalog())
    known = default_catalog().model(ours)
    described = {"name", "description", "sources", "assumed", "released", "max_position_embeddings"}
    assert model.model_dump(exclude=described) == known.model_dump(exclude=described)


@pytest.mark.parametrize("family", ["arcee", "apertus", "nemotron"])
def test_families_without_a_gate_have_two_products_in_the_mlp(imported: Import, family: str) -> None:
    assert imported(LLAMA | {"model_type": family}, "config.json").document["gated_mlp"] is False


def test_experts_in_irregular_layers_are_described_in_as_many(imported: Import) -> None:
    dense_last = imported(PUBLISHED["qwen3_30a3"][1] | {"mlp_only_layers": [47]}, "config.json")
    assert dense_last.document["experts"]["first_dense_layers"] == 1
    assert "experts in layers 1, 2, 3" in dense_last.unsupported[0]
    assert not dense_last.changes_model


def test_half_of_the_layers_of_gpt_neo_attend_in_a_window(imported: Import) -> None:
    described = imported(LLAMA | {"model_type": "gpt_neo", "window_size": 256}, "config.json").document
    assert (described["sliding_window"], described["sliding_window_pattern"]) == (256, 2)


LLLG = [*["sliding_attention"] * 3, "full_attention"] * 8
IRREGULAR = ["full_attention"] * 3 + ["sliding_attention"] * 29


@pytest.mark.parametrize(
    ("keys", "window", "every", "gap"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 4096, None, ""),
        ({"sliding_window": 131072}, None, None, ""),
        ({"sliding_window": 1024, "sliding_window_pattern": 6}, 1024, 6, ""),
        ({"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 16}, 512, 2, ""),
        ({"sliding_window": 512, "layer_types": ["full_attention"] * 32}, None, None, ""),
        ({"sliding_window": 512, "layer_types": LLLG, "sliding_window_pattern": "LLLG"}, 512, 4, ""),
        ({"sliding_window": 512, "layer_types": IRREGULAR}, None, None, "window of 512 in some layers"),
        ({"sliding_window": 512, "max_window_layers": 16}, None, None, "window of 512 in some layers"),
        ({"sliding_window": 512, "max_window_layers": 32}, None, None, ""),
        ({"model_type": "novel"}, None, None, "'novel' is unknown"),
        ({"model_type": "llava", "text_config": LLAMA}, None, None, "encoders of images"),
    ],
)
def test_windows_are_read_with_their_layers_and_what_cannot_be_said_is_named(
    imported: Import, keys: dict[str, Any], window: int | None, every: int | None, gap: str
) -> None:
    shape = {} if "text_config" in keys else LLAMA
    result = imported(shape | keys, "config.json")
    document = result.document
    assert result.parameters == 8_030_261_248
    assert (document.get("sliding_window"), document.get("sliding_window_pattern")) == (window, every)
    assert [gap in text for text in result.unsupported] == [True] * bool(gap)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "4096"}, r":6: hidden_size: '4096' is not a whole number\n.*\n.*without quotes"),
        ({"hidden_size": 10**400}, "a very large number is out of range; 1 to 1048576"),
        ({"num_attention_heads": True}, "True is not a whole number"),
        ({"num_attention_heads": 3.5}, "3.5 is not a whole number"),
        ({"hidden_size": [4096]}, "a list is not a whole number"),
        ({"tie_word_embeddings": "maybe"}, "'maybe' is not true or false"),
        ({"text_config": {"_name_or_path": "vicuna"}}, r"`text_config` has no sizes.*\n.*\n.*json of vicuna"),
    ],
)
def test_a_wrong_value_is_refused_at_its_line(imported: Import, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        imported(LLAMA | change, "config.json")
