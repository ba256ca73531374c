"""GPU strategies as programs: effects of collectives, sends, copies and updates on buffers.

The gradients of layer norms are partial sums of tensor peers (see `layers`); the next collective sums them
too. Tasks of their own sum the norm of all gradients; without them an optimizer knows only those of its rank.
With offload the host has weights, moments and the sum of the gradients that left the device. A copy of
gradients clears those on the device; a copy of weights overwrites them there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.costs.gpu import UPDATES
from perfsim.proof.gpu_attention import CONTEXT_OPERATIONS
from perfsim.proof.gpu_compute import SHARDED_PARAMETERS, Partial
from perfsim.proof.gpu_experts import EXPERT_OPERATIONS, ModuleCompute
from perfsim.proof.program import Cell, Claim, Message, Values, first_made, first_read, per_rank
from perfsim.proof.serial import Moments, SmallTraining, adam, clipping
from perfsim.proof.shares import EXPERTS, cut
from perfsim.proof.tensors import CLIPPED, NORM, combined, pieces, summed
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import layer_kinds
from perfsim.specs.recipe import Recipe
from perfsim.strategies.three_d.offload import ACTIVATIONS, SAVED
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

NORMS = ("MLP norm1", "MLP norm2", "attention norm1", "head norm1")
HOST_WEIGHTS = "host weights"
HOST_GRADIENT = "host gradient"

SEQUENCE = 1
HIDDEN = 2
"""The axis that sequence parallelism splits, and that of the parts of a pipeline send."""


def _blocks_of(task: Task) -> tuple[int, ...]:
    """The blocks that a copy or an update is about."""
    return (EMBEDDING, HEAD) if task.block in (EMBEDDING_AND_HEAD, EMBEDDING) else (task.block,)


class _Gradients(NamedTuple):
    """The gradients of a block on one device: whole in one or several buffers, or a shard in one."""

    block: int
    shard: bool
    cells: list[Cell]


class GpuCompiler(ModuleCompute):
    """Compiles graphs of `3d`, of its special cases and of ZeRO."""

    def __init__(
        self, graph: TaskGraph, training: SmallTraining, layout: ParallelLayout, recipe: Recipe
    ) -> None:
        super().__init__(graph, training, layout, recipe)
        self.rest_gathered: set[tuple[int, int]] = set()
        """Devices and blocks of which all but experts are gathered, and experts are next."""
        self.sharded: set[tuple[int, int]] = set()
        """(device, block) with reduce-scattered gradients, of which each replica updates a shard."""
        self.scatters: dict[int, list[int]] = {}
        """The blocks of every reduction, by the tensor that it writes."""
        self.reduced_to: dict[tuple[int, int], Cell] = {}
        """The buffer of each block's shard, by the tensor that its reduction writes and the block."""
        self.copied: dict[tuple[int, int], Cell] = {}
        """Where the latest copy of a block's shard from the host is, if it came from there."""
        self.norms: set[int] = set()
        """Tensors with the norm of gradients."""
        self.on_host: set[tuple[int, int]] = set()
        """(device, block) with gradients that left the device."""

    @property
    def has_shards(self) -> bool:
        """Whether a rank updates a shard of its parameters."""
        return self.layout.zero_stage > 0 and self.layout.replicas > 1

    def translate(self, task: Task) -> None:
        """Add the action of one task; an unknown operation is refused by name."""
        key = task.work.op if task.work.kind is Kind.COMP else f"{task.work.category}: {task.work.op}"
        operation = GpuCompiler.wait if task.work.name == WAIT_OF_EXPERTS else OPERATIONS.get(key)
        if operation is None:
            detail = f"the executor knows no operation {key!r}; known: {', '.join(OPERATIONS)}"
            raise self.refuse("its operation", detail)
        home = self.homes.setdefault(self.place, [])
        if key.endswith(".forward") and task.block not in home:
            home.append(task.block)
        operation(self, task)

    def handle(self, position: int = 0, *places: int, label: str = "") -> list[Cell]:
        """Activations that leave for the host use two buffers in turn, those that return two more."""
        made = self.task.work.writes[position]
        number = self.task.writes[position]
        if self.layout.offload_activations == "none" or made.name != SAVED or not made.n_bytes:
            return super().handle(position, *places, label=label)
        returns = self.task.work.name == ACTIVATIONS
        cells = self.in_turn(f"slot of {'returned' if returns else 'leaving'} activations")
        self.handles[number] = tuple(cells)
        return cells

    # ----------------------------------------------------------------------- tensor collectives
    def tensor_reduce(self, task: Task) -> None:
        """Sum over the tensor peers; each gets the whole or its part of the sequence."""
        self.needs(1)
        info = self.partial.get(task.reads[0], Partial(None))
        scatters = task.work.op == "reduce_scatter"
        axis = HIDDEN if info.statistics else SEQUENCE
        norm_reads, norm_writes = self._norm_sums(info)

        def kernel(members: Sequence[int], values: list[Values]) -> list[tuple[Any, ...]]:
            whole = combined([inputs[0] for inputs in values], statistics=info.statistics)
            given = pieces(whole, len(members), axis) if scatters else [whole.copy() for _ in members]
            return _with_norms(given, values)

        claims = [(0, info.claim)] if info.claim and not scatters else []
        self.add(
            [self.operand(task.reads[0]), *norm_reads],
            [*self.handle(), *norm_writes],
            kernel,
            joined=True,
            claims=claims,
            message=Message("statistics" if info.statistics else "activations", first_read),
        )
        if scatters:
            self.partial[task.writes[0]] = Partial(info.claim, info.statistics, axis=axis)

    def _norm_sums(self, info: Partial) -> tuple[list[Cell], list[Cell]]:
        """The gradients of a norm that are summed with a tensor: what is read, and the sum."""
        if info.norm is None:
            return [], []
        part, total = self.norm_cells(*info.norm, info.later)
        adds = not self.scatters_block(info.norm[1]) and info.later is None
        return [part, total] if adds else [part], [total]

    def tensor_gather(self, task: Task) -> None:
        """Concatenate the parts of the tensor peers."""
        self.needs(1)
        info = self.partial.get(task.reads[0], Partial(None))
        axis = SEQUENCE if info.axis is None else info.axis

        def kernel(members: Sequence[int], values: list[Values]) -> list[tuple[Any, ...]]:
            whole = np.concatenate([inputs[0] for inputs in values], axis=axis)
            return _with_norms([whole.copy() for _ in members], values)

        claims = [(0, info.claim)] if info.claim else []
        norm_reads, norm_writes = self._norm_sums(info)
        operands = [self.operand(task.reads[0]), *norm_reads]
        sizes = Message("statistics" if info.statistics else "activations", first_made)
        written = [*self.handle(), *norm_writes]
        self.add(operands, written, kernel, joined=True, claims=claims, message=sizes)

    # --------------------------------------------------------------------------- between stages
    def send(self, task: Task) -> None:
        """Send the tensor, or this peer's part of it, to the same peer of the next stage."""
        self.needs(1)
        operand, (_, target) = self.operand(task.reads[0]), self._ends(task)
        peers = self.layout.tensor
        shares = not self.layout.sequence_parallel and self.layout.tensor > 1
        claim = self.claim_of(operand)
        info = self.partial.get(task.reads[0])
        own_positions = info is not None and info.axis == SEQUENCE

        def kernel(members: Sequence[int], values: list[Values]) -> list[tuple[Any, ...]]:
            return [
                (pieces(inputs[0], peers, HIDDEN)[rank % peers] if shares else inputs[0].copy(),)
                for rank, inputs in zip(members, values, strict=True)
            ]

        if shares:
            self.partial[task.writes[0]] = Partial(claim, axis=HIDDEN)
        claims = [(0, claim)] if claim and not shares else []
        self.add(
            [operand],
            self.handle(0, target),
            kernel,
            claims=claims,
            message=Message(
                "activations", lambda _, made: int(made[0].size) * (peers if own_positions else 1)
            ),
        )

    def claim_of(self, cell: Cell) -> Claim | None:
        """The claim about a tensor when it was written."""
        writer = self.last_writer.get(cell)
        if writer is None:
            return None
        action = self.program.actions[writer]
        return next((claim for place, claim in action.claims if action.writes[place] == cell), None)

    def _ends(self, task: Task) -> tuple[int, int]:
        group = task.work.group
        if group is None or len(group.ranks) != 2:
            raise self.refuse("its group", "a transfer needs two ranks")
        return group.ranks[0], group.ranks[1]

    def tie(self, task: Task) -> None:
        """Sum the gradients of a tied embedding over the first and the last stage."""
        first, last = self._ends(task)
        ends = [(first, EMBEDDING), (last, HEAD)]
        names = ["gradient shard" if end in self.sharded else "gradient" for end in ends]
        cells = [Cell(place, name, block) for (place, block), name in zip(ends, names, strict=True)]
        operands = self.operands(anywhere=True)
        count = len(operands)
        shard = names[0] == "gradient shard"

        def words(*_: Any) -> int:
            part = self._words(0, EMBEDDING, shard=shard)
            return int(part.stop - part.start)

        def kernel(members: Sequence[int], values: list[Values]) -> list[tuple[Any, ...]]:
            results = []
            for rank, inputs in zip(members, values, strict=True):
                gradients = [inputs[count].copy(), inputs[count + 1].copy()]
                self._sum_words(rank, gradients, shard=shard)
                results.append((None, None, *gradients))
            return results

        self.add(
            [*operands, *cells],
            [*self.handle(0, first, last), *cells],
            kernel,
            message=Message("table", words),
        )

    def _sum_words(self, rank: int, gradients: list[Floats], *, shard: bool) -> None:
        """Set the words in the gradients of embedding and LM head to their sum."""
        parts = [self._words(rank, block, shard=shard) for block in (EMBEDDING, HEAD)]
        total = gradients[0][parts[0]] + gradients[1][parts[1]]
        gradients[0][parts[0]] = gradients[1][parts[1]] = total

    def _words(self, rank: int, block: int, *, shard: bool) -> slice:
        """Position of the words in a block's flat vector, or in its shard."""
        layout = self.share(rank).layouts[block]
        return layout.shard_part("words", self.layout.shards) if shard else layout.parts["words"]

    # --------------------------------------------------------------------- sums over replicas
    def _of_experts(self, rest: list[int]) -> bool:
        """Whether the present reduction is that of experts, which may have replicas of their own.

        Where all ranks hold all experts it is the second of two over the same ranks, and `rest` are the
        blocks that the first one sums.
        """
        layout = self.layout
        group = self.task.work.group
        if self.training.model.experts is None or group is None:
            return False
        apart = (layout.expert * layout.expert_tensor, layout.expert_replicas)
        if apart != (layout.tensor, layout.replicas):
            return (group.stride, group.size) == apart
        waiting = self.pending.setdefault(self.place, {})
        return not any(number in waiting for number in rest)

    def _targets(self, block: int, buckets: int = 1) -> list[int]:
        """The blocks whose gradients a reduction sums, among those that wait for one.

        A reduction that reads the gradients of several layers sums that many, from `block` on; that of their
        experts sums those that wait from there on.
        """
        waiting = self.pending.setdefault(self.place, {})
        if block == WHOLE_DEVICE:
            targets = [number for number in waiting if number < EXPERTS]
        elif block == EMBEDDING_AND_HEAD:
            targets = [number for number in waiting if number in (EMBEDDING, HEAD)]
        else:
            targets = list(range(block, block + buckets))
        if self._of_experts(targets):
            targets = [number for number in waiting if number >= EXPERTS + max(0, block)]
        for number in targets:
            waiting.pop(number, None)
        return targets

    def gradient_cells(self, block: int) -> list[Cell]:
        """Buffers of a block's gradients on this device: linears, and norms that were summed separately."""
        if self.layout.tensor == 1:
            return [self.gradient(block, begins=False)]
        norms = [self.norm_cells(name, block)[1] for name in NORMS]
        return [self.gradient(block, begins=False), *(cell for cell in norms if cell in self.last_writer)]

    def data_reduce(self, task: Task) -> None:
        """Sum gradients over the replicas; each keeps the whole or its shard.

        Where several groups shard, the sum over a group is a part of what `sum_over_groups` completes.
        """
        grouped = self.layout.shards < self.layout.replicas
        if grouped and task.work.group is not None and task.work.group.stride > self.layout.tensor:
            self.sum_over_groups(task)
            return
        blocks = self._targets(task.block, len(task.reads))
        made = [self.gradient_cells(block) for block in blocks]
        scatters = task.work.op == "reduce_scatter"
        partial = scatters and self.layout.shards < self.layout.replicas
        shards = (
            [self.cell(f"gradient part[{task.tag}]", block) for block in blocks]
            if partial
            else self._shards(blocks)
        )
        kept = shards if scatters and self._sums_shards(blocks) and not partial else []
        self.scatters[task.writes[0]] = blocks
        self.sharded |= {(self.place, block) for block in blocks if scatters}
        operands = self.operands()
        counts = [len(cells) for cells in made]
        firsts = [len(operands) + sum(counts[:number]) for number in range(len(made))]

        def kernel(members: Sequence[int], values: list[Values]) -> list[tuple[Any, ...]]:
            results: list[list[Any]] = [[None] for _ in members]
            for number, (block, first, count) in enumerate(zip(blocks, firsts, counts, strict=True)):
                total = summed([summed(inputs[first : first + count]) for inputs in values])
                for index, (rank, inputs) in enumerate(zip(members, values, strict=True)):
                    if not scatters:
                        results[index] += [total.copy(), *(np.zeros_like(total) for _ in range(1, count))]
                        continue
                    shard = self.share(rank).layouts[block].shard(total, len(members), index)
                    results[index].append(inputs[number - len(kept)] + shard if kept else shard)
            return [tuple(result) for result in results]

        def moved(inputs: Values, _: tuple[Any, ...]) -> int:
            return sum(int(inputs[first].size) for first in firsts)

        cells = [cell for of_block in made for cell in of_block]
        # Of layers only: the gradient of a tied embedding may still lack the other stage's part.
        claims = [
            (1 + first - len(operands), Claim("weight gradient", block, self.step, -1))
            for block, first in zip(blocks, firsts, strict=True)
            if block >= 0 and not scatters
        ]
        message = Message("gradients", moved, tuple(blocks))
        writes = [*self.handle(), *(shards if scatters else cells)]
        self.add([*operands, *cells, *kept], writes, kernel, joined=True, claims=claims, message=message)

    def sum_over_groups(self, task: Task) -> None:
        """Sum the shards of gradients over the groups that shard."""
        self.needs(1)
        blocks = self.scatters[task.reads[0]]
        operands = self.operands()
        self.scatters[task.writes[0]] = blocks
        reduced_in = int(self.graph.tag[self.graph.writer[task.reads[0]]])
        parts = [self.cell(f"gradient part[{reduced_in}]", block) for block in blocks]
        shards = self._shards(blocks)
        kept = shards if self._sums_shards(blocks) else []
        first = len(operands)

        def kernel(members: Sequence[int], values: list[Values]) -> list[tuple[Any, ...]]:
            totals = [summed([inputs[first + number] for inputs in values]) for number in range(len(blocks))]
            before = [inputs[first + len(blocks) :] for inputs in values]
            if not kept:
                return [(None, *(total.copy() for total in totals)) for _ in members]
            return [(None, *map(np.add, totals, shards)) for shards in before]

        def moved(inputs: Values, _: tuple[Any, ...]) -> int:
            return sum(int(inputs[first + number].size) for number in range(len(blocks)))

        message = Message("shards", moved, tuple(blocks))
        self.add([*operands, *parts, *kept], [*self.handle(), *shards], kernel, joined=True, message=message)

    @property
    def leaves(self) -> bool:
        """Whether the shards of a reduction go to the host, which sums them."""
        return self.scattered and self.layout.offload_optimizer != "none"

    def _sums_shards(self, blocks: list[int]) -> bool:
        """Whether the reduction of some blocks adds to the shards of earlier micro-batches."""
        return all(self.scatters_block(block) for block in blocks) and not self.leaves

    def _shards(self, blocks: list[int]) -> list[Cell]:
        """The buffers of reduced shards: their own, or if they leave for the host two in turn."""
        if not self.leaves:
            return [self.cell("gradient shard", block) for block in blocks]
        cells = self.in_turn("slot of leaving gradients", parts=len((EMBEDDING, HEAD)))[: len(blocks)]
        tensor = self.task.writes[0]
        self.reduced_to |= {(tensor, block): cell for block, cell in zip(blocks, cells, strict=True)}
        return cells

    def sharding(self, rank: int, block: int) -> tuple[int, int]:
        """The number of shards of a block's states, and which of them a rank has."""
        layout = self.layout
        if block >= EXPERTS:
            holds = layout.expert * layout.expert_tensor
            shards = layout.expert_replicas
            return shards, rank // holds % shards
        return layout.shards, rank // layout.tensor % layout.shards

    def _gathered(self, rest: list[int]) -> list[int]:
        """The blocks of a gather: those given, or their experts, which have one of their own, the second."""
        kinds = layer_kinds(self.training.model)
        experts = [EXPERTS + block for block in rest if block >= 0 and kinds[block].experts]
        if not experts:
            return rest
        layout = self.layout
        group = self.task.work.group
        key = (self.place, self.task.block)
        apart = (layout.expert * layout.expert_tensor, layout.expert_replicas)
        if apart != (layout.tensor, layout.replicas) and group is not None:
            return experts if (group.stride, group.size) == apart else rest
        self.rest_gathered ^= {key}
        return rest if key in self.rest_gathered else experts

    def data_gather(self, task: Task) -> None:
        """Gather the parameter shards of the other replicas; after an update those of the whole device."""
        home = self.homes[self.place]
        if task.block == WHOLE_DEVICE:
            blocks = self._gathered([block for block in home if block < EXPERTS])
        else:
            layers = list(range(task.block, task.block + len(task.writes)))
            blocks = [EMBEDDING, HEAD] if task.block == EMBEDDING_AND_HEAD else self._gathered(layers)
        if self.layout.zero_stage == SHARDED_PARAMETERS and task.block >= 0:
            # Two layers are gathered at once (`limit_all_gathers`).
            name = "slot of gathered weights" if blocks[0] < EXPERTS else "slot of gathered experts"
            self.slot_of[self.place, blocks[0]] = self.in_turn(name)[0]
        operands = self.operands()
        masters = [self.copied.get((self.place, block), self.cell("weight shard", block)) for block in blocks]

        def kernel(members: Sequence[int], values: list[Values]) -> list[tuple[Any, ...]]:
            whole = [
                self.share(members[0]).layouts[block].whole([inputs[len(operands) + i] for inputs in values])
                for i, block in enumerate(blocks)
            ]
            return [(*tensors, *(weights.copy() for weights in whole)) for _ in members]

        tensors = (None,) * len(task.writes)
        writes = [*self.results(), *(self.weights(block) for block in blocks)]

        def moved(_: Values, made: tuple[Any, ...]) -> int:
            return sum(int(whole.size) for whole in made[len(tensors) :])

        updated = blocks if task.block == WHOLE_DEVICE else []
        claims = [
            (len(tensors) + place, Claim("weights", block, self.step, -1))
            for place, block in enumerate(updated)
        ]
        message = Message("parameters", moved, tuple(blocks))
        self.add([*operands, *masters], writes, kernel, joined=True, claims=claims, message=message)

    # ------------------------------------------------------------------------------------ host
    def host_store(self, task: Task) -> None:
        """Add gradients to those on the host, and clear them on the device; or copy activations."""
        if task.work.name == ACTIVATIONS:
            self._copied(task)
            return
        place = self.place
        home = self.homes[self.place]
        reduced = self.scatters[task.reads[0]] if self.scattered else _blocks_of(task)
        blocks = [block for block in reduced if block in home]
        operands = self.operands(anywhere=True)
        counts = []
        reads = list(operands)
        writes = self.handle()
        for block in blocks:
            shard = (place, block) in self.sharded
            if self.leaves:
                cells = [self.reduced_to[task.reads[0], block]]
            else:
                cells = [self.cell("gradient shard", block)] if shard else self.gradient_cells(block)
            whole = self.gradient_cells(block) if shard and not self.scattered else []
            host = self.cell(HOST_GRADIENT, block)
            reads += [host, *cells]
            writes += [host, *cells, *whole]
            counts.append((block, len(cells), len(whole)))
            self.on_host.add((place, block))

        def kernel(rank: int, *values: Any) -> tuple[Any, ...]:
            results: list[Any] = [None]
            first = len(operands)
            for block, cells, whole in counts:
                host, *parts = values[first : first + 1 + cells]
                first += 1 + cells
                results += [host + np.sum(parts, axis=0), *(np.zeros_like(part) for part in parts)]
                results += [np.zeros(self.share(rank).layouts[block].size)] * whole
            return tuple(results)

        self.add(reads, writes, per_rank(kernel))

    def host_load(self, task: Task) -> None:
        """Copy the host's weights to the device, a rank's shard or all; or activations."""
        if task.work.name == ACTIVATIONS:
            self._copied(task)
            return
        home = self.homes.get(self.place, [])
        gathers = self.layout.offload_param != "none"
        blocks = [block for block in _blocks_of(task) if block in home or gathers]
        operands = self.operands(anywhere=True)
        sources = [self.cell(HOST_WEIGHTS, block) for block in blocks]
        if gathers:
            # Copies of shards that are gathered next use two buffers in turn.
            targets = self.in_turn("slot of copied weights", parts=len((EMBEDDING, HEAD)))[: len(blocks)]
            self.copied |= {(self.place, block): cell for block, cell in zip(blocks, targets, strict=True)}
        else:
            targets = [self.cell("weight shard" if self.has_shards else "weights", block) for block in blocks]

        def kernel(_: int, *values: Any) -> tuple[Any, ...]:
            return (None, *(weights.copy() for weights in values[len(operands) :]))

        self.add([*operands, *sources], [*self.handle(), *targets], per_rank(kernel))

    def _copied(self, task: Task) -> None:
        """A copy of a tensor."""
        self.add([self.operand(task.reads[0])], self.handle(), per_rank(lambda _, value: (value,)))

    # ---------------------------------------------------------------------------------- update
    def _own_gradients(self) -> list[_Gradients]:
        """The gradients of this device's blocks, on the host or not, in the order in which they were made."""
        own = []
        for block in sorted(self.homes.get(self.place, []), reverse=True):
            shard = (self.place, block) in self.sharded
            if (self.place, block) in self.on_host:
                cells = [self.cell(HOST_GRADIENT, block)]
            else:
                cells = [self.cell("gradient shard", block)] if shard else self.gradient_cells(block)
            own.append(_Gradients(block, shard, cells))
        return own

    def _summed(self, rank: int, own: Sequence[_Gradients], values: Values) -> dict[int, Floats]:
        """The gradient of each block, from the values of its cells; words on one rank are summed."""
        total = {}
        first = 0
        for block, _, cells in own:
            total[block] = summed(values[first : first + len(cells)])
            first += len(cells)
        if self.training.model.tied_embeddings and EMBEDDING in total and HEAD in total:
            both = [total[EMBEDDING], total[HEAD]]
            self._sum_words(rank, both, shard=any(of.shard for of in own if of.block == EMBEDDING))
        return total

    def _squared(self, rank: int, own: Sequence[_Gradients], total: dict[int, Floats], ranks: int) -> float:
        """The sum of squares of a rank's gradients, over the number of those of `ranks` with the same."""
        share = self.share(rank)
        layout = self.layout
        norm = 0.0
        for block, shard, _ in own:
            once = share.layouts[block].counted
            others = layout.tensor if block < EXPERTS else layout.expert * layout.expert_tensor
            if shard:
                once = share.layouts[block].shard(once, *self.sharding(rank, block))
                others *= self.sharding(rank, block)[0]
            norm += float(np.sum(once * total[block] ** 2)) * others / ranks
        return norm

    def norm(self, task: Task) -> None:
        """The norm of this device's gradients summed over peers, or that of other norms over devices."""
        parts = [self.operand(handle, anywhere=True) for handle in task.reads if handle in self.norms]
        operands = self.operands(anywhere=True)
        own = self._own_gradients()
        count = len(operands)

        def across(_: int, *values: Any) -> tuple[Any, ...]:
            return (sum(values[: len(parts)]),)

        def over_peers(members: Sequence[int], values: list[Values]) -> list[tuple[Any, ...]]:
            totals = [
                self._squared(rank, own, self._summed(rank, own, inputs[count:]), len(members))
                for rank, inputs in zip(members, values, strict=True)
            ]
            return [(sum(totals),) for _ in members]

        self.norms.add(task.writes[0])
        clips = math.isfinite(self.training.max_norm)
        whole = (bool(parts) or self.layout.pipeline == 1) and clips
        claims = [(0, Claim(NORM, WHOLE_DEVICE, self.step, -1))] if whole else []
        if parts:
            self.add(parts, self.handle(), per_rank(across), claims=claims)
            return
        reads = [*operands, *(cell for of in own for cell in of.cells)]
        self.add(reads, self.handle(), over_peers, joined=True, claims=claims)

    def optimizer(self, task: Task) -> None:
        """Adam on the parameters of this rank with clipped gradients; clears their gradients.

        On a host it updates the blocks of one piece. Without a norm among its operands it clips by the norm
        of its own gradients.
        """
        hosted = task.work.op in UPDATES
        operands = self.operands(anywhere=True)
        norm = next((place for place, handle in enumerate(task.reads) if handle in self.norms), None)
        own = [of for of in self._own_gradients() if not hosted or of.block in _blocks_of(task)]
        reads = [*operands, *(cell for of in own for cell in of.cells)]
        first = len(operands)
        states = len(reads)
        writes = self.handle()
        claims = []
        clears = []
        for block, shard, cells in own:
            kind = " shard" if shard else ""
            master = HOST_WEIGHTS if hosted else "weight shard" if shard else "weights"
            updated = [self.cell(master, block), self.cell("moments", block)]
            reads += updated
            claims.append((len(writes), Claim(f"weight gradient {CLIPPED}{kind}", block, self.step, -1)))
            claims.append((len(writes) + 1, Claim(f"weights{kind}", block, self.step, -1)))
            apart = shard and not (self.scatters_block(block) or hosted)
            cleared = [*cells, *(self.gradient_cells(block) if apart else [])]
            clears.append(len(cleared))
            self.on_host.discard((self.place, block))
            record = Cell(self.place, f"gradient used in step {self.step + 1}", block)
            writes += [record, *updated, *cleared]

        def update(rank: int, *values: Any) -> tuple[Any, ...]:
            total = self._summed(rank, own, list(values[first:states]))
            squared = self._squared(rank, own, total, self.layout.tensor) if norm is None else values[norm]
            factor = clipping(squared, self.training.max_norm)
            results: list[Any] = [None]
            for number, (clear, (block, shard, _)) in enumerate(zip(clears, own, strict=True)):
                gradient = factor * total[block]
                size = self.share(rank).layouts[block].size
                weights, moments = values[states + 2 * number : states + 2 * number + 2]
                results += [gradient, *adam(weights, gradient, moments)]
                results += [np.zeros(len(gradient) if shard and not i else size) for i in range(clear)]
            return tuple(results)

        self.add(reads, writes, per_rank(update), claims=claims)

    # ----------------------------------------------------------------------------------- start
    def initial(self, cell: Cell, rank: int) -> Any:
        """Initial value of a buffer; KeyError if it has none."""
        share = self.share(rank)
        if cell in self.first_in:
            return np.zeros(share.layouts[self.first_in[cell]].size)
        layout, (data, replica) = share.layouts[cell.number], self.sharding(rank, cell.number)
        shard = (cell.place, cell.number) in self.sharded
        if cell.name in ("weights", "weight shard"):
            flat = layout.flat(cut(self.training.initial[cell.number], share))
            return flat if cell.name == "weights" else layout.shard(flat, data, replica)
        zero = np.zeros(layout.size)
        if cell.name in (HOST_WEIGHTS, HOST_GRADIENT):
            flat = layout.flat(cut(self.training.initial[cell.number], share))
            held = flat if cell.name == HOST_WEIGHTS else zero
            return layout.shard(held, data, replica) if self.has_shards else held
        if cell.name == "moments":
            return Moments.zero(layout.shard(zero, data, replica).size if shard else layout.size)
        if cell.name == "gradient shard":
            return layout.shard(zero, data, replica)
        if cell.name.endswith("gradient"):
            return zero
        raise KeyError(cell)


def _with_norms(given: Sequence[Floats], values: Sequence[Values]) -> list[tuple[Any, ...]]:
    """What each member of a collective gets, with the sum of a norm's gradients if it reads some of these."""
    if len(values[0]) == 1:
        return [(piece,) for piece in given]
    norm = summed([inputs[1] for inputs in values])
    return [
        (piece, inputs[2] + norm if len(inputs) > 2 else norm.copy())
        for piece, inputs in zip(given, values, strict=True)
    ]


OPERATIONS: dict[str, Callable[[GpuCompiler, Task], None]] = {
    "embedding.forward": GpuCompiler.embedding_forward,
    "attention.forward": GpuCompiler.attention_forward,
    "mlp.forward": GpuCompiler.mlp_forward,
    "head.forward": GpuCompiler.head_forward,
    "attention.recompute": GpuCompiler.attention_recompute,
    "mlp.recompute": GpuCompiler.mlp_recompute,
    "head.backward": GpuCompiler.head_backward,
    "mlp.backward": GpuCompiler.layer_backward,
    "attention.backward": GpuCompiler.layer_backward,
    "embedding.backward": GpuCompiler.embedding_backward,
    "head.dgrad": GpuCompiler.head_backward,
    "mlp.dgrad": GpuCompiler.layer_backward,
    "attention.dgrad": GpuCompiler.layer_backward,
    "head.wgrad": GpuCompiler.weight_pass,
    "mlp.wgrad": GpuCompiler.weight_pass,
    "attention.wgrad": GpuCompiler.weight_pass,
    "stage.hand_on": GpuCompiler.hand_on,
    "wait": GpuCompiler.wait,
    "norm": GpuCompiler.norm,
    "optimizer": GpuCompiler.optimizer,
    **dict.fromkeys(UPDATES, GpuCompiler.optimizer),
    "tensor_communication: all_reduce": GpuCompiler.tensor_reduce,
    "tensor_communication: reduce_scatter": GpuCompiler.tensor_reduce,
    "tensor_communication: all_gather": GpuCompiler.tensor_gather,
    "pipeline_communication: send_recv": GpuCompiler.send,
    "pipeline_communication: all_reduce": GpuCompiler.tie,
    "data_communication: all_reduce": GpuCompiler.data_reduce,
    "data_communication: reduce_scatter": GpuCompiler.data_reduce,
    "data_communication: all_gather": GpuCompiler.data_gather,
    **CONTEXT_OPERATIONS,
    **EXPERT_OPERATIONS,
    "offload: host.store": GpuCompiler.host_store,
    "offload: host.load": GpuCompiler.host_load,
    "offload: nvme.load": GpuCompiler.host_load,
}
"""Method for each operation (`Work.op`, for communication with its category); add new ones here."""
