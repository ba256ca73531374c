"""What an answer says of itself: unnamed settings, a batch at the edge of what was tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import perfsim as ps
from perfsim.prediction.documents import run_document
from perfsim.prediction.remarks import edge_remark
from perfsim.report.study.document import study_document
from perfsim.report.study.write import write_study_page
from perfsim.report.terminal.run import run_lines
from perfsim.report.terminal.study import study_lines
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study


def notes(layout: str, devices: int = 8, system: str = "dgx-a100-80gb", strategy: str = "3d") -> list[str]:
    answer = run_document(
        ps.predict(
            model="gpt3_xl", system=system, devices=devices, strategy=strategy, layout=layout, batch=16
        )
    )
    return [note for note in answer["notes"] if note.startswith("left at defaults")]


def test_settings_that_nobody_named_are_listed_with_what_is_usual() -> None:
    assert notes("tp=2,pp=2") == [
        (
            "left at defaults by the layout: micro_batch_size 1, sequence_parallel false, zero_stage 0, "
            "recompute none, schedule 1f1b; Megatron users usually set sp=true, zero=1, recompute=selective"
        )
    ]


def test_the_defaults_stay_as_they_are() -> None:
    evaluation = ps.predict(
        model="gpt3_xl", system="dgx-a100-80gb", devices=8, strategy="3d", layout="tp=2,pp=2", batch=16
    ).run
    layout = evaluation.plan.layout
    assert (layout.sequence_parallel, layout.zero_stage, layout.recompute) == (False, 0, "none")


def test_only_settings_that_matter_for_the_degrees_are_listed() -> None:
    assert notes("dp=8,mbs=2") == [
        (
            "left at defaults by the layout: zero_stage 0, recompute none; "
            "Megatron users usually set zero=1, recompute=selective"
        )
    ]


@pytest.mark.parametrize("named", ["sp=true,zero=1,recompute=full", "sp=false,zero=0,recompute=none"])
def test_what_was_named_is_no_default_whatever_its_value(named: str) -> None:
    assert notes(f"tp=2,pp=2,mbs=1,schedule=gpipe,{named}") == []


def test_the_planners_own_choice_and_wafers_leave_nothing_unsaid() -> None:
    assert notes("") == []
    assert notes("dp=1", 1, "cs-2", "weight-streaming") == []


def test_a_terminal_shows_the_notes() -> None:
    prediction = ps.predict(
        model="gpt3_xl",
        system="dgx-a100-80gb",
        devices=8,
        strategy="3d",
        layout="tp=2,pp=2",
        batch=16,
    )
    lines = run_lines(prediction)
    assert any(line.split()[:3] == ["note", "left", "at"] for line in lines)
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("best", "said"),
    [
        (8, "best batch 8 is the smallest of 3 tried (8 to 32 sequences): a smaller batch may be better"),
        (32, "best batch 32 is the largest of 3 tried (8 to 32 sequences): a larger batch may be better"),
        (16, ""),
    ],
)
def test_a_batch_at_the_edge_of_the_grid_says_so(best: int, said: str) -> None:
    assert edge_remark([8, 16, 32], best).startswith(said)
    assert bool(edge_remark([8, 16, 32], best)) == bool(said)


def test_a_batch_that_was_given_has_no_edge() -> None:
    assert edge_remark([16], 16) == ""
    assert edge_remark([], 16) == ""


def test_a_study_flags_a_best_batch_at_the_edge_in_summary_terminal_and_report(tmp_path: Path) -> None:
    spec = load_study("gpt3_20b")
    wafer = spec.candidates[1].model_copy(update={"devices": (1,)})
    off = spec.sampling.model_copy(update={"mode": "off"})
    small = spec.model_copy(update={"candidates": (wafer,), "sampling": off})
    edge = run_study(small.model_copy(update={"batch_sizes": (1000, 2000)})).result
    (candidate,) = edge.candidates
    assert "is the smallest of 2 tried (1000 to 2000 sequences)" in candidate.batch_at_edge
    assert candidate.batch_at_edge in candidate.notes
    assert study_document(edge)["candidates"][0]["batch_at_edge"] == candidate.batch_at_edge
    assert "best batch at the edge of those tried, another may be better: 1 x cs-2" in study_lines(edge)
    assert candidate.batch_at_edge in write_study_page(edge, tmp_path, trace_name=None).read_text("utf-8")
    assert "at the edge" not in " ".join(
        study_lines(replace(edge, candidates=(replace(candidate, batch_at_edge=""),)))
    )
