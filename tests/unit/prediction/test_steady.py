"""Long steps of a curve, from two shorter ones."""

from __future__ import annotations

import pytest

import perfsim as ps
from perfsim.prediction.planner import best_plan
from perfsim.prediction.question import Question
from perfsim.prediction.run import CurveSteps

LONG = {
    "fsdp": ("dgx-a100-80gb", 8, "tp=1,dp=8,mbs=1,zero=3", 480),
    "3d": ("dgx-a100-80gb", 16, "tp=2,pp=4,dp=2,mbs=1,zero=1", 128),
    "interleaved": ("dgx-a100-80gb", 8, "tp=1,pp=4,dp=2,mbs=1,vpp=2", 160),
    "zero-bubble": ("dgx-a100-80gb", 8, "tp=1,pp=4,dp=2,mbs=1,schedule=zb1p", 160),
    "wafers": ("cs-2", 2, "dp=2,mbs=4", 518),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_step_is_what_a_simulation_in_full_says(name: str) -> None:
    system, devices, layout, batch = LONG[name]
    catalog = ps.Catalog()
    question = Question(
        model=catalog.models["gpt3_xl"],
        recipe=catalog.recipes["gpt3_pretraining"],
        system=catalog.systems[system],
        devices=devices,
        strategy="weight-streaming" if system == "cs-2" else "3d",
        layout=layout,
        batch=batch,
    )
    in_full = best_plan(question)
    steps = CurveSteps()
    assert steps.step_s(question, in_full.plan) == pytest.approx(in_full.step_time_s, rel=1e-3)
    assert len(steps._known) == 2
    assert all(shorter < batch for _, shorter in steps._known)
