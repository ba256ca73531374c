"""Choosing a layout: screened by the closed form, confirmed by a run, or refused with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import ClassVar

import pytest

from perfsim.errors import PlanError
from perfsim.prediction.evaluation import evaluate, graph_of, longest_path_s
from perfsim.prediction.planner import Screened, best_plan, screen
from perfsim.strategies import Plan, strategy
from perfsim.strategies.three_d.strategy import ThreeD
from perfsim.topology import Topology
from perfsim.workload import Job, ParallelLayout


@pytest.fixture
def topology(toys: ModuleType) -> Topology:
    return toys.topology(16)


def test_the_screening_lists_every_plan_that_fits_best_first(toys: ModuleType, topology: Topology) -> None:
    job, chosen = toys.job(64), strategy("3d")
    screened = screen(toys.question(chosen, job, topology, toys.ToyCosts(topology.system)))
    plans = [each.plan.layout for each in screened]
    assert set(chosen.layouts(job, topology)) < set(plans)
    assert len(set(plans)) == len(plans)
    estimates = [each.estimate_s for each in screened]
    assert estimates == sorted(estimates)


def test_plans_that_do_not_fit_are_left_out(toys: ModuleType) -> None:
    small = toys.topology(16, toys.gpu_cluster(capacity=8 * toys.GIB))
    job = toys.job(64)
    screened = screen(toys.question(strategy("3d"), job, small, toys.ToyCosts(small.system)))
    listed = set(strategy("3d").layouts(job, small))
    assert 0 < len(listed & {each.plan.layout for each in screened}) < len(listed)
    assert all(each.plan.peak_memory_bytes <= 8 * toys.GIB for each in screened)


def test_the_best_plan_is_close_to_the_best_of_all_simulated_ones(
    toys: ModuleType, topology: Topology
) -> None:
    job, costs = toys.job(64), toys.ToyCosts(topology.system)
    chosen = best_plan(toys.question(strategy("3d"), job, topology, costs))
    everything = screen(toys.question(strategy("3d"), job, topology, costs))
    best = min(evaluate(each.plan, costs).step_time_s for each in everything)
    assert chosen.step_time_s == pytest.approx(best, rel=0.02)


def test_the_estimate_only_shortlists_and_the_run_decides(toys: ModuleType, topology: Topology) -> None:
    job, costs = toys.job(64), toys.ToyCosts(topology.system)
    shortlist = [each.plan for each in screen(toys.question(strategy("3d"), job, topology, costs))[:3]]
    paths = {plan.layout: longest_path_s(graph_of(plan), plan.topology, costs) for plan in shortlist}
    chosen = best_plan(toys.question(strategy("3d"), job, topology, costs)).plan.layout
    assert paths[chosen] == min(paths.values())


@pytest.mark.parametrize("schedule", ["zb1p", "zb2p", "zbv", "interleaved"])
def test_schedules_with_less_bubble_are_in_the_screening(toys: ModuleType, schedule: str) -> None:
    four = toys.topology(4)
    screened = screen(toys.question(strategy("pipeline"), toys.job(8), four, toys.ToyCosts(four.system)))
    assert schedule in {each.plan.layout.schedule for each in screened}


def test_what_does_not_fit_is_tried_with_more_of_its_state_sharded(toys: ModuleType) -> None:
    """Where ZeRO 1 is over memory and ZeRO 2 or 3 is not, the plan exists all the same."""
    job, chosen = toys.job(64), strategy("data")
    (free,) = (each.plan for each in screen_of(toys, 2000) if is_plain(each.plan.layout))
    sharded = [each.plan for each in screen_of(toys, 2000) if each.plan.layout.zero_stage > 1]
    least = min(plan.peak_memory_bytes for plan in sharded)
    assert least < free.peak_memory_bytes
    between = (least + free.peak_memory_bytes) / 2 / toys.GIB
    small = toys.topology(16, toys.gpu_cluster(capacity=between * toys.GIB))
    found = screen(toys.question(chosen, job, small, toys.ToyCosts(small.system)))
    assert {each.plan.layout.zero_stage for each in found} & {2, 3}
    assert all(each.plan.peak_memory_bytes <= between * toys.GIB for each in found)


class Unsharded(ThreeD):
    """A strategy that lists ZeRO 0 only, and records which layouts it is asked to plan."""

    planned: ClassVar[list[ParallelLayout]] = []

    def layouts(self, job: Job, topology: Topology) -> Iterator[ParallelLayout]:
        yield from (replace(layout, zero_stage=0) for layout in super().layouts(job, topology))

    def variants(self, job: Job, topology: Topology, layout: ParallelLayout) -> Iterator[ParallelLayout]:
        return iter(())

    def plan(
        self, job: Job, topology: Topology, layout: ParallelLayout, *, check_memory: bool = True
    ) -> Plan:
        self.planned.append(layout)
        return super().plan(job, topology, layout, check_memory=check_memory)


@pytest.mark.parametrize("capacity_gib", [80, 9])  # everything fits; most layouts miss memory by little
def test_only_layouts_that_a_strategy_lists_are_planned(toys: ModuleType, capacity_gib: float) -> None:
    topology = toys.topology(16, toys.gpu_cluster(capacity=capacity_gib * toys.GIB))
    unsharded, job = Unsharded("unsharded", ("tensor", "data")), toys.job(64)
    unsharded.planned.clear()
    screened = screen(toys.question(unsharded, job, topology, toys.ToyCosts(topology.system)))
    assert set(unsharded.planned) == set(unsharded.layouts(job, topology))
    assert {choice.plan.layout.zero_stage for choice in screened} == {0}


def is_plain(layout: ParallelLayout) -> bool:
    return (layout.zero_stage, layout.recompute, layout.micro_batch_size) == (1, "full", 1)


def screen_of(toys: ModuleType, capacity_gib: float) -> list[Screened]:
    roomy = toys.topology(16, toys.gpu_cluster(capacity=capacity_gib * toys.GIB))
    return screen(toys.question(strategy("data"), toys.job(64), roomy, toys.ToyCosts(roomy.system)))


def test_a_plan_that_nearly_fills_its_memory_names_the_fastest_that_does_not(toys: ModuleType) -> None:
    roomy = toys.topology(16)
    job = toys.job(64)
    best = best_plan(toys.question(strategy("tensor"), job, roomy, toys.ToyCosts(roomy.system))).plan
    assert not any(note.startswith("safer") for note in best.notes)
    tight = toys.topology(16, toys.gpu_cluster(capacity=best.peak_memory_bytes / 0.97))
    chosen = best_plan(toys.question(strategy("tensor"), job, tight, toys.ToyCosts(tight.system))).plan
    assert chosen.layout == best.layout
    (note,) = (note for note in chosen.notes if note.startswith("safer: "))
    screened = screen(toys.question(strategy("tensor"), job, tight, toys.ToyCosts(tight.system)))
    safer = next(each for each in screened if each.plan.memory_share <= 0.95)
    assert safer.plan.layout.short in note
    assert f"fills {100 * safer.plan.memory_share:.0f} %" in note


def test_of_equal_estimates_the_plan_with_less_memory_comes_first(
    toys: ModuleType, topology: Topology
) -> None:
    """GPipe idles as long as 1F1B and holds more."""
    screened = screen(toys.question(strategy("3d"), toys.job(64), topology, toys.ToyCosts(topology.system)))
    order = [each.plan.layout for each in screened]
    pairs = 0
    for number, layout in enumerate(order):
        if layout.schedule == "gpipe":
            assert order.index(replace(layout, schedule="1f1b")) < number
            pairs += 1
    assert pairs


def test_an_evaluation_carries_consistent_numbers(toys: ModuleType, topology: Topology) -> None:
    answer = best_plan(toys.question(strategy("3d"), toys.job(64), topology, toys.ToyCosts(topology.system)))
    assert sum(answer.breakdown_s.values()) == pytest.approx(answer.step_time_s)
    assert answer.tokens_per_s == pytest.approx(64 * 1024 / answer.step_time_s)
    assert answer.peak_flop_per_s == 16 * 312e12
    assert 0 < answer.mfu <= answer.hfu < 1
    assert 0 <= answer.bubble_fraction + answer.exposed_communication_fraction < 1


def test_without_any_legal_layout_the_reason_is_the_division(toys: ModuleType, topology: Topology) -> None:
    with pytest.raises(PlanError, match=r"no layout is legal \(batch 7 .* do not divide") as caught:
        screen(toys.question(strategy("data"), toys.job(7), topology, toys.ToyCosts(topology.system)))
    assert "16 x toy-gpus" in str(caught.value)
    assert caught.value.exit_code == 3


def test_without_a_plan_that_fits_the_closest_is_shown_with_its_way_out(toys: ModuleType) -> None:
    tiny = toys.topology(8, toys.gpu_cluster(capacity=2.5 * toys.GIB))
    job = toys.job(64)
    with pytest.raises(PlanError) as caught:
        screen(toys.question(strategy("3d"), job, tiny, toys.ToyCosts(tiny.system)))
    head, closest = caught.value.reasons
    listed = list(strategy("3d").layouts(job, tiny))
    sharded = {
        other
        for layout in listed
        for other in strategy("3d").variants(job, tiny, layout)
        if other.zero_stage > layout.zero_stage
    }
    tried = len(listed) + len(sharded)
    assert f"{tried} layouts tried, {tried} over memory" in head
    unchecked = [strategy("3d").plan(job, tiny, layout, check_memory=False) for layout in [*listed, *sharded]]
    least = min(unchecked, key=lambda plan: plan.peak_memory_bytes)
    assert f"{least.peak_memory_bytes / toys.GIB:.1f} GiB" in closest
    assert "try " in closest


def test_a_layout_is_written_as_people_say_it() -> None:
    layout = ParallelLayout(tensor=8, pipeline=4, data=4, micro_batch_size=2, recompute="full")
    assert layout.short.startswith("tp8 pp4 dp4 mbs2")
