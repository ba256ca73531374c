"""The task graph in columns, and the dependencies derived from them.

Tasks read and write tensors. Each tensor is written once, by the task that allocated its handle, which
gives the data dependencies. Tasks of one stream run in the order of their ids (program order), and
strategies add control dependencies, such as the wait for a free buffer. Ids are topological: a task comes
after all its dependencies.

A stream is named by its device and its purpose, `gpu0/compute`, or by several devices that meet,
`gpu0+gpu1/nccl-tensor`. Devices without a number (`memoryx/out`) exist once for all ranks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.errors import GraphError
from perfsim.graph.chains import Chains, Waits, chains, followed, split, waits
from perfsim.graph.ragged import Ints, Ragged, offsets
from perfsim.graph.work import Work

Shorts = NDArray[np.int16]


_DEVICE = re.compile(r"([a-z]+)(\d+)")


def rank_of(stream: str) -> int | None:
    """The rank of a stream; None for a stream of several ranks or of all, such as MemoryX."""
    match = _DEVICE.fullmatch(stream.split("/", 1)[0])
    return int(match[2]) if match else None


def owners_of(stream: str) -> tuple[str, ...]:
    """The devices that a stream names: one, several that meet, or a place that all ranks share."""
    return tuple(stream.split("/", 1)[0].split("+"))


def computes(stream: str) -> bool:
    """Whether a stream is the one on which its device computes."""
    return stream.endswith("/compute")


class Task(NamedTuple):
    """One task as a row of the columns."""

    id: int
    work: Work
    stream: str
    tag: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    after: tuple[int, ...]
    block: int

    @property
    def name(self) -> str:
        """Name of the work, with the micro-batch in brackets."""
        suffix = f"[{self.tag}]" if self.tag >= 0 else ""
        return f"{self.work.name}{suffix}"


@dataclass(frozen=True)
class TaskGraph:
    """Tasks of one or several optimizer steps, as columns.

    `work`, `stream`, `tag` have one entry a task; `reads` holds tensor handles, `after` task ids.
    Task i writes the handles `first_write[i] .. first_write[i + 1] - 1`. `tag` is the micro-batch,
    -1 if there is none. `block` is the layer whose weights the task uses, by its number in the model, or
    one of the markers in `graph.work`.
    """

    works: tuple[Work, ...]
    streams: tuple[str, ...]
    work: Ints
    stream: Ints
    tag: Ints
    block: Shorts
    reads: Ragged
    after: Ragged
    first_write: Ints
    step_ends: tuple[int, ...]
    """Number of tasks at the end of each optimizer step."""
    stands_for: tuple[int, ...]
    """Number of ranks that each stream stands for; ranks that do the same work share one (`symmetry`)."""

    def __len__(self) -> int:
        return len(self.work)

    def task(self, index: int) -> Task:
        """One task by its id."""
        return Task(
            id=index,
            work=self.works[self.work[index]],
            stream=self.streams[self.stream[index]],
            tag=int(self.tag[index]),
            reads=self.reads.row(index),
            writes=tuple(range(self.first_write[index], self.first_write[index + 1])),
            after=self.after.row(index),
            block=int(self.block[index]),
        )

    def tasks(self) -> Iterator[Task]:
        """All tasks in the order of their ids."""
        return (self.task(index) for index in range(len(self)))

    @cached_property
    def stream_ranks(self) -> Ints:
        """The rank of each stream; -1 for one of several ranks or of all, such as MemoryX."""
        ranks = (rank_of(name) for name in self.streams)
        return np.array([-1 if rank is None else rank for rank in ranks], dtype=np.int32)

    @cached_property
    def stream_devices(self) -> tuple[tuple[int, ...], ...]:
        """The computing devices of each stream, numbered from 0; none for a store or a network."""
        owners = [owners_of(name) for name in self.streams]
        computing = (names for names, stream in zip(owners, self.streams, strict=True) if computes(stream))
        number = {owner: index for index, owner in enumerate(dict.fromkeys(chain.from_iterable(computing)))}
        return tuple(tuple(number[owner] for owner in names if owner in number) for names in owners)

    @cached_property
    def width(self) -> int:
        """Number of ranks that each written device stands for. Raises GraphError if devices differ in it."""
        widths = {
            ranks
            for ranks, rank in zip(self.stands_for, self.stream_ranks.tolist(), strict=True)
            if rank >= 0
        }
        if len(widths) > 1:
            raise GraphError("this graph is partly unfolded: its devices stand for unlike numbers of ranks")
        return widths.pop() if widths else 1

    @property
    def num_tensors(self) -> int:
        """Number of tensors that the tasks write."""
        return int(self.first_write[-1])

    @cached_property
    def writer(self) -> Ints:
        """The task that writes each tensor."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.first_write))

    @cached_property
    def by_stream(self) -> Ragged:
        """The tasks of each stream, in order."""
        few = len(self.streams) <= np.iinfo(np.uint16).max  # NumPy sorts 16-bit integers by radix
        order = np.argsort(self.stream.astype(np.uint16) if few else self.stream, kind="stable")
        lengths = np.bincount(self.stream, minlength=len(self.streams))
        return Ragged(offsets(lengths).astype(np.int32), order.astype(np.int32))

    @cached_property
    def stream_predecessor(self) -> Ints:
        """The task before each one on its stream; -1 for the first."""
        order = self.by_stream.values
        same = self.stream[order[1:]] == self.stream[order[:-1]]
        before = np.full(len(self), -1, dtype=np.int32)
        before[order[1:][same]] = order[:-1][same]
        return before

    @cached_property
    def sources(self) -> tuple[Ragged, Ragged]:
        """Data and control dependencies of each task. Raises GraphError for one that is later or missing."""
        reads = self.reads.values
        exists = (reads >= 0) & (reads < self.num_tensors)
        if not np.all(exists):
            bad = self.task(int(self.reads.row_of_value[np.argmin(exists)]))
            raise GraphError(f"task {bad.name} on {bad.stream} reads a tensor that nothing writes")
        sources = (Ragged(self.reads.start, self.writer[reads]), self.after)
        for source in sources:
            late = source.values >= source.row_of_value
            if np.any(late):
                bad = self.task(int(source.row_of_value[np.argmax(late)]))
                raise GraphError(f"task {bad.name} waits for a task added after it")
        return sources

    @cached_property
    def dependencies(self) -> Ragged:
        """Dependencies of each task by data, control and program order, without repeats, ascending.

        A dependency on an earlier task of the same stream is implied by program order and left out.
        """
        program = np.flatnonzero(self.stream_predecessor >= 0)
        by_data = [(source.row_of_value, source.values) for source in self.sources]
        task_ids, waits_for = (
            np.concatenate(column).astype(np.int64)
            for column in zip(*by_data, (program, self.stream_predecessor[program]), strict=True)
        )
        implied = (self.stream[task_ids] == self.stream[waits_for]) & (
            self.stream_predecessor[task_ids] != waits_for
        )
        # One key per (task, dependency): sorting orders them and finds repeats.
        pairs = task_ids[~implied] * len(self) + waits_for[~implied]
        pairs.sort(kind="stable")
        first = np.ones(len(pairs), dtype=bool)
        np.not_equal(pairs[1:], pairs[:-1], out=first[1:])
        task_ids, waits_for = np.divmod(pairs[first], len(self))
        start = offsets(np.bincount(task_ids, minlength=len(self)))
        return Ragged(start.astype(np.int32), waits_for.astype(np.int32))

    @cached_property
    def successors(self) -> Ragged:
        """Tasks that wait for each task, ascending."""
        deps = self.dependencies
        order = np.argsort(deps.values, kind="stable")
        start = np.zeros(len(self) + 1, dtype=np.int32)
        np.cumsum(np.bincount(deps.values, minlength=len(self)), out=start[1:])
        return Ragged(start, deps.row_of_value[order])

    @cached_property
    def _waits(self) -> Waits:
        return waits(self.stream, self.stream_predecessor, self.sources)

    @cached_property
    def follows(self) -> Ints:
        """The task at whose end each task starts, for any durations; -1 if it waits for several or none."""
        return followed(self._waits)

    @cached_property
    def chains(self) -> Chains:
        """All tasks, chain by chain."""
        return chains(self.follows, self._waits, self.sources)

    def chains_around(self, apart: NDArray[np.bool_]) -> Chains:
        """The chains if each of these tasks is a chain of its own."""
        return split(self.chains, apart, self._waits, self.sources)

    @property
    def flop(self) -> float:
        """FLOPs of all tasks, counted for every rank that they stand for."""
        per_work = np.array([work.flop for work in self.works])
        ranks = np.array(self.stands_for, dtype=np.float64)[self.stream]
        return float(per_work @ np.bincount(self.work, ranks, minlength=len(self.works)))

    def digest(self) -> str:
        """A hash of the graph without its stream names; equal graphs have equal digests."""
        sha = hashlib.sha256()
        columns = (self.work, self.stream, self.tag, self.block, *self.reads, *self.after, self.first_write)
        for column in (*columns, self.step_ends, self.stands_for):
            sha.update(np.ascontiguousarray(column, dtype=np.int32).tobytes())
        for work in self.works:
            sha.update(repr(work).encode())
        return sha.hexdigest()[:16]
