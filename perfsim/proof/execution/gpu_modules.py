"""Modules of multi-token prediction on GPUs: what they add to the tasks of their layer.

The layer of a module begins with embeddings and a projection, and ends with LM head and loss (`modules.py`).
Both are parts of its attention and MLP tasks, which read the tables of embedding and LM head and add to their
gradients; embedding and LM head are on the same rank. The LM head of the model itself reads the output of the
last layer before the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from perfsim.graph import EMBEDDING, HEAD
from perfsim.proof.execution.gpu_compute import Function, Values
from perfsim.proof.execution.gpu_experts import ExpertCompute
from perfsim.proof.execution.modules import (
    head_of,
    join,
    join_dgrad,
    join_wgrad,
    norm_of_head,
)
from perfsim.proof.execution.program import Cell, Claim
from perfsim.proof.execution.vocabulary import (
    embedding_backward,
    head_dgrad,
    head_forward,
    head_wgrad,
    losses_of,
)


class Around(NamedTuple):
    """What a task does before and behind its own function, with buffers of its own."""

    run: Callable[[int, Function, Values, Values, Values], tuple[list[Any], list[Any]]]
    """From rank, function, operands and buffers, those of the task and its own, to what both write."""
    reads: Sequence[Cell] = ()
    writes: Sequence[Cell] = ()
    claims: Sequence[tuple[int, Claim]] = ()
    """Of its own writes."""


class ModuleCompute(ExpertCompute):
    """Compiles the layers of modules, and the embedding and LM head beside them."""

    def compute(
        self,
        function: Function,
        reads: Sequence[Cell] = (),
        writes: Sequence[Cell] = (),
        claims: Sequence[tuple[int, Claim]] = (),
    ) -> None:
        """A task that each rank runs alone, with what a module adds."""
        around = self._around() if self.training.model.mtp_num_layers else None
        if around is None:
            super().compute(function, reads, writes, claims)
            return
        count, first = len(reads), len(self.task.writes) + len(writes)
        partly = self.task.block == HEAD
        claims = [claim for claim in claims if not (partly and claim[1].quantity == "gradient")]
        claims += [(first + place, claim) for place, claim in around.claims]

        def whole(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            own, added = around.run(rank, function, operands, buffers[:count], buffers[count:])
            return *own, *added

        super().compute(whole, [*reads, *around.reads], [*writes, *around.writes], claims)

    def _around(self) -> Around | None:
        """What the present task does for a module; None: nothing."""
        op, block = self.task.work.op, self.task.block
        kind, _, which = op.rpartition(".")
        begins, ends = kind in ("attention", "attention.qkv"), kind in ("mlp", "combine")
        residual = kind in ("mlp", "router")
        if block == HEAD:
            return self._of_head() if which == "forward" else Around(_alone)
        if block == EMBEDDING:
            return self._of_embedding() if which == "backward" else None
        if block < self.training.model.num_layers:
            return None
        if which == "recompute":
            return self._joins() if begins and self.mode_of(block) != "selective" else None
        if which == "forward":
            return self._joins() if begins else self._forward(residual, ends) if residual or ends else None
        if which == "wgrad":
            return self._leaves(whole=True, inputs=False) if begins else self._table_gradients()
        if begins:
            return self._leaves(whole=which == "backward")
        return self._loss_backward(whole=which == "backward") if ends else None

    # ------------------------------------------------------------------------------------ cells
    def _kept_of(self, name: str, layer: int | None = None) -> Cell:
        """A buffer of a module for one micro-batch."""
        return self.cell(f"{name}[{self.task.tag}]", layer)

    def _ahead(self) -> int:
        """By how many tokens the inputs of the present module are later."""
        return self.task.block - self.training.model.num_layers + 1

    # ---------------------------------------------------------------------------------- forward
    def _joins(self) -> Around:
        """The input of the layer from its own input and later tokens; a recompute reads what was kept."""
        step, tag, block, ahead = self.step, self.task.tag, self.task.block, self._ahead()
        again, kept = self.task.work.op.endswith("recompute"), self._kept_of("module input")

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            w, table = self.views(rank, block, added[0]), self.views(rank, EMBEDDING, added[1])
            x = added[2] if again else operands[0]
            joined = join(w, table, x, self.tokens(rank, step, tag, ahead)[0], self.share(rank))
            given = operands[0]._replace(x=joined.x) if again else joined.x
            return list(function(rank, [given, *operands[1:]], own)), [joined, x]

        reads = [self.weights(block), self.weights(EMBEDDING), *([kept] if again else [])]
        return Around(run, reads, [self._kept_of("joined"), kept])

    def _forward(self, residual: bool, ends: bool) -> Around:
        """The residual is the layer's joined input; LM head and loss are behind its end."""
        step, tag, block, ahead = self.step, self.task.tag, self.task.block, self._ahead()
        joined = [self._kept_of("joined")] if residual else []

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            given = [operands[0], added[0].x, *operands[2:]] if residual else operands
            made = list(function(rank, given, own))
            if not ends:
                return made, []
            w, head = self.views(rank, block, added[-2]), self.views(rank, HEAD, added[-1])
            targets = self.tokens(rank, step, tag, ahead)[1]
            return made, [head_forward(head_of(w, head), made[0], targets, self.share(rank))]

        tables = [self.weights(block), self.weights(HEAD)] if ends else []
        return Around(run, [*joined, *tables], [self._kept_of("logits")] if ends else [])

    def _of_head(self) -> Around:
        """The model's own LM head reads the output of the last layer before the modules."""

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            return list(function(rank, [added[0], *operands[1:]], own)), []

        return Around(run, [self._kept_of("module input", self.training.model.num_layers)])

    # --------------------------------------------------------------------------------- backward
    def _loss_backward(self, *, whole: bool) -> Around:
        """The gradient of the layer's output by its own loss, and if it is not the last, by later ones."""
        step, tag, block, ahead = self.step, self.task.tag, self.task.block, self._ahead()
        last = ahead == self.training.model.mtp_num_layers
        table = [self.gradient(HEAD, begins=False)] if whole else []

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            share, count = self.share(rank), self.training.num_later_tokens
            (block_flat, head_flat, (statistics, kept)), before = added[:3], added[3:]
            head = head_of(self.views(rank, block, block_flat), self.views(rank, HEAD, head_flat))
            targets, length = self.tokens(rank, step, tag, ahead)[1], len(share.places)
            dy, inputs = head_dgrad(head, kept, statistics, targets, count, share, length)
            given = dy if last else operands[0] + dy
            made = list(function(rank, [given, *operands[1:]], own))
            loss = np.asarray(losses_of(statistics, count).sum())
            beside = [loss, inputs, *([operands[0]] if last else [])]
            return made, [*beside, *(flat + self._of_table(rank, inputs) for flat in before)]

        kept = [self._kept_of("loss"), self._kept_of("inputs of its LM head")]
        main = [self._kept_of("gradient of the model itself", HEAD)] if last else []
        reads = [self.weights(block), self.weights(HEAD), self._kept_of("logits"), *table]
        return Around(run, reads, [*kept, *main, *table], [(0, Claim("loss", block, step, tag))])

    def _of_table(self, rank: int, inputs: Any) -> Any:
        """The LM head's gradient by the loss of a module."""
        return self.flat(rank, HEAD, head_wgrad(inputs, self.share(rank)))

    def _table_gradients(self) -> Around:
        """The same in a pass of its own."""
        table = [self.gradient(HEAD, begins=False)]

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            return list(function(rank, operands, own)), [added[1] + self._of_table(rank, added[0])]

        return Around(run, [self._kept_of("inputs of its LM head"), *table], table)

    def _leaves(self, *, whole: bool, inputs: bool = True) -> Around:
        """Gradients of the module's input (`inputs`), and of its own weights and of embeddings (`whole`).

        The last buffer that the task writes has the gradients of the layer, if it makes them.
        """
        step, tag, block, ahead = self.step, self.task.tag, self.task.block, self._ahead()
        joint, of_head = self._kept_of("inputs of its projection"), self._kept_of("inputs of its LM head")
        main = [self._kept_of("gradient of the model itself", HEAD)] if inputs and ahead == 1 else []

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            made, share = list(function(rank, operands, own)), self.share(rank)
            beside: list[Any] = []
            if inputs:
                made[0], kept = join_dgrad(self.views(rank, block, added[1]), added[2], made[0])
                made[0] = sum(added[3:], made[0])
                beside.append(kept)
            else:
                kept = added[1]
            if whole:
                grads = join_wgrad(kept) | norm_of_head(added[0].norm)
                made[-1] = made[-1] + self.flat(rank, block, grads)
                tokens = self.tokens(rank, step, tag, ahead)[0]
                beside.append(self.flat(rank, EMBEDDING, embedding_backward(kept.d_words, tokens, share)))
            return made, beside

        reads = [self.weights(block), self._kept_of("joined"), *main] if inputs else [joint]
        words = [self._kept_of("gradient of later words")] if whole else []
        return Around(run, [of_head, *reads], [*([joint] if inputs else []), *words])

    def _of_embedding(self) -> Around:
        """The gradients of embeddings by all modules."""
        model = self.training.model
        layers = range(model.num_layers, model.num_layers + model.mtp_num_layers)

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            made = list(function(rank, operands, own))
            made[-1] = sum(added, made[-1])
            return made, []

        return Around(run, [self._kept_of("gradient of later words", layer) for layer in layers])


def _alone(rank: int, function: Function, operands: Values, own: Values, _: Values) -> Any:
    return list(function(rank, operands, own)), []
