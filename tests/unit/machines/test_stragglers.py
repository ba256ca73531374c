"""One straggler is written with its tensor peers only where nobody can tell from the step."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest

from perfsim.costs.price import price
from perfsim.engine import simulate
from perfsim.engine.failures import with_stragglers
from perfsim.machines import placement as module
from perfsim.machines.placement import Placed, place_stragglers
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import Plan
from perfsim.work import TaskGraph


def planned(toys: ModuleType, overlap: bool = True, nic: float = 25e9, gpus: int = 8, **layout: Any) -> Plan:
    chosen = ParallelLayout(**layout)
    job = toys.job(4 * chosen.data, {"overlap_grad_reduce": overlap})
    plan: Plan = toys.plan("3d", job, chosen, toys.gpu_cluster(gpus=gpus, nics=gpus, nic_bytes_per_s=nic))
    return plan


def step_s(toys: ModuleType, plan: Plan, placed: Placed) -> tuple[float, ...]:
    graph, ranks, links, *_ = placed
    costs = toys.ToyCosts(plan.system)
    duration_s = with_stragglers(graph, price(graph, costs), ranks, placed.factors)
    return simulate(graph, duration_s, *links).step_end_s


def both(toys: ModuleType, plan: Plan, factors: Mapping[int, float]) -> tuple[TaskGraph, Placed, Placed]:
    graph = toys.graph_of(plan)
    return (
        graph,
        place_stragglers(graph, plan, factors, step_only=True),
        place_stragglers(graph, plan, factors),
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
@pytest.mark.parametrize("rank", [0, 21])
@pytest.mark.parametrize("nic", [1e9, 25e9])
def test_with_its_tensor_peers_the_step_ends_at_the_same_instant(
    toys: ModuleType, schedule: str, rank: int, nic: float
) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    plan = planned(toys, nic=nic, tensor=4, pipeline=2, data=4, schedule=schedule, virtual_pipeline=chunks)
    _, together, apart = both(toys, plan, {rank: 1.5})
    assert len(together.factors) == 4
    assert len(together.graph) < len(apart.graph)
    assert together.note
    assert not apart.note
    assert step_s(toys, plan, together) == step_s(toys, plan, apart)


def test_large_graphs_are_written_so_and_say_it(toys: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(toys, tensor=4, pipeline=2, data=4)
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
    toys: ModuleType, why: str, changes: dict[str, Any], factors: dict[int, float]
) -> None:
    plan = planned(toys, **{"tensor": 4, "pipeline": 2, "data": 4, **changes})
    _, placed, _ = both(toys, plan, factors)
    assert placed.factors == factors, why
    assert not placed.note


def test_it_stays_alone_where_a_link_is_sick(toys: ModuleType) -> None:
    plan = planned(toys, tensor=4, pipeline=2, data=4)
    slow = plan.topology.degraded({"node1/nic3-leaf0": 0.5})
    placed = place_stragglers(toys.graph_of(plan), plan, {5: 1.5}, slow, step_only=True)
    assert placed.factors == {5: 1.5}
