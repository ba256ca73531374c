"""The best layout: screen them with the closed form, run the best few, keep the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfsim.engine.limits import present_limits
from perfsim.errors import LayoutError, MemoryCapacityError, PlanError
from perfsim.prediction.evaluation import Evaluation, evaluate, graph_of, longest_path_s
from perfsim.prediction.question import Question
from perfsim.strategies import TIGHT, Plan
from perfsim.workload import Layout

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


def screen(question: Question) -> list[Screened]:
    """Every feasible plan, best estimate first, of ties the one with least memory.

    A given layout is the only one; LayoutError where it is illegal. Otherwise all layouts of the strategy
    are tried; their variants only where they could lead: for the best layouts without their bubble, and, at
    a higher ZeRO stage, for layouts that miss memory by little.
    PlanError says why there is no plan.
    """
    if question.layout is not None:
        plan = plan_of(question)
        return [Screened(question.chosen.estimate_s(plan, question.costs.duration_s), plan)]
    search = _Search(question)
    for layout in search.strategy.layouts(search.job, search.topology):
        search.attempt(layout)
    search.refine()
    if not search.feasible:
        raise PlanError(_reasons(search))
    return sorted(search.feasible, key=lambda plan: (plan.estimate_s, plan.plan.peak_memory_bytes))


class _Search:
    """What has been tried of a question, and what became of it."""

    def __init__(self, question: Question) -> None:
        self.strategy, self.job = question.chosen, question.job
        self.topology, self.costs = question.topology, question.costs
        self.feasible: list[Screened] = []
        self.too_large: list[tuple[float, Layout, MemoryCapacityError]] = []
        self.seen: set[Layout] = set()
        self.where = question.label
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
        return f"{tried:,} layouts screened for {self.job.global_batch_size:,} sequences on {self.where}"

    def refine(self) -> None:
        """Try the variants of layouts that are promising or nearly fit."""
        best = sorted(self.feasible, key=_without_bubble)[:REFINED]
        promising = [candidate.plan.layout for candidate in best]
        nearly = [layout for ratio, layout, _ in self.too_large if ratio <= NEARLY or not self.feasible]
        for layout in promising:
            for variant in self.strategy.variants(self.job, self.topology, layout):
                self.attempt(variant)
        for layout in nearly:
            for variant in self.strategy.variants(self.job, self.topology, layout):
                if variant.zero_stage > layout.zero_stage:
                    self.attempt(variant)


def _without_bubble(candidate: Screened) -> float:
    """The estimate with the pipeline always full: no schedule can be faster."""
    microbatches, idle = candidate.plan.num_microbatches, candidate.plan.layout.pipeline - 1
    return candidate.estimate_s * microbatches / (microbatches + idle)


def plan_of(question: Question) -> Plan:
    """The plan of the given layout, or the first of the screening. Raises as these do."""
    layout = question.given_layout
    if layout is None:
        return screen(question)[0].plan
    return question.chosen.plan(question.job, question.topology, layout, check_memory=question.must_fit)


def best_plan(question: Question, confirmed: int = CONFIRMED) -> Evaluation:
    """The fastest feasible plan of the best few of the screening, run; a cluster's scale favours none.

    A given layout has no rivals. Raises PlanError where no plan fits, LayoutError for an illegal layout.
    """
    if question.layout is not None:
        plan = plan_of(question)
        graph = graph_of(plan, question.chosen)
        return evaluate(plan, question.costs, cluster=question.cluster, graph=graph)
    screened = screen(question)
    shortlist = screened[:confirmed]
    graphs = [graph_of(candidate.plan, question.chosen) for candidate in shortlist]
    best = 0
    if len(shortlist) > 1:
        paths = [longest_path_s(graph, question.topology, question.costs) for graph in graphs]
        best = min(range(len(paths)), key=paths.__getitem__)
    plan = _with_safer(shortlist[best], screened)
    return evaluate(plan, question.costs, cluster=question.cluster, graph=graphs[best])


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


def _reasons(search: _Search) -> list[str]:
    job = search.job
    asked = f"strategy {search.strategy.name}, {search.where}, {job.global_batch_size} sequences a step"
    head = f"no plan fits: {asked}"
    tried = len(search.too_large)
    if not tried:
        why = f"batch {job.global_batch_size} and {job.model.num_layers} layers do not divide over them"
        return [f"{head}: no layout is legal ({why})"]
    _, layout, error = min(search.too_large, key=lambda refused: refused[0])
    return [
        f"{head}: {tried} layouts tried, {tried} over memory",
        f"closest: {layout.short}: {error}",
    ]
