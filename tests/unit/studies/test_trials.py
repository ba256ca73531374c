"""`why`: changes are tried, not guessed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfsim.api.tools import diff, why
from perfsim.base.errors import InputError
from perfsim.cli import main
from perfsim.report.terminal import why_lines
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


def test_a_change_takes_as_long_as_its_study(explained: tuple[Explained, ...], path: Path) -> None:
    gpus = explained[0]
    tried = {row.change: row for row in gpus.tried}
    spec = load_study(str(path))
    system = spec.candidates[0].system.with_(**{"node.nic.bandwidth": 50e9})
    candidate = spec.candidates[0].model_copy(update={"system": system})
    changed = run_study(spec.model_copy(update={"candidates": (candidate,)}))
    row = tried["a network between nodes twice as fast"]
    assert row.time_s == pytest.approx(changed.candidates[0].time_to_accuracy_s, rel=1e-9)
    assert row.ratio == pytest.approx(row.time_s / gpus.time_s)
    assert tried["a CUDA graph"].ratio < 1.0, "launches of the host are part of this small model's step"
    assert "a CUDA graph" not in {row.change for row in explained[1].tried}


def test_candidates_are_explained_with_their_caveats(explained: tuple[Explained, ...], path: Path) -> None:
    answered = run_study(load_study(str(path))).candidates
    assert [own.caveats for own in explained] == [row.caveats for row in answered]
    lines = " ".join(" ".join(why_lines(explained)).split())
    assert all(f"{known.severity}: {known.text}" in lines for own in explained for known in own.caveats)


def test_a_summary_is_explained_unless_of_another_study(path: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({"study": str(path), "candidates": [], "assumptions": []}))
    shown = CliRunner().invoke(main, ["why", str(summary), "--compare", "weight-streaming"])
    assert shown.exit_code == 0, shown.output
    assert "The path of the step: attention" in " ".join(shown.output.split())
    assert "Tried without effect:" in shown.output
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
        ("{}", 1),
        ('{"study":\n "\xff"}', 2),
    ],
)
def test_a_damaged_answer_is_refused_at_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="is no answer of") as caught:
        why(path)
    assert [problem.line for problem in caught.value.problems] == [line]


# `diff`: each changed input alone, and the remainder.

BASE = """
name: {name}
title: T
question: q
model: cerebras_gpt_111m
recipe: {{extends: gpt3_pretraining, tokens: {tokens}, global_batch_size: 128,
  runtime: {{extends: megatron_2021, attention: {attention}}}}}
candidates:
  - {{strategy: 3d, system: {system}, devices: [8]}}
  - {{strategy: weight-streaming, system: cs-2, devices: [1]}}
sampling: {{mode: off}}
"""
OLD = {"name": "old", "tokens": "2.2e+9", "attention": "standard", "system": "dgx-a100-80gb"}


def written(folder: Path, **changes: str) -> Path:
    values = OLD | changes
    path = folder / f"{values['name']}.yaml"
    path.write_text(BASE.format(**values))
    return path


def test_equal_studies_differ_in_nothing(tmp_path: Path) -> None:
    difference = diff(written(tmp_path), written(tmp_path, name="same"))
    assert difference.changes == ()
    assert [(row.ratio, row.remainder) for row in difference.candidates] == [(1.0, 1.0)] * 2


def test_two_answers_are_compared_as_they_stand(tmp_path: Path) -> None:
    rows = [
        {"label": "1 CS-2", "time_to_accuracy_s": time_s, "wall_s": time_s + 100} for time_s in (100.0, 150.0)
    ]
    known = {"topic": "device", "name": "peak", "source": "", "kind": "fit"}
    inputs = [known | {"value": value} for value in "12"]
    both = zip(rows, inputs, strict=True)
    paths = answers(tmp_path, *({"candidates": [row], "assumptions": [given]} for row, given in both))
    shown = CliRunner().invoke(main, ["diff", *map(str, paths), "--json"])
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.output)
    (change,) = answer["changes"]
    assert (change["path"], change["before"], change["after"]) == ("device: peak", "1", "2")
    assert [answer["candidates"][0][f"{kind}_after_s"] for kind in ("time", "wall")] == [150.0, 250.0]
    lines = CliRunner().invoke(main, ["diff", *map(str, paths)]).output
    assert "1.250" in lines
    assert ": 1 input differs" in lines
    with pytest.raises(InputError, match="two studies or two answers"):
        diff(paths[0], written(tmp_path))


@pytest.mark.parametrize(
    "candidates", [[{}], 5, [{"label": "a", "time_to_accuracy_s": None}], [["a"]]], ids=repr
)
def test_a_document_of_another_form_is_refused(tmp_path: Path, candidates: object) -> None:
    (path,) = answers(tmp_path, {"candidates": candidates})
    said = r"answer0.json:1: a candidate lacks|answer0.json:1:[0-9]+: is no answer of .*: candidates"
    with pytest.raises(InputError, match=said):
        diff(path, path)


def answers(folder: Path, *documents: dict[str, object]) -> list[Path]:
    paths = []
    for number, document in enumerate(documents):
        path = folder / f"answer{number}.json"
        path.write_text(json.dumps({"study": f"s{number}", "assumptions": [], **document}))
        paths.append(path)
    return paths


def test_a_candidate_of_one_answer_alone_is_named(tmp_path: Path) -> None:
    both, one = ({"label": label, "time_to_accuracy_s": 2.0} for label in ("a", "b"))
    paths = answers(tmp_path, {"candidates": [one, both]}, {"candidates": [both]})
    difference = diff(*paths)
    assert [row.before for row in difference.candidates] == ["a"]
    assert difference.missing == ("b: no answer in s1",)
    assert "b: no answer in s1" in CliRunner().invoke(main, ["diff", *map(str, paths)]).output


def test_candidates_are_paired_though_one_has_no_plan(tmp_path: Path) -> None:
    plain = "strategy: 3d, system: {system}, devices: [8]"
    fixed = BASE.replace(plain, plain + ', layout: "dp=8,mbs=1,zero=0,recompute=full"')
    paths = []
    for name, model in (("small", "cerebras_gpt_111m"), ("large", "cerebras_gpt_13b")):
        text = fixed.format(**OLD | {"name": name}).replace("cerebras_gpt_111m", model)
        paths.append(tmp_path / f"{name}.yaml")
        paths[-1].write_text(text)
    difference = diff(*paths)
    (moved,) = difference.candidates
    assert moved.before == moved.after == "1 CS-2, weight-streaming"
    (model,) = difference.changes
    assert model.ratios == (pytest.approx(moved.ratio),)
    (missing,) = difference.missing
    assert missing.endswith("no answer in large")
