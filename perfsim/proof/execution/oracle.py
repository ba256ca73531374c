"""What serial training says each tensor of a schedule must hold, on each rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from perfsim.proof.execution.layout import Array, Share, Weights, cut
from perfsim.proof.execution.program import Claim
from perfsim.proof.execution.serial import Lesson, Record, train
from perfsim.proof.execution.vocabulary import Tokens

TOLERANCE = 1e-10
"""Largest relative error of float64 sums in another order; a wrong schedule is wrong in the first digits."""


@dataclass
class Oracle:
    """Serial training of a lesson, cut as a schedule cuts it.

    `rows(rank, microbatch)` are the samples of the batch that a rank has in a micro-batch; `shards` is
    among how many replicas optimizer states are cut, and rank // peers says which one a rank is.
    """

    lesson: Lesson
    peers: int
    shards: int
    rows: Callable[[int, int], Tokens]
    _cache: dict[tuple[Claim, int], Array] = field(default_factory=dict)

    @cached_property
    def records(self) -> list[Record]:
        return train(self.lesson)

    def share(self, rank: int) -> Share:
        """The share of the model of a rank, by its offset among its peers."""
        return Share(self.lesson.model, self.lesson.seq_length, self.peers, rank % self.peers)

    def expected(self, claim: Claim, rank: int) -> Array:
        """What a claim says a rank must have."""
        known = self._cache.get((claim, rank))
        if known is None:
            known = self._cache[claim, rank] = self._expected(claim, rank)
        return known

    def _expected(self, claim: Claim, rank: int) -> Array:
        record, number = self.records[claim.step], claim.number
        if claim.what == "loss":
            return np.array(record.losses[self.rows(rank, claim.microbatch)].sum())
        if claim.what.startswith("weight gradient"):
            return self._flat(record.weight_gradients[number], number, rank, claim.what)
        if claim.what.startswith("weights"):
            return self._flat(record.weights[number], number, rank, claim.what)
        of: dict[str, list[Array] | dict[int, Array]] = {
            "hidden": record.hidden,
            "attention": record.attention,
            "gradient": record.gradient,
            "middle": record.middle,
        }
        return of[claim.what][number][self.rows(rank, claim.microbatch)]

    def _flat(self, whole: Weights, block: int, rank: int, what: str) -> Array:
        layout = self.share(rank).layouts[block]
        flat = layout.flat(cut(whole, self.share(rank)))
        return layout.shard(flat, self.shards, rank // self.peers) if what.endswith("shard") else flat

    def error(self, claim: Claim, rank: int, value: Array) -> float:
        """Largest difference over the largest entry that was expected; infinite for another shape."""
        expected = self.expected(claim, rank)
        found = np.asarray(value)
        if found.shape != expected.shape or not np.isfinite(found).all():
            return float("inf")
        if not expected.size:
            return 0.0
        scale = float(np.abs(expected).max())
        return float(np.abs(found - expected).max()) / (scale or 1.0)
