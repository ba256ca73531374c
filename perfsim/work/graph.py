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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Bools, Ids, Ints
from perfsim.base.errors import GraphError
from perfsim.work.kernels import Kernel

# Lists of lists in two columns.


class Ragged(NamedTuple):
    """A list of lists in two columns: row i is `values[start[i]:start[i + 1]]`."""

    start: Ids
    values: Ids

    def row(self, index: int) -> tuple[int, ...]:
        """The values of one row."""
        return tuple(self.values[self.start[index] : self.start[index + 1]].tolist())

    @property
    def row_of_value(self) -> Ids:
        """The row of each value."""
        return np.repeat(np.arange(len(self.start) - 1, dtype=np.int32), np.diff(self.start))

    def rows(self, indices: Ids | Ints) -> Ragged:
        """The rows at these indices, in their order."""
        counts = np.diff(self.start)[indices]
        start = offsets(counts)
        where = np.arange(int(start[-1])) + np.repeat(self.start[indices] - start[:-1], counts)
        return Ragged(start.astype(np.int32), self.values[where])

    def with_others(self, others: Ragged) -> Ragged:
        """These rows, then the others."""
        start = np.append(self.start[:-1], self.start[-1] + others.start)
        return Ragged(start, np.append(self.values, others.values))


def offsets(lengths: NDArray[np.integer] | Bools) -> Ints:
    """Start of each row and the end of the last: 0, l0, l0 + l1, ..."""
    start = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=start[1:])
    return start


# A class of work: what a task does, in FLOPs and bytes, never in seconds.
#
# Tasks hold only the id of their class (there are dozens of classes and hundreds of thousands of
# tasks), so pricing a graph means pricing its classes.

WHOLE_DEVICE = -1
EMBEDDING = -2
HEAD = -3
EMBEDDING_AND_HEAD = -4
"""Markers of `TaskGraph.block` where a task does not belong to a single layer.

All weights of the device that no other task covers; the embedding; the LM head; whichever of these two
the pipeline stage holds.
"""


_MARKERS = {
    WHOLE_DEVICE: "the device's weights",
    EMBEDDING: "embedding",
    HEAD: "LM head",
    EMBEDDING_AND_HEAD: "embedding and LM head",
}


def block_name(block: int) -> str:
    """The block as messages print it."""
    return _MARKERS.get(block, f"layer {block}")


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
        """The members."""
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
    beside: Kernel | None = None
    """The product beside which a collective is exchanged in chunks, one for each rank of its group: it
    gathers the product's first operand, or sums its result. The product is part of another task."""
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        values = (
            self.name,
            self.category,
            self.kernels,
            self.comm_bytes,
            self.group,
            self.writes,
            self.share,
            self.fan_out,
            self.beside,
        )
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        """Computed once, because every added task looks up its class."""
        return self._hash

    @property
    def flop(self) -> float:
        """FLOPs of one task."""
        return self.share * sum(kernel.flop for kernel in self.kernels)

    @property
    def bytes_accessed(self) -> float:
        """Bytes that the kernels of one task move in device memory."""
        return self.share * sum(kernel.bytes_accessed for kernel in self.kernels)

    @property
    def launches(self) -> int:
        """Kernels that the host launches for one task."""
        return sum(kernel.launches for kernel in self.kernels)


# Chains of tasks, in which every task starts exactly when the task before it ends.
#
# For any durations this holds if a task waits for one task only, or if that one has already waited for all
# its other dependencies. A chain has one unknown, the start of its head; the rest are cumulative sums.
# Chains depend only on the graph and are computed once.

COLUMNS = 4
"""A task with more dependencies, its stream predecessor included, always begins a chain."""
DEPTH = 3
"""Steps that the search for a task's other dependencies goes back from its last one."""


class _Waits(NamedTuple):
    """Dependencies of every task, one per column (-1: none); empty for tasks with too many."""

    columns: Ids
    """(COLUMNS, tasks); the first is the stream predecessor, the others are on other streams."""
    long: Bools
    """Tasks with too many dependencies for the columns."""


def _collected(stream: Ids, previous: Ids, sources: Sequence[Ragged]) -> _Waits:
    """Collect dependencies: the stream predecessor, and those rows of every source on other streams."""
    counts = [np.diff(source.start) for source in sources]
    long = np.sum(counts, axis=0) >= COLUMNS
    columns = np.full((COLUMNS, len(stream)), -1, dtype=np.int32)
    columns[0] = previous
    filled = np.ones(len(stream), dtype=np.int8)
    for source, count in zip(sources, counts, strict=True):
        for position in range(int(count[~long].max(initial=0))):
            tasks = np.flatnonzero((count > position) & ~long)
            dependency = source.values[source.start[tasks] + position]
            apart = stream[dependency] != stream[tasks]
            tasks = tasks[apart]
            dependency = dependency[apart]
            columns[filled[tasks], tasks] = dependency
            filled[tasks] += 1
    return _Waits(columns, long)


def _followed(waits: _Waits) -> Ids:
    """The task that each task directly follows; -1 if it waits for several, or for none.

    It is the last dependency, if the search finds that this one has waited for all the others.
    """
    columns, long = waits
    last: Ids = columns.max(axis=0)
    last[long] = -1
    follows = last.copy()
    for column in columns:
        tasks = np.flatnonzero((follows >= 0) & (column >= 0) & (column != last))
        dependency = column[tasks]
        ancestor = last[tasks]
        for _ in range(DEPTH):  # back along last dependencies, until one waits for `dependency`
            ended = ancestor < 0
            left = ~ended
            for waited in columns:
                left &= waited[ancestor] != dependency
            follows[tasks[ended]] = -1
            left &= ~ended
            tasks = tasks[left]
            dependency = dependency[left]
            ancestor = last[ancestor[left]]
        follows[tasks] = -1
    return follows


class Pairs(NamedTuple):
    """The critical path as a table: value i + 1 is the larger of the two sums in row i.

    A sum is an earlier value (0 is the start of the run) plus the time from the start of a task's chain to
    that task's end. Tasks are given by their place among all chains; place -1 adds no time.
    """

    left_value: Ids
    left_place: Ids
    left_chain: Ids
    right_value: Ids
    right_place: Ids
    right_chain: Ids
    value_of_chain: Ids


@dataclass(frozen=True)
class Chains:
    """All tasks, chain by chain; chains are in the order of their heads, which is topological."""

    order: Ids
    """Task ids chain by chain, in order."""
    first: Ids
    """Where each chain begins in `order`, and the end of the last."""
    chain: Ids
    """The chain of each task."""
    waits_for: Ragged
    """Tasks that the head of each chain waits for."""

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def length(self) -> Ids:
        """Tasks of each chain."""
        return np.diff(self.first)

    @cached_property
    def place(self) -> Ids:
        """Where each task stands in `order`."""
        place = np.empty(len(self.order), dtype=np.int32)
        place[self.order] = np.arange(len(self.order), dtype=np.int32)
        return place

    def since_start(self, ticks: Ints) -> Ints:
        """Ticks from the start of each task's chain to the task's end, by place."""
        total, before = self.running_sums(ticks)
        total -= before.repeat(self.length)
        return total

    def running_sums(self, ticks: Ints) -> tuple[Ints, Ints]:
        """Running sums of ticks over all tasks, by place, and the sum before each chain."""
        # Sums of whole ticks are exact, so one running sum over all chains loses no precision.
        total = ticks.take(self.order).cumsum()
        heads = self.first[:-1]
        return total, total.take(heads) - ticks.take(self.order.take(heads))

    @cached_property
    def pairs(self) -> Pairs:
        """The start of every chain as a cascade of maxima of two sums."""
        start, values = self.waits_for
        count = np.diff(start)
        last = np.cumsum(np.maximum(count - 1, 1))
        first = np.append(0, last[:-1])
        left_value, right_value = (np.zeros(int(last[-1]), dtype=np.int32) for _ in range(2))
        left_place, right_place = (np.full(int(last[-1]), -1, dtype=np.int32) for _ in range(2))
        chain = self.waits_for.row_of_value
        position = np.arange(len(values)) - start[chain]
        value = last[self.chain[values]]
        place = self.place[values]
        # Row 0 of a chain compares its first two dependencies, row i > 0 the value so far with the next one.
        row = first[chain] + np.maximum(position - 1, 0)
        begins = position == 0
        left_value[row[begins]], left_place[row[begins]] = value[begins], place[begins]
        right_value[row[~begins]], right_place[row[~begins]] = value[~begins], place[~begins]
        continued = np.ones(len(left_value), dtype=bool)
        continued[first] = False
        left_value[continued] = np.flatnonzero(continued)
        left_chain, right_chain = (self.chain[self.order[place]] for place in (left_place, right_place))
        return Pairs(
            left_value,
            left_place,
            left_chain,
            right_value,
            right_place,
            right_chain,
            last.astype(np.int32),
        )


def _chains(follows: Ids, waits: _Waits, sources: Sequence[Ragged]) -> Chains:
    """The chains of a graph."""
    tasks = np.arange(len(follows), dtype=np.int32)
    joined = follows >= 0  # the tasks that continue a chain
    next_task = np.full(len(follows), -1, dtype=np.int32)
    followers = np.flatnonzero(joined)[::-1]
    next_task[follows[followers]] = followers  # of several followers the first, which is set last
    joined[followers] = next_task[follows[followers]] == followers
    begins = ~(joined & (follows == tasks - 1))
    run = np.cumsum(begins, dtype=np.int32) - 1
    chain_of_run = _chain_of_run(np.flatnonzero(begins), run, follows, joined)
    length = np.diff(np.append(np.flatnonzero(begins), len(follows)))
    by_chain = np.argsort(chain_of_run, kind="stable")
    order = Ragged(offsets(length).astype(np.int32), tasks).rows(by_chain).values
    heads = np.flatnonzero(~joined)
    first = offsets(np.bincount(chain_of_run, length, len(heads)).astype(np.int64))
    return Chains(order, first.astype(np.int32), chain_of_run[run], _of_heads(heads, waits, sources))


def _split(whole: Chains, apart: Bools, waits: _Waits, sources: Sequence[Ragged]) -> Chains:
    """Chains cut before and behind each task in `apart`, whose duration is not known yet."""
    alone = apart[whole.order]
    begins = alone.copy()
    begins[1:] |= alone[:-1]
    begins[whole.first[:-1]] = False
    cuts = np.flatnonzero(begins)
    begins[whole.first[:-1]] = True
    first = np.append(np.flatnonzero(begins), len(alone))
    by_head = np.argsort(whole.order[first[:-1]])
    parts = Ragged(first.astype(np.int32), whole.order).rows(by_head)
    number = np.empty(len(by_head), dtype=np.int32)
    number[by_head] = np.arange(len(by_head), dtype=np.int32)
    chain = np.empty(len(alone), dtype=np.int32)
    chain[whole.order] = number.repeat(np.diff(first))
    # Chains that began before keep their rows; the new ones come behind them.
    both = whole.waits_for.with_others(_of_heads(whole.order[cuts], waits, sources))
    is_cut = np.isin(first[:-1], cuts)
    row = np.where(is_cut, len(whole) + np.cumsum(is_cut) - 1, np.cumsum(~is_cut) - 1)
    return Chains(parts.values, parts.start, chain, both.rows(row[by_head]))


def _chain_of_run(first: Ints, run: Ids, follows: Ids, joined: Bools) -> Ids:
    """The chain of every run of consecutive task ids; a run may continue another one."""
    before = np.where(joined[first], run[follows[first]], np.arange(len(first), dtype=np.int32))
    behind = np.flatnonzero(joined[first])
    while len(behind):  # pointer jumping: each pass doubles the distance covered
        further = before[before[behind]]
        moved = further != before[behind]
        before[behind] = further
        behind = behind[moved]
    number = np.cumsum(~joined[first], dtype=np.int32) - 1
    return np.asarray(number[before])


def _of_heads(heads: Ints | Ids, waits: _Waits, sources: Sequence[Ragged]) -> Ragged:
    """Dependencies of the head of each chain, ascending, without repeats."""
    columns = np.sort(waits.columns[:, heads].T, axis=1)
    new = columns >= 0
    new[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    rows = Ragged(offsets(np.count_nonzero(new, axis=1)).astype(np.int32), columns[new])
    long = np.flatnonzero(waits.long[heads])
    return _with_long(rows, long, heads[long], waits, sources) if len(long) else rows


def _with_long(
    rows: Ragged, long: Ints, heads: Ints | Ids, waits: _Waits, sources: Sequence[Ragged]
) -> Ragged:
    """`rows` with all dependencies of those heads that have too many for the columns."""
    previous = waits.columns[0, heads]
    by_source = [source.rows(heads) for source in sources]
    head = [np.flatnonzero(previous >= 0), *(part.row_of_value.astype(np.int64) for part in by_source)]
    dependency = [previous[previous >= 0], *(part.values for part in by_source)]
    # One key per (head, dependency), so that sorting finds repeats.
    keys = np.concatenate(head) * np.int64(len(waits.long)) + np.concatenate(dependency)
    keys.sort()
    row, values = np.divmod(keys[np.append(True, keys[1:] != keys[:-1])], len(waits.long))
    start = offsets(np.bincount(row, minlength=len(heads)))
    chosen = np.arange(len(rows.start) - 1)
    chosen[long] = len(chosen) + np.arange(len(long))
    return rows.with_others(Ragged(start.astype(np.int32), values.astype(np.int32))).rows(chosen)


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
    work: Ids
    stream: Ids
    tag: Ids
    block: Shorts
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
    def stream_ranks(self) -> Ids:
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
    def writer(self) -> Ids:
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
    def stream_predecessor(self) -> Ids:
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
    def _waits(self) -> _Waits:
        return _collected(self.stream, self.stream_predecessor, self.sources)

    @cached_property
    def follows(self) -> Ids:
        """The task at whose end each task starts, for any durations; -1 if it waits for several or none."""
        return _followed(self._waits)

    @cached_property
    def chains(self) -> Chains:
        """All tasks, chain by chain."""
        return _chains(self.follows, self._waits, self.sources)

    def chains_around(self, apart: Bools) -> Chains:
        """The chains if each of these tasks is a chain of its own."""
        return _split(self.chains, apart, self._waits, self.sources)

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
