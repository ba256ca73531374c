"""The arrays of the package by the type of their entries, whatever their shape."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Ids = NDArray[np.int32]
"""Tasks, tensors, streams: ids of a graph in half the memory."""
