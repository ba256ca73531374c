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

from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ids, Ints
from perfsim.base.compiled import Compiled, Laid
from perfsim.base.limits import present_limits
from perfsim.costs.memory import shares_words
from perfsim.specs.recipe import Job
from perfsim.strategies.schedules import schedule_called
from perfsim.strategies.three_d.closed_form import Priced, Steps
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, IN_FLIGHT, SHARDED
from perfsim.strategies.three_d.division import kind_numbers

FORWARD = 0
BACKWARD = 1
WEIGHTS = 2
_SENT = 3
_CLOCKS = 8
"""Of every rank: of its three streams, from `_SENT` on of messages in two directions, then of reductions."""
_PASSES = {"F": FORWARD, "B": BACKWARD, "W": WEIGHTS}
REPEATS_AFTER = 4
"""Micro-batches after which they repeat, as multiples of the pipeline."""


def path_steps_s(priced: Priced, chosen: Ints) -> Floats:
    """Step time of chosen layouts, with an update on the devices, shape (chosen,)."""
    seconds = np.empty(len(chosen))
    for places, steps in priced.steps(chosen):
        prices = steps.replicas
        update_s = (prices.gather + prices.tie + prices.norm + prices.update)[:, 0]
        # Below ZeRO 2 the closed form has what is exposed of the reduction at the end of a step.
        _, backward_s, weights_s = steps.pass_times()
        reduction_s = steps.reduction_s(backward_s + weights_s)
        update_s += np.where(steps.columns.zero_stage < GRADIENTS_SHARDED, reduction_s, 0.0)
        passes = Laid(_PassSeconds.of(priced.job, steps, priced.topology.devices_per_node))
        paths_s = [
            _step_s(priced.job, steps, passes, row, end_s) for row, end_s in enumerate(update_s.tolist())
        ]
        seconds[places] = paths_s + steps.gathered_ahead_s()
    return seconds


class _PassSeconds(NamedTuple):
    """Seconds of the passes of layouts; virtual stages and layers are in the order of the forward.

    Layouts with fewer stages repeat their last one, without layers.
    """

    rank: Ints
    """The rank of every stage, shape (rows, stages)."""
    first: Ints
    """The first layer of every stage, and the count of all, shape (rows, stages + 1)."""
    begin_s: Floats
    """Of every pass and stage before its layers, shape (rows, 3, stages)."""
    layer_s: Floats
    """Of every pass and layer, without what is recomputed, shape (rows, 3, layers)."""
    hidden_s: Floats
    """By which each of two joined passes is shorter, shape (rows, layers)."""
    redone_s: Floats
    """Recomputed before the backward of every layer."""
    end_s: Floats
    """Of every pass and stage after its layers, shape (rows, 3, stages)."""
    hop_s: Floats
    """The message from every stage to the next; 0 on one rank."""
    replica_s: Floats
    """Gathering a layer, and embedding with LM head; reducing both; summing both over groups that shard."""
    reduce_ends_s: Floats
    """Reducing the gradients of embedding and LM head of every stage under ZeRO 2."""

    @classmethod
    def of(cls, job: Job, steps: Steps, node: int) -> _PassSeconds:
        """The passes of layouts on nodes of `node` devices."""
        columns = steps.columns
        prices = steps.passes
        replicas = steps.replicas
        every = np.arange(len(columns))
        kinds = np.array(kind_numbers(job.model) or (0,) * job.model.num_layers)
        used, of_row = np.unique(columns.division, return_inverse=True)
        divisions = [columns.divisions[number] for number in used.tolist()]
        most = max(len(each.stages) for each in divisions)

        def padded(of_stages: list[list[int]], width: int) -> Ints:
            return np.array([[*row, *row[-1:] * (width - len(row))] for row in of_stages])[of_row]

        rank = padded([[*map(each.placement.rank, range(len(each.stages)))] for each in divisions], most)
        ends = [[0, *(stage.stop for stage in each.stages)] for each in divisions]
        first = padded(ends, most + 1)
        last = columns.pipeline * columns.virtual - 1
        split = columns.of_schedules("splits_backward")
        completes = np.where(split, WEIGHTS, BACKWARD)

        layer_s = np.stack([prices.forward, prices.backward, prices.weights], axis=1).take(kinds, axis=2)
        zero = columns.zero_stage[:, None]
        # A reduction begins with the layer below, whose rows are on their way to experts first.
        reduces = (zero == SHARDED) | ((zero == GRADIENTS_SHARDED) & steps.overlaps)
        hidden_s = np.where(reduces, np.minimum(replicas.reduce_layer, layer_s[every, completes]), 0.0)
        layer_s[every, completes] += hidden_s * steps.slower_reduce
        layer_s[every, completes] += np.minimum(hidden_s, steps.dispatched) * steps.slower_dispatch
        gather_s = np.where(zero == SHARDED, replicas.gather_layer, 0.0)
        for which, slower in ((FORWARD, steps.slower_gather), (BACKWARD, steps.slower_gather_backward)):
            layer_s[:, which] += np.minimum(gather_s, layer_s[:, which]) * slower

        crosses = rank[:, 1:] != rank[:, :-1]
        node_of = rank * (columns.tensor * columns.replicas)[:, None] // node
        apart = node_of[:, 1:] != node_of[:, :-1]
        begin_s = np.zeros((len(every), len(_PASSES), most))
        begin_s[:, :WEIGHTS] = prices.begin[:, :, None]
        begin_s[:, FORWARD, 1:] += crosses * prices.receive
        begin_s[:, BACKWARD, :-1] += crosses * prices.receive
        begin_s[:, FORWARD, 0] += prices.embedding_forward[:, 0]
        begin_s[every, BACKWARD, last] += prices.head_backward[:, 0]
        begin_s[every, WEIGHTS, last] += prices.head_weights[:, 0]
        # A pass sends and receives a tensor; in a tight pipeline it waits for one of them.
        messages = np.where(columns.of_schedules("tight") & ~split, 1, 2) * (columns.pipeline > 1)
        begin_s[:, :WEIGHTS] += (messages[:, None] * prices.send * steps.slower_send)[:, :, None]
        end_s = np.zeros_like(begin_s)
        end_s[every, FORWARD, last] = prices.head_forward[:, 0]
        end_s[:, BACKWARD, 0] = prices.embedding_backward[:, 0]
        end_s[:, WEIGHTS, 0] = prices.embedding_weights[:, 0]
        reduce_ends_s = np.zeros((len(every), most))
        scatters = columns.zero_stage == GRADIENTS_SHARDED
        for stage, alone in ((0, replicas.reduce_embedding), (last, replicas.reduce_head)):
            ends_s = np.where(last == 0, replicas.reduce_both[:, 0], alone[:, 0])
            reduce_ends_s[every, stage] = np.where(scatters, ends_s, 0.0)
        names = ("gather_layer", "gather_both", "reduce_layer", "reduce_both", "across_layer", "across_both")
        return cls(
            rank,
            first,
            begin_s,
            layer_s,
            steps.hidden_s.take(kinds, axis=1),
            prices.recompute[:, kinds] * columns.recomputed(),
            end_s,
            np.where(crosses, steps.hops[every[:, None], apart.astype(np.int64)], 0.0),
            np.concatenate([getattr(replicas, name) for name in names], axis=1),
            reduce_ends_s,
        )


def _step_s(job: Job, steps: Steps, passes: Laid, row: int, update_s: float) -> float:
    """Seconds of a step of the layout in a row; on every rank an update of `update_s` follows reductions."""
    present_limits().in_time(lambda: "the passes of layouts were being followed")
    columns = steps.columns
    division = columns.divisions[int(columns.division[row])]
    schedule = schedule_called(division.schedule)
    zero = int(columns.zero_stage[row])
    reduces = 0
    if zero == GRADIENTS_SHARDED:
        reduces = WEIGHTS if schedule.has("splits_backward") else BACKWARD
    how = row, reduces, int(zero == SHARDED), int(steps.overlaps)
    # A skewed schedule is in its steady state with the second step. In it the first and the last rank wait
    # for each other's gradient of the embedding.
    skewed = schedule.has("skewed")
    last_rank = division.placement.last_rank
    ties = skewed and shares_words(job.model) and last_rank > 0

    def followed_s(microbatches: int) -> float:
        """Seconds of the last of some steps, all passes followed."""
        order = _order(division.schedule, division.pipeline, division.virtual, microbatches)
        start, *_, shape = order.value
        ends = np.zeros(division.pipeline)
        before_s = after_s = 0.0
        for _ in range(2 if skewed else 1):
            before_s = after_s
            reached = start[:-1].copy()
            clocks = np.zeros((_CLOCKS, len(ends)))
            clocks[:_SENT] = ends
            _follow(order, passes, how, reached, clocks, np.full(shape, -1.0))
            ends = clocks[:_SENT].max(axis=0)
            if (reached < start[1:]).any():
                schedule.merged(division.pipeline, division.virtual, microbatches)  # raises
            if ties:
                ends[0] = ends[last_rank] = max(ends[0], ends[last_rank])
            ends += update_s
            after_s = float(ends.max())
        return after_s - before_s

    microbatches = int(steps.microbatches[row])
    period = 2 * division.pipeline
    fewer = REPEATS_AFTER * division.pipeline + microbatches % period
    if microbatches <= fewer + period:
        return followed_s(microbatches)
    short_s = followed_s(fewer)
    return short_s + (microbatches - fewer) / period * (followed_s(fewer + period) - short_s)


@lru_cache(maxsize=4096)
def _order(schedule: str, pipeline: int, virtual: int, microbatches: int) -> Laid:
    """The passes of a step, rank by rank in the order of each, as `_follow` takes them.

    The first pass of every rank and the count of all; pass, virtual stage and micro-batch of each, and
    whether it is joined to another; and the shape of a table of all passes, virtual stages and
    micro-batches.
    """
    row = schedule_called(schedule)
    # To check orders whole, as those that are simulated are, takes as long as to make them.
    orders = [row.order(rank, pipeline, virtual, microbatches) for rank in range(pipeline)]
    placement = row.placement(pipeline, virtual)
    which, *columns = zip(*chain.from_iterable(orders), strict=True)
    passes = np.fromiter(map(_PASSES.__getitem__, which), np.int32, len(which))
    rank, chunk, microbatch, joined = (np.fromiter(column, np.int32, len(which)) for column in columns)
    if chunk.max() >= virtual or microbatch.min() < 0 or microbatch.max() >= microbatches:
        row.orders(pipeline, virtual, microbatches)  # raises
    joined[1:] += joined[:-1]
    stage = np.array(placement.stages, dtype=np.int32)[rank, chunk]
    start = np.cumsum([0, *map(len, orders)], dtype=np.int32)
    shape = len(_PASSES), placement.num_stages, microbatches
    return Laid((start, passes, stage, microbatch, joined, shape))


@Compiled
def _follow(
    order: tuple[Any, ...],
    passes: _PassSeconds,
    how: tuple[int, int, int, int],
    reached: Ids,
    clocks: Floats,
    arrivals: Floats,
) -> None:
    """Follow all passes in an `_order` of them that can begin.

    `how` says the row of `passes`, which pass reduces layers (0: none) under ZeRO 2, whether parameters are
    sharded, and whether reductions overlap. `reached` is the next pass of every rank; `clocks` are named
    below, and the first three begin when their rank does. `arrivals` is when the
    output of every pass arrives where it is read; below 0: not yet.
    """
    start, which, stage, microbatch, joined, shape = order
    row, reduces, sharded, overlaps = how
    first = passes.first[row]
    begin_s = passes.begin_s[row]
    layer_s = passes.layer_s[row]
    hidden_s = passes.hidden_s[row]
    redone_s = passes.redone_s[row]
    end_s = passes.end_s[row]
    hop_s = passes.hop_s[row]
    reduce_ends_s = passes.reduce_ends_s[row]
    gather_s, gather_ends_s, reduce_s, reduce_both_s, across_s, across_both_s = passes.replica_s[row]
    last = shape[1] - 1
    free = clocks[0]
    data = clocks[1]
    groups = clocks[2]
    sent = clocks[_SENT : _SENT + 2]
    # Of the latest pass that reduces: the end of its last layer's reduction, of the one before, and of all.
    # Under ZeRO 3 the first is the end of the last layer's forward.
    freed = clocks[_SENT + 2 :]
    proceeds = True
    while proceeds:
        proceeds = False
        for on in range(len(reached)):
            while reached[on] < start[on + 1]:
                kind = which[reached[on]]
                at = stage[reached[on]]
                batch = microbatch[reached[on]]
                read_s = 0.0
                if kind == WEIGHTS:
                    read_s = arrivals[BACKWARD, at, batch]
                elif kind == BACKWARD:
                    read_s = arrivals[BACKWARD, at + 1, batch] if at < last else arrivals[FORWARD, at, batch]
                elif at > 0:
                    read_s = arrivals[FORWARD, at - 1, batch]
                if joined[reached[on]] and kind == FORWARD:  # it begins with the backward behind it
                    behind = stage[reached[on] + 1]
                    other = microbatch[reached[on] + 1]
                    of_loss = behind == last
                    other_s = arrivals[FORWARD if of_loss else BACKWARD, behind + 1 - of_loss, other]
                    read_s = min(read_s, other_s) if min(read_s, other_s) < 0.0 else max(read_s, other_s)
                if read_s < 0.0:
                    break
                starts_s = begin_s[kind, at]
                if joined[reached[on]]:
                    for layer in range(first[at], first[at + 1]):
                        starts_s -= hidden_s[layer]
                reached[on] += 1
                proceeds = True
                low = first[at]
                high = first[at + 1]
                now = max(free[on], read_s)
                if sharded and kind == FORWARD:
                    data[on] += gather_ends_s
                    now = max(now, data[on]) + starts_s
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
                    now += starts_s
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
                    now += starts_s
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
                        if reduce_ends_s[at] > 0.0:
                            data[on] = max(data[on], now) + reduce_ends_s[at]
                        freed[0, on] = latest if high > low else data[on]
                        freed[1, on] = before if high > low + 1 else data[on]
                        freed[2, on] = data[on]
                    else:
                        now += reduce_ends_s[at]
                else:
                    now += starts_s + end_s[kind, at]
                    for layer in range(low, high):
                        now += layer_s[kind, layer]
                        if kind == BACKWARD:
                            now += redone_s[layer]
                free[on] = now
                if (kind == FORWARD and at < last) or (kind == BACKWARD and at > 0):
                    message_s = hop_s[at - kind]
                    if message_s > 0.0:
                        now = max(now, sent[kind, on]) + message_s
                        sent[kind, on] = now
                arrivals[kind, at, batch] = now
