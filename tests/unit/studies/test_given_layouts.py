"""Candidates with a fixed layout, strategies side by side, and failures that stay with their candidate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfsim.api.studying import study
from perfsim.base.errors import CatalogError, InputError, LayoutError, PerfsimError, PlanError, Problem
from perfsim.catalog import default_catalog
from perfsim.cli import main
from perfsim.specs.layout import ParallelLayout
from perfsim.studies import runner as runner_module
from perfsim.studies.loading import load_study
from perfsim.studies.runner import Answered, run_study
from perfsim.studies.spec import CandidateSpec, StudySpec

HEAD = """\
name: layouts
title: Layouts
question: Which is first?
model: gpt3_xl
recipe: gpt3_20b_chinchilla
batch_sizes: [32]
sampling: {mode: "off"}
candidates:
"""
GPUS = "strategy: 3d, system: dgx-a100-80gb, devices: [8]"


def written(folder: Path, *candidates: str, batches: str = "[32]") -> str:
    path = folder / "layouts.yaml"
    rows = "".join(f"  - {{{row}}}\n" for row in candidates)
    path.write_text(HEAD.replace("[32]", batches) + rows, encoding="utf-8")
    return str(path)


def loaded(folder: Path, *candidates: str, batches: str = "[32]") -> StudySpec:
    return load_study(written(folder, *candidates, batches=batches))


# ------------------------------------------------------------------------------------- fixed layouts
AS_FIELDS = "{tensor: 2, pipeline: 2, micro_batch_size: 2, sequence_parallel: true}"


@pytest.mark.parametrize("layout", ['"tp=2,pp=2,dp=2,mbs=2,sp=true"', AS_FIELDS])
def test_a_candidate_runs_with_the_layout_that_it_says(tmp_path: Path, layout: str) -> None:
    (candidate,) = run_study(loaded(tmp_path, f"{GPUS}, layout: {layout}")).result.candidates
    degrees = ("tensor", "pipeline", "data", "micro_batch_size", "sequence_parallel", "zero_stage")
    assert [candidate.layout[name] for name in degrees] == [2, 2, 2, 2, True, 0]
    assert any(
        caveat.text.startswith("left at defaults by the layout: zero_stage 0") for caveat in candidate.caveats
    )


def test_several_layouts_of_one_machine_are_told_apart_everywhere(tmp_path: Path) -> None:
    layouts = ("tp=8,mbs=1", "tp=2,pp=4,mbs=1", "tp=2,pp=4,mbs=1")
    sampling = loaded(tmp_path, *(f'{GPUS}, layout: "{layout}"' for layout in layouts))
    spec = sampling.model_copy(
        update={"sampling": sampling.sampling.model_copy(update={"mode": "sample", "tasks": 1})}
    )
    answer = study(spec)
    labels = [candidate.label for candidate in answer.candidates]
    assert labels[:2] == ["8 A100-80GB (1 DGX), 3d, tp=8 mbs=1", "8 A100-80GB (1 DGX), 3d, tp=2 pp=4 mbs=1"]
    assert labels[2] == f"{labels[1]}, candidate 2 of this name"
    document = answer.document()
    assert set(document["ratio_bands"]) == set(document["sampling"]) == set(labels)
    assert [candidate["label"] for candidate in document["candidates"]] == labels
    assert answer.ratio(labels[1], labels[0]).ratio > 0
    answer.save(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("trace_*"))) == 3


def test_batches_that_a_layout_cannot_run_are_left_out_with_the_reason(tmp_path: Path) -> None:
    spec = loaded(tmp_path, f'{GPUS}, layout: "dp=8,mbs=4"', batches="[24, 32, 48, 64]")
    (candidate,) = run_study(spec).result.candidates
    assert [point.global_batch_size for point in candidate.batch_curve] == [32, 64]
    assert all(point.layout["micro_batch_size"] == 4 for point in candidate.batch_curve)
    (note,) = [note for note in candidate.notes if "left out" in note]
    assert note.startswith("batches that the layout cannot run are left out: 24, 48 sequences (")


def test_automatic_batches_are_multiples_of_what_a_layout_takes_at_once(tmp_path: Path) -> None:
    spec = loaded(tmp_path, f'{GPUS}, layout: "dp=8,mbs=5,zero=3,recompute=full"', batches="auto")
    (candidate,) = run_study(spec).result.candidates
    assert len(candidate.batch_curve) > 4
    assert all(point.global_batch_size % 40 == 0 for point in candidate.batch_curve)


@pytest.mark.parametrize(
    ("layout", "parts"),
    [
        ('"tp=8,qp=4"', ["layouts.yaml:9:", "layout 'qp=4': unknown name", "known: tp, pp, dp"]),
        ('"tp=x"', ["layouts.yaml:9:", "layout 'tp=x': 'x' is not a whole number", "tp=8"]),
        ('"recompute=some"', ["layouts.yaml:9:", "allowed: none, selective, full"]),
        ('"schedule=zb2"', ["layouts.yaml:9:", "unknown schedule 'zb2'", "known: 1f1b"]),
        ("{tensr: 8}", ["layouts.yaml:9:", "'tensr=8': unknown name", "did you mean `tensor`"]),
        ("8", ["layouts.yaml:9:", "8 is a number, a text is expected"]),
        ("tp=8,pp=4", ["layouts.yaml:9:", 'put the layout in quotes: "tp=8,pp=4"']),
    ],
)
def test_a_wrong_layout_is_refused_at_its_line_with_the_nearest_fix(
    tmp_path: Path, layout: str, parts: list[str]
) -> None:
    with pytest.raises(CatalogError) as caught:
        loaded(tmp_path, f"{GPUS}, layout: {layout}")
    for part in parts:
        assert part in str(caught.value)


def test_in_python_a_layout_may_be_an_object() -> None:
    layout = ParallelLayout(tensor=8, micro_batch_size=2, sequence_parallel=True)
    candidate = CandidateSpec(
        strategy="3d", system=default_catalog().system("dgx-a100-80gb"), devices=(8,), layout=layout
    )
    assert "tensor=8 pipeline=1 data=1" in candidate.layout_words
    assert "sequence_parallel=true" in candidate.layout_words


# ------------------------------------------------------------------------------------- side by side
def test_a_list_of_strategies_gives_the_best_of_each(tmp_path: Path) -> None:
    path = written(tmp_path, "strategy: [data, tensor, pipeline, 3d], system: dgx-a100-80gb, devices: [8]")
    result = run_study(load_study(path)).result
    assert [candidate.strategy for candidate in result.candidates] == ["data", "tensor", "pipeline", "3d"]
    assert result.candidates[1].layout["data"] == 1
    assert len({candidate.label for candidate in result.candidates}) == 4
    times = {candidate.strategy: candidate.step_time_s for candidate in result.candidates}
    assert times["3d"] <= min(times.values()) * 1.001
    command = ["study", path, "--compare", "pipeline,3d", "--json", "--out", str(tmp_path / "out")]
    document = json.loads(CliRunner().invoke(main, command).stdout)
    assert [candidate["strategy"] for candidate in document["candidates"]] == ["pipeline", "3d"]


def test_a_strategy_that_borrows_a_machine_does_not_take_its_layout(tmp_path: Path) -> None:
    spec = loaded(tmp_path, f'{GPUS}, layout: "tp=8,mbs=1"')
    (candidate,) = run_study(spec, ["data"]).result.candidates
    assert candidate.layout["data"] == 8
    assert candidate.label == "8 A100-80GB (1 DGX), data"


def test_several_strategies_cannot_share_a_layout(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="several strategies cannot share one layout"):
        loaded(tmp_path, 'strategy: [3d, data], system: dgx-a100-80gb, devices: [8], layout: "dp=8"')


# ------------------------------------------------------------------- failures stay with their candidate
def test_an_illegal_layout_is_listed_and_the_others_are_answered(tmp_path: Path) -> None:
    path = written(tmp_path, f'{GPUS}, layout: "tp=16"', f'{GPUS}, layout: "tp=8,mbs=1"')
    out = CliRunner().invoke(main, ["study", path, "--json", "--out", str(tmp_path / "out")])
    assert out.exit_code == 0
    document = json.loads(out.stdout)
    (unfit,) = document["infeasible"]
    assert unfit["label"] == "8 A100-80GB (1 DGX), 3d, tp=16"
    assert "16 devices, the question has 8" in unfit["reason"]
    assert [candidate["layout"]["tensor"] for candidate in document["candidates"]] == [8]


def test_a_layout_over_memory_is_listed_with_how_much_it_misses(tmp_path: Path) -> None:
    spec = loaded(tmp_path, f'{GPUS}, layout: "dp=8,mbs=4"', f'{GPUS}, layout: "tp=8,mbs=1"')
    large = spec.model_copy(update={"model": load_study("gpt3_20b").model})
    (unfit,) = run_study(large).result.infeasible
    assert "GiB" in unfit.reason


@pytest.mark.parametrize(
    "error",
    [LayoutError("is at fault"), CatalogError([Problem("is at fault")]), PerfsimError("is at fault")],
)
def test_whatever_fails_in_one_candidate_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: PerfsimError
) -> None:
    spec = loaded(tmp_path, GPUS, "strategy: weight-streaming, system: cs-2, devices: [1]")
    answer = runner_module.answer_candidate

    def broken(study: StudySpec, candidate: CandidateSpec, *rest: Any, **more: Any) -> Answered:
        if candidate.strategy == "3d":
            raise error
        return answer(study, candidate, *rest, **more)

    monkeypatch.setattr(runner_module, "answer_candidate", broken)
    result = run_study(spec).result
    assert [candidate.strategy for candidate in result.candidates] == ["weight-streaming"]
    assert [(candidate.label, candidate.reason) for candidate in result.infeasible] == [
        ("8 A100-80GB (1 DGX), 3d", "is at fault")
    ]
    gpus = spec.model_copy(update={"candidates": spec.candidates[:1]})
    with pytest.raises(PerfsimError, match="is at fault") as caught:
        run_study(gpus)
    assert caught.value.exit_code == error.exit_code


def test_no_plan_at_all_and_bad_input_keep_their_exit_codes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"layouts.yaml:9:65: .* is 16 devices") as caught:
        loaded(tmp_path, f'{GPUS}, layout: "tp=16"')
    assert caught.value.exit_code == 2
    large = load_study("gpt3_20b").model
    spec = loaded(tmp_path, f'{GPUS}, layout: "tp=16"', f'{GPUS}, layout: "dp=8"')
    with pytest.raises(PlanError) as refused:
        run_study(spec.model_copy(update={"model": large}))
    assert refused.value.exit_code == 3


def test_a_label_leaves_the_layers_of_stages_to_the_layout(tmp_path: Path) -> None:
    (candidate,) = loaded(tmp_path, f'{GPUS}, layout: "pp=4,dp=2,mbs=1,layers_per_stage=7-6-6-5"').candidates
    assert candidate.layout_words == "pp=4 dp=2 mbs=1"
