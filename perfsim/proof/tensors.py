"""The values that the tensors of a schedule must have on each rank, from serial training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.proof.parameters import Weights, with_experts
from perfsim.proof.program import Claim, Compiler
from perfsim.proof.serial import Record, train

# Collectives on arrays: from one array per member to one array per member.


def summed(parts: list[Floats]) -> Floats:
    """The sum of a reduction, in the order of the ranks."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


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
    """Serial training, partitioned among ranks as a compiler of a graph partitions it."""

    compiler: Compiler
    _cache: dict[tuple[Claim, int], Floats] = field(default_factory=dict)

    @cached_property
    def records(self) -> list[Record]:
        """Serial training, one record per step."""
        return train(self.compiler.training)

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
        return values[self.compiler.rows(rank, claim.microbatch)][:, self.compiler.places(rank)]

    def _flat(self, blocks: Mapping[int, Weights], block: int, rank: int, quantity: str) -> Floats:
        share = self.compiler.share(rank)
        layout = share.layouts[block]
        flat = layout.flat(share.cut(with_experts(blocks, block, share), block).items())
        sharded = quantity.endswith("shard")
        return layout.shard(flat, self.compiler.sharding(rank, block)) if sharded else flat

    def error(self, claim: Claim, rank: int, value: Floats) -> float:
        """Largest difference over the largest expected entry; infinite for another shape."""
        expected = self.expected(claim, rank)
        actual = np.asarray(getattr(value, "values", value))
        if actual.shape != expected.shape or not np.isfinite(actual).all():
            return float("inf")
        if not expected.size:
            return 0.0
        scale = float(np.abs(expected).max())
        return float(np.abs(actual - expected).max()) / (scale or 1.0)
