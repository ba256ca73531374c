"""In-network broadcast and reduction: a tree of switches that copy or add passing data.

This is SwarmX: one source (MemoryX), switches with `fan_out` children, `leaves` systems; on GPU clusters
it is SHARP, an all-reduce without a source (`all_reduce_s`). Switches work at line rate and forward chunk
by chunk, so the message is serialised once and each level of switches adds one hop and one chunk:

    seconds = bytes/bandwidth + depth (hop + chunk/bandwidth),  depth = ceil(log_fan_out leaves)

The number of leaves matters only through the depth. A single system connects directly to the source
(depth 0).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfsim.base.errors import InputError
from perfsim.network.move import Move


def _depth(leaves: int, fan_out: int) -> int:
    """Levels of switches between the source and `leaves` systems: ceil(log_fan_out leaves).

    Raises InputError for no leaf or a fan-out below 2.
    """
    if leaves < 1 or fan_out < 2:
        raise InputError(f"a tree needs a leaf and a fan-out of 2 or more, not {leaves} and {fan_out}")
    levels = 0
    reach = 1
    while reach < leaves:
        levels = levels + 1
        reach = reach * fan_out
    return levels


def time_s(
    n_bytes: ArrayLike,
    leaves: int,
    fan_out: int,
    bytes_per_s: float,
    hop_latency_s: float,
    chunk_bytes: float,
) -> NDArray[np.float64]:
    """Seconds until the last byte of a broadcast is at every leaf, or of a sum at the source."""
    message: NDArray[np.float64] = np.asarray(n_bytes, dtype=float)
    chunk_s: NDArray[np.float64] = np.minimum(chunk_bytes, message) / bytes_per_s
    return message / bytes_per_s + _depth(leaves, fan_out) * (hop_latency_s + chunk_s)


def all_reduce_s(
    n_bytes: ArrayLike, leaves: int, fan_out: int, bytes_per_s: float, hop_latency_s: float
) -> NDArray[np.float64]:
    """Seconds of a sum up the tree and its broadcast down, which overlap on full-duplex links.

    Chunks are packets of negligible time: bytes/bandwidth + 2 depth hop.
    """
    up: NDArray[np.float64] = time_s(n_bytes, leaves, fan_out, bytes_per_s, hop_latency_s, 0.0)
    return up + _depth(leaves, fan_out) * hop_latency_s


def steps(
    op: Literal["broadcast", "reduce"], leaves: int, fan_out: int, n_bytes: float, chunk_bytes: float
) -> Iterator[Move]:
    """Moves of a pipelined broadcast from vertex 0 to the leaves, or of a sum from them to it.

    Vertices are numbered level by level from the source; the leaves are the last ones.
    """
    edges = _edges(leaves, fan_out)
    # At each step level k forwards the chunk that level k - 1 forwarded one step earlier.
    chunks = max(1, -int(-n_bytes // chunk_bytes))
    levels = _depth(leaves, fan_out) + 1
    for step in range(chunks + levels - 1):
        for level in range(levels):
            chunk = step - level
            if not 0 <= chunk < chunks:
                continue
            size = min(chunk_bytes, n_bytes - chunk * chunk_bytes)
            for upper, lower in edges[level] if op == "broadcast" else edges[levels - 1 - level]:
                src, dst = (upper, lower) if op == "broadcast" else (lower, upper)
                yield Move(src, dst, size, step, chunk, reduces=op == "reduce")


def _edges(leaves: int, fan_out: int) -> list[list[tuple[int, int]]]:
    """(upper, lower) vertices of each level, from the source down; one switch tops the tree."""
    widths = [leaves]
    for _ in range(_depth(leaves, fan_out)):
        widths.append(-(-widths[-1] // fan_out))
    widths.append(1)
    widths.reverse()
    first = np.concatenate([[0], np.cumsum(widths)]).tolist()
    edges = []
    for level in range(1, len(widths)):
        children = widths[level] if level > 1 else 1
        parents = fan_out if level > 1 else 1
        edges.append([(first[level - 1] + i // parents, first[level] + i) for i in range(children)])
    return edges
