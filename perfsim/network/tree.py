"""Binomial trees: few steps, so suited to short messages.

A reduction halves the number of holders each round, a broadcast doubles it, so both take
ceil(log2 n) rounds of the whole message. NCCL pipelines two complementary trees, each with half of
the message, so that every rank sends twice the message in an all-reduce at full bandwidth
(`wire_factor`): Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", 2009.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfsim.base.errors import InputError
from perfsim.network.move import Move
from perfsim.specs.calibration import CollectiveOp

DOUBLE_TREE_WIRE_FACTOR = 2.0
"""Bytes that each rank sends in a double-tree all-reduce, over the bytes of the message."""


def depth(size: int) -> int:
    """Rounds of one reduction or broadcast: ceil(log2 size)."""
    return (size - 1).bit_length()


def steps(op: CollectiveOp, group_size: int, n_bytes: float) -> Iterator[Move]:
    """Moves of an all-reduce over rank 0, or of a broadcast from rank 0; one chunk.

    Raises InputError for another operation.
    """
    if op not in ("all_reduce", "broadcast"):
        raise InputError(f"{op} does not run as a tree")
    rounds = depth(group_size)
    if op == "all_reduce":
        for step in range(rounds):
            for lower, upper in _pairs(group_size, step):
                yield Move(upper, lower, n_bytes, step, 0, reduces=True)
    first_step = rounds if op == "all_reduce" else 0
    for step in range(rounds):
        for lower, upper in _pairs(group_size, rounds - 1 - step):
            yield Move(lower, upper, n_bytes, first_step + step, 0, reduces=False)


def num_rounds(op: CollectiveOp, group_size: int) -> int:
    """Sequential rounds of an operation."""
    return (2 if op == "all_reduce" else 1) * depth(group_size)


def round_pairs(op: CollectiveOp, group_size: int, number: int) -> list[tuple[int, int]]:
    """(sender, receiver) pairs of one round."""
    return [(move.src, move.dst) for move in steps(op, group_size, 1.0) if move.step == number]


def time_s(
    op: CollectiveOp, group_size: int, n_bytes: ArrayLike, latency_s: float, bytes_per_s: float
) -> NDArray[np.float64]:
    """Seconds on an idle network with one latency and one bandwidth: rounds (latency + bytes/bandwidth)."""
    return num_rounds(op, group_size) * (latency_s + np.asarray(n_bytes, dtype=float) / bytes_per_s)


def _pairs(size: int, level: int) -> Iterator[tuple[int, int]]:
    """Pairs of ranks at distance 2**level, the one nearer the root first."""
    distance = 1 << level
    for lower in range(0, size - distance, 2 * distance):
        yield lower, lower + distance
