"""What a machine does not read is refused where it is asked, by every verb and by `check`."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import perfsim as ps
from perfsim.api.tools import check, validate
from perfsim.base.errors import InputError
from perfsim.catalog import data_root, default_catalog
from perfsim.prediction.planner import best_plan
from perfsim.prediction.question import Question, question_of
from perfsim.studies.batches import Target
from perfsim.studies.loading import changed_study, load_study

WAFERS = {"model": "gpt3_xl", "system": "cs-2", "devices": 2, "batch": 64}
GPUS = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 8, "batch": 64}
STUDY = "extends: gpt3_20b\n"
GRID = "title: t\nstudy: gpt3_20b\ngrid:\n"
GPU = "strategy: 3d, system: dgx-h100, devices: 8"
WAFER_ONLY = f"{STUDY}candidates: [{{strategy: weight-streaming, system: cs-2, devices: 4}}]\n"


def refused(folder: Path, text: str, name: str = "asked.yaml") -> str:
    """What `check` says of a file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as raised:
        check(path)
    return str(raised.value)


@pytest.mark.parametrize(
    ("asked", "change", "said"),
    [
        (WAFERS, {"runs_on": "megatron"}, "runs_on changes nothing on cs-2, a wafer-cluster"),
        (GPUS, {"runs_on": "modelzoo"}, "'modelzoo' is none of megatron, "),
        (WAFERS, {"runtime.tool": "deepspeed"}, "deepspeed does not train on cs-2"),
        (WAFERS, {"runtime": "megatron_core"}, "runtime changes nothing on cs-2, a wafer-cluster"),
        (WAFERS, {"runtime.cuda_graph": "true"}, "runtime.cuda_graph changes nothing on cs-2"),
        (WAFERS, {"recipe.kernels": None, "memory_limit": 0.5}, "(?s)recipe.kernels .*memory_limit changes"),
        (GPUS, {"runtime.software_release": "r1.7"}, "software_release changes nothing on dgx-a100-80gb"),
    ],
)
def test_what_a_machine_ignores_is_refused(asked: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        question_of(asked | change)
    question_of(WAFERS | {"runtime": "csoft_1p7"})


def otherwise(question: Question, path: str) -> Question:
    """The question with a value at a path that means nothing anywhere, so that reading it is an error."""
    root, _, name = path.partition(".")
    if not name:
        return replace(question, **{root: "any" if root == "runs_on" else 0.5})
    recipe = question.recipe
    nothing = {name: "bf16" if name == "reduce_precision" else "nothing"}
    changed = recipe.model_copy(update=nothing) if root == "recipe" else recipe.ran_with(**nothing)
    return replace(question, recipe=changed)


@pytest.mark.parametrize("asked", [WAFERS | {"model": "qwen3_30b_a3b"}, GPUS], ids=["wafers", "GPUs"])
def test_what_a_machine_is_said_not_to_read_changes_nothing_of_its_step(asked: dict[str, Any]) -> None:
    question = question_of(asked)
    answers = {}
    machine = question.machine
    paths = machine.unread
    paths += () if machine.has_host(question.system) else machine.unread_without_host
    for path in ("", *paths):
        run = best_plan(otherwise(question, path) if path else question)
        answers[path] = run.step_time_s, run.plan.layout, run.plan.memory
    assert all(answer == answers[""] for answer in answers.values()), answers


def test_what_all_candidates_share_is_for_those_that_read_it(tmp_path: Path) -> None:
    shared = {"runs_on": "torchtitan", "runtime.cuda_graph": True}
    gpus, wafers = changed_study(load_study("gpt3_20b"), shared, default_catalog()).candidates
    assert gpus.runs_on == "torchtitan"
    assert gpus.runtime is not None
    assert (wafers.runs_on, wafers.runtime) == (None, None)
    path = tmp_path / "mixed.yaml"
    path.write_text(f"{STUDY}runs_on: megatron\n", encoding="utf-8")
    assert [point.question.runs_on for point in load_study(str(path)).points][:2] == ["megatron", None]
    wafers = load_study("gpt3_20b").compared(["weight-streaming"])
    with pytest.raises(InputError, match="cuda_graph changes nothing on cs-2"):
        changed_study(wafers, {"runtime.cuda_graph": True}, default_catalog())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{WAFER_ONLY}runs_on: megatron\n", r"asked.yaml:3:1: runs_on changes nothing on cs-2"),
        (f"{WAFER_ONLY}memory_limit: 0.5\n", r"asked.yaml:3:1: memory_limit changes nothing"),
        (WAFER_ONLY.replace("}", ", runs_on: megatron}"), r"asked.yaml:2:\d+: runs_on: megatron does not"),
        (WAFER_ONLY.replace("}", ", wall_clock: gpu-cluster}"), "is of a gpu-cluster; cs-2 is a wafer"),
        (
            f"{STUDY}candidates: [{{{GPU}, wall_clock: cs-2}}]\n",
            "of a wafer-cluster; dgx-h100 is a gpu-cluster",
        ),
        (
            f"{GRID}  {WAFER_ONLY.removeprefix(STUDY)}  memory_limit: [0.5]\n",
            "grid: memory_limit changes nothing",
        ),
    ],
)
def test_a_file_with_what_none_of_its_machines_reads_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert re.search(said, refused(tmp_path, text))


@pytest.mark.parametrize("path", ["batch", "batch_sizes", "recipe.global_batch_size"])
def test_an_asked_batch_replaces_the_others_and_two_in_a_file_are_refused(tmp_path: Path, path: str) -> None:
    study = changed_study(load_study("deepseek_v3"), {path: 64}, default_catalog())
    assert list(Target.of_study(study).batches(study, study.points[0].question)) == [64]
    fixed = changed_study(load_study("gpt3_20b"), {"batch": 8}, default_catalog())
    asked = {"recipe": "deepseek_v3_pretraining", path: 64}
    assert changed_study(fixed, asked, default_catalog()).batch_sizes in ("auto", (64,))
    said = refused(tmp_path, f"{STUDY}recipe: deepseek_v3_pretraining\nbatch_sizes: [64]\n")
    assert "asked.yaml:3:1: batch_sizes: recipe deepseek_v3_pretraining has a batch of its own" in said


def test_a_measured_wafer_run_by_a_gpu_tool_is_refused_by_check_and_fails_in_validate(tmp_path: Path) -> None:
    rows = (data_root() / "studies" / "validation" / "weight_streaming.yaml").read_text(encoding="utf-8")
    first = rows.split("- id:")[1]
    text = f"schema: 1\ncases:\n- id:{first}  tool: megatron\n"
    assert "megatron does not train on cs-2" in refused(tmp_path, text)
    assert "megatron does not train" in validate(tmp_path / "asked.yaml").failed[0]["error"]


def test_prices_of_unknown_machines_are_refused_with_the_nearest(tmp_path: Path) -> None:
    text = "name: ours\nmachines:\n  dgx-h10: {device_hour: 2}\n"
    assert "asked.yaml:3:3: prices: unknown system 'dgx-h10'" in refused(tmp_path, text)
    file = tmp_path / "asked.yaml"
    assert "did you mean `dgx-h100`" in refused(tmp_path, f"{STUDY}prices: ./asked.yaml\n", "study.yaml")
    with pytest.raises(InputError, match="unknown system 'dgx-h10'"):
        ps.study("gpt3_20b", changes={"prices": str(file)})
    with pytest.raises(InputError, match="unknown system 'dgx-h10'"):
        ps.study({"extends": "gpt3_20b", "prices": {"machines": {"dgx-h10": {"device_hour": 2}}}})
    (tmp_path / "dgx-h10.yaml").write_text("extends: dgx-h100\n", encoding="utf-8")
    assert check(file).kind == "prices"


@pytest.mark.parametrize(("asked", "newest"), [(WAFERS, "2026-03-11"), (GPUS, "2026-08")])
def test_a_day_long_after_all_that_is_known_is_warned_of(asked: dict[str, Any], newest: str) -> None:
    told = [ps.predict(**asked, as_of=day).caveats for day in ("2026-11", "2099-01")]
    soon, late = (next(known for known in caveats if known.code == "as-of") for caveats in told)
    assert soon.severity == "info"
    assert late.severity == "warning"
    assert f"known after {newest}: the answer lacks what came since" in late.text
