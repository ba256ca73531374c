"""All laws side by side, own fits and ramps, as a study answers them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfsim.base.errors import CatalogError, InputError
from perfsim.report.study_page import study_page
from perfsim.studies.answers import StudyResult
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study

STUDY = """
extends: gpt3_20b
name: laws
title: Laws
question: who
model: cerebras_gpt_111m
recipe: {{extends: gpt3_pretraining, tokens: {tokens}}}
candidates:
  - {{strategy: weight-streaming, system: cs-2, devices: [1, 2]}}
batch_sizes: {batches}
convergence: {convergence}
sampling: {{mode: off}}
resilience: null
"""
FIT = """
name: ours
kind: convergence
e_min_tokens: 3.0e+9
b_crit_tokens: 2.0e+6
band_factor: 1.3
batches_tokens: [1.0e+5, 1.0e+6]
"""
Answer = Callable[..., StudyResult]


@pytest.fixture
def answer(tmp_path: Path) -> Answer:
    def answered(
        convergence: str, tokens: str = "2.2e+9", batches: str = "[64, 128, 256, 512, 1024, 2048, 4096]"
    ) -> StudyResult:
        (tmp_path / "ours.yaml").write_text(FIT)
        path = tmp_path / "laws.yaml"
        path.write_text(STUDY.format(convergence=convergence, tokens=tokens, batches=batches))
        return run_study(load_study(str(path))).result

    return answered


def test_every_law_has_each_candidates_best_batch_and_says_where_they_disagree(answer: Answer) -> None:
    result = answer("{law: data_law}")
    assert [own.law for own in result.laws] == ["data_law", "bergsma_2025", "kaplan_loss"]
    for row, candidate in zip(result.laws[0].rows, result.candidates, strict=True):
        assert row.global_batch_size == candidate.global_batch_size
        assert row.time_s == pytest.approx(candidate.time_to_accuracy_s)
    (section,) = (own for own in study_page(result)[1] if own.slug == "laws")
    assert section.table is not None
    assert len(section.table.rows) == 3
    assert "recalled" in section.table.shown()[1][-1]
    firsts = {own.first for own in result.laws}
    assert ("All put" if len(firsts) == 1 else "They disagree") in section.lead


def test_a_fit_of_own_runs_is_named_by_the_study_and_gives_the_target(answer: Answer) -> None:
    result = answer("{law: fitted, fit: ./ours.yaml}", tokens="null")
    assert result.target_tokens == 3e9
    assert result.critical_batch_tokens == 2e6
    assert result.laws[0].law == "fitted"
    assert any("ours" in item.source for item in result.assumptions if item.name == "critical batch")
    low, high = result.critical_batch_band_tokens
    assert high / 2e6 == pytest.approx(2e6 / low) == pytest.approx(1.3)
    for candidate in result.candidates:
        assert candidate.batch_curve[-1].batch_tokens <= 4e6, "at most four times the largest measured batch"


def test_batches_beyond_the_measured_ones_have_a_wider_band(answer: Answer) -> None:
    curve = answer("{law: fitted, fit: ./ours.yaml}").candidates[0].batch_curve
    width = {
        point.batch_tokens: point.time_to_accuracy_band_s[1] / point.time_to_accuracy_s for point in curve
    }
    inside = [value for tokens, value in width.items() if 1e5 < tokens < 5e5]
    beyond = [value for tokens, value in width.items() if tokens > 2e6]
    assert min(beyond) > max(inside)


def test_law_fitted_without_a_fit_is_refused(answer: Answer) -> None:
    with pytest.raises(InputError, match="'fitted' needs fit"):
        answer("{law: fitted}")


def test_a_ramp_stands_beside_the_answer_and_a_flat_one_is_none(answer: Answer) -> None:
    flat = answer("{law: data_law, ramp: [{share: 0.3, batch: 1.0}]}")
    ramped = answer("{law: data_law, ramp: [{share: 0.3, batch: 0.5}, {share: 0.1, batch: 1.0}]}")
    for own, other in zip(flat.candidates, ramped.candidates, strict=True):
        assert own.time_to_accuracy_s == other.time_to_accuracy_s
        assert own.ramp is not None
        assert other.ramp is not None
        assert own.ramp.time_s == pytest.approx(own.time_to_accuracy_s, rel=1e-12)
        assert other.ramp.steps > own.ramp.steps
        assert any("with the batch ramp the steps take" in note for note in other.notes)


def test_a_ramp_longer_than_the_run_is_refused(answer: Answer) -> None:
    with pytest.raises(CatalogError, match="sum to more than 1"):
        answer("{law: data_law, ramp: [{share: 0.7, batch: 0.5}, {share: 0.7, batch: 0.7}]}")
