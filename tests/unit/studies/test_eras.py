"""The order of two machines depends on the day: tests of the main study and of small ones."""

from dataclasses import astuple, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import perfsim as ps
from perfsim.api.answers import StudyAnswer
from perfsim.base.errors import CatalogError, InputError, LimitError
from perfsim.catalog import default_catalog
from perfsim.prediction.dates import measured_days
from perfsim.report.study_figures import over_dates
from perfsim.studies.answers import Answer
from perfsim.studies.loading import load_study, load_sweep, study_from
from perfsim.studies.runner import answer_point
from perfsim.studies.spec import Point

SMALL = {"extends": "gpt3_20b", "model": "gpt3_xl", "sampling": {"mode": "off"}}
PAIR = [
    {"strategy": "3d", "system": "dgx-a100-80gb", "devices": [8]},
    {"strategy": "weight-streaming", "system": "cs-2", "devices": [1]},
]
LAYOUT = "dp=128,zero=3,mbs=3,recompute=selective"


@cache
def main_study(day: str) -> StudyAnswer:
    """The leaders of the main study on a day, with the layout that its planner finds on every one."""
    leaders = [
        {"strategy": "3d", "system": "dgx-a100-80gb", "devices": [128], "layout": LAYOUT},
        {"strategy": "weight-streaming", "system": "cs-2", "devices": [16]},
    ]
    fields = {"extends": "gpt3_20b", "candidates": leaders, "batch_sizes": [384, 1024], "as_of": day}
    return ps.study({**fields, "sampling": {"mode": "off"}})


@cache
def small(day: str) -> StudyAnswer:
    return ps.study({**SMALL, "candidates": PAIR, "batch_sizes": [128], "as_of": day})


@pytest.mark.parametrize(
    ("day", "first", "gpus", "wafers"),
    [
        ("2023-03", "128 A100-80GB", (26, 30), (30, 34)),
        ("2023-04", "128 A100-80GB", (26, 30), (28, 32)),
        ("2023-05", "128 A100-80GB", (22, 26), (28, 32)),
        ("2024-07", "16 CS-2", (21, 26), (19, 22)),
    ],
)
def test_the_headline_changes_with_the_date(
    day: str, first: str, gpus: tuple[float, float], wafers: tuple[float, float]
) -> None:
    answer = main_study(day)
    assert answer.best.machine.startswith(first)
    days = {row.system: row.time_to_accuracy_s / 86400 for row in answer.candidates}
    assert gpus[0] < days["dgx-a100-80gb"] < gpus[1]
    assert wafers[0] < days["cs-2"] < wafers[1]


def test_the_main_study_answers_on_the_earliest_day_of_what_was_measured_of_each() -> None:
    study = load_study("gpt3_20b")
    assert study.as_of == "equal"
    assert study.equal_day == "2023-05"
    assert {point.study.as_of for point in study.points} == {"2023-05"}


def test_the_equal_day_is_of_what_runs_on_a_day_where_a_maker_has_a_stack_of_its_own() -> None:
    own = {"model": "llama32_1b", "recipe": {"extends": "llm_2024", "name": "short", "tokens": 1e8}}
    pair = [PAIR[0] | {"system": "mi300x-192gb"}, PAIR[1]]
    study = study_from({**SMALL, **own, "candidates": pair, "as_of": "equal"}, default_catalog())
    newest = [measured_days(point.question)[1] for point in study.points]
    assert study.equal_day == min(newest), "Primus of 2025-08 runs on no day"


def test_a_study_that_is_narrowed_to_some_of_its_machines_keeps_its_day() -> None:
    study = load_study("gpt3_20b")
    assert study.compared(["weight-streaming"]).as_of == "2023-05"
    assert study.compared(["weight-streaming", "3d"]).as_of == "equal"
    # Where the equal day is the newest, nothing is told of another.
    wafers = [{"strategy": "weight-streaming", "system": "cs-2", "devices": [1, 2]}]
    answer = ps.study({**SMALL, "candidates": wafers, "batch_sizes": [128], "as_of": "equal"})
    assert "other reading" not in answer.grounds


def test_equal_dates_tell_the_ratio_over_dates_and_where_the_order_turns() -> None:
    answer = small("equal")
    eras = answer.eras
    (here,) = (era for era in eras.eras if era.day == eras.day)
    assert (here.ratio, *here.band) == astuple(answer.decision.ratio)
    gpus = [era.first_s if eras.first.startswith("8 A100") else era.rival_s for era in eras.eras]
    wafers = [era.rival_s if eras.first.startswith("8 A100") else era.first_s for era in eras.eras]
    slower = max(later / earlier for earlier, later in pairwise(gpus))
    assert slower < 1.005, "no stack is slower than the one before it, but for a loss in merged passes"
    assert wafers == sorted(wafers, reverse=True), "no release is slower than the one before it"


@pytest.mark.slow
def test_candidates_of_one_year_or_one_day_are_told_nothing_of_dates() -> None:
    assert small("2023-06").eras is None
    alike = ps.study({**SMALL, "candidates": PAIR[:1], "batch_sizes": [128]})
    assert alike.eras is None
    assert "other reading" not in alike.grounds
    unmoved = ps.study({"extends": "llama31_70b_2026", "sampling": {"mode": "off"}})
    assert unmoved.eras is None
    assert "equal dates" not in " ".join(unmoved.grounds.values())


def test_the_figure_over_dates_marks_the_day_of_the_answer() -> None:
    answer = small("equal")
    (section,) = over_dates(answer)
    assert section.heading.startswith("Who was first, 2022 to ")
    marked = [row[0].value for row in section.table.rows if any(cell.mark for cell in row)]
    assert marked == ["2023-05"]
    assert answer.figures.over_dates().layout.xaxis.type == "date"
    assert not list(over_dates(replace(answer, eras=None)))
    with pytest.raises(InputError, match="as_of: equal"):
        small("2023-06").figures.over_dates()


def test_what_extends_a_study_takes_no_day_from_it_and_a_grid_over_it_has_one_day_for_all() -> None:
    study = load_study("gpt3_20b")
    assert load_study("opt_175b").as_of == ""
    assert {point.study.as_of for point in load_sweep("capacity_20b").points} == {study.equal_day}
    (alone,) = {point.study.as_of for point in load_sweep("csx_scaling").points}
    assert alone > study.equal_day
    changed = load_sweep("csx_scaling", changes={"as_of": "2024-03"})
    assert {point.question.ran_by.software_release for point in changed.points} == {"r2.1"}
    (asked,) = {point.study.as_of for point in load_sweep("cerebras_gpt", changes={"as_of": "equal"}).points}
    assert asked == "2023-01-13"  # of the release that its runs name


def test_a_sweep_over_machines_of_different_years_says_so_unless_it_has_a_day(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    for day, says in (("", True), ("equal", False)):
        study = {**SMALL, "as_of": day, "batch_sizes": [64]}
        grid = {"title": "Two machines", "study": study, "grid": {"candidates": PAIR}}
        file.write_text(yaml.safe_dump(grid), encoding="utf-8")
        verdict = ps.sweep(file).verdict
        assert ("months apart" in verdict and "`as_of: equal` compares" in verdict) is says
    file.write_text(yaml.safe_dump(grid | {"grid": {"as_of": ["equal", "2023-06"]}}), encoding="utf-8")
    with pytest.raises(CatalogError) as refused:
        ps.sweep(file)
    (problem,) = refused.value.problems
    assert "one day for all points" in problem.message
    assert problem.line is not None


def test_a_limit_on_other_days_keeps_the_answer_and_names_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    def until_other_days(point: Point, *, reported: bool = True, **more: Any) -> Answer:
        if not reported:
            raise LimitError("stopped after 3 s")
        return answer_point(point, reported=reported, **more)

    monkeypatch.setattr("perfsim.studies.runner.answer_point", until_other_days)
    eras = small.__wrapped__("equal").eras
    assert [era.day for era in eras.eras] == ["2023-05"]
    assert eras.sentence.endswith("the newest of what was measured, has no answer: stopped after 3 s.")
