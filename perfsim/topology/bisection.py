"""Where a tree of links is thinnest: the cut that parts its leaves in halves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def halving_cut(leaves: int, levels: Sequence[tuple[int, float]]) -> float:
    """Least capacity that parts the leaves of a tree in halves, exactly.

    `levels` lists, bottom up, how many leaves a full branch has and the bytes/s of its link up.
    Leaves fill the branches in turn. A switch may fall on either side of the cut, and each link
    between the sides counts once.
    """
    cut = _cut_by_count(leaves, levels)
    return float(min(cut[leaves // 2], cut[leaves - leaves // 2]))


def _cut_by_count(leaves: int, levels: Sequence[tuple[int, float]]) -> Floats:
    """Entry x: least capacity that parts x leaves of a branch from its top switch."""
    if not levels:
        return np.array([0.0, np.inf])
    *below, (branch, bytes_per_s) = levels
    full, rest = divmod(leaves, branch)
    total = np.zeros(1)
    for size, times in ((branch, full), (rest, 1 if rest else 0)):
        if times:
            own = _cut_by_count(size, below)
            # The branch's own switch stays on the side of the top one, or its uplink is cut.
            child = np.minimum(own, bytes_per_s + own[::-1])
            for _ in range(times):
                total = _min_plus(total, child)
    return total


def _min_plus(a: Floats, b: Floats) -> Floats:
    """Entry x: the least a[i] + b[x - i]."""
    least = np.full(len(a) + len(b) - 1, np.inf)
    for shift, value in enumerate(b.tolist()):
        window = least[shift : shift + len(a)]
        np.minimum(window, a + value, out=window)
    return least
