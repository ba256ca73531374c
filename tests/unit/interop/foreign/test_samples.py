"""Small files of every foreign format are read with the published number of parameters."""

from pathlib import Path

import pytest

from perfsim.interop.formats import import_file


def gpt3(width: int, layers: int, vocabulary: int = 50257) -> int:
    """Weights and biases of a GPT-3 with tied embeddings and 2,048 learned positions."""
    return layers * (12 * width**2 + 13 * width) + (vocabulary + 2048) * width + 2 * width


XL = gpt3(2048, 24)
LLAMA_8B = 8_030_261_248
LLAMA2_70B = 68_976_648_192
DEEPSEEK_V3 = 671_026_419_200
SMALL = 4 * (12 * 1024**2 + 13 * 1024) + (51200 + 1024 + 2) * 1024
COUNTS = {
    "bridge_deepseek_v3.yaml": DEEPSEEK_V3 - 58 * 256,  # without biases of the routers
    "deepseek_v3_config.json": DEEPSEEK_V3,
    "gpt2_config.json": 124_439_808,
    "gpt_oss_20b_config.json": 20_914_757_184,
    "llama31_8b_config.json": LLAMA_8B,
    "megatron_175b.sh": gpt3(12288, 96),
    "megatron_70b.log": LLAMA2_70B,
    "megatron_small.log": SMALL,
    "mixtral_8x7b_config.json": 46_702_792_704,
    "nemo_xl.yaml": XL,
    "neox_20b.yml": 20_554_567_680,
    "titan_llama3_8b.toml": LLAMA_8B,
    "titan_old_llama3_8b.toml": LLAMA_8B,
    "zoo_r16_20b.yaml": gpt3(6144, 44),
    "zoo_r16_6p7b.yaml": gpt3(4096, 32),
    "zoo_r16_xl.yaml": XL,
    "zoo_r18_20b.yaml": gpt3(6144, 44),
    "zoo_r22_xl.yaml": XL,
    "zoo_trainer_xl.yaml": XL,
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_sample_of_a_model_is_read_with_its_published_count(repository: Path, name: str) -> None:
    assert import_file(repository / "tests/samples/foreign" / name).parameters == COUNTS[name]
