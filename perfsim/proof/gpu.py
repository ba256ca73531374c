"""GPU strategies as programs: effects of collectives, sends, copies and updates on buffers.

Gradients of weights that every tensor peer holds whole are sums over the peers: they travel with a gradient
of activations to its collective, which sums both. Tasks of their own sum the norm of all gradients; without
them an optimizer knows only its own rank's gradients. With offload the host has weights, moments and the sum
of the gradients that left the device. A copy of gradients clears those on the device; a copy of weights
overwrites them there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.costs.gpu import UPDATES
from perfsim.proof.compute import COMPUTE, Compiler, Operation, Partial, Target
from perfsim.proof.exchange import EXCHANGES, IN_PARTS
from perfsim.proof.operations import OPERATORS, merged_statistics
from perfsim.proof.parameters import EXPERTS, WORDS, Place, Share
from perfsim.proof.program import CLIPPED, NORM, Cell, Claim, Content, Message, Tensor, Values, pieces, summed
from perfsim.proof.serial import Moments, SmallTraining, adam, clipping
from perfsim.specs.layout import ContextExchange
from perfsim.specs.model import layer_kinds
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, SHARDED
from perfsim.strategies.three_d.emission import ThreeDPlan
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

FRAME = "activations of micro-batch"
HOST_WEIGHTS = "host weights"
HOST_GRADIENT = "host gradient"
SEQUENCE = 1
"""The axis that sequence parallelism splits."""
HIDDEN = 2
"""The axis along which tensor ranks cut what a pipeline sends."""
ENDS = (EMBEDDING, HEAD)


def places_of(length: int, ranks: int, rank: int, exchange: ContextExchange) -> tuple[int, ...]:
    """The positions of a sequence on one of the ranks that share it.

    In a ring, one part from each end, so that causal attention is equal work; else consecutive ones.
    """
    parts = 2 * ranks if exchange == "ring" else ranks
    numbers = (rank, parts - 1 - rank) if exchange == "ring" else (rank,)
    size = length // parts
    return tuple(place for part in numbers for place in range(part * size, (part + 1) * size))


class _Update(NamedTuple):
    """The update of a block on one device: whether of a shard, its gradient, its weights and moments."""

    block: int
    shard: bool
    gradient: Cell
    states: tuple[Cell, Cell]
    clears: tuple[Cell, ...]
    """Buffers of gradients that are zero afterwards."""


class GpuCompiler(Compiler):
    """Compiles graphs of `3d`, of its special cases and of ZeRO."""

    def __init__(self, graph: TaskGraph, training: SmallTraining, plan: ThreeDPlan) -> None:
        super().__init__(graph, training, plan.job.runtime)
        layout = self.layout = plan.layout
        self.peers = layout.tensor
        self.rings = layout.context_exchange == "ring"
        framework = self.runtime.stack
        by_operator = framework is not None and framework.selective != "core"
        self.mode = OPERATORS if layout.recompute == "selective" and by_operator else layout.recompute
        self.recomputed = {task.block for task in graph.tasks() if task.work.category == "recompute"}
        """Layers whose activations are computed again."""
        stage = layout.zero_stage
        self.scattered = stage == SHARDED or (stage == GRADIENTS_SHARDED and layout.replicas > 1)
        """Whether gradients are reduced after every micro-batch (ZeRO 2 and 3)."""
        self.leaves = self.scattered and layout.offload_optimizer != "none"
        """Whether the shards of a reduction go to the host, which sums them."""
        period = math.lcm(layout.tensor * layout.context, layout.expert * layout.expert_tensor)
        self.shares = [self._share(rank) for rank in range(period)]
        self.slots: dict[Cell, Cell] = {}
        """Where gathered weights, copied shards and gradients in buckets are now, in slots used in turn."""
        self.begun: dict[tuple[int, int], tuple[int, int]] = {}
        """Step and micro-batch of the latest gradient of a block."""
        self.first_in: dict[Cell, int] = {}
        """The block whose gradients a bucket of ZeRO 2 holds first."""
        self.homes: dict[int, list[int]] = {}
        """Blocks of each device."""
        self.pending: dict[int, dict[int, None]] = {}
        """Blocks of each device whose gradients wait for their reduction."""
        self.reductions: dict[int, dict[int, Cell]] = {}
        """Where every reduction leaves the gradients of its blocks, by the tensor that it writes."""
        self.norms: set[int] = set()
        """Tensors with the norm of gradients."""
        self.on_host: set[Cell] = set()
        """Gradients that left their device."""

    def key(self, task: Task) -> str:
        """The name of a task in the tables; of a communication it begins with its category."""
        if task.work.name == WAIT_OF_EXPERTS:
            return "wait"
        return task.work.op if task.work.kind is Kind.COMP else f"{task.work.category}: {task.work.op}"

    def compute(self, operation: Operation, *_: Any) -> None:
        """Add the action of a compute task; a forward tells where its block is."""
        op = self.task.work.op
        if op.endswith(".forward"):
            block = self.task.block + (EXPERTS if op == "experts.forward" else 0)
            home = self.homes.setdefault(self.place, [])
            if block not in home:
                home.append(block)
        super().compute(operation, *_)

    def handle(self, position: int = 0, *places: int) -> list[Cell]:
        """Activations that leave for the host use two buffers in turn, those that return two more."""
        made = self.task.work.writes[position]
        if self.layout.offload_activations == "none" or made.name != SAVED or not made.n_bytes:
            return super().handle(position, *places)
        which = "returned" if self.task.work.name == ACTIVATIONS else "leaving"
        cells = self.in_turn(f"slot of {which} activations")
        self.handles[self.task.writes[position]] = tuple(cells)
        return cells

    # ---------------------------------------------------------------------------------- shares
    def share(self, rank: int) -> Share:
        """The share of a rank, by its offset among peers: tensor innermost, then context, then data."""
        return self.shares[rank % len(self.shares)]

    def _share(self, rank: int) -> Share:
        layout = self.layout
        length = self.training.seq_length
        number = rank // layout.tensor % layout.context
        shared = layout.context > 1
        places = places_of(length, layout.context, number, layout.context_exchange) if shared else None
        return Share(
            self.training.model,
            length,
            Place(layout.tensor, rank % layout.tensor),
            places,
            Place(layout.expert, rank // layout.expert_tensor % layout.expert),
            Place(layout.expert_tensor, rank % layout.expert_tensor),
        )

    def mode_of(self, block: int) -> str:
        """The recompute mode of a layer; `operators` where selective is by operator."""
        return self.mode if block in self.recomputed else "none"

    def places(self, rank: int) -> Ints | slice:
        """The positions of each sample that a rank has."""
        return slice(None) if self.layout.context == 1 else np.array(self.share(rank).places)

    def rows(self, rank: int, microbatch: int) -> Ints:
        """The samples of the batch that a rank has in a micro-batch."""
        size = self.layout.micro_batch_size
        replica = rank // (self.layout.tensor * self.layout.context) % self.layout.data
        first = (microbatch * self.layout.data + replica) * size
        return np.arange(first, first + size)

    def own(self, rank: int, values: Any) -> Any:
        """A rank's own positions of values, if they are of all positions of its tensor peers."""
        if self.peers == 1 or values.shape[SEQUENCE] < len(self.share(rank).places):
            return values
        return pieces(values, self.peers, SEQUENCE)[rank % self.peers]

    def sharding(self, rank: int, block: int) -> Place:
        """Among how many ranks a block's states are sharded, and which shard a rank has."""
        layout = self.layout
        if block >= EXPERTS:
            holds = layout.expert * layout.expert_tensor
            return Place(layout.expert_replicas, rank // holds % layout.expert_replicas)
        return Place(layout.shards, rank // layout.tensor % layout.shards)

    def sharded(self, block: int) -> bool:
        """Whether a rank updates a shard of a block: under ZeRO, if other ranks hold it too."""
        layout = self.layout
        if block >= EXPERTS:
            return layout.zero_stage > 0 and layout.expert_replicas > 1
        return layout.zero_stage > 0 and (layout.replicas > 1 or layout.zero_stage == SHARDED)

    def scatters(self, block: int) -> bool:
        """Whether a block's gradients are reduced after every micro-batch; other ranks must hold it too."""
        return self.scattered and (block < EXPERTS or self.layout.expert_replicas > 1)

    # ----------------------------------------------------------------------------------- cells
    def cell(self, name: str, block: int) -> Cell:
        """A buffer of the present task's device, or the slot that has its content."""
        cell = Cell(self.place, name, block)
        return self.slots.get(cell, cell)

    def frame(self) -> Cell:
        """What tasks of the present micro-batch leave to one another."""
        return self.cell(f"{FRAME} {self.task.tag}", 0)

    def weights(self, block: int) -> Cell:
        """Buffer of a block's weights: its own, or the slot in which they were gathered."""
        return self.cell("weights", block)

    def master(self, block: int) -> Cell:
        """The buffer of weights that a rank updates."""
        return self.cell("weight shard" if self.sharded(block) else "weights", block)

    def reduced(self, block: int) -> Cell:
        """Where a block's gradient is once it is reduced: on the host, in a shard, or whole."""
        host = self.cell(HOST_GRADIENT, block)
        if host in self.on_host:
            return host
        return self.cell("gradient shard" if self.sharded(block) else "gradient", block)

    def target(self, block: int) -> Target:
        """The gradient of a block to which a task adds; a reduction must follow.

        The first task of a micro-batch begins it where it is reduced after every one. Under ZeRO 2 layers
        use two buckets in turn.
        """
        self.pending.setdefault(self.place, {})[block] = None
        present = self.step, self.task.tag
        begins = self.begun.get((self.place, block)) != present
        self.begun[self.place, block] = present
        scatters = self.scatters(block)
        if begins and scatters and block >= 0 and self.layout.zero_stage == GRADIENTS_SHARDED:
            name = "slot of gradients" if block < EXPERTS else "slot of gradients of experts"
            bucket = self.slots[Cell(self.place, "gradient", block)] = self.in_turn(name)[0]
            self.first_in.setdefault(bucket, block)
        cell = self.cell("gradient", block)
        return Target(block, cell, cell, not (begins and scatters))

    # -------------------------------------------------------------------- exchanges in a layer
    def exchange(self, task: Task) -> None:
        """Exchange keys and values, heads, or rows for experts among ranks of the stage."""
        how = EXCHANGES[task.work.name]

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            return how.run(task.work, [self.share(rank) for rank in members], values)

        follows = [self.cell(how.follows, task.block)] if how.follows else []
        keeps = [self.cell(how.keeps, task.block)] if how.keeps else []
        self.add(kernel, follows, keeps, joined=True, message=Message(how.content, how.sent))

    def over_peers(self, task: Task) -> None:
        """Sum over the tensor peers, or put their parts together; each gets the whole or its part.

        Gradients of weights that come with a tensor are summed too. They are added to their block's
        gradients, or passed on to a task that adds them.
        """
        op = task.work.op
        info = self.partial.get(task.reads[0], Partial(None))
        carries = info.carries
        buffer = [] if carries is None or info.later else [self.cell("gradient", carries)]

        def joined(arrays: Sequence[Floats]) -> list[Floats]:
            """What every peer gets of an array."""
            axis = HIDDEN if info.of_words or (op == "all_gather" and info.axis == HIDDEN) else SEQUENCE
            if op == "all_gather":
                whole = np.concatenate(arrays, axis=axis)
            else:
                whole = merged_statistics(arrays) if info.of_words else summed(arrays)
            return pieces(whole, len(arrays), axis) if op == "reduce_scatter" else [whole] * len(arrays)

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
        self.partial[task.writes[0]] = Partial(info.claim, of_words=info.of_words, axis=axis)
        claims = [(0, info.claim)] if info.claim and axis is None else []
        content: Content = "statistics" if info.of_words else "activations"
        message = Message(content, "made" if op == "all_gather" else "read")
        self.add(kernel, buffer, buffer, joined=True, claims=claims, message=message)

    # --------------------------------------------------------------------------- between stages
    def send(self, task: Task) -> None:
        """Send the tensor, or this peer's part of it, to the same peer of the next stage."""
        peers = self.peers
        shares = peers > 1 and not self.layout.sequence_parallel
        info = self.partial.get(task.reads[0], Partial(None))

        def run(rank: int, tensor: Tensor) -> tuple[Any, ...]:
            hidden = tensor["hidden"]
            return ({"hidden": pieces(hidden, peers, HIDDEN)[rank % peers] if shares else hidden},)

        axis = HIDDEN if shares else info.axis
        self.partial[task.writes[0]] = Partial(info.claim, axis=axis)
        claims = [(0, info.claim)] if info.claim and axis is None else []
        message = Message("activations", "made", times=peers if info.axis == SEQUENCE else 1)
        self.add(run, places=self._ends(task)[1:], claims=claims, message=message)

    def _ends(self, task: Task) -> Sequence[int]:
        group = task.work.group
        if group is None or len(group.ranks) != 2:
            raise self.refuse("its group", "a transfer needs two ranks")
        return group.ranks

    def tie(self, task: Task) -> None:
        """Sum the gradients of a tied embedding over the first and the last stage."""
        shard = self.sharded(EMBEDDING)
        name = "gradient shard" if shard else "gradient"
        ends = self._ends(task)
        cells = [Cell(place, name, block) for place, block in zip(ends, ENDS, strict=True)]

        def run(rank: int, *values: Any) -> tuple[Any, ...]:
            gradients = [value.copy() for value in values[-len(ENDS) :]]
            words = self._sum_words(rank, gradients, shard=shard)
            return (words, words, *gradients)

        self.add(run, cells, cells, places=ends, anywhere=True, message=Message("table", "made"))

    def _sum_words(self, rank: int, gradients: list[Floats], *, shard: bool) -> Floats:
        """Set the words in the gradients, or shards, of embedding and LM head to their sum; returns it."""
        layouts = self.share(rank).layouts
        shards = self.layout.shards if shard else 1
        first, last = (layouts[block].part_of_shard(WORDS[block], shards) for block in ENDS)
        total = gradients[0][first] + gradients[1][last]
        gradients[0][first] = gradients[1][last] = total
        return total

    # --------------------------------------------------------------------- sums over replicas
    def _blocks_to_sum(self, task: Task) -> list[int]:
        """The blocks whose gradients a reduction sums, among those that wait for one.

        A reduction that reads the gradients of several layers sums that many, from its block on; that of
        their experts sums those that wait from there on.
        """
        waiting = self.pending.setdefault(self.place, {})
        if task.work.experts:
            blocks = [number for number in waiting if number >= EXPERTS + max(0, task.block)]
        elif task.block == WHOLE_DEVICE:
            blocks = [number for number in waiting if number < EXPERTS]
        elif task.block == EMBEDDING_AND_HEAD:
            blocks = [number for number in waiting if number in ENDS]
        else:
            blocks = list(range(task.block, task.block + len(task.reads)))
        for number in blocks:
            waiting.pop(number, None)
        return blocks

    def data_reduce(self, task: Task) -> None:
        """Sum gradients over the replicas; each keeps the whole or its shard.

        Where several groups shard, the sum over a group is a part; shards are then summed over groups. A
        shard that leaves for the host takes turns with another in its buffers.
        """
        across = task.work.writes[0].name == "gradient_shards"
        scatters = task.work.op == "reduce_scatter"
        in_groups = scatters and self.layout.shards < self.layout.replicas
        if across:
            gradients = self.reductions[task.reads[0]]
        else:
            gradients = {block: self.cell("gradient", block) for block in self._blocks_to_sum(task)}
        blocks = list(gradients)
        sources = list(gradients.values())
        kept: list[Cell] = []
        if in_groups:
            written = [self.cell(f"gradient part[{task.tag}]", block) for block in blocks]
        elif not scatters and not across:
            written = sources
        elif self.leaves:
            written = self.in_turn("slot of leaving gradients", parts=len(ENDS))[: len(blocks)]
        else:
            written = [self.cell("gradient shard", block) for block in blocks]
            if all(self.scatters(block) for block in blocks):  # added to those of earlier micro-batches
                kept = written
        self.reductions[task.writes[0]] = dict(zip(blocks, written, strict=True))
        first = len(task.reads)
        count = len(blocks)

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            totals = [summed([inputs[first + number] for inputs in values]) for number in range(count)]
            results: list[tuple[Any, ...]] = []
            for index, (rank, inputs) in enumerate(zip(members, values, strict=True)):
                made = totals
                if scatters:
                    layouts = self.share(rank).layouts
                    place = Place(len(members), index)
                    pairs = zip(blocks, totals, strict=True)
                    made = [layouts[block].shard(total, place) for block, total in pairs]
                results.append((None, *(map(np.add, made, inputs[first + count :]) if kept else made)))
            return results

        # Of layers only: the gradient of a tied embedding may still lack the other stage's part.
        claims = [
            (1 + number, Claim("weight gradient", block, self.step, -1))
            for number, block in enumerate(blocks)
            if block >= 0 and written is sources
        ]
        content: Content = "shards" if across else "gradients"
        message = Message(content, "read", slice(first, first + count), tuple(blocks))
        self.add(kernel, [*sources, *kept], written, joined=True, claims=claims, message=message)

    def data_gather(self, task: Task) -> None:
        """Gather the parameter shards of the other replicas; after an update those of the whole device."""
        blocks = list(range(task.block, task.block + len(task.writes)))
        if task.block == WHOLE_DEVICE:
            blocks = [block for block in self.homes[self.place] if block < EXPERTS]
        elif task.block == EMBEDDING_AND_HEAD:
            blocks = list(ENDS)
        if task.work.experts:
            kinds = layer_kinds(self.training.model)
            blocks = [EXPERTS + block for block in blocks if block >= 0 and kinds[block].experts]
        if self.layout.zero_stage == SHARDED and task.block >= 0:
            # Two layers are gathered at once (`limit_all_gathers`).
            name = f"slot of gathered {'experts' if task.work.experts else 'weights'}"
            self.slots[Cell(self.place, "weights", blocks[0])] = self.in_turn(name)[0]
        first = len(task.reads)
        masters = [self.cell("weight shard", block) for block in blocks]
        tensors = (None,) * len(task.writes)

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            layouts = self.share(members[0]).layouts
            gathered = [
                layouts[block].whole([inputs[first + number] for inputs in values])
                for number, block in enumerate(blocks)
            ]
            return [(*tensors, *gathered)] * len(members)

        updated = enumerate(blocks if task.block == WHOLE_DEVICE else [], start=len(tensors))
        claims = [(place, Claim("weights", block, self.step, -1)) for place, block in updated]
        message = Message("parameters", "made", slice(len(tensors), None), tuple(blocks))
        whole = [self.weights(block) for block in blocks]
        self.add(kernel, masters, whole, joined=True, claims=claims, message=message)

    # ------------------------------------------------------------------------------------ host
    def _blocks_of(self, task: Task, *, anywhere: bool = False) -> list[int]:
        """The blocks on this device, or `anywhere`, that a copy or an update is about."""
        blocks = ENDS if task.block in (EMBEDDING_AND_HEAD, EMBEDDING) else (task.block,)
        return [block for block in blocks if anywhere or block in self.homes.get(self.place, [])]

    def host_store(self, task: Task) -> None:
        """Add gradients to those on the host, and clear them on the device; or copy activations."""
        if task.work.name == ACTIVATIONS:
            self.copy(task)
            return
        left = self.reductions[task.reads[0]] if self.scattered else {}
        blocks = [block for block in left or self._blocks_of(task) if block in self.homes[self.place]]
        pairs: list[Cell] = []
        for block in blocks:
            host = self.cell(HOST_GRADIENT, block)
            self.on_host.discard(host)
            pairs += [host, left[block] if left else self.reduced(block)]
            self.on_host.add(host)
        apart = [block for block in blocks if self.sharded(block) and not self.scattered]
        cleared = [self.cell("gradient", block) for block in apart]
        first = len(task.reads)

        def run(rank: int, *values: Any) -> tuple[Any, ...]:
            results: list[Any] = [None]
            for host, part in zip(values[first::2], values[first + 1 :: 2], strict=True):
                results += [host + part, np.zeros_like(part)]
            return *results, *(np.zeros(self.share(rank).layouts[cell.number].size) for cell in cleared)

        self.add(run, pairs, [*pairs, *cleared], anywhere=True)

    def host_load(self, task: Task) -> None:
        """Copy the host's weights to the device, a rank's shard or all; or activations."""
        if task.work.name == ACTIVATIONS:
            self.copy(task)
            return
        blocks = self._blocks_of(task, anywhere=self.layout.offload_param != "none")
        targets = [self.master(block) for block in blocks]
        if self.layout.offload_param != "none":
            # Copies of shards that are gathered next use two buffers in turn.
            targets = self.in_turn("slot of copied weights", parts=len(ENDS))[: len(blocks)]
            shards = [Cell(self.place, "weight shard", block) for block in blocks]
            self.slots |= zip(shards, targets, strict=True)
        sources = [self.cell(HOST_WEIGHTS, block) for block in blocks]
        first = len(task.reads)
        self.add(lambda _, *values: (None, *values[first:]), sources, targets, anywhere=True)

    # ---------------------------------------------------------------------------------- update
    def _updates(self, *, hosted: bool) -> list[_Update]:
        """The updates of this device's blocks, in the order in which their gradients were made."""
        updates = []
        for block in sorted(self.homes.get(self.place, []), reverse=True):
            shard = self.sharded(block)
            gradient = self.reduced(block)
            apart = shard and not (self.scatters(block) or hosted)
            clears = (gradient, self.cell("gradient", block)) if apart else (gradient,)
            master = self.cell(HOST_WEIGHTS, block) if hosted else self.master(block)
            updates.append(_Update(block, shard, gradient, (master, self.cell("moments", block)), clears))
        return updates

    def _summed(self, rank: int, own: Sequence[_Update], values: Values) -> dict[int, Floats]:
        """The gradient of each block; words on one rank are summed."""
        total = {update.block: value.copy() for update, value in zip(own, values, strict=True)}
        if self.training.model.tied_embeddings and EMBEDDING in total and HEAD in total:
            both = [total[EMBEDDING], total[HEAD]]
            self._sum_words(rank, both, shard=any(of.shard for of in own if of.block == EMBEDDING))
        return total

    def _squared(self, rank: int, own: Sequence[_Update], total: dict[int, Floats], ranks: int) -> float:
        """Squared gradient norm of a rank, divided by how many of `ranks` hold the same gradients."""
        layouts = self.share(rank).layouts
        layout = self.layout
        norm = 0.0
        for block, shard, *_ in own:
            place = self.sharding(rank, block) if shard else Place()
            once = layouts[block].shard(layouts[block].counted, place)
            others = place.of * (layout.tensor if block < EXPERTS else layout.expert * layout.expert_tensor)
            norm += float(np.sum(once * total[block] ** 2)) * others / ranks
        return norm

    def norm(self, task: Task) -> None:
        """The norm of this device's gradients summed over peers, or that of other norms over devices."""
        across = not self.norms.isdisjoint(task.reads)
        own = [] if across else self._updates(hosted=False)
        count = len(task.reads)

        def over_peers(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            totals = [
                self._squared(rank, own, self._summed(rank, own, inputs[count:]), len(members))
                for rank, inputs in zip(members, values, strict=True)
            ]
            return [(sum(totals),)] * len(members)

        self.norms.add(task.writes[0])
        whole = (across or self.layout.pipeline == 1) and math.isfinite(self.training.max_norm)
        claims = [(0, Claim(NORM, WHOLE_DEVICE, self.step, -1))] if whole else []
        gradients = [update.gradient for update in own]
        run = (lambda _, *values: (sum(values),)) if across else over_peers
        self.add(run, gradients, anywhere=True, joined=not across, claims=claims)

    def optimizer(self, task: Task) -> None:
        """Adam on the parameters of this rank with clipped gradients; clears their gradients.

        On a host it updates the blocks of one piece. Without a norm among its operands it clips by the norm
        of its own gradients.
        """
        hosted = task.work.op in UPDATES
        norm = next((place for place, handle in enumerate(task.reads) if handle in self.norms), None)
        own = [of for of in self._updates(hosted=hosted) if not hosted or of.block in self._blocks_of(task)]
        first = len(task.reads)
        count = len(own)
        writes: list[Cell] = []
        claims = []
        for block, shard, _, states, clears in own:
            kind = " shard" if shard else ""
            place = len(task.writes) + len(writes)
            claims.append((place, Claim(f"weight gradient {CLIPPED}{kind}", block, self.step, -1)))
            claims.append((place + 1, Claim(f"weights{kind}", block, self.step, -1)))
            writes += [self.cell(f"gradient used in step {self.step + 1}", block), *states, *clears]
            self.on_host.discard(self.cell(HOST_GRADIENT, block))

        def run(rank: int, *values: Any) -> tuple[Any, ...]:
            total = self._summed(rank, own, values[first : first + count])
            squared = self._squared(rank, own, total, self.peers) if norm is None else values[norm]
            factor = clipping(squared, self.training.max_norm)
            states = values[first + count :]
            results: list[Any] = [None]
            for number, update in enumerate(own):
                gradient = factor * total[update.block]
                size = self.share(rank).layouts[update.block].size
                results += [gradient, *adam(states[2 * number], gradient, states[2 * number + 1])]
                results += [np.zeros(len(gradient)), np.zeros(size)][: len(update.clears)]
            return tuple(results)

        reads = [*(of.gradient for of in own), *(cell for of in own for cell in of.states)]
        self.add(run, reads, writes, anywhere=True, claims=claims)

    # ----------------------------------------------------------------------------------- start
    def initial(self, cell: Cell, rank: int) -> Any:
        """Initial value of a buffer; KeyError if it has none."""
        layouts = self.share(rank).layouts
        if cell.name.startswith(FRAME):
            return {}
        if cell in self.first_in:
            return np.zeros(layouts[self.first_in[cell]].size)
        layout = layouts[cell.number]
        if cell.name in ("weights", "weight shard", HOST_WEIGHTS):
            whole = self.share(rank).cut(self.training.initial[cell.number], cell.number)
            value = layout.flat(whole.items())
        elif cell.name in ("gradient", "gradient shard", HOST_GRADIENT, "moments"):
            value = np.zeros(layout.size)
        else:
            raise KeyError(cell)
        if self.sharded(cell.number) and cell.name not in ("weights", "gradient"):
            value = layout.shard(value, self.sharding(rank, cell.number))
        return Moments.zero(value.size) if cell.name == "moments" else value


GpuCompiler.computes = {**COMPUTE, **IN_PARTS}
GpuCompiler.operations = {
    "wait": GpuCompiler.copy,
    "norm": GpuCompiler.norm,
    "optimizer": GpuCompiler.optimizer,
    **dict.fromkeys(UPDATES, GpuCompiler.optimizer),
    "tensor_communication: all_reduce": GpuCompiler.over_peers,
    "tensor_communication: reduce_scatter": GpuCompiler.over_peers,
    "tensor_communication: all_gather": GpuCompiler.over_peers,
    "pipeline_communication: send_recv": GpuCompiler.send,
    "pipeline_communication: all_reduce": GpuCompiler.tie,
    "data_communication: all_reduce": GpuCompiler.data_reduce,
    "data_communication: reduce_scatter": GpuCompiler.data_reduce,
    "data_communication: all_gather": GpuCompiler.data_gather,
    "context_communication: send_recv": GpuCompiler.exchange,
    "context_communication: all_to_all": GpuCompiler.exchange,
    "expert_communication: all_to_all": GpuCompiler.exchange,
    "expert_communication: all_gather": GpuCompiler.exchange,
    "expert_communication: reduce_scatter": GpuCompiler.exchange,
    "offload: host.store": GpuCompiler.host_store,
    "offload: host.load": GpuCompiler.host_load,
    "offload: nvme.load": GpuCompiler.host_load,
}
"""Method for each other operation (`Work.op`, for communication with its category); add new ones here."""
