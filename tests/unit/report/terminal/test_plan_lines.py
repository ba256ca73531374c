"""A shortlist on a terminal: every part of the answer in words."""

from __future__ import annotations

import re

import pytest

import perfsim as ps
from perfsim.report.plan import plan_lines


@pytest.fixture(scope="module")
def answer() -> ps.PlanAnswer:
    return ps.plan(model="gpt3_20b", system="dgx-a100-80gb", devices=64, batch=64, shown=4)


def test_the_answer_says_error_experiment_headroom_and_reasons(answer: ps.PlanAnswer) -> None:
    lines = plan_lines(answer)
    assert f"1 in full: --layout {answer.best.layout_text}" in lines
    words = " ".join(" ".join(lines).split())
    assert re.search(r"gpt3_20b on 64 A100-80GB \(8 DGX\), 3d: batch 64 sequences; [\d,]+ layouts in", words)
    assert "between two layouts" in words
    assert "94.0 % of memory" in words or "above 94" in words
    assert "more memory than a device has" in words
    assert ("device-hours" in words) == (answer.experiment is not None)


def test_cost_says_that_prices_are_not_known() -> None:
    answer = ps.plan(model="gpt3_xl", system="dgx-a100-80gb", devices=8, batch=16, objective="cost", shown=1)
    assert "Prices in money are not known" in " ".join(plan_lines(answer))
