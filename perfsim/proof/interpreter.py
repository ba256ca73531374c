"""Interprets an emitted graph: what its tasks do to buffers, on GPUs and on wafers to which weights stream.

Gradients of weights that every tensor peer holds whole are sums over the peers: they travel with a gradient
of activations to its collective, which sums both. All-reduces of one number sum the norm of all gradients;
without them an optimizer knows only its own rank's gradients. With offload the host has weights, moments and
the sum of the gradients that left the device. A copy of gradients clears those on the device; a copy of
weights overwrites them there. MemoryX has the weights and moments of layers that stream; wafers have slots
for weights, and their gradients are tensors. Flash, spilled activations and prefetched samples have their own
buffers, so a copy moves the value that is there when it runs.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from operator import not_
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.costs.gpu import UPDATES
from perfsim.proof.compute import COMPUTE, LATER_WORDS, OF_ROUTER, Frame, OnRank, Operation
from perfsim.proof.exchange import EXCHANGES
from perfsim.proof.operations import OPERATORS, Block, merged_statistics
from perfsim.proof.parameters import WORDS, Place, Weights
from perfsim.proof.program import (
    BROKEN,
    CLIPPED,
    NORM,
    SHARED,
    START,
    Action,
    Cell,
    Claim,
    Content,
    Fault,
    FaultError,
    Kernel,
    Message,
    Program,
    Tensor,
    Values,
    summed,
    task_name,
)
from perfsim.proof.ranks import SEQUENCE, Ranks
from perfsim.proof.serial import Moments, SmallTraining, adam, clipping
from perfsim.specs.layout import StreamingLayout
from perfsim.strategies import Plan
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, LOCAL_NORM, SHARDED
from perfsim.strategies.three_d.offload import ACTIVATIONS
from perfsim.work import (
    EMBEDDING,
    EMBEDDING_AND_HEAD,
    HEAD,
    WAIT_OF_EXPERTS,
    WHOLE_DEVICE,
    Kind,
    Task,
    TaskGraph,
)
from perfsim.work.graph import rank_of
from perfsim.work.tensors import EXPERTS

HIDDEN = 2
"""The axis along which tensor ranks cut what a pipeline sends."""
ENDS = (EMBEDDING, HEAD)
FRAME = "activations"
HOST_WEIGHTS = "host weights"
HOST_GRADIENT = "host gradient"
WEIGHTS = ("weights", "weight shard", HOST_WEIGHTS, "weights in flash")
GRADIENTS = ("gradient", "gradient shard", HOST_GRADIENT)
MOMENTS = ("moments", "moments in flash")
"""Names of buffers that have an initial value."""


class _Target(NamedTuple):
    """The gradient of a block that a task adds to: what was there before, if anything, and the sum."""

    block: int
    before: Cell | None
    after: Cell | None
    """None: the second tensor that the task writes."""


class _Partial(NamedTuple):
    """A tensor that is the sum or the union of what tensor peers have: the claim about the whole."""

    claim: Claim | None = None
    carries: int | None = None
    """The block whose gradients are summed with it."""
    later: bool = False
    """Whether a task of its own adds them to the block's, not the collective."""
    of_words: bool = False
    """Whether it has the statistics of a softmax over words."""
    axis: int | None = None
    """The axis along which it is split, if it is."""


class _Update(NamedTuple):
    """The update of a block on one device: whether of a shard, its gradient, its weights and moments."""

    block: int
    shard: bool
    gradient: Cell
    states: tuple[Cell, Cell]


class Interpreter:
    """Interprets a graph task by task in the order of ids, as a program."""

    def __init__(self, graph: TaskGraph, training: SmallTraining, plan: Plan) -> None:
        self.graph = graph
        self.training = training
        self.ranks = ranks = Ranks(training, plan)
        layout = self.layout = ranks.layout
        self.program = Program(graph)
        self.task: Task
        self.device: int
        """The device of the present task."""
        self.step: int
        self.homes: dict[int, dict[int, None]] = defaultdict(dict)
        """Blocks of each device, in the order of their forwards."""
        self.modes: dict[int, str] = {}
        """How layers are computed again."""
        self.leaving: set[int] = set()
        """Tensors that leave their device for a while."""
        self.slots_of: dict[str, int] = {}
        """Buffers with a name that are used in turn on a device, where they are not two."""
        self.forgets = False
        """Whether wafers keep only inputs of layers, which run again."""
        if isinstance(plan.layout, StreamingLayout):
            system: Any = plan.topology.system
            self.forgets = plan.layout.recompute_layers > 0
            most = 2 * (training.model.num_layers + 2) - 1
            self.slots_of = {
                "slot of weights": 1 + min(system.streaming.prefetch_depth, most),
                "slot of samples": system.activation_servers.prefetch,
            }
        self.spilled_whole = ranks.streams and not self.forgets
        """Whether all activations of a layer leave a wafer, not its input."""
        stack = ranks.runtime.stack
        by_operator = layout.recompute == "selective" and stack is not None and stack.selective != "core"
        for task in graph.tasks():
            if task.work.op.endswith(".forward"):
                block = task.block + (EXPERTS if task.work.op == "experts.forward" else 0)
                self.homes[rank_of(task.stream) or 0][block] = None
            elif task.work.category == "recompute":
                self.modes[task.block] = OPERATORS if by_operator else layout.recompute
            elif task.work.kind is Kind.MEM_STORE and self._moves_activations(task):
                self.leaving.add(task.reads[0])
        self.last_writer: dict[Cell, int] = {}
        self.handles: dict[int, tuple[Cell, ...]] = {}
        """The cells of a tensor handle: one, or one per device for a send."""
        self.turns: dict[tuple[int, str], int] = {}
        """Buffers with a name that were used so far on each device."""
        self.slots: dict[Cell, Cell] = {}
        """Where gathered weights, copied shards, gradients in buckets or of streamed blocks are now."""
        self.partial: dict[int, _Partial] = {}
        self.pending: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        """Blocks of each device whose gradients wait for a reduction, with step and micro-batch of these."""
        self.reductions: dict[int, dict[int, Cell]] = {}
        """Where every reduction leaves the gradients of its blocks, by the tensor that it writes."""
        self.on_host: set[Cell] = set()
        """Gradients that left their device."""
        for task in graph.tasks():
            self.task = task
            rank = rank_of(task.stream)
            self.device = SHARED if rank is None else rank
            self.step = bisect_right(graph.step_ends, task.id)
            self._interpret()

    def _interpret(self) -> None:
        """Add what the present task does; an unknown operation is refused by name."""
        task = self.task
        computes = task.work.kind is Kind.COMP
        key = task.work.op if computes else f"{task.work.category}: {task.work.op}"
        if task.work.name in (WAIT_OF_EXPERTS, ACTIVATIONS):
            key = "wait"
        elif not computes and task.work.name == LOCAL_NORM.name:
            key = LOCAL_NORM.op
        try:
            if key in COMPUTE:
                self.compute(COMPUTE[key])
            elif key in OPERATIONS:
                OPERATIONS[key](self, task)
            else:
                known = ", ".join([*COMPUTE, *OPERATIONS])
                detail = f"the executor knows no operation {key!r}; known: {known}"
                raise self.refuse("its operation", detail)
        except BROKEN as error:
            cells = [cell for handle in task.reads for cell in self.handles.get(handle, ())]
            names = [self.program.tensor(cell) for cell in cells]
            names = names or [tensor.name for tensor in task.work.writes] or ["its operands"]
            tensors = ", ".join(names[:2])
            named = task_name(self.graph, task)
            raise FaultError.of("refused", named, tensors, "cannot be executed", error) from None

    def refuse(self, tensor: str, detail: str) -> FaultError:
        """The error that the present task cannot be executed."""
        return FaultError(Fault("refused", task_name(self.graph, self.task), tensor, detail))

    def cell(self, name: str, block: int) -> Cell:
        """A buffer of the present task's device, or the slot that has its content."""
        cell = Cell(self.device, name, block)
        return self.slots.get(cell, cell)

    def in_turn(self, name: str, parts: int = 1) -> list[Cell]:
        """The next of a device's buffers that are used in turn, in its parts."""
        number = self.turns.get((self.device, name), 0)
        self.turns[self.device, name] = number + 1
        first = number % self.slots_of.get(name, 2) * parts
        return [Cell(self.device, name, first + part) for part in range(parts)]

    def handle(self, position: int, *devices: int) -> list[Cell]:
        """The cells of a tensor that the present task writes, by default on its own device.

        Samples, and activations that leave their device and return, are in buffers that are used in turn.
        """
        task = self.task
        number = task.writes[position]
        if number in self.leaving:
            cells = self.in_turn("slot of leaving activations")
        elif task.work.op == "samples":
            cells = self.in_turn("slot of samples")
        elif task.work.kind is Kind.MEM_LOAD and self._moves_activations(task):
            cells = self.in_turn("slot of returned activations")
        else:
            cells = [Cell(device, "tensor", number) for device in (devices or (self.device,))]
        self.handles[number] = tuple(cells)
        for cell in cells:
            self.program.labels[cell] = task.work.writes[position].name
        return cells

    def _moves_activations(self, task: Task) -> bool:
        """Whether a copy takes a tensor of activations off its device, or back."""
        return task.work.name == ACTIVATIONS or (task.work.category == "spill" and not self.spilled_whole)

    def read_as(self, name: str) -> list[int]:
        """The positions of tensors with a name among those that the present task reads."""
        cells = [self.handles.get(handle, (None,))[0] for handle in self.task.reads]
        return [position for position, cell in enumerate(cells) if cell and self.program.labels[cell] == name]

    def blocks_of(self, task: Task, count: int = 1) -> list[int]:
        """The blocks of this device that a task is about: `count` layers, embedding and LM head, or all.

        A copy for embedding or LM head is for both. Work for experts is about the experts of the layers.
        """
        here = self.homes[self.device]
        blocks: Iterable[int] = range(task.block, task.block + count)
        if task.block == WHOLE_DEVICE:
            blocks = here
        elif task.block == EMBEDDING_AND_HEAD or (task.block, task.work.category) == (EMBEDDING, "offload"):
            blocks = ENDS
        if task.work.experts:
            return [EXPERTS + block for block in blocks if EXPERTS + block in here]
        return [block for block in blocks if block in here and block < EXPERTS]

    def frame(self) -> Cell:
        """What tasks of the present micro-batch leave to one another; a wafer spills each block's tensors."""
        if self.ranks.streams:
            return Cell(self.device, FRAME, self.task.block)
        return Cell(self.device, f"{FRAME} of micro-batch {self.task.tag}")

    def master(self, block: int) -> Cell:
        """The buffer of weights that a rank updates."""
        return self.cell("weight shard" if self.ranks.sharded(block) else "weights", block)

    def reduced(self, block: int) -> Cell:
        """Where a block's gradient is once it is reduced: on the host, in a shard, or whole."""
        host = self.cell(HOST_GRADIENT, block)
        if host in self.on_host:
            return host
        return self.cell("gradient shard" if self.ranks.sharded(block) else "gradient", block)

    def target(self, block: int) -> _Target:
        """The gradient of a block to which a task adds; a reduction must follow.

        On a wafer it is a tensor, with an earlier one if the task reads that. Elsewhere the first task of a
        micro-batch begins it where it is reduced after every one. Under ZeRO 2 layers use two buckets in
        turn.
        """
        if self.ranks.streams:
            earlier = self.read_as("gradients")
            return _Target(block, self.handles[self.task.reads[earlier[0]]][0] if earlier else None, None)
        waiting = self.pending[self.device]
        present = self.step, self.task.tag
        begins = waiting.get(block) != present
        waiting[block] = present
        scatters = self.ranks.scatters(block)
        if begins and scatters and block >= 0 and self.layout.zero_stage == GRADIENTS_SHARDED:
            name = "slot of gradients" if block < EXPERTS else "slot of gradients of experts"
            self.slots[Cell(self.device, "gradient", block)] = self.in_turn(name)[0]
        cell = self.cell("gradient", block)
        return _Target(block, None if begins and scatters else cell, cell)

    def initial(self, cell: Cell, rank: int) -> Any:
        """Initial value of a buffer; KeyError if it has none, as weights that streamed to no wafer."""
        share = self.ranks.share(rank)
        if cell.name.startswith(FRAME):
            return {}
        layout = share.layouts[cell.number]
        if self.ranks.streams and (cell.device != SHARED or cell.name in GRADIENTS):
            raise KeyError(cell)
        if cell.name in WEIGHTS:
            value = share.flat(self.training.initial, cell.number)
        elif cell.name in GRADIENTS + MOMENTS:
            value = np.zeros(layout.size)
        else:
            raise KeyError(cell)
        if cell.name not in ("weights", "gradient"):
            value = layout.shard(value, self.ranks.sharding(rank, cell.number))
        return Moments.zero(value.size) if cell.name in MOMENTS else value

    def add(
        self,
        kernel: Kernel,
        reads: Sequence[Cell] = (),
        writes: Sequence[Cell] = (),
        *,
        devices: Sequence[int] = (),
        anywhere: bool = False,
        joined: bool = False,
        claims: Sequence[tuple[int, Claim]] = (),
        message: Message | None = None,
    ) -> None:
        """Append the action of the present task: on its tensors, and on other buffers after them.

        It reads tensors of its own device, or of `anywhere`, and writes its first one on `devices`.
        """
        operands = []
        for handle in self.task.reads:
            cells = self.handles.get(handle, ())
            if not anywhere and self.device != SHARED:
                cells = tuple(cell for cell in cells if cell.device in (self.device, SHARED))
            if not cells:
                raise self.refuse(f"tensor {handle}", "it is not on this device: nothing sent it here")
            operands.append(cells[0])
        results = [cell for n in range(len(self.task.writes)) for cell in self.handle(n, *devices)]
        all_reads = (*operands, *reads)
        all_writes = (*results, *writes)
        expects = tuple(self.last_writer.get(cell, START) for cell in all_reads)
        for cell in all_writes:
            self.last_writer[cell] = self.task.id
        of_task = self.task.id, all_reads, all_writes, kernel, joined, expects, tuple(claims), message
        self.program.actions.append(Action(*of_task))

    def move(
        self,
        sources: Sequence[Cell] = (),
        targets: Sequence[Cell] = (),
        *,
        anywhere: bool = False,
        message: Message | None = None,
    ) -> None:
        """Copy buffers to others, and hand on the last value read, if there is one."""
        count = len(self.task.writes)
        first = len(self.task.reads)

        def run(_: int, *values: Any) -> tuple[Any, ...]:
            copied = values[first:] if targets else ()
            return (*(values[-1:] or (None,)) * count, *copied)

        self.add(run, sources, targets, anywhere=anywhere, message=message)

    def _claim(self, quantity: str) -> Claim | None:
        """What serial training says of the first tensor that the present task makes; None: nothing."""
        model = self.training.model
        block = self.task.block
        # That of the last layer has gradients by modules too; a module alone is not repeated up to a sum.
        op = self.task.work.op
        partly = op.endswith("recompute") and Block.repeats_alone(self.modes[block], op)
        if not quantity or partly or (block == HEAD and model.mtp_num_layers > 0):
            return None
        of_ends = {("hidden", EMBEDDING): 0, ("gradient", HEAD): model.num_layers}
        number = of_ends.get((quantity, block), block + (quantity == "hidden"))
        return Claim(quantity, number, self.step, self.task.tag)

    def compute(self, operation: Operation) -> None:
        """A task that each rank runs alone."""
        task = self.task
        number = task.block
        op = task.work.op
        ranks = self.ranks
        ahead = max(0, number - self.training.model.num_layers + 1) if number >= 0 else 0
        present = partial(OnRank, ranks, task, self.step, ahead, self.modes.get(number, "none"))
        # Only modules use the model's ends.
        also_ends = [EMBEDDING, HEAD] if ahead else []
        own = {"own": [number], "experts": [EXPERTS + number], "both": [number, EXPERTS + number]}
        blocks = [*own[operation.reads], *also_ends] if operation.reads else []
        splits = bool(operation.adds) and op.endswith("dgrad")
        added = [*own[operation.adds], *also_ends[1:]] if operation.adds and not splits else []
        targets = [self.target(block) for block in added]
        loss = [Cell(self.device, f"loss[{task.tag}]", number)]
        loss = loss if operation.loss and (ahead or number == HEAD) else []
        count = len(task.reads)
        first = count + len(blocks)
        frame = self.frame()
        befores = [target.before for target in targets if target.before is not None]
        sums = bool(operation.adds and operation.quantity) and ranks.peers > 1
        travels = ranks.peers > 1 and op.endswith("wgrad")
        forgets = self.forgets and op == "layer.forward"

        def kernel(rank: int, *values: Any) -> tuple[Any, ...]:
            share = ranks.share(rank)
            layouts = share.layouts
            w: Weights = {}
            for block, flat in zip(blocks, values[count:first], strict=True):
                w |= layouts[block].views(flat)
            f: Frame = dict(values[first])
            at = present(rank, share.of_layer(number), w, values[:count], f)
            tensors, gradients = operation.run(at, operation)
            made: list[Any] = [*tensors, *([None] * (len(task.writes) - len(tensors)))]
            if sums:
                of_peers = layouts[number].summed
                together = [pair for pair in gradients if pair[0] in of_peers]
                gradients = [pair for pair in gradients if pair[0] not in of_peers]
                made[0] = {**made[0], "weights": layouts[number].gradient(together)}
            if splits and len(made) > 1:
                made[1] = {"of weights": gradients}
            elif splits:
                f[OF_ROUTER, number] = gradients
            if ahead and targets and targets[0].block == number:
                f[LATER_WORDS] = f.get(LATER_WORDS, 0.0) + layouts[EMBEDDING].gradient(gradients)
            totals = []
            before = iter(values[first + 1 :])
            for position, target in enumerate(targets):
                total = layouts[target.block].gradient(gradients)
                if target.block == EMBEDDING:
                    total = total + f.pop(LATER_WORDS, 0.0)
                if travels and not position:
                    total = total + values[count - 1]["weights"]
                if target.before is not None:
                    total = next(before) + total
                if target.after is None:
                    made[1] = total
                else:
                    totals.append(total)
            losses = [np.asarray(f.pop("loss")) for _ in loss]
            return (*made, {} if forgets else f, *losses, *totals)

        reads = [*(self.cell("weights", block) for block in blocks), frame, *befores]
        writes = [frame, *loss, *(target.after for target in targets if target.after)]
        claim = self._claim(operation.quantity)
        claims = [(0, claim)] if claim and ranks.peers == 1 else []
        claims += [(1 + len(task.writes), Claim("loss", number, self.step, task.tag)) for _ in loss]
        of_words = operation.gives == ("statistics",)
        self.partial[task.writes[0]] = _Partial(claim, number if sums else None, splits, of_words)
        self.add(kernel, reads, writes, claims=claims)

    def exchange(self, task: Task) -> None:
        """Exchange keys and values, heads, or rows for experts among ranks of the stage."""
        how = EXCHANGES[task.work.name]

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            return how.run(task.work, [self.ranks.share(rank) for rank in members], values)

        # Another micro-batch may be on its way through the layer.
        follows, keeps = (
            [self.cell(f"{route} of micro-batch {task.tag}", task.block)] if route else []
            for route in (how.follows, how.keeps)
        )
        self.add(kernel, follows, keeps, joined=True, message=Message(how.content, how.sent))

    def over_peers(self, task: Task) -> None:
        """Sum over the tensor peers, or put their parts together; each gets the whole or its part.

        Gradients of weights that come with a tensor are summed too. They are added to their block's
        gradients, or passed on to a task that adds them.
        """
        op = task.work.op
        info = self.partial.get(task.reads[0], _Partial())
        carries = info.carries
        buffer = [] if carries is None or info.later else [self.cell("gradient", carries)]

        def joined(arrays: Sequence[Floats]) -> list[Floats]:
            """What every peer gets of an array."""
            axis = HIDDEN if info.of_words or (op == "all_gather" and info.axis == HIDDEN) else SEQUENCE
            if op == "all_gather":
                whole = np.concatenate(arrays, axis=axis)
            else:
                whole = merged_statistics(arrays) if info.of_words else summed(arrays)
            return (
                np.array_split(whole, len(arrays), axis) if op == "reduce_scatter" else [whole] * len(arrays)
            )

        def kernel(_: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            tensors: list[Tensor] = [inputs[0] for inputs in values]
            made: list[Tensor] = [{} for _ in values]
            for name in tensors[0]:
                arrays = [tensor[name] for tensor in tensors]
                if name != "weights":
                    parts = joined(arrays)
                elif carries is None:  # what was summed with the tensor before stays with it
                    parts = arrays
                else:
                    parts = [summed(arrays)] * len(arrays)
                for tensor, part in zip(made, parts, strict=True):
                    tensor[name] = part
            if not buffer:
                return [(tensor,) for tensor in made]
            pairs = zip(made, values, strict=True)
            return [(tensor, inputs[1] + tensor.pop("weights")) for tensor, inputs in pairs]

        axis = SEQUENCE if op == "reduce_scatter" else None
        self.partial[task.writes[0]] = _Partial(info.claim, of_words=info.of_words, axis=axis)
        claims = [(0, info.claim)] if info.claim and axis is None else []
        content: Content = "statistics" if info.of_words else "activations"
        message = Message(content, "made" if op == "all_gather" else "read")
        self.add(kernel, buffer, buffer, joined=True, claims=claims, message=message)

    def send(self, task: Task) -> None:
        """Send the tensor, or this peer's part of it, to the same peer of the next stage."""
        peers = self.ranks.peers
        shares = peers > 1 and not self.layout.sequence_parallel
        info = self.partial.get(task.reads[0], _Partial())

        def run(rank: int, tensor: Tensor) -> tuple[Any, ...]:
            hidden = tensor["hidden"]
            return ({"hidden": np.array_split(hidden, peers, HIDDEN)[rank % peers] if shares else hidden},)

        axis = HIDDEN if shares else info.axis
        self.partial[task.writes[0]] = _Partial(info.claim, axis=axis)
        claims = [(0, info.claim)] if info.claim and axis is None else []
        message = Message("activations", "made", times=peers if info.axis == SEQUENCE else 1)
        self.add(run, devices=self._members(task, 2)[1:], claims=claims, message=message)

    def _members(self, task: Task, count: int | None = None) -> range:
        """The ranks that take part in a communication."""
        group = task.work.group
        if group is None or count not in (None, group.size):
            raise self.refuse("its group", "a transfer needs two ranks")
        return group.ranks

    def tie(self, task: Task) -> None:
        """Sum the gradients of a tied embedding over the first and the last stage."""
        ends = self._members(task, len(ENDS))
        name = "gradient shard" if self.ranks.sharded(EMBEDDING) else "gradient"
        cells = [Cell(device, name, block) for device, block in zip(ends, ENDS, strict=True)]

        def run(rank: int, *values: Any) -> tuple[Any, ...]:
            gradients = [value.copy() for value in values[-len(ENDS) :]]
            words = self._sum_words(rank, *gradients)
            return (words, words, *gradients)

        self.add(run, cells, cells, devices=ends, anywhere=True, message=Message("table", "made"))

    def _sum_words(self, rank: int, embedding: Floats, head: Floats) -> Floats:
        """Set the words in the gradients, or shards, of embedding and LM head to their sum; returns it."""
        layouts = self.ranks.share(rank).layouts
        shards = self.ranks.sharding(rank, EMBEDDING).of
        first, last = (layouts[block].part_of_shard(WORDS[block], shards) for block in ENDS)
        total = embedding[first] + head[last]
        embedding[first] = head[last] = total
        return total

    def data_reduce(self, task: Task) -> None:
        """Sum gradients over the replicas; each keeps the whole, or its shard and clears the whole.

        Where several groups shard, the sum over a group is a part; shards are then summed over groups. A
        shard that leaves for the host takes turns with another in its buffers.
        """
        ranks = self.ranks
        across = task.work.writes[0].name == "gradient_shards"
        scatters = task.work.op == "reduce_scatter"
        in_groups = scatters and self.layout.shards < self.layout.replicas
        owned = not scatters and not across and all(map(ranks.sharded, self.pending[self.device]))
        if across:
            gradients = self.reductions[task.reads[0]]
        else:
            gradients = {block: self.cell("gradient", block) for block in self._blocks_to_sum(task)}
        blocks = list(gradients)
        sources = list(gradients.values())
        kept: list[Cell] = []
        if in_groups:
            written = [self.cell(f"gradient part[{task.tag}]", block) for block in blocks]
        elif not scatters and not across and not owned:
            written = sources
        elif ranks.scattered and self.layout.offload_optimizer != "none":
            written = self.in_turn("slot of leaving gradients", parts=len(ENDS))[: len(blocks)]
        else:
            written = [self.cell("gradient shard", block) for block in blocks]
            if all(map(ranks.scatters, blocks)):  # added to gradients of earlier micro-batches
                kept = written
        self.reductions[task.writes[0]] = dict(zip(blocks, written, strict=True))
        cleared = sources if (scatters or owned) and not ranks.scattered else []
        first = len(task.reads)
        count = len(blocks)

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            totals = [summed([inputs[first + number] for inputs in values]) for number in range(count)]
            results: list[tuple[Any, ...]] = []
            for index, (rank, inputs) in enumerate(zip(members, values, strict=True)):
                made = totals
                if scatters or owned:
                    layouts = ranks.share(rank).layouts
                    place = Place(len(members), index)
                    made = [
                        layouts[block].shard(total, ranks.sharding(rank, block) if owned else place)
                        for block, total in zip(blocks, totals, strict=True)
                    ]
                made = [*map(np.add, made, inputs[first + count :])] if kept else made
                results.append((None, *made, *(np.zeros_like(total) for total in totals if cleared)))
            return results

        # Of layers only: the gradient of a tied embedding may still lack the other stage's part.
        claims = [
            (1 + number, Claim("weight gradient", block, self.step, -1))
            for number, block in enumerate(blocks)
            if block >= 0 and written is sources
        ]
        content: Content = "shards" if across else "gradients"
        message = Message(content, "read", slice(first, first + count), tuple(blocks))
        outputs = [*written, *cleared]
        self.add(kernel, [*sources, *kept], outputs, joined=True, claims=claims, message=message)

    def _blocks_to_sum(self, task: Task) -> list[int]:
        """The blocks whose gradients a reduction sums, among those that wait for one.

        A reduction that reads the gradients of several layers sums that many, from its block on; a reduction
        for experts sums all experts that wait, from its block on.
        """
        waiting = self.pending[self.device]
        if task.work.experts:
            blocks = [number for number in waiting if number >= EXPERTS + max(0, task.block)]
        elif task.block < 0:
            here = self.blocks_of(task)
            blocks = [number for number in waiting if number in here]
        else:
            blocks = list(range(task.block, task.block + len(task.reads)))
        for number in blocks:
            waiting.pop(number, None)
        return blocks

    def data_gather(self, task: Task) -> None:
        """Gather the other replicas' parameter shards; after an update the shards of the whole device."""
        blocks = self.blocks_of(task, len(task.writes))
        if self.layout.zero_stage == SHARDED and task.block >= 0:
            # Two layers are gathered at once (`limit_all_gathers`).
            name = f"slot of gathered {'experts' if task.work.experts else 'weights'}"
            self.slots[Cell(self.device, "weights", blocks[0])] = self.in_turn(name)[0]
        first = len(task.reads)
        masters = [self.cell("weight shard", block) for block in blocks]
        tensors = (None,) * len(task.writes)

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            layouts = self.ranks.share(members[0]).layouts
            gathered = [
                layouts[block].whole([inputs[first + number] for inputs in values])
                for number, block in enumerate(blocks)
            ]
            return [(*tensors, *gathered)] * len(members)

        updated = enumerate(blocks if task.block == WHOLE_DEVICE else [], start=len(tensors))
        claims = [(position, Claim("weights", block, self.step, -1)) for position, block in updated]
        message = Message("parameters", "made", slice(len(tensors), None), tuple(blocks))
        whole = [self.cell("weights", block) for block in blocks]
        self.add(kernel, masters, whole, joined=True, claims=claims, message=message)

    def data_broadcast(self, task: Task) -> None:
        """An owner sends what it updated to the other ranks, which keep the parts of the other owners."""
        blocks = self.blocks_of(task)
        size = len(self._members(task))
        name = f"owner {task.work.experts}"
        self.slots_of[name] = size
        owner = self.in_turn(name)[0].number
        first = len(task.reads)
        masters = [self.cell("weight shard", block) for block in blocks]
        whole = [self.cell("weights", block) for block in blocks]
        sent = slice(first, first + len(blocks))

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            layouts = self.ranks.share(members[0]).layouts
            results: list[tuple[Any, ...]] = []
            for inputs in values:
                made = []
                for block, part, held in zip(blocks, values[owner][sent], inputs[sent.stop :], strict=True):
                    parts = [layouts[block].shard(held, Place(size, number)) for number in range(size)]
                    parts[owner] = part
                    made.append(layouts[block].whole(parts))
                results.append((None, *made))
            return results

        complete = enumerate(blocks if owner == size - 1 else [], start=1)
        claims = [(position, Claim("weights", block, self.step, -1)) for position, block in complete]
        message = Message("parameters", "read", sent, tuple(blocks))
        self.add(kernel, [*masters, *whole], whole, joined=True, claims=claims, message=message)

    def host_store(self, task: Task) -> None:
        """Add gradients to those on the host, and clear them on the device."""
        left = self.reductions[task.reads[0]] if self.ranks.scattered else {}
        blocks = list(left) or self.blocks_of(task)
        pairs: list[Cell] = []
        for block in blocks:
            host = self.cell(HOST_GRADIENT, block)
            self.on_host.discard(host)
            pairs += [host, left[block] if left else self.reduced(block)]
            self.on_host.add(host)
        first = len(task.reads)

        def run(_: int, *values: Any) -> tuple[Any, ...]:
            results: list[Any] = [None]
            for host, part in zip(values[first::2], values[first + 1 :: 2], strict=True):
                results += [host + part, np.zeros_like(part)]
            return tuple(results)

        self.add(run, pairs, pairs, anywhere=True)

    def host_load(self, task: Task) -> None:
        """Copy the host's weights to the device, a rank's shard or all."""
        blocks = self.blocks_of(task)
        targets = [self.master(block) for block in blocks]
        if self.layout.offload_param != "none":
            # Copies of shards that are gathered next use two buffers in turn.
            targets = self.in_turn("slot of copied weights", parts=len(ENDS))[: len(blocks)]
            shards = [Cell(self.device, "weight shard", block) for block in blocks]
            self.slots |= zip(shards, targets, strict=True)
        self.move([self.cell(HOST_WEIGHTS, block) for block in blocks], targets, anywhere=True)

    def _updates(self, blocks: Iterable[int], *, hosted: bool = False) -> list[_Update]:
        """The updates of blocks, in the order in which their gradients were made."""
        updates = []
        for block in sorted(blocks, reverse=True):
            master = self.cell(HOST_WEIGHTS, block) if hosted else self.master(block)
            states = master, self.cell("moments", block)
            updates.append(_Update(block, self.ranks.sharded(block), self.reduced(block), states))
        return updates

    def _summed(self, rank: int, own: Sequence[_Update], values: Values) -> dict[int, Floats]:
        """The gradient of each block; words on one rank are summed."""
        total = {update.block: value.copy() for update, value in zip(own, values, strict=True)}
        if self.training.model.tied_embeddings and EMBEDDING in total and HEAD in total:
            self._sum_words(rank, total[EMBEDDING], total[HEAD])
        return total

    def _squared(self, rank: int, total: Mapping[int, Floats], ranks: int) -> Floats:
        """Squared gradient norm of a rank, divided by how many of `ranks` hold the same gradients."""
        layouts = self.ranks.share(rank).layouts
        layout = self.layout
        norm = np.zeros(())
        for block, gradient in total.items():
            place = self.ranks.sharding(rank, block)
            once = layouts[block].shard(layouts[block].counted, place)
            others = place.of * (layout.tensor if block < EXPERTS else layout.expert * layout.expert_tensor)
            norm = norm + np.sum(once * gradient**2) * others / ranks
        return norm

    def norm(self, task: Task) -> None:
        """The norm of this device's gradients summed over peers, or the stages' norms summed over them."""
        across = self.read_as("norm")
        if across and set(self._members(task)) != {self.handles[read][0].device for read in task.reads}:
            raise self.refuse("its group", "it sums over other ranks than those whose norms it reads")
        own = [] if across else self._updates(self.homes[self.device])
        count = len(task.reads)

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            if across:
                return [(np.sum(values),)]
            totals = [
                self._squared(rank, self._summed(rank, own, inputs[count:]), len(members))
                for rank, inputs in zip(members, values, strict=True)
            ]
            return [(np.sum(totals),)] * len(members)

        whole = (bool(across) or self.layout.pipeline == 1) and math.isfinite(self.training.max_norm)
        claims = [(0, Claim(NORM, WHOLE_DEVICE, self.step, -1))] if whole else []
        gradients = [update.gradient for update in own]
        message = Message("norm", "made") if task.work.kind is Kind.COMM_COLL else None
        self.add(kernel, gradients, anywhere=True, joined=True, claims=claims, message=message)

    def optimizer(self, task: Task) -> None:
        """Adam on the parameters of this rank with clipped gradients; clears their gradients.

        On a host it updates the blocks of one piece. Without a norm among its operands it clips by the norm
        of its own gradients.
        """
        hosted = task.work.op in UPDATES
        norm = next(iter(self.read_as("norm")), None)
        own = self._updates(self.blocks_of(task) if hosted else self.homes[self.device], hosted=hosted)
        first = len(task.reads)
        count = len(own)
        writes: list[Cell] = []
        claims = []
        for block, shard, gradient, states in own:
            kind = " shard" if shard else ""
            position = len(task.writes) + len(writes)
            claims.append((position, Claim(f"weight gradient {CLIPPED}{kind}", block, self.step, -1)))
            claims.append((position + 1, Claim(f"weights{kind}", block, self.step, -1)))
            writes += [self._record(block), *states, gradient]
            self.on_host.discard(self.cell(HOST_GRADIENT, block))

        def run(rank: int, *values: Any) -> tuple[Any, ...]:
            total = self._summed(rank, own, values[first : first + count])
            squared = self._squared(rank, total, self.ranks.peers) if norm is None else values[norm]
            factor = clipping(float(squared), self.training.max_norm)
            states = values[first + count :]
            results: list[Any] = [None]
            for number, update in enumerate(own):
                used = factor * total[update.block]
                updated = adam(states[2 * number], used, states[2 * number + 1])
                results += [used, *updated, np.zeros_like(used)]
            return tuple(results)

        reads = [*(of.gradient for of in own), *(cell for of in own for cell in of.states)]
        self.add(run, reads, writes, anywhere=True, claims=claims)

    def _record(self, block: int) -> Cell:
        """The buffer of the gradient that an update used."""
        return self.cell(f"gradient used in step {self.step + 1}", block)

    def memoryx_read(self, task: Task) -> None:
        """MemoryX sends the weights of a block from DRAM, where flash may have staged them."""
        staged = any(self.graph.task(self.graph.writer[read]).work.op == "flash_read" for read in task.reads)
        sources = [] if staged else [self.cell("weights", task.block)]
        self.move(sources, message=Message("parameters", "made", blocks=(task.block,)))

    def copied(self, task: Task, *, source: str, target: str = "", sent: bool = False) -> None:
        """Copy a buffer of a block between flash and DRAM; without a target it is read, or `sent` on."""
        message = Message("parameters", "made", blocks=(task.block,)) if sent else None
        targets = [self.cell(target, task.block)] if target else []
        self.move([self.cell(source, task.block)], targets, message=message)

    def states_written(self, task: Task) -> None:
        """Copy updated states to flash; words that both ends share for both."""
        tied = self.training.model.tied_embeddings
        made = [("moments", task.block)]
        made += [] if tied and task.block == HEAD else [("weights", task.block)]
        made += [("weights", HEAD)] if tied and task.block == EMBEDDING else []
        targets = [self.cell(f"{name} in flash", block) for name, block in made]
        self.move([self.cell(name, block) for name, block in made], targets)

    def samples(self, task: Task) -> None:
        """Inputs and targets of a micro-batch arrive on the wafer."""
        step = self.step
        self.add(lambda rank: ({"tokens": self.ranks.tokens(rank, step, task.tag)},))

    def broadcast(self, task: Task) -> None:
        """SwarmX sends the weights to every wafer, where slots are used in turn."""
        if not task.reads:
            raise self.refuse("its weights", "it reads no weights that MemoryX sends")
        group = self._members(task)
        (slot,) = self.in_turn("slot of weights")
        slot = slot._replace(device=group.start)
        self.slots[Cell(group.start, "weights", task.block)] = slot

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            pairs = zip(members, values, strict=True)
            return [(None, weights if rank in group else None) for rank, (weights,) in pairs]

        message = Message("parameters", "read", blocks=(task.block,))
        self.add(kernel, (), [slot], devices=[group.start], joined=True, message=message)

    def spill(self, task: Task) -> None:
        """Move a group's kept activations off the wafer or back: its input, or all activations of a layer."""
        if not self.spilled_whole:
            self.move(message=Message("activations", "made"))
            return
        kept, spilled = [self.frame()], [self.cell("spilled activations", task.block)]
        if task.work.op == "spill":
            self.move(kept, spilled)
        else:
            self.move(spilled, kept)

    def stream_reduce(self, task: Task) -> None:
        """SwarmX sums the wafers' gradients; MemoryX or the tree adds the sums of earlier micro-batches."""
        group = self._members(task)
        stored = [self.handles[handle][0].device == SHARED for handle in task.reads]

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            parts = list(compress(values[0], stored))
            for rank, inputs in zip(members, values, strict=True):
                if rank in group:
                    parts += compress(inputs, map(not_, stored))
            return [(summed(parts),)] * len(members)

        self.slots[Cell(SHARED, "gradient", task.block)] = Cell(SHARED, "tensor", task.writes[0])
        message = Message("gradients", "made", blocks=(task.block,))
        self.add(kernel, joined=True, message=message)

    def stream_update(self, task: Task) -> None:
        """Adam in MemoryX; a table that embedding and LM head share is updated once, with the embedding.

        It is updated with the sum of both gradients, and the LM head copies its words.
        """
        block = task.block
        tied = self.training.model.tied_embeddings
        both = tied and block == EMBEDDING
        own = self._updates(ENDS if both else [block])
        updated = next(of for of in own if of.block == block)
        copies = [of.states[0] for of in own if of is not updated]
        first = len(task.reads)
        count = len(own)
        layouts = self.ranks.share(0).layouts
        words, words_of_head = (layouts[end].parts[name] for end, name in WORDS.items())

        def run(rank: int, *values: Any) -> tuple[Any, ...]:
            gradient = self._summed(rank, own, values[first : first + count])[block]
            flat, moments, *others = values[first + count :]
            made, state = adam(flat, gradient, moments)
            if tied and block == HEAD:
                for new, old in ((made, flat[words_of_head]), (state.first, 0.0), (state.second, 0.0)):
                    new[words_of_head] = old
            copied = [other.copy() for other in others]
            for of_head in copied:
                of_head[words_of_head] = made[words]
            return None, gradient, made, state, *copied

        claims = []
        if not (tied and block == HEAD):  # its words wait for the embedding's
            claims.append((1, Claim("weight gradient", block, self.step, -1)))
            made_of = [(2, block), *((4, HEAD) for _ in copies)]
            claims += [(position, Claim("weights", number, self.step, -1)) for position, number in made_of]
        reads = [*(of.gradient for of in own), *updated.states, *copies]
        self.add(run, reads, [self._record(block), *updated.states, *copies], claims=claims)


OPERATIONS: Mapping[str, Callable[[Interpreter, Task], None]] = {
    "wait": lambda interpreter, _: interpreter.move(),
    "norm": Interpreter.norm,
    "optimizer": Interpreter.optimizer,
    **dict.fromkeys(UPDATES, Interpreter.optimizer),
    "tensor_communication: all_reduce": Interpreter.over_peers,
    "tensor_communication: reduce_scatter": Interpreter.over_peers,
    "tensor_communication: all_gather": Interpreter.over_peers,
    "pipeline_communication: send_recv": Interpreter.send,
    "pipeline_communication: all_reduce": Interpreter.tie,
    "data_communication: all_reduce": Interpreter.data_reduce,
    "data_communication: reduce_scatter": Interpreter.data_reduce,
    "data_communication: all_gather": Interpreter.data_gather,
    "data_communication: broadcast": Interpreter.data_broadcast,
    "context_communication: send_recv": Interpreter.exchange,
    "context_communication: all_to_all": Interpreter.exchange,
    "expert_communication: all_to_all": Interpreter.exchange,
    "expert_communication: all_gather": Interpreter.exchange,
    "expert_communication: reduce_scatter": Interpreter.exchange,
    "offload: host.store": Interpreter.host_store,
    "offload: host.load": Interpreter.host_load,
    "offload: nvme.load": Interpreter.host_load,
    "input: samples": Interpreter.samples,
    "weight_stream: memoryx_read": Interpreter.memoryx_read,
    "weight_stream: flash_read": partial(Interpreter.copied, source="weights in flash", sent=True),
    "weight_stream: broadcast": Interpreter.broadcast,
    "gradient_stream: reduce": Interpreter.stream_reduce,
    "gradient_stream: reduce_in_tree": Interpreter.stream_reduce,
    "gradient_stream: flash_read": partial(Interpreter.copied, source="gradient in flash"),
    "gradient_stream: flash_write": partial(
        Interpreter.copied, source="gradient", target="gradient in flash"
    ),
    "update: memoryx_update": Interpreter.stream_update,
    "update: flash_read": partial(Interpreter.copied, source="moments in flash", target="moments"),
    "update: flash_write": Interpreter.states_written,
    "spill: spill": Interpreter.spill,
    "spill: fetch": Interpreter.spill,
}
"""What tasks do that compute nothing, by category and operation; of COMP by operation. Add new ones here."""
