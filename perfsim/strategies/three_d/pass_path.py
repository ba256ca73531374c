"""The longest path over the passes of a step: the second estimate of layouts, for the best of the first.

Every pass of the schedule is one step of a recurrence, in the schedule's own order:

    begin of a pass = max(end of the pass before it on its rank, arrival of the tensor that it reads)
    arrival of a tensor = max(end of its pass, end of the message before it) + seconds of its message

Passes that reduce gradients in every micro-batch (ZeRO 2), or gather parameters (ZeRO 3), are followed layer by
layer, next to a communication stream. Nothing is shared: what compute loses next to a communication, and what
tensor groups over nodes lose next to a reduction on the same NICs, is added to the layers.

Micro-batches repeat with a period of at most two pipelines, so a step of many is extrapolated from two shorter
ones that differ by one period.
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
from perfsim.strategies.three_d.prices import OverReplicas, Passes, _PassPrices
from perfsim.strategies.three_d.space import Columns

FORWARD = 0
BACKWARD = 1
WEIGHTS = 2
_PASSES = {"F": FORWARD, "B": BACKWARD, "W": WEIGHTS}


class _Order(NamedTuple):
    """The passes of a step in an order in which each follows what it reads, shape (passes,) each."""

    which: Ints
    rank: Ints
    place: Ints
    """The virtual stage."""
    source: Ints
    """The pass whose output it reads; -1: none."""
    sends: Ints
    """The direction in which its output leaves, 0 to the next virtual stage and 1 to the one before; -1: stays."""


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
    forward, backward = (number[kind, :, microbatch] for kind in (FORWARD, BACKWARD))
    rows = np.arange(len(merged))
    before = forward[rows, place - 1]
    behind = np.where(place == last, forward[rows, place], backward[rows, np.minimum(place + 1, last)])
    source = np.choose(which, [before, behind, backward[rows, place]])
    leaves = np.choose(which, [place < last, place > 0, np.zeros_like(place)])
    return _Order(which, rank, place, source, np.where(leaves, which, -1))


class StagePasses(NamedTuple):
    """Seconds of one layout's passes; of virtual stages in the order of the forward, of layers in model order."""

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
    gather_s: tuple[float, float]
    """Gathering a layer, and embedding with LM head (ZeRO 3)."""
    reduce_s: tuple[float, float]
    """Reducing the gradients of a layer (ZeRO 2 and 3), and of embedding with LM head on one rank."""
    reduce_ends_s: Floats
    """Reducing the gradients of embedding and LM head of every stage (ZeRO 2)."""
    across_s: tuple[float, float]
    """Summing them over groups that shard (ZeRO 3)."""
    update_s: float
    """From the end of a rank's reductions to its next step."""


def step_s(
    division: Division,
    passes: StagePasses,
    microbatches: int,
    zero: int,
    *,
    overlaps: bool,
    steps: int = 1,
    ties: bool = False,
) -> float:
    """Seconds of a step; of the last of several `steps`, where ranks update without waiting for others.

    A rank that `ties` its embedding to the LM head of another waits for that rank's gradient.
    """
    pipeline = division.pipeline
    period = 2 * pipeline
    fewer = 4 * pipeline + microbatches % period
    if microbatches <= fewer + period:
        return _ends_s(division, passes, microbatches, zero, overlaps=overlaps, steps=steps, ties=ties)
    short, long = (
        _ends_s(division, passes, count, zero, overlaps=overlaps, steps=steps, ties=ties)
        for count in (fewer, fewer + period)
    )
    return short + (microbatches - fewer) / period * (long - short)


def _ends_s(
    division: Division,
    passes: StagePasses,
    microbatches: int,
    zero: int,
    *,
    overlaps: bool,
    steps: int,
    ties: bool,
) -> float:
    order = _order(division.schedule, division.pipeline, division.virtual, microbatches)
    reduces = 0
    if zero == GRADIENTS_SHARDED:
        reduces = WEIGHTS if schedule_called(division.schedule).has("splits_backward") else BACKWARD
    ends = np.zeros(division.pipeline)
    arrivals = np.zeros(len(order.which))
    first = np.cumsum([0, *division.layers])
    first[-1] = passes.layer_s.shape[1]  # layers of multi-token prediction are on the last stage
    before = after = 0.0
    for _ in range(steps):
        before = after
        _function()(
            *order,
            first,
            passes.begin_s,
            passes.layer_s,
            passes.redone_s,
            passes.end_s,
            passes.hop_s,
            np.array([*passes.gather_s, *passes.reduce_s, *passes.across_s]),
            passes.reduce_ends_s,
            reduces,
            zero == SHARDED,
            overlaps,
            ends,
            arrivals,
        )
        last = division.placement.last_rank
        if ties:
            ends[0] = ends[last] = max(ends[0], ends[last])
        ends += passes.update_s
        after = float(ends.max())
    return after - before


@cache
def _function() -> Any:
    """The recurrence, compiled where numba is installed."""
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
    """Follow all passes; `ends` has when each rank begins, and then when it has reduced all gradients.

    `reduces` is the pass that reduces gradients layer by layer under ZeRO 2; 0: none.
    """
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


# From the prices of layouts to the passes of each.


def closer_steps_s(
    job: Job, columns: Columns, topology: FatTree, costs: Costs, *, updates: bool = True
) -> Floats:
    """Step time of every layout by the longest path over its passes, shape (rows,)."""
    seconds = np.empty(len(columns))
    passes = Passes(job, columns, topology, costs)
    replicas = OverReplicas(job, columns, topology, costs)
    for rows, some in columns.blocks():
        steps = Steps(job, some, rows, passes, replicas)
        rest = _Rest.of(steps, updates=updates)
        for number, row in enumerate(rows.tolist()):
            seconds[row] = _row_s(job, steps, rest, number, topology.devices_per_node)
    return seconds


class _Rest(NamedTuple):
    """What the recurrence does not follow, shape (rows,) each."""

    reduced_s: Floats
    """Exposed reduction at the end of a step below ZeRO 2."""
    ends_s: Floats
    """From the end of all reductions to the next step."""
    ahead_s: Floats
    """Exposed gathers at the start of a step."""

    @classmethod
    def of(cls, steps: Steps, *, updates: bool) -> _Rest:
        columns = steps.columns
        replicas = steps.replicas
        times = steps.pass_times()
        completes = (times.backward_s + times.weights_s).max(axis=1)
        reduced_s = steps.reduction_s(columns.pipeline * completes)
        ends_s = replicas.gather + replicas.tie + (replicas.update if updates else 0.0)
        below = columns.zero < GRADIENTS_SHARDED
        return cls(np.where(below, reduced_s, 0.0), ends_s[:, 0], steps.gathered_ahead_s())


def _row_s(job: Job, steps: Steps, rest: _Rest, row: int, node: int) -> float:
    """The step of one layout."""
    columns = steps.columns
    division = columns.divisions[int(columns.division[row])]
    schedule = schedule_called(division.schedule)
    placement = division.placement
    of_kinds = steps.passes
    prices = _PassPrices(*(float(column[row, 0]) for column in steps.passes))  # of layers, the first kind's
    replicas = steps.replicas
    stages = placement.num_stages
    rank_of = np.array([placement.rank(number) for number in range(stages)])
    crosses = rank_of[1:] != rank_of[:-1]
    kinds = [*division.kinds] or [0] * sum(division.layers)
    layer_s = np.stack([of_kinds.forward[row], of_kinds.backward[row], of_kinds.weights[row]])[:, kinds]
    redone_s = of_kinds.recompute[row, kinds] * _redone(columns, division, row, len(kinds))
    begin_s = np.zeros((len(_PASSES), stages))
    begin_s[:WEIGHTS] = prices.begin
    begin_s[FORWARD, 1:] += crosses * prices.receive
    begin_s[BACKWARD, :-1] += crosses * prices.receive
    begin_s[FORWARD, 0] += prices.embedding_forward
    begin_s[BACKWARD:, -1] += prices.head_backward, prices.head_weights
    end_s = np.zeros((len(_PASSES), stages))
    end_s[FORWARD, -1] = prices.head_forward
    end_s[BACKWARD:, 0] = prices.embedding_backward, prices.embedding_weights
    # What compute loses next to messages, gathers and reductions.
    if division.pipeline > 1:
        halves = 2 if schedule.has("tight") and not schedule.has("splits_backward") else 1
        begin_s[:WEIGHTS] += 2 / halves * prices.send * float(steps.slower_send[row, 0])
    zero = int(columns.zero[row])
    gathered_s, gathered_ends_s, reduced_s, both_s, across_s, across_both_s = (
        float(getattr(replicas, name)[row, 0])
        for name in (
            "gather_layer",
            "gather_both",
            "reduce_layer",
            "reduce_both",
            "across_layer",
            "across_both",
        )
    )
    reduce_ends_s = np.zeros(stages)
    if zero == GRADIENTS_SHARDED:
        if stages == 1:
            reduce_ends_s[0] = both_s
        else:
            reduce_ends_s[[0, -1]] = replicas.reduce_embedding[row, 0], replicas.reduce_head[row, 0]
    if zero >= GRADIENTS_SHARDED and (steps.overlaps or zero == SHARDED):
        completes = WEIGHTS if schedule.has("splits_backward") else BACKWARD
        # A reduction begins with the layer below, whose rows are on their way to experts first.
        hidden_s = np.minimum(reduced_s, layer_s[completes])
        dispatched_s = np.minimum(hidden_s, steps.dispatched[row])
        layer_s[completes] += hidden_s * steps.slower_reduce[row]
        layer_s[completes] += dispatched_s * steps.slower_dispatch[row]
    if zero == SHARDED:
        layer_s[FORWARD] += np.minimum(gathered_s, layer_s[FORWARD]) * steps.slower_gather[row]
        layer_s[BACKWARD] += np.minimum(gathered_s, layer_s[BACKWARD]) * steps.slower_gather_backward[row]
    width = int(columns.tensor[row] * columns.replicas[row])
    apart = rank_of[1:] * width // node != rank_of[:-1] * width // node
    hop_s = np.where(crosses, steps.hops[row][apart.astype(int)], 0.0)
    stage_passes = StagePasses(
        begin_s,
        layer_s,
        redone_s,
        end_s,
        hop_s,
        (gathered_s, gathered_ends_s),
        (reduced_s, both_s),
        reduce_ends_s,
        (across_s, across_both_s),
        float(rest.reduced_s[row] + rest.ends_s[row]),
    )
    skewed = schedule.has("skewed")
    seconds = step_s(
        division,
        stage_passes,
        int(steps.microbatches[row]),
        zero,
        overlaps=steps.overlaps,
        steps=2 if skewed else 1,
        ties=skewed and job.model.tied_embeddings and placement.last_rank > 0,
    )
    return seconds + float(rest.ahead_s[row])


def _redone(columns: Columns, division: Division, row: int, count: int) -> Bools:
    """Which layers are recomputed: of every rank one in so many, from its first."""
    redone = np.zeros(count, dtype=np.bool_)
    if not columns.recompute[row]:
        return redone
    first = np.cumsum([0, *division.layers])
    first[-1] = count
    for places in division.placement.places:
        layers = np.concatenate([np.arange(first[place], first[place + 1]) for place in places])
        redone[layers[:: int(columns.recompute_every[row])]] = True
    return redone
