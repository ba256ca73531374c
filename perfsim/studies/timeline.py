"""The measured step as bars: like tasks in a row are one bar, and short ones are drawn together by kind.

A page draws some thousand bars, and a step has up to hundreds of thousands of tasks. Where bars are too many,
the lanes of some devices stand for all, and short bars that begin in the same interval of a lane are joined
by kind, one kind after the other: every lane spans the whole step, and its busy time stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import TaskGraph
from perfsim.graph.task_graph import computes, owners_of
from perfsim.prediction.result import TimelineBar
from perfsim.trace import Trace

MOST_DEVICES = 4
"""Computing devices whose lanes are drawn, the first and the last among them."""
COARSEST = 1 / 40
"""Longest interval in which bars are joined, as a share of the step."""
FINEST = 1 / 1280
NO_LAYER = np.iinfo(np.int32).max


def bars_of(trace: Trace, most_devices: int = MOST_DEVICES) -> list[TimelineBar]:
    """The tasks of the measured step as bars, in the order of their starts, which count from its own.

    Adjacent tasks of one kind and micro-batch on one stream are one bar.
    """
    graph = trace.graph
    low, high = trace.step_window_s
    shown = _streams(graph, most_devices)
    inside = (trace.end_s > low) & (trace.start_s < high) & (trace.end_s > trace.start_s)
    tasks = np.flatnonzero(inside & shown[graph.stream])
    tasks = tasks[np.lexsort((tasks, trace.start_s[tasks], graph.stream[tasks]))]
    if not len(tasks):
        return []
    start = np.maximum(trace.start_s[tasks], low) - low
    end = np.minimum(trace.end_s[tasks], high) - low
    kinds = {name: number for number, name in enumerate(dict.fromkeys(w.category for w in graph.works))}
    kind = np.array([kinds[work.category] for work in graph.works])[graph.work[tasks]]
    same = np.ones(len(tasks) - 1, dtype=bool)
    for column in (graph.stream[tasks], graph.tag[tasks], kind):
        same &= column[1:] == column[:-1]
    first = np.flatnonzero(np.concatenate([[True], ~(same & (start[1:] <= end[:-1]))]))
    bars = _bars(graph, tasks, first, start, end)
    return sorted(bars, key=lambda bar: bar.start_s)


def devices_of(graph: TaskGraph) -> list[str]:
    """The devices that compute, in the order of their streams."""
    return list(dict.fromkeys(owners_of(name)[0] for name in graph.streams if computes(name)))


def _streams(graph: TaskGraph, most: int) -> NDArray[np.bool_]:
    """Which streams are drawn: all but those of devices that others stand for."""
    devices = devices_of(graph)
    places = np.unique(np.linspace(0, len(devices) - 1, min(most, len(devices))).round().astype(int))
    left_out = set(devices) - {devices[place] for place in places}
    return np.array([not left_out.issuperset(owners_of(name)) for name in graph.streams])


def _bars(
    graph: TaskGraph,
    tasks: NDArray[np.int64],
    first: NDArray[np.int64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> list[TimelineBar]:
    """A bar for each run of `tasks`; `first` has the places where runs begin."""
    works = graph.works
    moved = [work.bytes_accessed if work.kernels else work.comm_bytes for work in works]
    flop = np.add.reduceat(np.array([work.flop for work in works])[graph.work[tasks]], first)
    n_bytes = np.add.reduceat(np.array(moved)[graph.work[tasks]], first)
    block = graph.block[tasks].astype(int)
    lowest = np.minimum.reduceat(np.where(block < 0, NO_LAYER, block), first)
    highest = np.maximum.reduceat(block, first)
    count = np.diff(np.append(first, len(tasks)))
    ends = np.maximum.reduceat(end, first)
    columns = (tasks[first], start[first], ends, flop, n_bytes, lowest, highest, count)
    bars = []
    for task, start_s, end_s, flops, moves, low, high, number in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        work, lane = works[graph.work[task]], graph.streams[graph.stream[task]]
        layers = (low, high) if high >= 0 else None
        tag = int(graph.tag[task])
        bars.append(
            TimelineBar(
                lane, work.name, work.category, start_s, end_s, tag, flops, moves, layers, tasks=number
            )
        )
    return bars


def grouped(bars: Sequence[TimelineBar], most: int) -> tuple[TimelineBar, ...]:
    """At most so many bars: short ones are joined where there are more, and the last left out if need be.

    The interval in which they are joined is the shortest, of a share of the step between `FINEST` and
    `COARSEST`, that is enough.
    """
    if len(bars) <= most:
        return tuple(bars)
    whole_s = max(bar.end_s for bar in bars)
    share = FINEST
    while share <= COARSEST:
        joined = _joined(bars, share * whole_s)
        if len(joined) <= most:
            return tuple(joined)
        share *= 2
    return tuple(bars[:most])


def _joined(bars: Sequence[TimelineBar], interval_s: float) -> list[TimelineBar]:
    """Bars shorter than an interval, those of one lane that begin in the same interval joined by kind."""
    cells: dict[tuple[str, int], dict[str, list[TimelineBar]]] = {}
    kept = []
    for bar in bars:
        if bar.end_s - bar.start_s >= interval_s:
            kept.append(bar)
        else:
            cell = cells.setdefault((bar.lane, int(bar.start_s / interval_s)), {})
            cell.setdefault(bar.category, []).append(bar)
    for cell in cells.values():
        kinds = list(cell.values())
        kept += _in_a_row(kinds) if any(len(own) > 1 for own in kinds) else [bar for (bar,) in kinds]
    return sorted(kept, key=lambda bar: bar.start_s)


def _in_a_row(kinds: Sequence[list[TimelineBar]]) -> list[TimelineBar]:
    """One bar for each kind, one after the other, with the busy time of its bars."""
    clock, row = kinds[0][0].start_s, []
    for own in kinds:
        end = clock + sum(bar.end_s - bar.start_s for bar in own)
        tags = {bar.microbatch for bar in own}
        layers = [layer for bar in own for layer in bar.layers or ()]
        row.append(
            replace(
                own[0],
                start_s=clock,
                end_s=end,
                microbatch=tags.pop() if len(tags) == 1 else -1,
                flop=sum(bar.flop for bar in own),
                n_bytes=sum(bar.n_bytes for bar in own),
                layers=(min(layers), max(layers)) if layers else None,
                tasks=sum(bar.tasks for bar in own),
            )
        )
        clock = end
    return row
