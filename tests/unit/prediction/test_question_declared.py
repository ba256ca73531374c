"""What can be asked is declared once: options, arguments, paths and reference follow the declaration."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perfsim as ps
from perfsim.base.errors import InputError
from perfsim.cli import main
from perfsim.prediction.question import ASKED, question_of
from perfsim.studies.axes import changed_study, load_sweep, study_path
from perfsim.studies.loading import load_study
from perfsim.studies.spec import CandidateSpec, StudySpec

GIVEN = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 8, "batch": 64}


@pytest.mark.parametrize(("verb", "function"), [("run", ps.predict), ("plan", ps.plan)])
def test_every_declared_field_is_an_option_and_an_argument_with_its_help(verb: str, function: object) -> None:
    declared = {name: asked for name, asked in ASKED.items() if verb in asked.by}
    options = {option.name: getattr(option, "help", "") for option in main.commands[verb].params}
    assert callable(function)
    arguments = inspect.signature(function).parameters
    for name, asked in declared.items():
        assert options[name].startswith(asked.help)
        assert asked.help in str(function.__doc__)
        assert (arguments[name].default is inspect.Parameter.empty) == asked.required


def test_every_declared_field_is_read_somewhere() -> None:
    read: set[str] = set()
    for path in Path(str(ps.__file__)).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = ast.unparse(node.value)
                if owner.endswith("question") or (owner == "self" and path.name == "question.py"):
                    read.add(node.attr)
    assert {asked.field for asked in ASKED.values()} <= read


def test_a_path_changes_a_value_inside_a_description_as_an_object_would() -> None:
    changed = question_of(GIVEN | {"recipe.precision": "fp16", "system.node.nic.bandwidth": "100 Gb/s"})
    recipe = ps.Catalog().recipes["llm_2021"]
    assert changed.recipe.precision == "fp16" != recipe.precision
    assert getattr(changed.system, "node").nic.bandwidth == 12.5e9  # noqa: B009


ASKING: dict[str, Callable[[dict[str, Any]], object]] = {
    "question": lambda changes: question_of(GIVEN | changes),
    "study": lambda changes: changed_study(load_study("gpt3_20b"), changes, ps.Catalog()),
}


@pytest.mark.parametrize(
    ("asking", "change", "said"),
    [
        ("question", {"batchh": 3}, "batchh=3: 'batchh' cannot be asked"),
        ("question", {"batchh": 3}, "did you mean `batch`"),
        ("question", {"batch.size": 3}, "write batch=..."),
        ("question", {"recipe.precison": "fp8"}, "recipe.precison: `precison` is not a field"),
        ("question", {"recipe.precison": "fp8"}, "did you mean `precision`"),
        ("question", {"recipe.precision": "fp9"}, "recipe.precision: `fp9` is not one of"),
        ("question", {"system.node.nic.bandwidth": "1 GB"}, "nic.bandwidth: '1 GB' is a number of bytes"),
        ("question", {"cluster.scale": 2}, "cluster is not given"),
        ("question", {"recipe.runtime.attention": "flash"}, "write runtime.attention"),
        ("question", {"devices": None}, "devices is missing"),
        ("study", {"recip": 1}, "recip=1: `recip` cannot be changed"),
        ("study", {"recipe.precison": 1}, "did you mean `precision`"),
        ("study", {"system.nod": 3}, "system.nod: `nod` is not a field"),
        ("study", {"candidates": ()}, "`candidates` cannot be changed"),
        ("study", {"recipe.runtime": "megatron_core"}, "write runtime"),
        ("study", {"layout": "tp=8x"}, "layout 'tp=8x'"),
    ],
)
def test_a_wrong_path_names_itself_the_value_and_the_nearest(
    asking: str, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        ASKING[asking](change)
    assert said in str(refused.value)


# ------------------------------------------------------------------------- studies, sweeps and proofs
def test_every_declared_field_of_a_study_has_a_place_in_it() -> None:
    places = {*StudySpec.model_fields, *CandidateSpec.model_fields}
    declared = [name for name, asked in ASKED.items() if "study" in asked.by]
    assert {study_path(name).partition(".")[0] for name in declared} <= places


def test_a_study_takes_the_paths_of_a_question() -> None:
    changes = {
        "recipe.precision": "fp16",
        "runtime.overlap_grad_reduce": False,
        "system.node.nic.bandwidth": "100 Gb/s",
        "batch": 512,
        "devices": 16,
    }
    changed = changed_study(load_study("gpt3_20b"), changes, ps.Catalog())
    asked = [point.question for point in changed.points]
    assert {question.recipe.precision for question in asked} == {"fp16"}
    assert not any(question.job.runtime.overlap_grad_reduce for question in asked)
    assert changed.batch_sizes == (512,)
    assert [candidate.devices for candidate in changed.candidates] == [(16,), (16,)]
    gpus, wafers = (question.system for question in asked)
    assert getattr(gpus, "node").nic.bandwidth == 12.5e9  # noqa: B009
    assert wafers == ps.Catalog().systems["cs-2"]


def test_a_sweep_takes_paths_for_its_study_and_for_the_candidates_and_axes_of_its_grid(
    tmp_path: Path,
) -> None:
    sweep = load_sweep("capacity_20b", changes={"recipe.seq_length": 1024, "devices": 4})
    assert {point.study.recipe.seq_length for point in sweep.points} == {1024}
    assert {point.num_devices for point in sweep.points} == {4}
    path = tmp_path / "sweep.yaml"
    grid = "{batch: [64, 128], runtime.overlap_grad_reduce: [true, false]}"
    path.write_text(f"name: grid\ntitle: A grid\nstudy: gpt3_20b\ngrid: {grid}\n", encoding="utf-8")
    points = load_sweep(str(path)).points
    assert {point.study.batch_sizes for point in points} == {(64,), (128,)}
    assert {point.runtime.overlap_grad_reduce for point in points} == {True, False}


def test_a_runtime_stands_next_to_the_recipe_in_a_study_and_in_its_candidates(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "name: two_runtimes\nextends: gpt3_20b\nruntime: megatron_core\ncandidates:\n"
        "  - {strategy: 3d, system: dgx-a100-80gb, devices: 8}\n"
        "  - {strategy: 3d, system: dgx-a100-80gb, devices: 8, "
        "runtime: {extends: megatron_2021, overlap_grad_reduce: false}}\n"
        "assumed: {model: a, recipe: a, candidates: a, runtime: a}\n",
        encoding="utf-8",
    )
    study = load_study(str(path))
    named = [study.runtime_of(candidate).name for candidate in study.candidates]
    assert named[0] == "megatron_core" != named[1]
    changed = changed_study(study, {"runtime.attention": "standard"}, ps.Catalog())
    runtimes = [changed.runtime_of(candidate) for candidate in changed.candidates]
    assert {runtime.attention for runtime in runtimes} == {"standard"}
    assert [runtime.overlap_grad_reduce for runtime in runtimes] == [
        study.runtime_of(candidate).overlap_grad_reduce for candidate in study.candidates
    ]
