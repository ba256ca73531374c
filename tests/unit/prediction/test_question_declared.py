"""What can be asked is declared once: options, arguments, paths and reference follow the declaration."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import perfsim as ps
from perfsim.base.errors import InputError
from perfsim.cli import main
from perfsim.prediction.question import ASKED, question_of

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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batchh": 3}, "batchh=3: 'batchh' cannot be asked"),
        ({"batchh": 3}, "did you mean `batch`"),
        ({"batch.size": 3}, "write batch=..."),
        ({"recipe.precison": "fp8"}, "recipe.precison: `precison` is not a field"),
        ({"recipe.precison": "fp8"}, "did you mean `precision`"),
        ({"recipe.precision": "fp9"}, "recipe.precision: `fp9` is not one of"),
        ({"system.node.nic.bandwidth": "1 GB"}, "system.node.nic.bandwidth: '1 GB' is a number of bytes"),
        ({"cluster.scale": 2}, "cluster is not given"),
    ],
)
def test_a_wrong_path_names_itself_the_value_and_the_nearest(change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as refused:
        question_of(GIVEN | change)
    assert said in str(refused.value)


def test_what_a_question_lacks_is_named() -> None:
    with pytest.raises(InputError, match="devices is missing"):
        question_of({"model": "gpt3_xl", "system": "dgx-a100-80gb"})
