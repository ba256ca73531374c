"""One straggler is written with its tensor peers only where nobody can tell from the step."""

from __future__ import annotations

from typing import Any

import pytest

from perfsim.machines import placement as module
from perfsim.machines.placement import place_stragglers
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import Plan
from perfsim.testing import toys


def planned(overlap: bool = True, nic: float = 25e9, gpus: int = 8, **layout: Any) -> Plan:
    chosen = ParallelLayout(**layout)
    job = toys.job(4 * chosen.data, {"overlap_grad_reduce": overlap})
    plan: Plan = toys.plan("3d", job, chosen, toys.gpu_cluster(gpus=gpus, nics=gpus, nic_bytes_per_s=nic))
    return plan


def test_large_graphs_are_written_so_and_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tensor=4, pipeline=2, data=4)
    monkeypatch.setattr(module, "MANY_TASKS", 10)
    placed = place_stragglers(toys.graph_of(plan), plan, {5: 1.5})
    assert "tensor peers" in placed.note
    assert sorted(placed.factors) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("why", "changes", "factors"),
    [
        ("two stragglers", {}, {5: 1.5, 9: 1.2}),
        ("no tensor peers", {"tensor": 1}, {5: 1.5}),
        ("shared links and weight gradients apart", {"nic": 1e9, "schedule": "zb1p"}, {5: 1.5}),
        ("tensor peers across nodes that share links", {"nic": 1e9, "gpus": 2}, {5: 1.5}),
    ],
)
def test_it_stays_alone_where_that_could_be_told(
    why: str, changes: dict[str, Any], factors: dict[int, float]
) -> None:
    plan = planned(**{"tensor": 4, "pipeline": 2, "data": 4, **changes})
    placed = place_stragglers(toys.graph_of(plan), plan, factors, step_only=True)
    assert placed.factors == factors, why
    assert not placed.note


def test_it_stays_alone_where_a_link_is_sick() -> None:
    plan = planned(tensor=4, pipeline=2, data=4)
    slow = plan.topology.degraded({"node1/nic3-leaf0": 0.5})
    placed = place_stragglers(toys.graph_of(plan), plan, {5: 1.5}, slow, step_only=True)
    assert placed.factors == {5: 1.5}
