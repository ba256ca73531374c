"""Builds a task graph: one task at a time, or from templates stamped many times.

`GraphBuilder.task` appends one task. A `Template` records a sequence of tasks once (such as the forward of
one pipeline stage), with ports for its external inputs; `GraphBuilder.stamp` writes it for all
micro-batches at once with NumPy. Both give the same columns.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, zip_longest
from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Ids, Ints
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


class _Tasks:
    """Tasks in the order in which they are added, as growing columns."""

    def __init__(self, work_ids: dict[Work, int], stream_ids: dict[str, int]) -> None:
        self.work_ids = work_ids
        """Ids of the classes of work of a graph, in their order; and of its streams."""
        self.stream_ids = stream_ids
        self.first_task = 0
        """The id of the first of `rows`, and the handle of the first tensor that they write."""
        self.first_tensor = 0
        self.rows: list[tuple[int, ...]] = []
        """What `_ROW` names of each task."""
        self.reads: list[int] = []
        self.after: list[int] = []
        self.tensor_ends: list[int] = []
        """Number of tensors written up to and including each task."""
        self.num_tensors = 0

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
        """Add one task; returns its id and the handle of the first tensor that it writes.

        `reads` are tensors and `after` tasks that come before it; in a template ports also, which in `after`
        stand for the writers of their tensors. `tag` and `block` are as in `TaskGraph`.
        """
        handles = _Handles(self.first_task + len(self.rows), self.first_tensor + self.num_tensors)
        work_id = self.work_ids.setdefault(work, len(self.work_ids))
        stream_id = self.stream_ids.setdefault(stream, len(self.stream_ids))
        self.rows.append((work_id, stream_id, block, len(reads), len(after), len(work.writes), tag))
        self.reads.extend(reads)
        self.after.extend(after)
        self.num_tensors += len(work.writes)
        self.tensor_ends.append(self.num_tensors)
        return handles

    def arrays(self) -> dict[str, Ids]:
        columns = dict(zip(_ROW, np.array(self.rows, dtype=np.int32).reshape(-1, len(_ROW)).T, strict=True))
        lists = {"reads": self.reads, "after": self.after}
        return columns | {name: np.array(values, dtype=np.int32) for name, values in lists.items()}


class Template(_Tasks):
    """A recorded sequence of tasks; `ports` are its external inputs, `outputs` its named results."""

    def __init__(self, work_ids: dict[Work, int], stream_ids: dict[str, int]) -> None:
        super().__init__(work_ids, stream_ids)
        self.ports: dict[str, Port] = {}
        self.outputs: dict[str, int] = {}

    def port(self, name: str) -> Port:
        """The external input of this name."""
        return self.ports.setdefault(name, Port(-1 - len(self.ports)))

    def writer(self, tensor: int) -> int:
        """The task of this template that writes one of its tensors."""
        return bisect_right(self.tensor_ends, tensor)

    def output(self, name: str, tensor: int) -> None:
        """Let other slots read `tensor` under this name."""
        self.outputs[name] = tensor

    def __len__(self) -> int:
        return len(self.rows)


class InBlock(NamedTuple):
    """Writes the tasks of one block into a template."""

    template: Template
    block: int = WHOLE_DEVICE

    def task(self, work: Work, stream: str, reads: Sequence[int], after: Sequence[int] = ()) -> int:
        """Add a task of the block; returns the handle of the first tensor that it writes."""
        return self.template.task(work, stream, reads, after, block=self.block).tensor


class Slots(NamedTuple):
    """Slots in emission order, each with its template, its tag and the sources of its ports.

    `sources[name]` is the slot that writes the tensor, for every slot (-1: the slot does not read that
    port), and the name of the output in that slot's template.
    """

    template: Ints
    tag: Ints
    sources: dict[str, tuple[Ints, str]]
    later: Ints | None = None
    """How many layers after the template's layers each slot's layers are; None: they are the same."""


class Stamped(NamedTuple):
    """Result of stamping: first task id and first tensor handle of each slot."""

    templates: Sequence[Template]
    template: Ints
    first_task: Ints
    first_tensor: Ints
    moved: Ints | None = None
    """The new handle of each tensor from the first on, where joined slots moved them; None: none moved."""

    def tensor(self, slot: int, output: str) -> int:
        """Handle of a named output of one slot; GraphError if its template has no such output."""
        outputs = self.templates[int(self.template[slot])].outputs
        if output not in outputs:
            names = ", ".join(outputs) or "nothing"
            raise GraphError(f"slot {slot} writes no output {output!r}; its template writes {names}")
        handle = int(self.first_tensor[slot]) + outputs[output]
        return handle if self.moved is None else int(self.moved[handle - self.first_tensor[0]])


class GraphBuilder(_Tasks):
    """Builds one graph; `build` returns it."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self._chunks: list[dict[str, Ids]] = []
        """Columns of all tasks before `rows`."""
        self._step_ends: list[int] = []
        self._width = 1
        self._finished: TaskGraph | None = None

    def end_step(self, num_tasks: int | None = None) -> None:
        """Mark the end of one optimizer step: here, or after the first `num_tasks` tasks."""
        here = self.first_task + len(self.rows)
        self._step_ends.append(here if num_tasks is None else num_tasks)

    def fold(self, width: int) -> None:
        """Declare that each device of the graph stands for `width` ranks that do the same work."""
        self._width = width

    def template(self) -> Template:
        return Template(self.work_ids, self.stream_ids)

    def stamp(
        self, templates: Sequence[Template], slots: Slots, joined: Sequence[int] = (), closes: str = ""
    ) -> Stamped:
        """Append the template of every slot, in the order of the slots.

        A slot of `joined` and the slot after it are written in turns, which works of category `closes` end.
        """
        self._flush()
        lengths = np.array([len(template) for template in templates], dtype=np.int64)
        tensors = np.array([template.num_tensors for template in templates], dtype=np.int64)
        first_task = self.first_task + offsets(lengths[slots.template])
        first_tensor = self.first_tensor + offsets(tensors[slots.template])
        stamped = Stamped(templates, slots.template, first_task[:-1], first_tensor[:-1])
        count = int(first_task[-1]) - self.first_task
        columns = _stamped_columns(slots, stamped, count)
        if joined:
            ends = [work.category == closes for work in self.work_ids]
            order = _in_turns(stamped, np.array(joined), ends, count)
            columns, moved = _reordered(columns, order, self.first_task, self.first_tensor)
            stamped = stamped._replace(moved=moved)
        self._chunks.append(columns)
        self.first_task, self.first_tensor = int(first_task[-1]), int(first_tensor[-1])
        return stamped

    def take(self, graph: TaskGraph) -> None:
        """Have a graph that is finished already, in place of one that is written task by task."""
        self._finished = graph

    def _flush(self) -> None:
        """Move single tasks into a chunk of arrays."""
        if not self.rows:
            return
        self._chunks.append(self.arrays())
        self.first_task += len(self.rows)
        self.first_tensor += self.num_tensors
        self.num_tensors = 0
        for column in (self.rows, self.reads, self.after, self.tensor_ends):
            column.clear()

    def build(self) -> TaskGraph:
        if self._finished is not None:
            return self._finished
        self._flush()
        if not self.first_task:
            raise GraphError("the graph has no task")
        if not self._step_ends or self._step_ends[-1] != self.first_task:
            self.end_step()

        def column(name: str) -> Ids:
            return np.concatenate([chunk[name] for chunk in self._chunks])

        return TaskGraph(
            works=tuple(self.work_ids),
            streams=tuple(self.stream_ids),
            work=column("work"),
            stream=column("stream"),
            tag=column("tag"),
            block=column("block").astype(np.int16),
            reads=Ragged(offsets(column("num_reads")).astype(np.int32), column("reads")),
            after=Ragged(offsets(column("num_after")).astype(np.int32), column("after")),
            first_write=offsets(column("num_writes")).astype(np.int32),
            step_ends=tuple(self._step_ends),
            stands_for=tuple(1 if rank_of(name) is None else self._width for name in self.stream_ids),
        )


def _stamped_columns(slots: Slots, stamped: Stamped, count: int) -> dict[str, Ids]:
    """The columns of the `count` tasks of all slots."""
    templates = stamped.templates
    recorded = [template.arrays() for template in templates]
    rows_of = [np.flatnonzero(slots.template == number) for number in range(len(templates))]
    begin = stamped.first_task - (stamped.first_task[0] if len(stamped.first_task) else 0)
    columns = {name: np.empty(count, dtype=np.int32) for name in _ROW}
    for template, of, rows in zip(templates, recorded, rows_of, strict=True):
        where = begin[rows][:, None] + np.arange(len(template))
        for name in _SINGLE:
            columns[name][where] = of[name]
        if slots.later is not None:
            columns["block"][where] += np.where(of["block"] >= 0, slots.later[rows][:, None], 0)
        columns["tag"][where] = slots.tag[rows][:, None]
    for name, lengths in (("reads", "num_reads"), ("after", "num_after")):
        is_task = name == "after"
        first = (stamped.first_task if is_task else stamped.first_tensor).astype(np.int32)
        start = offsets(columns[lengths])
        columns[name] = np.empty(int(start[-1]), dtype=np.int32)
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
            for port in ports:
                if port not in behind:
                    behind[port] = _behind_port(port, slots, stamped, is_task=is_task)
            if ports:
                found = np.stack([behind[port] for port in ports], axis=1)[rows]
                if found.min() < 0:
                    row, place = np.argwhere(found < 0)[0]
                    said = "is read by a slot that has no source for it"
                    if found[row, place] == NO_OUTPUT:
                        output = slots.sources[ports[place]][1]
                        said = f"reads output {output!r} of a template without it"
                    raise GraphError(f"port {ports[place]!r} {said}")
                values[:, at_ports] = found
            columns[name][start[begin[rows]][:, None] + np.arange(len(local))] = values
    return columns


def _in_turns(stamped: Stamped, joined: Ints, ends: Sequence[bool], count: int) -> Ints:
    """The order of `count` tasks. Joined slots take turns; the second slot begins if it has several turns."""
    order = np.arange(count)
    pairs = np.stack([stamped.template[joined], stamped.template[joined + 1]])
    for pair in np.unique(pairs, axis=1).T:
        first, second = (stamped.templates[number] for number in pair)
        turns = [[*_turns(first, ends, 0)], [*_turns(second, ends, len(first))]]
        if len(turns[1]) > 1:
            turns.reverse()
        local = [*chain.from_iterable(chain.from_iterable(zip_longest(*turns, fillvalue=())))]
        begin = stamped.first_task[joined[(pairs == pair[:, None]).all(axis=0)]] - stamped.first_task[0]
        order[begin[:, None] + np.arange(len(local))] = begin[:, None] + np.array(local)
    return order


def _turns(template: Template, ends: Sequence[bool], first: int) -> Iterator[list[int]]:
    """The tasks of a template in turns, numbered from `first`; a turn ends behind works that `ends` says."""
    ended = [ends[row[_ROW.index("work")]] for row in template.rows]
    turn: list[int] = []
    for number, (here, after) in enumerate(pairwise([*ended, False]), first):
        turn.append(number)
        if here and not after:
            yield turn
            turn = []
    yield turn


def _reordered(
    columns: dict[str, Ids], order: Ints, first_task: int, first_tensor: int
) -> tuple[dict[str, Ids], Ints]:
    """Tasks in another order, and the handles of their tensors; both are numbered from the first."""
    writes = columns["num_writes"]
    new_task = np.empty_like(order)
    new_task[order] = np.arange(len(order))
    shift = offsets(writes[order])[:-1][new_task] - offsets(writes)[:-1]
    new_tensor = np.arange(writes.sum()) + np.repeat(shift, writes)
    moved = {name: columns[name][order] for name in _ROW}
    for name, new, first in (("reads", new_tensor, first_tensor), ("after", new_task, first_task)):
        values = columns[name]
        own = values >= first
        values[own] = new[values[own] - first] + first
        starts = offsets(columns[f"num_{name}"])
        moved[name] = Ragged(starts.astype(np.int32), values).rows(order).values
    return moved, new_tensor + first_tensor


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
