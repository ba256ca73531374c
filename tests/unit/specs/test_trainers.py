"""What the tools that train run, by release: published runs are legal, and what a release lacks is named."""

from __future__ import annotations

import re
from typing import Any

import pytest

from perfsim.catalog import default_catalog
from perfsim.evidence.cases import CaseRows, StepCase, public_cases
from perfsim.specs.layout import AXES, ParallelLayout
from perfsim.specs.runtime import Runtime
from perfsim.specs.trainers import FREE, TRAINERS, Limits, that_run


def test_every_published_run_is_legal_under_its_own_runtime() -> None:
    catalog = default_catalog()
    refused: dict[str, list[str]] = {}
    number = 0
    for path in public_cases():
        for case in CaseRows.read(path, StepCase, catalog).cases:
            question = case.question(catalog)
            limits = question.job.runtime.limits
            layout = question.given_layout
            if limits is not None and isinstance(layout, ParallelLayout):
                number += 1
                refused |= {case.id: lacks} if (lacks := limits.lacks(layout)) else {}
    assert refused == {}
    assert number > 300


@pytest.mark.parametrize("tool", TRAINERS)
def test_rows_name_axes_settings_and_dates(tool: Any) -> None:
    for row in TRAINERS[tool].rows:
        assert row.axis in AXES
        assert row.axis not in FREE
        assert set(row.needs) <= set(AXES)
        assert row.setting
        assert row.release
        assert re.fullmatch(r"(20[12]\d-(0[1-9]|1[0-2]))?", row.since), row


SHARDED = ParallelLayout(data=8, zero_stage=3)
LACKS: dict[str, tuple[Limits, ParallelLayout, str]] = {
    "before its release": (Limits("megatron", "2024-01"), SHARDED, "Megatron-Core 0.14 of 2025-10"),
    "a value": (
        Limits("deepspeed"),
        ParallelLayout(pipeline=4, schedule="interleaved", virtual_pipeline=2),
        "schedule interleaved: its values are 1f1b",
    ),
    "a pair of axes": (
        Limits("deepspeed"),
        ParallelLayout(pipeline=2, data=4, zero_stage=2),
        "zero_optimization.stage does not go with pipeline 2",
    ),
    "an axis": (Limits("llm-foundry"), ParallelLayout(tensor=2), "tensor 2: it has no setting for it"),
    "after its removal": (
        Limits("torchtitan"),
        ParallelLayout(data=8, zero_stage=3, recompute="full", recompute_every=2),
        "selective_ac_option was removed in 2026-02",
    ),
}


def test_a_month_that_no_source_gives_limits_nothing() -> None:
    assert Limits("neox", "2020-01").runs(ParallelLayout(pipeline=4))
    catalog = default_catalog()
    known = [catalog.framework(name) for name in catalog.names("framework")]
    recalled = [framework for framework in known if framework.date_is_recalled]
    assert recalled
    for framework in recalled:
        limits = Runtime(name="r", framework=framework).limits
        assert limits is None or limits.month == ""


@pytest.mark.parametrize(("limits", "layout", "words"), LACKS.values(), ids=LACKS)
def test_what_a_release_lacks_is_named(limits: Limits, layout: ParallelLayout, words: str) -> None:
    assert not limits.runs(layout)
    (lacks,) = limits.lacks(layout)
    assert words in lacks


def test_a_release_runs_what_it_brought() -> None:
    assert Limits("megatron", "2025-10").runs(SHARDED)
    assert Limits("torchtitan", "2026-01").runs(ParallelLayout(recompute="full", recompute_every=2))
    assert "zero-bubble" in that_run(ParallelLayout(pipeline=4, schedule="zb1p"))
    assert that_run(ParallelLayout(pipeline=4, tensor=2, schedule="zb1p", zero_stage=1)) == []
