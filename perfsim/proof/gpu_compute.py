"""Compute tasks of GPU strategies: layers, embedding and LM head, forward and backward.

Buffers besides tensors of the graph: weights and gradients; activations that attention passes to the MLP
task of the same layer (`attention kept`); recomputed activations; and the gradient that a layer's attention
needs if attention and MLP are parallel (`output gradient`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.experts import OPERATORS, Kept, kept_by
from perfsim.proof.layers import (
    HeadInputs,
    Linears,
    attention_forward,
    embedding_backward,
    embedding_forward,
    head_forward,
    losses_of,
    mlp_forward,
)
from perfsim.proof.program import Cell, Claim, Compiler, per_rank
from perfsim.proof.serial import SmallTraining
from perfsim.proof.shares import EXPERTS, Share, Weights
from perfsim.specs.layout import ContextExchange, ParallelLayout
from perfsim.specs.recipe import Recipe
from perfsim.work import EMBEDDING, HEAD, Task, TaskGraph

SHARDED_GRADIENTS = 2
SHARDED_PARAMETERS = 3


Values = Sequence[Any]
Function = Callable[[int, Values, Values], tuple[Any, ...]]


class Partial(NamedTuple):
    """A partial sum until its collective: the claim about it then, and the norm summed with it."""

    claim: Claim | None
    statistics: bool = False
    norm: tuple[str, int] | None = None
    """Name and block of the norm whose partial gradients come with this tensor."""
    later: int | None = None
    """The micro-batch whose wgrad task takes the norm's gradients, if there is one."""
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
        return stage == SHARDED_PARAMETERS or (stage == SHARDED_GRADIENTS and self.layout.replicas > 1)

    def scatters_block(self, block: int) -> bool:
        """Whether a block's gradients are reduced after every micro-batch; other ranks must hold it too."""
        return self.scattered and (block < EXPERTS or self.layout.expert_replicas > 1)

    def share(self, rank: int) -> Share:
        """The share of a rank, by its offset among peers: tensor innermost, then context, then data."""
        return self.shares[rank % len(self.shares)]

    def _share(self, rank: int) -> Share:
        layout = self.layout
        model = self.training.model
        length = self.training.seq_length
        places = None
        if layout.context > 1:
            places = places_of(
                length, layout.context, rank // layout.tensor % layout.context, layout.context_exchange
            )
        return Share(
            model,
            length,
            layout.tensor,
            rank % layout.tensor,
            places,
            layout.expert,
            rank // layout.expert_tensor % layout.expert,
            layout.expert_tensor,
            rank % layout.expert_tensor,
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

    def views(self, rank: int, block: int, flat: Floats) -> Weights:
        """The named weights of a block on a rank."""
        return self.share(rank).layouts[block].views(flat)

    def flat(self, rank: int, block: int, parts: Weights) -> Floats:
        """Named gradients of a block on a rank as a flat vector."""
        return self.share(rank).layouts[block].flat(parts)

    # ----------------------------------------------------------------------------------- cells
    def cell(self, name: str, block: int | None = None) -> Cell:
        """A buffer of the present task's device."""
        return Cell(self.place, name, self.task.block if block is None else block)

    def weights(self, block: int) -> Cell:
        """Buffer of a block's weights: its own, or the slot in which they were gathered."""
        return self.slot_of.get((self.place, block), self.cell("weights", block))

    def gradient(self, block: int, *, begins: bool) -> Cell:
        """Buffer in which a block's gradients are computed; under ZeRO 2 two buckets are used in turn."""
        if not (self.layout.zero_stage == SHARDED_GRADIENTS and self.scatters_block(block) and block >= 0):
            return self.cell("gradient", block)
        if begins:
            name = "slot of gradients" if block < EXPERTS else "slot of gradients of experts"
            bucket = self.bucket_of[self.place, block] = self.in_turn(name)[0]
            self.first_in.setdefault(bucket, block)
        return self.bucket_of[self.place, block]

    def norm_cells(self, name: str, block: int, later: int | None = None) -> tuple[Cell, Cell]:
        """Gradients of a norm: this rank's part, and the sum over the tensor peers.

        The sum is added to that of earlier micro-batches, or kept for the wgrad task of its own. Parts are
        small, so each micro-batch has its own buffer.
        """
        total = f"{name} gradient" if later is None else f"{name} sum[{later}]"
        return self.cell(f"{name} part[{self.task.tag}]", block), self.cell(total, block)

    # --------------------------------------------------------------------------------- actions
    def compute(
        self,
        function: Function,
        reads: Sequence[Cell] = (),
        writes: Sequence[Cell] = (),
        claims: Sequence[tuple[int, Claim]] = (),
    ) -> None:
        """A task that each rank runs alone: `function(rank, operands of the graph, buffers)`."""
        operands = self.operands()
        count = len(operands)

        def kernel(rank: int, *values: Any) -> tuple[Any, ...]:
            return function(rank, values[:count], values[count:])

        self.add([*operands, *reads], [*self.results(), *writes], per_rank(kernel), claims=claims)

    def completes(
        self, quantity: str, number: int, norm: tuple[str, int] | None = None
    ) -> list[tuple[int, Claim]]:
        """Claim the first tensor of the task, now or once the parts of the tensor peers are summed.

        `norm` is the norm of a block whose gradients come with it.
        """
        claim = Claim(quantity, number, self.step, self.task.tag)
        if self.layout.tensor > 1:
            later = self.task.tag if self.task.work.op.endswith("dgrad") else None
            self.partial[self.task.writes[0]] = Partial(claim, norm=norm, later=later)
            return []
        return [(0, claim)]

    def needs(self, count: int) -> None:
        """Refuse a task with fewer operands than its operation has."""
        if len(self.task.reads) < count:
            detail = f"it reads {len(self.task.reads)} tensors, {self.task.work.op} needs {count}"
            raise self.refuse("its operands", detail)

    # --------------------------------------------------------------------------------- forward
    def embedding_forward(self, _: Task) -> None:
        """Look up the words."""
        tokens = self.tokens()

        def run(rank: int, __: Values, buffers: Values) -> tuple[Any, ...]:
            w = self.views(rank, EMBEDDING, buffers[0])
            return (embedding_forward(w, tokens(rank)[0], self.share(rank)),)

        self.compute(run, [self.weights(EMBEDDING)], claims=self.completes("hidden", 0))

    def attention_forward(self, task: Task) -> None:
        """Attention block; the MLP task passes its kept activations on."""
        self.needs(1)

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            share = self.share(rank).of_layer(task.block)
            return attention_forward(self.views(rank, task.block, buffers[0]), operands[0], share)

        claims = self.completes("attention", task.block)
        self.compute(run, [self.weights(task.block)], [self.cell("attention kept")], claims)

    def mlp_forward(self, task: Task) -> None:
        """MLP block, and the activations that the layer keeps for its backward."""
        self.needs(2)
        mode = self.mode_of(task.block)

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            (attention, x), (flat, kept) = operands[:2], buffers
            y, mlp = mlp_forward(self.views(rank, task.block, flat), x, attention, self.share(rank))
            return y, kept_by(mode, self.recipe, self.share(rank), kept, mlp)

        reads = [self.weights(task.block), self.cell("attention kept")]
        self.compute(run, reads, claims=self.completes("hidden", task.block + 1))

    def attention_recompute(self, task: Task) -> None:
        """Recompute of the attention block, or of its core alone."""
        self.needs(2)

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            saved: Kept = operands[0]
            share = self.share(rank).of_layer(task.block)
            if saved.attention is not None:
                recomputed = saved.attention.with_core(share)
                return recomputed.context, recomputed
            w = self.views(rank, task.block, buffers[0])
            return attention_forward(w, saved.x, share, saved.results, saved.context)

        claims = self.completes("attention", task.block) if self.mode_of(task.block) != "selective" else []
        self.compute(run, [self.weights(task.block)], [self.cell("recomputed attention")], claims)

    def mlp_recompute(self, task: Task) -> None:
        """Recompute of the MLP block."""
        self.needs(1)

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            flat, kept = buffers
            w = self.views(rank, task.block, flat)
            return mlp_forward(w, kept.x, operands[0], self.share(rank), kept.results)

        reads = [self.weights(task.block), self.cell("recomputed attention")]
        self.compute(run, reads, [self.cell("recomputed MLP")], self.completes("hidden", task.block + 1))

    def head_forward(self, task: Task) -> None:
        """Logits and the statistics of their softmax."""
        self.needs(1)
        tokens = self.tokens()

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            w = self.views(rank, HEAD, buffers[0])
            targets = tokens(rank)[1]
            return head_forward(w, operands[0], targets, self.share(rank))

        if self.layout.tensor > 1:
            self.partial[task.writes[0]] = Partial(None, statistics=True)
        self.compute(run, [self.weights(HEAD)], [self.cell(f"logits[{task.tag}]")])

    # -------------------------------------------------------------------------------- backward
    def layer_backward(self, task: Task) -> None:
        """A block's whole backward, or its input gradients alone.

        If attention and MLP are parallel, the MLP stores the layer's output gradient for the attention.
        """
        self.needs(2)
        mlp = task.work.op.startswith("mlp")
        whole = task.work.op.endswith("backward")
        parallel = self.training.model.norms_per_layer == 1
        mode = self.mode_of(task.block)
        recomputes = mode in ("full", OPERATORS) or (mode == "selective" and not mlp)
        beside = [self.cell("output gradient")] if parallel else []
        recomputed = [self.cell(f"recomputed {'MLP' if mlp else 'attention'}")] if recomputes else []

        def dgrad(rank: int, operands: Values, buffers: Values) -> tuple[Floats, Linears, Floats]:
            w = self.views(rank, task.block, buffers[0])
            saved = operands[1]
            kept = buffers[1] if recomputed else saved.mlp if mlp else saved.attention
            dy = buffers[1 + len(recomputed)] if parallel and not mlp else operands[0]
            share = self.share(rank)
            dx, inputs = kept.dgrad(w, dy, share)
            # The gradient of the MLP's input passes the attention block by.
            return (dx if mlp or not share.leads else dx + operands[0]), inputs, operands[0]

        reads = [self.weights(task.block), *recomputed, *([] if mlp else beside)]
        norm = self._norm_of(task.work.op)
        claims = self.completes("middle" if mlp else "gradient", task.block, (norm, task.block))
        self._backward(dgrad, norm, reads, beside if mlp else [], claims, whole=whole)

    def _backward(
        self,
        dgrad: Callable[[int, Values, Values], tuple[Floats, Any, Floats]],
        norm: str,
        reads: list[Cell],
        beside: list[Cell],
        claims: list[tuple[int, Claim]],
        *,
        whole: bool,
    ) -> None:
        """Write the input gradient, and the weight gradients or the inputs of their later task."""
        block = self.task.block
        begins = not norm.startswith("attention")
        split_norm = self.layout.tensor > 1
        buffer = [self.making(block, begins=begins)] if whole else []
        adds = not (self.scatters_block(block) and begins)

        def kernel(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            dx, inputs, *left = dgrad(rank, operands, buffers)
            results = [dx] if whole else [dx, inputs]
            if split_norm:
                results.append(self.flat(rank, block, inputs.norm))
            results += left[: len(beside)]
            if whole:
                made = self.flat(rank, block, self.weight_gradients(rank, inputs, mlp=begins))
                results.append(buffers[-1] + made if adds else made)
            return tuple(results)

        part = [self.norm_cells(norm, block)[0]] if split_norm else []
        self.compute(kernel, [*reads, *buffer], [*part, *beside, *buffer], claims)

    def making(self, block: int, *, begins: bool) -> Cell:
        """The buffer to which the present task adds a block's gradients; a reduction must follow."""
        self.pending.setdefault(self.place, {})[block] = None
        return self.gradient(block, begins=begins)

    def weight_gradients(self, rank: int, inputs: Any, *, mlp: bool) -> Weights:
        """Gradients of a block's linears, and of its norm if there are no tensor peers."""
        share = self.share(rank)
        if isinstance(inputs, HeadInputs):
            grads = inputs.wgrad(share)
        else:
            bias = share.model.bias if mlp else share.model.has_attention_bias
            grads = inputs.wgrad(bias=bias)
        return grads if self.layout.tensor > 1 else grads | inputs.norm

    def weight_pass(self, task: Task) -> None:
        """Weight gradients of a block from the inputs that its dgrad task stored."""
        mlp = task.work.op != "attention.wgrad"
        norm = self._norm_of(task.work.op)
        split_norm = self.layout.tensor > 1
        self.needs(1)
        sums = [self.norm_cells(norm, task.block, task.tag)[1]] if split_norm else []
        self._accumulate(lambda rank, inputs: self.weight_gradients(rank, inputs, mlp=mlp), sums, begins=mlp)

    def _norm_of(self, op: str) -> str:
        """The norm whose gradients come with those of a block."""
        of_mlp = "MLP norm1" if self.training.model.norms_per_layer == 1 else "MLP norm2"
        return {"attention": "attention norm1", "head": "head norm1"}.get(op.partition(".")[0], of_mlp)

    def embedding_backward(self, _: Task) -> None:
        """Gradients of words and positions."""
        self.needs(1)
        tokens = self.tokens()

        def gradients(rank: int, dx: Floats) -> Weights:
            return embedding_backward(dx, tokens(rank)[0], self.share(rank))

        self._accumulate(gradients, [], begins=True)

    def _accumulate(
        self, gradients: Callable[[int, Any], Weights], sums: list[Cell], *, begins: bool
    ) -> None:
        """Add weight gradients computed from the first operand, and those summed before."""
        block = self.task.block
        adds = not (self.scatters_block(block) and begins)
        buffer = self.making(block, begins=begins)

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            made = sum(buffers[1:], self.flat(rank, block, gradients(rank, operands[0])))
            return None, (buffers[0] + made if adds else made)

        self.compute(run, [buffer, *sums], [buffer])

    def head_backward(self, task: Task) -> None:
        """The whole backward of loss and LM head, or its input gradient alone."""
        self.needs(1)
        step = self.step
        logits = self.cell(f"logits[{task.tag}]")
        loss = self.cell(f"loss[{task.tag}]")
        tokens = self.tokens()

        def dgrad(rank: int, operands: Values, buffers: Values) -> tuple[Floats, HeadInputs, Floats]:
            w = self.views(rank, HEAD, buffers[0])
            share = self.share(rank)
            count = self.training.num_tokens
            targets = tokens(rank)[1]
            length = len(share.places)
            dx, inputs = buffers[1].dgrad(w, operands[0], targets, count, share, length)
            return dx, inputs, np.asarray(losses_of(operands[0], count).sum())

        claims = self.completes("gradient", self.training.model.num_layers, ("head norm1", HEAD))
        position = len(task.writes) + (1 if self.layout.tensor > 1 else 0)
        claims.append((position, Claim("loss", HEAD, step, task.tag)))
        whole = task.work.op == "head.backward"
        self._backward(dgrad, "head norm1", [self.weights(HEAD), logits], [loss], claims, whole=whole)

    # ------------------------------------------------------------------------------------ none
    def hand_on(self, _: Task) -> None:
        """Pass the tensor to the next stage of the same device."""
        self.needs(1)
        self.compute(lambda _, operands, __: (operands[0],))
