"""Groups that lie unevenly over nodes are answered (`tests/regret` draws any number of nodes)."""

from __future__ import annotations

import pytest

import perfsim as ps

CASES = [
    *(("gpt3_20b", devices, None) for devices in (56, 88, 120, 152, 184, 248, 360, 1000)),
    ("gpt3_13b", 40, None),
    pytest.param("opt_175b", 992, None, marks=pytest.mark.slow),
    ("gpt3_175b", 48, "tp=3,pp=16,dp=1"),
    pytest.param("gpt3_175b", 48, "tp=6,pp=8,dp=1", marks=pytest.mark.slow),
    pytest.param("gpt3_175b", 72, "tp=3,pp=8,dp=3", marks=pytest.mark.slow),
    ("gpt3_175b", 96, "tp=12,pp=4,dp=2"),
]


@pytest.mark.parametrize(("model", "devices", "tensor_groups"), CASES)
def test_groups_that_lie_unevenly_over_nodes_are_priced(
    model: str, devices: int, tensor_groups: str | None
) -> None:
    layout = f"{tensor_groups},mbs=1,zero=1,recompute=full" if tensor_groups else None
    system = "dgx-h100" if tensor_groups else "dgx-a100-80gb"
    asked = {"model": model, "system": system, "devices": devices, "layout": layout}
    assert ps.predict(**asked, strategy="3d", batch=devices, runs_on="any").step_time_s > 0
