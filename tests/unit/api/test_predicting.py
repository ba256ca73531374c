import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import perfsim as ps
from perfsim.cli import main
from perfsim.prediction.question import question_of
from perfsim.specs.layout import ParallelLayout, StreamingLayout
from perfsim.specs.model import TransformerConfig
from perfsim.strategies.three_d.strategy import ThreeD

PLANNED: dict[str, Any] = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 8, "batch": 16}
ASKED = PLANNED | {"layout": "tp=2,pp=2,dp=2,mbs=1"}


@pytest.fixture(scope="module")
def prediction() -> ps.Prediction:
    return ps.predict(**ASKED)


def test_it_is_shown_in_a_line_and_in_a_notebook_with_where_its_seconds_go(prediction: ps.Prediction) -> None:
    line = "gpt3_xl on 8 A100-80GB (1 DGX), 3d: tp=2,pp=2,dp=2, batch 16, "
    assert repr(prediction).startswith(f"<{line}{prediction.step_time_s:.3g} s a step, MFU ")
    shown = prediction._repr_html_()
    assert shown.startswith(f"<p>{line}")
    assert f"<td>bubble</td><td>{prediction.breakdown_s['bubble']:.4g} s</td>" in shown


def test_objects_and_changed_models_stand_in_place_of_names(prediction: ps.Prediction) -> None:
    catalog = ps.Catalog()
    objects = {
        "model": catalog.model("gpt3_xl"),
        "system": catalog.system("dgx-a100-80gb"),
        "recipe": catalog.recipe("gpt3_pretraining"),
        "layout": ParallelLayout(tensor=2, pipeline=2, data=2),
    }
    assert ps.predict(**ASKED | objects).step_time_s == prediction.step_time_s
    model = catalog.model("gpt3_xl").with_(num_layers=48)
    assert (model.name, model.assumed["num_layers"]) == ("gpt3_xl with num_layers=48", "set in Python")
    deeper = ps.predict(**ASKED | {"model": model})
    assert 1.7 < deeper.step_time_s / prediction.step_time_s < 2.1
    assert deeper.model == model.name


def test_a_field_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(ps.PerfsimError, match="did you mean `num_layers`") as refused:
        ps.Catalog().model("gpt3_xl").with_(num_layer=48)
    assert len(refused.value.problems) == 1
    with pytest.raises(ps.PerfsimError, match="num_layers"):
        ps.Catalog().model("gpt3_xl").with_(num_layers=-1)
    device = ps.Catalog().device("a100-sxm4-80gb").with_(**{"memory.capacity": "96 GiB"})
    assert device.memory.capacity == 96 * 2**30, "a path with dots changes what lies deeper"


def test_the_trace_is_saved_where_it_can_be(prediction: ps.Prediction, tmp_path: Path) -> None:
    path = prediction.trace.save(tmp_path / "t.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {work.name for work in prediction.run.trace.graph.works}
    spans = [event for event in events if event["ph"] == "X" and event["name"] in names]
    assert len(spans) == len(prediction.trace.run.graph)
    assert prediction.trace.step_time_s == prediction.step_time_s
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ps.PerfsimError, match="file"):
        prediction.trace.save(tmp_path / "file" / "t.json")


def test_a_strategy_that_no_registry_knows_is_taken_as_an_object(prediction: ps.Prediction) -> None:
    own = ThreeD(name="my own")
    with_layout = ps.predict(**ASKED, strategy=own)
    assert (with_layout.strategy, with_layout.step_time_s) == ("my own", prediction.step_time_s)
    assert ps.predict(**PLANNED, strategy=own).step_time_s <= prediction.step_time_s
    with pytest.raises(ps.PerfsimError, match="strategy my own runs on a gpu-cluster"):
        ps.predict(model="gpt3_xl", system="cs-2", devices=1, batch=16, strategy=own)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": 3}, "model: int is not TransformerConfig"),
        ({"model": ps.Catalog().system("cs-2")}, "model: WaferClusterSpec is not TransformerConfig"),
        ({"system": ps.Catalog().model("gpt3_xl")}, "system: TransformerConfig is not SystemSpec"),
        ({"devices": "8"}, "devices: '8' is not a whole number"),
        ({"devices": True}, "devices: True is not a whole number"),
        ({"batch": 0}, "batch: 0 is not a whole number from 1"),
        ({"batch": "many"}, "batch: 'many'"),
        ({"layout": 3}, "layout: int is no layout of a gpu-cluster"),
        ({"layout": StreamingLayout(data=8)}, "layout: StreamingLayout is no layout of a gpu-cluster"),
        ({"strategy": 3}, "strategy: int is neither a name nor a strategy"),
        ({"strategy": "3-d"}, "did you mean `3d`"),
        ({"cluster": 3}, "calibration: int is not Calibration"),
        ({"perturb": 3}, "perturb: int is not PerturbationSpec or None"),
        ({"detail": "atom"}, "detail: 'atom' is none of layer, chunk"),
        ({"system": "cs-2", "devices": 2, "layout": "dp=3"}, "data 3 must equal the 2 systems"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_problems(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ps.PerfsimError) as refused:
        ps.predict(**ASKED | change)
    assert any(said in str(problem) for problem in refused.value.problems)


# A device, a system and a model as a newcomer adds them: three YAML files and no code.

PEAK = "{bf16: 2000 TFLOP/s, fp16: 2000 TFLOP/s, fp32: 67 TFLOP/s}"
FILES = {
    "gpu": f"extends: h100-sxm5-80gb\npeak: {PEAK}\nassumed: {{peak: twice that of the parent}}\n",
    "node": "extends: dgx-h100\ndevice: gpu.yaml\nassumed: {device: a node with other devices}\n",
    "model": "extends: gpt3_xl\nnum_layers: 12\nassumed: {num_layers: half of the parent}\n",
}


def test_a_device_and_a_model_are_files_alone(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\n{text}", encoding="utf-8")
    new = ps.predict(model=tmp_path / "model.yaml", system=tmp_path / "node.yaml", devices=8, batch=64)
    old = ps.predict(model=tmp_path / "model.yaml", system="dgx-h100", devices=8, batch=64)
    assert new.step_time_s < old.step_time_s
    assert new.model == "model"


# The recipe of a question that names none: that of the model's age, printed with the answer.

CATALOG = ps.Catalog()
LLAMA = CATALOG.model("llama2_70b")


@pytest.mark.parametrize(
    ("model", "given", "recipe", "tokens"),
    [
        *((CATALOG.model(name), None, "llm_2021", 2048) for name in ("gpt3_175b", "llama_65b")),
        (CATALOG.model("bert_large"), None, "llm_2021", 512),
        (LLAMA, None, "llm_2024", 4096),
        *((CATALOG.model(name), None, "llm_2024", 8192) for name in ("llama31_70b", "mixtral_8x7b")),
        (LLAMA.model_copy(update={"released": None}), None, "llm_2024", 4096),
        (LLAMA, "llm_2024", "llm_2024", 4096),
        (LLAMA, "gpt3_pretraining", "gpt3_pretraining", 2048),
    ],
)
def test_a_model_is_trained_as_models_of_its_age_were_unless_a_recipe_is_named(
    model: TransformerConfig, given: str | None, recipe: str, tokens: int
) -> None:
    fields = {"model": model, "system": "dgx-h100", "devices": 8, "recipe": given}
    chosen = question_of(fields).job.recipe
    assert (chosen.name, chosen.seq_length) == (recipe, tokens)
    own = given == "gpt3_pretraining"
    assert chosen.runtime.name == ("megatron_2021" if own else "megatron_core")
    assert chosen.dropout == (recipe != "llm_2024")


@pytest.mark.parametrize(
    ("given", "runtime"),
    [
        ({"model": "gpt3_xl", "system": "dgx-a100-80gb"}, "megatron_2021"),
        ({"model": "gpt3_xl", "system": "dgx-a100-80gb", "strategy": "zero3"}, "megatron_2021"),
        ({"model": "gpt3_xl"}, "megatron_core"),
        ({"model": "gpt3_xl", "as_of": "latest"}, "megatron_core"),
        ({"system": "dgx-a100-80gb"}, "megatron_core"),
        ({"strategy": "zero3"}, "fsdp_2023"),
        ({"layout": "dp=8,mbs=1,zero=2"}, "fsdp_2023"),
        ({"layout": {"data": 8, "zero_stage": 2}}, "fsdp_2023"),
        ({"layout": "dp=8,mbs=1,zero=1"}, "megatron_core"),
        ({"layout": "tp=2,dp=4,mbs=1,zero=3"}, "torchtitan"),
        ({"layout": {"pipeline": 2, "data": 4, "zero_stage": 2}}, "torchtitan"),
        ({"strategy": "zero3", "recipe.precision": "fp8"}, "torchtitan"),
        ({"system": "mi300x-192gb"}, "primus"),
        ({"system": "mi300x-192gb", "recipe": "llm_2024"}, "primus"),
        ({"system": "mi300x-192gb", "as_of": "2024-06"}, "megatron_core"),
        ({"recipe": "gpt3_pretraining"}, "megatron_2021"),
        ({"runtime": "megatron_2021"}, "megatron_2021"),
    ],
)
def test_device_month_precision_and_sharding_choose_the_runtime(given: dict[str, Any], runtime: str) -> None:
    asked = {"model": "llama3_8b", "system": "dgx-h100", "devices": 8, **given}
    assert question_of(asked).ran_by.name == runtime


def test_every_model_of_the_catalogue_says_when_it_was_published() -> None:
    assert [name for name in CATALOG.names("model") if CATALOG.model(name).released is None] == []


def test_a_run_says_what_it_trains() -> None:
    fields = ["run", "--model", "llama2_70b", "--system", "dgx-h100", "--devices", "64", "--batch", "64"]
    layout = "tp=8,pp=4,dp=2,mbs=1,sp=true,recompute=full"
    said = " ".join(CliRunner().invoke(main, [*fields, "--layout", layout]).output.split())
    assert "llm_2024: sequences of 4,096 tokens, bf16, flash attention, no dropout" in said


def test_sequences_that_are_given_are_not_shortened_to_the_positions_of_the_model() -> None:
    longer = ps.Catalog().override(ps.Catalog().recipe("llm_2021"), {"seq_length": 4096})
    for recipe, tokens in ((longer, 4096), ("llm_2024", 2048)):
        asked = ps.predict(model="gpt3_xl", system="dgx-a100-80gb", devices=8, batch=8, recipe=recipe)
        assert asked.run.plan.job.seq_length == tokens
