"""Small files of every foreign format are read with the published number of parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.interop.formats import import_file


def gpt3(width: int, layers: int, vocabulary: int = 50257) -> int:
    """Weights and biases of a GPT-3 with tied embeddings and 2,048 learned positions."""
    return layers * (12 * width**2 + 13 * width) + (vocabulary + 2048) * width + 2 * width


XL = gpt3(2048, 24)
B6_7 = gpt3(4096, 32)
B20 = gpt3(6144, 44)
LLAMA_8B = 8_030_261_248
LLAMA2_70B = 68_976_648_192
DEEPSEEK_V3 = 671_026_419_200
SMALL = 4 * (12 * 1024**2 + 13 * 1024) + (51200 + 1024 + 2) * 1024
ONE_TO_END = f"layers_per_stage=1-{'-'.join(['2'] * 30)}-0"
DUMP = "tp=8,pp=4,dp=2,sp=true,zero=1,mbs=2,recompute=selective"
NEMO = "tp=2,pp=2,dp=4,sp=true,zero=1,mbs=4,recompute=selective"
BRIDGE = "tp=2,pp=8,vpp=4,sp=true,zero=1,schedule=interleaved,recompute=selective"
TITAN = ("torchtitan", LLAMA_8B, "tp=2,dp=8,sp=true,zero=3,mbs=2,recompute=full", 16, 16, "bf16")
READ: dict[str, tuple[str, int | None, str, int | None, int | None, str | None]] = {
    # Without biases of the routers.
    "bridge_deepseek_v3.yaml": (
        *("nemo", DEEPSEEK_V3 - 58 * 256, f"{BRIDGE},{ONE_TO_END},ep=64,etp=2"),
        *(None, 8192, "bf16"),
    ),
    "deepseek_v3_config.json": ("huggingface", DEEPSEEK_V3, "", None, None, None),
    "gpt2_config.json": ("huggingface", 124_439_808, "", None, None, None),
    "gpt_oss_20b_config.json": ("huggingface", 20_914_757_184, "", None, None, None),
    "llama31_8b_config.json": ("huggingface", LLAMA_8B, "", None, None, None),
    "megatron_175b.sh": ("megatron", gpt3(12288, 96), "tp=8,pp=16,dp=1", 128, 1536, "fp16"),
    "megatron_70b.log": ("megatron", LLAMA2_70B, DUMP, 64, 512, "bf16"),
    "megatron_small.log": ("megatron", SMALL, "dp=8", 8, 16, "bf16"),
    "mixtral_8x7b_config.json": ("huggingface", 46_702_792_704, "", None, None, None),
    "mlperf_bert.txt": ("mllog", None, "", None, None, None),
    "nemo_xl.yaml": ("nemo", XL, NEMO, 16, 64, "bf16"),
    "neox_20b.yml": ("neox", 20_554_567_680, "tp=2,pp=4,zero=1,mbs=4,recompute=full", None, None, "fp16"),
    "titan_llama3_8b.toml": TITAN,
    "titan_old_llama3_8b.toml": TITAN,
    "zero2.json": ("deepspeed", None, "zero=2,mbs=8", None, None, "fp16"),
    "zero3.json": ("deepspeed", None, "zero=3", None, None, "bf16"),
    "zoo_r16_20b.yaml": ("modelzoo", B20, "", None, 50, "fp16"),
    "zoo_r16_6p7b.yaml": ("modelzoo", B6_7, "", None, 85, "fp16"),
    "zoo_r16_xl.yaml": ("modelzoo", XL, "", None, 121, "fp16"),
    "zoo_r18_20b.yaml": ("modelzoo", B20, "", None, 45, "fp16"),
    "zoo_r22_xl.yaml": ("modelzoo", XL, "dp=2,mbs=88", 2, 528, "bf16"),
    "zoo_trainer_xl.yaml": ("modelzoo", XL, "dp=4,mbs=132", 4, 528, "bf16"),
}
"""By file: its format, parameters, layout, devices, global batch and precision."""


@pytest.fixture
def samples(repository: Path) -> Path:
    return repository / "tests/samples/foreign"


@pytest.mark.parametrize("name", READ)
def test_every_sample_is_read_with_its_published_count_layout_and_recipe(samples: Path, name: str) -> None:
    result = import_file(samples / name)
    recipe = result.recipe or {}
    told = (recipe.get("global_batch_size"), recipe.get("precision"))
    assert (result.format, result.parameters, result.layout, result.devices, *told) == READ[name]


def test_every_sample_is_in_the_table(samples: Path) -> None:
    assert {path.name for path in samples.iterdir()} == READ.keys()
