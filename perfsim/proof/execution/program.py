"""A graph as a program: for each task the buffers that it reads and writes, and what it computes.

A *cell* is one buffer on every rank that a written device stands for; a tensor handle is a cell, and so
are weights, gradients, optimizer states, gathered or streamed weights in their slots, and what a layer
keeps. Programs are compiled in the order of ids, so each read knows the task whose value it must find.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import Task, TaskGraph, block_name
from perfsim.graph.symmetry import rank_of, width_of
from perfsim.proof.execution.faults import BROKEN, Fault, FaultError, failure

SHARED = -1
"""The place of what is there once for all ranks (MemoryX)."""
START = -1
"""The writer of what is there before the first task."""

Values = list[Any]
Kernel = Callable[[Sequence[int], list[Values]], list[tuple[Any, ...]]]
"""From the ranks that take part (offsets from the written one) and what each reads to what each writes."""


class Message(NamedTuple):
    """What a communication moves: the elements of a whole message, as nccl-tests count them."""

    what: Literal["activations", "statistics", "gradients", "parameters", "table", "kept"]
    of: Callable[[Values, tuple[Any, ...]], int]
    """From what a rank reads and what it writes."""
    blocks: tuple[int, ...] = ()
    """Whose parameters or gradients they are."""


class Cell(NamedTuple):
    """One buffer: the device that holds it, what it is, and of which block (or a handle, or a slot)."""

    place: int
    name: str
    number: int = 0

    def __str__(self) -> str:
        where = "MemoryX" if self.place == SHARED else f"device {self.place}"
        if self.name == "tensor":
            return f"tensor {self.number} on {where}"
        if self.name.startswith("slot"):
            return f"{self.name} {self.number} on {where}"
        return f"{self.name} of {block_name(self.number)} on {where}"


class Claim(NamedTuple):
    """What serial training must have found as well: `what` of `number` in a micro-batch of a step."""

    what: str
    number: int
    step: int
    microbatch: int


@dataclass(frozen=True)
class Action:
    """What one task does to cells."""

    task: int
    reads: tuple[Cell, ...]
    writes: tuple[Cell, ...]
    kernel: Kernel
    joined: bool
    """All peers that meet take part at once; else each rank on its own."""
    expects: tuple[int, ...]
    """The task that wrote what each read must find."""
    claims: tuple[tuple[int, Claim], ...] = ()
    """Which of its writes can be held against serial training."""
    message: Message | None = None
    """What it moves; None: nothing, or nothing that is counted."""


@dataclass
class Program:
    """All actions of a graph, by task id."""

    graph: TaskGraph
    actions: list[Action] = field(default_factory=list)
    labels: dict[Cell, str] = field(default_factory=dict)
    """What tensor handles hold, in words."""

    @property
    def width(self) -> int:
        return width_of(self.graph)

    def name(self, task: int) -> str:
        """A task as a person reads it: `mlp.backward[3] of layer 5 on gpu4/compute in step 2`."""
        if task == START:
            return "the start"
        return task_name(self.graph, self.graph.task(task))

    def tensor(self, cell: Cell) -> str:
        """A cell as a person reads it."""
        label = self.labels.get(cell, "")
        return f"{label} ({cell})" if label else str(cell)


def task_name(graph: TaskGraph, task: Task) -> str:
    """A task with its micro-batch, block, stream and step."""
    step = 1 + sum(task.id >= end for end in graph.step_ends)
    return f"{task.name} of {block_name(task.block)} on {task.stream} in step {step}"


class Compiler:
    """Compiles one task after another; subclasses know the operations."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.program = Program(graph)
        self.last_writer: dict[Cell, int] = {}
        self.handles: dict[int, tuple[Cell, ...]] = {}
        """The cells of a tensor handle: one, or one on each of two devices."""
        self.task: Task
        self.step = 0

    def compile(self) -> Program:
        """Compile every task in the order of ids."""
        for task in self.graph.tasks():
            self.task = task
            while self.step < len(self.graph.step_ends) and task.id >= self.graph.step_ends[self.step]:
                self.step += 1
            try:
                self.translate(task)
            except BROKEN as error:
                name = task_name(self.graph, task)
                raise failure("refused", name, self._touched(task), "cannot be executed", error) from None
        return self.program

    def _touched(self, task: Task) -> str:
        """What a task reads, or else writes, in words."""
        cells = [cell for handle in task.reads for cell in self.handles.get(handle, ())]
        names = [self.program.tensor(cell) for cell in cells] or [each.name for each in task.work.writes]
        return ", ".join(names[:2]) or "its operands"

    def translate(self, task: Task) -> None:
        """Add the action of one task."""
        raise NotImplementedError

    def rows(self, rank: int, microbatch: int) -> NDArray[np.int64]:
        """The samples of the batch that a rank has in a micro-batch."""
        raise NotImplementedError

    def initial(self, cell: Cell, rank: int) -> Any:
        """What a buffer holds before the first task; KeyError where nothing is there."""
        raise NotImplementedError

    @property
    def place(self) -> int:
        """The device of the present task."""
        rank = rank_of(self.task.stream)
        return SHARED if rank is None else rank

    def refuse(self, tensor: str, detail: str) -> FaultError:
        """The present task cannot be executed."""
        return FaultError(Fault("refused", task_name(self.graph, self.task), tensor, detail))

    def operand(self, handle: int, *, anywhere: bool = False) -> Cell:
        """The cell of a tensor that the present task reads; it must be on the task's own device."""
        cells = self.handles.get(handle, ())
        for cell in cells:
            if cell.place in (self.place, SHARED) or self.place == SHARED or anywhere:
                return cell
        raise self.refuse(f"tensor {handle}", "it is not on this device: nothing sent it here")

    def handle(self, position: int = 0, *places: int, label: str = "") -> list[Cell]:
        """The cells of a tensor that the present task writes; on its own device where none is given."""
        number = self.task.writes[position]
        cells = [Cell(place, "tensor", number) for place in (places or (self.place,))]
        self.handles[number] = tuple(cells)
        for cell in cells:
            self.program.labels[cell] = label or self.task.work.writes[position].name
        return cells

    def add(
        self,
        reads: Sequence[Cell],
        writes: Sequence[Cell],
        kernel: Kernel,
        *,
        joined: bool = False,
        claims: Sequence[tuple[int, Claim]] = (),
        message: Message | None = None,
    ) -> None:
        """Append the action of the present task."""
        expects = tuple(self.last_writer.get(cell, START) for cell in reads)
        for cell in writes:
            self.last_writer[cell] = self.task.id
        action = Action(
            self.task.id, tuple(reads), tuple(writes), kernel, joined, expects, tuple(claims), message
        )
        self.program.actions.append(action)


def first_read(own: Values, _: tuple[Any, ...]) -> int:
    """A message that is the first thing read: what a reduction sums."""
    return int(own[0].size)


def first_made(_: Values, made: tuple[Any, ...]) -> int:
    """A message that is the first thing written: what a gather, or a send, leaves."""
    return int(made[0].size)


def each(function: Callable[..., tuple[Any, ...]]) -> Kernel:
    """A kernel that every rank runs on its own: `function(rank, *values)`."""
    return lambda members, values: [function(rank, *own) for rank, own in zip(members, values, strict=True)]
