"""The best layout: screen all of them with the closed form, run the best few, keep the fastest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from perfsim.costs.price import Costs
from perfsim.errors import MemoryCapacityError, PlanError
from perfsim.strategies import Plan, Strategy
from perfsim.study.evaluate import Evaluation, evaluate
from perfsim.topology import Topology
from perfsim.workload import Job

CONFIRMED = 3
"""How many of the screened layouts are run."""


@dataclass(frozen=True)
class Screened:
    """A feasible plan with its estimated step time."""

    estimate_s: float
    plan: Plan


def screen(strategy: Strategy, job: Job, topology: Topology, costs: Costs) -> list[Screened]:
    """Every feasible plan, best estimate first; PlanError says why there is none."""
    feasible: list[Screened] = []
    too_large: list[str] = []
    tried = 0
    for layout in strategy.layouts(job, topology):
        tried += 1
        try:
            plan = strategy.plan(job, topology, layout)
        except MemoryCapacityError as error:
            too_large.append(f"{short_layout(plan_layout(layout))}: {error}")
            continue
        feasible.append(Screened(strategy.estimate_s(plan, costs.duration_s), plan))
    if not feasible:
        raise PlanError(_reasons(strategy, job, topology, tried, too_large))
    return sorted(feasible, key=lambda each: each.estimate_s)


def best_plan(
    strategy: Strategy, job: Job, topology: Topology, costs: Costs, confirmed: int = CONFIRMED
) -> Evaluation:
    """The fastest feasible plan, among the best few of the screening."""
    shortlist = screen(strategy, job, topology, costs)[:confirmed]
    if len(shortlist) > 1:
        paths = [evaluate(each.plan, costs, contention=False).step_time_s for each in shortlist]
        best = min(range(len(paths)), key=paths.__getitem__)
    else:
        best = 0
    return evaluate(shortlist[best].plan, costs)


def plan_layout(layout: object) -> dict[str, object]:
    """The fields of a layout by their YAML names."""
    return {name: getattr(layout, name) for name in layout.__dataclass_fields__}  # type: ignore[attr-defined]


def short_layout(layout: dict[str, object]) -> str:
    """`tp8 pp4 dp4 mbs1`: a layout as people say it."""
    short = {"tensor": "tp", "pipeline": "pp", "data": "dp", "micro_batch_size": "mbs"}
    return " ".join(f"{abbreviation}{layout[name]}" for name, abbreviation in short.items())


def _reasons(strategy: Strategy, job: Job, topology: Topology, tried: int, too_large: list[str]) -> list[str]:
    where = f"{topology.num_devices} x {topology.system.name}"
    head = f"no plan fits: strategy {strategy.name}, {where}, {job.global_batch_size} sequences a step"
    if not tried:
        return [
            f"{head}: no layout is legal (batch {job.global_batch_size} and {job.model.num_layers} layers "
            f"do not divide over {topology.num_devices} devices)"
        ]
    kinds = Counter(reason.split(" needs ")[0].split(": ")[-1] for reason in too_large)
    places = ", ".join(f"{place} {count}" for place, count in kinds.most_common(3))
    return [f"{head}: {tried} layouts tried, {len(too_large)} over memory ({places})", f"closest: {too_large[-1]}"]
