"""The critical path of a graph: when tasks start and end without contention."""

from __future__ import annotations

from functools import partial

import numpy as np

from perfsim.base.arrays import Floats, Ids, Ints
from perfsim.engine.calendar import in_seconds, on_exact_grid
from perfsim.engine.limits import present_limits
from perfsim.engine.trace import Trace
from perfsim.work import TaskGraph
from perfsim.work.graph import Pairs

ROWS_AT_ONCE = 1 << 16
"""Rows between two checks of the limits."""


def critical_path(graph: TaskGraph, duration_s: Floats) -> Trace:
    """Start every task when its last dependency ends; one forward pass over the chains.

    `duration_s` has one entry per task. Durations are rounded to the exact time grid first, so the result
    is bitwise equal to that of `simulate` without contention.
    """
    if len(duration_s) != len(graph):
        raise ValueError(f"{len(duration_s)} durations for {len(graph)} tasks")
    return on_exact_grid(partial(longest_path, graph), duration_s)


def longest_path(graph: TaskGraph, ticks: Ints, exponent: int) -> Trace:
    """`critical_path` with durations in ticks of 2^exponent s."""
    # Ticks are added as integers and scaled by a power of two, so every time is exact.
    chains = graph.chains
    tick_s = 2.0**exponent
    total, before = chains.running_sums(ticks)
    starts_s = _starts(chains.pairs, total, before, tick_s)
    total -= before.repeat(chains.length)  # in place: allocating such large columns costs more than the sums
    end_s = in_seconds(total, exponent)
    end_s += starts_s.repeat(chains.length)
    end_s = end_s.take(chains.place)
    start_s = in_seconds(ticks, exponent)
    np.subtract(end_s, start_s, out=start_s)
    return Trace(graph, start_s, end_s)


def _starts(pairs: Pairs, total: Ints, before: Ints, tick_s: float) -> Floats:
    """Start of each chain; `total` are sums of ticks over all chains, `before` the sum where each begins."""

    def since_s(places: Ids, chains: Ids) -> list[float]:
        ticks = total.take(places) - before.take(chains)
        ticks[places < 0] = 0  # no dependency
        seconds: list[float] = (ticks * tick_s).tolist()
        return seconds

    values = [0.0]
    append = values.append
    limits = present_limits()
    rows = len(pairs.left_value)
    for row in range(0, rows, ROWS_AT_ONCE):
        limits.in_time(partial(_progress, row, rows))
        window = slice(row, row + ROWS_AT_ONCE)
        for left, after_left, right, after_right in zip(
            pairs.left_value[window].tolist(),
            since_s(pairs.left_place[window], pairs.left_chain[window]),
            pairs.right_value[window].tolist(),
            since_s(pairs.right_place[window], pairs.right_chain[window]),
            strict=True,
        ):
            ready_s = values[left] + after_left
            right_s = values[right] + after_right
            if right_s > ready_s:  # a call of max would take as long as the rest of the loop
                ready_s = right_s
            append(ready_s)
    return np.array(values).take(pairs.value_of_chain)


def _progress(done: int, total: int) -> str:
    return f"{100 * done // total} % of a critical path was computed"
