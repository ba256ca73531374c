"""The longest path through a graph: what a step takes when nothing is contended."""

from __future__ import annotations

from functools import partial

import numpy as np

from perfsim.engine.grid import Floats, Ticks, in_seconds, on_exact_grid
from perfsim.engine.limits import present_limits
from perfsim.graph import TaskGraph
from perfsim.graph.chains import Pairs
from perfsim.graph.ragged import Ints
from perfsim.trace import Trace

ROWS_AT_ONCE = 1 << 16
"""Between two looks at the limits."""


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
    chains, tick_s = graph.chains, 2.0**exponent
    total, before = chains.running_sums(took)
    starts_s = _starts(chains.pairs, total, before, tick_s)
    total -= before.repeat(chains.length)  # columns are large: fresh ones cost more than the sums in them
    end_s = in_seconds(total, exponent)
    end_s += starts_s.repeat(chains.length)
    end_s = end_s.take(chains.place)
    start_s = in_seconds(took, exponent)
    np.subtract(end_s, start_s, out=start_s)
    return Trace(graph, start_s, end_s)


def _starts(pairs: Pairs, total: Ticks, before: Ticks, tick_s: float) -> Floats:
    """When each chain starts, from the running sums over all chains and what each of them begins at."""

    def since_s(places: Ints, chains: Ints) -> list[float]:
        ticks = total.take(places) - before.take(chains)
        ticks[places < 0] = 0
        seconds: list[float] = (ticks * tick_s).tolist()
        return seconds

    values = [0.0]
    append, limits, rows = values.append, present_limits(), len(pairs.left_value)
    for row in range(0, rows, ROWS_AT_ONCE):
        limits.in_time(partial(_share, row, rows))
        now = slice(row, row + ROWS_AT_ONCE)
        for left, after_left, right, after_right in zip(
            pairs.left_value[now],
            since_s(pairs.left_place[now], pairs.left_chain[now]),
            pairs.right_value[now],
            since_s(pairs.right_place[now], pairs.right_chain[now]),
            strict=True,
        ):
            one, other = values[left] + after_left, values[right] + after_right
            if other > one:  # a call of max would take as long as the rest of the loop
                one = other
            append(one)
    return np.array(values).take(pairs.value_of_chain)


def _share(done: int, of: int) -> str:
    return f"{100 * done // of} % of a longest path was known"
