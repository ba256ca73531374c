"""GPU strategies as programs: effects of collectives, sends, copies and updates on buffers.

Gradients of weights that every tensor peer holds whole are sums over the peers: they travel with a gradient
of activations (`Summand`) to its collective, which sums both. Tasks of their own sum the norm of all
gradients; without them an optimizer knows only its own rank's gradients. With offload the host has weights,
moments and the sum of the gradients that left the device. A copy of gradients clears those on the device; a
copy of weights overwrites them there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.costs.gpu import UPDATES
from perfsim.proof.gpu_compute import FRAME, Partial
from perfsim.proof.gpu_exchange import EXCHANGES, IN_PARTS, GpuExchange
from perfsim.proof.operations import merged_statistics
from perfsim.proof.parameters import EXPERTS, WORDS, Place
from perfsim.proof.program import CLIPPED, NORM, Cell, Claim, Message, Values, per_rank, pieces, summed
from perfsim.proof.serial import Moments, SmallTraining, adam, clipping
from perfsim.proof.tasks import OF_ENDS, OF_LAYERS, Summand, plain
from perfsim.specs.model import layer_kinds
from perfsim.strategies.three_d.data import SHARDED
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

HOST_WEIGHTS = "host weights"
HOST_GRADIENT = "host gradient"

SEQUENCE = 1
HIDDEN = 2
"""The axis that sequence parallelism splits, and that of the parts of a pipeline send."""
ENDS = (EMBEDDING, HEAD)


def _blocks_of(task: Task) -> tuple[int, ...]:
    """The blocks that a copy or an update is about."""
    return ENDS if task.block in (EMBEDDING_AND_HEAD, EMBEDDING) else (task.block,)


class _Update(NamedTuple):
    """The update of a block on one device: whether of a shard, its gradient, its weights and moments."""

    block: int
    shard: bool
    gradient: Cell
    states: tuple[Cell, Cell]
    clears: tuple[Cell, ...]
    """Buffers of gradients that are zero afterwards."""


class GpuCompiler(GpuExchange):
    """Compiles graphs of `3d`, of its special cases and of ZeRO."""

    def __init__(self, graph: TaskGraph, training: SmallTraining, plan: ThreeDPlan) -> None:
        super().__init__(graph, training, plan)
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

    def translate(self, task: Task) -> None:
        """Add the action of one task; an unknown operation is refused by name."""
        key = task.work.op if task.work.kind is Kind.COMP else f"{task.work.category}: {task.work.op}"
        home = self.homes.setdefault(self.place, [])
        if key.endswith(".forward"):
            block = task.block + (EXPERTS if key == "experts.forward" else 0)
            if block not in home and task.work.name != WAIT_OF_EXPERTS:
                home.append(block)
        if task.work.name == WAIT_OF_EXPERTS:
            self.wait(task)
        elif key in COMPUTE:
            self.perform(COMPUTE[key])
        elif key in OPERATIONS:
            OPERATIONS[key](self, task)
        else:
            raise self.unknown(key, [*COMPUTE, *OPERATIONS])

    def handle(self, position: int = 0, *places: int) -> list[Cell]:
        """Activations that leave for the host use two buffers in turn, those that return two more."""
        made = self.task.work.writes[position]
        number = self.task.writes[position]
        if self.layout.offload_activations == "none" or made.name != SAVED or not made.n_bytes:
            return super().handle(position, *places)
        returns = self.task.work.name == ACTIVATIONS
        cells = self.in_turn(f"slot of {'returned' if returns else 'leaving'} activations")
        self.handles[number] = tuple(cells)
        return cells

    # ---------------------------------------------------------------------------------- shards
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

    def reduced(self, block: int) -> Cell:
        """Where a block's gradient is once it is reduced: on the host, in a shard, or whole."""
        if (self.place, block) in self.on_host:
            return self.cell(HOST_GRADIENT, block)
        return self.cell("gradient shard", block) if self.sharded(block) else self.gradient(block)

    # ----------------------------------------------------------------------- tensor collectives
    def over_peers(self, task: Task) -> None:
        """Sum over the tensor peers, or put their parts together; each gets the whole or its part.

        Gradients of weights that come with a tensor are summed too. They are added to their block's
        gradients, or passed on to a task that adds them.
        """
        op = task.work.op
        info = self.partial.get(task.reads[0], Partial(None))
        axis = HIDDEN if info.statistics or (op == "all_gather" and info.axis == HIDDEN) else SEQUENCE
        adds = info.carries is not None and not info.later
        buffer = [self.gradient(info.carries)] if info.carries is not None and adds else []

        def kernel(_: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            tensors = [inputs[0] for inputs in values]
            arrays = [plain(tensor) for tensor in tensors]
            sums = merged_statistics if info.statistics else summed
            whole = np.concatenate(arrays, axis=axis) if op == "all_gather" else sums(arrays)
            made = (
                pieces(whole, len(values), axis) if op == "reduce_scatter" else [whole.copy() for _ in values]
            )
            if info.carries is None:  # what was summed with the tensor before stays with it
                summands = [isinstance(tensor, Summand) for tensor in tensors]
                rows = zip(made, tensors, summands, strict=True)
                return [(old._replace(values=array) if keeps else array,) for array, old, keeps in rows]
            total = summed([tensor.gradients for tensor in tensors])
            if adds:
                return [(array, inputs[1] + total) for array, inputs in zip(made, values, strict=True)]
            return [(Summand(array, total),) for array in made]

        def elements(inputs: Values, made: tuple[Any, ...]) -> int:
            return int(plain(made[0] if op == "all_gather" else inputs[0]).size)

        if op == "reduce_scatter":
            self.partial[task.writes[0]] = Partial(info.claim, info.statistics, axis=axis)
        claims = [(0, info.claim)] if info.claim and op != "reduce_scatter" else []
        message = Message("statistics" if info.statistics else "activations", elements)
        reads = [self.operand(task.reads[0]), *buffer]
        self.add(reads, [*self.handle(), *buffer], kernel, joined=True, claims=claims, message=message)

    # --------------------------------------------------------------------------- between stages
    def send(self, task: Task) -> None:
        """Send the tensor, or this peer's part of it, to the same peer of the next stage."""
        operand, (_, target) = self.operand(task.reads[0]), self._ends(task)
        peers = self.layout.tensor
        shares = not self.layout.sequence_parallel and self.layout.tensor > 1
        claim = self.claim_of(operand)
        info = self.partial.get(task.reads[0])
        times = peers if info is not None and info.axis == SEQUENCE else 1

        def run(rank: int, value: Any) -> tuple[Any, ...]:
            array = plain(value)
            return (pieces(array, peers, HIDDEN)[rank % peers] if shares else array.copy(),)

        if shares:
            self.partial[task.writes[0]] = Partial(claim, axis=HIDDEN)
        claims = [(0, claim)] if claim and not shares else []
        message = Message("activations", lambda _, made: int(made[0].size) * times)
        self.add([operand], self.handle(0, target), per_rank(run), claims=claims, message=message)

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
        shard = self.sharded(EMBEDDING)
        name = "gradient shard" if shard else "gradient"
        cells = [Cell(first, name, EMBEDDING), Cell(last, name, HEAD)]
        operands = self.operands(anywhere=True)

        def run(rank: int, *values: Any) -> tuple[Any, ...]:
            gradients = [value.copy() for value in values[len(operands) :]]
            self._sum_words(rank, gradients, shard=shard)
            return (None, None, *gradients)

        def words(*_: Any) -> int:
            part = self._words(0, EMBEDDING, shard=shard)
            return int(part.stop - part.start)

        results = [*self.handle(0, first, last), *cells]
        self.add([*operands, *cells], results, per_rank(run), message=Message("table", words))

    def _sum_words(self, rank: int, gradients: list[Floats], *, shard: bool) -> None:
        """Set the words in the gradients of embedding and LM head to their sum."""
        parts = [self._words(rank, block, shard=shard) for block in ENDS]
        total = gradients[0][parts[0]] + gradients[1][parts[1]]
        gradients[0][parts[0]] = gradients[1][parts[1]] = total

    def _words(self, rank: int, block: int, *, shard: bool) -> slice:
        """Position of the words in a block's flat vector, or in its shard."""
        layout = self.share(rank).layouts[block]
        name = WORDS[block]
        return layout.part_of_shard(name, self.layout.shards) if shard else layout.parts[name]

    # --------------------------------------------------------------------- sums over replicas
    def _targets(self, block: int, buckets: int) -> list[int]:
        """The blocks whose gradients a reduction sums, among those that wait for one.

        A reduction that reads the gradients of several layers sums that many, from `block` on; that of their
        experts sums those that wait from there on.
        """
        waiting = self.pending.setdefault(self.place, {})
        if self.task.work.experts:
            targets = [number for number in waiting if number >= EXPERTS + max(0, block)]
        elif block == WHOLE_DEVICE:
            targets = [number for number in waiting if number < EXPERTS]
        elif block == EMBEDDING_AND_HEAD:
            targets = [number for number in waiting if number in ENDS]
        else:
            targets = list(range(block, block + buckets))
        for number in targets:
            waiting.pop(number, None)
        return targets

    def data_reduce(self, task: Task) -> None:
        """Sum gradients over the replicas; each keeps the whole or its shard.

        Where several groups shard, the sum over a group is a part; shards are then summed over groups.
        """
        across = task.work.writes[0].name == "gradient_shards"
        scatters = task.work.op == "reduce_scatter"
        in_groups = scatters and self.layout.shards < self.layout.replicas
        if across:
            blocks = self.scatters[task.reads[0]]
            tag = int(self.graph.tag[self.graph.writer[task.reads[0]]])
        else:
            blocks = self._targets(task.block, len(task.reads))
            tag = task.tag
        parts = [self.cell(f"gradient part[{tag}]", block) for block in blocks]
        sources = parts if across else [self.gradient(block) for block in blocks]
        shards = self._shards(blocks) if (scatters and not in_groups) or across else []
        kept = shards if self._sums_shards(blocks) else []
        written = shards or (parts if in_groups else sources)
        self.scatters[task.writes[0]] = blocks
        operands = self.operands()
        first = len(operands)
        count = len(blocks)

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            totals = [summed([inputs[first + number] for inputs in values]) for number in range(count)]
            results: list[tuple[Any, ...]] = []
            for index, (rank, inputs) in enumerate(zip(members, values, strict=True)):
                made = [total.copy() for total in totals]
                if scatters:
                    place = Place(len(members), index)
                    layouts = self.share(rank).layouts
                    made = [
                        layouts[block].shard(total, place)
                        for block, total in zip(blocks, totals, strict=True)
                    ]
                results.append((None, *(map(np.add, made, inputs[first + count :]) if kept else made)))
            return results

        def moved(inputs: Values, _: tuple[Any, ...]) -> int:
            return sum(int(value.size) for value in inputs[first : first + count])

        # Of layers only: the gradient of a tied embedding may still lack the other stage's part.
        claims = [
            (1 + number, Claim("weight gradient", block, self.step, -1))
            for number, block in enumerate(blocks)
            if block >= 0 and written is sources
        ]
        message = Message("shards" if across else "gradients", moved, tuple(blocks))
        reads = [*operands, *sources, *kept]
        self.add(reads, [*self.handle(), *written], kernel, joined=True, claims=claims, message=message)

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
        cells = self.in_turn("slot of leaving gradients", parts=len(ENDS))[: len(blocks)]
        tensor = self.task.writes[0]
        self.reduced_to |= {(tensor, block): cell for block, cell in zip(blocks, cells, strict=True)}
        return cells

    def data_gather(self, task: Task) -> None:
        """Gather the parameter shards of the other replicas; after an update those of the whole device."""
        layers: Sequence[int] = range(task.block, task.block + len(task.writes))
        if task.block == WHOLE_DEVICE:
            layers = [block for block in self.homes[self.place] if block < EXPERTS]
        elif task.block == EMBEDDING_AND_HEAD:
            layers = ENDS
        blocks = list(layers)
        if task.work.experts:
            kinds = layer_kinds(self.training.model)
            blocks = [EXPERTS + block for block in layers if block >= 0 and kinds[block].experts]
        if self.layout.zero_stage == SHARDED and task.block >= 0:
            # Two layers are gathered at once (`limit_all_gathers`).
            name = f"slot of gathered {'experts' if task.work.experts else 'weights'}"
            self.slot_of[self.place, blocks[0]] = self.in_turn(name)[0]
        operands = self.operands()
        masters = [self.copied.get((self.place, block), self.cell("weight shard", block)) for block in blocks]
        tensors = (None,) * len(task.writes)

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            layouts = self.share(members[0]).layouts
            whole = [
                layouts[block].whole([inputs[len(operands) + number] for inputs in values])
                for number, block in enumerate(blocks)
            ]
            return [(*tensors, *(weights.copy() for weights in whole)) for _ in members]

        def moved(_: Values, made: tuple[Any, ...]) -> int:
            return sum(int(whole.size) for whole in made[len(tensors) :])

        updated = blocks if task.block == WHOLE_DEVICE else []
        claims = [
            (len(tensors) + place, Claim("weights", block, self.step, -1))
            for place, block in enumerate(updated)
        ]
        writes = [*self.results(), *(self.weights(block) for block in blocks)]
        message = Message("parameters", moved, tuple(blocks))
        self.add([*operands, *masters], writes, kernel, joined=True, claims=claims, message=message)

    # ------------------------------------------------------------------------------------ host
    def host_store(self, task: Task) -> None:
        """Add gradients to those on the host, and clear them on the device; or copy activations."""
        if task.work.name == ACTIVATIONS:
            self._copied(task)
            return
        home = self.homes[self.place]
        reduced = self.scatters[task.reads[0]] if self.scattered else _blocks_of(task)
        blocks = [block for block in reduced if block in home]
        operands = self.operands(anywhere=True)
        pairs: list[Cell] = []
        cleared: list[Cell] = []
        for block in blocks:
            self.on_host.discard((self.place, block))
            left = self.reduced_to[task.reads[0], block] if self.leaves else self.reduced(block)
            pairs += [self.cell(HOST_GRADIENT, block), left]
            if self.sharded(block) and not self.scattered:
                cleared.append(self.gradient(block))
        self.on_host |= {(self.place, block) for block in blocks}

        def run(rank: int, *values: Any) -> tuple[Any, ...]:
            results: list[Any] = [None]
            of_pairs = values[len(operands) :]
            for host, part in zip(of_pairs[::2], of_pairs[1::2], strict=True):
                results += [host + part, np.zeros_like(part)]
            return *results, *(np.zeros(self.share(rank).layouts[cell.number].size) for cell in cleared)

        self.add([*operands, *pairs], [*self.handle(), *pairs, *cleared], per_rank(run))

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
            targets = self.in_turn("slot of copied weights", parts=len(ENDS))[: len(blocks)]
            self.copied |= {(self.place, block): cell for block, cell in zip(blocks, targets, strict=True)}
        else:
            targets = [self.cell(self._master(block), block) for block in blocks]

        def run(_: int, *values: Any) -> tuple[Any, ...]:
            return (None, *(weights.copy() for weights in values[len(operands) :]))

        self.add([*operands, *sources], [*self.handle(), *targets], per_rank(run))

    def _master(self, block: int) -> str:
        """The buffer of weights that a rank updates."""
        return "weight shard" if self.sharded(block) else "weights"

    def _copied(self, task: Task) -> None:
        """A copy of a tensor."""
        self.add([self.operand(task.reads[0])], self.handle(), per_rank(lambda _, value: (value,)))

    # ---------------------------------------------------------------------------------- update
    def _updates(self, *, hosted: bool) -> list[_Update]:
        """The updates of this device's blocks, in the order in which their gradients were made."""
        updates = []
        for block in sorted(self.homes.get(self.place, []), reverse=True):
            shard = self.sharded(block)
            gradient = self.reduced(block)
            apart = shard and not (self.scatters_block(block) or hosted)
            clears = (gradient, self.gradient(block)) if apart else (gradient,)
            master = HOST_WEIGHTS if hosted else self._master(block)
            states = self.cell(master, block), self.cell("moments", block)
            updates.append(_Update(block, shard, gradient, states, clears))
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
        share = self.share(rank)
        layout = self.layout
        norm = 0.0
        for block, shard, *_ in own:
            once = share.layouts[block].counted
            others = layout.tensor if block < EXPERTS else layout.expert * layout.expert_tensor
            if shard:
                place = self.sharding(rank, block)
                once = share.layouts[block].shard(once, place)
                others *= place.of
            norm += float(np.sum(once * total[block] ** 2)) * others / ranks
        return norm

    def norm(self, task: Task) -> None:
        """The norm of this device's gradients summed over peers, or that of other norms over devices."""
        parts = [self.operand(handle, anywhere=True) for handle in task.reads if handle in self.norms]
        operands = self.operands(anywhere=True)
        own = self._updates(hosted=False)
        count = len(operands)

        def over_peers(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
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
            across = per_rank(lambda _, *values: (sum(values),))
            self.add(parts, self.handle(), across, claims=claims)
            return
        reads = [*operands, *(update.gradient for update in own)]
        self.add(reads, self.handle(), over_peers, joined=True, claims=claims)

    def optimizer(self, task: Task) -> None:
        """Adam on the parameters of this rank with clipped gradients; clears their gradients.

        On a host it updates the blocks of one piece. Without a norm among its operands it clips by the norm
        of its own gradients.
        """
        hosted = task.work.op in UPDATES
        operands = self.operands(anywhere=True)
        norm = next((place for place, handle in enumerate(task.reads) if handle in self.norms), None)
        own = [of for of in self._updates(hosted=hosted) if not hosted or of.block in _blocks_of(task)]
        first = len(operands)
        count = len(own)
        writes = self.handle()
        claims = []
        for block, shard, _, states, clears in own:
            kind = " shard" if shard else ""
            claims.append((len(writes), Claim(f"weight gradient {CLIPPED}{kind}", block, self.step, -1)))
            claims.append((len(writes) + 1, Claim(f"weights{kind}", block, self.step, -1)))
            record = self.cell(f"gradient used in step {self.step + 1}", block)
            writes += [record, *states, *clears]
            self.on_host.discard((self.place, block))

        def run(rank: int, *values: Any) -> tuple[Any, ...]:
            total = self._summed(rank, own, values[first : first + count])
            squared = self._squared(rank, own, total, self.layout.tensor) if norm is None else values[norm]
            factor = clipping(squared, self.training.max_norm)
            states = values[first + count :]
            results: list[Any] = [None]
            for number, update in enumerate(own):
                gradient = factor * total[update.block]
                size = self.share(rank).layouts[update.block].size
                results += [gradient, *adam(states[2 * number], gradient, states[2 * number + 1])]
                results += [np.zeros(len(gradient)), np.zeros(size)][: len(update.clears)]
            return tuple(results)

        reads = [*operands, *(of.gradient for of in own), *(cell for of in own for cell in of.states)]
        self.add(reads, writes, per_rank(run), claims=claims)

    # ----------------------------------------------------------------------------------- start
    def initial(self, cell: Cell, rank: int) -> Any:
        """Initial value of a buffer; KeyError if it has none."""
        share = self.share(rank)
        if cell.name.startswith(FRAME):
            return {}
        if cell in self.first_in:
            return np.zeros(share.layouts[self.first_in[cell]].size)
        layout, place = share.layouts[cell.number], self.sharding(rank, cell.number)
        shard = self.sharded(cell.number)
        if cell.name in ("weights", "weight shard", HOST_WEIGHTS):
            whole = share.cut(self.training.initial[cell.number], cell.number)
            flat = layout.flat(whole.items())
            return flat if cell.name == "weights" or not shard else layout.shard(flat, place)
        if cell.name in ("gradient", "gradient shard", HOST_GRADIENT, "moments"):
            zero = np.zeros(layout.size)
            own = layout.shard(zero, place) if shard and cell.name != "gradient" else zero
            return Moments.zero(own.size) if cell.name == "moments" else own
        raise KeyError(cell)


COMPUTE = {**OF_ENDS, **OF_LAYERS, **IN_PARTS}
"""What compute tasks do, by their operation (`Work.op`); add new ones here."""
OPERATIONS: dict[str, Callable[[GpuCompiler, Task], None]] = {
    "wait": GpuCompiler.wait,
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
    **EXCHANGES,
    "offload: host.store": GpuCompiler.host_store,
    "offload: host.load": GpuCompiler.host_load,
    "offload: nvme.load": GpuCompiler.host_load,
}
"""Method for each other operation (`Work.op`, for communication with its category); add new ones here."""
