"""A graph of many micro-batches from two of fewer, where what further ones add is the same each time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from perfsim.base.arrays import Ids, Ints
from perfsim.work.graph import Ragged, TaskGraph, offsets


def repeated(short: TaskGraph, longer: TaskGraph, times: int) -> TaskGraph | None:
    """`longer` with the tasks that `short` has not written so many times; None where they are in no row.

    Each step of `longer` is the step of `short` with one run of tasks put in. A copy of the run, and what
    follows it, depends on tasks as far before it as in `longer`; what an earlier step wrote is counted from
    the end of that step. Whether a graph of more micro-batches is like that, the caller has to compare.
    """
    steps = [[*pairwise((0, *graph.step_ends))] for graph in (short, longer)]
    if (short.works, short.streams, len(steps[0])) != (longer.works, longer.streams, len(steps[1])):
        return None
    origin: list[Ints] = []
    copy: list[Ints] = []
    added = []
    for (begin, end), (first, last) in zip(*steps, strict=True):
        length = end - begin
        run = last - first - length
        if run < 0:
            return None
        unlike = np.zeros(length + 1, dtype=bool)
        unlike[length] = True
        for name in ("work", "stream", "tag", "block"):
            unlike[:length] |= (
                getattr(short, name)[begin:end] != getattr(longer, name)[first : first + length]
            )
        start = first + int(unlike.argmax())
        origin += [
            np.arange(first, start),
            *[np.arange(start, start + run)] * times,
            np.arange(start + run, last),
        ]
        copy.append(
            np.repeat([0, *range(times), times - 1], [start - first, *[run] * times, last - start - run])
        )
        added.append(run)
    return _copied(short, longer, np.concatenate(origin), np.concatenate(copy), np.array(added), times - 1)


def _copied(
    short: TaskGraph, longer: TaskGraph, origin: Ints, copy: Ints, added: Ints, more: int
) -> TaskGraph:
    """The graph of the tasks `origin` of `longer`, each in the copy of its run, or behind so many copies."""
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
