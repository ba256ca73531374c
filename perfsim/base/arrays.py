"""The arrays of the package by the type of their entries, whatever their shape."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Ids = NDArray[np.int32]
"""Tasks, tensors, streams: ids of a graph in half the memory."""
SPARSE = 30
"""Times as many possible numbers as there are: from there on sorting takes less time than a mark for each."""


def distinct(codes: Ints | Ids, size: int) -> tuple[Ints, Ints]:
    """The distinct of some numbers from 0 to below `size`, ascending, and the place of each among them."""
    if size > SPARSE * len(codes):
        found, place = np.unique(codes, return_inverse=True)
        return found.astype(np.int64), place
    present = np.zeros(size, dtype=np.bool_)
    present[codes] = True
    found = np.flatnonzero(present)
    place = np.empty(size, dtype=np.int64)
    place[found] = np.arange(len(found))
    return found, place[codes]
