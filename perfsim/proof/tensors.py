"""The values that the tensors of a schedule must have on each rank, from serial training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.layers import merged_statistics
from perfsim.proof.program import Claim
from perfsim.proof.serial import Record, SmallTraining, train
from perfsim.proof.shares import Share, Weights, cut, with_experts

# Collectives on arrays: from one array per member to one array per member.


def summed(parts: list[Floats]) -> Floats:
    """The sum of a reduction, in the order of the ranks."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def combined(parts: list[Floats], *, statistics: bool) -> Floats:
    """The sum, or the merged statistics of a softmax."""
    return merged_statistics(parts) if statistics else summed(parts)


def pieces(whole: Floats, count: int, axis: int) -> list[Floats]:
    """An array split among ranks along an axis, as evenly as possible."""
    bounds = [number * whole.shape[axis] // count for number in range(count + 1)]
    before = (slice(None),) * axis
    return [whole[(*before, slice(low, high))].copy() for low, high in pairwise(bounds)]


TOLERANCE = 1e-10
"""Largest relative error of float64 sums in another order; a wrong schedule differs in the first digits."""

NORM = "squared norm of all gradients"
CLIPPED = "clipped"
"""In the name of a gradient that the optimizer uses."""


@dataclass
class Oracle:
    """Serial training, partitioned as a schedule partitions it.

    `rows(rank, microbatch)` are the samples of the batch that a rank has in a micro-batch, and `places(rank)`
    their positions; `share(rank)` is its share of the model. `shards` is the number of ranks that divide
    optimizer states, and rank // peers % shards is the shard of a rank.
    """

    training: SmallTraining
    peers: int
    shards: int
    rows: Callable[[int, int], Ints]
    places: Callable[[int], Ints | slice]
    share: Callable[[int], Share]
    sharding: Callable[[int, int], tuple[int, int]] | None = None
    """The number of shards of a block's states and that of a rank, where these differ by block."""
    _cache: dict[tuple[Claim, int], Floats] = field(default_factory=dict)

    @cached_property
    def records(self) -> list[Record]:
        """Serial training, one record per step."""
        return train(self.training)

    def expected(self, claim: Claim, rank: int) -> Floats:
        """The value that a claim states for a rank."""
        cached = self._cache.get((claim, rank))
        if cached is None:
            cached = self._cache[claim, rank] = self._expected(claim, rank)
        return cached

    def _expected(self, claim: Claim, rank: int) -> Floats:
        record = self.records[claim.step]
        number = claim.number
        if claim.quantity == "loss":
            return np.array(self._own(record.later_losses.get(number, record.losses), rank, claim).sum())
        if claim.quantity == NORM:
            return np.array(record.squared_norm)
        if claim.quantity.startswith("weight gradient"):
            gradient = self._flat(record.weight_gradients, number, rank, claim.quantity)
            return record.clipping * gradient if CLIPPED in claim.quantity else gradient
        if claim.quantity.startswith("weights"):
            return self._flat(record.weights, number, rank, claim.quantity)
        activations: dict[str, list[Floats] | dict[int, Floats]] = {
            "hidden": record.hidden,
            "attention": record.attention,
            "gradient": record.gradient,
            "middle": record.middle,
        }
        return self._own(activations[claim.quantity][number], rank, claim)

    def _own(self, values: Floats, rank: int, claim: Claim) -> Floats:
        """What a rank has of values of all samples and positions."""
        return values[self.rows(rank, claim.microbatch)][:, self.places(rank)]

    def _flat(self, blocks: Mapping[int, Weights], block: int, rank: int, quantity: str) -> Floats:
        share = self.share(rank)
        layout = share.layouts[block]
        flat = layout.flat(cut(with_experts(blocks, block, share), share))
        return layout.shard(flat, *self._sharding(rank, block)) if quantity.endswith("shard") else flat

    def _sharding(self, rank: int, block: int) -> tuple[int, int]:
        if self.sharding is not None:
            return self.sharding(rank, block)
        return self.shards, rank // self.peers % self.shards

    def error(self, claim: Claim, rank: int, value: Floats) -> float:
        """Largest difference over the largest expected entry; infinite for another shape."""
        expected = self.expected(claim, rank)
        actual = np.asarray(value)
        if actual.shape != expected.shape or not np.isfinite(actual).all():
            return float("inf")
        if not expected.size:
            return 0.0
        scale = float(np.abs(expected).max())
        return float(np.abs(actual - expected).max()) / (scale or 1.0)
