"""A closed form of a pipelined step in columns, to screen layouts; the best are then simulated.

With m micro-batches and t = f + b + w, the passes of one micro-batch on a rank:

    step = m pace + bubble of the schedule (see `schedules/`)
           + exposed gradient reduction + tied embedding + optimizer

The pace is the largest t of a rank, or what neighbours with transfers between them need (`_pace_of_pairs`).
It omits effects that need simulation: imbalance during warm-up, contention.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.costs.price import MOST_TAKEN, NONE, Costs
from perfsim.network import FatTree
from perfsim.specs.recipe import Job
from perfsim.strategies.schedules import PacedRanks, PassTimes, schedule_called
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, IN_FLIGHT, SHARDED, Replicas
from perfsim.strategies.three_d.division import RankColumns
from perfsim.strategies.three_d.memory import SliceBytes, recomputed_layers, slice_bytes
from perfsim.strategies.three_d.prices import (
    DataPrices,
    EndPrices,
    Largest,
    LayerPrices,
    Passes,
    PassPrices,
    Slices,
    Terms,
    data_prices,
    largest_ranks,
    slices_of,
    straddling_stage,
)
from perfsim.strategies.three_d.space import Columns, blocks_of, distinct_rows, taken
from perfsim.work import RankGroup

# How much compute loses while communication runs beside it, in columns.
#
# While a communication that takes shares u and h of a device runs, compute of which compute units limit a
# share c of the time and memory bandwidth a share m progresses at rate 1 / (1 + g), with g = c u / (1 - u) +
# m h / (1 - h), as in the simulation (`engine/beside.py`). Each hidden second costs g / (1 + g) seconds.


class _Slowdowns(NamedTuple):
    """Seconds that compute loses for each second of a communication hidden beside it, shape (rows, 1)."""

    gather_forward: Floats
    gather_backward: Floats
    reduce_backward: Floats
    send: Floats
    """Beside a message between pipeline ranks."""


class _Beside:
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

    def of(self, of_slice: Ints, of_state: Ints, passes: PassPrices) -> _Slowdowns:
        """The slowdowns of some layouts, given their passes."""
        forward = self._layer[0].take(of_slice, axis=0) / passes.forward[:, -1:]
        backward_s = (passes.backward + passes.weights)[:, -1:]
        backward = self._layer[1].take(of_slice, axis=0) / backward_s
        gather, reduce = (taken.take(of_state, axis=0) for taken in (self._gather, self._reduce))
        return _Slowdowns(
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
    gather = []
    reduce = []
    for row in first.tolist():
        tensor = int(columns.tensor[row])
        data = int(columns.replicas[row])
        zero = int(columns.zero[row])
        group = RankGroup(int(stage[row]) * tensor * data, tensor, data)
        replicas = Replicas(job.recipe, group, "", 0.0, zero, int(columns.shards[row]))
        layer = float(sizes.layer[row, -1])
        gather.append(costs.taken(replicas.gather_work(layer)) if data > 1 else NONE)
        bucket = layer * int(largest.bucket[row])
        reduce.append(costs.taken(replicas.reduce_work(bucket)) if data > 1 else NONE)
    gathers, reduces = (np.array(shares, dtype=np.float64).reshape(-1, 2) for shares in (gather, reduce))
    return gathers[of_row], reduces[of_row]


_TINY_S = 1e-30
_TIE = 1e-12


def estimate_steps_s(
    job: Job, columns: Columns, topology: FatTree, costs: Costs, *, updates: bool = True
) -> Floats:
    """Step time of every layout by the formula above, shape (rows,); `updates`: with its update."""
    slices = slices_of(columns)
    first, of_state = distinct_rows(columns.state_keys)
    states = columns.rows(first)
    sizes = slice_bytes(job, states)
    largest = largest_ranks(job, states, sizes)
    replicas = data_prices(job, states, topology, largest, sizes, costs.durations_s)
    if not updates:
        replicas = replicas._replace(update=np.zeros_like(replicas.update))
    passes = Passes(job, slices, topology, costs.durations_s)
    beside = _Beside(job, topology, costs, slices, passes, states, sizes, largest)
    alike = columns.alike()
    seconds = np.empty(len(columns), dtype=np.float64)
    for block in blocks_of(len(columns)):
        rows = alike[block]
        some = columns.rows(rows)
        of_slice = slices.of_row[rows]
        state = of_state[rows]
        priced = passes.of(some, of_slice)
        slower = beside.of(of_slice, state, priced)
        seconds[rows] = _steps_s(job, some, taken(largest, state), priced, taken(replicas, state), slower)
    return seconds


def _steps_s(
    job: Job,
    columns: Columns,
    largest: Largest,
    passes: PassPrices,
    replicas: DataPrices,
    slower: _Slowdowns,
) -> Floats:
    ranks = columns.ranks()
    computed = _pass_times(columns, ranks, passes, replicas, slower)
    waits = _waits_for_buffers(job, columns, ranks, computed, passes, replicas)
    lost_s = _lost_beside_reductions(job, columns, ranks, computed, waits.steady_s, replicas, slower)
    wait_s = waits.steady_s + lost_s
    split = columns.of_schedules("splits_backward")[:, None]
    # The pass that completes gradients is longer by the wait.
    times = computed._replace(
        backward_s=computed.backward_s + np.where(split, 0.0, wait_s),
        weights_s=computed.weights_s + np.where(split, wait_s, 0.0),
    )
    sends = _send_times(columns, ranks, passes)
    microbatches = columns.microbatches(job)
    tied = np.logical_and(job.model.tied_embeddings, columns.last_rank > 0)
    total_s = times.total_s
    # Of ranks that take as long but for rounding the first, however prices were added up.
    slowest = np.argmax(total_s >= (1.0 - _TIE) * total_s.max(axis=1, keepdims=True), axis=1)[:, None]
    slowest_times = PassTimes(*(np.take_along_axis(part, slowest, axis=1)[:, 0] for part in times))
    steady_wait, bare_wait = (np.take_along_axis(part, slowest, axis=1)[:, 0] for part in waits)
    others = PassTimes(
        *(
            (ranks.number * (busy + sent)).sum(axis=1) - part
            for busy, sent, part in zip(times, sends, slowest_times, strict=True)
        )
    )
    tight = columns.of_schedules("tight")
    # A pass outside a tight pipeline gathers its input over the tensor group first.
    gathered_s = np.where(tight, 0.0, 2 * columns.virtual * passes.receive[:, 0])
    pace = slowest_times.total_s + gathered_s
    pace = np.maximum(pace, _pace_of_pairs(columns, ranks, times, passes))
    # A rank sends and receives a tensor in every pass; in a tight pipeline it waits for half of them.
    beside_s = 4 * columns.virtual * (passes.send * slower.send)[:, 0]
    beside_s = np.where(tight & ~split[:, 0], beside_s / 2, beside_s)
    pace = pace + np.where(columns.pipeline > 1, beside_s, 0.0)
    bare = _bare_microbatches(columns, microbatches)
    sent = sum(part.max(axis=1) for part in sends)
    seconds = (microbatches - bare) * pace + bare * (slowest_times.total_s + sent + bare_wait - steady_wait)
    # The last rank ends a step with weight gradients that wait for each other's reductions.
    delayed = _delayed_weights(columns, microbatches) * (bare_wait - steady_wait)
    for name, rows in columns.by_schedule.items():
        paced = PacedRanks(slowest_times.of(rows), others.of(rows), columns.pipeline[rows])
        schedule = schedule_called(name)
        together = tied[rows] | (not schedule.has("skewed"))
        bubble = schedule.bubble_s(paced, columns.virtual[rows], microbatches[rows], together)
        late = np.where(together, paced.others.forward_s / columns.virtual[rows], 0.0)
        seconds[rows] += np.where(delayed[rows] > 0, np.maximum(bubble, late + delayed[rows]), bubble)
    last_group_s = columns.pipeline * (slowest_times.backward_s + slowest_times.weights_s)
    reduced = _reduction_s(job, columns, largest, passes, replicas, slower, last_group_s)
    last_wait = np.where(columns.virtual > 1, bare_wait, steady_wait) / columns.virtual
    # Under ZeRO 3 a step ends with the last sums over groups that shard.
    across = np.maximum(0.0, replicas.across_layer - replicas.reduce_both) + replicas.across_both
    reduced = np.maximum(0.0, reduced - last_wait) + across[:, 0]
    ends = (replicas.tie + replicas.update + replicas.gather)[:, 0]
    return np.asarray(seconds + reduced + ends + _gathered_ahead_s(largest, passes, replicas))


def _gathered_ahead_s(largest: Largest, passes: PassPrices, replicas: DataPrices) -> Floats:
    """Exposed gathers of parameters at the start of a step, shape (rows,): embedding and first bucket.

    Later buckets hide behind the forward of a bucket each, as far as that takes as long.
    """
    bucket = replicas.ahead_bucket[:, 0]
    buckets = np.maximum(1, -(-largest.chunk // np.maximum(1, largest.bucket)))
    forward = np.minimum(largest.bucket, largest.chunk) * passes.forward[:, -1]
    later = np.where(bucket > 0, (buckets - 1) * np.maximum(0.0, bucket - forward), 0.0)
    return np.asarray(replicas.ahead_ends[:, 0] + bucket + later)


def _bare_microbatches(columns: Columns, microbatches: Ints) -> Floats:
    """Micro-batches whose forwards have no backward beside them in which their transfers could hide.

    An interleaved rank fills its pipeline with (v - 1) p chunks of forwards; where there is one group of
    micro-batches all forwards run first. A rank's next chunk then waits for the same micro-batch to come
    around.
    """
    pipeline = columns.pipeline
    virtual = columns.virtual
    filling = np.minimum(microbatches, (virtual - 1) * pipeline / virtual)
    bare = np.where(microbatches == pipeline, microbatches, filling)
    return np.where((virtual > 1) & ~columns.of_schedules("v_shaped"), bare, 0.0)


def _delayed_weights(columns: Columns, microbatches: Ints) -> Ints:
    """Micro-batches whose weight gradients the last rank computes in a row, at the end of a step."""
    fills = np.where(columns.of_schedules("skewed") & ~columns.of_schedules("v_shaped"), 2, 1)
    delayed = np.minimum(fills * (columns.pipeline - 1), microbatches - 1)
    return np.where(columns.of_schedules("splits_backward"), delayed, 0)


def _pass_times(
    columns: Columns, ranks: RankColumns, passes: PassPrices, replicas: DataPrices, slower: _Slowdowns
) -> PassTimes:
    """Seconds of one micro-batch through all chunks of every rank, shape (rows, ranks) each.

    Under ZeRO 3 compute and communication overlap, so the longer of the two counts, compute with what it
    loses beside communication; the gather of embedding and LM head and of the first layer is exposed, and
    so are the last reductions. Sums over groups that shard have a stream of their own.
    """
    begin = columns.virtual[:, None] * passes.begin
    forward = begin + ranks.sum_of(passes.forward)
    forward += ranks.first * passes.embedding_forward + ranks.last * passes.head_forward
    redone = recomputed_layers(columns, ranks) / np.maximum(1, ranks.layers)
    backward = begin + ranks.sum_of(passes.backward) + redone * ranks.sum_of(passes.recompute)
    backward += ranks.first * passes.embedding_backward + ranks.last * passes.head_backward
    weights = ranks.sum_of(passes.weights)
    weights += ranks.first * passes.embedding_weights + ranks.last * passes.head_weights
    zero = columns.zero[:, None]
    if not np.any(zero == SHARDED):
        return PassTimes(forward, backward, weights)
    scattered = _scattered_s(ranks, replicas)
    gathered = ranks.layers * replicas.gather_layer
    hidden = np.minimum(gathered - replicas.gather_layer, forward)
    slowed_forward = forward + hidden * slower.gather_forward
    sharded_forward = replicas.gather_both + np.maximum(gathered, replicas.gather_layer + slowed_forward)
    across = ranks.layers * replicas.across_layer + replicas.across_both
    last_reduced = replicas.reduce_layer + replicas.reduce_both
    both = np.maximum(gathered + scattered, _TINY_S)
    hidden = np.minimum(np.maximum(0.0, both - last_reduced), backward)
    lost = (gathered * slower.gather_backward + scattered * slower.reduce_backward) / both
    sharded_backward = np.maximum(gathered + scattered, backward + hidden * lost + last_reduced)
    sharded_backward = np.maximum(sharded_backward, across - sharded_forward)
    return PassTimes(
        np.where(zero == SHARDED, sharded_forward, forward),
        np.where(zero == SHARDED, sharded_backward, backward),
        weights,
    )


def _lost_beside_reductions(
    job: Job,
    columns: Columns,
    ranks: RankColumns,
    times: PassTimes,
    wait_s: Floats,
    replicas: DataPrices,
    slower: _Slowdowns,
) -> Floats:
    """Seconds of one micro-batch that backwards lose beside the reductions of ZeRO 2, shape (rows, ranks).

    A backward that waits for buffers waits less when it computes more slowly.
    """
    sharded = (columns.zero[:, None] == GRADIENTS_SHARDED) & job.runtime.overlap_grad_reduce
    if not sharded.any():
        return np.zeros(wait_s.shape)
    hidden = np.minimum(np.maximum(0.0, _scattered_s(ranks, replicas) - wait_s), times.total_s)
    return np.where(sharded, np.maximum(0.0, hidden * slower.reduce_backward - wait_s), 0.0)


class _BufferWaits(NamedTuple):
    """Seconds of one micro-batch that last passes wait for ZeRO 2's reductions, shape (rows, ranks)."""

    steady_s: Floats
    """With the schedule's other passes between last passes."""
    bare_s: Floats
    """With nothing between them."""


def _waits_for_buffers(
    job: Job,
    columns: Columns,
    ranks: RankColumns,
    times: PassTimes,
    passes: PassPrices,
    replicas: DataPrices,
) -> _BufferWaits:
    """Waits for the buffers of ZeRO 2's gradients.

    A chunk computes the gradients of L layers in w each; a layer is reduced in r while others are computed,
    and `IN_FLIGHT` layers have buffers. With f of other passes between and c of recompute in a layer, a chunk
    takes the longest of f + L (c + w), f + c + 2 w + (L - 2) r and L r. A pass of one layer waits for the
    reduction of the pass before it: w + max(f + c, r).
    """
    sharded = columns.zero[:, None] == GRADIENTS_SHARDED
    if not sharded.any():
        return _BufferWaits(np.zeros(ranks.layers.shape), np.zeros(ranks.layers.shape))
    virtual = columns.virtual[:, None]
    reduce = replicas.reduce_layer
    split = columns.of_schedules("splits_backward")[:, None]
    layers = np.maximum(1, ranks.layers)
    redone = recomputed_layers(columns, ranks) / layers * ranks.sum_of(passes.recompute)
    busy = np.where(split, times.weights_s, times.backward_s - redone)
    redone = np.where(split, 0.0, redone)
    layer = ranks.sum_of(np.where(split, passes.weights, passes.backward)) / layers
    ends = busy - ranks.layers * layer
    ends_reduced = _ends_scattered_s(ranks, replicas)
    scattered = ranks.layers * reduce + ends_reduced
    layers = ranks.layers / virtual
    ones = np.clip(2.0 - layers, 0.0, 1.0)

    def wait(other: Floats) -> Floats:
        if not job.runtime.overlap_grad_reduce:
            return np.where(sharded, scattered, 0.0)
        first = redone / np.maximum(1.0, layers) + 2 * virtual * layer + ends
        chained = other + first + (ranks.layers - IN_FLIGHT * virtual) * reduce
        reduced = scattered + np.where(ranks.last, ends + layer, 0.0)
        several = np.maximum(0.0, np.maximum(chained, reduced) - other - redone - busy)
        beside = (other + redone) / virtual
        single = (virtual - 1) * np.maximum(0.0, reduce - beside)
        single += np.maximum(0.0, reduce + ends_reduced - beside)
        return np.where(sharded, ones * single + (1.0 - ones) * several, 0.0)

    alternates = (columns.microbatches(job) > columns.pipeline) & ~columns.of_schedules("forwards_first")
    other = times.forward_s + np.where(split, times.backward_s, 0.0)
    return _BufferWaits(wait(np.where(alternates[:, None], other, 0.0)), wait(np.zeros_like(other)))


def _send_times(columns: Columns, ranks: RankColumns, passes: PassPrices) -> PassTimes:
    """Seconds that the tensors of one micro-batch take to and from the neighbours of every rank."""
    virtual = columns.virtual[:, None]
    pipeline = columns.pipeline[:, None]
    # In a V both chunks of the last rank are neighbours.
    turns = columns.of_schedules("v_shaped")[:, None] & (ranks.rank == pipeline - 1)
    upstream = np.where(pipeline > 1, virtual - ranks.first - turns, 0)
    downstream = np.where(pipeline > 1, virtual - ranks.last - turns, 0)
    forward = upstream * passes.receive + downstream * passes.send
    return PassTimes(forward, downstream * passes.receive + upstream * passes.send, np.zeros(forward.shape))


def _pace_of_pairs(columns: Columns, ranks: RankColumns, times: PassTimes, passes: PassPrices) -> Floats:
    """Seconds per micro-batch that neighbours in a tight pipeline need, shape (rows,); 0 in others.

    In the steady state of 1F1B a rank's next forward waits for a backward of its neighbour: two micro-batches
    take the passes of both ranks and a transfer each way, less the weight gradients of one, which fill the
    wait where they are a pass of their own.
    """
    exposed = np.maximum(0.0, passes.farthest_send + passes.receive - times.weights_s / 2)
    busy = times.total_s
    alike = np.where(ranks.number > 1, busy + exposed, 0.0)
    exist = ranks.number[:, 1:] > 0
    neighbours = np.where(exist, (busy[:, 1:] + busy[:, :-1]) / 2 + exposed[:, 1:], 0.0)
    pace = np.concatenate([alike, neighbours], axis=1).max(axis=1)
    return np.where(columns.of_schedules("tight"), pace, 0.0)


def _scattered_s(ranks: RankColumns, replicas: DataPrices) -> Floats:
    """Seconds to reduce-scatter all gradients of one micro-batch, layer by layer."""
    return np.asarray(ranks.layers * replicas.reduce_layer + _ends_scattered_s(ranks, replicas))


def _ends_scattered_s(ranks: RankColumns, replicas: DataPrices) -> Floats:
    """Seconds to reduce-scatter the gradients of embedding and LM head where a rank holds them."""
    both = np.where(ranks.first & ranks.last, replicas.reduce_both, 0.0)
    embedding = np.where(ranks.first & ~ranks.last, replicas.reduce_embedding, 0.0)
    return both + embedding + np.where(ranks.last & ~ranks.first, replicas.reduce_head, 0.0)


def _reduction_s(
    job: Job,
    columns: Columns,
    largest: Largest,
    passes: PassPrices,
    replicas: DataPrices,
    slower: _Slowdowns,
    last_group_s: Floats,
) -> Floats:
    """Exposed gradient reduction: all of it, or what remains after the last backward; shape (rows,).

    What backwards lose beside the rest of it counts as well.

    With overlap, a bucket is reduced while earlier layers run backward. The gradients of embedding and LM
    head are complete only at the end, so their reduction is exposed. The chunks of an interleaved rank are
    complete one after the other during the backwards of the last `pipeline` micro-batches (`last_group_s`).
    """
    apart = (columns.replicas > 1) & (columns.zero < SHARDED)
    if not job.runtime.overlap_grad_reduce:
        return np.where(apart & (columns.zero < GRADIENTS_SHARDED), replicas.reduce[:, 0], 0.0)
    redone = np.where(columns.recompute > 0, 1 / columns.recompute_every, 0.0)
    split = columns.of_schedules("splits_backward")
    layer_s = passes.backward[:, -1] + redone * passes.recompute[:, -1]
    layer_s = np.where(split, passes.weights[:, -1], layer_s)
    full, rest = np.divmod(largest.chunk, largest.bucket)
    compute_s = largest.bucket * layer_s
    reduce_s = replicas.reduce_bucket[:, 0]
    reduced = np.where(compute_s >= reduce_s, full * compute_s + reduce_s, compute_s + full * reduce_s)
    reduced = np.where(full > 0, reduced, 0.0)
    computed = largest.chunk * layer_s
    after_rest = np.maximum(reduced, computed) + replicas.reduce_rest[:, 0]
    exposed = np.where(rest > 0, after_rest, reduced) - computed
    of_chunk = full * reduce_s + np.where(rest > 0, replicas.reduce_rest[:, 0], 0.0)
    of_all = of_chunk * largest.layers / np.maximum(1, largest.chunk)
    chunks = columns.virtual
    in_turn = np.minimum(compute_s, computed) + of_all - last_group_s * (chunks - 1) / chunks - computed
    in_turn = np.where(chunks > 1, in_turn, 0.0)
    exposed = np.where(columns.zero < GRADIENTS_SHARDED, np.maximum(exposed, in_turn), exposed)
    hidden = np.minimum(of_all - np.maximum(0.0, exposed), last_group_s)
    hidden = np.where(columns.zero < GRADIENTS_SHARDED, np.maximum(0.0, hidden), 0.0)
    lost = hidden * slower.reduce_backward[:, 0]
    # Where reductions take longer than compute, slower compute only hides more of them.
    last_s = np.where(rest > 0, replicas.reduce_rest[:, 0], reduce_s)
    exposed = np.maximum(exposed, np.minimum(exposed, last_s) + lost)
    return np.where(apart, replicas.reduce_ends[:, 0] + exposed, 0.0)
