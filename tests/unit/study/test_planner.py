"""Choosing a layout: screened by the closed form, confirmed by a run, or refused with reasons."""

from __future__ import annotations

from types import ModuleType

import pytest

from perfsim.errors import PlanError
from perfsim.strategies import strategy
from perfsim.study.evaluate import evaluate
from perfsim.study.planner import best_plan, screen, short_layout
from perfsim.topology import Topology
from perfsim.workload import ParallelLayout


@pytest.fixture
def topology(toys: ModuleType) -> Topology:
    return toys.topology(16)


def test_the_screening_lists_every_plan_that_fits_best_first(toys: ModuleType, topology: Topology) -> None:
    job, chosen = toys.job(64), strategy("3d")
    screened = screen(chosen, job, topology, toys.ToyCosts(topology.system))
    assert len(screened) == len(list(chosen.layouts(job, topology)))
    estimates = [each.estimate_s for each in screened]
    assert estimates == sorted(estimates)


def test_plans_that_do_not_fit_are_left_out(toys: ModuleType) -> None:
    small = toys.topology(16, toys.gpu_cluster(capacity=8 * toys.GIB))
    job = toys.job(64)
    screened = screen(strategy("3d"), job, small, toys.ToyCosts(small.system))
    assert 0 < len(screened) < len(list(strategy("3d").layouts(job, small)))
    assert all(each.plan.peak_memory_bytes <= 8 * toys.GIB for each in screened)


def test_the_best_plan_is_close_to_the_best_of_all_simulated_ones(
    toys: ModuleType, topology: Topology
) -> None:
    job, costs = toys.job(64), toys.ToyCosts(topology.system)
    chosen = best_plan(strategy("3d"), job, topology, costs)
    everything = screen(strategy("3d"), job, topology, costs)
    best = min(evaluate(each.plan, costs).step_time_s for each in everything)
    assert chosen.step_time_s == pytest.approx(best, rel=0.02)


def test_the_estimate_only_shortlists_and_the_run_decides(toys: ModuleType, topology: Topology) -> None:
    job, costs = toys.job(64), toys.ToyCosts(topology.system)
    shortlist = [each.plan for each in screen(strategy("3d"), job, topology, costs)[:3]]
    paths = {plan.layout: evaluate(plan, costs, contention=False).step_time_s for plan in shortlist}
    chosen = best_plan(strategy("3d"), job, topology, costs).plan.layout
    assert paths[chosen] == min(paths.values())


def test_an_evaluation_carries_consistent_numbers(toys: ModuleType, topology: Topology) -> None:
    answer = best_plan(strategy("3d"), toys.job(64), topology, toys.ToyCosts(topology.system))
    assert sum(answer.breakdown_s.values()) == pytest.approx(answer.step_time_s)
    assert answer.tokens_per_s == pytest.approx(64 * 1024 / answer.step_time_s)
    assert answer.peak_flop_per_s == 16 * 312e12
    assert 0 < answer.mfu <= answer.hfu < 1
    assert 0 <= answer.bubble_fraction + answer.exposed_communication_fraction < 1


def test_without_any_legal_layout_the_reason_is_the_division(toys: ModuleType, topology: Topology) -> None:
    with pytest.raises(PlanError, match=r"no layout is legal \(batch 7 .* do not divide") as caught:
        screen(strategy("data"), toys.job(7), topology, toys.ToyCosts(topology.system))
    assert "16 x toy-gpus" in str(caught.value)
    assert caught.value.exit_code == 3


def test_without_a_plan_that_fits_the_closest_is_shown_with_its_way_out(toys: ModuleType) -> None:
    tiny = toys.topology(8, toys.gpu_cluster(capacity=2.5 * toys.GIB))
    job = toys.job(64)
    with pytest.raises(PlanError) as caught:
        screen(strategy("3d"), job, tiny, toys.ToyCosts(tiny.system))
    head, closest = caught.value.reasons
    tried = len(list(strategy("3d").layouts(job, tiny)))
    assert f"{tried} layouts tried, {tried} over memory" in head
    unchecked = [
        strategy("3d").plan(job, tiny, layout, check_memory=False)
        for layout in strategy("3d").layouts(job, tiny)
    ]
    least = min(unchecked, key=lambda plan: plan.peak_memory_bytes)
    assert f"{least.peak_memory_bytes / toys.GIB:.1f} GiB" in closest
    assert "try " in closest


def test_a_layout_is_written_as_people_say_it() -> None:
    layout = ParallelLayout(tensor=8, pipeline=4, data=4, micro_batch_size=2, recompute="full")
    assert short_layout(layout).startswith("tp8 pp4 dp4 mbs2")
