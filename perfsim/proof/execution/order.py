"""The order of tasks by the graph's dependencies alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import TaskGraph
from perfsim.graph.ragged import Ragged

Edge = tuple[int, int]
"""(task, task that it waits for)."""


def dependencies(graph: TaskGraph, without: Collection[Edge] = ()) -> Ragged:
    """Dependencies of each task; `without` some edges, to test whether their loss is detected."""
    deps = graph.dependencies
    if not without:
        return deps
    rows = deps.row_of_value
    unwanted = np.array([task * len(graph) + before for task, before in without], dtype=np.int64)
    kept = ~np.isin(rows.astype(np.int64) * len(graph) + deps.values, unwanted)
    start = np.zeros(len(graph) + 1, dtype=np.int32)
    np.cumsum(np.bincount(rows[kept], minlength=len(graph)), out=start[1:])
    return Ragged(start, deps.values[kept])


class Precedence:
    """Whether a task always ends before another begins.

    Each task has a vector clock: its latest ancestor on each stream. Streams run in program order, so task u
    comes before v exactly if v's clock of u's stream has reached u [Mattern 1989].
    """

    def __init__(self, graph: TaskGraph, deps: Ragged) -> None:
        self.stream = graph.stream.tolist()
        self.position = _positions(graph).tolist()
        clock = np.full((len(graph), len(graph.streams)), -1, dtype=np.int32)
        start, values = deps.start.tolist(), deps.values.tolist()
        for task, stream in enumerate(self.stream):
            row, before = clock[task], values[start[task] : start[task + 1]]
            for source in before:
                np.maximum(row, clock[source], out=row)
            row[stream] = self.position[task]
        self.clock = clock

    def before(self, first: int, second: int) -> bool:
        """Whether `first` ends before `second` begins, in every order that the graph allows."""
        return bool(self.clock[second, self.stream[first]] >= self.position[first]) and first != second


def _positions(graph: TaskGraph) -> NDArray[np.int64]:
    """The position of each task on its stream."""
    order = np.argsort(graph.stream, kind="stable")
    position = np.empty(len(graph), dtype=np.int64)
    first = np.searchsorted(graph.stream[order], np.arange(len(graph.streams)))
    position[order] = np.arange(len(graph)) - first[graph.stream[order]]
    return position


def random_order(deps: Ragged, rng: np.random.Generator) -> list[int]:
    """A random topological order: at each step one of the ready tasks, with equal probability."""
    count = len(deps.start) - 1
    missing = np.diff(deps.start).tolist()
    by_source = np.argsort(deps.values, kind="stable")
    successors = deps.row_of_value[by_source].tolist()
    start = np.searchsorted(deps.values[by_source], np.arange(count + 1)).tolist()
    ready = [task for task, waits in enumerate(missing) if not waits]
    draws = rng.random(count).tolist()
    order = []
    for draw in draws:
        index = int(draw * len(ready))
        # Swap with the last one: removal in constant time.
        ready[index], ready[-1] = ready[-1], ready[index]
        task = ready.pop()
        order.append(task)
        for follower in successors[start[task] : start[task + 1]]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    return order


def order_in_time(start_s: Sequence[float] | NDArray[np.float64], task: NDArray[np.int32]) -> list[int]:
    """Instances in the order in which their folded tasks started; ids break ties."""
    starts = np.asarray(start_s)[task]
    order: list[int] = np.lexsort((np.arange(len(task)), starts)).tolist()
    return order
