"""Batches that published laws suggest, and the wall clock of a candidate beside its steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.report import text
from perfsim.report.study_page import study_document, study_page, write_study_page
from perfsim.studies.answers import StudyResult
from perfsim.studies.batches import suggested_batches, target_of
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.studies.spec import StudySpec


@pytest.fixture(scope="module")
def spec() -> StudySpec:
    spec = load_study("gpt3_20b")
    wafer = spec.candidates[1].model_copy(update={"devices": (1,)})
    off = spec.sampling.model_copy(update={"mode": "off"})
    return spec.model_copy(update={"candidates": (wafer,), "sampling": off, "batch_sizes": (48,)})


@pytest.fixture(scope="module")
def result(spec: StudySpec) -> StudyResult:
    return run_study(spec).result


def test_a_20b_run_of_20_tokens_a_parameter_is_suggested_what_the_law_gives(spec: StudySpec) -> None:
    """0.2920 C^0.3271 with C = 6 x 19.9e9 x 4e11, without embeddings."""
    (tokens,) = suggested_batches(spec, target_of(spec).d_min_tokens).values()
    assert tokens == pytest.approx(0.2920 * (6 * 19.93e9 * 4e11) ** 0.3271, rel=0.01)
    assert tokens == pytest.approx(7.66e6, rel=0.01)


def test_minicpm_speaks_only_where_the_loss_is_one_of_c4(spec: StudySpec) -> None:
    recipe = spec.recipe.model_copy(update={"target_loss": 2.062})
    for scale, laws in (("", 1), ("WebText2", 1), ("C4", 2)):
        convergence = spec.convergence.model_copy(update={"loss_scale": scale})
        asked = spec.model_copy(update={"recipe": recipe, "convergence": convergence})
        assert len(suggested_batches(asked, 4e11)) == laws


def test_summary_and_report_name_them(result: StudyResult, tmp_path: Path) -> None:
    (law,) = result.suggested_batch_tokens
    assert study_document(result)["suggested_batch_tokens"][law] == pytest.approx(7.66e6, rel=0.01)
    page = write_study_page(result, tmp_path).read_text("utf-8")
    tokens = text.large(result.suggested_batch_tokens[law])
    assert f"Starting points from published laws: {tokens} tokens by DeepSeek LLM (arXiv 2401.02954)" in page


def small(name: str) -> StudySpec:
    """The study with one batch and nothing sampled."""
    spec = load_study(name)
    sampling = spec.sampling.model_copy(update={"mode": "off"})
    return spec.model_copy(update={"batch_sizes": (384,), "sampling": sampling})


def test_a_named_wall_clock_stands_beside_the_time_to_the_target_and_not_in_it() -> None:
    spec = small("whole_run_20b")
    without = spec.model_copy(
        update={
            "candidates": tuple(
                candidate.model_copy(update={"wall_clock": None}) for candidate in spec.candidates
            )
        }
    )
    result = run_study(spec).result
    plain = run_study(without).result
    for candidate, other in zip(result.candidates, plain.candidates, strict=True):
        assert candidate.time_to_accuracy_s == other.time_to_accuracy_s
        assert other.whole_run == ()
        assert candidate.whole_run[0].typical_s == candidate.time_to_accuracy_s
        assert candidate.whole_run[-1].typical_s > candidate.time_to_accuracy_s
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
    gpus, wafers = (candidate.wall_clock for candidate in load_study("whole_run_20b").candidates)
    assert gpus is not None
    assert wafers is not None
    assert gpus.failures_per_node_day == wafers.failures_per_node_day
    assert gpus.stragglers == wafers.stragglers
    assert gpus.restart == wafers.restart
    assert gpus.checkpoint_every == wafers.checkpoint_every == "young"
