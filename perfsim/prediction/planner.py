"""The best layout: screen them with the closed form, run the best few, keep the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfsim.calibration import ClusterCalibration
from perfsim.costs.price import Costs
from perfsim.engine.limits import present_limits
from perfsim.errors import LayoutError, MemoryCapacityError, PlanError
from perfsim.prediction.evaluation import Evaluation, evaluate, graph_of, longest_path_s
from perfsim.strategies import TIGHT, Plan, Strategy
from perfsim.topology import Topology
from perfsim.workload import Job, Layout

CONFIRMED = 3
"""How many of the screened layouts are run."""
REFINED = 8
"""Of how many of the screened layouts the strategy's variants are tried."""
NEARLY = 1.5
"""A layout that needs at most so many times its memory is tried with more of its state sharded."""


@dataclass(frozen=True)
class Screened:
    """A feasible plan with its estimated step time."""

    estimate_s: float
    plan: Plan


def screen(strategy: Strategy, job: Job, topology: Topology, costs: Costs) -> list[Screened]:
    """Every feasible plan, best estimate first, of ties the one with least memory.

    All layouts of the strategy are tried; their variants only where they could lead: for the best
    layouts without their bubble, and, at a higher ZeRO stage, for layouts that miss memory by little.
    PlanError says why there is no plan.
    """
    search = _Search(strategy, job, topology, costs)
    for layout in strategy.layouts(job, topology):
        search.attempt(layout)
    search.refine()
    if not search.feasible:
        raise PlanError(_reasons(strategy, job, topology, search))
    return sorted(search.feasible, key=lambda each: (each.estimate_s, each.plan.peak_memory_bytes))


class _Search:
    """What has been tried of a question, and what became of it."""

    def __init__(self, strategy: Strategy, job: Job, topology: Topology, costs: Costs) -> None:
        self.strategy, self.job, self.topology, self.costs = strategy, job, topology, costs
        self.feasible: list[Screened] = []
        self.too_large: list[tuple[float, Layout, MemoryCapacityError]] = []
        self.seen: set[Layout] = set()
        self.limits = present_limits()

    def attempt(self, layout: Layout) -> None:
        """Plan a layout and estimate it. PlanError where what the strategy lists turns out illegal."""
        self.limits.in_time(self._so_far)
        try:
            plan = self.strategy.plan(self.job, self.topology, layout)
        except LayoutError as error:
            raise PlanError([problem.message for problem in error.problems]) from None
        except MemoryCapacityError as error:
            self.too_large.append((error.ratio, layout, error))
            return
        if plan.layout not in self.seen:
            self.seen.add(plan.layout)
            self.feasible.append(Screened(self.strategy.estimate_s(plan, self.costs.duration_s), plan))

    def _so_far(self) -> str:
        tried = len(self.feasible) + len(self.too_large)
        where = f"{self.topology.num_devices} x {self.topology.system.name}"
        return f"{tried:,} layouts screened for {self.job.global_batch_size:,} sequences on {where}"

    def refine(self) -> None:
        """Try the variants of layouts that are promising or nearly fit."""
        promising = [each.plan.layout for each in sorted(self.feasible, key=_without_bubble)[:REFINED]]
        nearly = [layout for ratio, layout, _ in self.too_large if ratio <= NEARLY or not self.feasible]
        for layout in promising:
            for variant in self.strategy.variants(self.job, self.topology, layout):
                self.attempt(variant)
        for layout in nearly:
            for variant in self.strategy.variants(self.job, self.topology, layout):
                if variant.zero_stage > layout.zero_stage:
                    self.attempt(variant)


def _without_bubble(each: Screened) -> float:
    """What the estimate would be with the pipeline always full: no schedule can be faster."""
    microbatches, idle = each.plan.num_microbatches, each.plan.layout.pipeline - 1
    return each.estimate_s * microbatches / (microbatches + idle)


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
    screened = screen(strategy, job, topology, costs)
    shortlist = screened[:confirmed]
    graphs = [graph_of(each.plan) for each in shortlist]
    best = 0
    if len(shortlist) > 1:
        paths = [longest_path_s(graph, topology, costs) for graph in graphs]
        best = min(range(len(paths)), key=paths.__getitem__)
    plan = _with_safer(shortlist[best], screened)
    return evaluate(plan, costs, cluster=cluster, graph=graphs[best])


def _with_safer(chosen: Screened, screened: Sequence[Screened]) -> Plan:
    """The plan; where it nearly fills its memory with a note on the fastest one that does not."""
    plan = chosen.plan
    if plan.memory_share <= TIGHT:
        return plan
    safer = next((choice for choice in screened if choice.plan.memory_share <= TIGHT), None)
    if safer is None:
        return replace(plan, notes=(*plan.notes, f"no plan leaves more than {1 - TIGHT:.0%} of memory free"))
    slower = 100 * (safer.estimate_s / chosen.estimate_s - 1)
    note = (
        f"safer: {safer.plan.layout.short} fills {100 * safer.plan.memory_share:.0f} % and takes "
        f"about {max(0.0, slower):.1f} % longer"
    )
    return replace(plan, notes=(*plan.notes, note))


def _reasons(strategy: Strategy, job: Job, topology: Topology, search: _Search) -> list[str]:
    where = f"{topology.num_devices} x {topology.system.name}"
    head = f"no plan fits: strategy {strategy.name}, {where}, {job.global_batch_size} sequences a step"
    tried = len(search.too_large)
    if not tried:
        why = f"batch {job.global_batch_size} and {job.model.num_layers} layers do not divide over them"
        return [f"{head}: no layout is legal ({why})"]
    _, layout, error = min(search.too_large, key=lambda each: each[0])
    closest = f"closest: {layout.short}: {error}"
    return [f"{head}: {tried} layouts tried, {tried} over memory", closest]
