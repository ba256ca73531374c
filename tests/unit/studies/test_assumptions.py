"""What an answer says it rests on."""

import re

import pytest

from perfsim.catalog import default_catalog
from perfsim.studies.answers import Assumption
from perfsim.studies.assumptions import assumptions_of
from perfsim.studies.loading import changed_study, load_study
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


def test_what_a_question_changes_is_told_as_it_is_asked_and_so_is_the_software(spec: StudySpec) -> None:
    memory = {"system.device.memory.capacity": "30 GB"}
    asked = {"recipe.tokens": 3e11, "system.swarmx.bandwidth": "50 GB/s", **memory}
    told = assumptions_of(changed_study(spec, asked | {"as_of": "2022-12"}, default_catalog()))
    values = {(row.topic, row.name, row.value) for row in told if row.source == "given by the question"}
    assert values == {
        ("recipe gpt3_20b_chinchilla", "tokens", "3e+11"),
        ("system cs-2", "swarmx.bandwidth", "50 GB/s"),
        *((f"device {name}", "memory.capacity", "30 GB") for name in ("a100-sxm4-80gb", "wse-2")),
    }
    software = {row.value for row in told if row.name == "software"}
    assert software == {"runtime megatron_2021", "software release r1.6"}
    written = assumptions_of(load_study("sparse_pretraining"))
    within = {row.name for row in written if "own file" in row.source}
    assert "weight_sparsity" in within, "a recipe that is written in the study"
