"""All-reduce in two tiers: reduce-scatter inside each node, all-reduce across, all-gather inside.

Each rank carries 1/ranks_per_node of the message across nodes, so the bytes equal those of a flat ring.
The tiers run one after another, so a flat ring that enters each node once and overlaps its steps has
more bandwidth; this algorithm has fewer steps, 2 (r - 1) + 2 (N - 1) instead of 2 (r N - 1). Ranks are
numbered node by node.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfsim.base.errors import InputError
from perfsim.network import ring
from perfsim.network.move import Move
from perfsim.network.topology import Group
from perfsim.specs.calibration import CollectiveOp


def steps(group: Group, n_bytes: float) -> Iterator[Move]:
    """Moves of an all-reduce; the message is cut into `group.size` chunks.

    Chunk l N + j is part j of the data that local rank l of each of N nodes carries across. Raises
    InputError if nodes hold different numbers of ranks.
    """
    _check_even(group)
    inner = group.most_per_node - 1
    outer = 2 * (group.nodes - 1)
    yield from _inside(group, "reduce_scatter", n_bytes, first_step=0)
    yield from _across(group, n_bytes, first_step=inner)
    yield from _inside(group, "all_gather", n_bytes, first_step=inner + outer)


def time_s(
    group: Group,
    n_bytes: ArrayLike,
    intra_latency_s: float,
    intra_bytes_per_s: float,
    inter_latency_s: float,
    inter_bytes_per_s: float,
) -> NDArray[np.float64]:
    """Seconds on an idle network; bandwidths are those of one rank, inside and across nodes."""
    _check_even(group)
    bytes_across = np.asarray(n_bytes, dtype=float) / group.most_per_node
    inside = 2 * ring.time_s(
        "reduce_scatter", group.most_per_node, n_bytes, intra_latency_s, intra_bytes_per_s
    )
    return inside + ring.time_s("all_reduce", group.nodes, bytes_across, inter_latency_s, inter_bytes_per_s)


def _check_even(group: Group) -> None:
    if not group.is_even:
        raise InputError(f"a hierarchical all-reduce needs as many ranks on each node: {group}")


def _inside(group: Group, op: CollectiveOp, n_bytes: float, *, first_step: int) -> Iterator[Move]:
    """The same ring round on each node; a local chunk is `nodes` chunks of the message."""
    for move in ring.steps(op, group.most_per_node, n_bytes):
        for node in range(group.nodes):
            base = node * group.most_per_node
            for part in range(group.nodes):
                yield move._replace(
                    src=base + move.src,
                    dst=base + move.dst,
                    n_bytes=move.n_bytes / group.nodes,
                    step=first_step + move.step,
                    chunk=move.chunk * group.nodes + part,
                )


def _across(group: Group, n_bytes: float, *, first_step: int) -> Iterator[Move]:
    """One ring for each local rank, over the nodes."""
    for move in ring.steps("all_reduce", group.nodes, n_bytes / group.most_per_node):
        for local in range(group.most_per_node):
            yield move._replace(
                src=move.src * group.most_per_node + local,
                dst=move.dst * group.most_per_node + local,
                step=first_step + move.step,
                chunk=local * group.nodes + move.chunk,
            )
