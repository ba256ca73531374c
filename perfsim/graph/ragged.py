"""Lists of lists in two columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Wide = NDArray[np.int64]


class Ragged(NamedTuple):
    """A list of lists in two columns: row i is `values[start[i]:start[i + 1]]`."""

    start: Ints
    values: Ints

    def row(self, index: int) -> tuple[int, ...]:
        """The values of one row."""
        return tuple(self.values[self.start[index] : self.start[index + 1]].tolist())

    @property
    def row_of_value(self) -> Ints:
        """The row of each value."""
        return np.repeat(np.arange(len(self.start) - 1, dtype=np.int32), np.diff(self.start))

    def rows(self, indices: Ints | Wide) -> Ragged:
        """The rows at these indices, in their order."""
        counts = np.diff(self.start)[indices]
        start = offsets(counts)
        where = np.arange(int(start[-1])) + np.repeat(self.start[indices] - start[:-1], counts)
        return Ragged(start.astype(np.int32), self.values[where])

    def with_others(self, others: Ragged) -> Ragged:
        """These rows, then the others."""
        start = np.append(self.start[:-1], self.start[-1] + others.start)
        return Ragged(start, np.append(self.values, others.values))


def offsets(lengths: NDArray[np.integer] | NDArray[np.bool_]) -> Wide:
    """Start of each row and the end of the last: 0, l0, l0 + l1, ..."""
    start = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=start[1:])
    return start
