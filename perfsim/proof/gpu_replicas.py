"""Collectives over the ranks with the same parameters: gradients are summed, parameters gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.proof.gpu_compute import SHARDED_PARAMETERS
from perfsim.proof.gpu_experts import ModuleCompute
from perfsim.proof.layout import EXPERTS
from perfsim.proof.program import Cell, Claim, Message, Values
from perfsim.proof.serial import SmallTraining
from perfsim.proof.tensors import summed
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import layer_kinds
from perfsim.specs.recipe import TrainingRecipe
from perfsim.work import EMBEDDING, EMBEDDING_AND_HEAD, HEAD, WHOLE_DEVICE, Task, TaskGraph

NORMS = ("MLP norm1", "MLP norm2", "attention norm1", "head norm1")


class ReplicaCompute(ModuleCompute):
    """Compiles collectives over replicas."""

    def __init__(
        self,
        graph: TaskGraph,
        training: SmallTraining,
        layout: ParallelLayout,
        recipe: TrainingRecipe,
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
        first = len(operands)

        def kernel(members: Sequence[int], values: list[Values]) -> list[tuple[Any, ...]]:
            results: list[list[Any]] = [[None] for _ in members]
            where = first
            for number, (block, cells) in enumerate(zip(blocks, made, strict=True)):
                total = summed([summed(inputs[where : where + len(cells)]) for inputs in values])
                where += len(cells)
                for index, (rank, inputs) in enumerate(zip(members, values, strict=True)):
                    if not scatters:
                        results[index] += [total.copy(), *(np.zeros_like(total) for _ in cells[1:])]
                        continue
                    shard = self.share(rank).layouts[block].shard(total, len(members), index)
                    results[index].append(inputs[number - len(kept)] + shard if kept else shard)
            return [tuple(result) for result in results]

        writes = shards if scatters else [cell for cells in made for cell in cells]
        reads = [*operands, *(cell for cells in made for cell in cells), *kept]
        claims = [] if scatters else self._reduced_claims(blocks, made)

        def moved(inputs: Values, _: tuple[Any, ...]) -> int:
            firsts = [first + sum(len(cells) for cells in made[:number]) for number in range(len(made))]
            return sum(int(inputs[place].size) for place in firsts)

        message = Message("gradients", moved, tuple(blocks))
        self.add(reads, [*self.handle(), *writes], kernel, joined=True, claims=claims, message=message)

    def sum_over_groups(self, task: Task) -> None:
        """Sum the shards of gradients over the groups that shard."""
        self.needs(1)
        blocks = self.scatters[task.reads[0]]
        operands = self.operands()
        self.scatters[task.writes[0]] = blocks
        parts = [self.cell(f"gradient part[{self.graph_tag(task.reads[0])}]", block) for block in blocks]
        shards = self._shards(blocks)
        kept = shards if self._sums_shards(blocks) else []
        first = len(operands)

        def kernel(members: Sequence[int], values: list[Values]) -> list[tuple[Any, ...]]:
            totals = [summed([inputs[first + number] for inputs in values]) for number in range(len(blocks))]
            return [
                (
                    None,
                    *(
                        _plus(total, inputs[first + len(blocks) :], number)
                        for number, total in enumerate(totals)
                    ),
                )
                for inputs in values[: len(members)]
            ]

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

    def graph_tag(self, handle: int) -> int:
        """The micro-batch of the task that writes a tensor."""
        return int(self.graph.tag[self.graph.writer[handle]])

    def sharding(self, rank: int, block: int) -> tuple[int, int]:
        """The number of shards of a block's states, and which of them a rank has."""
        layout = self.layout
        if block >= EXPERTS:
            holds = layout.expert * layout.expert_tensor
            shards = layout.expert_replicas
            return shards, rank // holds % shards
        return layout.shards, rank // layout.tensor % layout.shards

    def _reduced_claims(self, blocks: list[int], made: list[list[Cell]]) -> list[tuple[int, Claim]]:
        """Claims for layers only: the gradient of a tied embedding may still lack the other stage's part."""
        claims = []
        position = 1
        for block, cells in zip(blocks, made, strict=True):
            if block >= 0:
                claims.append((position, Claim("weight gradient", block, self.step, -1)))
            position += len(cells)
        return claims

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


def _plus(total: Floats, kept: Values, number: int) -> Floats:
    """A sum, with that of earlier micro-batches if it is kept."""
    return total + kept[number] if kept else total.copy()
