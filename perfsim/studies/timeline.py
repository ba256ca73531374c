"""The measured step of a candidate as bars.

A page draws some thousand bars, and a step has up to hundreds of thousands of tasks. Like tasks in a row are
one bar. Where bars are still too many, the lanes of some devices stand for all, and short bars that begin in
the same interval of a lane are joined, one kind after the other: no lane's span or busy time changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfsim.base.groups import listed
from perfsim.prediction.run import Evaluation
from perfsim.work.graph import computes, owners_of

MOST_BARS = 4000
"""Bars of one candidate."""
MOST_DEVICES = 4
"""Computing devices whose lanes are drawn, the first and the last among them."""
FINEST = 1 / 1280
"""Shortest interval in which bars are joined, as a share of the step."""
_NO_LAYER = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """One task (or a run of like tasks) in the timeline of a step."""

    lane: str
    name: str
    category: str
    """forward, backward, recompute, optimizer, tensor_communication, context_communication,
    pipeline_communication, data_communication, weight_stream, gradient_stream or update; it sets the
    colour."""
    start_s: float
    end_s: float
    microbatch: int = -1
    flop: float = 0.0
    n_bytes: float = 0.0
    """Bytes sent by a communication; of a computation, those that it moves in the device's memory."""
    layers: tuple[int, int] | None = None
    """The first and the last layer that it belongs to."""
    tasks: int = 1


def timeline(evaluation: Evaluation) -> tuple[TimelineBar, ...]:
    """The tasks of the measured step, from its start, as at most `MOST_BARS` bars; like ones are one."""
    trace = evaluation.trace
    graph = trace.graph
    low, high = trace.step_window_s
    # Streams of devices that others stand for are left out.
    devices = list(dict.fromkeys(owners_of(name)[0] for name in graph.streams if computes(name)))
    kept = np.unique(np.linspace(0, len(devices) - 1, min(MOST_DEVICES, len(devices))).round().astype(int))
    left_out = set(devices) - {devices[number] for number in kept}
    shown = np.array([not left_out.issuperset(owners_of(name)) for name in graph.streams])
    inside = (trace.end_s > low) & (trace.start_s < high) & (trace.end_s > trace.start_s)
    tasks = np.flatnonzero(inside & shown[graph.stream])
    tasks = tasks[np.lexsort((tasks, trace.start_s[tasks], graph.stream[tasks]))]
    if not len(tasks):
        return ()
    start = np.maximum(trace.start_s[tasks], low) - low
    end = np.minimum(trace.end_s[tasks], high) - low
    kinds = {name: number for number, name in enumerate(dict.fromkeys(w.category for w in graph.works))}
    kind = np.array([kinds[work.category] for work in graph.works])[graph.work[tasks]]
    same = np.ones(len(tasks) - 1, dtype=bool)
    for column in (graph.stream[tasks], graph.tag[tasks], kind):
        same &= column[1:] == column[:-1]
    first = np.flatnonzero(np.concatenate([[True], ~(same & (start[1:] <= end[:-1]))]))
    works = graph.works
    moved = [work.bytes_accessed if work.kernels else work.comm_bytes for work in works]
    block = graph.block[tasks].astype(int)
    columns = (
        tasks[first],
        start[first],
        np.maximum.reduceat(end, first),
        np.add.reduceat(np.array([work.flop for work in works])[graph.work[tasks]], first),
        np.add.reduceat(np.array(moved)[graph.work[tasks]], first),
        np.minimum.reduceat(np.where(block < 0, _NO_LAYER, block), first),
        np.maximum.reduceat(block, first),
        np.diff(np.append(first, len(tasks))),
    )
    bars = []
    for task, start_s, end_s, flop, n_bytes, lowest, highest, count in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        work = works[graph.work[task]]
        bars.append(
            TimelineBar(
                lane=graph.streams[graph.stream[task]],
                name=work.name,
                category=work.category,
                start_s=start_s,
                end_s=end_s,
                microbatch=int(graph.tag[task]),
                flop=flop,
                n_bytes=n_bytes,
                layers=(lowest, highest) if highest >= 0 else None,
                tasks=count,
            )
        )
    return grouped(sorted(bars, key=lambda bar: bar.start_s), MOST_BARS)


def grouped(bars: Sequence[TimelineBar], most: int) -> tuple[TimelineBar, ...]:
    """At most so many bars, or one a kind and lane: short ones joined, no longer than needed."""
    whole_s = max((bar.end_s for bar in bars), default=0.0)
    share = FINEST
    joined = list(bars)
    while len(joined) > most and share < 2:
        joined = _joined(bars, share * whole_s)
        share *= 2
    return tuple(joined)


def _joined(bars: Sequence[TimelineBar], interval_s: float) -> list[TimelineBar]:
    """The bars; short ones that begin in one interval of a lane are joined by kind, one after the other."""
    kept = [bar for bar in bars if bar.end_s - bar.start_s >= interval_s]
    short = (bar for bar in bars if bar.end_s - bar.start_s < interval_s)
    for cell in listed(((bar.lane, int(bar.start_s / interval_s)), bar) for bar in short).values():
        kinds = listed((bar.category, bar) for bar in cell)
        if len(kinds) == len(cell):
            kept += cell
            continue
        clock_s = cell[0].start_s
        for alike in kinds.values():
            end_s = clock_s + sum(bar.end_s - bar.start_s for bar in alike)
            tags = {bar.microbatch for bar in alike}
            layers = [layer for bar in alike for layer in bar.layers or ()]
            joined = replace(
                alike[0],
                start_s=clock_s,
                end_s=end_s,
                microbatch=tags.pop() if len(tags) == 1 else -1,
                flop=sum(bar.flop for bar in alike),
                n_bytes=sum(bar.n_bytes for bar in alike),
                layers=(min(layers), max(layers)) if layers else None,
                tasks=sum(bar.tasks for bar in alike),
            )
            kept.append(joined)
            clock_s = end_s
    return sorted(kept, key=lambda bar: bar.start_s)
