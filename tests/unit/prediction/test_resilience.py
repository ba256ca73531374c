"""A study that asks what a slow device costs, and one that is disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.studies.answers import StudyResult
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study

STUDY = """\
name: tiny_study
title: A small model on wafers
question: How long?
model: gpt3_xl
recipe: gpt3_20b_chinchilla
candidates:
  - {strategy: weight-streaming, system: cs-2, devices: [2]}
batch_sizes: [8]
sampling: {tasks: 0}
"""
DISTURBED = """\
perturbations:
  seed: 3
  stragglers: [{rank: 1, factor: 1.5}]
  failure: {mttf: 60 s, checkpoint: 20 s, restart: 5 s}
resilience: {rank: 1, severities: [1.5]}
"""


def answer(folder: Path, text: str) -> StudyResult:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return run_study(load_study(str(path)))


def test_a_disturbed_study_takes_longer_by_its_step_and_says_so(tmp_path: Path) -> None:
    calm = answer(tmp_path, STUDY)
    rough = answer(tmp_path, STUDY + DISTURBED)
    before = calm.candidates[0]
    after = rough.candidates[0]
    assert before.perturbed is None
    assert calm.resilience == ()
    assert after.perturbed is not None
    assert after.perturbed.unperturbed_step_time_s == before.step_time_s
    assert after.perturbed.run is not None
    assert 0.5 < after.perturbed.run.goodput < 1.0
    slowdown = after.step_time_s / before.step_time_s
    assert slowdown > 1.2
    assert after.time_to_accuracy_s == pytest.approx(slowdown * before.time_to_accuracy_s)
    [curve] = rough.resilience
    assert curve.label == after.label
    assert [point.step_time_s for point in curve.points] == [before.step_time_s, after.step_time_s]
