"""Numbers of nodes over which groups lie unevenly are answered (`tests/regret` draws any number)."""

from __future__ import annotations

import pytest

import perfsim as ps

REFUSED_BEFORE = [
    *(("gpt3_20b", devices) for devices in (56, 88, 120, 152, 184, 248, 360, 1000)),
    ("gpt3_13b", 40),
    pytest.param("opt_175b", 992, marks=pytest.mark.slow),
]


def step_time_s(model: str, devices: int, system: str = "dgx-a100-80gb", layout: str | None = None) -> float:
    """Seconds of the planner's choice, or of a layout, with one sequence a GPU."""
    answer = ps.predict(
        model=model,
        system=system,
        devices=devices,
        strategy="3d",
        batch=devices,
        layout=layout,
        runs_on="any",
    )
    return answer.step_time_s


@pytest.mark.parametrize(("model", "devices"), REFUSED_BEFORE)
def test_sizes_over_which_groups_lie_unevenly_are_answered(model: str, devices: int) -> None:
    assert step_time_s(model, devices) > 0


@pytest.mark.parametrize(
    ("devices", "layout"),
    [
        (48, "tp=3,pp=16,dp=1"),
        pytest.param(48, "tp=6,pp=8,dp=1", marks=pytest.mark.slow),
        pytest.param(72, "tp=3,pp=8,dp=3", marks=pytest.mark.slow),
        (96, "tp=12,pp=4,dp=2"),
    ],
)
def test_tensor_groups_that_straddle_nodes_are_priced(devices: int, layout: str) -> None:
    assert step_time_s("gpt3_175b", devices, "dgx-h100", f"{layout},mbs=1,zero=1,recompute=full") > 0
