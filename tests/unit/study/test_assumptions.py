"""What an answer says it rests on."""

from __future__ import annotations

import pytest

from perfsim.study.assumptions import assumptions_of
from perfsim.study.result import Assumption
from perfsim.study.runner import load_study, target_of
from perfsim.study.spec import StudySpec


@pytest.fixture(scope="module")
def spec() -> StudySpec:
    return load_study("gpt3_20b")


@pytest.fixture(scope="module")
def found(spec: StudySpec) -> tuple[Assumption, ...]:
    return assumptions_of(spec, target_of(spec))


def test_every_input_has_a_value_a_source_and_a_known_kind(found: tuple[Assumption, ...]) -> None:
    for each in found:
        assert each.name, each
        assert each.value, each
        assert each.source.strip(), each
        assert each.kind in ("datasheet", "fit", "assumption")


def test_nothing_is_listed_twice(found: tuple[Assumption, ...]) -> None:
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "topic",
    [
        "convergence",
        "model gpt3_20b",
        "recipe gpt3_20b_chinchilla",
        "system dgx-a100-80gb",
        "system cs-2",
        "device a100-sxm4-80gb",
        "device wse-2",
        "calibration a100-sxm4",
        "calibration wse-2",
        "calibration nvlink3",
        "calibration infiniband-hdr",
        "calibration pytorch-eager",
    ],
)
def test_each_part_of_the_study_is_accounted_for(found: tuple[Assumption, ...], topic: str) -> None:
    assert any(each.topic == topic for each in found)


def test_a_fit_tells_its_error_its_points_and_how_to_repeat_it(found: tuple[Assumption, ...]) -> None:
    fits = [each for each in found if each.topic.startswith("calibration ")]
    for each in fits:
        assert "median error" in each.value
        assert "points" in each.value
        assert any(command in each.source for command in ("perfsim calibrate", "pytest ")), each


def test_an_assumed_value_says_so_and_a_sourced_one_names_a_publication(
    found: tuple[Assumption, ...],
) -> None:
    described = [each for each in found if each.topic.split()[0] in ("model", "recipe", "system", "device")]
    for each in described:
        assert each.source.startswith("assumed: ") == (each.kind == "assumption"), each


def test_the_critical_batch_stands_with_its_band(spec: StudySpec, found: tuple[Assumption, ...]) -> None:
    critical = target_of(spec).critical
    (entry,) = (each for each in found if each.name == "critical batch" and each.kind == "fit")
    assert entry.value.startswith(f"{critical.tokens / 1e6:.1f} M tokens (")
    assert entry.source == critical.source


def test_a_study_of_gpus_alone_says_nothing_of_wafers(spec: StudySpec) -> None:
    gpus = spec.model_copy(update={"candidates": spec.candidates[:1]})
    topics = {each.topic for each in assumptions_of(gpus, target_of(gpus))}
    assert "device a100-sxm4-80gb" in topics
    assert not topics & {"system cs-2", "device wse-2", "calibration wse-2"}


def test_a_model_written_inside_the_study_is_the_studys_own_assumption(spec: StudySpec) -> None:
    own = spec.model_copy(update={"model": spec.model.model_copy(update={"name": "mine"})})
    found = assumptions_of(own, target_of(own))
    assert (
        Assumption("model", "mine", "written inside the study", "the study's own file", "assumption") in found
    )
