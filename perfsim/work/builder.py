"""Builds a task graph: one task at a time, or from templates stamped many times.

`GraphBuilder.task` appends one task. A `Template` records a sequence of tasks once (such as the forward of
one pipeline stage), with ports for its external inputs; `GraphBuilder.stamp` writes it for all
micro-batches at once with NumPy. Both give the same columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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


class _Columns:
    """Growing columns; handles and ids are local to the owner."""

    def __init__(self) -> None:
        self.work: list[int] = []
        self.stream: list[int] = []
        self.tag: list[int] = []
        self.block: list[int] = []
        self.reads: list[int] = []
        self.num_reads: list[int] = []
        self.after: list[int] = []
        self.num_after: list[int] = []
        self.num_writes: list[int] = []
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
        handles = _Handles(len(self.work), self.num_tensors)
        self.work.append(work)
        self.stream.append(stream)
        self.tag.append(tag)
        self.block.append(block)
        self.reads.extend(reads)
        self.num_reads.append(len(reads))
        self.after.extend(after)
        self.num_after.append(len(after))
        self.num_writes.append(writes)
        self.num_tensors += writes
        self.tensor_ends.append(self.num_tensors)
        return handles


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
        """Record one task; `reads` are ports or tensors of this template.

        `after` holds task ids of this template, or ports, which stand for the writers of their tensors.
        `block` is the part of the model whose weights the task uses.
        """
        return self.columns.append(
            self.builder.work_id(work),
            self.builder.stream_id(stream),
            -1,
            block,
            reads,
            after,
            len(work.writes),
        )

    def writer(self, tensor: int) -> int:
        """The task of this template that writes one of its tensors."""
        return bisect_right(self.columns.tensor_ends, tensor)

    def output(self, name: str, tensor: int) -> None:
        """Let other slots read `tensor` under this name."""
        self.outputs[name] = tensor

    def __len__(self) -> int:
        return len(self.columns.work)


class Slots(NamedTuple):
    """Slots in emission order, each with its template, its tag and the sources of its ports.

    `sources[name]` is the slot that writes the tensor, for every slot (-1: the slot does not read that
    port), and the name of the output in that slot's template.
    """

    template: Ints
    tag: Ints
    sources: dict[str, tuple[Ints, str]]


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
        local = self._columns.append(
            self.work_id(work), self.stream_id(stream), tag, block, reads, after, len(work.writes)
        )
        return _Handles(self._num_tasks + local.id, self._num_tensors + local.tensor)

    def end_step(self, num_tasks: int | None = None) -> None:
        """Mark the end of one optimizer step: here, or after the first `num_tasks` tasks."""
        here = self._num_tasks + len(self._columns.work)
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
        chunk = _StampedChunk(templates, slots, stamped, self._num_tasks, int(first_task[-1]))
        self._chunks.append(chunk.columns())
        self._num_tasks, self._num_tensors = int(first_task[-1]), int(first_tensor[-1])
        return stamped

    def _flush(self) -> None:
        """Move single tasks into a chunk of arrays."""
        columns = self._columns
        if not columns.work:
            return
        self._chunks.append(
            {
                name: np.array(getattr(columns, name), dtype=np.int64)
                for name in (
                    "work",
                    "stream",
                    "tag",
                    "block",
                    "reads",
                    "num_reads",
                    "after",
                    "num_after",
                    "num_writes",
                )
            }
        )
        self._num_tasks += len(columns.work)
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


@dataclass
class _StampedChunk:
    """The columns of all slots of one `stamp` call."""

    templates: Sequence[Template]
    slots: Slots
    stamped: Stamped
    first_id: int
    end_id: int
    _behind: dict[tuple[str, bool], tuple[Ints, str]] = field(default_factory=dict, init=False)

    def columns(self) -> dict[str, Ints]:
        count = self.end_id - self.first_id
        single = ("work", "stream", "block", "num_reads", "num_after", "num_writes")
        columns = {name: np.empty(count, dtype=np.int64) for name in (*single, "tag")}
        used = [
            (number, np.flatnonzero(self.slots.template == number)) for number in range(len(self.templates))
        ]
        for number, rows in used:  # per template, all its slots at once
            template = self.templates[number].columns
            where = self._positions(rows, len(template.work))
            for name in single:
                columns[name][where] = np.array(getattr(template, name), dtype=np.int64)
            columns["tag"][where] = self.slots.tag[rows][:, None]
        for name, lengths in (("reads", "num_reads"), ("after", "num_after")):
            columns[name] = self._ragged(name, columns[lengths], used)
        return columns

    def _positions(self, rows: Ints, length: int) -> Ints:
        """Column index of each (slot, task of the template)."""
        return (self.stamped.first_task[rows] - self.first_id)[:, None] + np.arange(length)

    def _ragged(self, name: str, lengths: Ints, used: Iterable[tuple[int, Ints]]) -> Ints:
        start = offsets(lengths)
        values = np.empty(int(start[-1]), dtype=np.int64)
        for number, rows in used:
            template = self.templates[number]
            local = np.array(getattr(template.columns, name), dtype=np.int64)
            if not len(local) or not len(rows):
                continue
            where = start[self.stamped.first_task[rows] - self.first_id][:, None] + np.arange(len(local))
            values[where] = self._resolved(template, rows, local, tasks=name == "after")
        return values

    def _resolved(self, template: Template, rows: Ints, local: Ints, *, tasks: bool) -> Ints:
        """Handles (or task ids) in the graph for those local to the template, one row per slot."""
        first = self.stamped.first_task if tasks else self.stamped.first_tensor
        resolved = first[rows][:, None] + np.maximum(local, 0)
        outside = np.flatnonzero(local < 0)
        names = list(template.ports)
        for number in sorted(set(local[outside].tolist()), reverse=True):  # port i has the number -1 - i
            columns = outside[local[outside] == number]
            resolved[:, columns] = self._port(names[-1 - number], rows, tasks=tasks)[:, None]
        return resolved

    def _port(self, name: str, rows: Ints, *, tasks: bool) -> Ints:
        """The tensor behind a port in each slot, or the task that writes it."""
        if (name, tasks) not in self._behind:
            self._behind[name, tasks] = self._sources(name, tasks=tasks)
        values, output = self._behind[name, tasks]
        own = values[rows]
        if np.any(own == NO_SOURCE):
            raise GraphError(f"port {name!r} is read by a slot that has no source for it")
        if np.any(own < 0):
            raise GraphError(f"port {name!r} reads output {output!r} of a template without it")
        return own

    def _sources(self, name: str, *, tasks: bool) -> tuple[Ints, str]:
        """What is behind a port in every slot, and the name of the output that it reads."""
        if name not in self.slots.sources:
            raise GraphError(f"port {name!r} has no source")
        source, output = self.slots.sources[name]
        tensors = [template.outputs.get(output, -1) for template in self.templates]
        local = np.array(tensors, dtype=np.int64)
        first = self.stamped.first_tensor
        numbers = local
        if tasks:
            pairs = zip(self.templates, tensors, strict=True)
            numbers = np.array([template.writer(tensor) for template, tensor in pairs], dtype=np.int64)
            first = self.stamped.first_task
        of_template = np.where(local < 0, NO_OUTPUT, numbers)[self.slots.template[source]]
        values = np.where(of_template < 0, NO_OUTPUT, first[source] + of_template)
        return np.where(source < 0, NO_SOURCE, values), output
