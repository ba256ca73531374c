"""A graph as a program: what its tasks read and write on every rank, and what makes it invalid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Literal, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.limits import present_limits
from perfsim.work import Task, TaskGraph, block_name
from perfsim.work.graph import Ragged

# Faults of an executed schedule: the task, the tensor and the reason.

FaultKind = Literal["hazard", "order", "value", "memory", "refused"]
"""hazard: two tasks access a buffer without a dependency. order: a task read what another task than the
intended one had written. value: numbers differ from serial training. memory: a rank holds more or fewer
micro-batches in flight than its schedule promises. refused: it cannot be executed."""


@dataclass(frozen=True)
class Fault:
    """One fault, with the task and the tensor that it concerns."""

    kind: FaultKind
    task: str
    tensor: str
    detail: str

    def __str__(self) -> str:
        return f"{self.task}: {self.tensor}: {self.detail}"


BROKEN = (KeyError, IndexError, ValueError, TypeError, AttributeError, ArithmeticError)
"""Errors of Python that an invalid graph causes; they become faults, never a traceback."""


class FaultError(Exception):
    """Ends an execution that cannot continue; carries the fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault

    @classmethod
    def of(cls, kind: FaultKind, task: str, tensor: str, detail: str, error: Exception) -> FaultError:
        """A fault from a Python error, which does not tell the task and the tensor itself."""
        name = f"{type(error).__name__}: " if isinstance(error, KeyError | IndexError) else ""
        return cls(Fault(kind, task, tensor, f"{detail}: {name}{error}"))


# A graph as a program: for each task the buffers that it reads and writes, and its computation.
#
# A *cell* is one buffer on every rank that a device of the graph stands for: a tensor handle, weights,
# gradients, optimizer states, a slot of gathered or streamed weights, or activations that a layer keeps.
# Programs are compiled in the order of ids, so each read knows the task that must have written its value.

SHARED = -1
"""The device of buffers that exist once for all ranks (MemoryX)."""
START = -1
"""The writer of initial values."""

Tensor = dict[str, Any]
"""A tensor of the graph: its arrays by name."""
UNPRICED = ("weights", "expert", "positions")
"""What of a tensor its message is not priced for: gradients of weights that are summed with it, the experts
of rows, and the positions of keys."""
Values = Sequence[Any]
Kernel = Callable[..., Sequence[Sequence[Any]]] | Callable[..., Sequence[Any]]
"""Of a rank alone from its offset and the values that it reads to those that it writes; of a collective from
all offsets and the values of each."""
Content = Literal[
    "activations", "statistics", "gradients", "parameters", "table", "exchanged", "shards", "rows", "norm"
]


class Message(NamedTuple):
    """The message of a communication, with its elements as nccl-tests count them."""

    content: Content
    sent: Literal["read", "made"]
    """Whether a rank's values are counted as it reads or as it writes them."""
    values: slice = slice(1)
    """Which of them."""
    blocks: tuple[int, ...] = ()
    """Blocks to which parameters or gradients belong."""
    times: int = 1
    """As often as it is counted."""

    def elements(self, read: Values, made: Values) -> int:
        """Elements of a rank's message."""
        total = 0
        for value in (read if self.sent == "read" else made)[self.values]:
            arrays = value if isinstance(value, dict) else {"": value}
            total += sum(int(array.size) for name, array in arrays.items() if name not in UNPRICED)
        return self.times * total


class Cell(NamedTuple):
    """One buffer: its device, its name, and the number of its block, tensor handle or slot."""

    device: int
    name: str
    number: int = 0

    def __str__(self) -> str:
        where = "MemoryX" if self.device == SHARED else f"device {self.device}"
        if self.name == "tensor":
            return f"tensor {self.number} on {where}"
        if self.name.startswith("slot"):
            return f"{self.name} {self.number} on {where}"
        return f"{self.name} of {block_name(self.number)} on {where}"


NORM = "squared norm of all gradients"
CLIPPED = "clipped"
"""In the name of a gradient that the optimizer uses."""


class Claim(NamedTuple):
    """A value that serial training has too: `quantity` of `number` in a micro-batch of a step."""

    quantity: str
    number: int
    step: int
    microbatch: int


@dataclass(frozen=True)
class Action:
    """The effect of one task on cells."""

    task: int
    reads: tuple[Cell, ...]
    writes: tuple[Cell, ...]
    kernel: Kernel
    joined: bool
    """All peers of a collective take part together; else each rank runs alone."""
    expects: tuple[int, ...]
    """The task that must have written each value read."""
    claims: tuple[tuple[int, Claim], ...] = ()
    """Positions of writes to compare with serial training."""
    message: Message | None = None
    """The message that it moves, if it moves one that is priced."""


@dataclass
class Program:
    """All actions of a graph, by task id."""

    graph: TaskGraph
    actions: list[Action] = field(default_factory=list)
    labels: dict[Cell, str] = field(default_factory=dict)
    """Names of tensors by their cell."""

    def name(self, task: int) -> str:
        """A task as messages print it: `mlp.backward[3] of layer 5 on gpu4/compute in step 2`."""
        if task == START:
            return "the start"
        return task_name(self.graph, self.graph.task(task))

    def tensor(self, cell: Cell) -> str:
        """A cell as messages print it."""
        label = self.labels.get(cell, "")
        return f"{label} ({cell})" if label else str(cell)


def task_name(graph: TaskGraph, task: Task) -> str:
    """A task with its micro-batch, block, stream and step."""
    step = 1 + sum(task.id >= end for end in graph.step_ends)
    return f"{task.name} of {block_name(task.block)} on {task.stream} in step {step}"


def summed(parts: Sequence[Floats]) -> Floats:
    """The sum of a reduction, in the order of the ranks."""
    return reduce(np.add, parts)


# Happens-before: any two tasks that access one buffer, at least one writing it, must be ordered.
#
# This depends on the graph alone, so a missing dependency is found whatever order a run takes. It is checked
# on the folded graph: a path there holds for every peer, and peers access each other's buffers only in
# collectives, which wait for all members.

Edge = tuple[int, int]
"""(task, task that it waits for)."""


def dependencies(graph: TaskGraph, without: Collection[Edge] = ()) -> Ragged:
    """Dependencies of each task; `without` some edges, to test whether their loss is detected."""
    deps = graph.dependencies
    if not without:
        return deps
    lost = set(without)
    rows = [[before for before in deps.row(task) if (task, before) not in lost] for task in range(len(graph))]
    return Ragged.of(rows)


class Precedence:
    """Whether a task always ends before another begins.

    Each task has a vector clock: its latest ancestor on each stream. Streams run in program order, so task u
    comes before v exactly if v's clock of u's stream has reached u [Mattern 1989].
    """

    def __init__(self, graph: TaskGraph, deps: Ragged) -> None:
        self.stream = graph.stream.tolist()
        ordered = graph.by_stream
        position = np.empty(len(graph), dtype=np.int64)
        position[ordered.values] = np.arange(len(graph)) - ordered.start[ordered.row_of_value]
        self.position = position.tolist()
        """Of each task on its stream."""
        clock = np.full((len(graph), len(graph.streams)), -1, dtype=np.int32)
        start = deps.start.tolist()
        values = deps.values.tolist()
        for task, stream in enumerate(self.stream):
            row = clock[task]
            for source in values[start[task] : start[task + 1]]:
                np.maximum(row, clock[source], out=row)
            row[stream] = self.position[task]
        self.clock = clock

    def before(self, first: int, second: int) -> bool:
        """Whether `first` ends before `second` begins, in every order that the graph allows."""
        return bool(self.clock[second, self.stream[first]] >= self.position[first]) and first != second


def random_order(deps: Ragged, rng: np.random.Generator) -> list[int]:
    """A random topological order: of all ready tasks, the one with the least of numbers drawn for them."""
    import networkx as nx

    drawn = rng.random(len(deps.start) - 1).tolist()
    waits: nx.DiGraph[int] = nx.DiGraph()
    waits.add_nodes_from(range(len(drawn)))
    waits.add_edges_from(zip(deps.values.tolist(), deps.row_of_value.tolist(), strict=True))
    return list(nx.lexicographical_topological_sort(waits, key=drawn.__getitem__))


CHECK_EVERY = 1_000
"""Tasks between two checks of the limits."""


def hazards(program: Program, precedence: Precedence) -> Iterator[Fault]:
    """Every pair of unordered tasks where one depends on what the other does to a buffer."""
    last_write: dict[Cell, int] = {}
    readers: dict[Cell, list[int]] = {}
    limits = present_limits()
    count = len(program.actions)
    for number, action in enumerate(program.actions):
        if number % CHECK_EVERY == 0:
            limits.in_time(partial("{:,} of {:,} tasks checked for hazards".format, number, count))
        task = action.task
        conflicts = [
            (cell, last_write[cell], "may read it before {} has written it")
            for cell in action.reads
            if cell in last_write
        ]
        overwritten = dict.fromkeys(action.writes)
        for cell in overwritten:
            conflicts += [
                (cell, reader, "may overwrite it before {} has read it") for reader in readers.pop(cell, ())
            ]
            if cell in last_write:
                conflicts.append((cell, last_write[cell], "may write it before {} has"))
            # Earlier writers precede this task, so later ones need to wait only for this one.
            last_write[cell] = task
        for cell, earlier, detail in conflicts:
            if not precedence.before(earlier, task):
                said = detail.format(program.name(earlier))
                yield Fault("hazard", program.name(task), program.tensor(cell), said)
        for cell in action.reads:
            if cell not in overwritten:
                readers.setdefault(cell, []).append(task)
