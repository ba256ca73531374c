"""Sizes past every bound are refused when a file is read, and a step too long before it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import perfsim as ps
from perfsim.base.errors import CatalogError, LayoutError
from perfsim.base.sizes import MOST_LAYER_PASSES, passes_problem
from perfsim.catalog import default_catalog, parse_file
from perfsim.cli import main
from perfsim.evidence.cases import CaseFile
from perfsim.specs.model import TransformerConfig
from perfsim.studies.spec import StudySpec

CASE = """\
schema: 1
cases:
- id: "large"
  family: "f"
  evidence: "A"
  system: {device: "a100-sxm4-80gb", num_devices: 8}
  model: {num_layers: 24, hidden_size: 1024, ffn_hidden_size: 4096, num_attention_heads: 16,
          vocab_size: 51200, seq_length: 2048}
  strategy: "3d"
  parallel: {data: 8}
  training: {global_batch_size: 64}
  measured: {step_time_s: 1.0}
"""
STUDY = """\
name: small
title: A study
question: Which is first?
model: gpt3_xl
recipe: gpt3_20b_chinchilla
candidates:
  - {strategy: 3d, system: dgx-a100-80gb, devices: [4]}
batch_sizes: [16]
"""
MODEL = """\
name: wide
num_layers: 24
hidden_size: 1024
ffn_hidden_size: 4096
num_attention_heads: 16
vocab_size: 51200
max_position_embeddings: 2048
"""


def refused(text: str, kind: type, folder: Path) -> str:
    path = folder / "asked.yaml"
    path.write_text(text)
    with pytest.raises(CatalogError) as error:
        parse_file(path, kind, default_catalog())
    return str(error.value)


@pytest.mark.parametrize(
    ("was", "now", "line", "allowed"),
    [
        ("num_layers: 24", "num_layers: 1000000000", 7, "4096"),
        ("hidden_size: 1024", "hidden_size: 1000000000", 7, "1048576"),
        ("seq_length: 2048", "seq_length: 1000000000", 8, "16777216"),
        ("global_batch_size: 64", "global_batch_size: 1000000", 11, "131072"),
        ("num_devices: 8", "num_devices: 2000000", 6, "1048576"),
        ("data: 8", "data: 2000000", 10, "1048576"),
    ],
)
def test_a_case_out_of_all_bounds_is_refused_at_its_line(
    was: str, now: str, line: int, allowed: str, tmp_path: Path
) -> None:
    said = refused(CASE.replace(was, now, 1), CaseFile, tmp_path)
    assert f"asked.yaml:{line}:" in said
    assert f"less than or equal to {allowed}, not {now.split()[1]}" in said


@pytest.mark.parametrize(
    ("was", "now", "line", "allowed"),
    [
        ("devices: [4]", "devices: [2000000]", 7, "1048576"),
        ("batch_sizes: [16]", "batch_sizes: [2000000]", 8, "131072"),
    ],
)
def test_a_study_out_of_all_bounds_is_refused_at_its_line(
    was: str, now: str, line: int, allowed: str, tmp_path: Path
) -> None:
    said = refused(STUDY.replace(was, now), StudySpec, tmp_path)
    assert f"asked.yaml:{line}:" in said
    assert f"less than or equal to {allowed}, not 2000000" in said


def test_a_list_of_choices_has_an_end(tmp_path: Path) -> None:
    many = ", ".join(str(number) for number in range(1, 300))
    said = refused(STUDY.replace("[16]", f"[{many}]"), StudySpec, tmp_path)
    assert "at most 256 items" in said


def test_a_model_out_of_all_bounds_is_refused_at_its_line(tmp_path: Path) -> None:
    said = refused(MODEL.replace("vocab_size: 51200", "vocab_size: 99999999999"), TransformerConfig, tmp_path)
    assert "asked.yaml:6:" in said
    assert "less than or equal to 16777216" in said


def test_a_step_with_too_many_passes_is_refused_before_it_is_written() -> None:
    point = {
        "model": "gpt3_175b",
        "system": "dgx-a100-80gb",
        "devices": 8,
        "strategy": "3d",
        "layout": "tp=8,mbs=1,recompute=full",
        "batch": 2**15,
    }
    with pytest.raises(LayoutError, match=r"96 layers × 32768 micro-batches are 3145728 passes, at most"):
        ps.predict(**point)
    assert not passes_problem(96, MOST_LAYER_PASSES // 96)
    assert passes_problem(96, MOST_LAYER_PASSES // 96 + 1)


def test_the_verb_says_it_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(CASE.replace("num_layers: 24", "num_layers: 1000000000"))
    result = CliRunner().invoke(main, ["validate", str(path)])
    assert "less than or equal to 4096" in " ".join(result.stdout.split())
    assert "1 case, 1 failed" in result.stdout
