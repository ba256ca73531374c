"""What the tools that train run, by release: published runs are legal, and what a release lacks is named."""

import re
from dataclasses import replace
from typing import Any

import pytest

from perfsim.catalog import default_catalog
from perfsim.evidence.cases import CaseRows, StepCase, published_cases
from perfsim.prediction.question import question_of
from perfsim.specs.layout import AXES, ParallelLayout
from perfsim.specs.runtime import Runtime
from perfsim.specs.trainers import FREE, TRAINERS, Limits, that_run


def test_every_published_run_is_legal_under_its_own_runtime() -> None:
    catalog = default_catalog()
    refused: dict[str, list[str]] = {}
    number = 0
    for path in published_cases():
        for case in CaseRows.read(path, StepCase, catalog).cases:
            if not case.scored:  # such as a fork of its tool with schedules of its own
                continue
            question = case.question(catalog)
            limits = question.job.runtime.limits
            layout = question.given_layout
            if limits is not None and isinstance(layout, ParallelLayout):
                number += 1
                refused |= {case.id: lacks} if (lacks := limits.lacks(layout, question.job)) else {}
    assert refused == {}
    assert number > 300


@pytest.mark.parametrize("tool", TRAINERS)
def test_rows_name_axes_settings_and_dates(tool: Any) -> None:
    for row in TRAINERS[tool].rows:
        assert row.axis in AXES
        assert row.axis not in FREE
        assert set(row.needs) <= {*AXES, "has_replicas"}
        assert row.setting
        assert row.release
        assert re.fullmatch(r"(20[12]\d-(0[1-9]|1[0-2]))?", row.since), row


SHARDED = ParallelLayout(data=8, zero_stage=3)


def test_a_month_that_no_source_gives_limits_nothing() -> None:
    assert Limits("neox", "2020-01").runs(ParallelLayout(pipeline=4))
    catalog = default_catalog()
    known = [catalog.framework(name) for name in catalog.names("framework")]
    recalled = [framework for framework in known if framework.date_is_recalled]
    assert recalled
    for framework in recalled:
        limits = Runtime(name="r", framework=framework).limits
        assert limits is None or limits.month == ""


def test_a_release_runs_what_it_brought() -> None:
    assert Limits("megatron", "2025-10").runs(SHARDED)
    assert "zero-bubble" in that_run(ParallelLayout(pipeline=4, schedule="zb1p"))
    for layout in (replace(SHARDED, expert=8), ParallelLayout(data=8, pipeline=2, expert=8)):
        assert {"deepspeed", "neox"}.isdisjoint(that_run(layout)), "MoE of DeepSpeed"
    assert "neox" not in that_run(replace(SHARDED, tensor=2))
    replicas = ParallelLayout(pipeline=4, data=2)
    assert [Limits("torchtitan", month).runs(replicas) for month in ("2025-06", "2026-02")] == [False, True]
    experts = replace(SHARDED, tensor=4, sequence_parallel=True, expert=2)
    assert [Limits("torchtitan").runs(replace(experts, expert=ranks)) for ranks in (2, 4)] == [False, True]
    assert that_run(ParallelLayout(pipeline=4, tensor=2, schedule="zb1p", zero_stage=1)) == []
    pure = replace(SHARDED, tensor=4, sequence_parallel=True, expert_tensor=4)
    known = [Limits("torchtitan", month).runs(pure) for month in ("2026-08", "2026-09", "")]
    assert known == [True, False, False], "pull request 4794"
    joined = ParallelLayout(data=8, expert=8, schedule="combined-1f1b")
    known = [Limits("megatron").runs(replace(joined, recompute=mode)) for mode in ("norms", "mlp", "full")]
    assert known == [True, False, False]


@pytest.mark.parametrize(
    ("tool", "layout", "runs"),
    [
        # Context and expert ranks of MaxText shard the dense parameters, too.
        ("maxtext", replace(SHARDED, context=2), True),
        ("maxtext", ParallelLayout(data=4, context=2), False),
        ("maxtext", ParallelLayout(data=8, expert=2), False),
        ("maxtext", ParallelLayout(data=8, zero_stage=1), True),
        ("maxtext", ParallelLayout(data=8, zero_stage=1, shard_group=4), False),
        ("llm-foundry", replace(SHARDED, expert=2), True),
        ("llm-foundry", ParallelLayout(data=8, expert=2), False),
        ("llm-foundry", replace(SHARDED, expert=2, shard_group=4), False),
        ("llm-foundry", replace(SHARDED, recompute="full", recompute_every=2), True),
        ("neox", ParallelLayout(tensor=2, data=4, sequence_parallel=True), True),
        # Its chunks of several layers are all computed again.
        ("neox", ParallelLayout(data=8, recompute="full", recompute_every=2), False),
        ("neox", ParallelLayout(data=8, recompute="full", offload_activations="cpu"), True),
    ],
)
def test_rows_are_what_the_source_of_the_tool_has(tool: Any, layout: ParallelLayout, runs: bool) -> None:
    assert Limits(tool).runs(layout) is runs


def test_a_refusal_names_the_values_that_would_run() -> None:
    (said,) = Limits("llm-foundry").lacks(ParallelLayout(data=8, expert=2))
    assert said.endswith("ffn_config.moe_world_size does not go with zero_stage 0 (but 2 or 3)")


def test_what_a_job_asks_of_the_stages_and_experts_of_a_tool_is_named() -> None:
    stages = ParallelLayout(data=2, pipeline=4, schedule="gpipe")
    for layout, words, changed in (
        (stages, "24 layers, 6 micro-batches: it takes multiples of 4", {"batch": 12}),
        (stages, "", {"batch": 16}),
        (stages, "22 layers", {"batch": 16, "model.num_layers": 22}),
        (
            replace(SHARDED, tensor=2, sequence_parallel=True),
            "expert_tensor must be 2",
            {"model": "gpt_oss_20b"},
        ),
    ):
        given = {"model": "gpt3_xl", "system": "dgx-h100", "devices": 16, "batch": 16, **changed}
        assert words in " ".join(Limits("maxtext").lacks(layout, question_of(given).job))
        assert bool(words) == bool(Limits("maxtext").lacks(layout, question_of(given).job))
