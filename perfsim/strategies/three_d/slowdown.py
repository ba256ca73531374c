"""How much compute loses while communication runs beside it, in columns.

While a communication that takes shares u and h of a device runs, compute of which compute units limit a share
c of the time and memory bandwidth a share m progresses at rate 1 / (1 + g), with g = c u / (1 - u) +
m h / (1 - h), as in the simulation (`engine/beside.py`). Each hidden second costs g / (1 + g) seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.costs.price import MOST_TAKEN, NONE, Costs, Shares
from perfsim.graph import RankGroup, Work
from perfsim.strategies.three_d.columns import Columns, distinct_rows
from perfsim.strategies.three_d.data import Replicas
from perfsim.strategies.three_d.division import kinds_of
from perfsim.strategies.three_d.memory import SliceBytes
from perfsim.strategies.three_d.prices import PassPrices, SlicePrices, slice_terms
from perfsim.strategies.three_d.replica_prices import Largest, straddling_stage
from perfsim.topology import FatTree
from perfsim.workload import Job

Floats = NDArray[np.float64]
FORWARD, BACKWARD = (SlicePrices._fields.index(name) for name in ("forward", "backward"))
LATER, LATER_BACKWARD = (SlicePrices._fields.index(name) for name in ("later", "later_backward"))
SEND_INSIDE, SEND_ACROSS = (SlicePrices._fields.index(name) for name in ("send_inside", "send_across"))


class Slowdowns(NamedTuple):
    """Seconds that compute loses for each second of a communication hidden beside it, shape (rows, 1)."""

    gather_forward: Floats
    gather_backward: Floats
    reduce_backward: Floats
    send: Floats
    """Beside a message between pipeline ranks."""


def slowdowns(
    job: Job,
    columns: Columns,
    topology: FatTree,
    costs: Costs,
    passes: PassPrices,
    largest: Largest,
    sizes: SliceBytes,
) -> Slowdowns:
    """The slowdowns of every layout, from the mean of a layer's work and a layer's communication."""
    keys = columns.slice_keys
    first, of_row = distinct_rows(keys)
    terms = slice_terms(job, columns, topology, kinds_of(job.model)[-1])
    slices = [terms(key) for key in zip(*(column[first].tolist() for column in keys), strict=True)]
    ring = columns.context[first].tolist()

    def of_rows(shares: Iterable[Shares]) -> Floats:
        return np.array(list(shares), dtype=np.float64).reshape(-1, 2)[of_row]

    def limited(part: int, block: int) -> Iterable[Shares]:
        return (
            _limited_s((*works[part], *works[block] * c), costs)
            for works, c in zip(slices, ring, strict=True)
        )

    forward = of_rows(limited(FORWARD, LATER)) / passes.forward[:, -1:]
    backward_s = (passes.backward + passes.weights)[:, -1:]
    backward = of_rows(limited(BACKWARD, LATER_BACKWARD)) / backward_s
    mean = (forward + backward) / 2
    send = of_rows(_taken((*works[SEND_ACROSS], *works[SEND_INSIDE])[:1], costs) for works in slices)
    gather, reduce = _taken_by_replicas(job, columns, topology, costs, largest, sizes)
    return Slowdowns(
        gather_forward=_lost(gather, forward),
        gather_backward=_lost(gather, backward),
        reduce_backward=_lost(reduce, backward),
        send=_lost(send, mean),
    )


def _lost(taken: Floats, bound: Floats) -> Floats:
    """Seconds lost per hidden second; both have columns for units and memory bandwidth."""
    taken = np.minimum(taken, MOST_TAKEN)
    longer = (taken / (1.0 - taken) * bound).sum(axis=1, keepdims=True)
    return np.asarray(longer / (1.0 + longer))


def _limited_s(works: Sequence[Work], costs: Costs) -> Shares:
    """Seconds of some works that units, and memory bandwidth, limit."""
    limited = NONE
    for work in works:
        bound, duration_s = costs.bound(work), costs.duration_s(work)
        limited = Shares(*(total + share * duration_s for total, share in zip(limited, bound, strict=True)))
    return limited


def _taken(works: Sequence[Work], costs: Costs) -> Shares:
    """The most that any of some communications takes."""
    taken = [costs.taken(work) for work in works]
    return (
        Shares(max(share.units for share in taken), max(share.memory for share in taken)) if taken else NONE
    )


def _taken_by_replicas(
    job: Job, columns: Columns, topology: FatTree, costs: Costs, largest: Largest, sizes: SliceBytes
) -> tuple[Floats, Floats]:
    """What gathering a layer and reducing a bucket take of a device, shape (rows, 2) each."""
    stage = straddling_stage(columns, topology.devices_per_node)
    first, of_row = distinct_rows((columns.tensor, columns.replicas, columns.shards, stage, columns.zero))
    gather, reduce = [], []
    for row in first.tolist():
        tensor, data, zero = int(columns.tensor[row]), int(columns.replicas[row]), int(columns.zero[row])
        group = RankGroup(int(stage[row]) * tensor * data, tensor, data)
        replicas = Replicas(job.recipe, group, "", 0.0, zero, int(columns.shards[row]))
        layer = float(sizes.layer[row, -1])
        gather.append(costs.taken(replicas.gather_work(layer)) if data > 1 else NONE)
        bucket = layer * int(largest.bucket[row])
        reduce.append(costs.taken(replicas.reduce_work(bucket)) if data > 1 else NONE)
    shapes = (np.array(shares, dtype=np.float64).reshape(-1, 2)[of_row] for shares in (gather, reduce))
    return next(shapes), next(shapes)
