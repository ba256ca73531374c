"""The second estimate of a layout, the longest path over its passes, next to the simulated step."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from perfsim.base import compiled
from perfsim.base.arrays import Floats, Ints
from perfsim.machines.placement import place
from perfsim.prediction.planner import Search
from perfsim.prediction.question import Question, question_of
from perfsim.prediction.run import Step
from perfsim.specs.layout import ParallelLayout, parsed_settings
from perfsim.strategies.schedules import JOINED
from perfsim.strategies.three_d import pass_path
from perfsim.strategies.three_d.closed_form import Priced, estimate_steps_s
from perfsim.strategies.three_d.pass_path import path_steps_s
from perfsim.strategies.three_d.space import Columns

QUESTIONS = {
    "dense": {"model": "gpt3_20b", "system": "dgx-a100-80gb", "devices": 128, "batch": 512},
    "groups over nodes": {"model": "gpt3_175b", "system": "dgx-a100-80gb", "devices": 512, "batch": 1536},
    "experts": {"model": "qwen3_235b_a22b", "system": "dgx-h100", "devices": 256, "batch": 1024},
    "shared experts": {"model": "deepseek_v3", "system": "dgx-h100", "devices": 256, "batch": 2048},
    "NVL72": {"model": "llama31_70b", "system": "gb200-nvl72", "devices": 144, "batch": 576},
}
NEAR = 1.5
"""Layouts that take so many times as long as the best, or less, are compared."""
MOST_TASKS = 1_500_000
Estimate = Callable[[Priced, Ints], Floats]


@cache
def searched(name: str) -> Search:
    return Search(question_of(QUESTIONS[name]))


def layout_of(text: str) -> ParallelLayout:
    return ParallelLayout(**parsed_settings(text, ParallelLayout))


def path_s(question: Question, layout: ParallelLayout, estimate: Estimate = path_steps_s) -> float:
    job = question.job
    priced = Priced(job, Columns.of(job, layout), question.topology, question.costs)
    return float(estimate(priced, np.arange(1))[0])


def simulated_s(question: Question, layout: ParallelLayout, *, contention: bool = True) -> float:
    plan = question.chosen.plan(question.job, question.topology, layout, check_memory=False)
    graph = plan.graph()
    if len(graph) > MOST_TASKS:
        return np.nan
    return Step(place(graph, question.topology), question.costs).run(contention=contention).step_time_s


def errors(name: str, count: int) -> Floats:
    """Of random layouts whose step is within `NEAR` of the best, what the path exceeds the simulation by."""
    search = searched(name)
    estimates = search.screening.estimate_s
    near = np.flatnonzero(estimates <= NEAR * estimates.min())
    chosen = np.random.default_rng(0).choice(near, count, replace=False)
    layouts = [search.screening.layout(index) for index in (*search.order[:4].tolist(), *chosen.tolist())]
    pairs = [(path_s(search.question, layout), simulated_s(search.question, layout)) for layout in layouts]
    path, simulated = np.array(pairs).T
    compared = simulated <= NEAR * np.nanmin(simulated)
    return np.asarray(path / simulated - 1.0)[compared]


def test_of_layouts_near_the_best_the_path_is_within_three_percent_of_the_simulation() -> None:
    assert np.abs(errors("dense", 3)).max() <= 0.03


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_of_many_layouts_near_the_best_the_path_is_close_to_the_simulation(name: str) -> None:
    wrong = np.abs(errors(name, 30))
    # Rows on their way to experts share links with what shared experts gather, and with reductions.
    assert np.median(wrong) <= (0.01 if name == "shared experts" else 0.005)
    assert np.quantile(wrong, 0.95) <= 0.035
    assert wrong.max() <= 0.05


EXACT = {
    "1f1b": "tp=8,pp=4,dp=4,mbs=1,sp=true",
    "interleaved, recomputed": "tp=8,pp=4,dp=4,vpp=11,schedule=interleaved,recompute=full,recompute_every=3",
    "MLPs recomputed": "tp=8,pp=4,dp=4,sp=true,recompute=mlp",
    "weight gradients apart": "tp=8,pp=4,dp=4,schedule=zb1p",
    "joined": "tp=8,pp=4,dp=4,vpp=2,schedule=combined-interleaved",
    "in a V": "tp=8,pp=2,dp=8,vpp=2,schedule=zbv",
    "ZeRO 2": "tp=8,pp=4,dp=4,zero=2",
    "ZeRO 2, chunks of a layer": "tp=4,pp=4,dp=8,vpp=11,schedule=interleaved,zero=2",
    "ZeRO 3": "dp=128,zero=3,recompute=full",
}


@pytest.mark.parametrize("text", EXACT.values(), ids=EXACT)
def test_without_contention_the_path_is_the_step(text: str) -> None:
    """But for what compute is taken to lose next to communications, which the simulation then leaves out."""
    question = searched("dense").question
    layout = layout_of(text)
    alone_s = simulated_s(question, layout, contention=False)
    assert alone_s * 0.996 <= path_s(question, layout) <= alone_s * 1.1


@pytest.mark.parametrize("schedule", JOINED.values())
def test_the_path_hides_rows_of_joined_passes_as_the_simulation_does(schedule: str) -> None:
    question = question_of({"model": "mixtral_8x7b", "system": "dgx-h100", "devices": 64, "batch": 512})
    layout = layout_of(f"pp=4,dp=16,ep=8,zero=1,vpp={2 - (schedule == 'combined-1f1b')},schedule={schedule}")
    assert path_s(question, layout) == pytest.approx(simulated_s(question, layout), rel=0.01)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_the_closed_form_joins_no_pass_to_one_that_is_not_there(microbatches: int) -> None:
    asked = {"model": "mixtral_8x7b", "system": "dgx-h100", "devices": 64, "batch": 64 * microbatches}
    alone = question_of(asked), layout_of("dp=64,ep=8,zero=1,schedule=combined-1f1b")
    assert path_s(*alone, estimate_steps_s) == pytest.approx(path_s(*alone), rel=0.003)


@pytest.mark.parametrize("expert", [8, 16])
def test_groups_in_two_domains_are_tried_at_the_price_of_their_slowest(expert: int) -> None:
    experts = {"model": "qwen3_235b_a22b", "system": "gb200-nvl72", "devices": 144, "batch": 144}
    question = question_of(experts)
    layout = layout_of(f"tp=4,dp=36,ep={expert},sp=true,zero=1")
    assert layout in set(question.chosen.layouts(question.job, question.topology))
    assert path_s(question, layout) == pytest.approx(simulated_s(question, layout), rel=0.02)


def test_a_step_of_many_microbatches_is_extrapolated_without_error(monkeypatch: pytest.MonkeyPatch) -> None:
    question = searched("dense").question.at(2048)
    layouts = [layout_of(text) for text in EXACT.values()]
    extrapolated = [path_s(question, layout) for layout in layouts]
    monkeypatch.setattr(pass_path, "REPEATS_AFTER", 2048)
    assert extrapolated == pytest.approx([path_s(question, layout) for layout in layouts], rel=1e-9)


def test_without_numba_the_recurrence_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    question = searched("dense").question
    layouts = [layout_of(text) for text in EXACT.values()]
    by_machine = [path_s(question, layout) for layout in layouts]
    monkeypatch.setattr(compiled, "IS_INSTALLED", False)
    assert [path_s(question, layout) for layout in layouts] == by_machine
