"""Compute tasks of GPU strategies: the parts of layers, embedding and LM head, forward and backward.

Buffers besides tensors of the graph: weights and gradients; what attention passes to the MLP task of the
same layer (`attention kept`), and a block with experts to its later tasks; what is recomputed; and the
gradient that a layer's attention needs if attention and MLP are parallel (`output gradient`).

The layer of a module of multi-token prediction begins with embeddings and a projection, and ends with LM
head and loss. Both are parts of its attention and MLP tasks, which read the tables of embedding and LM head
and add to their gradients; embedding and LM head are on the same rank. The LM head of the model itself
reads the output of the last layer before the modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.layers import (
    OPERATORS,
    Attention,
    Block,
    Kept,
    combine,
    head,
    heads,
    join,
    kept_by,
    mlp,
    router,
    shared,
)
from perfsim.proof.operations import (
    Gradients,
    Part,
    Routing,
    evaluated,
    experts,
    lookup,
    loss_gradient,
    losses,
    run_part,
    statistics,
    word_gradients,
)
from perfsim.proof.parameters import EXPERTS, Place, Share, Weights
from perfsim.proof.program import Cell, Claim, Compiler, Values, per_rank
from perfsim.proof.serial import SmallTraining
from perfsim.proof.tensors import pieces
from perfsim.specs.layout import ContextExchange, ParallelLayout
from perfsim.specs.recipe import Recipe
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, SHARDED
from perfsim.work import EMBEDDING, HEAD, Task, TaskGraph

Function = Callable[[int, Weights, Values, Values], tuple[Any, ...]]
"""From a rank, the weights that its task reads, its operands and its buffers to what it writes."""
POSITIONS = 1
"""The axis of positions in hidden activations."""


class Summand(NamedTuple):
    """A gradient and those of weights that every tensor peer holds whole: both are summed over peers."""

    values: Floats
    gradients: Floats
    """Of the whole block, zero for weights that are divided."""


def plain(value: Any) -> Any:
    """A tensor of the graph without what travels with it."""
    return value.values if isinstance(value, Summand) else value


class Rows(NamedTuple):
    """Rows of tokens on their way: a vector for each, and the expert that it is for."""

    values: Floats
    expert: Ints


class Partial(NamedTuple):
    """A partial sum until its collective: the claim about it then."""

    claim: Claim | None
    statistics: bool = False
    carries: int | None = None
    """The block of which gradients are summed with it."""
    later: bool = False
    """Whether a task of its own adds them to the block's, not the collective."""
    axis: int | None = None
    """The axis along which it is split, if it is."""


def places_of(length: int, ranks: int, rank: int, exchange: ContextExchange) -> tuple[int, ...]:
    """The positions of a sequence on one of the ranks that share it.

    In a ring, one part from each end, so that causal attention is equal work; else consecutive ones.
    """
    parts = 2 * ranks if exchange == "ring" else ranks
    numbers = (rank, parts - 1 - rank) if exchange == "ring" else (rank,)
    size = length // parts
    return tuple(place for part in numbers for place in range(part * size, (part + 1) * size))


class GpuCompute(Compiler):
    """Compiles the compute tasks of one GPU plan."""

    def __init__(
        self, graph: TaskGraph, training: SmallTraining, layout: ParallelLayout, recipe: Recipe
    ) -> None:
        super().__init__(graph, training)
        self.layout = layout
        self.recipe = recipe
        self.recomputed = {task.block for task in graph.tasks() if task.work.category == "recompute"}
        """Layers whose activations are computed again."""
        period = math.lcm(layout.tensor * layout.context, layout.expert * layout.expert_tensor)
        self.shares = [self._share(rank) for rank in range(period)]
        self.partial: dict[int, Partial] = {}
        self.slot_of: dict[tuple[int, int], Cell] = {}
        """Slot of the gathered weights of a block."""
        self.bucket_of: dict[tuple[int, int], Cell] = {}
        self.first_in: dict[Cell, int] = {}
        """The block whose gradients a bucket of ZeRO 2 holds first."""
        self.homes: dict[int, list[int]] = {}
        """Blocks of each device."""
        self.pending: dict[int, dict[int, None]] = {}
        """Blocks of each device whose gradients wait for their reduction."""

    # ---------------------------------------------------------------------------------- shares
    def mode_of(self, block: int) -> str:
        """The recompute mode of a layer; `operators` where selective is by operator."""
        if block not in self.recomputed:
            return "none"
        framework = self.recipe.runtime.stack
        mode = self.layout.recompute
        by_operator = framework is not None and framework.selective != "core"
        return OPERATORS if mode == "selective" and by_operator else mode

    @property
    def scattered(self) -> bool:
        """Whether gradients are reduced after every micro-batch (ZeRO 2 and 3)."""
        stage = self.layout.zero_stage
        return stage == SHARDED or (stage == GRADIENTS_SHARDED and self.layout.replicas > 1)

    def scatters_block(self, block: int) -> bool:
        """Whether a block's gradients are reduced after every micro-batch; other ranks must hold it too."""
        return self.scattered and (block < EXPERTS or self.layout.expert_replicas > 1)

    def share(self, rank: int) -> Share:
        """The share of a rank, by its offset among peers: tensor innermost, then context, then data."""
        return self.shares[rank % len(self.shares)]

    def _share(self, rank: int) -> Share:
        layout = self.layout
        length = self.training.seq_length
        places = None
        if layout.context > 1:
            number = rank // layout.tensor % layout.context
            places = places_of(length, layout.context, number, layout.context_exchange)
        return Share(
            self.training.model,
            length,
            Place(layout.tensor, rank % layout.tensor),
            places,
            Place(layout.expert, rank // layout.expert_tensor % layout.expert),
            Place(layout.expert_tensor, rank % layout.expert_tensor),
        )

    def places(self, rank: int) -> Ints | slice:
        """The positions of each sample that a rank has."""
        return slice(None) if self.layout.context == 1 else np.array(self.share(rank).places)

    def rows(self, rank: int, microbatch: int) -> Ints:
        """The samples of the batch that a rank has in a micro-batch."""
        size = self.layout.micro_batch_size
        replica = rank // (self.layout.tensor * self.layout.context) % self.layout.data
        first = (microbatch * self.layout.data + replica) * size
        return np.arange(first, first + size)

    def own(self, rank: int, values: Any, axis: int = POSITIONS) -> Any:
        """A rank's own positions of values, if they are of all positions of its tensor peers."""
        peers = self.layout.tensor
        if peers == 1 or values.shape[axis] < len(self.share(rank).places):
            return values
        return pieces(values, peers, axis)[rank % peers]

    # ----------------------------------------------------------------------------------- cells
    def cell(self, name: str, block: int | None = None) -> Cell:
        """A buffer of the present task's device."""
        return Cell(self.place, name, self.task.block if block is None else block)

    def of_microbatch(self, name: str, block: int | None = None) -> Cell:
        """A buffer of the present micro-batch."""
        return self.cell(f"{name}[{self.task.tag}]", block)

    def weights(self, block: int) -> Cell:
        """Buffer of a block's weights: its own, or the slot in which they were gathered."""
        return self.slot_of.get((self.place, block), self.cell("weights", block))

    def gradient(self, block: int, *, begins: bool = False) -> Cell:
        """Buffer in which a block's gradients are computed; under ZeRO 2 two buckets are used in turn."""
        if not (self.layout.zero_stage == GRADIENTS_SHARDED and self.scatters_block(block) and block >= 0):
            return self.cell("gradient", block)
        if begins:
            name = "slot of gradients" if block < EXPERTS else "slot of gradients of experts"
            bucket = self.bucket_of[self.place, block] = self.in_turn(name)[0]
            self.first_in.setdefault(bucket, block)
        return self.bucket_of[self.place, block]

    # --------------------------------------------------------------------------------- actions
    def compute(
        self,
        function: Function,
        blocks: Sequence[int] = (),
        reads: Sequence[Cell] = (),
        writes: Sequence[Cell] = (),
        claims: Sequence[tuple[int, Claim]] = (),
    ) -> None:
        """A task that each rank runs alone, with the weights of some blocks."""
        operands = self.operands()
        count = len(operands)
        held = count + len(blocks)

        def kernel(rank: int, *values: Any) -> tuple[Any, ...]:
            layouts = self.share(rank).layouts
            w: Weights = {}
            for block, flat in zip(blocks, values[count:held], strict=True):
                w |= layouts[block].views(flat)
            return function(rank, w, values[:count], values[held:])

        of_blocks = map(self.weights, blocks)
        writes = [*self.results(), *writes]
        self.add([*operands, *of_blocks, *reads], writes, per_rank(kernel), claims=claims)

    def completes(self, quantity: str, number: int, carries: int | None = None) -> list[tuple[int, Claim]]:
        """Claim the first tensor of the task, now or once the parts of the tensor peers are summed.

        `carries` is the block whose gradients come with it.
        """
        claim = Claim(quantity, number, self.step, self.task.tag)
        if self.layout.tensor > 1:
            later = self.task.work.op.endswith("dgrad")
            self.partial[self.task.writes[0]] = Partial(claim, carries=carries, later=later)
            return []
        return [(0, claim)]

    def needs(self, count: int) -> None:
        """Refuse a task with fewer operands than its operation has."""
        if len(self.task.reads) < count:
            detail = f"it reads {len(self.task.reads)} tensors, {self.task.work.op} needs {count}"
            raise self.refuse("its operands", detail)

    def _part(self, function: Callable[..., Any], rank: int, w: Weights, *values: Floats) -> Part:
        """A part of the model on a rank."""
        return run_part(function, w, self.share(rank), *values)

    @property
    def ahead(self) -> int:
        """By how many tokens the inputs of the present task's module are later; 0 if it is of none."""
        block = self.task.block
        return max(0, block - self.training.model.num_layers + 1) if block < EXPERTS else 0

    def blocks_with(self, *of_module: int) -> list[int]:
        """The block of the present task, and others if it is of a module."""
        return [self.task.block, *(of_module if self.ahead else ())]

    # --------------------------------------------------------------------------------- forward
    def embedding_forward(self, _: Task) -> None:
        """Look up the words."""
        tokens = self.tokens()

        def run(rank: int, w: Weights, *_: Values) -> tuple[Any, ...]:
            return (self._part(partial(lookup, tokens=tokens(rank)[0]), rank, w).value,)

        self.compute(run, [EMBEDDING], claims=self.completes("hidden", 0))

    def attention_begin(self) -> Callable[[int, Weights, Any], Attention]:
        """How a rank makes queries, keys and values, from the layer's input or what is kept of it."""
        ahead = self.ahead
        tokens = self.tokens(ahead)
        block = self.task.block

        def begin(rank: int, w: Weights, source: Any) -> Attention:
            share = self.share(rank).of_layer(block)
            before, kept = (source.before, source.results) if isinstance(source, Kept) else (source, None)
            joint = run_part(partial(join, tokens=tokens(rank)[0]), w, share, before) if ahead else None
            x = before if joint is None else joint.value
            return Attention(before, run_part(heads, w, share, x, kept=kept), joint, results=kept)

        return begin

    def of_model(self) -> list[Cell]:
        """Where the first module keeps the output of the model's own last layer, for the model's LM head."""
        return [self.of_microbatch("output of the model itself", HEAD)] if self.ahead == 1 else []

    def attention_forward(self, task: Task) -> None:
        """Attention block; the MLP task passes its kept activations on."""
        self.needs(1)
        begin = self.attention_begin()
        outside = self.of_model()

        def run(rank: int, w: Weights, operands: Values, _: Values) -> tuple[Any, ...]:
            made = begin(rank, w, operands[0]).with_core(w, self.share(rank).of_layer(task.block))
            return made.made_output.value, made, *(operands[0] for _ in outside)

        claims = self.completes("attention", task.block)
        self.compute(run, self.blocks_with(EMBEDDING), [], [self.cell("attention kept"), *outside], claims)

    def mlp_forward(self, task: Task) -> None:
        """MLP block, and the activations that the layer keeps for its backward."""
        self.needs(2)
        mode = self.mode_of(task.block)
        ends, logits = self._module_end()

        def run(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            kept: Attention = buffers[0]
            part = self._part(mlp, rank, w, kept.x if logits else operands[1], operands[0])
            return part.value, kept_by(mode, self.recipe, kept, part), *ends(rank, w, part.value)

        claims = self.completes("hidden", task.block + 1)
        self.compute(run, self.blocks_with(HEAD), [self.cell("attention kept")], logits, claims)

    def _module_end(self) -> tuple[Callable[[int, Weights, Floats], list[Any]], list[Cell]]:
        """LM head of a module behind its layer, and the buffer of its scores."""
        if not self.ahead:
            return lambda *_: [], []
        tokens = self.tokens(self.ahead)

        def ends(rank: int, w: Weights, y: Floats) -> list[Any]:
            targets = tokens(rank)[1]
            part = self._part(partial(head, length=targets.shape[1], name="mtp_norm"), rank, w, y)
            return [(part, statistics(part.value, targets, self.share(rank)))]

        return ends, [self.of_microbatch("logits")]

    def attention_recompute(self, task: Task) -> None:
        """Recompute of the attention block, or of its core alone."""
        self.needs(2)
        begin = self.attention_begin()

        def run(rank: int, w: Weights, operands: Values, _: Values) -> tuple[Any, ...]:
            saved: Kept = operands[0]
            block = saved.attention or begin(rank, w, saved)
            made = block.with_core(w, self.share(rank).of_layer(task.block))
            return made.made_output.value, made

        claims = self.completes("attention", task.block) if self.mode_of(task.block) != "selective" else []
        self.compute(run, self.blocks_with(EMBEDDING), [], [self.cell("recomputed attention")], claims)

    def mlp_recompute(self, task: Task) -> None:
        """Recompute of the MLP block."""
        self.needs(1)

        def run(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            attention: Attention = buffers[0]
            part = run_part(mlp, w, self.share(rank), attention.x, operands[0], kept=attention.results)
            return part.value, part

        reads = [self.cell("recomputed attention")]
        claims = self.completes("hidden", task.block + 1)
        self.compute(run, [task.block], reads, [self.cell("recomputed MLP")], claims)

    def head_forward(self, task: Task) -> None:
        """Logits and the statistics of their softmax; modules may precede the LM head."""
        self.needs(1)
        tokens = self.tokens()
        outside = self._own_output()

        def run(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            y = buffers[0] if outside else operands[0]
            targets = tokens(rank)[1]
            part = self._part(partial(head, length=targets.shape[1]), rank, w, y)
            return statistics(part.value, targets, self.share(rank)), part

        if self.layout.tensor > 1:
            self.partial[task.writes[0]] = Partial(None, statistics=True)
        self.compute(run, [HEAD], outside, [self.of_microbatch("logits")])

    def _own_output(self) -> list[Cell]:
        """Where the output of the model's own last layer is, if modules follow it."""
        name = "output of the model itself"
        return [self.of_microbatch(name, HEAD)] if self.training.model.mtp_num_layers else []

    # -------------------------------------------------------------------------------- backward
    def attention_kept(self, block: int) -> tuple[list[Cell], list[Cell]]:
        """Buffers with recomputed attention, and with the layer's output gradient, if there are some."""
        recomputed = [self.cell("recomputed attention")] if self.mode_of(block) != "none" else []
        parallel = self.training.model.norms_per_layer == 1
        return recomputed, [self.cell("output gradient")] if parallel else []

    def attention_backward(self, task: Task) -> None:
        """The backward of an attention block, or its input gradient alone."""
        self.needs(2)
        recomputed, beside = self.attention_kept(task.block)

        def run(_: int, w: Weights, operands: Values, buffers: Values) -> tuple[Floats, Gradients]:
            kept: Attention = buffers[0] if recomputed else operands[1].attention
            dy = buffers[len(recomputed)] if beside else plain(operands[0])
            (d_context,), of_output = kept.made_output.backward(w, dy)
            d_heads, __ = kept.core.backward(w, d_context)
            (dx,), of_heads = kept.heads.backward(w, *d_heads)
            return dx, of_output + of_heads

        self.attention_end(run, [*recomputed, *beside], bool(recomputed))

    def attention_end(
        self, inner: Callable[..., tuple[Floats, Gradients]], reads: list[Cell], recomputes: bool
    ) -> None:
        """The backward of an attention block to the layer's input, which the gradient of its MLP passes by.

        In a module the layer's input was joined with words, of which the gradients are kept for the
        embedding.
        """
        task = self.task
        first = self.ahead == 1
        whole = [self.of_microbatch("gradient of the model itself", HEAD)] if first else []

        def run(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            dx, gradients = inner(rank, w, operands, buffers)
            if self.share(rank).leads:
                dx = dx + plain(operands[0])
            joint = (buffers[0] if recomputes else operands[1].attention).join
            if joint is not None:
                (dx,), of_joint = joint.backward(w, dx)
                gradients = gradients + of_joint
            return (dx + buffers[-1] if first else dx), gradients

        claims = self.completes("gradient", task.block, task.block)
        self.backward(run, self.blocks_with(EMBEDDING), [*reads, *whole], claims=claims, begins=False)

    def mlp_backward(self, task: Task) -> None:
        """The backward of an MLP block, or its input gradient alone.

        If attention and MLP are parallel, it stores the layer's output gradient for the attention.
        """
        self.needs(2)
        recomputed = [self.cell("recomputed MLP")] if self.mode_of(task.block) in ("full", OPERATORS) else []
        beside = [self.cell("output gradient")] if self.training.model.norms_per_layer == 1 else []
        ends, reads, writes, claims = self._module_loss()

        def run(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            dy, of_head, left = ends(rank, w, operands[0], buffers[-1] if reads else None)
            part: Part = buffers[0] if recomputed else operands[1].mlp
            (dx, _), gradients = part.backward(w, dy)
            return dx, gradients + of_head, *([dy] if beside else []), *left

        claims = [(place + len(beside), claim) for place, claim in claims]
        made = self.completes("middle", task.block, task.block)
        self.backward(run, self.blocks_with(HEAD), [*recomputed, *reads], [*beside, *writes], made, claims)

    def _module_loss(self) -> tuple[Callable[..., Any], list[Cell], list[Cell], list[tuple[int, Claim]]]:
        """The backward of a module's own loss, with the buffers that it reads and writes.

        It makes the gradient of the layer's output, by its own loss and if it is not the last by later
        ones, the gradients of weights, and what it leaves.
        """
        if not self.ahead:
            return lambda _, __, d, ___: (plain(d), [], []), [], [], []
        last = self.ahead == self.training.model.mtp_num_layers
        tokens = self.tokens(self.ahead)
        count = self.training.num_later_tokens

        def ends(rank: int, w: Weights, d: Floats, kept: tuple[Part, Floats]) -> Any:
            part, of_tokens = kept
            gradient = loss_gradient(part.value, of_tokens, tokens(rank)[1], count, self.share(rank))
            (dy,), gradients = part.backward(w, gradient)
            loss = np.asarray(losses(of_tokens, count).sum())
            return (dy, gradients, [loss, d]) if last else (dy + d, gradients, [loss])

        main = [self.of_microbatch("gradient of the model itself", HEAD)] if last else []
        claims = [(0, Claim("loss", self.task.block, self.step, self.task.tag))]
        return ends, [self.of_microbatch("logits")], [self.of_microbatch("loss"), *main], claims

    def backward(
        self,
        run: Callable[..., tuple[Any, ...]],
        blocks: Sequence[int],
        reads: Sequence[Cell] = (),
        writes: Sequence[Cell] = (),
        claims: Sequence[tuple[int, Claim]] = (),
        later_claims: Sequence[tuple[int, Claim]] = (),
        *,
        begins: bool = True,
        leaves: Sequence[Cell] = (),
    ) -> None:
        """Write the input gradient, and the weight gradients or what their later task computes them from.

        `run` makes the input gradient, the gradients of weights, and what `writes` are. `later_claims` are
        about `writes`. Where a split backward has no tensor for the gradients of weights, they are in
        `leaves`.
        """
        task = self.task
        block = task.block
        whole = task.work.op.endswith("backward")
        targets = self.targets(begins=begins) if whole else []
        words = [self.of_microbatch("gradient of later words")] if whole and self.ahead and not begins else []
        carries = self.layout.tensor > 1

        def kernel(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            dx, gradients, *left = run(rank, w, operands, buffers[: len(reads)])
            layout = self.share(rank).layouts[block]
            if carries:
                with_it = [pair for pair in gradients if pair[0] in layout.summed]
                gradients = [pair for pair in gradients if pair[0] not in layout.summed]
                dx = Summand(dx, layout.flat(evaluated(with_it)))
            if not whole:
                return dx, gradients, *left
            return dx, *left, *self.added(rank, targets, words, gradients, buffers[len(reads) :])

        cells = [cell for _, cell, _ in targets]
        first = len(task.writes)
        claims = [*claims, *((first + place, claim) for place, claim in later_claims)]
        self.compute(kernel, blocks, [*reads, *cells], [*leaves, *writes, *cells, *words], claims)

    def targets(self, *, begins: bool) -> list[tuple[int, Cell, bool]]:
        """The blocks to whose gradients the present task adds, their buffers, and whether something is there.

        The first task of a micro-batch begins them where they are reduced after every one. A reduction must
        follow.
        """
        block = self.task.block
        made = {
            "experts.wgrad": [block, EXPERTS + block],
            "experts.backward": [EXPERTS + block],
        }.get(self.task.work.op, [block])
        targets = []
        for number in made:
            self.pending.setdefault(self.place, {})[number] = None
            adds = not (begins and self.scatters_block(number))
            targets.append((number, self.gradient(number, begins=begins), adds))
        if self.ahead and begins and made[0] == block:
            targets.append((HEAD, self.gradient(HEAD), True))
        return targets

    def added(
        self,
        rank: int,
        targets: Sequence[tuple[int, Cell, bool]],
        words: Sequence[Cell],
        gradients: Gradients,
        before: Values,
    ) -> list[Floats]:
        """The gradients of blocks with those that a task makes, and those of later words alone."""
        layouts = self.share(rank).layouts
        made = list(evaluated(gradients))
        sums = [
            layouts[number].flat(made) + (old if adds else 0.0)
            for (number, _, adds), old in zip(targets, before, strict=False)
        ]
        return [*sums, *(layouts[EMBEDDING].flat(made) for _ in words)]

    def weight_pass(self, task: Task) -> None:
        """Weight gradients of a block from what its dgrad task left, and from sums over the tensor peers."""
        self.needs(1)
        begins = not task.work.op.startswith("attention")
        targets = self.targets(begins=begins)
        words = [self.of_microbatch("gradient of later words")] if self.ahead and not begins else []
        summed = self.layout.tensor > 1
        experts = task.work.op == "experts.wgrad"
        left = [self.of_microbatch("gradients of the router")] if experts and not summed else []
        cells = [cell for _, cell, _ in targets]

        def run(rank: int, _: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            gradients = operands[0] + (buffers[-1] if left else [])
            made = self.added(rank, targets, words, gradients, buffers)
            if summed:
                made[0] = made[0] + operands[-1].gradients
            return None, *made

        self.compute(run, [], [*cells, *left], [*cells, *words])

    def embedding_backward(self, _task: Task) -> None:
        """Gradients of words and positions, with those by modules."""
        self.needs(1)
        tokens = self.tokens()
        ((_, buffer, adds),) = self.targets(begins=True)
        count = self.training.model.num_layers
        modules = range(count, count + self.training.model.mtp_num_layers)

        def run(rank: int, _: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            share = self.share(rank)
            gradients = word_gradients(plain(operands[0]), tokens(rank)[0], share)
            made = sum(buffers[1:], share.layouts[EMBEDDING].flat(evaluated(gradients)))
            return None, (buffers[0] + made if adds else made)

        later = [self.of_microbatch("gradient of later words", layer) for layer in modules]
        self.compute(run, [], [buffer, *later], [buffer])

    def head_backward(self, task: Task) -> None:
        """The whole backward of loss and LM head, or its input gradient alone."""
        self.needs(1)
        tokens = self.tokens()
        count = self.training.num_tokens

        def run(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            part: Part = buffers[0]
            gradient = loss_gradient(part.value, operands[0], tokens(rank)[1], count, self.share(rank))
            (dx,), gradients = part.backward(w, gradient)
            return dx, gradients, np.asarray(losses(operands[0], count).sum())

        claims = self.completes("gradient", self.training.model.num_layers, HEAD)
        if self.training.model.mtp_num_layers:
            claims = []  # that of the last layer has gradients by modules too
        loss = [(0, Claim("loss", HEAD, self.step, task.tag))]
        reads = [self.of_microbatch("logits")]
        self.backward(run, [HEAD], reads, [self.of_microbatch("loss")], claims, loss)

    def hand_on(self, _: Task) -> None:
        """Pass the tensor to the next stage of the same device."""
        self.needs(1)
        self.compute(lambda _, __, operands, ___: (operands[0],))

    # --------------------------------------------------------------------------------- experts
    def routing(self, rank: int, step: int, block: int, microbatch: int) -> Routing:
        """The experts of the tokens of a rank, at its own positions among those of its tensor peers."""
        whole = self.training.routing(step, block)
        places = np.array(self.share(rank).places)
        return whole.of(self.rows(rank, microbatch), self.own(rank, places, axis=0))

    def router_forward(self, task: Task) -> None:
        """Norm, router, and a row for every slot of a token."""
        self.needs(1)
        step = self.step
        recomputes = task.work.op.endswith("recompute")
        inner = recomputes or self.ahead > 0
        attended = [self.cell("recomputed attention" if recomputes else "attention kept")] if inner else []

        def run(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            x = self.own(rank, buffers[0].x if inner else operands[1])
            part = self._part(router, rank, w, x, operands[0])
            routing = self.routing(rank, step, task.block, task.tag)
            return Rows(part.values[2], routing.expert.ravel()), (part, routing)

        self.compute(run, [task.block], attended, [self.cell("router kept")])

    def shared_forward(self, task: Task) -> None:
        """Shared experts, while rows travel."""

        def run(rank: int, w: Weights, _: Values, buffers: Values) -> tuple[Any, ...]:
            part = self._part(shared, rank, w, buffers[0][0].values[1])
            return part.value, part

        self.compute(run, [task.block], [self.cell("router kept")], [self.cell("shared kept")])

    def experts_forward(self, task: Task) -> None:
        """The rank's experts on the rows that arrived."""
        self.needs(1)
        home = self.homes[self.place]
        if EXPERTS + task.block not in home:
            home.append(EXPERTS + task.block)

        def run(rank: int, w: Weights, operands: Values, _: Values) -> tuple[Any, ...]:
            rows: Rows = operands[0]
            part = self._part(partial(experts, expert=rows.expert), rank, w, rows.values)
            return Rows(part.value, rows.expert), part

        self.compute(run, [EXPERTS + task.block], [], [self.cell("experts kept")])

    def combine_forward(self, task: Task) -> None:
        """Rows summed to tokens; what the block keeps goes to the backward, or to that of its recompute."""
        self.needs(1)
        recomputes = task.work.op.endswith("recompute")
        mode = self.mode_of(task.block)
        beside = self._of_shared(task)
        kept_beside = [self.cell("shared kept")] if self._has_shared else []
        attended = [] if recomputes else [self.cell("attention kept")]
        ends, logits = ((lambda *_: []), []) if recomputes else self._module_end()

        def run(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            (of_router, routing), of_experts, *rest = buffers
            total, _, _, p = of_router.values
            function = partial(combine, routing=routing)
            shared_out = [] if beside is None else [operands[beside]]
            part = self._part(function, rank, w, operands[0].values, total, p, *shared_out)
            block = Block(routing, of_router, of_experts, rest[0] if kept_beside else None, part)
            if recomputes:
                return part.value, block
            return part.value, kept_by(mode, self.recipe, rest[-1], block), *ends(rank, w, part.value)

        reads = [self.cell("router kept"), self.cell("experts kept"), *kept_beside, *attended]
        writes = [self.cell("recomputed MLP")] if recomputes else logits
        blocks = [task.block, HEAD] if logits else []
        self.compute(run, blocks, reads, writes, self.completes("hidden", task.block + 1))

    @property
    def _has_shared(self) -> bool:
        experts = self.training.model.experts
        return experts is not None and experts.shared_ffn_hidden_size > 0

    def _of_shared(self, task: Task) -> int | None:
        """Which operand is what shared experts made, if there are some."""
        works = [self.graph.task(int(self.graph.writer[read])).work for read in task.reads]
        return next((n for n, work in enumerate(works) if work.name.startswith("shared_experts")), None)

    def combine_backward(self, task: Task) -> None:
        """Gradients of rows from those of tokens."""
        self.needs(2)
        again = [self.cell("recomputed MLP")] if self.mode_of(task.block) == "full" else []
        ends, reads, writes, claims = self._module_loss()

        def run(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            block: Block = buffers[0] if again else operands[1].mlp
            dy, of_head, left = ends(rank, w, operands[0], buffers[-1] if reads else None)
            d, _ = block.combine.backward(w, self.own(rank, dy))
            return Rows(d[0], block.routing.expert.ravel()), (block, d, of_head), *left

        kept = self.cell("block backward")
        claims = [(2 + place, claim) for place, claim in claims]
        blocks = [task.block, HEAD] if reads else []
        self.compute(run, blocks, [*again, *reads], [kept, *writes], claims)

    def shared_backward(self, task: Task) -> None:
        """Backward of shared experts, while gradients of rows travel."""

        def run(_: int, w: Weights, __: Values, buffers: Values) -> tuple[Any, ...]:
            block, d, ___ = buffers[0]
            (dz,), gradients = block.shared.backward(w, d[3])
            return dz, gradients

        kept = self.cell("gradients of shared experts")
        self.compute(run, [task.block], [self.cell("block backward")], [kept])

    def experts_backward(self, task: Task) -> None:
        """Backward of the rank's experts, with the gradients of their weights or the inputs of these."""
        self.needs(1)
        block = EXPERTS + task.block
        targets = self.targets(begins=True) if task.work.op.endswith("backward") else []

        def run(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            rows: Rows = operands[0]
            (dx,), gradients = buffers[0][0].experts.backward(w, rows.values)
            made = self.added(rank, targets, (), gradients, buffers[1:]) if targets else [gradients]
            return Rows(dx, rows.expert), *made

        cells = [cell for _, cell, _ in targets]
        self.compute(run, [block], [self.cell("block backward"), *cells], cells)

    def router_backward(self, task: Task) -> None:
        """Gradient of the block's input, and those of router, norm and shared experts.

        Tensor peers have their own positions, so these gradients are summands that the next collective sums.
        """
        self.needs(1)
        beside = [self.cell("gradients of shared experts")] if self._has_shared else []
        place = self._of_shared(task)
        whole = task.work.op.endswith("backward")
        split = not whole and self.layout.tensor == 1

        def run(_: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            block, d, gradients = buffers[0]
            z = block.router.values[1]
            dz = np.zeros_like(z) if place is None else operands[place]
            inputs, of_router = block.router.backward(w, d[1], dz, operands[0].values, d[2])
            return inputs[0], of_router + gradients + (buffers[1] if beside else [])

        leaves = [self.of_microbatch("gradients of the router")] if split else []
        claims = self.completes("middle", task.block, task.block)
        reads = [self.cell("block backward"), *beside]
        if whole or split:
            self.backward(run, [task.block], reads, claims=claims, leaves=leaves)
            return

        def carried(rank: int, w: Weights, operands: Values, buffers: Values) -> tuple[Any, ...]:
            dx, gradients = run(rank, w, operands, buffers)
            return (Summand(dx, self.share(rank).layouts[task.block].flat(evaluated(gradients))),)

        self.compute(carried, [task.block], reads, [], claims)
