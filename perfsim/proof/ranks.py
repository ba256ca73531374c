"""What a rank of a layout has: its share of the model, its samples and positions, its shard of states."""

import math
from typing import Any

import numpy as np

from perfsim.base.arrays import Ints
from perfsim.proof.operations import Routing
from perfsim.proof.parameters import Place, Share
from perfsim.proof.serial import SmallTraining
from perfsim.specs.layout import ContextExchange, ParallelLayout, StreamingLayout
from perfsim.strategies import Plan
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, SHARDED
from perfsim.work.tensors import EXPERTS

SEQUENCE = 1
"""The axis that sequence parallelism splits."""


def _positions_of(length: int, ranks: int, rank: int, exchange: ContextExchange) -> tuple[int, ...]:
    """The positions of a sequence on one of the ranks that share it.

    In a ring, one part from each end, so that causal attention is equal work; else consecutive ones.
    """
    parts = 2 * ranks if exchange == "ring" else ranks
    numbers = (rank, parts - 1 - rank) if exchange == "ring" else (rank,)
    size = length // parts
    return tuple(position for part in numbers for position in range(part * size, (part + 1) * size))


class Ranks:
    """How a layout divides a small training; wafers, to which weights stream, are replicas of the whole."""

    def __init__(self, training: SmallTraining, plan: Plan) -> None:
        layout: Any = plan.layout
        self.training = training
        self.runtime = plan.job.runtime
        self.streams = isinstance(layout, StreamingLayout)
        """Whether weights stream to the ranks from a store."""
        if isinstance(layout, StreamingLayout):
            layout = ParallelLayout(data=layout.data, micro_batch_size=layout.micro_batch_size)
        self.layout: ParallelLayout = layout
        self.peers = self.layout.tensor
        """Ranks that share every product."""
        self.rings = self.layout.context_exchange == "ring"
        """Whether keys and values of shared sequences go around a ring."""
        stage = self.layout.zero_stage
        self.scattered = stage == SHARDED or (stage == GRADIENTS_SHARDED and self.layout.replicas > 1)
        """Whether gradients are reduced after every micro-batch (ZeRO 2 and 3)."""
        of_experts = self.layout.expert * self.layout.expert_tensor
        period = math.lcm(self.layout.tensor * self.layout.context, of_experts)
        self._shares = [self._share(rank) for rank in range(period)]

    def share(self, rank: int) -> Share:
        """The share of a rank, by its offset among peers: tensor innermost, then context, then data."""
        return self._shares[rank % len(self._shares)]

    def _share(self, rank: int) -> Share:
        layout = self.layout
        length = self.training.seq_length
        number = rank // layout.tensor % layout.context
        shared = layout.context > 1
        return Share(
            self.training.model,
            length,
            Place(layout.tensor, rank % layout.tensor),
            _positions_of(length, layout.context, number, layout.context_exchange) if shared else None,
            Place(layout.expert, rank // layout.expert_tensor % layout.expert),
            Place(layout.expert_tensor, rank % layout.expert_tensor),
            whole_layers=self.streams,
        )

    def rows(self, rank: int, microbatch: int) -> Ints:
        """The samples that a rank has in a micro-batch; the last ones may have fewer or none."""
        layout = self.layout
        batch = self.training.batch
        share = -(-batch // layout.data)
        replica = rank // (layout.tensor * layout.context) % layout.data
        first = replica * share + microbatch * layout.micro_batch_size
        end = min(first + layout.micro_batch_size, (replica + 1) * share, batch)
        return np.arange(min(first, batch), end)

    def positions(self, rank: int) -> Ints | slice:
        """The positions of each sample that a rank has."""
        return slice(None) if self.layout.context == 1 else np.array(self.share(rank).positions)

    def own(self, rank: int, values: Any) -> Any:
        """A rank's own positions of values, if they are of all positions of its tensor peers."""
        if self.peers == 1 or values.shape[SEQUENCE] < len(self.share(rank).positions):
            return values
        return np.array_split(values, self.peers, SEQUENCE)[rank % self.peers]

    def tokens(self, rank: int, step: int, microbatch: int, ahead: int = 0) -> tuple[Ints, Ints]:
        """Inputs and targets of a micro-batch on a rank; a module reads them `ahead` tokens later."""
        rows = self.rows(rank, microbatch)
        positions = self.positions(rank)
        inputs, targets = self.training.words(step, ahead)
        return inputs[rows][:, positions], targets[rows][:, positions]

    def routing(self, rank: int, step: int, layer: int, microbatch: int) -> Routing:
        """The routing of the tokens at a rank's own positions."""
        positions = self.own(rank, np.array(self.share(rank).positions)[None])[0]
        return self.training.routing(step, layer).of(self.rows(rank, microbatch), positions)

    def sharding(self, rank: int, block: int) -> Place:
        """Among how many ranks a block's states are sharded, and which shard a rank has."""
        layout = self.layout
        if not self.sharded(block):
            return Place()
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
