"""Runs a priced graph: with SimPy, or with the compiled core, which gives the same times to the bit.

`engine.simpy_engine` says what a step is. Large graphs and searches over many graphs take `engine.core`,
which costs a third of a second to load and then follows a task in a tenth of a microsecond instead of four.
"""

import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.errors import DeadlockError
from perfsim.base.limits import Engine, present_limits
from perfsim.engine import rules, simpy_engine
from perfsim.engine.tables import Flow, Slowdown, Tables
from perfsim.engine.trace import Simulated, Trace
from perfsim.work import TaskGraph

MOST_WITH_SIMPY = 50_000
"""Tasks of a graph up to which SimPy follows them, unless an engine is asked for."""
FEWEST_TO_LOAD = 20_000
"""Tasks of all graphs of a search after which the compiled core is worth loading."""
_searched = 0


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
    chosen: Engine
    if not _is_compiled():
        chosen = "simpy"
    elif limits.engine is not None:
        chosen = limits.engine
    elif reported:
        chosen = "simpy" if len(graph) <= MOST_WITH_SIMPY else "fast"
    else:
        chosen = "fast" if _pays_to_load(graph) else "simpy"
    start_s = np.empty(len(graph))
    end_s = np.empty(len(graph))
    if chosen == "simpy":
        events, contended_s = simpy_engine.run(tables, start_s, end_s, limits)
    else:
        from perfsim.engine import core

        events, contended_s = core.run(tables, start_s, end_s)
        limits.check(len(graph), 0, len(graph))
    if np.any(end_s < 0.0):
        raise DeadlockError(_deadlock_report(graph, end_s))
    simulated = Simulated(
        events=events,
        flows=int(np.count_nonzero(tables.flow[tables.kind] >= 0)),
        links=len(carried),
        contended_s=contended_s,
        # Which engine a search takes depends on what the process did before, so only reported steps name it.
        engine=chosen if reported or limits.engine else "",
        tasks=len(graph),
    )
    return Trace(graph, start_s, end_s, simulated)


def _pays_to_load(graph: TaskGraph) -> bool:
    """Whether this process, with this graph, has searched through enough tasks to load the core."""
    global _searched  # noqa: PLW0603 (a tally of the process, which changes no result)
    _searched += len(graph)
    return "numba" in sys.modules or _searched > FEWEST_TO_LOAD


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
    if _is_compiled() and _pays_to_load(graph):
        from perfsim.engine import core

        core.longest_path(seconds, first, values, start_s, end_s)
    else:
        # Lists are faster than columns where elements are read one by one.
        starts: list[float] = [0.0] * len(graph)
        ends = starts.copy()
        rules.longest_path(seconds.tolist(), first.tolist(), values.tolist(), starts, ends)
        start_s[:] = starts
        end_s[:] = ends
    return Trace(graph, start_s, end_s)


@cache
def _is_compiled() -> bool:
    """Whether numba is installed; where it is not, SimPy follows everything."""
    return find_spec("numba") is not None


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
