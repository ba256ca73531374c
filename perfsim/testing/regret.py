"""Regret of the planner: how much slower its pick is than the best layout that a wide search simulates.

The wide search takes from the planner only the list of layouts and the order of their estimates. It tries
every layout within the memory limit whose estimate, less `MARGIN`, is below the best step so far, and a
random sample of the others. The longest path of a graph is a lower bound of its step, so only layouts whose
path is shorter than the best step are simulated.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfsim.prediction.planner import Search, confirmed, search
from perfsim.prediction.question import Question
from perfsim.prediction.run import evaluate, graph_of, in_full, longest_path_s

Floats = NDArray[np.float64]
MARGIN = 0.10
"""By how much the closed form may exceed a simulated step in the wide search."""
SAMPLED = 40
"""Layouts drawn from those outside the margin."""
MOST_PASSES = 20_000
"""Passes of a micro-batch through a layer in a graph that the wide search writes; larger graphs are left."""


@dataclass(frozen=True)
class Regret:
    """The planner's pick and the best layout of the wide search."""

    screened: int
    feasible: int
    """Layouts within the memory limit."""
    pick: str
    pick_s: float
    """Simulated step of the planner's pick."""
    best: str
    best_s: float
    """Simulated step of the fastest layout that either search has simulated."""
    confirmed: int
    """Layouts that the planner simulated."""
    written: int
    """Layouts of the wide search whose longest path was computed."""
    left: int
    """Layouts within the margin that the budget or the size of their graphs left out."""
    errors: tuple[float, ...]
    """Estimate over longest path less 1, of every layout of the wide search."""

    @property
    def regret(self) -> float:
        """How much slower the pick is, as a share of the best step."""
        return self.pick_s / self.best_s - 1


class WideSearch:
    """The layouts of one question, simulated as far as they could be best."""

    def __init__(self, searched: Search, best: str, best_s: float) -> None:
        self.searched = searched
        self.best = best
        self.best_s = best_s
        self.errors: list[float] = []
        self.left = 0

    def run(self, budget_s: float, seed: int) -> None:
        """Try layouts in the order of their estimates, then the sample; `budget_s` in processor seconds."""
        order = self.searched.order
        estimates = self.searched.screening.estimate_s
        began_s = time.process_time()
        position = 0
        while position < len(order) and estimates[order[position]] * (1 - MARGIN) < self.best_s:
            if time.process_time() - began_s > budget_s:
                self.left += int((estimates[order[position:]] * (1 - MARGIN) < self.best_s).sum())
                break
            self.left += not self._try(int(order[position]))
            position += 1
        rest = order[position:]
        drawn = np.random.default_rng(seed).choice(rest, min(SAMPLED, len(rest)), replace=False)
        for index in drawn.tolist():
            self._try(index)

    def _try(self, index: int) -> bool:
        """Whether the graph of a layout is small enough; if it is, its path and where needed its step."""
        question = self.searched.question
        screening = self.searched.screening
        plan = question.chosen.plan(question.job, question.topology, screening.layout(index))
        if plan.num_microbatches * question.model.num_layers > MOST_PASSES:
            return False
        graph = graph_of(plan, question.chosen)
        path_s = longest_path_s(graph, question.topology, question.costs)
        self.errors.append(float(screening.estimate_s[index]) / path_s - 1)
        if path_s < self.best_s:
            step_s = evaluate(plan, question.costs, graph=graph).step_time_s
            if step_s < self.best_s:
                self.best = plan.layout.short
                self.best_s = step_s
        return True


def regret_of(question: Question, budget_s: float, seed: int = 0) -> Regret:
    """The planner's answer beside that of the wide search. PlanError where no layout fits."""
    searched = search(question)
    runs = confirmed(searched)
    pick = runs[0].plan.layout.short
    pick_s = in_full(runs[0]).step_time_s
    wide = WideSearch(searched, pick, pick_s)
    wide.run(budget_s, seed)
    return Regret(
        screened=searched.screened,
        feasible=len(searched.order),
        pick=pick,
        pick_s=pick_s,
        best=wide.best,
        best_s=wide.best_s,
        confirmed=len(runs),
        written=len(wide.errors),
        left=wide.left,
        errors=tuple(wide.errors),
    )
