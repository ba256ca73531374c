"""The promises of every strategy, checked on small machines: `check_strategy` names a broken promise.

Machines, models and prices come from `perfsim.testing.toys`, so nothing depends on a calibration.
Neither pytest nor hypothesis is needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.errors import InputError, LayoutError, MemoryCapacityError, PlanError
from perfsim.costs.price import Costs, price
from perfsim.costs.wafer import WaferCosts
from perfsim.engine import critical_path, simulate
from perfsim.engine.trace import Trace
from perfsim.machines import network_of
from perfsim.machines.placement import SharedLinks
from perfsim.network import Topology, WaferTree
from perfsim.prediction.planner import Search
from perfsim.prediction.verification import SamplingSpec, verify
from perfsim.proof.promises import held_unlike_promised
from perfsim.specs.layout import Layout, ParallelLayout, text_of
from perfsim.specs.recipe import Job
from perfsim.strategies import MEMBERS, STRATEGIES, Plan, Strategy
from perfsim.testing import toys
from perfsim.work import TaskGraph
from perfsim.work.graph import computes

MOST_LAYOUTS = 200
"""Layouts of each case that are planned, spread over all that a strategy lists."""
MOST_PLANS = 6
"""Plans of each case that are simulated, spread over all of its layouts."""
FIRST_ESTIMATE = 1.8
"""By what factor the first estimate of a screening may differ from the closest."""
SCREENING_TOLERANCE = 0.15
"""Allowed relative difference between the closed form and the simulation."""


class _Small(NamedTuple):
    """A small job, and a machine for it of any kind."""

    devices: int
    batch: int
    model: Mapping[str, Any] = {}
    """Changes of the toy model; `recipe` has the changes of the toy recipe."""
    recipe: Mapping[str, Any] = {}
    capacity: float | None = None
    """Memory of a device; None: as the toy's."""
    hosted: bool = False
    """Whether GPUs have a host."""


FUSED = {"attention": "flash", "dropout": False}
OVERLAPPED = {"overlap_grad_reduce": True}
GROUPED = {"num_query_groups": 4}
NARROW = {"hidden_size": 1024, "ffn_hidden_size": 4096}
GATED = {"gated_mlp": True, "tied_embeddings": False, "position_embedding": "rotary", **GROUPED}
LONG = {**FUSED, **OVERLAPPED, "seq_length": 16_384, "overlap_param_gather": True}
EXPERTS = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 2048, "shared_ffn_hidden_size": 512}
ROUTED = {"hidden_size": 1024, "experts": EXPERTS, **GROUPED}
JOBS: Mapping[str, _Small] = {
    "one device": _Small(1, 16),
    "one node": _Small(8, 32),
    "a node with little memory": _Small(8, 32, capacity=10e9),
    "two nodes, reduction overlapped": _Small(16, 64, {"num_layers": 16}, OVERLAPPED),
    "four nodes, flash attention": _Small(
        32, 64, {"num_layers": 32, "num_attention_heads": 32, **NARROW}, FUSED
    ),
    "two nodes, long sequences": _Small(16, 16, {"num_layers": 8, **GROUPED, **NARROW}, LONG),
    "a gated model with grouped queries and its own head": _Small(4, 16, GATED),
    "two nodes, experts in balance": _Small(16, 32, ROUTED, {**FUSED, **OVERLAPPED, "routing": "balanced"}),
    "two devices with too little memory, and a host": _Small(
        2, 16, {}, OVERLAPPED, capacity=5.5e9, hosted=True
    ),
}


class BrokenPromise(AssertionError):
    """A strategy breaks a promise of the protocol; the message names the promise and the case."""


@dataclass(frozen=True)
class Case:
    """A strategy with one job on one small machine, and prices for its work."""

    name: str
    strategy: Strategy
    job: Job
    topology: Topology
    costs: Costs

    @cached_property
    def layouts(self) -> list[Layout]:
        """Layouts that the strategy lists, at most `MOST_LAYOUTS` spread over all."""
        listed = list(self.strategy.layouts(self.job, self.topology))
        return listed[:: math.ceil(len(listed) / MOST_LAYOUTS) or 1]

    @cached_property
    def plans(self) -> list[Plan]:
        """Plans that fit, spread over all layouts."""
        plans = []
        for layout in self.layouts:
            with suppress(MemoryCapacityError):
                plans.append(self.plan(layout))
        return plans[:: max(1, math.ceil(len(plans) / MOST_PLANS))]

    def plan(self, layout: Layout, *, check_memory: bool = True) -> Plan:
        return self.strategy.plan(self.job, self.topology, layout, check_memory=check_memory)

    def runs(self) -> Iterator[tuple[Plan, TaskGraph, Trace]]:
        """Each plan, its graph, and the simulation of the graph with contention for links."""
        for plan in self.plans:
            graph = plan.graph()
            links = SharedLinks.of(graph, network_of(self.topology))
            yield plan, graph, simulate(graph, price(graph, self.costs), links.flows, links.capacities)

    def check(self, promise: Promise) -> None:
        """Raise BrokenPromise, naming strategy, case and promise, if the strategy breaks the promise."""
        try:
            promise(self)
        except (BrokenPromise, LayoutError, MemoryCapacityError) as error:
            stated = " ".join((promise.__doc__ or promise.__name__).split())
            where = f"strategy {self.strategy.name!r}, case {self.name!r}"
            raise BrokenPromise(f"{where}: {error}\n    promised: {stated}") from error


def cases_for(strategy: Strategy) -> list[Case]:
    """Every job of `JOBS` on a toy machine of the kind. Raises InputError for a kind without toys."""
    if strategy.system_kind not in ("gpu-cluster", "wafer-cluster"):
        raise InputError(f"no toy machine of the kind {strategy.system_kind!r}: pass your own `cases`")
    cases = []
    for name, small in JOBS.items():
        memory: dict[str, Any] = {} if small.capacity is None else {"capacity": small.capacity}
        job = toys.job(small.batch, small.recipe, **small.model)
        if strategy.system_kind == "wafer-cluster":
            wafers = WaferTree(toys.wafer_cluster(**({} if small.hosted else memory)), small.devices)
            cases.append(Case(name, strategy, job, wafers, WaferCosts(wafers, job.recipe)))
        else:
            cluster = toys.gpu_cluster(**memory, host=toys.host(drives=1e13) if small.hosted else None)
            costs = toys.ToyCosts(cluster, devices=small.devices)
            cases.append(Case(name, strategy, job, toys.topology(small.devices, cluster), costs))
    return cases


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise BrokenPromise(message)


def _it_says_what_it_is(case: Case) -> None:
    """It has a name, a summary of one line, and the kind of the system that it runs on."""
    strategy = case.strategy
    _require(bool(strategy.name), "it has no name")
    _require(len(strategy.summary.splitlines()) == 1, "its summary is not one line")
    kind = case.topology.system.kind
    _require(strategy.system_kind == kind, f"system_kind is {strategy.system_kind!r}, not {kind!r}")


MOST_EXPLAINED = 16
"""Refusals that are read in full: what to try takes a search each."""


def _listed_layouts_are_legal(case: Case) -> None:
    """Every layout that it lists fits, or is refused only for memory, with a suggested change."""
    refused: list[MemoryCapacityError] = []
    for layout in case.layouts:
        unchecked = case.plan(layout, check_memory=False)
        _require(unchecked.strategy == case.strategy.name, f"its plan is of strategy {unchecked.strategy!r}")
        fits = all(use.fits for use in unchecked.memory)
        try:
            plan = case.plan(layout)
        except MemoryCapacityError as refusal:
            _require(not fits, f"{layout} fits and is refused: {refusal.reason}")
            refused.append(refusal)
        else:
            _require(fits, f"{layout} does not fit and is not refused")
            _require(plan == unchecked, f"the plan of {layout} depends on check_memory")
    for lacking in refused[:: 1 + len(refused) // MOST_EXPLAINED]:
        explained = re.search(r"needs .* (try|no change)", str(lacking)) is not None
        _require(explained, f"a refusal says neither what it needs nor what to try: {lacking}")


def _the_screening_agrees_with_the_plans(case: Case) -> None:
    """The planner screens listed layouts, with the memory and the closed form of their plans."""
    try:
        screened = Search(toys.question(case.strategy, case.job, case.topology, case.costs))
    except PlanError as refusal:
        _require(not case.plans, f"there are plans that fit, and the planner says: {refusal}")
        return
    screening = screened.screening
    for index in range(0, screening.feasible, math.ceil(screening.feasible / MOST_PLANS)):
        plan = case.plan(screening.layout(index))
        share = screening.memory_share[index]
        same = math.isclose(plan.memory_share, share, rel_tol=1e-9)
        _require(same, f"{plan.layout}: {share:.4g} of memory screened, {plan.memory_share:.4g} planned")
        screened_s = closer_s = screening.estimate_s[index]
        if screening.closer is not None:
            closer_s = screening.closer(np.array([index]))[0]
        own_s = case.strategy.estimate_s(plan, case.costs)
        agrees = math.isclose(own_s, closer_s, rel_tol=1e-9)
        _require(agrees, f"{plan.layout}: {closer_s} s screened, {own_s} s")
        near = abs(math.log(screened_s / own_s)) <= math.log(FIRST_ESTIMATE)
        _require(near, f"{plan.layout}: {screened_s} s screened first, {own_s} s planned")


def _memory_is_itemised(case: Case) -> None:
    """No part of a memory is negative, and their sum is positive."""
    for plan in case.plans:
        _require(plan.peak_memory_bytes > 0, f"{plan.layout} uses no memory")
        for use in plan.memory:
            _require(min(use.parts_bytes.values()) >= 0, f"{use} has a negative part")


def _all_products_are_the_models(case: Case) -> None:
    """All ranks together compute the model's products, in every pass, with its shapes, sums and FLOPs."""
    for plan in case.plans:
        verified = verify(plan.graph(), case.job, plan.layout, SamplingSpec(tasks=1))
        wrong = ("it multiplies nothing",) if verified is None else verified.failed
        _require(not wrong, f"{plan.layout}: {'; '.join(wrong)}")


def _the_same_plan_gives_the_same_graph(case: Case) -> None:
    """Emitting a plan twice gives the same graph."""
    for plan in case.plans[:3]:
        same = plan.graph().digest() == plan.graph().digest()
        _require(same, f"{plan.layout} is written in two ways")


def _more_steps_can_be_written(case: Case) -> None:
    """It emits as many steps as the plan requires."""
    for plan in case.plans[:2]:
        steps = len(replace(plan, least_steps=3).graph().step_ends)
        _require(steps == 3, f"{plan.layout} is written with {steps} steps where the plan has least_steps 3")


def _tasks_name_their_layer(case: Case) -> None:
    """Every layer is the `block` of some task, and every task of a layer has a block."""
    for plan in case.plans[:2]:
        graph = plan.graph()
        absent = set(range(case.job.model.num_layers)) - set(graph.block.tolist())
        _require(not absent, f"{plan.layout}: no task has the block {sorted(absent)}")
        for task in graph.tasks():
            of_layer = task.work.op.startswith(("attention.", "mlp.", "layer."))
            _require(task.block >= 0 or not of_layer, f"{plan.layout}: {task.work.name} has no block")


def _streams_and_groups_are_named(case: Case) -> None:
    """A stream is `device/lane`, one lane is `compute`, and communication has a group."""
    for plan in case.plans[:3]:
        graph = plan.graph()
        wrong = [name for name in graph.streams if name.count("/") != 1]
        _require(not wrong, f"streams are not of the form device/lane: {wrong}")
        _require(any(map(computes, graph.streams)), "no stream is called device/compute")
        alone = [work.name for work in graph.works if work.kind.is_communication and work.group is None]
        _require(not alone, f"communication without a group: {alone}")


def _ranks_hold_what_their_schedule_promises(case: Case) -> None:
    """In every pipeline schedule that it lists, a rank holds as many micro-batches in flight as promised."""
    deepest: dict[str, tuple[int, Layout]] = {}
    for layout in case.layouts:
        if not isinstance(layout, ParallelLayout):
            continue
        microbatches = case.job.global_batch_size // (layout.data * layout.micro_batch_size)
        full = min(layout.pipeline, microbatches // 2)
        if full > deepest.get(layout.schedule, (0, layout))[0]:
            deepest[layout.schedule] = full, layout
    for _, layout in deepest.values():
        plan = case.plan(layout, check_memory=False)
        for fault in held_unlike_promised(plan.graph(), plan):
            raise BrokenPromise(f"{text_of(layout)}: {fault}")


def _contention_only_delays(case: Case) -> None:
    """The simulation completes, and no task ends earlier than on idle links."""
    for plan, graph, run in case.runs():
        path = critical_path(graph, price(graph, case.costs))
        _require(bool((run.end_s >= path.end_s).all()), f"{plan.layout}: contention makes a task end earlier")
        _require(run.step_time_s > 0, f"{plan.layout}: the step takes no time")


def _the_run_is_the_longest_path(case: Case) -> None:
    """On idle links the simulation equals the longest path bit for bit."""
    for plan in case.plans:
        graph = plan.graph()
        durations = price(graph, case.costs)
        run = simulate(graph, durations)
        path = critical_path(graph, durations)
        same = run.start_s.tobytes() == path.start_s.tobytes() and run.end_s.tobytes() == path.end_s.tobytes()
        _require(same, f"{plan.layout}: simulation and longest path differ on idle links")


def _the_screening_formula_is_close(case: Case) -> None:
    """`estimate_s` is within 15 % of the simulation."""
    for plan, _, run in case.runs():
        estimate = case.strategy.estimate_s(plan, case.costs)
        close = abs(estimate - run.step_time_s) <= SCREENING_TOLERANCE * run.step_time_s
        _require(close, f"{plan.layout}: estimated {estimate:.4g} s, simulated {run.step_time_s:.4g} s")


def _every_second_is_accounted_for(case: Case) -> None:
    """The seconds of each device, by category, are positive and sum to the step."""
    for plan, _, run in case.runs():
        devices = run.device_breakdowns()
        _require(bool(devices), f"{plan.layout}: no device does anything")
        for device, seconds in devices.items():
            _require(min(seconds.values()) >= 0, f"{plan.layout}: {device} has negative seconds")
            total = sum(seconds.values())
            whole = math.isclose(total, run.step_time_s, rel_tol=1e-9)
            _require(whole, f"{plan.layout}: {device} accounts for {total:.6g} of {run.step_time_s:.6g} s")


Promise = Callable[[Case], None]

PROMISES: Mapping[str, Promise] = {
    promise.__name__.removeprefix("_"): promise
    for promise in (
        _it_says_what_it_is,
        _listed_layouts_are_legal,
        _the_screening_agrees_with_the_plans,
        _memory_is_itemised,
        _all_products_are_the_models,
        _the_same_plan_gives_the_same_graph,
        _more_steps_can_be_written,
        _tasks_name_their_layer,
        _streams_and_groups_are_named,
        _ranks_hold_what_their_schedule_promises,
        _contention_only_delays,
        _the_run_is_the_longest_path,
        _the_screening_formula_is_close,
        _every_second_is_accounted_for,
    )
}
"""By name; each raises BrokenPromise for a case that breaks it; its docstring states the promise."""


def check_strategy(strategy: Strategy, cases: list[Case] | None = None) -> None:
    """Raise BrokenPromise for the first promise that the strategy breaks.

    `cases` default to `cases_for(strategy)`. Cases without a layout are skipped, but at least one case must
    have a plan that fits.
    """
    missing = [member for member in MEMBERS if not hasattr(strategy, member)]
    _require(not missing, f"no {', '.join(missing)}; inherit from perfsim.strategies.Strategy")
    ours = STRATEGIES.get(strategy.name, strategy)
    _require(ours == strategy, f"perfsim has a strategy {strategy.name!r} and uses that; rename it")
    cases = cases_for(strategy) if cases is None else cases
    for case in cases:
        for promise in PROMISES.values():
            case.check(promise)
    _require(any(case.plans for case in cases), f"strategy {strategy.name!r} has no plan that fits any case")
