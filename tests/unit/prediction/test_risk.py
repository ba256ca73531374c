"""Proven layouts keep one rule, the fastest keep none, and novelty costs what left-out runs took longer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfsim as ps
from perfsim.prediction import risk
from perfsim.prediction.bands import Reached
from perfsim.prediction.planner import Search, best_plan
from perfsim.prediction.question import Question, question_of
from perfsim.report import text
from perfsim.specs.layout import ParallelLayout, parsed_settings, text_of

LAYOUTS = [
    "tp=2,pp=2,dp=2,zero=1",
    "tp=8,dp=1,zero=1,recompute=full",
    "dp=8,zero=3",
    "tp=4,dp=1,cp=2",
    "tp=4,dp=2",
]
A100 = Reached("", "a100", "flash", 8, 0.4, kind="gpu-cluster", precision="bf16", generation="Ampere")


def parsed(words: str) -> ParallelLayout:
    return ParallelLayout(**parsed_settings(words, ParallelLayout))


FP32: dict[str, Any] = {"recipe.precision": "fp32"}
RUNS = []
for layout in map(parsed, LAYOUTS):
    RUNS.append(A100._replace(settings=risk.settings_of(layout), degrees=risk.degrees_of(layout)))


def asked(**given: Any) -> Question:
    known = {"model": "gpt3_6p7b", "system": "dgx-a100-80gb", "devices": 16, "batch": 64, "runs_on": "any"}
    return question_of(known | given)


def points(text: str, runs: Sequence[Reached] = RUNS, **given: Any) -> int:
    question = asked(**given)
    layout = parsed(text if "dp=" in text else f"{text},dp=2")
    device = question.system.device
    return int(risk.Novelty.of([layout], question.job, device, risk.kinds_of(runs)).points[0])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("tp=2,pp=2,zero=1", 0),
        ("tp=8,pp=2,zero=1", 0),  # a degree of another run of this ZeRO stage
        ("tp=2,pp=2,zero=1,schedule=zb1p", 1),
        ("tp=2,pp=2,zero=1,schedule=combined-1f1b", 2),  # another order, and passes that are joined
        ("tp=4,schedule=combined-1f1b", 2),
        ("tp=2,zero=1,schedule=zb1p", 1),  # a single stage has no schedule
        ("tp=2,zero=1,recompute=full,recompute_every=2", 1),
        ("tp=4,zero=3", 1),  # as the run without ZeRO
        ("tp=2,zero=3", 2),  # which has no other degree
        ("tp=4,cp=2,pp=2,zero=1", 2),
        ("tp=16,pp=2,zero=1", 2),
        ("tp=2,pp=2,zero=1,schedule=zbv,recompute=selective", 2),
        ("tp=4,dp=1,zero=3", 0),  # nothing to shard
        ("tp=8,pp=2,dp=1,recompute=full", 1),
    ],
)
def test_each_axis_counts_once_and_no_degree_outside_published_ones_is_proven(text: str, count: int) -> None:
    assert points(text) == count
    assert points(text, **FP32) == count + 1
    assert points(text, system="dgx-h100") == count + 1


def test_a_layout_is_compared_with_models_of_its_own_sort() -> None:
    assert points("tp=2,pp=2,zero=1", model="mixtral_8x7b") > risk.MOST
    sparse = [run._replace(experts=True) for run in RUNS]
    assert points("tp=2,pp=2,zero=1", [*RUNS, *sparse], model="mixtral_8x7b") == 0


def test_every_published_run_is_proven_and_lacks_nothing() -> None:
    for kind in risk.published_kinds():
        least = risk.Kind(kind.experts, kind.axes, tuple((ends[0], ends[0]) for ends in kind.degrees))
        assert not kind.lacks(least)
    on_gpus = [run for run in Reached.recorded() if run.kind == "gpu-cluster"]
    assert sum(kind.runs for kind in risk.published_kinds()) == len(on_gpus) > 300


@given(st.lists(st.sampled_from(RUNS), min_size=1), st.integers(0, 3), st.sampled_from([1, 2, 4, 8]))
@settings(deadline=None, max_examples=40)
def test_more_runs_never_make_a_layout_more_novel(runs: list[Reached], zero: int, tensor: int) -> None:
    text = f"tp={tensor},zero={zero}"
    assert points(text, [*runs, *RUNS]) <= points(text, runs)


def test_the_proven_answer_is_of_those_that_keep_the_rule_and_the_fastest_of_all() -> None:
    question = asked(model="mixtral_8x7b", system="dgx-h100", devices=16, batch=64)
    every, kept = (Search(replace(question, rank=rank)) for rank in ("fastest", "proven"))
    listed = [kept.screening.layout(index) for index in range(kept.screening.feasible)]
    assert max(risk.Novelty.of(listed, question.job, question.system.device).points) <= risk.MOST
    assert kept.unproven == every.screening.feasible - len(listed) > every.unproven == 0
    assert kept.screening.refused == every.screening.refused
    proven, fastest = (best_plan(searched.question, ranks=True) for searched in (kept, every))
    assert proven.ranks == fastest.ranks
    assert [ranked.rank for ranked in proven.ranks] == ["proven", "fastest"]
    assert [ranked.step_time_s for ranked in proven.ranks] == [proven.step_time_s, fastest.step_time_s]
    assert text_of(proven.plan.layout) == proven.ranks[0].layout in map(text_of, listed)
    assert proven.ranks[0].is_proven
    assert not proven.ranks[1].is_proven
    assert fastest.step_time_s < proven.step_time_s


def test_where_nothing_is_proven_the_nearest_is_taken_and_the_answer_says_so() -> None:
    question = asked(model="qwen3_30b_a3b", system="dgx-a100-80gb", rank="proven", **FP32)
    best = best_plan(question, ranks=True)
    assert not best.ranks[0].is_proven
    assert len(best.ranks[0].novelty) > risk.MOST
    nearest, fastest = best.ranks
    assert text.ranks([nearest, replace(fastest, layout="dp=16")])[0][0] == "unproven"


def test_novelty_costs_and_more_of_it_costs_no_less() -> None:
    assert list(risk.EXPECTED) == sorted(risk.EXPECTED)
    assert risk.EXPECTED[risk.MOST] == 1.0 < risk.EXPECTED[-1]
    assert risk.expected_ratios(np.array([0, risk.MOST, 99])).tolist() == [1.0, 1.0, risk.EXPECTED[-1]]


def test_offload_is_a_novelty_and_its_range_allows_for_the_cpu() -> None:
    asked = {"model": "llama3_8b", "system": "dgx-h100", "devices": 1, "batch": 8, "runtime": "megatron_core"}
    layout = "dp=1,zero=1,offload_optimizer=cpu"
    moved = ps.predict(**asked, layout=layout)
    plan = moved.run.plan
    (novel,) = risk.Novelty.of([plan.layout], plan.job, plan.system.device).lacks
    assert "offload of optimizer instead of offload of nothing" in novel
    path = "system.node.host.optimizer_fraction"
    faster, slower = (
        ps.predict(**asked, layout=layout, **{path: rate}).step_time_s for rate in (0.095, 0.03)
    )
    assert moved.band_s[0] < faster < slower < moved.band_s[1]
