"""`ps.plan`: the same shortlist for names and objects, as rows, as a document, and as what runs it."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perfsim as ps


@pytest.fixture(scope="module")
def answer() -> ps.PlanAnswer:
    return ps.plan(model="gpt3_6p7b", system="dgx-a100-80gb", devices=16, batch=32, shown=3)


def test_a_shortlist_is_a_frame_and_a_table_of_a_notebook(answer: ps.PlanAnswer) -> None:
    pytest.importorskip("pandas")
    times_s = [entry.step_time_s for entry in answer.shortlist]
    assert list(answer.to_pandas()["step_time_s"]) == times_s
    assert "<table>" in answer._repr_html_()
    assert repr(answer).startswith("<plan 16 A100-80GB (2 DGX): ")


def test_the_document_stands_next_to_the_page(answer: ps.PlanAnswer, tmp_path: Path) -> None:
    page = answer.save(tmp_path / "out")
    summary = json.loads(page.with_name("summary.json").read_text("utf-8"))
    assert summary == json.loads(json.dumps(answer.document()))


@pytest.mark.parametrize(
    ("system", "devices"), [("dgx-h100", 1), ("dgx-h100", 4), ("dgx-h100", 64), ("cs-2", 4)]
)
def test_a_planned_layout_takes_as_long_when_its_fields_are_given(system: str, devices: int) -> None:
    asked: dict[str, Any] = {"model": "llama31_8b", "system": system, "devices": devices, "batch": 64}
    best = ps.plan(**asked, shown=1).best
    planned, given = ps.predict(**asked), ps.predict(**asked, layout=best.layout)
    assert given.step_time_s == planned.step_time_s == best.step_time_s
    assert given.training == planned.training
    with pytest.raises(ps.PerfsimError, match="tensr"):
        ps.predict(**asked, layout={"tensr": 2})


def test_a_tool_is_given_the_first_row_or_refuses_it(answer: ps.PlanAnswer) -> None:
    emitted = json.loads(answer.emit("deepspeed"))
    assert emitted["train_batch_size"] == 32
    assert "modelzoo" not in answer.emit("megatron")
    with pytest.raises(ps.PerfsimError, match="trains on wafers"):
        answer.emit("modelzoo")
    asked: dict[str, Any] = {"model": "gpt3_20b", "system": "dgx-a100-80gb", "devices": 256, "batch": 64}
    interleaved = ps.plan(**asked, shown=1)
    assert interleaved.best.layout["schedule"] == "interleaved", "DeepSpeed runs no other schedule than 1f1b"
    with pytest.raises(ps.PerfsimError, match="--runs-on deepspeed"):
        interleaved.emit("deepspeed")
    planned = ps.plan(**asked, runs_on="deepspeed", shown=1)
    assert json.loads(planned.emit("deepspeed"))["train_batch_size"] == 64


QUESTION: dict[str, Any] = {"model": "gpt3_6p7b", "system": "dgx-a100-80gb", "devices": 8, "batch": 16}


def test_the_memory_limit_moves_plan_predict_and_study_alike(study_of: Callable[..., ps.Study]) -> None:
    free = ps.plan(**QUESTION, shown=1, memory_limit=1.0).best
    limit = free.plan.memory_share - 0.01
    tight = ps.plan(**QUESTION, shown=1, memory_limit=limit).best
    predicted = ps.predict(**QUESTION, memory_limit=limit)
    gpus = {"strategy": "3d", "system": "dgx-a100-80gb", "devices": [8]}
    fields = {"model": "gpt3_6p7b", "candidates": [gpus], "batch_sizes": [16], "memory_limit": limit}
    (candidate,) = ps.study(study_of(**fields)).candidates
    assert free.layout != tight.layout == predicted.layout == candidate.layout


def test_a_plan_is_kept_and_read_again_as_other_answers_are() -> None:
    planned = ps.plan(model="gpt3_xl", system="dgx-a100-80gb", devices=8, batch=64)
    kept = pickle.dumps(planned)
    assert pickle.loads(kept).document() == planned.document()  # noqa: S301
