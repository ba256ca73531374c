"""Layouts in grids: combinations of experts, divisions, micro-batches, ZeRO stages and recompute modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfsim.strategies.three_d.columns import FIELDS, Columns, fields_of, from_table
from perfsim.strategies.three_d.division import Divisions
from perfsim.workload import ParallelLayout

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

    def write(self, chosen: Booleans, table: Ints) -> None:
        """Write the chosen layouts to an array of shape (fields, rows), in the order of `Columns`."""
        at = np.nonzero(chosen)
        for row, column in zip(table, fields_of(self.columns), strict=True):
            axis = int(np.argmax(column.shape))
            row[:] = column.flat[0] if column.size == 1 else column.ravel().take(at[axis])

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
        flags = [grid.all_legal() for grid in self.grids]
        counts = [int(legal.sum()) for legal in flags]
        if chosen is not None:
            parts = np.split(chosen, np.cumsum(counts))[:-1]
            flags = [_flagged(legal, part) for legal, part in zip(flags, parts, strict=True)]
            counts = [int(part.sum()) for part in parts]
        ends = np.cumsum([0, *counts])
        table = np.empty((FIELDS, ends[-1]), dtype=np.int64)
        for grid, own, start, end in zip(self.grids, flags, ends[:-1], ends[1:], strict=True):
            grid.write(own, table[:, start:end])
        return from_table(table, self.divisions)

    def layout(self, row: int) -> ParallelLayout:
        """One layout by its index."""
        for grid in self.grids:
            places = np.flatnonzero(grid.all_legal())
            if row < len(places):
                table = np.empty((FIELDS, 1), dtype=np.int64)
                flags = np.zeros(grid.shape, dtype=np.bool_)
                flags.flat[places[row]] = True
                grid.write(flags, table)
                return from_table(table, self.divisions).layout(0)
            row -= len(places)
        raise IndexError(f"a space of {len(self)} layouts has no layout {row + len(self)}")


def _flagged(legal: Booleans, chosen: Booleans) -> Booleans:
    """The legal combinations that are chosen."""
    flags = legal.copy()
    flags[legal] = chosen
    return flags
