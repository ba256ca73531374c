"""Builds a task graph: one task at a time, or from templates stamped many times.

`GraphBuilder.task` appends one task. A `Template` records a sequence of tasks once (such as the forward of
one pipeline stage), with ports for its external inputs; `GraphBuilder.stamp` writes it for all
micro-batches at once with NumPy. Both give the same columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Ints
from perfsim.base.errors import GraphError
from perfsim.work.graph import WHOLE_DEVICE, Ragged, TaskGraph, Work, offsets, rank_of

NO_SOURCE = -1
NO_OUTPUT = -2
"""In place of the handle behind a port: the slot has no source, or its template no such output."""


class Port(int):
    """An external input tensor of a template; stamping supplies its handle."""


class _Handles(NamedTuple):
    """Result of adding a task: its id and the handle of its first output tensor."""

    id: int
    tensor: int


_SINGLE = ("work", "stream", "block", "num_reads", "num_after", "num_writes")
"""Columns with a value for each task; `tag` is another one, which a slot gives."""
_ROW = (*_SINGLE, "tag")


class _Columns:
    """Growing columns; handles and ids are local to the owner."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        """What `_ROW` names of each task."""
        self.reads: list[int] = []
        self.after: list[int] = []
        self.tensor_ends: list[int] = []
        """Number of tensors written up to and including each task."""
        self.num_tensors = 0

    def append(
        self,
        work: int,
        stream: int,
        tag: int,
        block: int,
        reads: Sequence[int],
        after: Sequence[int],
        writes: int,
    ) -> _Handles:
        handles = _Handles(len(self.rows), self.num_tensors)
        self.rows.append((work, stream, block, len(reads), len(after), writes, tag))
        self.reads.extend(reads)
        self.after.extend(after)
        self.num_tensors += writes
        self.tensor_ends.append(self.num_tensors)
        return handles

    def __len__(self) -> int:
        return len(self.rows)

    def arrays(self) -> dict[str, Ints]:
        """The columns as arrays."""
        columns = dict(zip(_ROW, np.array(self.rows, dtype=np.int64).reshape(-1, len(_ROW)).T, strict=True))
        lists = {"reads": self.reads, "after": self.after}
        return columns | {name: np.array(values, dtype=np.int64) for name, values in lists.items()}


@dataclass
class Template:
    """A recorded sequence of tasks; `ports` are its external inputs, `outputs` its named results."""

    builder: GraphBuilder
    ports: dict[str, Port] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    columns: _Columns = field(default_factory=_Columns)
    """The recorded tasks, with ids and handles local to the template."""

    def port(self, name: str) -> Port:
        """The external input of this name."""
        return self.ports.setdefault(name, Port(-1 - len(self.ports)))

    def task(
        self,
        work: Work,
        stream: str,
        reads: Sequence[int] = (),
        after: Sequence[int] = (),
        *,
        block: int = WHOLE_DEVICE,
    ) -> _Handles:
        """Record one task; `reads` are ports or tensors of this template, `block` as in `TaskGraph`.

        `after` holds task ids of this template, or ports, which stand for the writers of their tensors.
        """
        ids = self.builder.work_id(work), self.builder.stream_id(stream)
        return self.columns.append(*ids, 0, block, reads, after, len(work.writes))

    def joined(self, other: Template, closes: Callable[[str], bool]) -> Template:
        """Both templates in turns, the other first if it has several; tasks on streams that `closes` end one.

        Its ports and outputs are those of both. Slots give the tasks of the other their second tag.
        """
        parts = self, other
        first_task = 0, len(self)
        first_tensor = 0, self.columns.num_tensors
        closing = [closes(stream) for stream in self.builder.streams]
        turns = [
            [*_turns(part.columns, closing, first)] for part, first in zip(parts, first_task, strict=True)
        ]
        if len(turns[1]) > 1:
            turns.reverse()
        order = [*chain.from_iterable(chain.from_iterable(zip_longest(*turns, fillvalue=())))]
        rows = [(*row[:-1], number) for number, part in enumerate(parts) for row in part.columns.rows]
        writes = np.array([row[_ROW.index("num_writes")] for row in rows])
        new_task = np.argsort(order)
        new_first = offsets(writes[order])[new_task]
        new_tensor = np.arange(writes.sum()) + np.repeat(new_first - offsets(writes)[:-1], writes)
        both = Template(self.builder)
        both.columns.rows = [rows[task] for task in order]
        both.columns.tensor_ends = offsets(writes[order])[1:].tolist()
        both.columns.num_tensors = len(new_tensor)
        for name, new, firsts in (("reads", new_tensor, first_tensor), ("after", new_task, first_task)):
            handles = [
                both.port([*part.ports][-1 - handle]) if handle < 0 else new[first + handle]
                for part, first in zip(parts, firsts, strict=True)
                for handle in getattr(part.columns, name)
            ]
            starts = offsets(np.array([row[_ROW.index(f"num_{name}")] for row in rows])).astype(np.int32)
            of_tasks = Ragged(starts, np.array(handles, dtype=np.int32)).rows(np.array(order))
            setattr(both.columns, name, of_tasks.values.tolist())
        for part, first in zip(parts, first_tensor, strict=True):
            both.outputs |= {name: int(new_tensor[first + tensor]) for name, tensor in part.outputs.items()}
        return both

    def writer(self, tensor: int) -> int:
        """The task of this template that writes one of its tensors."""
        return bisect_right(self.columns.tensor_ends, tensor)

    def output(self, name: str, tensor: int) -> None:
        """Let other slots read `tensor` under this name."""
        self.outputs[name] = tensor

    def __len__(self) -> int:
        return len(self.columns)


class Slots(NamedTuple):
    """Slots in emission order, each with its template, its tags and the sources of its ports.

    Tags, and what blocks are later, are of shape (slots,), or (2, slots) where templates are joined.
    `sources[name]` is the slot that writes the tensor, for every slot (-1: the slot does not read that
    port), and the name of the output in that slot's template.
    """

    template: Ints
    tag: Ints
    sources: dict[str, tuple[Ints, str]]
    later: Ints | None = None
    """How many layers after those of its template the blocks of each slot are; None: they are the same."""


class Stamped(NamedTuple):
    """Result of stamping: first task id and first tensor handle of each slot."""

    templates: Sequence[Template]
    template: Ints
    first_task: Ints
    first_tensor: Ints

    def tensor(self, slot: int, output: str) -> int:
        """Handle of a named output of one slot; GraphError if its template has no such output."""
        outputs = self.templates[int(self.template[slot])].outputs
        if output not in outputs:
            names = ", ".join(outputs) or "nothing"
            raise GraphError(f"slot {slot} writes no output {output!r}; its template writes {names}")
        return int(self.first_tensor[slot]) + outputs[output]


class GraphBuilder:
    """Builds one graph; `build` returns it."""

    def __init__(self) -> None:
        self._works: dict[Work, int] = {}
        self._streams: dict[str, int] = {}
        self._columns = _Columns()
        self._chunks: list[dict[str, Ints]] = []
        self._num_tasks = 0
        self._num_tensors = 0
        self._step_ends: list[int] = []
        self._width = 1

    @property
    def works(self) -> tuple[Work, ...]:
        """The classes of work so far, by id."""
        return tuple(self._works)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams so far, by id."""
        return tuple(self._streams)

    def work_id(self, work: Work) -> int:
        """Id of a class of work; a new class gets the next one."""
        return self._works.setdefault(work, len(self._works))

    def stream_id(self, stream: str) -> int:
        """Id of a stream; a new stream gets the next one."""
        return self._streams.setdefault(stream, len(self._streams))

    def task(
        self,
        work: Work,
        stream: str,
        reads: Sequence[int] = (),
        after: Sequence[int] = (),
        *,
        tag: int = -1,
        block: int = WHOLE_DEVICE,
    ) -> _Handles:
        """Append one task; returns its id and the handle of the first tensor it writes."""
        ids = self.work_id(work), self.stream_id(stream)
        local = self._columns.append(*ids, tag, block, reads, after, len(work.writes))
        return _Handles(self._num_tasks + local.id, self._num_tensors + local.tensor)

    def end_step(self, num_tasks: int | None = None) -> None:
        """Mark the end of one optimizer step: here, or after the first `num_tasks` tasks."""
        here = self._num_tasks + len(self._columns)
        self._step_ends.append(here if num_tasks is None else num_tasks)

    def fold(self, width: int) -> None:
        """Declare that each device of the graph stands for `width` ranks that do the same work."""
        self._width = width

    def template(self) -> Template:
        """Start recording a template."""
        return Template(self)

    def stamp(self, templates: Sequence[Template], slots: Slots) -> Stamped:
        """Append the template of every slot, in the order of the slots."""
        self._flush()
        lengths = np.array([len(template) for template in templates], dtype=np.int64)
        tensors = np.array([template.columns.num_tensors for template in templates], dtype=np.int64)
        first_task = self._num_tasks + offsets(lengths[slots.template])
        first_tensor = self._num_tensors + offsets(tensors[slots.template])
        stamped = Stamped(templates, slots.template, first_task[:-1], first_tensor[:-1])
        self._chunks.append(_stamped_columns(slots, stamped, int(first_task[-1]) - self._num_tasks))
        self._num_tasks, self._num_tensors = int(first_task[-1]), int(first_tensor[-1])
        return stamped

    def _flush(self) -> None:
        """Move single tasks into a chunk of arrays."""
        columns = self._columns
        if not len(columns):
            return
        self._chunks.append(columns.arrays())
        self._num_tasks += len(columns)
        self._num_tensors += columns.num_tensors
        self._columns = _Columns()

    def build(self) -> TaskGraph:
        """The finished graph."""
        self._flush()
        if not self._num_tasks:
            raise GraphError("the graph has no task")
        if not self._step_ends or self._step_ends[-1] != self._num_tasks:
            self.end_step()

        def column(name: str) -> NDArray[np.int32]:
            return np.concatenate([chunk[name] for chunk in self._chunks]).astype(np.int32)

        return TaskGraph(
            works=tuple(self._works),
            streams=tuple(self._streams),
            work=column("work"),
            stream=column("stream"),
            tag=column("tag"),
            block=column("block").astype(np.int16),
            reads=Ragged(offsets(column("num_reads")).astype(np.int32), column("reads")),
            after=Ragged(offsets(column("num_after")).astype(np.int32), column("after")),
            first_write=offsets(column("num_writes")).astype(np.int32),
            step_ends=tuple(self._step_ends),
            stands_for=tuple(1 if rank_of(name) is None else self._width for name in self._streams),
        )


def _turns(columns: _Columns, closing: Sequence[bool], first: int) -> Iterator[list[int]]:
    """The tasks of a template in turns, numbered from `first`; a turn ends behind tasks that close it."""
    closed = [closing[row[_ROW.index("stream")]] for row in columns.rows]
    turn: list[int] = []
    for number, (ends, next_ends) in enumerate(pairwise([*closed, False]), first):
        turn.append(number)
        if ends and not next_ends:
            yield turn
            turn = []
    yield turn


def _stamped_columns(slots: Slots, stamped: Stamped, count: int) -> dict[str, Ints]:
    """The columns of the `count` tasks of all slots."""
    templates = stamped.templates
    recorded = [template.columns.arrays() for template in templates]
    rows_of = [np.flatnonzero(slots.template == number) for number in range(len(templates))]
    begin = stamped.first_task - (stamped.first_task[0] if len(stamped.first_task) else 0)
    columns = {name: np.empty(count, dtype=np.int64) for name in _ROW}
    for template, of, rows in zip(templates, recorded, rows_of, strict=True):
        where = begin[rows][:, None] + np.arange(len(template))
        for name in _SINGLE:
            columns[name][where] = of[name]
        part = of["tag"]
        if slots.later is not None:
            later = np.atleast_2d(slots.later)[part[None], rows[:, None]]
            columns["block"][where] += np.where(of["block"] >= 0, later, 0)
        columns["tag"][where] = np.atleast_2d(slots.tag)[part[None], rows[:, None]]
    for name, lengths in (("reads", "num_reads"), ("after", "num_after")):
        is_task = name == "after"
        first = stamped.first_task if is_task else stamped.first_tensor
        start = offsets(columns[lengths])
        columns[name] = np.empty(int(start[-1]), dtype=np.int64)
        behind: dict[str, Ints] = {}
        for template, of, rows in zip(templates, recorded, rows_of, strict=True):
            local = of[name]
            if not len(local) or not len(rows):
                continue
            values = first[rows][:, None] + np.maximum(local, 0)
            # The ports of a template have the numbers -1, -2, ... in their order.
            names = list(template.ports)
            at_ports = np.flatnonzero(local < 0)
            ports = [names[-1 - number] for number in local[at_ports].tolist()]
            for port in dict.fromkeys(ports):
                if port not in behind:
                    behind[port] = _behind_port(port, slots, stamped, is_task=is_task)
                of_slots = behind[port][rows]
                if np.any(of_slots == NO_SOURCE):
                    raise GraphError(f"port {port!r} is read by a slot that has no source for it")
                if np.any(of_slots < 0):
                    output = slots.sources[port][1]
                    raise GraphError(f"port {port!r} reads output {output!r} of a template without it")
            if ports:
                values[:, at_ports] = np.stack([behind[port][rows] for port in ports], axis=1)
            columns[name][start[begin[rows]][:, None] + np.arange(len(local))] = values
    return columns


def _behind_port(port: str, slots: Slots, stamped: Stamped, *, is_task: bool) -> Ints:
    """The tensor behind a port in every slot, or the task that writes it."""
    if port not in slots.sources:
        raise GraphError(f"port {port!r} has no source")
    source, output = slots.sources[port]
    local = [template.outputs.get(output, NO_OUTPUT) for template in stamped.templates]
    first = stamped.first_tensor
    if is_task:
        pairs = zip(stamped.templates, local, strict=True)
        local = [NO_OUTPUT if tensor < 0 else template.writer(tensor) for template, tensor in pairs]
        first = stamped.first_task
    of_template = np.array(local, dtype=np.int64)[slots.template[source]]
    values = np.where(of_template < 0, NO_OUTPUT, first[source] + of_template)
    return np.where(source < 0, NO_SOURCE, values)
