"""How much compute loses while communication runs beside it, in columns.

While a communication that takes shares u and h of a device runs, compute of which compute units limit a share
c of the time and memory bandwidth a share m progresses at rate 1 / (1 + g), with g = c u / (1 - u) +
m h / (1 - h), as in the simulation (`engine/beside.py`). Each hidden second costs g / (1 + g) seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.costs.price import MOST_TAKEN, NONE, Costs
from perfsim.graph import RankGroup
from perfsim.strategies.three_d.columns import Columns, distinct_rows
from perfsim.strategies.three_d.data import Replicas
from perfsim.strategies.three_d.memory import SliceBytes
from perfsim.strategies.three_d.prices import EndPrices, LayerPrices, Passes, PassPrices, Slices
from perfsim.strategies.three_d.replica_prices import Largest, straddling_stage
from perfsim.strategies.three_d.terms import Terms
from perfsim.topology import FatTree
from perfsim.workload import Job

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Slowdowns(NamedTuple):
    """Seconds that compute loses for each second of a communication hidden beside it, shape (rows, 1)."""

    gather_forward: Floats
    gather_backward: Floats
    reduce_backward: Floats
    send: Floats
    """Beside a message between pipeline ranks."""


class Beside:
    """What compute loses beside communication: a layer's work, and a layer's communication."""

    def __init__(
        self,
        job: Job,
        topology: FatTree,
        costs: Costs,
        slices: Slices,
        passes: Passes,
        states: Columns,
        sizes: SliceBytes,
        largest: Largest,
    ) -> None:
        self._layer = _limited_s(passes.last_kind, slices.columns, costs)
        self._gather, self._reduce = _taken_by_replicas(job, states, topology, costs, largest, sizes)
        self._send = _sends(passes.around, costs)

    def of(self, of_slice: Ints, of_state: Ints, passes: PassPrices) -> Slowdowns:
        """The slowdowns of some layouts, given their passes."""
        forward = self._layer[0].take(of_slice, axis=0) / passes.forward[:, -1:]
        backward_s = (passes.backward + passes.weights)[:, -1:]
        backward = self._layer[1].take(of_slice, axis=0) / backward_s
        gather, reduce = (taken.take(of_state, axis=0) for taken in (self._gather, self._reduce))
        return Slowdowns(
            gather_forward=_lost(gather, forward),
            gather_backward=_lost(gather, backward),
            reduce_backward=_lost(reduce, backward),
            send=_lost(self._send.take(of_slice, axis=0), (forward + backward) / 2),
        )


def _lost(taken: Floats, bound: Floats) -> Floats:
    """Seconds lost per hidden second; both have columns for units and memory bandwidth."""
    taken = np.minimum(taken, MOST_TAKEN)
    longer = (taken / (1.0 - taken) * bound).sum(axis=1, keepdims=True)
    return np.asarray(longer / (1.0 + longer))


def _limited_s(works: Terms, columns: Columns, costs: Costs) -> tuple[Floats, Floats]:
    """Seconds of a layer that units, and memory bandwidth, limit: forward and backward, (slices, 2) each."""
    seconds = np.zeros((2, len(works.works)))
    for number in works.adds_to("forward", "backward", "later", "later_backward").tolist():
        work = works.works[number]
        (units, memory), duration_s = costs.bound(work), costs.duration_s(work)
        seconds[0, number], seconds[1, number] = units * duration_s, memory * duration_s
    limits = [LayerPrices(*works.sums(limited)) for limited in seconds]
    ring = columns.context
    forward = [part.forward + ring * part.later for part in limits]
    backward = [part.backward + ring * part.later_backward for part in limits]
    return np.stack(forward, axis=1), np.stack(backward, axis=1)


def _sends(around: Terms, costs: Costs) -> Floats:
    """What a message between pipeline ranks takes of a device, across nodes if there are several."""
    across = around.adds_to("send_across")
    name = "send_across" if len(across) else "send_inside"
    taken = np.zeros((2, len(around.works)))
    for number in around.adds_to(name).tolist():
        taken[:, number] = costs.taken(around.works[number])
    return np.stack([getattr(EndPrices(*around.sums(share)), name) for share in taken], axis=1)


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
