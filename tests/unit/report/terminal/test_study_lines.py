"""The answer to a study on a terminal."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from perfsim.prediction.result import Perturbed
from perfsim.report.study.page import study_page
from perfsim.report.terminal.study import MAX_LINES, study_lines
from perfsim.report.text import encodable
from perfsim.studies.result import StudyResult

GOLDEN = """\
GPT-3 20B: GPUs or wafers: gpt3_20b, 20.2 billion parameters, 400 billion tokens at small batch

                                                           step  MFU          steps             days
 strategy         devices           layout           batch    s    %   memory  1000           (band)
----------------------------------------------------------------------------------------------------
*3d               128 dgx-a100-80gb tp8 pp4 dp4 mbs1   768 10.2 48.1 33.7 GiB   271 32.0 (31.2-37.1)
 weight-streaming 1 cs-2            dp1 mbs30          240  150 27.0  31.7 GB   830 1450 (1430-1520)
 weight-streaming 4 cs-2            dp4 mbs30          480 76.1 27.0  31.7 GB   423    373 (367-411)
 weight-streaming 16 cs-2           dp16 mbs30         960 38.9 27.0  31.7 GB   220  99.0 (96.0-119)
* first at the target; all figures are at each candidate's own best batch
verified: 96 matrix products, at least 97 % of a step's FLOPs, right; error 0.1 of its bound

128 x dgx-a100-80gb with 3d reaches the target in 32.0 days, 3.1 times (3.0 to 3.3) sooner than 16 x
cs-2 with weight-streaming."""


def test_the_table_reads_as_agreed(result: StudyResult) -> None:
    assert "\n".join(study_lines(result)) == GOLDEN


@pytest.mark.parametrize("count", [1, 4, 12, 40])
def test_the_table_fits_a_small_terminal_whatever_was_asked(result: StudyResult, count: int) -> None:
    candidates = [result.candidates[i % 4] for i in range(count)]
    long = replace(result, title="word " * 80, verdict="a long sentence " * 80, candidates=tuple(candidates))
    lines = study_lines(long)
    assert len(lines) <= MAX_LINES
    assert max(len(line) for line in lines) <= 100


def test_candidates_without_a_row_are_counted(result: StudyResult) -> None:
    many = replace(result, candidates=result.candidates * 10)
    table = "\n".join(study_lines(many))
    shown = table.count("48.1 33.7 GiB") + table.count("27.0  31.7 GB")
    assert f"... {40 - shown} more candidates in the report" in table


def test_long_names_wrap_and_no_figure_is_cut(result: StudyResult) -> None:
    layout = dict(result.candidates[0].layout) | {"virtual_pipeline": 11, "micro_batch_size": 16}
    wide = replace(result.candidates[0], system="a-system-with-a-very-long-name-indeed", layout=layout)
    table = "\n".join(study_lines(replace(result, candidates=(wide, *result.candidates[1:]))))
    assert all(part in table for part in ("128 a-system-", "indeed", "mbs16"))
    assert all(figure in table for figure in ("33.7 GiB", "32.0 (31.2-37.1)", "1450 (1430-1520)"))


def test_the_last_thing_said_is_the_comparison(result: StudyResult) -> None:
    assert " ".join(study_lines(result)[-2:]) == result.verdict


def test_nothing_but_printable_ascii_reaches_a_terminal_that_knows_no_more(hostile: StudyResult) -> None:
    verdict = "\x1b[31m32 days \N{MULTIPLICATION SIGN} 3\N{EN DASH}4 \N{SNOWMAN}"
    text = encodable("\n".join(study_lines(replace(hostile, verdict=verdict))), "ascii")
    assert text.isascii()
    assert "\x1b" not in text
    assert text.endswith("[31m32 days x 3-4 ?")


def test_a_utf8_terminal_keeps_its_characters() -> None:
    text = "32 jours, 3\N{EN DASH}4 \N{MULTIPLICATION SIGN} plus tôt"
    assert encodable(text, "utf-8") == text


def test_a_candidate_that_never_arrives_has_no_time_and_no_star(sparse: StudyResult) -> None:
    row = next(line for line in study_lines(sparse) if "1 cs-2" in line)
    assert row.endswith("n/a")
    assert not row.startswith("*")


def test_a_study_without_candidates_still_says_its_verdict(factory: ModuleType) -> None:
    none = replace(factory.study_result(), candidates=(), verdict="no plan fits")
    assert study_lines(none)[-1] == "no plan fits"


def test_a_perturbed_study_says_so_with_what_perturbs_it(result: StudyResult) -> None:
    first, *others = result.candidates
    before_s = first.step_time_s / 1.25
    slower = replace(first, perturbed=Perturbed("jitter", before_s, (first.step_time_s,), 1))
    perturbed = replace(result, candidates=(slower, *others), perturbed="jitter with sigma 0.02, seed 3")
    sentence = "perturbed steps, 1.25 times as long: jitter with sigma 0.02, seed 3"
    assert sentence in study_lines(perturbed)
    assert "perturbed" not in "\n".join(study_lines(result))
    _, sections, _ = study_page(perturbed)
    assert f"P{sentence[1:]}." in sections[0].lead
    long = study_lines(replace(perturbed, perturbed="rank 1 computes 2 times as long, " * 9))
    assert len(long) <= MAX_LINES
    assert max(len(line) for line in long) <= 100


def test_a_narrow_terminal_gets_every_word_too(result: StudyResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = study_lines(result)
    assert len(lines) <= MAX_LINES
    assert max(len(line) for line in lines) <= 80
    assert {"a100-80gb", "streaming", "mbs1", "mbs30"} <= set(" ".join(lines).split())
