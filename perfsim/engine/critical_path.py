"""The longest path through a graph: what a step takes when nothing is contended."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfsim.engine.grid import quantize
from perfsim.graph import TaskGraph
from perfsim.trace import Trace

Floats = NDArray[np.float64]


def critical_path(graph: TaskGraph, duration_s: Floats) -> Trace:
    """Start every task when the last one it waits for ends; one forward pass over the ids.

    `duration_s` has one entry a task. Durations are put on the exact time grid first, so the result
    is bitwise that of `simulate` without contention.
    """
    duration_s = quantize(np.asarray(duration_s, dtype=np.float64))
    deps = graph.dependencies
    ends: list[float] = []
    append = ends.append
    start = deps.start.tolist()
    waits_for = deps.values.tolist()
    first = 0
    for duration, last in zip(duration_s.tolist(), start[1:], strict=True):
        ready = 0.0
        for task in waits_for[first:last]:
            if ends[task] > ready:
                ready = ends[task]
        append(ready + duration)
        first = last
    end_s = np.array(ends)
    return Trace(graph, end_s - duration_s, end_s)


def critical_path_ends(graph: TaskGraph, duration_s: Floats) -> Floats:
    """End of every task for K scenarios at once: `duration_s` is (tasks, K), and so is the result."""
    scenarios = np.stack([quantize(column) for column in np.asarray(duration_s, dtype=np.float64).T], axis=1)
    deps = graph.dependencies
    ends = np.empty_like(scenarios)
    for task in range(len(graph)):
        waits_for = deps.values[deps.start[task] : deps.start[task + 1]]
        ready = ends[waits_for].max(axis=0) if len(waits_for) else 0.0
        ends[task] = ready + scenarios[task]
    return ends


def longest_chain(trace: Trace) -> list[int]:
    """The tasks that determine the makespan, first to last; ties go to the lowest id."""
    deps = trace.graph.dependencies
    task = int(np.argmax(trace.end_s))
    chain = [task]
    while True:
        waits_for = deps.values[deps.start[task] : deps.start[task + 1]]
        binding = waits_for[trace.end_s[waits_for] == trace.start_s[task]]
        if not len(binding):
            return chain[::-1]
        task = int(binding[0])
        chain.append(task)
