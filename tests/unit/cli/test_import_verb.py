"""`perfsim import` on the command line, and foreign files where a model is asked for."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import perfsim as ps
from perfsim.interop import gaps_of

SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
CONFIG = {
    "model_type": "llama",
    **SIZES,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "rope_theta": 1e4,
}
Run = Callable[..., Result]
COUNT = 2 * 1000 * 256 + 2 * (4 * 256 * 256 + 3 * 256 * 512 + 2 * 256) + 256


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


def test_what_is_written_is_a_model_with_its_document(perfsim: Run, config: Path, tmp_path: Path) -> None:
    result = perfsim("import", config, "--json")
    document = json.loads(result.stdout)
    assert {"kind", "parameters", "unused_keys", "unsupported", "document"} <= set(document)
    assert (document["kind"], document["parameters"]) == ("model", COUNT)
    assert (document["unused_keys"], document["unsupported"]) == (["rope_theta"], [])
    assert document["document"]["name"] == "small"
    written = tmp_path / "ours.yaml"
    answer = perfsim("import", config, "--out", written)
    assert f"model from huggingface: {written}" in answer.stdout
    assert f"{COUNT:,} parameters" in answer.stdout
    assert written.read_text("utf-8").strip() == perfsim("import", config).stdout.strip()
    assert ps.Catalog().model(str(written)).hidden_size == 256


def test_every_verb_with_a_model_takes_the_file(perfsim: Run, config: Path) -> None:
    point = ("--model", config, "--system", "dgx-a100-80gb", "--devices", "1", "--batch", "2")
    assert "small on 1 A100-80GB" in perfsim("run", *point).stdout
    assert perfsim("plan", *point).exit_code == 0
    assert perfsim("prove", config, "--layout", "pp=2", "--orders", "0").exit_code == 0


def test_what_a_file_says_and_cannot_be_expressed_is_told_by_every_verb(perfsim: Run, config: Path) -> None:
    irregular = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 512}
    config.write_text(json.dumps(CONFIG | {"model_type": "mistral", **irregular}), encoding="utf-8")
    point = ("--model", config, "--system", "dgx-a100-80gb", "--devices", "1", "--batch", "2")
    for verb in ("run", "plan"):
        for form in ((), ("--json",)):
            told = " ".join(perfsim(verb, *point, *form).stdout.split())
            assert "file: attention in a sliding window of 512 in some layers; taken as full" in told
    # As YAML it keeps them, for studies.
    written = config.with_name("small.yaml")
    perfsim("import", config, "--out", written)
    assert gaps_of(ps.Catalog().model(str(written))) == gaps_of(ps.Model.from_file(config)) != ()


@pytest.mark.parametrize(("key", "value"), [("num_attention_heads", 4), ("max_position_embeddings", 2048)])
def test_the_advice_of_a_file_works(perfsim: Run, config: Path, tmp_path: Path, key: str, value: int) -> None:
    config.write_text(json.dumps({name: held for name, held in CONFIG.items() if name != key}), "utf-8")
    point = ("--system", "dgx-a100-80gb", "--devices", "1", "--batch", "2")
    _, advice = perfsim("run", "--model", config, *point).stderr.split("can be given: perfsim ")
    written = tmp_path / "whole.yaml"
    words = advice.replace("NAME.yaml", str(written)).replace("VALUE", str(value)).split()
    assert perfsim(*words).exit_code == 0
    assert perfsim("run", "--model", written, *point).exit_code == 0


def test_python_takes_the_file_too(config: Path) -> None:
    model = ps.Model.from_file(config)
    assert (model.name, model.num_layers) == ("small", 2)
    step = ps.predict(model=model, system="dgx-a100-80gb", devices=1, batch=2)
    usual = ps.predict(model=config, system="dgx-a100-80gb", devices=1, batch=2)
    assert step.step_time_s == usual.step_time_s
    assert ps.import_file(config).parameters == COUNT
