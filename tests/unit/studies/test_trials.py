"""`why`: changes are tried, not guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfsim.api.tools import why
from perfsim.base.errors import InputError
from perfsim.cli import main
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.studies.trials import Explained

STUDY = """
extends: gpt3_20b
name: small
title: Small
question: why
model: cerebras_gpt_111m
recipe: {extends: gpt3_pretraining, tokens: 2.2e+9, global_batch_size: 128}
candidates:
  - {strategy: 3d, system: dgx-a100-80gb, devices: [16]}
  - {strategy: weight-streaming, system: cs-2, devices: [1]}
sampling: {mode: off}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("why") / "small.yaml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="module")
def explained(path: Path) -> tuple[Explained, ...]:
    return why(path)


def test_a_change_has_the_time_that_a_study_with_it_predicts(
    explained: tuple[Explained, ...], path: Path
) -> None:
    gpus = explained[0]
    tried = {own.change: own for own in gpus.tried}
    spec = load_study(str(path))
    system = spec.candidates[0].system.with_(**{"node.nic.bandwidth": 50e9})
    candidate = spec.candidates[0].model_copy(update={"system": system})
    changed = run_study(spec.model_copy(update={"candidates": (candidate,), "resilience": None})).result
    own = tried["a network between nodes twice as fast"]
    assert own.time_s == pytest.approx(changed.candidates[0].time_to_accuracy_s, rel=1e-9)
    assert own.ratio == pytest.approx(own.time_s / gpus.time_s)


def test_gpus_and_wafers_try_what_they_have_and_the_best_comes_first(
    explained: tuple[Explained, ...],
) -> None:
    gpus, wafer = ({own.change for own in candidate.tried} for candidate in explained)
    assert {"links inside a node twice as fast", "flash attention", "twice the devices"} <= gpus
    assert {"a SwarmX twice as fast", "twice the activation servers", "twice the devices"} <= wafer
    assert "a SwarmX twice as fast" not in gpus
    for candidate in explained:
        ratios = [own.ratio for own in candidate.tried if own.ratio is not None]
        assert ratios == sorted(ratios)
        assert sum(candidate.parts_s.values()) == pytest.approx(candidate.step_time_s, rel=1e-6)
        assert all(own.reason for own in candidate.tried if own.ratio is None)


def test_an_answer_is_explained_by_its_summary(path: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({"study": str(path), "candidates": [], "assumptions": []}))
    shown = CliRunner().invoke(main, ["why", str(summary), "--compare", "weight-streaming"])
    assert shown.exit_code == 0, shown.output
    assert "The path of the step: compute" in " ".join(shown.output.split())
    assert "Tried without effect:" in shown.output
    summary.write_text("{}")
    with pytest.raises(InputError, match="is no answer of"):
        why(summary)


def test_an_answer_of_another_study_of_the_same_name_is_refused(path: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    row = {"strategy": "weight-streaming", "system": "cs-2", "num_devices": 7}
    summary.write_text(json.dumps({"study": str(path), "candidates": [row], "assumptions": []}))
    with pytest.raises(InputError, match="answers another study than"):
        why(summary)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"study": "a",\n "candidates": [}', 2),
        ('{"study": "a",\n "candidates":\n  3, "assumptions": []}', 3),
        ('{"candidates": []}', 1),
        ("[]", 1),
        ('{"study":\n "\xff"}', 2),
    ],
)
def test_a_damaged_answer_is_refused_at_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="is no answer of") as caught:
        why(path)
    assert [problem.line for problem in caught.value.problems] == [line]
