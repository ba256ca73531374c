"""Batches that published laws suggest for a study."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.report import text
from perfsim.report.study.document import study_document
from perfsim.report.study.write import write_study_page
from perfsim.studies.loading import load_study
from perfsim.studies.result import StudyResult
from perfsim.studies.runner import run_study, target_of
from perfsim.studies.spec import StudySpec
from perfsim.studies.suggestions import suggested_batches


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
