"""One optimizer step, ready to run: a graph placed on its network, priced, simulated and scaled.

This is the only place where a graph is priced and run. Whatever changes a run (perturbations, collectives
as steps, a part of the machine twice as fast, constants of a fit) changes what a `Step` is made of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path, simulate
from perfsim.placement.place import Placed
from perfsim.trace import Trace

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """A placed graph with the prices of its work; `scale` stretches every second of its runs."""

    placed: Placed
    costs: Costs = field(repr=False)
    scale: float = 1.0

    @cached_property
    def duration_s(self) -> Floats:
        """Seconds of every task where nothing is contended, before `scale`; shape (tasks,)."""
        return price(self.placed.graph, self.costs)

    def run(self, duration_s: Floats | None = None, *, contention: bool = True) -> Trace:
        """Run the step, with other durations of its tasks if they are given.

        Without `contention` the run is the longest path, which counts toward no limit on simulated tasks.
        Raises DeadlockError and LimitError as `engine.simulate` does.
        """
        graph = self.placed.graph
        took_s = self.duration_s if duration_s is None else duration_s
        trace = simulate(graph, took_s, *self.placed.links) if contention else critical_path(graph, took_s)
        return trace.scaled(self.scale)
