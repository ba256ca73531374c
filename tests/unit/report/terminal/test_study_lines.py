"""The answer to a study on a terminal."""

import re
from dataclasses import replace

import pytest

from perfsim.report.study import MOST_CANDIDATES, study_lines
from perfsim.studies.answers import Infeasible, StudyResult


@pytest.mark.parametrize("columns", ["60", "80", "120", "200"])
def test_every_line_fits_the_terminal_and_no_name_or_reason_is_cut(
    result: StudyResult, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    reason = "does not fit: rank 0 needs 93 GiB of 80 GiB; " * 4
    refused = replace(
        result, infeasible=(Infeasible("4 A100-80GB, 3d", reason.strip()),), verdict="so it is " * 60
    )
    lines = study_lines(refused)
    assert max(len(line) for line in lines) <= int(columns)
    words = " ".join(" ".join(lines).split())
    assert reason.strip() in words
    assert refused.verdict.strip() in words
    assert all(
        word in words for candidate in result.candidates for word in re.split(r"[ -]", candidate.label)
    )
    assert not re.search(r"\w\.\.\.", words)


def test_of_too_many_candidates_the_fastest_have_rows_and_the_others_are_counted(result: StudyResult) -> None:
    many = replace(result, candidates=result.candidates * 10)
    lines = study_lines(many)
    assert (
        sum(line[1:].startswith(("1 CS-2", "4 CS-2", "16 CS-2", "128")) for line in lines) == MOST_CANDIDATES
    )
    assert f"... {40 - MOST_CANDIDATES} slower candidates in the report" in lines
    assert sum(line.startswith(" 1 CS-2") for line in lines[:MOST_CANDIDATES]) == 0, (
        "the slowest are the ones left out"
    )


def test_steps_are_told_in_the_unit_of_the_shortest(result: StudyResult) -> None:
    slow = [replace(own, step_time_s=own.step_time_s * 1e5) for own in result.candidates[:-1]]
    lines = study_lines(replace(result, candidates=(*slow, result.candidates[-1])))
    step_s = f" {result.candidates[-1].step_time_s:.1f} "
    assert any(result.candidates[-1].short in line and step_s in line for line in lines)


def test_a_candidate_that_never_arrives_has_no_time_and_no_star(sparse: StudyResult) -> None:
    row = next(line for line in study_lines(sparse) if "1 CS-2" in line)
    assert row.endswith("n/a")
    assert not row.startswith("*")
