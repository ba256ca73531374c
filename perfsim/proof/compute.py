"""What compute tasks do on a rank: parts of layers, embedding and LM head, forward and backward.

A tensor of the graph is a bundle of named arrays (`Tensor`), so that a collective sums, cuts or joins all of
them alike. What one task leaves to another of the same micro-batch, besides tensors of the graph, is in the
frame of their device: each block as far as it was carried out.

The layer of a module of multi-token prediction begins with embeddings and a projection, and ends with LM
head and loss. Both are parts of its attention and MLP tasks, which read the tables of embedding and LM head
and add to their gradients; embedding and LM head are on the same rank. The LM head of the model itself
reads the output of the last layer before the modules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.operations import (
    ATTENTION,
    FEED_FORWARD,
    Block,
    Gradients,
    Routing,
    cross_entropy,
    statistics,
)
from perfsim.proof.parameters import EXPERTS, Place, Share, Weights
from perfsim.proof.program import (
    BROKEN,
    SHARED,
    START,
    Action,
    Cell,
    Claim,
    Fault,
    FaultError,
    Kernel,
    Message,
    Program,
    Tensor,
    Values,
    task_name,
)
from perfsim.proof.serial import SmallTraining
from perfsim.specs.runtime import Runtime
from perfsim.work import EMBEDDING, HEAD, Task, TaskGraph
from perfsim.work.graph import rank_of

Made = tuple[Sequence[Tensor | None], Gradients]
"""The tensors that a task writes, and gradients of weights to add."""
Frame = dict[Any, Any]
"""What tasks of a micro-batch leave to one another on a rank: blocks by their number, and some by name."""
MODEL_OUTPUT = "output of the model"
MODEL_GRADIENT = "gradient by the model's own loss"
LATER_WORDS = "gradients of words by modules"
OF_ROUTER = "gradients of weights around experts"


@dataclass
class At:
    """A compute task on a rank: its weights, its operands in the graph, and its frame."""

    compiler: Compiler
    task: Task
    step: int
    ahead: int
    """By how many tokens the inputs of its module are later; 0 if it is of none."""
    rank: int
    share: Share
    w: Weights
    operands: Sequence[Tensor]
    frame: Frame

    def arrived(self, name: str) -> Any:
        """An array of the first operand that has it; KeyError if none has."""
        for tensor in self.operands:
            if tensor and name in tensor:
                return tensor[name]
        raise KeyError(f"no tensor that it reads has {name}")

    @property
    def saved(self) -> Block | None:
        """What the forward of its layer kept, if it reads that."""
        return next((tensor["saved"] for tensor in self.operands if tensor and "saved" in tensor), None)

    @property
    def block(self) -> Block:
        """Its block as far as it was carried out, with what the forward kept."""
        block: Block = self.frame.setdefault(self.task.block, Block())
        if saved := self.saved:
            block.parts = saved.parts | block.parts
        return block

    @property
    def words(self) -> tuple[Any, Any]:
        """Inputs and targets of the micro-batch; a module has later words."""
        return self.compiler.tokens(self.rank, self.step, self.task.tag, self.ahead)

    @property
    def routing(self) -> Routing:
        """The routing of the tokens at the rank's own positions."""
        compiler = self.compiler
        key = self.rank, self.step, self.task.block, self.task.tag
        if key not in compiler.routings:
            places = compiler.own(self.rank, np.array(self.share.places)[None])[0]
            whole = compiler.training.routing(self.step, self.task.block)
            compiler.routings[key] = whole.of(compiler.rows(self.rank, self.task.tag), places)
        return compiler.routings[key]


class Operation(NamedTuple):
    """What tasks of a kind do on a rank."""

    run: Callable[[At, Operation], Made]
    parts: tuple[str, ...] = ()
    """In the order of the forward."""
    takes: tuple[str, ...] = ("hidden",)
    """Arrays that it takes from its operands."""
    gives: tuple[str, ...] = ("hidden",)
    """Arrays of the first tensor that it writes."""
    begin: Callable[[At, Block], None] | None = None
    """What a backward does before its parts."""
    end: Callable[[At, Block], None] | None = None
    reads: Literal["", "own", "experts"] = "own"
    """The block whose weights it reads; in a module it also reads those of embedding and LM head."""
    adds: Literal["", "own", "experts", "both"] = ""
    """The blocks to whose gradients it adds, in a module also the LM head's; else a later task adds them."""
    loss: bool = False
    """Whether the loss is a part of it, in a block with an LM head."""
    quantity: str = ""
    """What serial training calls the first tensor that it makes."""


def forward(at: At, operation: Operation) -> Made:
    """Carry out parts on what arrived; the last task of a layer saves what its backward needs."""
    compiler = at.compiler
    number = at.task.block
    block = at.frame[number]
    for name in operation.takes:
        block.values[name] = at.arrived(name)
    if "router" in operation.parts and "router" in at.w:
        block.values["hidden"] = compiler.own(at.rank, block.values["hidden"])
        block.values |= {"routing": at.routing, "expert": at.routing.expert.ravel()}
    given = {name: block.values[name] for name in ("routing", "expert") if name in block.values}
    if number < 0 or at.ahead:
        given["tokens"], given["targets"] = at.words
    block.forward(operation.parts, at.w, at.share, given)
    if "scores" in operation.parts and "scores" in block.values:
        block.values["statistics"] = statistics(block.values["scores"], given["targets"], at.share)
    tensors: list[Tensor | None] = [{name: block.values[name] for name in operation.gives}]
    again = at.task.work.op.endswith("recompute")
    if operation.quantity == "hidden" and not again and len(at.task.writes) > 1:
        tensors.append({"saved": block.saved(compiler.mode_of(number), compiler.runtime)})
        at.frame[number] = block.module_head
    return tensors, []


def enter(at: At, operation: Operation) -> Made:
    """Begin a block with what arrived, or repeat it from what was saved.

    The first module also keeps the output of the model's own last layer for the model's LM head.
    """
    block = Block()
    if saved := at.saved:
        module = at.frame.get(at.task.block, block)  # its scores are not repeated
        block = Block(saved.values | module.values, saved.parts | module.parts, saved.results)
    elif "hidden" in operation.takes:
        hidden = at.arrived("hidden")
        if at.ahead == 1:
            at.frame[MODEL_OUTPUT] = hidden
        elif at.task.block == HEAD:
            hidden = at.frame.pop(MODEL_OUTPUT, hidden)
        block.values = {"hidden": hidden, "before": hidden}
    at.frame[at.task.block] = block
    return forward(at, operation._replace(takes=()))


def backward(at: At, operation: Operation) -> Made:
    """Go back through parts from the gradients that arrived.

    Gradients of weights wait for a task of their block that adds some; experts have a block of their own.
    """
    block = at.block
    for name in operation.takes:
        block.gradients[name] = at.arrived(name)
    if operation.begin:
        operation.begin(at, block)
    made = block.backward(operation.parts, at.w)
    if operation.end:
        operation.end(at, block)
    given = {name: block.gradients.pop(name) for name in operation.gives} or None
    if operation.adds == "experts":
        return [given], made
    block.of_weights += made
    return [given], block.take_weights() if operation.adds else []


def _by_loss(at: At, block: Block) -> None:
    """The loss, and its gradient by the scores."""
    count = at.compiler.training.num_tokens(at.ahead)
    of_tokens = block.values["statistics"] if at.ahead else block.gradients.pop("statistics")
    scored = block.values["scores"]
    losses, block.gradients["scores"] = cross_entropy(scored, of_tokens, at.words[1], count, at.share)
    at.frame["loss"] = losses.sum()


def _from_output(at: At, block: Block) -> None:
    """The gradient of a layer's output, which in a module the loss adds to.

    What arrives at the last module is the gradient of the model's own last layer by the model's own loss.
    """
    if at.ahead:
        _by_loss(at, block)
        if at.ahead == at.compiler.training.model.mtp_num_layers:
            at.frame[MODEL_GRADIENT] = block.gradients.pop("hidden")
        block.of_weights += block.backward(("scores",), at.w)
    if "mlp" in block.parts and at.share.model.norms_per_layer == 1:
        block.values["output gradient"] = block.gradients["hidden"]


def _from_tokens(at: At, block: Block) -> None:
    """The gradient of the output of experts, at a rank's own positions."""
    _from_output(at, block)
    block.gradients["hidden"] = at.compiler.own(at.rank, block.gradients["hidden"])
    block.gradients |= {"expert": at.routing.expert.ravel()}


def to_attention(at: At, block: Block) -> None:
    """The gradient of attention's output, and of its residual too unless the MLP is parallel to it."""
    block.gradients["attended"] = block.values.get("output gradient", block.gradients["hidden"])
    residual(at, block)


def residual(at: At, block: Block) -> None:
    """The gradient that passes attention by enters the sum over tensor peers once."""
    if not at.share.leads:
        del block.gradients["hidden"]


def leave(at: At, block: Block) -> None:
    """End the backward of a layer; the first module hands on what the model's own loss says of its input."""
    if at.ahead == 1:
        block.gradients["hidden"] = block.gradients["hidden"] + at.frame.pop(MODEL_GRADIENT)
    block.parts = {}
    block.values = {}


def _weight_pass(at: At, _: Operation) -> Made:
    """Weight gradients from what input gradients left."""
    return [None], at.arrived("of weights") + at.frame.pop((OF_ROUTER, at.task.block), [])


def both(name: str, there: Operation, back: Operation) -> dict[str, Operation]:
    """An operation forward and repeated, and backward, whole or its input gradients alone."""
    forwards = {f"{name}.{which}": there for which in ("forward", "recompute")}
    return forwards | {f"{name}.{which}": back for which in ("backward", "dgrad")}


ROWS = ("rows", "expert")
LAYER = (*ATTENTION, *FEED_FORWARD)
LAYER_BEGIN = Operation(backward, ATTENTION, begin=to_attention, end=leave, adds="own", quantity="gradient")
COMPUTE: Mapping[str, Operation] = {
    "embedding.forward": Operation(enter, ("lookup",), (), quantity="hidden"),
    "embedding.backward": Operation(backward, ("lookup",), gives=(), adds="own"),
    **both(
        "head",
        Operation(enter, ("scores",), gives=("statistics",)),
        Operation(
            backward, ("scores",), ("statistics",), begin=_by_loss, adds="own", loss=True, quantity="gradient"
        ),
    ),
    **both("attention", Operation(enter, ATTENTION, gives=("attended",), quantity="attention"), LAYER_BEGIN),
    **both(
        "mlp",
        Operation(forward, ("mlp", "scores"), ("attended",), quantity="hidden"),
        Operation(backward, ("mlp",), begin=_from_output, adds="own", loss=True, quantity="middle"),
    ),
    **both(
        "router",
        Operation(forward, ("router",), ("attended",), ROWS),
        Operation(backward, ("router",), ("rows",), adds="own", quantity="middle"),
    ),
    **both(
        "shared_experts",
        Operation(forward, ("shared",), (), ("shared",)),
        Operation(backward, ("shared",), (), ()),
    ),
    **both(
        "experts",
        Operation(forward, ("experts",), ROWS, ROWS, reads="experts"),
        Operation(backward, ("experts",), ROWS, ROWS, reads="experts", adds="experts"),
    ),
    **both(
        "combine",
        Operation(forward, ("combine", "scores"), ("rows",), quantity="hidden"),
        Operation(backward, ("combine",), gives=ROWS, begin=_from_tokens, loss=True),
    ),
    **both(
        "layer",
        Operation(enter, LAYER, quantity="hidden"),
        Operation(backward, LAYER, adds="own", end=leave, quantity="gradient"),
    ),
    **dict.fromkeys(
        ("attention.wgrad", "mlp.wgrad", "head.wgrad"), Operation(_weight_pass, reads="", adds="own")
    ),
    "experts.wgrad": Operation(_weight_pass, reads="", adds="both"),
    # Pass the tensor to the next stage of the same device.
    "stage.hand_on": Operation(lambda at, _: ([at.operands[0]], []), reads=""),
}
"""What compute tasks do, by their operation (`Work.op`); add new ones here."""


class Target(NamedTuple):
    """The gradient of a block that a task adds to: what was there before, if anything, and the sum."""

    block: int
    before: Cell | None
    after: Cell | None
    """None: the second tensor that the task writes."""
    adds: bool = True


class Partial(NamedTuple):
    """A tensor of which each tensor peer has a summand or a part: the claim about the whole."""

    claim: Claim | None
    carries: int | None = None
    """The block of which gradients are summed with it."""
    later: bool = False
    """Whether a task of its own adds them to the block's, not the collective."""
    of_words: bool = False
    """Whether it has the statistics of a softmax over words."""
    axis: int | None = None
    """The axis along which it is split, if it is."""


class Compiler(ABC):
    """Compiles a graph task by task; subclasses say what tasks do, and where weights and gradients are."""

    operations: Mapping[str, Callable[[Any, Task], None]]
    """What tasks do that compute nothing."""
    computes: Mapping[str, Operation] = COMPUTE
    peers = 1
    """Ranks that share every product."""
    rings = False
    """Whether keys and values of shared sequences go around a ring."""

    def __init__(self, graph: TaskGraph, training: SmallTraining, runtime: Runtime) -> None:
        self.graph = graph
        self.training = training
        self.runtime = runtime
        self.program = Program(graph)
        self.task: Task
        self.place = SHARED
        """The device of the present task."""
        self.step = 0
        self.last_writer: dict[Cell, int] = {}
        self.handles: dict[int, tuple[Cell, ...]] = {}
        """The cells of a tensor handle: one, or one per device for a send."""
        self.turns: dict[tuple[int, str], int] = {}
        """Buffers with a name that were used so far on each device."""
        self.partial: dict[int, Partial] = {}
        self._words: dict[tuple[int, ...], tuple[Ints, Ints]] = {}
        self.routings: dict[tuple[int, ...], Routing] = {}
        """By rank, step, block and micro-batch."""

    def compile(self) -> Program:
        """Compile every task in the order of ids; an unknown operation is refused by name."""
        places = {stream: rank_of(stream) for stream in self.graph.streams}
        for task in self.graph.tasks():
            self.task = task
            rank = places[task.stream]
            self.place = SHARED if rank is None else rank
            while self.step < len(self.graph.step_ends) and task.id >= self.graph.step_ends[self.step]:
                self.step += 1
            key = self.key(task)
            try:
                if key in self.computes:
                    self.compute(self.computes[key])
                elif key in self.operations:
                    self.operations[key](self, task)
                else:
                    known = ", ".join([*self.computes, *self.operations])
                    detail = f"the executor knows no operation {key!r}; known: {known}"
                    raise self.refuse("its operation", detail)
            except BROKEN as error:
                cells = [cell for handle in task.reads for cell in self.handles.get(handle, ())]
                names = [self.program.tensor(cell) for cell in cells]
                names = names or [tensor.name for tensor in task.work.writes] or ["its operands"]
                tensors = ", ".join(names[:2])
                name = task_name(self.graph, task)
                raise FaultError.of("refused", name, tensors, "cannot be executed", error) from None
        return self.program

    def key(self, task: Task) -> str:
        """The name of a task in the tables of operations."""
        return task.work.op

    @abstractmethod
    def initial(self, cell: Cell, rank: int) -> Any:
        """Initial value of a buffer; KeyError if it has none."""

    def refuse(self, tensor: str, detail: str) -> FaultError:
        """The error that the present task cannot be executed."""
        return FaultError(Fault("refused", task_name(self.graph, self.task), tensor, detail))

    def handle(self, position: int, *places: int) -> list[Cell]:
        """The cells of a tensor that the present task writes, by default on its own device."""
        number = self.task.writes[position]
        cells = [Cell(place, "tensor", number) for place in (places or (self.place,))]
        self.handles[number] = tuple(cells)
        for cell in cells:
            self.program.labels[cell] = self.task.work.writes[position].name
        return cells

    def in_turn(self, name: str, slots: int = 2, parts: int = 1) -> list[Cell]:
        """The next of a device's buffers that are used in turn; each has so many parts."""
        number = self.turns.get((self.place, name), 0)
        self.turns[self.place, name] = number + 1
        first = number % slots * parts
        return [Cell(self.place, name, first + part) for part in range(parts)]

    def copy(self, task: Task) -> None:
        """Hand on the last tensor read; without one it does nothing."""
        self.add(lambda _, *values: (values[-1] if values else None,) * len(task.writes))

    def add(
        self,
        kernel: Kernel,
        reads: Sequence[Cell] = (),
        writes: Sequence[Cell] = (),
        *,
        places: Sequence[int] = (),
        anywhere: bool = False,
        joined: bool = False,
        claims: Sequence[tuple[int, Claim]] = (),
        message: Message | None = None,
    ) -> None:
        """Append the action of the present task: on its tensors, and on other buffers after them.

        It reads tensors of its own device, or of `anywhere`, and writes its first one at `places`.
        """
        operands = []
        for handle in self.task.reads:
            cells = self.handles.get(handle, ())
            if not anywhere and self.place != SHARED:
                cells = tuple(cell for cell in cells if cell.place in (self.place, SHARED))
            if not cells:
                raise self.refuse(f"tensor {handle}", "it is not on this device: nothing sent it here")
            operands.append(cells[0])
        results = [cell for n in range(len(self.task.writes)) for cell in self.handle(n, *places)]
        all_reads = (*operands, *reads)
        all_writes = (*results, *writes)
        expects = tuple(self.last_writer.get(cell, START) for cell in all_reads)
        for cell in all_writes:
            self.last_writer[cell] = self.task.id
        self.program.actions.append(
            Action(self.task.id, all_reads, all_writes, kernel, joined, expects, tuple(claims), message)
        )

    def sharding(self, _rank: int, _block: int) -> Place:
        """Among how many ranks a block's states are sharded, and which shard a rank has: by default one."""
        return Place()

    @abstractmethod
    def rows(self, rank: int, microbatch: int) -> Ints:
        """The samples of the batch that a rank has in a micro-batch."""

    @abstractmethod
    def share(self, rank: int) -> Share:
        """The share of the model that a rank has."""

    @abstractmethod
    def weights(self, block: int) -> Cell:
        """The buffer from which the present task reads a block's weights."""

    @abstractmethod
    def frame(self) -> Cell:
        """The buffer of what the present task's micro-batch keeps."""

    @abstractmethod
    def target(self, block: int) -> Target:
        """The gradient of a block to which the present task adds."""

    def mode_of(self, _block: int) -> str:
        """The recompute mode of a layer."""
        return "none"

    def places(self, _rank: int) -> Ints | slice:
        """The positions of each sample that a rank has: all, unless others share its sequences."""
        return slice(None)

    def own(self, _rank: int, values: Floats) -> Floats:
        """A rank's own positions of values, if they are of all positions of its tensor peers."""
        return values

    def tokens(self, rank: int, step: int, microbatch: int, ahead: int = 0) -> tuple[Ints, Ints]:
        """Inputs and targets of a micro-batch on a rank; a module reads them `ahead` tokens later."""
        key = rank, step, microbatch, ahead
        if key not in self._words:
            rows = self.rows(rank, microbatch)
            places = self.places(rank)
            inputs, targets = self.training.words(step, ahead)
            self._words[key] = inputs[rows][:, places], targets[rows][:, places]
        return self._words[key]

    def _claim(self, quantity: str) -> Claim | None:
        """What serial training says of the first tensor that the present task makes; None: nothing."""
        model = self.training.model
        block = self.task.block
        # That of the last layer has gradients by modules too; a core alone is not repeated up to its sum.
        partly = self.task.work.op.endswith("recompute") and self.mode_of(block) == "selective"
        if not quantity or partly or (block == HEAD and model.mtp_num_layers > 0):
            return None
        of_ends = {("hidden", EMBEDDING): 0, ("gradient", HEAD): model.num_layers}
        number = of_ends.get((quantity, block), block + (quantity == "hidden"))
        return Claim(quantity, number, self.step, self.task.tag)

    def compute(
        self,
        operation: Operation,
        also_reads: Sequence[Cell] = (),
        also_writes: Sequence[Cell] = (),
        also: Callable[[Values, Sequence[Tensor | None]], list[Any]] = lambda *_: [],
    ) -> None:
        """A task that each rank runs alone; `also` makes what it writes besides from what it also reads."""
        task = self.task
        number = task.block
        ahead = max(0, number - self.training.model.num_layers + 1) if number >= 0 else 0
        present = partial(At, self, task, self.step, ahead)
        # Only modules use the model's ends.
        also_ends = [EMBEDDING, HEAD] if ahead else []
        own = {"own": [number], "experts": [EXPERTS + number], "both": [number, EXPERTS + number]}
        blocks = [*own[operation.reads], *also_ends] if operation.reads else []
        splits = bool(operation.adds) and task.work.op.endswith("dgrad")
        added = [*own[operation.adds], *also_ends[1:]] if operation.adds and not splits else []
        targets = [self.target(block) for block in added]
        loss = [Cell(self.place, f"loss[{task.tag}]", number)]
        loss = loss if operation.loss and (ahead or number == HEAD) else []
        count = len(task.reads)
        first = count + len(blocks)
        frame = self.frame()
        befores = [target.before for target in targets if target.before is not None]
        last = first + 1 + len(befores)
        sums = bool(operation.adds and operation.quantity) and self.peers > 1
        travels = self.peers > 1 and task.work.op.endswith("wgrad")

        def kernel(rank: int, *values: Any) -> tuple[Any, ...]:
            share = self.share(rank)
            layouts = share.layouts
            w: Weights = {}
            for block, flat in zip(blocks, values[count:first], strict=True):
                w |= layouts[block].views(flat)
            f: Frame = dict(values[first])
            at = present(rank, share.of_layer(number), w, values[:count], f)
            tensors, gradients = operation.run(at, operation)
            made: list[Any] = [*tensors, *([None] * (len(task.writes) - len(tensors)))]
            if sums:
                summed = layouts[number].summed
                together = [pair for pair in gradients if pair[0] in summed]
                gradients = [pair for pair in gradients if pair[0] not in summed]
                made[0] = {**made[0], "weights": layouts[number].gradient(together)}
            if splits and len(made) > 1:
                made[1] = {"of weights": gradients}
            elif splits:
                f[OF_ROUTER, number] = gradients
            if ahead and targets and targets[0].block == number:
                f[LATER_WORDS] = f.get(LATER_WORDS, 0.0) + layouts[EMBEDDING].gradient(gradients)
            totals = []
            before = iter(values[first + 1 : last])
            for place, target in enumerate(targets):
                total = layouts[target.block].gradient(gradients)
                if target.block == EMBEDDING:
                    total = total + f.pop(LATER_WORDS, 0.0)
                if travels and not place:
                    total = total + values[count - 1]["weights"]
                if target.before is not None:
                    old = next(before)
                    total = old + total if target.adds else total
                if target.after is None:
                    made[1] = total
                else:
                    totals.append(total)
            losses = [np.asarray(f.pop("loss")) for _ in loss]
            return (*made, f, *losses, *totals, *also(values[last:], made))

        reads = [*map(self.weights, blocks), frame, *befores, *also_reads]
        writes = [frame, *loss, *(target.after for target in targets if target.after), *also_writes]
        claim = self._claim(operation.quantity)
        claims = [(0, claim)] if claim and self.peers == 1 else []
        claims += [(1 + len(task.writes), Claim("loss", number, self.step, task.tag)) for _ in loss]
        of_words = operation.gives == ("statistics",)
        self.partial[task.writes[0]] = Partial(claim, number if sums else None, splits, of_words)
        self.add(kernel, reads, writes, claims=claims)
