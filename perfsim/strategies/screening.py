"""Screening of layouts: step time in closed form and memory of every layout that a strategy lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.errors import LayoutError, MemoryCapacityError, PerfsimError, PlanError
from perfsim.specs.layout import Layout
from perfsim.specs.recipe import Job

if TYPE_CHECKING:
    from perfsim.costs.price import Costs
    from perfsim.strategies.plan import Strategy


MEMORY = "memory"
"""The reason of layouts that need more memory than a device has."""


@dataclass(frozen=True)
class Screening:
    """All layouts of a strategy for one job: estimates of those that fit, and why others are refused."""

    estimate_s: Floats
    """Step time in closed form of every layout that fits."""
    memory_share: Floats
    """Share of its memory that the fullest device uses, of every layout that fits."""
    layout: Callable[[int], Layout]
    """The layout of an index into `estimate_s`."""
    screened: int
    """Number of layouts, with those that do not fit."""
    refused: Mapping[str, int]
    """Number of layouts by reason for which they are refused."""
    closest: Layout | None = None
    """Of the layouts that do not fit the one that needs least memory."""
    indivisible: int = 0
    """Combinations of degrees without any layout, because model, batch or nodes do not divide over them."""

    def __post_init__(self) -> None:
        """Refuse what is no time and no share: it would be ranked first, or never."""
        for name, values in (("step time", self.estimate_s), ("share of memory", self.memory_share)):
            wrong = ~(np.isfinite(values) & (values >= 0.0))
            if wrong.any():
                layout = self.layout(int(wrong.argmax()))
                raise PerfsimError(
                    f"a strategy estimates a {name} of {values[wrong][0]:g} for {layout.short}: "
                    "a defect of the strategy, or of the numbers that describe the machine"
                )

    @property
    def feasible(self) -> int:
        """Number of layouts that fit."""
        return len(self.estimate_s)


def screened_one_by_one(strategy: Strategy[Any, Any], job: Job, topology: Any, costs: Costs) -> Screening:
    """Plan and estimate every listed layout. PlanError where what the strategy lists is illegal."""
    plans: list[Layout] = []
    shares = []
    estimates = []
    closest: tuple[float, Layout | None] = (np.inf, None)
    refused: Counter[str] = Counter()
    for layout in strategy.layouts(job, topology):
        try:
            plan = strategy.plan(job, topology, layout)
        except LayoutError as error:
            raise PlanError([problem.message for problem in error.problems]) from None
        except MemoryCapacityError as error:
            refused[MEMORY] += 1
            closest = min(closest, (error.ratio, layout), key=lambda entry: entry[0])
            continue
        if plan.layout not in plans:
            plans.append(plan.layout)
            shares.append(plan.memory_share)
            estimates.append(strategy.estimate_s(plan, costs))
    screened = len(plans) + refused.total()
    return Screening(np.array(estimates), np.array(shares), plans.__getitem__, screened, refused, closest[1])
