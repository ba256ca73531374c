"""The report of a run that cannot proceed: its stuck tasks and what they wait for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import TaskGraph

MOST_LINES = 8
NO_CAPACITY = "a link without capacity"


def deadlock_report(graph: TaskGraph, end_s: NDArray[np.float64]) -> str:
    """Name the first stuck task of each stream and the tasks that it waits for.

    A task that waits for none has started but cannot end, because a link on its route has no capacity.
    """
    stuck = np.flatnonzero(end_s < 0)
    streams, first = np.unique(graph.stream[stuck], return_index=True)
    lines = []
    for task in sorted(stuck[first].tolist())[:MOST_LINES]:
        waiting = [source for source in graph.dependencies.row(task) if end_s[source] < 0]
        names = ", ".join(f"{graph.task(source).name} on {graph.task(source).stream}" for source in waiting)
        lines.append(f"  {graph.task(task).stream}: {graph.task(task).name} waits for {names or NO_CAPACITY}")
    left_out = len(streams) - len(lines)
    if left_out > 0:
        lines.append(f"  and {left_out} more streams")
    head = f"the run cannot proceed: {len(stuck)} of {len(graph)} tasks never ended"
    return "\n".join([head, *lines])
