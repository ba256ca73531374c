"""The longest path through a graph: what a step takes when nothing is contended."""

from __future__ import annotations

from functools import partial

import numpy as np

from perfsim.engine.grid import Floats, Ticks, in_seconds, on_exact_grid
from perfsim.graph import TaskGraph
from perfsim.graph.chains import Chains
from perfsim.trace import Trace


def critical_path(graph: TaskGraph, duration_s: Floats) -> Trace:
    """Start every task when the last one it waits for ends; one forward pass over the chains.

    `duration_s` has one entry a task. Durations are put on the exact time grid first, so the result
    is bitwise that of `simulate` without contention.
    """
    if len(duration_s) != len(graph):
        raise ValueError(f"{len(duration_s)} durations for {len(graph)} tasks")
    return on_exact_grid(partial(longest_path, graph), duration_s)


def longest_path(graph: TaskGraph, took: Ticks, exponent: int) -> Trace:
    """The same with durations in ticks of 2^exponent s."""
    chains = graph.chains
    since_s = in_seconds(chains.since_start(took), exponent)
    end_s = np.empty(len(graph))
    end_s[chains.order] = np.repeat(_starts(chains, since_s), chains.length) + since_s
    return Trace(graph, end_s - in_seconds(took, exponent), end_s)


def _starts(chains: Chains, since_s: Floats) -> Floats:
    """When each chain starts, from the time between its tasks' ends and that."""
    pairs = chains.pairs
    since_s = np.append(since_s, 0.0)  # place -1
    values = [0.0]
    append = values.append
    for left, after_left, right, after_right in zip(
        pairs.left_value.tolist(),
        since_s[pairs.left_place].tolist(),
        pairs.right_value.tolist(),
        since_s[pairs.right_place].tolist(),
        strict=True,
    ):
        one, other = values[left] + after_left, values[right] + after_right
        if other > one:  # a call of max would take as long as the rest of the loop
            one = other
        append(one)
    return np.array(values)[pairs.value_of_chain]


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
