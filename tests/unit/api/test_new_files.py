"""A device, a system and a model as a newcomer adds them: three YAML files and no code."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfsim as ps

FILES = {
    "gpu.yaml": """\
name: gpu
extends: h100-sxm5-80gb
peak: {bf16: 2000 TFLOP/s, fp16: 2000 TFLOP/s, fp32: 67 TFLOP/s}
assumed: {peak: twice that of the parent}
""",
    "node.yaml": """\
name: node
extends: dgx-h100
device: gpu.yaml
assumed: {device: a node with other devices}
""",
    "model.yaml": """\
name: model
extends: gpt3_xl
num_layers: 12
assumed: {num_layers: half of the parent}
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_device_and_a_model_are_files_alone(folder: Path) -> None:
    new = ps.predict(model=folder / "model.yaml", system=folder / "node.yaml", devices=8, batch=64)
    old = ps.predict(model=folder / "model.yaml", system="dgx-h100", devices=8, batch=64)
    assert new.step_time_s < old.step_time_s
    assert new.model == "model"
