"""Happens-before: any two tasks that access one buffer, at least one writing it, must be ordered.

This depends on the graph alone, so a missing dependency is found whatever order a run takes. It is checked
on the folded graph: a path there holds for every peer, and peers access each other's buffers only in
collectives, which wait for all members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

import numpy as np

from perfsim.engine.limits import present_limits
from perfsim.proof.program import Cell, Fault, Program
from perfsim.work import TaskGraph
from perfsim.work.graph import Ragged

# The order of tasks by the graph's dependencies alone.

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
        order = np.argsort(graph.stream, kind="stable")
        position = np.empty(len(graph), dtype=np.int64)
        first = np.searchsorted(graph.stream[order], np.arange(len(graph.streams)))
        position[order] = np.arange(len(graph)) - first[graph.stream[order]]
        self.position = position.tolist()
        """Of each task on its stream."""
        clock = np.full((len(graph), len(graph.streams)), -1, dtype=np.int32)
        start = deps.start.tolist()
        values = deps.values.tolist()
        for task, stream in enumerate(self.stream):
            row = clock[task]
            for source in values[start[task] : start[task + 1]]:
                np.maximum(row, clock[source], out=row)
            row[stream] = self.position[task]
        self.clock = clock

    def before(self, first: int, second: int) -> bool:
        """Whether `first` ends before `second` begins, in every order that the graph allows."""
        return bool(self.clock[second, self.stream[first]] >= self.position[first]) and first != second


def random_order(deps: Ragged, rng: np.random.Generator) -> list[int]:
    """A random topological order: at each step one of the ready tasks, with equal probability."""
    count = len(deps.start) - 1
    missing = np.diff(deps.start).tolist()
    by_source = np.argsort(deps.values, kind="stable")
    successors = deps.row_of_value[by_source].tolist()
    start = np.searchsorted(deps.values[by_source], np.arange(count + 1)).tolist()
    ready = [task for task, waits in enumerate(missing) if not waits]
    order = []
    for draw in rng.random(count).tolist():
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


CHECK_EVERY = 1_000
"""Tasks between two checks of the limits."""


def hazards(program: Program, precedence: Precedence) -> Iterator[Fault]:
    """Every pair of unordered tasks of which one depends on what the other does to a buffer."""
    last_write: dict[Cell, int] = {}
    readers: dict[Cell, list[int]] = {}
    limits = present_limits()
    count = len(program.actions)
    for number, action in enumerate(program.actions):
        if number % CHECK_EVERY == 0:
            limits.in_time(partial("{:,} of {:,} tasks checked for hazards".format, number, count))
        task = action.task
        conflicts = [
            (cell, last_write[cell], "may read it before {} has written it")
            for cell in action.reads
            if cell in last_write
        ]
        overwritten = set(action.writes)
        for cell in overwritten:
            conflicts += [
                (cell, reader, "may overwrite it before {} has read it") for reader in readers.pop(cell, ())
            ]
            if cell in last_write:
                conflicts.append((cell, last_write[cell], "may write it before {} has"))
            # Earlier writers precede this task, so later ones need to wait only for this one.
            last_write[cell] = task
        for cell, earlier, detail in conflicts:
            if not precedence.before(earlier, task):
                said = detail.format(program.name(earlier))
                yield Fault("hazard", program.name(task), program.tensor(cell), said)
        for cell in action.reads:
            if cell not in overwritten:
                readers.setdefault(cell, []).append(task)
