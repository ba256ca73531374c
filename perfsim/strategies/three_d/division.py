"""How the layers of a model divide over the ranks of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.specs.model import LayerKind, TransformerConfig, layer_kinds
from perfsim.strategies.schedules import SCHEDULES, Placement, Schedule, Trait, schedule_called


class RankColumns(NamedTuple):
    """Pipeline ranks in columns, shape (rows, ranks).

    Rows with fewer ranks repeat their first rank with `number` 0.
    """

    rank: Ints
    layers: Ints
    first: Bools
    """Whether the rank holds the embedding."""
    last: Bools
    """Whether the rank holds LM head and loss."""
    number: Ints
    """How many ranks of the pipeline are like it."""
    kinds: tuple[Ints, ...] = ()
    """Layers of every kind, with those of multi-token prediction; none where all layers are alike."""

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, ...]]) -> RankColumns:
        """The ranks of one pipeline, given as rows of the fields."""
        rank, layers, first, last, number, *kinds = np.array(rows, dtype=np.int64).T[:, None, :]
        return cls(rank, layers, first > 0, last > 0, number, tuple(kinds))

    def sum_of(self, of_kinds: Floats) -> Floats:
        """What the layers of every rank add up to, given a layer of each kind in a column (rows, kinds)."""
        if not self.kinds:
            return np.asarray(self.layers * of_kinds)
        parts = [count * of_kinds[..., kind : kind + 1] for kind, count in enumerate(self.kinds)]
        return np.asarray(sum(parts))

    def of(self, rows: Ints, width: int) -> RankColumns:
        """The first `width` ranks of these rows; each rank of all rows is contiguous, which is fast."""

        def some(column: NDArray[Any]) -> NDArray[Any]:
            return np.moveaxis(column[:, :width].T.take(rows, axis=1), 0, -1)

        rank, layers, first, last, number, *kinds = map(some, (*self[:5], *self.kinds))
        return RankColumns(rank, layers, first, last, number, tuple(kinds))


@dataclass(frozen=True)
class Division:
    """The layers of each virtual stage, in the order of the forward pass, and the ranks that hold them."""

    schedule: str
    pipeline: int
    virtual: int
    layers: tuple[int, ...]
    kinds: tuple[int, ...] = ()
    """The kind of every layer by its number, those of multi-token prediction last; empty: all are alike."""

    @property
    def even(self) -> bool:
        return len(set(self.layers)) == 1

    @cached_property
    def row(self) -> Schedule:
        """What is known of its schedule."""
        return schedule_called(self.schedule)

    @cached_property
    def _placement(self) -> Placement:
        return self.row.placement(self.pipeline, self.virtual)

    @cached_property
    def last_rank(self) -> int:
        """The rank with LM head and loss."""
        return self._placement.last_rank

    @cached_property
    def chunks(self) -> list[tuple[int, ...]]:
        """Layers of the chunks of every rank."""
        return [tuple(self.layers[place] for place in places) for places in self._placement.places]

    @cached_property
    def _shares(self) -> list[tuple[int, ...]]:
        """Layers of every rank, and whether it holds embedding and LM head."""
        last = self.last_rank
        return [(sum(layers), rank == 0, rank == last) for rank, layers in enumerate(self.chunks)]

    @cached_property
    def _kinds_of_ranks(self) -> list[tuple[int, ...]]:
        """Layers of every kind on every rank; those of multi-token prediction are with the LM head."""
        ends = np.cumsum([0, *self.layers])
        stages = [list(self.kinds[start:end]) for start, end in pairwise(ends.tolist())]
        stages[-1] += self.kinds[ends[-1] :]
        distinct = range(1 + max(self.kinds, default=-1))
        counts = np.array([[layers.count(kind) for kind in distinct] for layers in stages], dtype=np.int64)
        return [tuple(counts[places].sum(axis=0)) for places in self._placement.places]

    def ranks(self) -> RankColumns:
        """Every rank of the pipeline, shape (1, pipeline)."""
        shares = zip(self._shares, self._kinds_of_ranks, strict=True)
        return RankColumns.from_rows(
            [(rank, *share, 1, *kinds) for rank, (share, kinds) in enumerate(shares)]
        )

    def representatives(self) -> RankColumns:
        """Ranks that stand for all: of every run of ranks with equal shares the first and the last.

        What a rank holds in flight changes in one direction along a run of equal shares, so the fullest rank
        is at one of its ends; it is the first where activations are all that is held.
        """
        shares = self._shares
        kinds = self._kinds_of_ranks
        chunks = self.chunks if self.row.has("in_groups") else [()] * self.pipeline
        alike = list(zip(shares, kinds, chunks, strict=True))
        starts = [rank for rank in range(self.pipeline) if rank == 0 or alike[rank] != alike[rank - 1]]
        both_ends = self.row.has("splits_backward")
        rows: list[tuple[int, ...]] = []
        for start, end in zip(starts, [*starts[1:], self.pipeline], strict=True):
            if both_ends and end - start > 1:
                rows.append((start, *shares[start], end - start - 1, *kinds[start]))
                rows.append((end - 1, *shares[start], 1, *kinds[start]))
            else:
                rows.append((start, *shares[start], end - start, *kinds[start]))
        return RankColumns.from_rows(rows)


@lru_cache(maxsize=4096)
def divided(
    schedule: str, pipeline: int, virtual: int, num_layers: int, head: int = 0, kinds: tuple[int, ...] = ()
) -> Division:
    """Layers divided as evenly as possible over the virtual stages; the LM head counts as `head` layers.

    What is left over goes to the stages before the last, one layer each, from the back: earlier stages hold
    more micro-batches in flight, and the last has the LM head.
    """
    stages = pipeline * virtual
    base, rest = divmod(num_layers + head, stages)
    layers = [base] * stages
    layers[-1] -= head
    for number in range(rest):
        layers[stages - 2 - number] += 1
    return Division(schedule, pipeline, virtual, tuple(layers), kinds)


@lru_cache(maxsize=256)
def kinds_of(model: TransformerConfig) -> tuple[LayerKind, ...]:
    """The distinct kinds of a model's layers, in the order in which they appear."""
    return tuple(dict.fromkeys(layer_kinds(model)))


@lru_cache(maxsize=256)
def kind_numbers(model: TransformerConfig) -> tuple[int, ...]:
    """The kind of every layer by its index in `kinds_of`; empty where all are alike."""
    kinds = kinds_of(model)
    return tuple(map(kinds.index, layer_kinds(model))) if len(kinds) > 1 else ()


@lru_cache(maxsize=4096)
def chunk_peaks(division: Division, microbatches: int) -> Floats:
    """Layers in flight at the peak of every rank of an interleaved pipeline over those of equal chunks.

    Equal chunks hold micro-batches in flight times layers over chunks. Of unequal ones, the warm-up leaves
    more of the first, and the passes after it come and go in groups. From the third group on they repeat.
    """
    pipeline = division.pipeline
    virtual = division.virtual
    total = min(microbatches, 3 * pipeline) * virtual
    chunk = np.arange(total) % (pipeline * virtual) // pipeline
    peaks = np.ones(pipeline)
    for rank, counts in enumerate(division.chunks):
        layers = np.array(counts)
        warm_up = min(total, (pipeline - rank - 1) * 2 + (virtual - 1) * pipeline)
        if microbatches == pipeline or not layers.any() or warm_up == total:
            continue
        begun = np.cumsum(layers[chunk])
        ended = np.concatenate([[0], np.cumsum(layers[virtual - 1 - chunk])])
        most = (begun[warm_up:] - ended[: total - warm_up]).max()
        peaks[rank] = most / ((warm_up + 1) * layers.mean())
    return peaks


class Divisions:
    """Several divisions as a table, row by row; properties that a division has are columns."""

    def __init__(self, divisions: Sequence[Division]) -> None:
        self.divisions = tuple(divisions)
        self._of_schedules: dict[Trait, Bools] = {}

    def __getitem__(self, row: int) -> Division:
        return self.divisions[row]

    @cached_property
    def pipeline(self) -> Ints:
        return np.array([division.pipeline for division in self.divisions])

    @cached_property
    def virtual(self) -> Ints:
        return np.array([division.virtual for division in self.divisions])

    @cached_property
    def last_rank(self) -> Ints:
        return np.array([division.last_rank for division in self.divisions])

    @cached_property
    def schedule(self) -> Ints:
        """Index into the names of schedules."""
        names = list(SCHEDULES)
        return np.array([names.index(division.schedule) for division in self.divisions])

    @cached_property
    def uneven(self) -> Bools:
        return np.array([division.row.has("in_groups") and not division.even for division in self.divisions])

    def of_schedules(self, trait: Trait) -> Bools:
        """Whether every division's schedule has a trait."""
        if trait not in self._of_schedules:
            values = np.array([schedule.has(trait) for schedule in SCHEDULES.values()])
            self._of_schedules[trait] = values[self.schedule]
        return self._of_schedules[trait]

    @cached_property
    def _representatives(self) -> list[RankColumns]:
        return [division.representatives() for division in self.divisions]

    @cached_property
    def sizes(self) -> Ints:
        return np.array([ranks.rank.size for ranks in self._representatives])

    @cached_property
    def ranks(self) -> RankColumns:
        """Representative ranks of every division; shorter rows are padded."""
        rows = self._representatives
        sizes = self.sizes
        width = np.arange(sizes.max())
        own = np.where(width < sizes[:, None], width, 0) + (np.cumsum(sizes) - sizes)[:, None]
        columns = zip(*((*ranks[:5], *ranks.kinds) for ranks in rows), strict=True)
        flat = [np.concatenate([column[0] for column in parts]) for parts in columns]
        rank, layers, first, last, number, *kinds = (column[own] for column in flat)
        number = np.where(width < sizes[:, None], number, 0)
        return RankColumns(rank, layers, first, last, number, tuple(kinds))
