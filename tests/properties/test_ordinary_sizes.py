"""Every whole number of nodes is answered, or does not fit."""

from __future__ import annotations

import pytest

import perfsim as ps
from perfsim.base.errors import PlanError

SIZES = range(8, 1025, 8)
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


def is_answered(model: str, devices: int) -> bool:
    """False where no layout has enough memory."""
    try:
        return step_time_s(model, devices) > 0
    except PlanError as error:
        if "memory" not in str(error):
            raise
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sizes", "fits"),
    [("gpt3_13b", SIZES[::5], 16), ("gpt3_20b", SIZES, 16), ("opt_175b", SIZES[::5], 64)],
)
def test_every_multiple_of_a_node_is_answered_or_too_small(model: str, sizes: range, fits: int) -> None:
    too_small = [devices for devices in sizes if not is_answered(model, devices)]
    assert max(too_small, default=0) < fits


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
