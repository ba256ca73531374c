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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Bools, Ids, Ints
from perfsim.base.compiled import FEW, Compiled
from perfsim.base.errors import GraphError
from perfsim.work.kernels import Kernel

# Lists of lists in two columns.


class Ragged(NamedTuple):
    """A list of lists in two columns: row i is `values[start[i]:start[i + 1]]`."""

    start: Ids
    values: Ids

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """The columns of a list of lists."""
        start = offsets(np.array([len(row) for row in rows], dtype=np.int64))
        return cls(start.astype(np.int32), np.fromiter(chain.from_iterable(rows), dtype=np.int32))

    @classmethod
    def grouped(cls, values: Ids | Ints, keys: Ids | Ints, rows: int) -> Ragged:
        """Values by their keys, which number the rows, in their order."""
        start = offsets(np.bincount(keys, minlength=rows)).astype(np.int32)
        grouped = np.empty(len(values), dtype=np.int32)
        _group(values.astype(np.int32), keys.astype(np.int32), start[:-1].copy(), grouped)
        return cls(start, grouped)

    def row(self, index: int) -> tuple[int, ...]:
        return tuple(self.values[self.start[index] : self.start[index + 1]].tolist())

    @property
    def row_of_value(self) -> Ids:
        return np.repeat(np.arange(len(self.start) - 1, dtype=np.int32), np.diff(self.start))

    def rows(self, indices: Ids | Ints) -> Ragged:
        counts = np.diff(self.start)[indices]
        start = offsets(counts)
        where = np.arange(int(start[-1])) + np.repeat(self.start[indices] - start[:-1], counts)
        return Ragged(start.astype(np.int32), self.values[where])


@partial(Compiled, few=FEW)
def _group(values: Ids, keys: Ids, place: Ids, grouped: Ids) -> None:
    """Put each value where the next of its key belongs, which moves that place."""
    for value, key in zip(values, keys):  # noqa: B905 (`strict` does not compile)
        grouped[place[key]] = value
        place[key] += 1


def offsets(lengths: NDArray[np.integer] | Bools) -> Ints:
    """Start of each row and the end of the last: 0, l0, l0 + l1, ..."""
    start = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=start[1:])
    return start


# The blocks of a model: its layers by number, and markers of tasks that do not belong to a single layer.

WHOLE_DEVICE = -1
"""All weights of the device that no other task covers."""
EMBEDDING = -2
HEAD = -3
EMBEDDING_AND_HEAD = -4
"""Whichever of these two the pipeline stage holds."""
_MARKERS = {
    WHOLE_DEVICE: "the device's weights",
    EMBEDDING: "embedding",
    HEAD: "LM head",
    EMBEDDING_AND_HEAD: "embedding and LM head",
}


def block_name(block: int) -> str:
    """The block as messages print it."""
    return _MARKERS.get(block, f"layer {block}")


# A class of work: what a task does, in FLOPs and bytes, never in seconds.
#
# Tasks hold only the id of their class (there are dozens of classes and hundreds of thousands of
# tasks), so pricing a graph means pricing its classes.


class Kind(IntEnum):
    """Node kinds of a Chakra execution trace."""

    COMP = 0
    MEM_LOAD = 1
    MEM_STORE = 2
    COMM_SEND = 3
    COMM_RECV = 4
    COMM_COLL = 5

    @property
    def is_communication(self) -> bool:
        """Whether it is a send, a receive or a collective."""
        return self >= Kind.COMM_SEND


class RankGroup(NamedTuple):
    """The ranks `start, start + stride, ...` that take part in a communication."""

    start: int
    stride: int
    size: int

    @property
    def ranks(self) -> range:
        return range(self.start, self.start + self.stride * self.size, self.stride)


class TensorClass(NamedTuple):
    """An output of a task: its name, and its bytes on the device that holds it."""

    name: str
    n_bytes: float


WAIT_OF_HOST = "pipeline.pass"
"""Name of the work that begins a pass of a pipeline rank, which only a framework's host prices."""
WAIT_OF_EXPERTS = "experts.host"
"""Name of the work of the host in a layer with experts, which only a framework prices."""


@dataclass(frozen=True, slots=True)
class Work:
    """What every task of one class does.

    `op` is the key into the numeric kernels (or the collective's name); its time counts for the part of
    the step that `category` names.
    """

    name: str
    kind: Kind
    op: str
    category: str
    kernels: tuple[Kernel, ...] = ()
    comm_bytes: float = 0.0
    group: RankGroup | None = None
    writes: tuple[TensorClass, ...] = ()
    share: float = 1.0
    """Fraction of the kernels that one task runs, if a pass is split into chunks."""
    fan_out: int = 1
    """Members of the group, chosen at random, to which an item of an all-to-all goes; `comm_bytes` counts it
    as often. Of several on one rank or node one copy travels."""
    next_to: Kernel | None = None
    """The product next to which a collective is exchanged in chunks, one for each rank of its group: it
    gathers the product's first operand, or sums its result. The product is part of another task."""
    experts: bool = False
    """Whether all gradients or parameters that it moves belong to routed experts."""
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # Works that are alike in these are hardly ever unlike in another field.
        values = (self.name, self.category, self.kernels, self.comm_bytes, self.group, self.writes)
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        """Computed once, because every added task looks up its class."""
        return self._hash

    @property
    def flop(self) -> float:
        return self.share * sum(kernel.flop for kernel in self.kernels)

    @property
    def bytes_accessed(self) -> float:
        """Bytes that the kernels of one task move in device memory."""
        return self.share * sum(kernel.bytes_accessed for kernel in self.kernels)

    @property
    def launches(self) -> int:
        """Kernels that the host launches for one task."""
        return sum(kernel.launches for kernel in self.kernels)


_DEVICE = re.compile(r"([a-z]+)(\d+)")


def rank_of(stream: str) -> int | None:
    """The rank of a stream; None for a stream of several ranks or of all, such as MemoryX."""
    match = _DEVICE.fullmatch(stream.split("/", 1)[0])
    return int(match[2]) if match else None


def owners_of(stream: str) -> tuple[str, ...]:
    """The devices that a stream names: one, several that meet, or a place that all ranks share."""
    return tuple(stream.split("/", 1)[0].split("+"))


def compute_stream(device: str) -> str:
    """The stream on which a device computes."""
    return f"{device}/compute"


def computes(stream: str) -> bool:
    """Whether a stream is the one on which its device computes."""
    return stream.endswith(compute_stream(""))


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


@partial(Compiled, few=FEW)
def _precede(stream: Ids, last: Ids, before: Ids) -> None:
    """Fill in the task before each one on its stream; `last` is -1 for every stream."""
    for task in range(len(stream)):
        before[task] = last[stream[task]]
        last[stream[task]] = task


@partial(Compiled, few=FEW)
def _depend(sources: tuple[Ragged, Ragged], stream: Ids, before: Ids, start: Ids, found: Ids) -> None:
    """Fill in the dependencies of each task, ascending and each once, and where its row of `found` starts.

    Where a task has a source that is not before it, the last of `start` becomes the complement of the task.
    """
    end = 0
    for task in range(len(stream)):
        start[task] = end
        if before[task] >= 0:
            found[end] = before[task]
            end += 1
        for waits in sources:
            for place in range(waits.start[task], waits.start[task + 1]):
                source = waits.values[place]
                if source >= task:
                    start[-1] = ~task
                    return
                # Program order implies all others on the same stream.
                if stream[source] != stream[task]:
                    end = _inserted(source, found, start[task], end)
    start[len(stream)] = end


def _inserted(value: int, values: Ids, first: int, end: int) -> int:
    """The end of an ascending row without repeats after a value has joined it."""
    place = end
    while place > first and values[place - 1] > value:
        place -= 1
    if place > first and values[place - 1] == value:
        return end
    for moved in range(end, place, -1):
        values[moved] = values[moved - 1]
    values[place] = value
    return end + 1


@dataclass(frozen=True)
class TaskGraph:
    """Tasks of one or several optimizer steps, as columns.

    `work`, `stream`, `tag` have one entry a task; `reads` holds tensor handles, `after` task ids.
    Task i writes the handles `first_write[i] .. first_write[i + 1] - 1`. `tag` is the micro-batch,
    -1 if there is none. `block` is the layer whose weights the task uses, by its number in the model, or
    a marker such as `EMBEDDING`.
    """

    works: tuple[Work, ...]
    streams: tuple[str, ...]
    work: Ids
    stream: Ids
    tag: Ids
    block: NDArray[np.int16]
    reads: Ragged
    after: Ragged
    first_write: Ids
    step_ends: tuple[int, ...]
    """Number of tasks at the end of each optimizer step."""
    stands_for: tuple[int, ...]
    """Number of ranks that each stream stands for; ranks that do the same work share one (`unfold`)."""

    def __len__(self) -> int:
        return len(self.work)

    def task(self, index: int) -> Task:
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
        return (self.task(index) for index in range(len(self)))

    @cached_property
    def stream_ranks(self) -> Ids:
        """The rank of each stream; -1 for one of several ranks or of all, such as MemoryX."""
        ranks = (rank_of(name) for name in self.streams)
        return np.array([-1 if rank is None else rank for rank in ranks], dtype=np.int32)

    @property
    def bases(self) -> list[int]:
        """The rank of every device that has a stream, ascending."""
        return sorted({rank for rank in self.stream_ranks.tolist() if rank >= 0})

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The devices that compute, by their numbers from 0."""
        computing = (owners_of(stream) for stream in self.streams if computes(stream))
        return tuple(dict.fromkeys(chain.from_iterable(computing)))

    @cached_property
    def stream_devices(self) -> tuple[tuple[int, ...], ...]:
        """The computing devices of each stream by their numbers; none for a store or a network."""
        number = {device: index for index, device in enumerate(self.devices)}
        owners = map(owners_of, self.streams)
        return tuple(tuple(number[owner] for owner in names if owner in number) for names in owners)

    @cached_property
    def width(self) -> int:
        """Number of ranks that each written device stands for. Raises GraphError if devices differ in it."""
        widths = set(np.array(self.stands_for)[self.stream_ranks >= 0].tolist())
        if len(widths) > 1:
            raise GraphError("this graph is partly unfolded: its devices stand for unlike numbers of ranks")
        return widths.pop() if widths else 1

    @cached_property
    def is_compute(self) -> Bools:
        """Whether each task computes, and is no copy or communication."""
        return np.array([work.kind is Kind.COMP for work in self.works])[self.work]

    @property
    def num_tensors(self) -> int:
        return int(self.first_write[-1])

    @cached_property
    def writer(self) -> Ids:
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.first_write))

    @cached_property
    def by_stream(self) -> Ragged:
        return Ragged.grouped(np.arange(len(self)), self.stream, len(self.streams))

    @cached_property
    def stream_predecessor(self) -> Ids:
        """The task before each one on its stream; -1 for the first."""
        before = np.empty(len(self), dtype=np.int32)
        _precede(self.stream, np.full(len(self.streams), -1, dtype=np.int32), before)
        return before

    @cached_property
    def dependencies(self) -> Ragged:
        """Dependencies of each task by data, control and program order, without repeats, ascending.

        Raises GraphError for one that is later or missing.
        """
        reads = self.reads.values
        exists = (reads >= 0) & (reads < self.num_tensors)
        if not np.all(exists):
            bad = self.task(int(self.reads.row_of_value[np.argmin(exists)]))
            raise GraphError(f"task {bad.name} on {bad.stream} reads a tensor that nothing writes")
        data = Ragged(self.reads.start, self.writer[reads])
        start = np.empty(len(self) + 1, dtype=np.int32)
        found = np.empty(len(reads) + len(self.after.values) + len(self), dtype=np.int32)
        _depend((data, self.after), self.stream, self.stream_predecessor, start, found)
        if start[-1] < 0:
            raise GraphError(f"task {self.task(~int(start[-1])).name} waits for a task added after it")
        return Ragged(start, found[: start[-1]].copy())

    @cached_property
    def successors(self) -> Ragged:
        """Tasks that wait for each task, ascending."""
        deps = self.dependencies
        return Ragged.grouped(deps.row_of_value, deps.values, len(self))

    @property
    def flop(self) -> float:
        """FLOPs of all tasks, counted for every rank that they stand for."""
        per_work = np.array([work.flop for work in self.works])
        ranks = np.array(self.stands_for, dtype=np.float64)[self.stream]
        return float(per_work @ np.bincount(self.work, ranks, minlength=len(self.works)))

    def mean_over_steps(self, amount: Callable[[Work], float]) -> float:
        """Sum over the tasks of a step, given an amount of each class of work; the mean over steps."""
        per_work = np.array([amount(work) for work in self.works])
        return float(per_work[self.work].sum()) / len(self.step_ends)

    def digest(self) -> str:
        """A hash of the graph without its stream names; equal graphs have equal digests."""
        sha = hashlib.sha256()
        columns = (self.work, self.stream, self.tag, self.block, *self.reads, *self.after, self.first_write)
        for column in (*columns, self.step_ends, self.stands_for):
            sha.update(np.ascontiguousarray(column, dtype=np.int32).tobytes())
        for work in self.works:
            sha.update(repr(work).encode())
        return sha.hexdigest()[:16]
