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

from perfsim.base.arrays import Floats
from perfsim.proof.experts import (
    BlockKept,
    Routing,
    Rows,
    experts_forward,
    kept_by,
    router_forward,
    shared_forward,
)
from perfsim.proof.gpu_attention import ContextCompute
from perfsim.proof.gpu_compute import Function, Values
from perfsim.proof.layers import (
    embedding_backward,
    head_forward,
    head_of,
    join,
    losses_of,
    norm_of_head,
)
from perfsim.proof.program import Cell, Claim, Message
from perfsim.proof.shares import EXPERTS
from perfsim.proof.tensors import pieces, summed
from perfsim.work import EMBEDDING, HEAD, Task

# Blocks with experts on GPUs: rows travel to the ranks of their experts and back.
#
# A device of the graph stands for all ranks of a stage. The ranks of a group trade rows in one action; where
# rows went is kept in a buffer, so that they come back to their places. Ranks that share an expert all-gather
# their rows, compute, and reduce-scatter the results.

RECOMPUTED = "recomputed MLP"
SEQUENCE = 1
"""The axis of positions."""


class _Travelled(NamedTuple):
    """Rows on a rank, and how they came: from which place of the group each, and from which of its rows."""

    rows: Rows
    source: Floats
    place: Floats


class _ExpertCompute(ContextCompute):
    """Compiles blocks with experts."""

    def routing(self, rank: int, step: int, block: int, microbatch: int) -> Routing:
        """The experts of the tokens of a rank, at its own positions among those of its tensor peers."""
        whole = self.training.routing(step, block)
        places = np.array(self.share(rank).places)
        return whole.of(self.rows(rank, microbatch), self.own(rank, places, axis=0))

    def own(self, rank: int, values: Any, axis: int = SEQUENCE) -> Any:
        """A rank's own positions of values, if they are of all positions of its tensor peers."""
        peers = self.layout.tensor
        if peers == 1 or values.shape[axis] < len(self.share(rank).places):
            return values
        return pieces(values, peers, axis)[rank % peers]

    # --------------------------------------------------------------------------------- forward
    def router_forward(self, task: Task) -> None:
        """Norm, router, and a row for every slot of a token."""
        self.needs(1)
        step = self.step
        recomputes = task.work.op.endswith("recompute")
        beside = [self.cell("recomputed attention")] if recomputes else []

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            attention = operands[0]
            x = self.own(rank, buffers[1].x if recomputes else operands[1])
            total = x + attention
            routing = self.routing(rank, step, task.block, task.tag)
            rows, kept = router_forward(self.views(rank, task.block, buffers[0]), total, routing)
            return rows, (kept, total)

        self.compute(run, [self.weights(task.block), *beside], [self.cell("router kept")])

    def shared_forward(self, task: Task) -> None:
        """Shared experts, while rows travel."""

        def run(rank: int, _: Values, buffers: Values) -> tuple[Any, ...]:
            w, (kept, _) = self.views(rank, task.block, buffers[0]), buffers[1]
            return shared_forward(w, kept.z, self.share(rank))

        self.compute(run, [self.weights(task.block), self.cell("router kept")], [self.cell("shared kept")])

    def experts_forward(self, task: Task) -> None:
        """The rank's experts on the rows that arrived."""
        self.needs(1)
        home = self.homes[self.place]
        if EXPERTS + task.block not in home:
            home.append(EXPERTS + task.block)

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            w = self.views(rank, EXPERTS + task.block, buffers[0])
            y, kept = experts_forward(w, _rows_of(operands[0]), self.share(rank))
            return Rows(y, kept.rows.expert), kept

        self.compute(run, [self.weights(EXPERTS + task.block)], [self.cell("experts kept")])

    def combine_forward(self, task: Task) -> None:
        """Rows summed to tokens; what the block keeps goes to the backward, or to that of its recompute."""
        self.needs(1)
        recomputes = task.work.op.endswith("recompute")
        mode = self.mode_of(task.block)
        shared = self._has_shared
        place = self._of_shared(task)
        kept_beside = [self.cell("shared kept")] if shared else []
        before = [] if recomputes else [self.cell("attention kept")]

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            (router, total), experts, *rest = buffers
            of_shared = rest[0] if shared else None
            beside = None if place is None else operands[place]
            y = router.combine(operands[0].values, total, beside)
            kept = BlockKept(router, experts, of_shared, operands[0].values)
            if recomputes:
                return y, kept
            return y, kept_by(mode, self.recipe, self.share(rank), rest[-1], kept)

        reads = [self.cell("router kept"), self.cell("experts kept"), *kept_beside, *before]
        writes = [self.cell(RECOMPUTED)] if recomputes else []
        self.compute(run, reads, writes, self.completes("hidden", task.block + 1))

    @property
    def _has_shared(self) -> bool:
        experts = self.training.model.experts
        return experts is not None and experts.shared_ffn_hidden_size > 0

    def _of_shared(self, task: Task) -> int | None:
        """Which operand is what shared experts made, if there are some."""
        works = [self.graph.task(int(self.graph.writer[read])).work for read in task.reads]
        return next((n for n, work in enumerate(works) if work.name.startswith("shared_experts")), None)

    # -------------------------------------------------------------------------------- backward
    def combine_backward(self, task: Task) -> None:
        """Gradients of rows from those of tokens."""
        self.needs(2)
        again = [self.cell(RECOMPUTED)] if self.mode_of(task.block) == "full" else []

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            kept = buffers[0] if again else operands[1].mlp
            dy = self.own(rank, operands[0])
            return kept.router.combine_backward(dy), (dy, kept)

        self.compute(run, again, [self.cell("block backward")])

    def shared_backward(self, task: Task) -> None:
        """Backward of shared experts, while gradients of rows travel."""

        def run(rank: int, _: Values, buffers: Values) -> tuple[Any, ...]:
            w, (dy, kept) = self.views(rank, task.block, buffers[0]), buffers[1]
            dz, grads = kept.shared.backward(w, kept.router.z, dy, self.share(rank))
            return dz, self.flat(rank, task.block, grads)

        reads = [self.weights(task.block), self.cell("block backward")]
        self.compute(run, reads, [self.cell("gradients of shared experts")])

    def experts_backward(self, task: Task) -> None:
        """Backward of the rank's experts, with the gradients of their weights or the inputs of these."""
        self.needs(1)
        block = EXPERTS + task.block
        whole = task.work.op.endswith("backward")
        buffer = [self.making(block, begins=True)] if whole else []
        adds = not self.scatters_block(block)

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            (flat, (_, kept)), dy = buffers[:2], _rows_of(operands[0]).values
            dx, grads = kept.experts.backward(self.views(rank, block, flat), dy, self.share(rank))
            rows = Rows(dx, kept.experts.rows.expert)
            if not whole:
                return rows, (kept.experts, dy)
            made = self.flat(rank, block, grads)
            return rows, (buffers[2] + made if adds else made)

        self.compute(run, [self.weights(block), self.cell("block backward"), *buffer], buffer)

    def router_backward(self, task: Task) -> None:
        """Gradient of the block's input, and those of router, norm and shared experts.

        Tensor peers have their own positions, so these gradients are parts that the next collective sums. A
        pass of its own adds them, if there is one.
        """
        self.needs(1)
        shared = self._has_shared
        whole = task.work.op.endswith("backward")
        beside = [self.cell("gradients of shared experts")] if shared else []
        place = self._of_shared(task)
        norm = self._norm_of("mlp")
        part, later = self.norm_cells(norm, task.block, task.tag)
        alone = self.layout.tensor == 1
        adds = not self.scatters_block(task.block)
        buffer = [self.making(task.block, begins=True)] if whole else []

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            w, (dy, kept) = self.views(rank, task.block, buffers[0]), buffers[1]
            d_shared = None if place is None else operands[place]
            dx, grads = kept.router.backward(w, kept.outputs, operands[0].values, dy, d_shared)
            made = sum(buffers[2 : 2 + len(beside)], self.flat(rank, task.block, grads))
            if not whole:
                return dx, made
            before = buffers[-1] if adds else np.zeros_like(made)
            return (dx, before + made) if alone else (dx, made, before.copy())

        reads = [self.weights(task.block), self.cell("block backward"), *beside, *buffer]
        writes = [part] if not alone else [] if whole else [later]
        self.compute(run, reads, [*writes, *buffer], self.completes("middle", task.block, (norm, task.block)))

    def experts_weights(self, task: Task) -> None:
        """Weight gradients of a block: of its experts, and those that came with its input gradient."""
        self.needs(1)
        block = task.block
        experts = EXPERTS + task.block
        sums = self.norm_cells(self._norm_of("mlp"), block, task.tag)[1]
        buffers = [self.making(number, begins=True) for number in (block, experts)]
        adds = [not self.scatters_block(number) for number in (block, experts)]

        def run(rank: int, operands: Values, values: Values) -> tuple[Any, ...]:
            (kept, dy), (flat, rest, *before) = operands[0], values
            _, grads = kept.backward(self.views(rank, experts, flat), dy, self.share(rank))
            made = (rest, self.flat(rank, experts, grads))
            summed_up = zip(made, before, adds, strict=True)
            return None, *(own + old if add else own.copy() for own, old, add in summed_up)

        self.compute(run, [self.weights(experts), sums, *buffers], buffers)

    # -------------------------------------------------------------------------------- movement
    def rows_trade(self, task: Task) -> None:
        """An all-to-all: rows to the ranks of their experts, or back to where they came from."""
        self.needs(1)
        returns = task.work.name.endswith("combine")
        route = self.cell("route of experts")

        def there(members: Sequence[int], values: list[list[Any]]) -> list[tuple[Any, ...]]:
            sent = [_rows_of(inputs[0]) for inputs in values]
            arrived = [_gathered(sent, self.share(rank).own_experts) for rank in members]
            return [(own.rows, own) for own in arrived]

        def back(members: Sequence[int], values: list[list[Any]]) -> list[tuple[Any, ...]]:
            routes = [inputs[1] for inputs in values]
            made = [inputs[0] for inputs in values]
            return [(_returned(routes, made, number),) for number in range(len(members))]

        message = Message("rows", lambda inputs, _: int(inputs[0].values.size))
        operand = self.operand(task.reads[0])
        if returns:
            slots = Message("rows", lambda _, made: int(made[0].values.size))
            self.add([operand, route], self.handle(), back, joined=True, message=slots)
        else:
            self.add([operand], [*self.handle(), route], there, joined=True, message=message)

    def rows_gather(self, task: Task) -> None:
        """Peers that share experts gather one another's rows."""
        self.needs(1)

        def kernel(members: Sequence[int], values: list[list[Any]]) -> list[tuple[Any, ...]]:
            sent = [_rows_of(inputs[0]) for inputs in values]
            bounds = np.cumsum([0, *(len(rows.expert) for rows in sent)])
            whole = Rows(
                np.concatenate([rows.values for rows in sent]),
                np.concatenate([rows.expert for rows in sent]),
            )
            return [(whole, slice(bounds[n], bounds[n + 1])) for n in range(len(members))]

        message = Message("rows", lambda _, made: int(made[0].values.size))
        writes = [*self.handle(), self.cell("route of peers")]
        self.add([self.operand(task.reads[0])], writes, kernel, joined=True, message=message)

    def rows_scatter(self, task: Task) -> None:
        """The sum of what peers made of the rows, for each its own."""
        self.needs(1)

        def kernel(_: Sequence[int], values: list[list[Any]]) -> list[tuple[Any, ...]]:
            total = summed([inputs[0].values for inputs in values])
            return [(Rows(total[inputs[1]], inputs[0].expert[inputs[1]]),) for inputs in values]

        message = Message("rows", lambda inputs, _: int(inputs[0].values.size))
        reads = [self.operand(task.reads[0]), self.cell("route of peers")]
        self.add(reads, self.handle(), kernel, joined=True, message=message)


def _rows_of(value: Any) -> Rows:
    return value.rows if isinstance(value, _Travelled) else value


def _gathered(sent: list[Rows], experts: range) -> _Travelled:
    """The rows of all members that these experts compute, in the order of the members."""
    chosen = [np.flatnonzero((rows.expert >= experts.start) & (rows.expert < experts.stop)) for rows in sent]
    return _Travelled(
        Rows(
            np.concatenate([rows.values[own] for rows, own in zip(sent, chosen, strict=True)]),
            np.concatenate([rows.expert[own] for rows, own in zip(sent, chosen, strict=True)]),
        ),
        np.concatenate([np.full(len(own), number) for number, own in enumerate(chosen)]),
        np.concatenate(chosen),
    )


def _returned(routes: list[_Travelled], made: list[Rows], number: int) -> Rows:
    """What a member's rows became, in the order in which it sent them."""
    parts = [(route.source == number, route, rows) for route, rows in zip(routes, made, strict=True)]
    count = sum(int(own.sum()) for own, _, _ in parts)
    values = np.empty((count, made[0].values.shape[-1]))
    expert = np.empty(count, dtype=np.int64)
    for own, route, rows in parts:
        place = route.place[own].astype(np.int64)
        values[place], expert[place] = rows.values[own], rows.expert[own]
    return Rows(values, expert)


EXPERT_OPERATIONS = {
    f"{stage}.{which}": method
    for stage, forward, backward in (
        ("router", _ExpertCompute.router_forward, _ExpertCompute.router_backward),
        ("shared_experts", _ExpertCompute.shared_forward, _ExpertCompute.shared_backward),
        ("experts", _ExpertCompute.experts_forward, _ExpertCompute.experts_backward),
        ("combine", _ExpertCompute.combine_forward, _ExpertCompute.combine_backward),
    )
    for which, method in (
        ("forward", forward),
        ("recompute", forward),
        ("backward", backward),
        ("dgrad", backward),
    )
} | {
    "experts.wgrad": _ExpertCompute.experts_weights,
    "expert_communication: all_to_all": _ExpertCompute.rows_trade,
    "expert_communication: all_gather": _ExpertCompute.rows_gather,
    "expert_communication: reduce_scatter": _ExpertCompute.rows_scatter,
}
"""Operations of blocks with experts."""


class _Around(NamedTuple):
    """What a task does before and behind its own function, with buffers of its own."""

    run: Callable[[int, Function, Values, Values, Values], tuple[list[Any], list[Any]]]
    """From rank, function, operands and buffers, those of the task and its own, to what both write."""
    reads: Sequence[Cell] = ()
    writes: Sequence[Cell] = ()
    claims: Sequence[tuple[int, Claim]] = ()
    """Of its own writes."""


class ModuleCompute(_ExpertCompute):
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
        count = len(reads)
        first = len(self.task.writes) + len(writes)
        partly = self.task.block == HEAD
        claims = [claim for claim in claims if not (partly and claim[1].quantity == "gradient")]
        claims += [(first + place, claim) for place, claim in around.claims]

        def whole(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            own, added = around.run(rank, function, operands, buffers[:count], buffers[count:])
            return *own, *added

        super().compute(whole, [*reads, *around.reads], [*writes, *around.writes], claims)

    def _around(self) -> _Around | None:
        """What the present task does for a module; None: nothing."""
        op = self.task.work.op
        block = self.task.block
        kind, _, which = op.rpartition(".")
        begins = kind in ("attention", "attention.qkv")
        ends = kind in ("mlp", "combine")
        residual = kind in ("mlp", "router")
        if block == HEAD:
            return self._of_head() if which == "forward" else _Around(_alone)
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
    def _joins(self) -> _Around:
        """The input of the layer from its own input and later tokens; a recompute reads what was kept."""
        block = self.task.block
        tokens = self.tokens(self._ahead())
        again = self.task.work.op.endswith("recompute")
        kept = self._kept_of("module input")

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            w = self.views(rank, block, added[0])
            table = self.views(rank, EMBEDDING, added[1])
            x = added[2] if again else operands[0]
            joined = join(w, table, x, tokens(rank)[0], self.share(rank))
            given = operands[0]._replace(x=joined.x) if again else joined.x
            return list(function(rank, [given, *operands[1:]], own)), [joined, x]

        reads = [self.weights(block), self.weights(EMBEDDING), *([kept] if again else [])]
        return _Around(run, reads, [self._kept_of("joined"), kept])

    def _forward(self, residual: bool, ends: bool) -> _Around:
        """The residual is the layer's joined input; LM head and loss are behind its end."""
        block = self.task.block
        tokens = self.tokens(self._ahead())
        joined = [self._kept_of("joined")] if residual else []

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            given = [operands[0], added[0].x, *operands[2:]] if residual else operands
            made = list(function(rank, given, own))
            if not ends:
                return made, []
            w = self.views(rank, block, added[-2])
            head = self.views(rank, HEAD, added[-1])
            targets = tokens(rank)[1]
            return made, [head_forward(head_of(w, head), made[0], targets, self.share(rank))]

        tables = [self.weights(block), self.weights(HEAD)] if ends else []
        return _Around(run, [*joined, *tables], [self._kept_of("logits")] if ends else [])

    def _of_head(self) -> _Around:
        """The model's own LM head reads the output of the last layer before the modules."""

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            return list(function(rank, [added[0], *operands[1:]], own)), []

        return _Around(run, [self._kept_of("module input", self.training.model.num_layers)])

    # --------------------------------------------------------------------------------- backward
    def _loss_backward(self, *, whole: bool) -> _Around:
        """The gradient of the layer's output by its own loss, and if it is not the last, by later ones."""
        step = self.step
        tag = self.task.tag
        block = self.task.block
        ahead = self._ahead()
        tokens = self.tokens(ahead)
        last = ahead == self.training.model.mtp_num_layers
        table = [self.gradient(HEAD, begins=False)] if whole else []

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            share = self.share(rank)
            count = self.training.num_later_tokens
            (block_flat, head_flat, (statistics, kept)), before = added[:3], added[3:]
            head = head_of(self.views(rank, block, block_flat), self.views(rank, HEAD, head_flat))
            targets = tokens(rank)[1]
            length = len(share.places)
            dy, inputs = kept.dgrad(head, statistics, targets, count, share, length)
            given = dy if last else operands[0] + dy
            made = list(function(rank, [given, *operands[1:]], own))
            loss = np.asarray(losses_of(statistics, count).sum())
            beside = [loss, inputs, *([operands[0]] if last else [])]
            return made, [*beside, *(flat + self._of_table(rank, inputs) for flat in before)]

        kept = [self._kept_of("loss"), self._kept_of("inputs of its LM head")]
        main = [self._kept_of("gradient of the model itself", HEAD)] if last else []
        reads = [self.weights(block), self.weights(HEAD), self._kept_of("logits"), *table]
        return _Around(run, reads, [*kept, *main, *table], [(0, Claim("loss", block, step, tag))])

    def _of_table(self, rank: int, inputs: Any) -> Any:
        """The LM head's gradient by the loss of a module."""
        return self.flat(rank, HEAD, inputs.wgrad(self.share(rank)))

    def _table_gradients(self) -> _Around:
        """The same in a pass of its own."""
        table = [self.gradient(HEAD, begins=False)]

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            return list(function(rank, operands, own)), [added[1] + self._of_table(rank, added[0])]

        return _Around(run, [self._kept_of("inputs of its LM head"), *table], table)

    def _leaves(self, *, whole: bool, inputs: bool = True) -> _Around:
        """Gradients of the module's input (`inputs`), and of its own weights and of embeddings (`whole`).

        The last buffer that the task writes has the gradients of the layer, if it makes them.
        """
        block = self.task.block
        ahead = self._ahead()
        tokens = self.tokens(ahead)
        joint = self._kept_of("inputs of its projection")
        of_head = self._kept_of("inputs of its LM head")
        main = [self._kept_of("gradient of the model itself", HEAD)] if inputs and ahead == 1 else []

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            made = list(function(rank, operands, own))
            share = self.share(rank)
            beside: list[Any] = []
            if inputs:
                made[0], kept = added[2].dgrad(self.views(rank, block, added[1]), made[0])
                made[0] = sum(added[3:], made[0])
                beside.append(kept)
            else:
                kept = added[1]
            if whole:
                grads = kept.wgrad() | norm_of_head(added[0].norm)
                made[-1] = made[-1] + self.flat(rank, block, grads)
                words = embedding_backward(kept.d_words, tokens(rank)[0], share)
                beside.append(self.flat(rank, EMBEDDING, words))
            return made, beside

        reads = [self.weights(block), self._kept_of("joined"), *main] if inputs else [joint]
        words = [self._kept_of("gradient of later words")] if whole else []
        return _Around(run, [of_head, *reads], [*([joint] if inputs else []), *words])

    def _of_embedding(self) -> _Around:
        """The gradients of embeddings by all modules."""
        model = self.training.model
        layers = range(model.num_layers, model.num_layers + model.mtp_num_layers)

        def run(rank: int, function: Function, operands: Values, own: Values, added: Values) -> Any:
            made = list(function(rank, operands, own))
            made[-1] = sum(added, made[-1])
            return made, []

        return _Around(run, [self._kept_of("gradient of later words", layer) for layer in layers])


def _alone(rank: int, function: Function, operands: Values, own: Values, _: Values) -> Any:
    return list(function(rank, operands, own)), []
