"""Compute tasks of GPU strategies: their shares, the buffers that they use, and the sums that they add to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.layers import OPERATORS
from perfsim.proof.operations import Gradients, evaluated
from perfsim.proof.parameters import EXPERTS, Place, Share, Weights
from perfsim.proof.program import Cell, Claim, Compiler, Values, per_rank, pieces
from perfsim.proof.serial import SmallTraining
from perfsim.proof.tasks import At, Frame, Operation, Present, Summand, blocks_named
from perfsim.specs.layout import ContextExchange
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, SHARDED
from perfsim.strategies.three_d.emission import ThreeDPlan
from perfsim.work import EMBEDDING, HEAD, Task, TaskGraph

POSITIONS = 1
"""The axis of positions in hidden activations."""
FRAME = "activations of micro-batch"


class _Target(NamedTuple):
    """The gradient of a block, and whether a task adds to what is there."""

    block: int
    cell: Cell
    adds: bool


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

    def __init__(self, graph: TaskGraph, training: SmallTraining, plan: ThreeDPlan) -> None:
        super().__init__(graph, training)
        layout = self.layout = plan.layout
        self.runtime = plan.job.runtime
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
        framework = self.runtime.stack
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

    def _own(self, rank: int, values: Any) -> Any:
        """A rank's own positions of values, if they are of all positions of its tensor peers."""
        peers = self.layout.tensor
        if peers == 1 or values.shape[POSITIONS] < len(self.share(rank).places):
            return values
        return pieces(values, peers, POSITIONS)[rank % peers]

    # ----------------------------------------------------------------------------------- cells
    def cell(self, name: str, block: int | None = None) -> Cell:
        """A buffer of the present task's device."""
        return Cell(self.place, name, self.task.block if block is None else block)

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
    def perform(self, operation: Operation) -> None:
        """A task that each rank runs alone."""
        task = self.task
        now = self._present(task)
        blocks = blocks_named(now, operation.reads)
        targets = self._targets_of(now, operation)
        operands = self.operands()
        results = self.results()
        frame = self.cell(f"{FRAME} {task.tag}", 0)
        loss = [self.cell(f"loss[{task.tag}]")] if operation.loss and now.has_loss else []
        first = len(operands) + len(blocks)
        # A pass for weights reads gradients of norms together with the tensor that tensor peers summed.
        travels = self.layout.tensor > 1 and task.work.op.endswith("wgrad")

        def kernel(rank: int, *values: Any) -> tuple[Any, ...]:
            layouts = self.share(rank).layouts
            w: Weights = {}
            for block, flat in zip(blocks, values[len(operands) : first], strict=True):
                w |= layouts[block].views(flat)
            f: Frame = dict(values[first])
            made = operation.run(At(now, rank, w, values[: len(operands)], f))
            gradients: Gradients = []
            if operation.kind == "backward":
                made, gradients = self._tensors(now, rank, made, f)
            elif operation.kind == "weights":
                made, gradients = [None], made
            sums = self._sums(now, rank, targets, gradients, values[first + 1 :], f)
            if travels:
                sums[0] = sums[0] + values[len(operands) - 1].gradients
            losses = [f.pop((now.block, "loss")) for _ in loss]
            return (*made, f, *losses, *sums)

        reads = [*operands, *map(self.weights, blocks), frame, *(target.cell for target in targets)]
        writes = [*results, frame, *loss, *(target.cell for target in targets)]
        claims = self._completes(now, operation)
        claims += [(len(results) + 1, now.loss) for _ in loss]
        self.add(reads, writes, per_rank(kernel), claims=claims)

    def _present(self, task: Task) -> Present:
        works = [self.graph.task(int(self.graph.writer[read])).work for read in task.reads]
        shared = next((n for n, work in enumerate(works) if work.name.startswith("shared_experts")), None)
        mode = self.mode_of(task.block)
        return Present(self, task, self.step, self.runtime, mode, self._own, shared)

    def _completes(self, now: Present, operation: Operation) -> list[tuple[int, Claim]]:
        """Claim the first tensor of the task, now or once the parts of the tensor peers are summed."""
        task = now.task
        claim = now.claim(operation)
        if self.layout.tensor == 1:
            return [(0, claim)] if claim else []
        carries = task.block if operation.kind == "backward" and operation.quantity else None
        statistics = task.work.op == "head.forward"
        if claim or carries is not None or statistics:
            later = task.work.op.endswith("dgrad")
            self.partial[task.writes[0]] = Partial(claim, statistics, carries, later)
        return []

    def _targets_of(self, now: Present, operation: Operation) -> list[_Target]:
        """The blocks to whose gradients a task adds; a split backward adds them in a task of its own.

        The first task of a micro-batch begins them where they are reduced after every one. A reduction must
        follow.
        """
        if operation.kind == "forward" or now.task.work.op.endswith("dgrad"):
            return []
        targets = []
        for block in blocks_named(now, operation.adds):
            if block == HEAD and now.ahead:
                targets.append(_Target(HEAD, self.gradient(HEAD), adds=True))
                continue
            self.pending.setdefault(self.place, {})[block] = None
            adds = not (operation.begins and self.scatters_block(block))
            targets.append(_Target(block, self.gradient(block, begins=operation.begins), adds))
        return targets

    def _tensors(
        self, now: Present, rank: int, made: tuple[Any, Gradients], f: Frame
    ) -> tuple[list[Any], Gradients]:
        """The tensors that a backward writes, and the gradients of weights that it adds itself."""
        dx, gradients = made
        layout = self.share(rank).layouts[now.block]
        if self.layout.tensor > 1 and now.task.writes[0] in self.partial:
            together = [pair for pair in gradients if pair[0] in layout.summed]
            gradients = [pair for pair in gradients if pair[0] not in layout.summed]
            dx = Summand(dx, layout.flat(evaluated(together)))
        if now.task.work.op.endswith("backward"):
            return [dx], gradients
        if len(now.task.writes) > 1:
            return [dx, gradients], []
        f[now.block, "gradients"] = gradients
        return [dx], []

    def _sums(
        self,
        now: Present,
        rank: int,
        targets: Sequence[_Target],
        gradients: Gradients,
        before: Values,
        f: Frame,
    ) -> list[Floats]:
        """Add what a task makes to the gradients of blocks; gradients of words wait for the embedding."""
        layouts = self.share(rank).layouts
        made = list(evaluated(gradients))
        later = EMBEDDING, "words of modules"
        if now.ahead and targets and targets[0].block == now.block:
            f[later] = f.get(later, 0.0) + layouts[EMBEDDING].flat(made)
        sums = []
        for target, old in zip(targets, before, strict=True):
            total = layouts[target.block].flat(made)
            if target.block == EMBEDDING:
                total = total + f.pop(later, 0.0)
            sums.append(old + total if target.adds else total)
        return sums
