"""What an answer says it rests on."""

import re

import pytest

from perfsim.studies.answers import Assumption
from perfsim.studies.assumptions import assumptions_of
from perfsim.studies.loading import load_study
from perfsim.studies.spec import StudySpec


@pytest.fixture(scope="module")
def spec() -> StudySpec:
    return load_study("gpt3_20b")


@pytest.fixture(scope="module")
def assumptions(spec: StudySpec) -> tuple[Assumption, ...]:
    return assumptions_of(spec)


def test_each_input_of_each_part_is_accounted_for(assumptions: tuple[Assumption, ...]) -> None:
    for row in assumptions:
        assert all([row.name, row.value, row.source.strip()]), row
        assert row.kind in ("datasheet", "fit", "assumption")


def test_a_fit_tells_its_error_its_points_and_how_to_repeat_it(assumptions: tuple[Assumption, ...]) -> None:
    fits = [row for row in assumptions if row.topic.startswith("calibration ") and row.kind == "fit"]
    assert len(fits) > 8
    for row in fits:
        assert re.search(r"median error .* points", row.value)
        assert any(command in row.source for command in ("perfsim calibrate", "pytest ")), row


def test_a_model_written_inside_the_study_is_the_studys_own_assumption(spec: StudySpec) -> None:
    changed = spec.model_copy(update={"model": spec.model.model_copy(update={"name": "mine"})})
    mine = Assumption("model", "mine", "defined inside the study", "the study's own file", "assumption")
    assert mine in assumptions_of(changed)
