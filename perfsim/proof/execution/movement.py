"""Collectives on arrays: from one array per member to one array per member."""

from __future__ import annotations

from itertools import pairwise

from perfsim.proof.execution.layout import Array
from perfsim.proof.execution.vocabulary import merged_statistics


def summed(parts: list[Array]) -> Array:
    """The sum of a reduction, in the order of the ranks."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def combined(parts: list[Array], *, statistics: bool) -> Array:
    """The sum, or the merged statistics of a softmax."""
    return merged_statistics(parts) if statistics else summed(parts)


def pieces(whole: Array, count: int, axis: int) -> list[Array]:
    """An array split among ranks along an axis, as evenly as possible."""
    bounds = [number * whole.shape[axis] // count for number in range(count + 1)]
    before = (slice(None),) * axis
    return [whole[(*before, slice(low, high))].copy() for low, high in pairwise(bounds)]
