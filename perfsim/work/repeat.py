"""A graph of many micro-batches from two of fewer, where what further ones add is the same each time."""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Ids, Ints
from perfsim.work.graph import Ragged, TaskGraph, offsets


def repeated(short: TaskGraph, longer: TaskGraph, times: int) -> TaskGraph | None:
    """The graph in which the tasks that `longer` has more than `short` stand `times` times.

    In each step these tasks are one run between tasks that both graphs have. A copy of the run, and what
    follows it, waits for tasks as far before it as in `longer`; what an earlier step wrote is counted from
    the end of that step. None where the graphs differ otherwise. The caller has to compare whether a graph
    of more micro-batches is like this one.
    """
    steps = _runs(short, longer)
    if steps is None:
        return None
    origin: list[Ints] = []
    copy: list[Ints] = []
    for first, start, end, last in steps:
        run = np.tile(np.arange(start, end), times)
        origin += [np.arange(first, start), run, np.arange(end, last)]
        of_run = np.repeat(np.arange(times), end - start)
        copy += [np.zeros(start - first, dtype=np.int64), of_run, np.full(last - end, times - 1)]
    added = np.array([step.end - step.start for step in steps])
    return _copied(short, longer, np.concatenate(origin), np.concatenate(copy), added, times - 1)


class _Run(NamedTuple):
    """The first task of a step, the run that the shorter graph lacks, and the end of the step."""

    first: int
    start: int
    end: int
    last: int


def _runs(short: TaskGraph, longer: TaskGraph) -> list[_Run] | None:
    """The run of each step; None where the graphs have other classes of work, streams or steps."""
    steps = [[*pairwise((0, *graph.step_ends))] for graph in (short, longer)]
    if (short.works, short.streams, len(steps[0])) != (longer.works, longer.streams, len(steps[1])):
        return None
    runs = []
    for (begin, end), (first, last) in zip(*steps, strict=True):
        length = end - begin
        more = last - first - length
        if more < 0:
            return None
        unlike = np.append(np.zeros(length, dtype=bool), True)
        for name in ("work", "stream", "tag", "block"):
            of_short = getattr(short, name)[begin:end]
            unlike[:length] |= of_short != getattr(longer, name)[first : first + length]
        start = first + int(unlike.argmax())
        runs.append(_Run(first, start, start + more, last))
    return runs


def _copied(
    short: TaskGraph, longer: TaskGraph, origin: Ints, copy: Ints, added: Ints, more: int
) -> TaskGraph:
    """The graph of the tasks `origin` of `longer`; `copy` numbers the run that each is in, or is behind."""
    step = np.searchsorted(longer.step_ends, np.arange(len(longer)), side="right")
    before = more * offsets(added)

    def moved(tasks: Ids, rows: Ids) -> Ints:
        """The new ids of tasks that rows depend on."""
        at = step[tasks]
        copies = np.where(at == step[origin[rows]], copy[rows], more)
        return np.asarray(tasks + before[at] + copies * added[at])

    first_write = offsets(np.diff(longer.first_write)[origin])
    reads = longer.reads.rows(origin)
    writer = longer.writer[reads.values]
    outputs = reads.values - longer.first_write[writer]
    tensors = first_write[moved(writer, reads.row_of_value)] + outputs
    after = longer.after.rows(origin)
    tag = longer.tag[origin]
    tag += np.where(tag >= 0, copy * (longer.tag.max() - short.tag.max()), 0).astype(tag.dtype)
    return replace(
        longer,
        work=longer.work[origin],
        stream=longer.stream[origin],
        tag=tag,
        block=longer.block[origin],
        reads=Ragged(reads.start, tensors.astype(np.int32)),
        after=Ragged(after.start, moved(after.values, after.row_of_value).astype(np.int32)),
        first_write=first_write.astype(np.int32),
        step_ends=tuple((np.array(longer.step_ends) + before[1:]).tolist()),
    )
