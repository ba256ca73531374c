"""Small files of every foreign format are read with the published number of parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from perfsim.cli import main
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
PARAMETERS = {
    "bridge_deepseek_v3.yaml": DEEPSEEK_V3 - 58 * 256,  # no biases of the routers
    "deepseek_v3_config.json": DEEPSEEK_V3,
    "gpt2_config.json": 124_439_808,
    "gpt_oss_20b_config.json": 20_914_757_184,
    "llama31_8b_config.json": LLAMA_8B,
    "megatron_175b.sh": gpt3(12288, 96),
    "megatron_70b.log": LLAMA2_70B,
    "megatron_small.log": 4 * (12 * 1024**2 + 13 * 1024) + (51200 + 1024 + 2) * 1024,
    "mixtral_8x7b_config.json": 46_702_792_704,
    "mlperf_bert.txt": None,
    "nemo_xl.yaml": XL,
    "neox_20b.yml": 20_554_567_680,
    "titan_llama3_8b.toml": LLAMA_8B,
    "titan_old_llama3_8b.toml": LLAMA_8B,
    "zero2.json": None,
    "zero3.json": None,
    "zoo_r16_20b.yaml": B20,
    "zoo_r16_6p7b.yaml": B6_7,
    "zoo_r16_xl.yaml": XL,
    "zoo_r18_20b.yaml": B20,
    "zoo_r22_xl.yaml": XL,
    "zoo_trainer_xl.yaml": XL,
}


@pytest.fixture
def samples(repository: Path) -> Path:
    return repository / "tests/samples/foreign"


def test_every_sample_has_its_count(samples: Path) -> None:
    assert {path.name: import_file(path).parameters for path in samples.iterdir()} == PARAMETERS


def test_a_log_becomes_a_calibration_of_a_cluster_that_run_takes_in_one_command(
    samples: Path, tmp_path: Path
) -> None:
    log = samples / "megatron_small.log"
    out = tmp_path / "ours.yaml"
    made = CliRunner().invoke(
        main, ["calibrate", "steps", str(log), "--system", "dgx-a100-80gb", "--out", str(out)]
    )
    assert made.exit_code == 0, made.stderr
    asked = ["run", "--model", "gpt3_xl", "--system", "dgx-a100-80gb", "--devices", "8", "--json"]
    asked += ["--layout", "tp=2,pp=2,dp=2,mbs=1", "--batch", "16"]
    plain, scaled = (CliRunner().invoke(main, [*asked, *more]) for more in ([], ["--cluster", str(out)]))
    times_s = [json.loads(run.stdout)["step_time_s"] for run in (plain, scaled)]
    assert times_s[1] / times_s[0] == pytest.approx(yaml.safe_load(out.read_text())["scale"])
