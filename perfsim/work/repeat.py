"""A graph of many micro-batches from two of fewer, where what further ones add is the same each time."""

from dataclasses import replace

import numpy as np

from perfsim.work.graph import Ragged, TaskGraph, offsets


def repeated(short: TaskGraph, longer: TaskGraph, times: int) -> TaskGraph | None:
    """The graph of a step in which the tasks that `longer` has more than `short` stand `times` times.

    These tasks are one run between tasks that both graphs have. A copy of the run, and what follows it, waits
    for tasks as far before it as in `longer`. None where the graphs differ otherwise, or have several steps.
    The caller has to compare whether a graph of more micro-batches is like this one.
    """
    length = len(longer) - len(short)
    alike = (short.works, short.streams) == (longer.works, longer.streams)
    if not alike or length < 0 or len(longer.step_ends) > 1:
        return None
    unlike = np.append(np.zeros(len(short), dtype=bool), True)
    for name in ("work", "stream", "tag", "block"):
        unlike[:-1] |= getattr(short, name) != getattr(longer, name)[: len(short)]
    start = int(unlike.argmax())
    head, run, tail = np.split(np.arange(len(longer)), [start, start + length])
    origin = np.concatenate([head, np.tile(run, times), tail])
    # Each task is in a copy of the run, or before the first or behind the last, whose tasks it waits for.
    copy = np.clip((np.arange(len(origin)) - start) // max(1, length), 0, times - 1)
    later = length * copy
    first_write = offsets(np.diff(longer.first_write)[origin])
    reads = longer.reads.rows(origin)
    writer = longer.writer[reads.values]
    outputs = reads.values - longer.first_write[writer]
    tensors = first_write[writer + later[reads.row_of_value]] + outputs
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
        after=after._replace(values=(after.values + later[after.row_of_value]).astype(np.int32)),
        first_write=first_write.astype(np.int32),
        step_ends=(len(origin),),
    )
