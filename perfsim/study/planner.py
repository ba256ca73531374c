"""The best layout: screen all of them with the closed form, run the best few, keep the fastest."""

from __future__ import annotations

from dataclasses import dataclass

from perfsim.calibration import ClusterCalibration
from perfsim.costs.price import Costs
from perfsim.errors import LayoutError, MemoryCapacityError, PlanError
from perfsim.strategies import Plan, Strategy
from perfsim.study.evaluate import Evaluation, evaluate
from perfsim.topology import Topology
from perfsim.workload import Job, ParallelLayout

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
    too_large: list[tuple[float, str]] = []
    tried = 0
    for layout in strategy.layouts(job, topology):
        tried += 1
        try:
            plan = strategy.plan(job, topology, layout)
        except LayoutError as error:
            raise PlanError([problem.message for problem in error.problems]) from None
        except MemoryCapacityError as error:
            too_large.append((error.ratio, f"{short_layout(layout)}: {error}"))
            continue
        feasible.append(Screened(strategy.estimate_s(plan, costs.duration_s), plan))
    if not feasible:
        raise PlanError(_reasons(strategy, job, topology, tried, too_large))
    return sorted(feasible, key=lambda each: each.estimate_s)


def best_plan(
    strategy: Strategy,
    job: Job,
    topology: Topology,
    costs: Costs,
    confirmed: int = CONFIRMED,
    *,
    cluster: ClusterCalibration | None = None,
) -> Evaluation:
    """The fastest feasible plan, among the best few of the screening; a cluster's scale favours none."""
    shortlist = screen(strategy, job, topology, costs)[:confirmed]
    if len(shortlist) > 1:
        paths = [evaluate(each.plan, costs, contention=False).step_time_s for each in shortlist]
        best = min(range(len(paths)), key=paths.__getitem__)
    else:
        best = 0
    return evaluate(shortlist[best].plan, costs, cluster=cluster)


def short_layout(layout: ParallelLayout) -> str:
    """`tp8 pp4 dp4 mbs1`: a layout as people say it, with its schedule where that is not 1F1B."""
    degrees = f"tp{layout.tensor} pp{layout.pipeline} dp{layout.data} mbs{layout.micro_batch_size}"
    how = "" if layout.schedule == "1f1b" else f" {layout.schedule}"
    return f"{degrees}{how} recompute {layout.recompute}"


def _reasons(
    strategy: Strategy, job: Job, topology: Topology, tried: int, too_large: list[tuple[float, str]]
) -> list[str]:
    where = f"{topology.num_devices} x {topology.system.name}"
    head = f"no plan fits: strategy {strategy.name}, {where}, {job.global_batch_size} sequences a step"
    if not tried:
        why = f"batch {job.global_batch_size} and {job.model.num_layers} layers do not divide over them"
        return [f"{head}: no layout is legal ({why})"]
    closest = min(too_large)[1]
    return [f"{head}: {tried} layouts tried, {len(too_large)} over memory", f"closest: {closest}"]
