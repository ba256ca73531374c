"""A candidate's wall clock beside its steps, where the study names one."""

from __future__ import annotations

import pytest

from perfsim.report.study.document import study_document
from perfsim.report.study.page import study_page
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.studies.spec import StudySpec


def small(name: str) -> StudySpec:
    """The study with one batch and nothing sampled."""
    spec = load_study(name)
    sampling = spec.sampling.model_copy(update={"mode": "off"})
    return spec.model_copy(update={"batch_sizes": (384,), "sampling": sampling})


def test_a_named_wall_clock_stands_beside_the_time_to_the_target_and_not_in_it() -> None:
    spec = small("whole_run_20b")
    without = spec.model_copy(
        update={"candidates": tuple(each.model_copy(update={"wall_clock": None}) for each in spec.candidates)}
    )
    result, plain = run_study(spec).result, run_study(without).result
    for each, other in zip(result.candidates, plain.candidates, strict=True):
        assert each.time_to_accuracy_s == other.time_to_accuracy_s
        assert other.whole_run == ()
        assert each.whole_run[0].typical_s == each.time_to_accuracy_s
        assert each.whole_run[-1].typical_s > each.time_to_accuracy_s
    assert result.decision is not None
    assert plain.decision is not None
    assert "; the whole run)" in result.decision.sentence
    assert "the whole run" not in plain.decision.sentence
    said = study_document(result)["verdict"]
    assert said.startswith(result.verdict)
    assert " The whole run, with waiting times besides its steps: 128 A100-80GB (16 DGX), 3d " in said
    assert study_document(plain)["verdict"] == plain.verdict
    for outcome, candidate in zip(result.decision.outcomes, result.candidates, strict=True):
        assert outcome.wall_s.typical == pytest.approx(candidate.whole_run[-1].typical_s)
    assert any(item.topic == "wall_clock cs-2" for item in result.assumptions)
    headings = [section.heading for section in study_page(result)[1]]
    assert "The whole run" in headings
    assert "The whole run" not in [section.heading for section in study_page(plain)[1]]


def test_gpus_and_wafers_fail_equally_often_node_for_system() -> None:
    """Nobody publishes failures of a CS-2, so no kind of machine is favoured."""
    gpus, wafers = (each.wall_clock for each in load_study("whole_run_20b").candidates)
    assert gpus is not None
    assert wafers is not None
    assert gpus.failures_per_node_day == wafers.failures_per_node_day
    assert gpus.stragglers == wafers.stragglers
    assert gpus.restart == wafers.restart
    assert gpus.checkpoint_every == wafers.checkpoint_every == "young"
