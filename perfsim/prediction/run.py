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
from perfsim.placement.place import Placed
from perfsim.trace import Trace

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

    def run(self, duration_s: Floats | None = None, *, contention: bool = True) -> Trace:
        """Simulate the step, with other task durations if given.

        Without `contention` the times are those of the critical path, which does not count toward the limit
        on simulated tasks. Raises DeadlockError and LimitError as `engine.simulate` does.
        """
        graph = self.placed.graph
        seconds = self.duration_s if duration_s is None else duration_s
        trace = simulate(graph, seconds, *self.placed.links) if contention else critical_path(graph, seconds)
        return trace.scaled(self.scale)
