"""Layouts in columns: row i of every array is one layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from perfsim.strategies.schedules import SCHEDULES, schedule_called
from perfsim.strategies.three_d.division import Division, Divisions, RankColumns, divided, kind_numbers
from perfsim.strategies.three_d.slices import EXCHANGES
from perfsim.workload import Job, ParallelLayout, Recompute

Ints = NDArray[np.int64]
Table = TypeVar("Table", bound=tuple[Any, ...])
_BLOCK = 4096
"""Layouts that are evaluated at once."""
_LOOKUP = 8
"""Up to how many codes per row are numbered with a table of all codes instead of by sorting."""
MODES: tuple[Recompute, ...] = get_args(Recompute)


@dataclass(frozen=True)
class Columns:
    """Layouts of one job; every field but `divisions` is an array of shape (rows,).

    In a `Grid` it has the shape of a grid, or one that broadcasts to it.
    """

    tensor: Ints
    data: Ints
    micro_batch: Ints
    zero: Ints
    sequence_parallel: Ints
    recompute: Ints
    """Index into `MODES`."""
    recompute_every: Ints
    division: Ints
    """Row of `divisions`, which holds schedule, pipeline and virtual pipeline."""
    context: Ints
    exchange: Ints
    """Index into `EXCHANGES`."""
    shards: Ints
    """Ranks over which ZeRO divides a state."""
    expert: Ints
    expert_tensor: Ints
    divisions: Divisions

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def replicas(self) -> Ints:
        """Ranks with the same parameters: replicas and their context ranks."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> Ints:
        """Ranks with the same experts."""
        return self.tensor * self.replicas // (self.expert * self.expert_tensor)

    @property
    def slice_keys(self) -> tuple[Ints, ...]:
        """What determines the share of a layer that a rank computes for a micro-batch."""
        in_context = self.tensor, self.sequence_parallel, self.micro_batch, self.context, self.exchange
        return *in_context, self.expert, self.expert_tensor

    @property
    def state_keys(self) -> tuple[Ints, ...]:
        """What determines the model states of a rank, and their communication over replicas."""
        on_ranks = self.tensor, self.data, self.division, self.context, self.expert, self.expert_tensor
        return *on_ranks, self.zero, self.shards

    @property
    def pipeline(self) -> Ints:
        """Pipeline ranks."""
        return self.divisions.pipeline[self.division]

    @property
    def virtual(self) -> Ints:
        """Chunks per rank."""
        return self.divisions.virtual[self.division]

    @property
    def last_rank(self) -> Ints:
        """The rank with LM head and loss."""
        return self.divisions.last_rank[self.division]

    @cached_property
    def by_schedule(self) -> dict[str, Ints | slice]:
        """The rows of every schedule."""
        schedules, names = self.divisions.schedule[self.division], list(SCHEDULES)
        counts = np.bincount(schedules.ravel(), minlength=len(names))
        if counts.max(initial=0) == schedules.size:
            return {names[index]: slice(None) for index in np.flatnonzero(counts)}
        return {names[index]: np.flatnonzero(schedules == index) for index in np.flatnonzero(counts)}

    def alike(self) -> Ints:
        """Rows in the order of ZeRO stage, schedule and number of ranks, so that few blocks have several.

        A block has the terms of ZeRO 2 and 3, and as many ranks, as any of its rows.
        """
        size, schedule = (table[self.division] for table in (self.divisions.sizes, self.divisions.schedule))
        code = (self.zero * len(SCHEDULES) + schedule) * (int(size.max(initial=0)) + 1) + size
        return np.argsort(code.astype(np.int16), kind="stable")

    def of_schedules(self, name: str) -> NDArray[np.bool_]:
        """A property of every layout's schedule, such as `tight`."""
        return self.divisions.of_schedules(name)[self.division]

    def microbatches(self, job: Job) -> Ints:
        """Micro-batches of one replica."""
        return job.global_batch_size // (self.data * self.micro_batch)

    def rows(self, chosen: Ints | NDArray[np.bool_] | slice) -> Columns:
        """The layouts at these indices."""
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return Columns(**columns, divisions=self.divisions)

    def ranks(self) -> RankColumns:
        """Representative ranks of every layout, shape (rows, ranks)."""
        width = self.divisions.sizes[self.division].max(initial=1)
        return self.divisions.ranks.of(self.division, int(width))

    def layout(self, row: int) -> ParallelLayout:
        """One row as a layout."""
        division = self.divisions[int(self.division[row])]
        return ParallelLayout(
            tensor=int(self.tensor[row]),
            pipeline=division.pipeline,
            data=int(self.data[row]),
            virtual_pipeline=division.virtual,
            sequence_parallel=bool(self.sequence_parallel[row]),
            zero_stage=int(self.zero[row]),
            schedule=division.schedule,
            micro_batch_size=int(self.micro_batch[row]),
            recompute=MODES[int(self.recompute[row])],
            recompute_every=int(self.recompute_every[row]),
            layers_per_stage=None if division.even else division.layers,
            context=int(self.context[row]),
            context_exchange=EXCHANGES[int(self.exchange[row])],
            shard_group=None if self.shards[row] == self.replicas[row] else int(self.shards[row]),
            expert=int(self.expert[row]),
            expert_tensor=int(self.expert_tensor[row]),
        )


_COLUMNS = tuple(field.name for field in fields(Columns) if field.name != "divisions")
FIELDS = len(_COLUMNS)
"""Numbers that describe a layout."""


def distinct_rows(keys: Sequence[Ints]) -> tuple[Ints, Ints]:
    """The first row of every distinct combination of columns from 0 on, and the combination of every row."""
    code, size = np.zeros(len(keys[0]), dtype=np.int64), 1
    for column in keys:
        values = int(column.max(initial=0)) + 1
        if size * values > _LOOKUP * len(code):
            first, code = _numbered(code, size)
            size = len(first)
        code = code * values + column
        size *= values
    return _numbered(code, size)


def _numbered(code: Ints, size: int) -> tuple[Ints, Ints]:
    """The first row of every distinct code below `size`, in their order, and which of these every row has."""
    if size > _LOOKUP * len(code):
        _, first, of_row = np.unique(code, return_index=True, return_inverse=True)
        return first, of_row
    first = np.full(size, -1)
    first[code[::-1]] = np.arange(len(code))[::-1]  # of equal codes the first row, which is set last
    occurs = np.flatnonzero(first >= 0)
    number = np.empty_like(first)
    number[occurs] = np.arange(len(occurs))
    return first[occurs], number[code]


def fields_of(columns: Columns) -> list[Ints]:
    """The numbers that describe layouts, in the order of the fields."""
    return [getattr(columns, name) for name in _COLUMNS]


def from_table(table: Ints, divisions: Divisions) -> Columns:
    """Columns from an array of shape (fields, rows), in the order of the fields."""
    return Columns(**dict(zip(_COLUMNS, table, strict=True)), divisions=divisions)


def blocks_of(rows: int) -> Iterator[slice]:
    """Blocks of rows that are evaluated at once, so that their arrays stay in the cache."""
    return (slice(start, start + _BLOCK) for start in range(0, rows, _BLOCK))


def taken(table: Table, rows: Ints) -> Table:
    """The rows of a named tuple of columns."""
    return type(table)(*(column[rows] for column in table))


def division_of(job: Job, layout: ParallelLayout) -> Division:
    """How a layout divides the layers of a job."""
    given, kinds = layout.layers_per_stage, kind_numbers(job.model)
    if given is None:
        num_layers = job.model.num_layers
        return divided(layout.schedule, layout.pipeline, layout.virtual_pipeline, num_layers, kinds=kinds)
    return Division(layout.schedule, layout.pipeline, layout.virtual_pipeline, given, kinds)


def columns_of(job: Job, layout: ParallelLayout) -> Columns:
    """One layout as a single row. Raises LayoutError for an unknown schedule."""
    schedule_called(layout.schedule)
    values = (
        layout.tensor,
        layout.data,
        layout.micro_batch_size,
        layout.zero_stage,
        layout.sequence_parallel,
        MODES.index(layout.recompute),
        layout.recompute_every,
        0,
        layout.context,
        EXCHANGES.index(layout.context_exchange),
        layout.shards,
        layout.expert,
        layout.expert_tensor,
    )
    return from_table(np.array(values, dtype=np.int64)[:, None], Divisions((division_of(job, layout),)))
