"""The answer to a study on a terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType

import pytest

from perfsim.prediction.run import Perturbed, Training
from perfsim.report.study import MOST_CANDIDATES, study_lines
from perfsim.studies.answers import Infeasible, StudyResult

GOLDEN = """\
GPT-3 20B: GPUs or wafers: gpt3_20b, 20.2 billion parameters, 400 billion tokens at small batch

                                                      step   MFU  memory     steps       on the wall
 machine                     layout            batch     s     %     GiB  thousand       days (band)
----------------------------------------------------------------------------------------------------
*128 A100-80GB (16 DGX), 3d  tp8 pp4 dp4 mbs1    768  10.2  48.1    33.7       271  32.0 (30.4-33.7)
 1 CS-2, weight-streaming    dp1 mbs30           240   150  27.0    29.5       830  1450 (1380-1520)
 4 CS-2, weight-streaming    dp4 mbs30           480  76.1  27.0    29.5       423     373 (355-391)
 16 CS-2, weight-streaming   dp16 mbs30          960  38.9  27.0    29.5       220   99.0 (94.2-106)
* first; each candidate at its own best batch; in parentheses 90 % ranges
verified: shapes, divisions, sums and FLOPs of 32,448 matrix products; 96 kinds executed on samples
of their real shapes, right; error 0.1 of its bound

128 A100-80GB (16 DGX) are first with a probability of more than 99 %: 32.0 days on the wall (30.4
to 33.7), while 16 CS-2 take 3.10 times (3.07 to 3.14) as long.
Why: 3.05 times by speed: 154,000 against 50,500 tokens a second, 48.1 % and 27.0 % of peak; 1.02
times by tokens to the target: batches of 1.6 M against 2 M tokens.
Rests on: No input alone turns the order within three standard deviations.
Costs: Prices are not given."""


def test_the_table_reads_as_agreed(result: StudyResult) -> None:
    assert "\n".join(study_lines(result)) == GOLDEN


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
    assert "..." not in words


def test_of_too_many_candidates_the_fastest_have_a_row_and_the_others_are_counted(
    result: StudyResult,
) -> None:
    many = replace(result, candidates=result.candidates * 10)
    lines = study_lines(many)
    assert (
        sum(line[1:].startswith(("1 CS-2", "4 CS-2", "16 CS-2", "128")) for line in lines) == MOST_CANDIDATES
    )
    assert f"... {40 - MOST_CANDIDATES} slower candidates in the report" in lines
    assert sum("1450" in line for line in lines) == 0, "the slowest are the ones left out"


def test_a_candidate_that_never_arrives_has_no_time_and_no_star(sparse: StudyResult) -> None:
    row = next(line for line in study_lines(sparse) if "1 CS-2" in line)
    assert row.endswith("n/a")
    assert not row.startswith("*")


def test_a_perturbed_study_says_so_with_what_perturbs_it(result: StudyResult, factory: ModuleType) -> None:
    first, *others = result.candidates
    before_s = first.step_time_s / 1.25
    slower = replace(first, perturbed=Perturbed("jitter", before_s, (first.step_time_s,), 1))
    perturbed = replace(result, candidates=(slower, *others), perturbed="jitter with sigma 0.02, seed 3")
    sentence = "perturbed steps, 1.25 times as long: jitter with sigma 0.02, seed 3"
    assert sentence in study_lines(perturbed)
    assert "perturbed" not in "\n".join(study_lines(result))
    assert f"P{sentence[1:]}." in factory.sections(perturbed)["verdict"].lead


def test_candidates_trained_alike_share_a_line_that_names_the_framework_of_a_machine(
    result: StudyResult,
) -> None:
    alike = Training("llm_2024", 4096, "bf16", "flash", dropout=False)
    first, *others = (replace(candidate, training=alike) for candidate in result.candidates)
    first = replace(first, training=replace(alike, framework="megatron-core-te"))
    words = " ".join(" ".join(study_lines(replace(result, candidates=(first, *others)))).split())
    assert words.count("trained by") == 1
    assert (
        "trained by llm_2024: sequences of 4,096 tokens, bf16, flash attention, no dropout; "
        f"framework megatron-core-te on {first.system}"
    ) in words
