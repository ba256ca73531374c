"""A strategy that breaks a promise is told which one."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perfsim.base.errors import InputError
from perfsim.costs.price import Costs
from perfsim.network import Topology
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, strategy
from perfsim.strategies.plan import Screening
from perfsim.strategies.three_d.strategy import ThreeD
from perfsim.testing import PROMISES, BrokenPromise, cases_for, check_strategy
from perfsim.testing.conformance import Promise
from perfsim.work import GraphBuilder, Kind, Work


class Data(ThreeD):
    """Data parallelism, in a class of its own as a plug-in has it; the classes below break a promise each."""

    def __init__(self) -> None:
        super().__init__("plug-in", ("data",), "data parallelism of a plug-in")


class Silent(Data):
    def __init__(self) -> None:
        ThreeD.__init__(self, "plug-in", ("data",), summary="")


class ListsIllegal(Data):
    def layouts(self, job: Job, topology: Topology) -> Iterator[ParallelLayout]:
        yield ParallelLayout(data=3)


class ScreensHalfTheMemory(Data):
    def screen(self, job: Job, topology: Topology, costs: Costs) -> Screening:
        screening = super().screen(job, topology, costs)
        return replace(screening, memory_share=screening.memory_share / 2)


class ScreensTooFast(Data):
    def screen(self, job: Job, topology: Topology, costs: Costs) -> Screening:
        screening = super().screen(job, topology, costs)
        return replace(screening, estimate_s=screening.estimate_s / 2)


class ForgetsMemory(Data):
    def plan(
        self, job: Job, topology: Topology, layout: ParallelLayout, *, check_memory: bool = True
    ) -> Plan:
        plan = super().plan(job, topology, layout, check_memory=check_memory)
        memory = tuple(replace(use, parts_bytes={"rest": -1.0, **use.parts_bytes}) for use in plan.memory)
        return replace(plan, memory=memory)


class SkipsWork(Data):
    def emit(self, plan: Plan, builder: GraphBuilder) -> None:
        super().emit(replace(plan, num_microbatches=1), builder)


class WritesOneStep(Data):
    def emit(self, plan: Plan, builder: GraphBuilder) -> None:
        super().emit(replace(plan, least_steps=1), builder)


class WritesAnotherGraphEachTime(Data):
    written = 0

    def emit(self, plan: Plan, builder: GraphBuilder) -> None:
        type(self).written += 1
        builder.task(Work(f"number {self.written}", Kind.COMP, "begin", "forward"), "gpu0/compute", block=0)
        super().emit(plan, builder)


class NamesNoBlock(Data):
    def emit(self, plan: Plan, builder: GraphBuilder) -> None:
        builder.task(Work("more", Kind.COMP, "mlp.more", "forward"), "gpu0/compute")
        super().emit(plan, builder)


class NamesNoDevice(Data):
    def emit(self, plan: Plan, builder: GraphBuilder) -> None:
        builder.task(Work("more", Kind.COMP, "more", "forward"), "compute")
        super().emit(plan, builder)


class EstimatesTwice(Data):
    def estimate_s(self, plan: Plan, costs: Costs) -> float:
        return 2 * super().estimate_s(plan, costs)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Silent, PROMISES["it_says_what_it_is"]),
        (ListsIllegal, PROMISES["listed_layouts_are_legal"]),
        (ScreensHalfTheMemory, PROMISES["the_screening_agrees_with_the_plans"]),
        (ScreensTooFast, PROMISES["the_screening_agrees_with_the_plans"]),
        (ForgetsMemory, PROMISES["memory_is_itemised"]),
        (SkipsWork, PROMISES["all_products_are_the_models"]),
        (WritesOneStep, PROMISES["more_steps_can_be_written"]),
        (WritesAnotherGraphEachTime, PROMISES["the_same_plan_gives_the_same_graph"]),
        (NamesNoBlock, PROMISES["tasks_name_their_layer"]),
        (NamesNoDevice, PROMISES["streams_and_groups_are_named"]),
        (EstimatesTwice, PROMISES["the_screening_formula_is_close"]),
    ],
)
def test_a_broken_promise_is_named_with_strategy_and_case(broken: type[Data], promise: Promise) -> None:
    case = next(case for case in cases_for(broken()) if case.name == "one node")
    replace(case, strategy=Data()).check(promise)
    with pytest.raises(BrokenPromise, match=r"strategy 'plug-in', case 'one node'") as caught:
        case.check(promise)
    assert " ".join((promise.__doc__ or "").split()) in str(caught.value)
    assert "ParallelLayout(" not in str(caught.value), "a layout is said as --layout takes it"


@pytest.mark.slow
def test_a_strategy_of_a_plug_in_passes_without_being_installed() -> None:
    check_strategy(Data())


def test_the_whole_check_ends_at_the_first_broken_promise() -> None:
    with pytest.raises(BrokenPromise, match="The planner screens listed layouts"):
        check_strategy(EstimatesTwice())


def test_a_strategy_that_plans_nothing_is_told() -> None:
    class PlansNothing(Data):
        def layouts(self, job: Job, topology: Topology) -> Iterator[ParallelLayout]:
            return iter(())

    with pytest.raises(BrokenPromise, match="has no plan that fits any case"):
        check_strategy(PlansNothing())
    with pytest.raises(BrokenPromise, match="perfsim has a strategy 'data' and uses that"):
        check_strategy(ThreeD("data", ("data",), "a plug-in that nothing would use"))


def test_a_strategy_for_another_kind_of_machine_brings_its_own_cases() -> None:
    with pytest.raises(InputError, match="no toy machine of the kind 'abacus': pass your own `cases`"):
        check_strategy(ThreeD("plug-in", system_kind="abacus"))
    cases = [replace(case, strategy=Data()) for case in cases_for(strategy("data"))[:1]]
    check_strategy(Data(), cases)


def test_what_is_no_strategy_is_told_what_it_lacks() -> None:
    class Alone:
        name = "alone"
        summary = "it inherits from nothing"

    with pytest.raises(BrokenPromise, match=r"no .*emit.*; inherit from perfsim.strategies.Strategy"):
        check_strategy(Alone())
