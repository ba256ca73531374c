"""The discrete-event engine: SimPy events with callbacks, and fair shares on contended links.

A task whose duration is known ends that long after the last task it waits for; such ends are
propagated at once. Only a *flow*, a communication on links that others may use at the same time,
has to wait for SimPy's clock to learn how long it takes. Without flows the result is bitwise that
of `critical_path`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import simpy
from numpy.typing import NDArray

from perfsim.engine.deadlock import deadlock_report
from perfsim.engine.fairshare import FairShare, Flow
from perfsim.engine.grid import grid_exponent, quantize
from perfsim.errors import DeadlockError
from perfsim.graph import TaskGraph
from perfsim.trace import Trace

Floats = NDArray[np.float64]


def simulate(
    graph: TaskGraph,
    duration_s: Floats,
    flows: Mapping[int, Flow] | None = None,
    capacities: Floats | None = None,
) -> Trace:
    """Run `graph` and return its trace.

    `duration_s` has one entry a task: its time when nothing else uses its links. `flows` maps a work
    id to what its tasks put on which links; `capacities` are the links' bytes/s. Raises
    DeadlockError, saying who waits for what, when tasks remain that nothing can start.
    """
    return _Run(graph, quantize(np.asarray(duration_s, dtype=np.float64)), flows or {}, capacities).run()


class _Run:
    def __init__(
        self, graph: TaskGraph, duration_s: Floats, flows: Mapping[int, Flow], capacities: Floats | None
    ) -> None:
        self.graph = graph
        self.flows = flows
        self.env = simpy.Environment()
        grid_s = 2.0 ** grid_exponent(float(duration_s.sum()))
        self.share = (
            FairShare(self.env, capacities, grid_s=grid_s) if flows and capacities is not None else None
        )
        self.duration = duration_s.tolist()
        self.work = graph.work.tolist()
        deps, successors = graph.dependencies, graph.successors
        self.missing = np.diff(deps.start).tolist()
        self.next_start = successors.start.tolist()
        self.next_task = successors.values.tolist()
        self.ready = [0.0] * len(graph)
        self.end = [-1.0] * len(graph)
        self.start = [0.0] * len(graph)

    def run(self) -> Trace:
        for task in [task for task, missing in enumerate(self.missing) if not missing]:
            self.begin(task, 0.0)
        self.env.run()
        end_s = np.array(self.end)
        if (end_s < 0).any():
            raise DeadlockError(deadlock_report(self.graph, end_s))
        return Trace(self.graph, np.array(self.start), end_s)

    def begin(self, task: int, ready: float) -> None:
        """Start a task that waits for nothing any more, and whatever can be known to follow it."""
        stack = [(task, ready)]
        while stack:
            task, ready = stack.pop()
            self.start[task] = ready
            if self.share is not None and self.work[task] in self.flows:
                self.begin_flow(task, ready)
            else:
                self.finish(task, ready + self.duration[task], stack)

    def finish(self, task: int, end: float, stack: list[tuple[int, float]]) -> None:
        """Note when a task ends and push onto `stack` the tasks that this makes ready."""
        self.end[task] = end
        for successor in self.next_task[self.next_start[task] : self.next_start[task + 1]]:
            if end > self.ready[successor]:
                self.ready[successor] = end
            self.missing[successor] -= 1
            if not self.missing[successor]:
                stack.append((successor, self.ready[successor]))

    def begin_flow(self, task: int, ready: float) -> None:
        """Have a communication put on its links when simulated time has come to it."""
        if self.share is not None:
            flow = self.flows[self.work[task]]
            self.share.start_at(ready, flow, self.duration[task], partial(self._flow_ends, task))

    def _flow_ends(self, task: int) -> None:
        stack: list[tuple[int, float]] = []
        self.finish(task, self.share.now_s if self.share is not None else 0.0, stack)
        for successor, ready in stack:
            self.begin(successor, ready)
