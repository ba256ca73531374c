"""`diff`: each changed input alone, and the remainder."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfsim.api.tools import diff
from perfsim.base.errors import InputError
from perfsim.cli import main

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


def test_each_changed_input_moves_what_it_moves_alone_and_the_remainder_is_the_rest(tmp_path: Path) -> None:
    old = written(tmp_path)
    new = written(tmp_path, name="new", tokens="4.4e+9", attention="flash", system="dgx-h100")
    difference = diff(old, new)
    changes = {change.path: change for change in difference.changes}
    assert set(changes) == {"recipe.runtime.attention", "recipe.tokens", "candidate 0.system"}
    system = changes["candidate 0.system"]
    assert (system.before, system.after) == ("dgx-a100-80gb", "dgx-h100")
    assert system.ratios[1] == 1.0
    assert system.ratios[0] is not None
    assert system.ratios[0] < 0.8
    assert all(ratio is not None and ratio > 1.7 for ratio in changes["recipe.tokens"].ratios)
    for place, moved in enumerate(difference.candidates):
        alone = [change.ratios[place] for change in difference.changes]
        assert moved.remainder is not None
        product = math.prod(ratio for ratio in alone if ratio is not None) * moved.remainder
        assert product == pytest.approx(moved.ratio, rel=1e-9)


def test_equal_studies_differ_in_nothing(tmp_path: Path) -> None:
    difference = diff(written(tmp_path), written(tmp_path, name="same"))
    assert difference.changes == ()
    assert [(own.ratio, own.remainder) for own in difference.candidates] == [(1.0, 1.0)] * 2


def test_two_answers_are_compared_as_they_stand(tmp_path: Path) -> None:
    documents = (
        {
            "candidates": [{"label": "1 CS-2", "time_to_accuracy_s": time_s}],
            "assumptions": [{"topic": "device", "name": "peak", "value": value}],
        }
        for time_s, value in ((100.0, "1"), (150.0, "2"))
    )
    paths = answers(tmp_path, *documents)
    shown = CliRunner().invoke(main, ["diff", *map(str, paths), "--json"])
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.output)
    assert answer["changes"][0]["path"] == "device: peak"
    assert (answer["changes"][0]["before"], answer["changes"][0]["after"]) == ("1", "2")
    assert answer["candidates"][0]["time_after_s"] == 150.0
    assert "1.500" in CliRunner().invoke(main, ["diff", *map(str, paths)]).output
    with pytest.raises(InputError, match="two studies or two answers"):
        diff(paths[0], written(tmp_path))


@pytest.mark.parametrize(
    "candidates", [[{}], 5, [{"label": "a", "time_to_accuracy_s": None}], [["a"]]], ids=repr
)
def test_a_document_of_another_form_is_refused(tmp_path: Path, candidates: object) -> None:
    (path,) = answers(tmp_path, {"candidates": candidates})
    with pytest.raises(
        InputError, match=r"the answer of 's0' lacks|answer0.json:1:[0-9]+: is no answer of .*: candidates"
    ):
        diff(path, path)


def answers(folder: Path, *documents: dict[str, object]) -> list[Path]:
    paths = []
    for number, document in enumerate(documents):
        path = folder / f"answer{number}.json"
        path.write_text(json.dumps({"study": f"s{number}", "assumptions": [], **document}))
        paths.append(path)
    return paths


def test_two_answers_with_other_batches_and_layouts_differ_in_them(tmp_path: Path) -> None:
    rows = [
        {"label": "1 x cs-2", "time_to_accuracy_s": 1.0, "global_batch_size": batch, "layout": layout}
        for batch, layout in (
            (64, {"data": 1, "micro_batch_size": 8}),
            (96, {"data": 1, "micro_batch_size": 12}),
        )
    ]
    difference = diff(*answers(tmp_path, *({"candidates": [row]} for row in rows)))
    assert [(own.path, own.before, own.after) for own in difference.changes] == [
        ("1 x cs-2: batch", "64", "96"),
        ("1 x cs-2: layout", "micro_batch_size 8", "micro_batch_size 12"),
    ]


def test_a_candidate_of_one_answer_alone_is_named(tmp_path: Path) -> None:
    both, one = ({"label": label, "time_to_accuracy_s": 2.0} for label in ("a", "b"))
    paths = answers(tmp_path, {"candidates": [one, both]}, {"candidates": [both]})
    difference = diff(*paths)
    assert [own.before for own in difference.candidates] == ["a"]
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
    assert [(own.before, own.after) for own in difference.candidates] == [
        ("1 CS-2, weight-streaming", "1 CS-2, weight-streaming")
    ]
    (model,) = difference.changes
    assert model.ratios == (pytest.approx(difference.candidates[0].ratio),)
    assert len(difference.missing) == 1
    assert difference.missing[0].endswith("no answer in large")
