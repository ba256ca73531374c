"""Small sweeps to run, of a small model on wafers, which answer in milliseconds."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from perfsim.catalog import default_catalog
from perfsim.studies.loading import study_from
from perfsim.studies.spec import StudySpec

STUDY = """\
name: tiny_study
title: A small model on wafers
question: How long?
model: gpt3_xl
recipe: gpt3_20b_chinchilla
candidates:
  - {strategy: weight-streaming, system: cs-2, devices: [1]}
batch_sizes: [8]
sampling: {tasks: 0}
"""


@pytest.fixture
def write_sweep(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a sweep of the small study over a grid given as indented YAML, from line 4 on."""

    def write(grid: str) -> Path:
        (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
        path = tmp_path / "tiny.yaml"
        path.write_text(f"title: A grid\nstudy: study.yaml\ngrid:\n{grid}\n", encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def study_of() -> Callable[..., StudySpec]:
    """Makes the small study with some of its fields as they are given, written as in YAML."""
    return lambda **fields: study_from(yaml.safe_load(STUDY) | fields, default_catalog())
