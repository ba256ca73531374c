"""The longest path over the passes of a step: a second estimate, of layouts that the closed form puts first.

Every pass of the schedule is one step of a recurrence, in the schedule's own order:

    begin of a pass = max(end of the pass before it on its rank, arrival of the tensor that it reads)
    arrival of a tensor = max(end of its pass, end of the message before it) + seconds of its message

Passes that reduce gradients in every micro-batch (ZeRO 2), or gather parameters (ZeRO 3), are followed layer
by layer, next to a communication stream. Nothing is shared: what compute loses next to a communication, and
what messages over NICs lose next to a reduction on the same NICs, is added to the layers.

Micro-batches repeat with a period of at most two pipelines, so a step of many is extrapolated from two
shorter ones that differ by one period.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.costs.price import Costs
from perfsim.network import FatTree
from perfsim.specs.recipe import Job
from perfsim.strategies.schedules import schedule_called
from perfsim.strategies.three_d.closed_form import Steps
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, IN_FLIGHT, SHARDED
from perfsim.strategies.three_d.division import Division
from perfsim.strategies.three_d.prices import OverReplicas, Passes
from perfsim.strategies.three_d.space import Columns

FORWARD = 0
BACKWARD = 1
WEIGHTS = 2
_PASSES = {"F": FORWARD, "B": BACKWARD, "W": WEIGHTS}


def path_steps_s(job: Job, columns: Columns, topology: FatTree, costs: Costs, updates: bool) -> Floats:
    """Step time of every layout, with its update or without, shape (rows,)."""
    seconds = np.empty(len(columns))
    if not len(columns):
        return seconds
    passes = Passes(job, columns, topology, costs)
    replicas = OverReplicas(job, columns, topology, costs)
    for rows, some in columns.blocks():
        steps = Steps(job, some, rows, passes, replicas)
        prices = steps.replicas
        update_s = (prices.gather + prices.tie + (prices.update if updates else 0.0))[:, 0]
        # Below ZeRO 2 the closed form has what is exposed of the reduction at the end of a step.
        times = steps.pass_times()
        last_group_s = some.pipeline * (times.backward_s + times.weights_s).max(axis=1)
        update_s += np.where(some.zero < GRADIENTS_SHARDED, steps.reduction_s(last_group_s), 0.0)
        ahead_s = steps.gathered_ahead_s()
        for row, place in enumerate(rows.tolist()):
            path = _Path.of(job, steps, row, topology.devices_per_node, float(update_s[row]))
            seconds[place] = path.step_s(int(steps.microbatches[row])) + ahead_s[row]
    return seconds


class _StagePasses(NamedTuple):
    """Seconds of one layout's passes; virtual stages and layers are in the order of the forward."""

    begin_s: Floats
    """Of every pass and stage before its layers, shape (3, stages)."""
    layer_s: Floats
    """Of every pass and layer, without what is recomputed, shape (3, layers)."""
    redone_s: Floats
    """Recomputed before the backward of every layer."""
    end_s: Floats
    """Of every pass and stage after its layers, shape (3, stages)."""
    hop_s: Floats
    """The message from every stage to the next; 0 on one rank."""
    replica_s: Floats
    """Gathering a layer, and embedding with LM head; reducing both; summing both over groups that shard."""
    reduce_ends_s: Floats
    """Reducing the gradients of embedding and LM head of every stage under ZeRO 2."""
    update_s: float
    """From the end of a rank's reductions to its next step."""

    @classmethod
    def of(
        cls, steps: Steps, row: int, division: Division, completes: int, node: int, update_s: float
    ) -> _StagePasses:
        """The passes of a row of layouts, on nodes of so many devices; one `completes` weight gradients."""
        columns = steps.columns
        places = division.placement
        stages = places.num_stages
        zero = int(columns.zero[row])
        replicas = {name: float(column[row, 0]) for name, column in steps.replicas._asdict().items()}
        prices = {name: float(column[row, 0]) for name, column in steps.passes._asdict().items()}
        of_kinds = steps.passes
        kinds = [*division.kinds] or [0] * sum(division.layers)
        layer_s = np.stack([of_kinds.forward[row], of_kinds.backward[row], of_kinds.weights[row]])[:, kinds]
        if zero == SHARDED or (zero == GRADIENTS_SHARDED and steps.overlaps):
            # A reduction begins with the layer below, whose rows are on their way to experts first.
            hidden_s = np.minimum(replicas["reduce_layer"], layer_s[completes])
            dispatched_s = np.minimum(hidden_s, steps.dispatched[row])
            layer_s[completes] += hidden_s * steps.slower_reduce[row]
            layer_s[completes] += dispatched_s * steps.slower_dispatch[row]
        if zero == SHARDED:
            for which, slower in ((FORWARD, steps.slower_gather), (BACKWARD, steps.slower_gather_backward)):
                layer_s[which] += np.minimum(replicas["gather_layer"], layer_s[which]) * slower[row]

        rank_of = np.array([places.rank(number) for number in range(stages)])
        crosses = rank_of[1:] != rank_of[:-1]
        first_device = rank_of * int(columns.tensor[row] * columns.replicas[row])
        apart = first_device[1:] // node != first_device[:-1] // node
        begin_s = np.zeros((len(_PASSES), stages))
        begin_s[:WEIGHTS] = prices["begin"]
        begin_s[FORWARD, 1:] += crosses * prices["receive"]
        begin_s[BACKWARD, :-1] += crosses * prices["receive"]
        begin_s[FORWARD, 0] += prices["embedding_forward"]
        begin_s[BACKWARD:, -1] += prices["head_backward"], prices["head_weights"]
        if division.pipeline > 1:
            # A pass sends and receives a tensor; in a tight pipeline it waits for one of them.
            tight = schedule_called(division.schedule).has("tight")
            messages = 1 if tight and completes == BACKWARD else 2
            begin_s[:WEIGHTS] += messages * prices["send"] * steps.slower_send[row]
        end_s = np.zeros((len(_PASSES), stages))
        end_s[FORWARD, -1] = prices["head_forward"]
        end_s[BACKWARD:, 0] = prices["embedding_backward"], prices["embedding_weights"]
        reduce_ends_s = np.zeros(stages)
        if zero == GRADIENTS_SHARDED:
            both = replicas["reduce_both"], replicas["reduce_both"]
            alone = replicas["reduce_embedding"], replicas["reduce_head"]
            reduce_ends_s[[0, -1]] = both if stages == 1 else alone
        names = ("gather_layer", "gather_both", "reduce_layer", "reduce_both", "across_layer", "across_both")
        return cls(
            begin_s,
            layer_s,
            of_kinds.recompute[row, kinds] * _redone(columns, division, row, len(kinds)),
            end_s,
            np.where(crosses, steps.hops[row][apart.astype(int)], 0.0),
            np.array([replicas[name] for name in names]),
            reduce_ends_s,
            update_s,
        )


def _redone(columns: Columns, division: Division, row: int, count: int) -> Bools:
    """Which layers are recomputed: of every rank one in so many, from its first."""
    redone = np.zeros(count, dtype=np.bool_)
    if not columns.recompute[row]:
        return redone
    first = _first_layers(division, count)
    for places in division.placement.places:
        layers = np.concatenate([np.arange(first[place], first[place + 1]) for place in places])
        redone[layers[:: int(columns.recompute_every[row])]] = True
    return redone


def _first_layers(division: Division, count: int) -> Ints:
    """The first layer of every stage, and the count of all; those of multi-token prediction end the last."""
    return np.array([*np.cumsum([0, *division.layers[:-1]]), count])


class _Path(NamedTuple):
    """What is followed of one layout."""

    division: Division
    passes: _StagePasses
    reduces: int
    """The pass that reduces gradients layer by layer under ZeRO 2; 0: none."""
    sharded: bool
    overlaps: bool
    steps: int
    """Steps until the last is in the steady state, which a skewed schedule reaches with the second."""
    ties: bool
    """Whether the first and the last rank wait for each other's gradient of the embedding."""

    @classmethod
    def of(cls, job: Job, steps: Steps, row: int, node: int, update_s: float) -> _Path:
        """The path of a row of layouts, on nodes of so many devices."""
        columns = steps.columns
        division = columns.divisions[int(columns.division[row])]
        schedule = schedule_called(division.schedule)
        zero = int(columns.zero[row])
        skewed = schedule.has("skewed")
        completes = WEIGHTS if schedule.has("splits_backward") else BACKWARD
        return cls(
            division,
            _StagePasses.of(steps, row, division, completes, node, update_s),
            completes if zero == GRADIENTS_SHARDED else 0,
            zero == SHARDED,
            steps.overlaps,
            2 if skewed else 1,
            skewed and job.model.tied_embeddings and division.placement.last_rank > 0,
        )

    def step_s(self, microbatches: int) -> float:
        """Seconds of a step with so many micro-batches."""
        pipeline = self.division.pipeline
        period = 2 * pipeline
        fewer = 4 * pipeline + microbatches % period
        if microbatches <= fewer + period:
            return self._followed_s(microbatches)
        short_s = self._followed_s(fewer)
        more_s = self._followed_s(fewer + period) - short_s
        return short_s + (microbatches - fewer) / period * more_s

    def _followed_s(self, microbatches: int) -> float:
        """Seconds of the last of some steps, all passes followed."""
        division = self.division
        passes = self.passes
        order = _order(division.schedule, division.pipeline, division.virtual, microbatches)
        first = _first_layers(division, passes.layer_s.shape[1])
        ends = np.zeros(division.pipeline)
        arrivals = np.zeros(len(order.which))
        last_rank = division.placement.last_rank
        before_s = after_s = 0.0
        for _ in range(self.steps):
            before_s = after_s
            how = self.reduces, self.sharded, self.overlaps
            _compiled()(*order, first, *passes[:-1], *how, ends, arrivals)
            if self.ties:
                ends[0] = ends[last_rank] = max(ends[0], ends[last_rank])
            ends += passes.update_s
            after_s = float(ends.max())
        return after_s - before_s


class _Order(NamedTuple):
    """The passes of a step in an order in which each follows what it reads, shape (passes,) each."""

    which: Ints
    rank: Ints
    place: Ints
    """The virtual stage."""
    source: Ints
    """The pass whose output it reads; -1: none."""
    sends: Ints
    """Where its output goes: 0 to the next virtual stage, 1 to the one before, -1 nowhere."""


@lru_cache(maxsize=4096)
def _order(schedule: str, pipeline: int, virtual: int, microbatches: int) -> _Order:
    row = schedule_called(schedule)
    placement = row.placement(pipeline, virtual)
    merged = placement.merged(row.orders(pipeline, virtual, microbatches))
    which = np.array([_PASSES[slot.which] for slot in merged])
    rank, chunk, microbatch = np.array([slot[1:] for slot in merged], dtype=np.int64).T
    place = np.array(placement.places)[rank, chunk]
    last = placement.num_stages - 1
    number = np.full((len(_PASSES), last + 2, microbatches), -1, dtype=np.int64)  # place -1: none
    number[which, place, microbatch] = np.arange(len(merged))
    backward = number[BACKWARD, place, microbatch]
    before = number[FORWARD, place - 1, microbatch]
    behind = np.where(
        place == last, number[FORWARD, place, microbatch], number[BACKWARD, place + 1, microbatch]
    )
    source = np.choose(which, [before, behind, backward])
    leaves = np.choose(which, [place < last, place > 0, np.zeros_like(place)])
    return _Order(which, rank, place, source, np.where(leaves, which, -1))


@cache
def _compiled() -> Any:
    """The recurrence, in machine code where numba is installed."""
    if find_spec("numba") is None:
        return _follow
    from numba import njit

    return njit(cache=True)(_follow)


def _follow(
    which: Ints,
    rank: Ints,
    place: Ints,
    source: Ints,
    sends: Ints,
    first: Ints,
    begin_s: Floats,
    layer_s: Floats,
    redone_s: Floats,
    end_s: Floats,
    hop_s: Floats,
    replica_s: Floats,
    reduce_ends_s: Floats,
    reduces: int,
    sharded: bool,
    overlaps: bool,
    ends: Floats,
    arrivals: Floats,
) -> None:
    """Follow all passes; `ends` has when each rank begins, and then when it has reduced all gradients."""
    gather_s, gather_ends_s, reduce_s, reduce_both_s, across_s, across_both_s = replica_s
    last = len(first) - 2
    free = ends.copy()
    data = ends.copy()
    groups = ends.copy()
    sent = np.zeros((2, len(ends)))
    # Of the latest pass that reduces: the end of its last layer's reduction, of the one before, and of all.
    # Under ZeRO 3 the first is the end of the last layer's forward.
    freed = np.zeros((3, len(ends)))
    for number in range(len(which)):
        kind = which[number]
        on = rank[number]
        at = place[number]
        low = first[at]
        high = first[at + 1]
        now = free[on]
        if source[number] >= 0:
            now = max(now, arrivals[source[number]])
        if sharded and kind == FORWARD:
            data[on] += gather_ends_s
            now = max(now, data[on]) + begin_s[kind, at]
            earlier = now
            for layer in range(low, high):
                if layer >= low + IN_FLIGHT:
                    data[on] = max(data[on], earlier)
                data[on] += gather_s
                earlier = now
                now = max(now, data[on]) + layer_s[kind, layer]
            freed[0, on] = now
            now += end_s[kind, at]
        elif sharded and kind == BACKWARD:
            now += begin_s[kind, at]
            data[on] += gather_s
            arrived = data[on]
            for layer in range(high - 1, low - 1, -1):
                now = max(now, arrived)
                if layer > low:  # the next layer is gathered before this one is reduced
                    data[on] = max(data[on], freed[0, on]) + gather_s
                    arrived = data[on]
                now += redone_s[layer] + layer_s[kind, layer]
                data[on] = max(data[on], now) + reduce_s
                groups[on] = max(groups[on], data[on]) + across_s
            now += end_s[kind, at]
            data[on] = max(data[on], now) + reduce_both_s
            groups[on] = max(groups[on], data[on]) + across_both_s
        elif reduces and kind == reduces:
            latest, before, whole = freed[:, on]
            if at == last and reduce_ends_s[at] > 0.0:
                now = max(now, whole)
            now += begin_s[kind, at]
            for layer in range(high - 1, low - 1, -1):
                if kind == BACKWARD:
                    now += redone_s[layer]
                now = max(now, before) + layer_s[kind, layer]
                before = latest
                if overlaps:
                    data[on] = max(data[on], now) + reduce_s
                    latest = data[on]
                else:
                    now += reduce_s
            if at == 0 and reduce_ends_s[at] > 0.0:
                now = max(now, whole)
            now += end_s[kind, at]
            if overlaps:
                data[on] = max(data[on], now) + reduce_ends_s[at] if reduce_ends_s[at] > 0.0 else data[on]
                freed[0, on] = latest if high > low else data[on]
                freed[1, on] = before if high > low + 1 else data[on]
                freed[2, on] = data[on]
            else:
                now += reduce_ends_s[at]
        else:
            now += begin_s[kind, at] + end_s[kind, at]
            for layer in range(low, high):
                now += layer_s[kind, layer]
                if kind == BACKWARD:
                    now += redone_s[layer]
        free[on] = now
        direction = sends[number]
        if direction >= 0:
            message_s = hop_s[at - direction]
            if message_s > 0.0:
                now = max(now, sent[direction, on]) + message_s
                sent[direction, on] = now
        arrivals[number] = now
    for on in range(len(ends)):
        ends[on] = max(free[on], data[on], groups[on])
