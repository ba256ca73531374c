"""One optimizer step: a graph placed on its network, priced, simulated and scaled.

Graphs are priced and simulated only here. Perturbations, expanded collectives, faster parts of a machine
and trial constants of a fit are all expressed by the fields of a `Step` or the durations given to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path, simulate
from perfsim.engine.slowdown import Beside
from perfsim.engine.trace import Trace
from perfsim.machines.placement import Placed

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """A placed graph with a cost model; `scale` multiplies all times of its runs."""

    placed: Placed
    costs: Costs = field(repr=False)
    scale: float = 1.0

    @cached_property
    def duration_s(self) -> Floats:
        """Seconds of every task without contention, before `scale`; shape (tasks,)."""
        return price(self.placed.graph, self.costs)

    @cached_property
    def beside(self) -> Beside:
        """How communication slows the computation beside it, by class of work."""
        works = self.placed.graph.works
        costs = self.costs
        return Beside(
            taken=np.array([costs.taken(work) for work in works], dtype=np.float64).reshape(-1, 2),
            bound=np.array([costs.bound(work) for work in works], dtype=np.float64).reshape(-1, 2),
        )

    def run(self, duration_s: Floats | None = None, *, contention: bool = True) -> Trace:
        """Simulate the step, with other task durations if given.

        Without `contention`, of links or inside devices, the times are those of the critical path, which does
        not count toward the limit on simulated tasks. Raises DeadlockError and LimitError as
        `engine.simulate` does.
        """
        graph = self.placed.graph
        seconds = self.duration_s if duration_s is None else duration_s
        if contention:
            trace = simulate(graph, seconds, *self.placed.links, self.beside)
        else:
            trace = critical_path(graph, seconds)
        return trace.scaled(self.scale)
