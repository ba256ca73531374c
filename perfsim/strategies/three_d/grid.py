"""Layouts in grids: combinations of experts, divisions, micro-batches, ZeRO stages and recompute modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfsim.strategies.three_d.columns import FIELDS, Columns, fields_of, from_table
from perfsim.strategies.three_d.division import Divisions

Ints = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Table = TypeVar("Table", bound=tuple[Any, ...])
EXPERTS, DIVISIONS, SIZES, STAGES, SPLITS, MODES = range(6)
"""The axes of a grid: expert degrees, divisions of layers, micro-batch sizes, ZeRO stages, sequence
parallelism, and recompute."""


def along(axis: int, values: Sequence[int] | Ints) -> Ints:
    """Values along one axis of a grid."""
    return np.reshape(np.asarray(values, dtype=np.int64), [-1 if axis == other else 1 for other in range(6)])


@dataclass(frozen=True)
class Grid:
    """Layouts that have tensor, context, pipeline and data degree in common."""

    columns: Columns
    """Every array broadcasts to the shape of the grid."""
    legal: Booleans
    """Which divisions go with which sizes, broadcasts as well."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Values along each axis."""
        return np.broadcast_shapes(*(column.shape for column in fields_of(self.columns)))

    def all_legal(self) -> Booleans:
        """Which combinations are legal, shape `shape`."""
        return np.broadcast_to(self.legal, self.shape)

    def table(self, chosen: Booleans) -> Ints:
        """The chosen layouts in the order of `Columns`, shape (fields, rows)."""
        return np.stack([np.broadcast_to(column, self.shape)[chosen] for column in fields_of(self.columns)])

    def by_schedule(self) -> Iterator[tuple[slice, Columns]]:
        """The divisions of every schedule, and the layouts with them."""
        schedules = self.columns.divisions.schedule[self.columns.division].ravel()
        ends = [*(np.flatnonzero(np.diff(schedules)) + 1).tolist(), len(schedules)]
        for start, end in zip([0, *ends], ends, strict=False):
            yield slice(start, end), replace(self.columns, division=self.columns.division[:, start:end])

    def without_passes(self, table: Table) -> Table:
        """The first along the axes of sequence parallelism and recompute, of arrays with one axis more."""
        return type(table)(*(column[..., :1, :1, :] for column in table))


@dataclass(frozen=True)
class Space:
    """The layouts of several grids, one grid after the other."""

    grids: Sequence[Grid]
    divisions: Divisions

    def __len__(self) -> int:
        return sum(int(grid.all_legal().sum()) for grid in self.grids)

    def keeping(self, wanted: Callable[[Columns], Booleans]) -> Space:
        """Only layouts that are wanted, given the columns of a grid."""
        grids = [replace(grid, legal=grid.legal & wanted(grid.columns)) for grid in self.grids]
        return replace(self, grids=grids)

    def rows(self, chosen: Booleans | None = None) -> Columns:
        """The chosen layouts, given one flag for each; None: all."""
        tables, start = [np.zeros((FIELDS, 0), dtype=np.int64)], 0
        for grid in self.grids:
            legal = grid.all_legal()
            if chosen is not None:
                end = start + int(legal.sum())
                legal, start = _flagged(legal, chosen[start:end]), end
            tables.append(grid.table(legal))
        return from_table(np.concatenate(tables, axis=1), self.divisions)


def _flagged(legal: Booleans, chosen: Booleans) -> Booleans:
    """The legal combinations that are chosen."""
    flags = legal.copy()
    flags[legal] = chosen
    return flags
