"""How the layers of a model divide over the ranks of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import LayerKind, TransformerConfig, layer_kinds
from perfsim.specs.recipe import Job
from perfsim.strategies.schedules import SCHEDULES, Peak, Placement, Trait, in_flight, schedule_called


class RankColumns(NamedTuple):
    """Pipeline ranks in columns, shape (rows, ranks).

    Rows with fewer ranks repeat their first rank with `number` 0.
    """

    rank: Ints
    number: Ints
    """How many ranks of the pipeline are like it."""
    layers: Ints
    first: Bools
    """Whether the rank holds the embedding."""
    last: Bools
    """Whether the rank holds LM head and loss."""
    kinds: tuple[Ints, ...] = ()
    """Layers of every kind, with layers of multi-token prediction; none where all layers are alike."""

    @classmethod
    def of(cls, columns: Iterable[Ints]) -> RankColumns:
        """The fields as columns, fields of kinds one by one."""
        rank, number, layers, first, last, *kinds = columns
        return cls(rank, number, layers, first > 0, last > 0, tuple(kinds))

    def sum_of(self, of_kinds: Floats) -> Floats:
        """What the layers of every rank add up to, given a layer of each kind in a column (rows, kinds)."""
        counts = self.kinds or (self.layers,)
        parts = [count * of_kinds[..., kind : kind + 1] for kind, count in enumerate(counts)]
        return np.asarray(sum(parts))

    def largest_of(self, of_kinds: Floats) -> Floats:
        """The largest of the layers that every rank holds, given a layer of each kind in a column."""
        counts = self.kinds or (self.layers,)
        parts = [np.where(count > 0, of_kinds[..., nth : nth + 1], 0.0) for nth, count in enumerate(counts)]
        return np.asarray(np.maximum.reduce(parts))

    def rows(self, rows: Ints, width: int | None = None) -> RankColumns:
        """The first ranks of these rows, or all; each rank of all rows is contiguous, which is fast."""
        columns: tuple[NDArray[Any], ...] = (*self[:5], *self.kinds)
        return RankColumns.of(np.moveaxis(own[:, :width].T.take(rows, axis=1), 0, -1) for own in columns)


@dataclass(frozen=True)
class Division:
    """The layers of each virtual stage, in the order of the forward pass, and the ranks that hold them."""

    schedule: str
    pipeline: int
    virtual: int
    layers: tuple[int, ...]
    kinds: tuple[int, ...] = ()
    """The kind of every layer by its number, layers of multi-token prediction last; empty: all are alike."""

    @classmethod
    def of(cls, job: Job, layout: ParallelLayout) -> Division:
        """How a layout divides the layers of a job."""
        kinds = kind_numbers(job.model)
        degrees = layout.schedule, layout.pipeline, layout.virtual_pipeline
        if layout.layers_per_stage is None:
            return divided(*degrees, job.model.num_layers, kinds=kinds)
        return cls(*degrees, layout.layers_per_stage, kinds)

    @property
    def even(self) -> bool:
        return len(set(self.layers)) == 1

    @cached_property
    def placement(self) -> Placement:
        return schedule_called(self.schedule).placement(self.pipeline, self.virtual)

    @cached_property
    def chunks(self) -> list[tuple[int, ...]]:
        """Layers of the chunks of every rank."""
        return [tuple(map(self.layers.__getitem__, stages)) for stages in self.placement.stages]

    def in_flight(self, rank: int, microbatches: int) -> tuple[Peak, ...]:
        """What a rank holds at its possible peaks."""
        schedule = schedule_called(self.schedule)
        return in_flight(schedule, rank, self.pipeline, self.chunks[rank], microbatches)

    @cached_property
    def stages(self) -> list[range]:
        """The layers of every virtual stage; layers of multi-token prediction are with the LM head."""
        first = [*accumulate(self.layers[:-1], initial=0), len(self.kinds) or sum(self.layers)]
        return [range(*ends) for ends in pairwise(first)]

    @cached_property
    def of_ranks(self) -> list[list[int]]:
        """The layers of every rank in the order of the forward."""
        return [[layer for at in stages for layer in self.stages[at]] for stages in self.placement.stages]

    def recomputed(self, every: int) -> Bools:
        """Whether each layer is recomputed, where one in `every` layers of the longest virtual stage is.

        These are the first of each stage, and as many of each, as with Megatron's `block`. Layers of
        multi-token prediction are recomputed only where all are.
        """
        most = -(-max(self.layers) // every)
        parts = zip(self.stages, self.layers, strict=True)
        numbers = [at if at < count else most for stage, count in parts for at in range(len(stage))]
        return np.array(numbers) < most if every > 1 else np.ones(len(numbers), dtype=np.bool_)

    @cached_property
    def _shares(self) -> list[tuple[int, ...]]:
        """Layers of every rank, whether it holds embedding and LM head, and its layers of every kind."""
        last = self.placement.last_rank
        shares = []
        for rank, layers in enumerate(self.of_ranks):
            kinds = [self.kinds[layer] for layer in layers] if self.kinds else []
            counts = map(kinds.count, range(1 + max(self.kinds, default=-1)))
            shares.append((sum(self.chunks[rank]), rank == 0, rank == last, *counts))
        return shares

    @lru_cache(maxsize=16384)  # noqa: B019 (divisions are few, and equal ones share what is kept)
    def recomputed_shares(self, every: int) -> Floats:
        """Share of the layers of each rank that is recomputed."""
        recomputed = self.recomputed(every)
        return np.array([recomputed[layers].sum() / max(1, len(layers)) for layers in self.of_ranks])

    def ranks(self) -> RankColumns:
        """Every rank of the pipeline, shape (1, pipeline)."""
        rows = [(rank, 1, *share) for rank, share in enumerate(self._shares)]
        return RankColumns.of(np.array(rows, dtype=np.int64).T[:, None, :])

    def representatives(self) -> list[tuple[int, ...]]:
        """Ranks that stand for all, as fields: the first and the last of every run with equal shares.

        What a rank holds in flight changes in one direction along a run of equal shares, so the fullest rank
        is at one of its ends; it is the first where activations are all that is held.
        """
        shares = self._shares
        schedule = schedule_called(self.schedule)
        alike = list(zip(shares, self.chunks, strict=True)) if schedule.has("in_groups") else shares
        starts = [rank for rank in range(self.pipeline) if rank == 0 or alike[rank] != alike[rank - 1]]
        both_ends = schedule.has("splits_backward")
        rows: list[tuple[int, ...]] = []
        for start, end in zip(starts, [*starts[1:], self.pipeline], strict=True):
            two = both_ends and end - start > 1
            rows.append((start, end - start - two, *shares[start]))
            if two:
                rows.append((end - 1, 1, *shares[start]))
        return rows


ENDS = 2
"""Stages of a pipeline without a layer: embedding and LM head may each have one of their own."""


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
def distinct_kinds(model: TransformerConfig) -> tuple[LayerKind, ...]:
    """The distinct kinds of a model's layers, in the order in which they appear."""
    return tuple(dict.fromkeys(layer_kinds(model)))


@lru_cache(maxsize=256)
def kind_numbers(model: TransformerConfig) -> tuple[int, ...]:
    """The kind of every layer by its index in `distinct_kinds`; empty where all are alike."""
    kinds = distinct_kinds(model)
    return tuple(map(kinds.index, layer_kinds(model))) if len(kinds) > 1 else ()


class Divisions:
    """Several divisions as a table, row by row; properties that a division has are columns."""

    def __init__(self, divisions: Sequence[Division]) -> None:
        self.divisions = tuple(divisions)
        names = list(SCHEDULES)
        self.pipeline = np.array([division.pipeline for division in divisions])
        self.virtual = np.array([division.virtual for division in divisions])
        self.schedule = np.array([names.index(division.schedule) for division in divisions], dtype=np.int64)
        """Index into the names of schedules."""

    def __getitem__(self, row: int) -> Division:
        return self.divisions[row]

    def of_schedules(self, trait: Trait) -> Bools:
        """Whether every division's schedule has a trait."""
        of_schedules = np.array([schedule.has(trait) for schedule in SCHEDULES.values()])
        return np.asarray(of_schedules[self.schedule])

    @cached_property
    def last_rank(self) -> Ints:
        return np.array([division.placement.last_rank for division in self.divisions])

    def filled(self, division: Ints, microbatches: Ints) -> Ints:
        """The fewest micro-batches with which ranks are known to hold as much as with `microbatches`."""
        fills = [schedule.fills for schedule in SCHEDULES.values()]
        multiple = np.array([np.iinfo(np.int32).max if most is None else most for most in fills])
        return np.asarray(np.minimum(microbatches, (multiple[self.schedule] * self.pipeline)[division]))

    @cached_property
    def _representatives(self) -> list[list[tuple[int, ...]]]:
        return [division.representatives() for division in self.divisions]

    @cached_property
    def sizes(self) -> Ints:
        """Representative ranks of every division."""
        return np.array([len(ranks) for ranks in self._representatives])

    @cached_property
    def ranks(self) -> RankColumns:
        """Representative ranks of every division; shorter rows are padded."""
        sizes = self.sizes
        width = np.arange(sizes.max())
        held = width < sizes[:, None]
        at = np.where(held, width, 0) + (np.cumsum(sizes) - sizes)[:, None]
        flat = np.array([rank for ranks in self._representatives for rank in ranks], dtype=np.int64)
        columns = RankColumns.of(flat.T[:, at])
        return columns._replace(number=np.where(held, columns.number, 0))
