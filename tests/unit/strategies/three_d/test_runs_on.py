"""A plan holds what the tool of its runtime runs; without a tool, all that can be simulated."""

from typing import Any

import pytest

from perfsim.base.errors import PlanError
from perfsim.prediction.planner import Search
from perfsim.prediction.question import Question, question_of
from perfsim.specs.layout import OF_MODULES, ParallelLayout
from perfsim.specs.trainers import ON_GPUS, Limits

ASKED = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 16, "batch": 64}


def asked(**given: Any) -> Question:
    return question_of(ASKED | given)


def listed(question: Question) -> set[ParallelLayout]:
    return set(question.chosen.layouts(question.job, question.topology))


@pytest.mark.parametrize("tool", ON_GPUS)
@pytest.mark.parametrize("model", ["gpt3_xl", "gpt_oss_20b"])
@pytest.mark.parametrize(
    ("runtime", "changed"),
    [
        ("megatron_2021", {"recipe.precision": "fp16"}),
        ("megatron_core", {"recipe.precision": "bf16"}),
        ("megatron_core", {"recipe.precision": "bf16", "recipe.optimizer": "muon"}),
        ("megatron_core", {"recipe.precision": "bf16", "runtime.dispatcher": "all_gather"}),
        ("megatron_core", {"recipe.precision": "bf16", "model.mtp_num_layers": 2}),
    ],
)
def test_the_space_is_what_the_tool_runs_of_all_layouts(
    tool: Any, runtime: str, changed: dict[str, Any], model: str
) -> None:
    """Pruned while the space is made, next to every layout tried against the table."""
    given = {"runtime": runtime, "model": model, "devices": 8, "batch": 16, **changed}
    question = asked(runs_on=tool, **given)
    limits = question.job.runtime.limits
    assert limits.tool == tool
    everything = listed(asked(runs_on="any", **given))
    # Modules are computed again only where else too little fits, so not in both.
    held = {layout for layout in listed(question) if layout.recompute not in OF_MODULES}
    runs = {layout for layout in everything if limits.runs(layout, question.job)}
    assert held == {layout for layout in runs if layout.recompute not in OF_MODULES}
    assert len(held) < len(everything)


def test_the_tool_of_the_runtime_limits_the_space_by_itself() -> None:
    assert listed(asked()) == listed(asked(runs_on="megatron"))
    stages = {layout.zero_stage for layout in listed(asked())}
    assert stages == {0, 1}
    assert Limits("megatron", "2024-01") == asked().job.runtime.limits


def test_a_question_without_a_plan_says_that_the_tool_limits_it() -> None:
    with pytest.raises(PlanError, match="--runs-on any") as refused:
        Search(asked(strategy="zero3"))
    assert "Megatron-LM of 2024-01" in str(refused.value)


@pytest.mark.slow
def test_a_refused_question_is_advised_only_what_has_a_plan() -> None:
    for model, helps in (("gpt3_175b", True), ("gpt_120t", False)):
        with pytest.raises(PlanError) as refused:
            Search(asked(model=model, system="dgx-h100", devices=8, runs_on="torchtitan"))
        assert ("layouts that torchtitan" in str(refused.value)) is helps


def test_a_job_that_the_named_tool_does_not_run_is_refused_before_it_is_planned() -> None:
    given = {"system": "dgx-h100", "runs_on": "deepspeed"}
    with pytest.raises(PlanError) as refused:
        Search(asked(**given, **{"recipe.precision": "fp8"}))
    said = ("it has no setting for fp8", "--runs-on megatron or --runs-on torchtitan")
    assert refused.value.reasons[1:] == said
    given = {"runs_on": "megatron", "recipe.optimizer": "muon", "recipe.precision": "fp16"}
    with pytest.raises(PlanError) as refused:
        Search(asked(**given))
    assert refused.value.reasons[1:] == ("muon in fp16", "--runs-on any")


def test_experts_that_no_ranks_of_the_tool_divide_are_sharded_with_all_else() -> None:
    asked_then = asked(model="mixtral_8x7b", system="dgx-h100", devices=64, as_of="2023-11")
    found = Search(asked_then).screening.layout(0)
    assert asked_then.job.runtime.limits == Limits("llm-foundry", "2023-06")
    assert (found.expert, found.zero_stage) == (1, 3)


def test_a_job_inside_a_domain_of_72_has_every_degree_of_its_own_devices() -> None:
    """72 is no multiple of 16."""
    question = asked(model="qwen3_30b_a3b", system="gb200-nvl72", devices=64)
    assert {16, 32, 64} <= {layout.expert for layout in listed(question)}
