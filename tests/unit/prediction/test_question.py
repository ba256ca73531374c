"""What can be asked is declared once: options, arguments, paths and reference follow the declaration.

Questions on one machine share its prices, and are answered as with their own.
"""

import ast
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import perfsim as ps
from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.cli import main
from perfsim.prediction.question import ASKED, question_of
from perfsim.studies.loading import CALLED, changed_study, load_study, load_sweep
from perfsim.studies.spec import CandidateSpec, StudySpec

GIVEN = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 8, "batch": 64}


@pytest.mark.parametrize(("verb", "function"), [("run", ps.predict), ("plan", ps.plan)])
def test_every_declared_field_is_an_option_and_an_argument_with_its_help(verb: str, function: object) -> None:
    declared = {name: field for name, field in ASKED.items() if verb in field.by}
    options = {option.name: getattr(option, "help", "") for option in main.commands[verb].params}
    arguments = inspect.signature(function).parameters
    for name, field in declared.items():
        assert options[name].startswith(field.help)
        assert field.help in str(function.__doc__)
        assert (arguments[name].default is inspect.Parameter.empty) == field.required


def test_every_declared_field_is_read_somewhere(repository: Path) -> None:
    read: set[str] = set()
    for path in (repository / "perfsim").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = ast.unparse(node.value)
                if owner.endswith("question") or (owner == "self" and path.name == "question.py"):
                    read.add(node.attr)
    assert {field.field for field in ASKED.values()} <= read


def test_a_path_changes_a_value_inside_a_description_as_an_object_would() -> None:
    changed = question_of(GIVEN | {"recipe.precision": "fp16", "system.node.nic.bandwidth": "100 Gb/s"})
    recipe = ps.Catalog().recipe("llm_2021")
    assert changed.recipe.precision == "fp16" != recipe.precision
    assert changed.system.node.nic.bandwidth == 12.5e9


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
        ("question", {"prices.pue": 2}, "prices are of a study, a sweep or perfsim solve"),
        ("study", {"perturb": "jitter=x"}, "'jitter=x': 'x' is not a number"),
        ("study", {"recip": 1}, "recip=1: `recip` cannot be changed"),
        ("study", {"recipe.precison": 1}, "did you mean `precision`"),
        ("study", {"system.nod": 3}, "system.nod: `nod` is not a field"),
        ("study", {"candidates": ()}, "`candidates` cannot be changed"),
        ("study", {"recipe.runtime": "megatron_core"}, "write runtime"),
        ("study", {"layout": "tp=8x"}, "layout 'tp=8x'"),
    ],
)
def test_a_wrong_path_names_its_value_and_the_nearest(asking: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        ASKING[asking](change)
    assert said in str(refused.value)


def test_every_declared_field_of_a_study_has_a_place_in_it() -> None:
    places = {*StudySpec.model_fields, *CandidateSpec.model_fields}
    declared = [name for name, field in ASKED.items() if "study" in field.by]
    assert {CALLED.get(name, name).partition(".")[0] for name in declared} <= places


def test_a_study_takes_the_paths_of_a_question() -> None:
    changes = {"recipe.precision": "fp16", "runtime.overlap_grad_reduce": False, "batch": 512, "devices": 16}
    changes |= {"system.node.nic.bandwidth": "100 Gb/s", "prices.machines.cs-2.device_hour": 9}
    changes |= {"perturb": "jitter=0.1", "layout": "tp=8,dp=2,mbs=1"}
    changed = changed_study(load_study("gpt3_20b"), changes, ps.Catalog())
    questions = [point.question for point in changed.points]
    assert {question.recipe.precision for question in questions} == {"fp16"}
    assert not questions[0].job.runtime.overlap_grad_reduce
    assert questions[1].runtime is None, "wafers read none of the settings of a host"
    assert changed.batch_sizes == (512,)
    assert changed.perturbations.jitter == 0.1
    assert [candidate.layout for candidate in changed.candidates] == ["tp=8,dp=2,mbs=1", None]
    assert [candidate.devices for candidate in changed.candidates] == [(16,), (16,)]
    gpus, wafers = (question.system for question in questions)
    assert gpus.node.nic.bandwidth == 12.5e9
    assert wafers == ps.Catalog().system("cs-2")
    assert [changed.prices_of(known).machines["cs-2"].device_hour for known in changed.candidates] == [9, 9]


def test_a_sweep_takes_paths_for_its_study_its_candidates_and_the_axes_of_its_grid(tmp_path: Path) -> None:
    sweep = load_sweep("capacity_20b", changes={"recipe.seq_length": 1024, "devices": 4})
    assert {point.study.recipe.seq_length for point in sweep.points} == {1024}
    assert {point.num_devices for point in sweep.points} == {4}
    path = tmp_path / "sweep.yaml"
    grid = "{batch: [64, 128], runtime.overlap_grad_reduce: [true, false]}"
    path.write_text(f"name: grid\ntitle: A grid\nstudy: gpt3_20b\ngrid: {grid}\n", encoding="utf-8")
    points = load_sweep(str(path)).points
    assert {point.study.batch_sizes for point in points} == {(64,), (128,)}
    assert {point.runtime.overlap_grad_reduce for point in points} == {True, False}


def test_oversubscription_in_a_systems_file_slows_a_step_by_what_crosses_leaves(tmp_path: Path) -> None:
    """Eight messages on two uplinks: the bytes of two sends and of two sums take 4 times as long."""
    runs = []
    for ratio in (1.0, 4.0):
        path = tmp_path / f"thin{ratio:g}.yaml"
        fabric = f"fabric: {{nodes_per_leaf: 1, oversubscription: {ratio}}}"
        path.write_text(f"extends: dgx-a100-80gb\n{fabric}\nassumed: {{fabric: a test}}\n", encoding="utf-8")
        layout = "tp=8,pp=2,dp=1,mbs=1"
        runs.append(ps.predict(model="gpt3_xl", system=path, devices=16, layout=layout, batch=1).run)
    wide, thin = runs
    across = [work for work in thin.graph.works if work.group is not None and abs(work.group.stride) == 8]
    assert len(across) == 4
    costs = thin.step.costs
    bytes_s = sum(costs.duration_s(work) - costs.latency_s(work) for work in across)
    assert thin.step_time_s - wide.step_time_s == pytest.approx(3 * bytes_s, rel=1e-6)


@pytest.mark.parametrize(
    ("tool", "runtime"),
    [
        ("torchtitan", "torchtitan"),
        ("maxtext", "maxtext"),
        ("llm-foundry", "fsdp_2023"),
        ("megatron", "megatron_core"),
        ("deepspeed", "megatron_core"),
    ],
)
def test_a_named_tool_runs_at_its_own_speed_where_that_was_measured(tool: str, runtime: str) -> None:
    asked = {"model": "llama31_8b", "system": "dgx-h100", "devices": 64, "batch": 128, "runs_on": tool}
    planned = question_of(asked)
    assert planned.job.runtime.name == runtime
    assert planned.job.runtime.by_rule == (tool == "deepspeed"), "a tool with a runtime of its own names it"
    given = question_of({**asked, "layout": "dp=64,zero=3"})
    assert given.job.runtime.name == runtime, "a layout that is planned takes as long when it is given"


def test_the_usual_runtime_names_the_tool_that_takes_its_plans() -> None:
    question = question_of({"model": "gpt3_xl", "system": "dgx-h100", "devices": 8, "recipe": "llm_2024"})
    assert question.job.runtime.name == "megatron_core"
    assert question.job.runtime.takes_plans == "megatron"
    other = replace(question, runtime=default_catalog().load("runtime", "csoft_1p7"))
    assert other.job.runtime.name == "csoft_1p7"
    assert other.job.runtime.takes_plans == "modelzoo"
