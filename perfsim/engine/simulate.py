"""Runs a priced graph: with SimPy, or with the compiled core, which gives the same times to the bit.

`engine.simpy_engine` says what a step is. Large graphs and searches take `engine.core`, which takes 0.03 s to
load and then follows a task in a tenth of a microsecond instead of four to twelve.
"""

from collections.abc import Mapping

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.compiled import IS_INSTALLED
from perfsim.base.errors import DeadlockError
from perfsim.base.limits import Engine, present_limits
from perfsim.engine import core, simpy_engine
from perfsim.engine.tables import Flow, Slowdown, Tables
from perfsim.engine.trace import Simulated, Trace
from perfsim.work import TaskGraph

MOST_WITH_SIMPY = 50_000
"""Tasks of a graph up to which SimPy follows them, unless an engine is asked for."""


def simulate(
    graph: TaskGraph,
    duration_s: Floats,
    flows: Mapping[int, Flow] | None = None,
    capacities: Floats | None = None,
    slowdown: Slowdown | None = None,
    *,
    reported: bool = False,
) -> Trace:
    """Run `graph` and return its trace.

    `duration_s` has one entry per task: its time when nothing else uses its links or its device. `flows` maps
    a work id to the load of its tasks on links; `capacities` are the links' bytes/s. With `slowdown`,
    communication slows the computation that runs at the same time. A step that is
    `reported` is followed by SimPy unless it is large or an engine is asked for (`Limits.engine`).

    Raises DeadlockError with the waiting tasks if some can never start, and LimitError if the run exceeds
    the limits in force.
    """
    _check_length(graph, duration_s)
    carried = np.zeros(0) if capacities is None else capacities
    limits = present_limits()
    limits.begin(len(graph))
    tables = Tables.of(graph, duration_s, flows or {}, carried, slowdown)
    small = reported and len(graph) <= MOST_WITH_SIMPY
    chosen: Engine = limits.engine or ("simpy" if small else "fast")
    if not IS_INSTALLED:
        chosen = "simpy"
    start_s = np.empty(len(graph))
    end_s = np.empty(len(graph))
    if chosen == "simpy":
        events, contended_s = simpy_engine.run(tables, start_s, end_s, limits)
    else:
        events, contended_s = core.run(tables, start_s, end_s)
        limits.check(len(graph), 0, len(graph))
    if np.any(end_s < 0.0):
        raise DeadlockError(_deadlock_report(graph, end_s))
    simulated = Simulated(
        events=events,
        flows=int(np.count_nonzero(tables.flow[tables.kind] >= 0)),
        links=len(carried),
        contended_s=contended_s,
        engine=chosen if reported or limits.engine else "",
        tasks=len(graph),
    )
    return Trace(graph, start_s, end_s, simulated)


def critical_path(graph: TaskGraph, duration_s: Floats) -> Trace:
    """Start every task when its last dependency ends: the times of a run in which nothing is shared.

    `duration_s` has one entry per task.
    """
    _check_length(graph, duration_s)
    present_limits().in_time(lambda: "0 % of a critical path was computed")
    first, values = graph.dependencies
    seconds = np.asarray(duration_s, dtype=np.float64)
    start_s = np.empty(len(graph))
    end_s = np.empty(len(graph))
    core.longest_path(seconds, first, values, start_s, end_s)
    return Trace(graph, start_s, end_s)


def _check_length(graph: TaskGraph, duration_s: Floats) -> None:
    if len(duration_s) != len(graph):
        raise ValueError(f"{len(duration_s)} durations for {len(graph)} tasks")


MOST_LINES = 8
NO_CAPACITY = "a link without capacity"


def _deadlock_report(graph: TaskGraph, end_s: Floats) -> str:
    """Name the first stuck task of each stream and the tasks that it waits for."""
    stuck = np.flatnonzero(end_s < 0)
    streams, first = np.unique(graph.stream[stuck], return_index=True)
    lines = []
    for task in sorted(stuck[first].tolist())[:MOST_LINES]:
        waiting = [source for source in graph.dependencies.row(task) if end_s[source] < 0]
        # One that waits for none has started but cannot end: a link on its route has no capacity.
        names = ", ".join(f"{graph.task(source).name} on {graph.task(source).stream}" for source in waiting)
        lines.append(f"  {graph.task(task).stream}: {graph.task(task).name} waits for {names or NO_CAPACITY}")
    if len(streams) > len(lines):
        lines.append(f"  and {len(streams) - len(lines)} more streams")
    head = f"the run cannot proceed: {len(stuck)} of {len(graph)} tasks never ended"
    return "\n".join([head, *lines])
