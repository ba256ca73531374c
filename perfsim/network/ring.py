"""Ring collectives: in each step every rank sends one n-th of the message to its right neighbour.

Reduce-scatter and all-gather take n - 1 steps and move (n-1)/n of the message over each link;
all-reduce is one after the other. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009; NCCL's bus bandwidth counts the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfsim.base.errors import InputError
from perfsim.network.move import Move
from perfsim.specs.calibration import CollectiveOp


def num_steps(op: CollectiveOp, size: int) -> int:
    """Sequential neighbour-to-neighbour hops on the longest path."""
    if op == "send_recv":
        return min(size - 1, 1)
    return (2 if op == "all_reduce" else 1) * (size - 1)


def wire_factor(op: CollectiveOp, size: int) -> float:
    """Bytes that each rank sends, over the bytes of the whole message.

    The whole message is what every rank holds after an all-gather or before a reduce-scatter.
    """
    if op in ("send_recv", "broadcast"):
        return float(min(size - 1, 1))
    return (2 if op == "all_reduce" else 1) * (size - 1) / size


def steps(op: CollectiveOp, group_size: int, n_bytes: float) -> Iterator[Move]:
    """Moves of an all-reduce, reduce-scatter, all-gather or (pipelined) broadcast from rank 0.

    The message is cut into `group_size` chunks; a reduce-scatter leaves chunk i on rank i, an
    all-gather starts there. Raises InputError for another operation.
    """
    if op == "broadcast":
        yield from _broadcast(group_size, n_bytes)
        return
    if op not in ("all_reduce", "reduce_scatter", "all_gather"):
        raise InputError(f"{op} does not run as a ring")
    if op != "all_gather":
        yield from _round(group_size, n_bytes, first_step=0, reduces=True)
    if op != "reduce_scatter":
        first_step = group_size - 1 if op == "all_reduce" else 0
        yield from _round(group_size, n_bytes, first_step=first_step, reduces=False)


def time_s(
    op: CollectiveOp, group_size: int, n_bytes: ArrayLike, latency_s: float, bytes_per_s: float
) -> NDArray[np.float64]:
    """Seconds on an idle network with one latency and one bandwidth.

    steps (latency + n_bytes / n / bandwidth); a broadcast fills and drains its pipeline, which
    takes 2n - 2 steps.
    """
    count = 2 * (group_size - 1) if op == "broadcast" else num_steps(op, group_size)
    return count * (latency_s + np.asarray(n_bytes, dtype=float) / (group_size * bytes_per_s))


def _round(size: int, n_bytes: float, *, first_step: int, reduces: bool) -> Iterator[Move]:
    """One round of the ring; a reducing round starts one chunk earlier, so that chunk i ends on rank i."""
    for step in range(size - 1):
        for rank in range(size):
            chunk = (rank - step - reduces) % size
            yield Move(rank, (rank + 1) % size, n_bytes / size, first_step + step, chunk, reduces)


def _broadcast(size: int, n_bytes: float) -> Iterator[Move]:
    for step in range(2 * (size - 1)):
        for rank in range(size - 1):
            chunk = step - rank
            if 0 <= chunk < size:
                yield Move(rank, rank + 1, n_bytes / size, step, chunk, reduces=False)
