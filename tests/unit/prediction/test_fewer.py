"""Long steps from simulated steps of fewer micro-batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

import perfsim as ps
from perfsim.machines.placement import place
from perfsim.prediction import run
from perfsim.prediction.planner import best_plan, confirmed, plan_of, search
from perfsim.prediction.question import Question
from perfsim.prediction.run import Evaluation, Step, evaluate, evaluate_from_fewer, graph_of, in_full

LONG = {
    "1f1b": ("dgx-a100-80gb", 16, "tp=2,pp=4,dp=2,mbs=1,zero=1", 144),
    "uneven": ("dgx-a100-80gb", 16, "pp=4,dp=4,mbs=1,zero=1,layers_per_stage=5-7-7-5", 288),
    "interleaved": ("dgx-a100-80gb", 16, "pp=4,dp=4,mbs=1,vpp=2,schedule=interleaved", 288),
    "zbv": ("dgx-a100-80gb", 16, "pp=4,dp=4,mbs=1,vpp=2,schedule=zbv", 288),
    "no pipeline": ("dgx-a100-80gb", 16, "dp=16,mbs=1,zero=2", 1120),
    "experts": ("h100-sxm5-80gb", 32, "pp=4,dp=8,ep=8,mbs=1,zero=1", 512),
}


def question(name: str) -> Question:
    catalog = ps.Catalog()
    system, devices, layout, batch = LONG[name]
    return Question(
        model=catalog.models["qwen3_30b_a3b" if name == "experts" else "gpt3_xl"],
        recipe=catalog.recipes["llm_2024" if name == "experts" else "gpt3_pretraining"],
        system=catalog.systems[system],
        devices=devices,
        strategy="3d",
        layout=layout,
        batch=batch,
    )


def from_fewer(asked: Question) -> tuple[Evaluation, Evaluation]:
    """A plan found from fewer micro-batches, and in full."""
    plan = plan_of(asked)
    graph = graph_of(plan)
    step = Step(place(graph, plan.topology), asked.costs, asked.scale)
    return evaluate_from_fewer(asked, plan, graph, step), evaluate(plan, asked.costs, graph=graph)


@pytest.mark.parametrize("name", LONG)
def test_a_long_step_from_fewer_micro_batches_is_the_step_simulated_in_full(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LONG_TASKS", 0)
    short, whole = from_fewer(question(name))
    assert short.trace.simulated is not None
    assert short.trace.simulated.microbatches is not None
    assert 2 * short.trace.simulated.microbatches <= whole.plan.num_microbatches
    assert short.step_time_s == pytest.approx(whole.step_time_s, rel=6e-5)
    assert short.breakdown_s == pytest.approx(whole.breakdown_s, rel=0.01, abs=1e-3 * whole.step_time_s)
    assert in_full(short).trace.end_s.tobytes() == whole.trace.end_s.tobytes()


def test_what_few_micro_batches_cannot_stand_for_is_simulated_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "LONG_TASKS", 0)
    asked = replace(question("1f1b"), batch=120)
    short, whole = from_fewer(asked)
    assert short.trace.simulated == whole.trace.simulated
    assert short.step_time_s == whole.step_time_s


def test_the_best_plan_is_simulated_in_full_though_it_was_chosen_from_fewer_micro_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = replace(question("1f1b"), layout=None, strategy="pipeline", devices=4, batch=320)
    in_full_s = best_plan(asked)
    monkeypatch.setattr(run, "LONG_TASKS", 0)
    chosen = confirmed(search(asked))[0]
    assert chosen.trace.simulated is not None
    assert chosen.trace.simulated.microbatches is not None
    best = best_plan(asked)
    assert best.plan.layout == in_full_s.plan.layout == chosen.plan.layout
    assert best.trace.simulated is not None
    assert best.trace.simulated.microbatches is None
    assert best.step_time_s == in_full_s.step_time_s
