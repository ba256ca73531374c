"""GPT-NeoX, NeMo, Megatron-Bridge, DeepSpeed and torchtitan: model, recipe and layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfsim.base.errors import InputError

SAMPLES = Path(__file__).parents[3] / "samples/foreign"
NEOX, NEMO, BRIDGE, TITAN = (
    (SAMPLES / name).read_text("utf-8")
    for name in ("neox_20b.yml", "nemo_xl.yaml", "bridge_deepseek_v3.yaml", "titan_llama3_8b.toml")
)
LLAMA_8B = 8_030_261_248
ZERO3 = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW"},
}


# --------------------------------------------------------------------------------------- GPT-NeoX
def test_the_batch_of_neox_tells_its_devices(imported: Callable[..., Any]) -> None:
    whole = imported(NEOX.replace('"fp16": {', '"train_batch_size": 1536, "fp16": {'))
    assert (whole.devices, whole.layout.split(",")[:3]) == (96, ["tp=2", "pp=4", "dp=12"])
    assert (whole.recipe["global_batch_size"], whole.recipe["dropout"]) == (1536, False)


def test_neox_names_with_underscores_and_a_llama_mlp_are_read(imported: Callable[..., Any]) -> None:
    text = (
        "{pipe_parallel_size: 1, model_parallel_size: 1, make_vocab_size_divisible_by: 1, num_layers: 32, "
        "hidden_size: 4096, num_attention_heads: 32, seq_length: 2048, max_position_embeddings: 2048, "
        "pos_emb: rotary, no_weight_tying: true, norm: rmsnorm, use_bias_in_attn_linear: false, "
        "mlp_type: llama, activation: silu}"
    )
    assert imported(text, given={"vocab_size": 32000}).parameters == 6_738_415_616


# ------------------------------------------------------------------------- NeMo and Megatron-Bridge
def test_a_reference_that_is_not_plain_is_named_where_it_is_needed(imported: Callable[..., Any]) -> None:
    text = NEMO.replace("num_layers: 24", "num_layers: ${oc.env:LAYERS}")
    with pytest.raises(
        InputError, match=r"num_layers: the file does not tell this value\n.*\n.*--set num_layers"
    ):
        imported(text)
    assert imported(text, given={"num_layers": 24}).parameters == 1_315_723_264
    assert imported(NEMO.replace("name: megatron_gpt", "name: ${oc.env:NAME}")).parameters == 1_315_723_264


def test_megatron_bridge_is_read_with_experts_and_without_its_targets(imported: Callable[..., Any]) -> None:
    result = imported(BRIDGE)
    assert result.recipe["reduce_precision"] == "bf16"
    assert result.document["experts"]["num_experts"] == 256
    assert not [key for key in result.unused_keys if "_target_" in key]


# ------------------------------------------------------------------------------------- DeepSpeed
def test_deepspeed_takes_the_model_beside_it(imported: Callable[..., Any], tmp_path: Path) -> None:
    alone = imported(ZERO3, "ds_config.json")
    assert (alone.kind, alone.parameters, alone.devices) == ("recipe", None, 32)
    assert alone.layout == "dp=32,zero=3,mbs=2,offload_optimizer=cpu"
    (tmp_path / "config.json").write_bytes((SAMPLES / "llama31_8b_config.json").read_bytes())
    beside = imported(ZERO3, "ds_config.json")
    assert (beside.kind, beside.parameters) == ("model", LLAMA_8B)


def test_deepspeed_takes_a_named_model(imported: Callable[..., Any]) -> None:
    result = imported(ZERO3, "ds_config.json", model="llama_7b")
    assert result.parameters == 6_738_415_616
    with pytest.raises(InputError, match="unknown model `lama_7b`"):
        imported(ZERO3, "ds_config.json", model="lama_7b")


def test_deepspeed_batches_must_agree_and_auto_is_absent(imported: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="train_batch_size: 255 is not a multiple of micro-batch 2"):
        imported(ZERO3 | {"train_batch_size": 255}, "ds.json")
    result = imported(ZERO3 | {"train_batch_size": "auto"}, "ds.json")
    assert (result.devices, result.layout) == (None, "zero=3,mbs=2,offload_optimizer=cpu")
    assert any("2 × 4 × the number of replicas" in text for text in result.unsupported)


# ------------------------------------------------------------------------------------ torchtitan
@pytest.mark.parametrize("name", ["Lion", "Muon", "OneBitAdam"])
def test_an_optimizer_that_is_none_of_ours_is_a_gap(imported: Callable[..., Any], name: str) -> None:
    result = imported(ZERO3 | {"optimizer": {"type": name}}, "ds.json")
    ours = {"Muon": "muon"}.get(name, "adam")
    assert result.recipe["optimizer"] == ours
    assert any(f"the optimizer {name}" in text for text in result.unsupported) == (ours == "adam")


def test_torchtitans_expert_degrees_are_the_layouts(imported: Callable[..., Any]) -> None:
    text = TITAN.replace('"llama3"', '"llama4"').replace('"8B"', '"17bx16e_irope"')
    degrees = "expert_parallel_degree = 8\nexpert_tensor_parallel_degree = 2\n"
    text = text.replace("[parallelism]\n", f"[parallelism]\n{degrees}")
    result = imported(text, "job.toml", model="llama4_scout")
    assert "ep=8,etp=2" in result.layout
    assert not any("expert" in gap for gap in result.unsupported)
    dense = imported(TITAN.replace("[parallelism]\n", f"[parallelism]\n{degrees}"), "job.toml")
    assert "its model has none" in dense.unsupported[0]


def test_micro_batches_that_overlap_all_to_alls_are_named_on_import(imported: Callable[..., Any]) -> None:
    pipeline = 'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "DualPipeV"\n'
    result = imported(TITAN.replace("[parallelism]\n", f"[parallelism]\n{pipeline}"), "job.toml")
    assert any(gap.startswith("DualPipeV: all-to-alls beside") for gap in result.unsupported)


@pytest.mark.parametrize("form", ["json", "python"])
def test_torchtitan_is_read_from_what_it_prints(imported: Callable[..., Any], form: str) -> None:
    config: dict[str, Any] = {
        "model": {"name": "llama3", "flavor": "8B", "print_after_conversion": False},
        "training": {"local_batch_size": 2, "global_batch_size": -1, "seq_len": 8192},
        "parallelism": {"data_parallel_shard_degree": -1, "tensor_parallel_degree": 2},
        "activation_checkpoint": {"mode": "none"},
    }
    printed = f"configs: {json.dumps(config, indent=2)}" if form == "json" else f"args: {config!r}"
    mesh = "[titan] Building 2-D device mesh with ['dp_shard', 'tp'], [8, 2]"
    text = f"[titan] - INFO - Running with {printed}\n{mesh}\n"
    result = imported(text, "train.log")
    assert (result.format, result.parameters, result.devices) == ("torchtitan", LLAMA_8B, 16)
    assert result.layout == "tp=2,dp=8,sp=true,zero=3,mbs=2"


def test_an_unknown_flavor_asks_for_the_model(imported: Callable[..., Any]) -> None:
    text = TITAN.replace('"8B"', '"debugmodel"')
    result = imported(text, "job.toml")
    assert (result.kind, result.parameters) == ("recipe", None)
    assert "llama3 debugmodel: the shape stands in torchtitan's code" in result.unsupported[0]
    assert imported(text, "job.toml", model="llama_7b").parameters == 6_738_415_616


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (NEOX.replace("44", "0"), "n.yml", r"n.yml:6: num_layers: 0 is out of range"),
        (NEOX.replace('"rotary"', '"rotry"'), "n.yml", "'rotry' is unknown"),
        (
            NEMO.replace("devices: 8", "devices: 7"),
            "n.yaml",
            "14 ranks are not a multiple of tensor 2 × pipeline 2",
        ),
        (TITAN.replace('"full"', '"ful"'), "j.toml", "'ful' is none of none, selective, full"),
        ("Running with configs: {broken\n", "t.log", "t.log:1: the printed configuration cannot be read"),
    ],
)
def test_wrong_values_are_refused(imported: Callable[..., Any], text: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        imported(text, name)
