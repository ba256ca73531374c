"""A closed form of a pipelined step in columns, to screen layouts; the best are then simulated.

With m micro-batches and t = f + b + w, the passes of one micro-batch on a rank:

    step = m pace + bubble of the schedule (see `schedules/`)
           + exposed gradient reduction + tied embedding + optimizer

The pace is the largest t of a rank, or what neighbours with transfers between them need (`_pace_of_pairs`).
It omits effects that need simulation: imbalance during warm-up, contention.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfsim.strategies.plan import Durations
from perfsim.strategies.schedules import PacedRanks, PassTimes, bubble_s, schedule_called
from perfsim.strategies.three_d.columns import Columns, blocks_of, taken
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED
from perfsim.strategies.three_d.division import RankColumns
from perfsim.strategies.three_d.memory import recomputed_layers, slice_bytes
from perfsim.strategies.three_d.prices import (
    DataPrices,
    Largest,
    PassPrices,
    data_prices,
    largest_ranks,
    pass_prices,
)
from perfsim.strategies.three_d.zero import IN_FLIGHT, SHARDED
from perfsim.topology import FatTree
from perfsim.workload import Job

Floats = NDArray[np.float64]


def estimate_steps_s(job: Job, columns: Columns, topology: FatTree, durations: Durations) -> Floats:
    """Step time of every layout by the formula above, shape (rows,)."""
    sizes = slice_bytes(job, columns)
    passes = pass_prices(job, columns, topology, durations)
    largest = largest_ranks(job, columns, sizes)
    replicas = data_prices(job, columns, largest, sizes, durations)
    seconds = np.empty(len(columns))
    for rows in blocks_of(len(columns)):
        prices = taken(passes, rows), taken(replicas, rows)
        seconds[rows] = _steps_s(job, columns.rows(rows), taken(largest, rows), *prices)
    return seconds


def _steps_s(
    job: Job, columns: Columns, largest: Largest, passes: PassPrices, replicas: DataPrices
) -> Floats:
    ranks = columns.ranks()
    times = _pass_times(job, columns, ranks, passes, replicas)
    sends = _send_times(columns, ranks, passes)
    microbatches = columns.microbatches(job)
    tied = np.logical_and(job.model.tied_embeddings, columns.last_rank > 0)
    slowest = np.argmax(times.total_s, axis=1)[:, None]
    slowest_times = PassTimes(*(np.take_along_axis(part, slowest, axis=1)[:, 0] for part in times))
    others = PassTimes(
        *(
            (ranks.number * (busy + sent)).sum(axis=1) - part
            for busy, sent, part in zip(times, sends, slowest_times, strict=True)
        )
    )
    hidden = np.where(columns.of_schedules("tight"), 0.0, 2 * columns.virtual * passes.summed[:, 0])
    pace = np.maximum(slowest_times.total_s - hidden, _pace_of_pairs(columns, ranks, times, passes))
    bare = _bare_microbatches(columns, microbatches)
    sent = sum(part.max(axis=1) for part in sends)
    seconds = (microbatches - bare) * pace + bare * (slowest_times.total_s + sent)
    for name, rows in columns.by_schedule.items():
        paced = PacedRanks(slowest_times.of(rows), others.of(rows), columns.pipeline[rows])
        together = tied[rows] | (not schedule_called(name).skewed)
        seconds[rows] += bubble_s(name, paced, columns.virtual[rows], microbatches[rows], together)
    reduced = _reduction_s(job, columns, largest, passes, replicas)
    return np.asarray(seconds + reduced + (replicas.tie + replicas.update + replicas.gather)[:, 0])


def _bare_microbatches(columns: Columns, microbatches: NDArray[np.int64]) -> Floats:
    """Micro-batches whose forwards have no backward beside them in which their transfers could hide.

    An interleaved rank fills its pipeline with (v - 1) p chunks of forwards; where there is one group of
    micro-batches all forwards run first. A rank's next chunk then waits for the same micro-batch to come
    around.
    """
    pipeline, virtual = columns.pipeline, columns.virtual
    filling = np.minimum(microbatches, (virtual - 1) * pipeline / virtual)
    bare = np.where(microbatches == pipeline, microbatches, filling)
    return np.where((virtual > 1) & ~columns.of_schedules("v_shaped"), bare, 0.0)


def _pass_times(
    job: Job, columns: Columns, ranks: RankColumns, passes: PassPrices, replicas: DataPrices
) -> PassTimes:
    """Seconds of one micro-batch through all chunks of every rank, shape (rows, ranks) each.

    Under ZeRO 3 compute and communication overlap, so the longer of the two counts; the gather of embedding
    and LM head and of the first layer is exposed, and so are the last reductions.
    """
    forward = ranks.layers * passes.forward
    forward += ranks.first * passes.embedding_forward + ranks.last * passes.head_forward
    backward = ranks.layers * passes.backward + recomputed_layers(columns, ranks) * passes.recompute
    backward += ranks.first * passes.embedding_backward + ranks.last * passes.head_backward
    weights = ranks.layers * passes.weights
    weights += ranks.first * passes.embedding_weights + ranks.last * passes.head_weights
    zero, scattered = columns.zero[:, None], _scattered_s(ranks, replicas)
    gathered = ranks.layers * replicas.gather_layer
    sharded_forward = replicas.gather_both + np.maximum(gathered, replicas.gather_layer + forward)
    last_reduced = replicas.reduce_layer + replicas.reduce_both
    sharded_backward = np.maximum(gathered + scattered, backward + last_reduced)
    split = columns.of_schedules("splits_backward")[:, None]
    last_pass = np.where(split, weights, backward)
    hidden = _hidden_reduction_s(job, columns, ranks, forward, last_pass, replicas)
    overlaps = job.recipe.overlap_grad_reduce
    exposed = np.maximum(0.0, scattered - hidden) if overlaps else scattered
    exposed = np.where(zero == GRADIENTS_SHARDED, exposed, 0.0)
    return PassTimes(
        np.where(zero == SHARDED, sharded_forward, forward),
        np.where(zero == SHARDED, sharded_backward, backward + np.where(split, 0.0, exposed)),
        weights + np.where(split, exposed, 0.0),
    )


def _hidden_reduction_s(
    job: Job, columns: Columns, ranks: RankColumns, forward: Floats, last_pass: Floats, replicas: DataPrices
) -> Floats:
    """Seconds of ZeRO 2's reductions of one micro-batch that run beside compute.

    A pass of several layers reduces one while it computes others; the buffers of the last ones are reduced
    beside the next forward. A pass of one layer waits for the reduction of the pass before. No reduction is
    beside a forward where all forwards run first.
    """
    alternates = (columns.microbatches(job) > columns.pipeline)[:, None]
    virtual = columns.virtual[:, None]
    several = ranks.layers >= 2 * virtual
    buffered = np.where(several, IN_FLIGHT, 1) * virtual * replicas.reduce_layer
    buffered = buffered + _ends_scattered_s(ranks, replicas)
    beside_forwards = np.where(alternates, np.minimum(forward, buffered), 0.0)
    return np.where(several, last_pass, 0.0) + beside_forwards


def _send_times(columns: Columns, ranks: RankColumns, passes: PassPrices) -> PassTimes:
    """Seconds that the tensors of one micro-batch take to and from the neighbours of every rank."""
    virtual, pipeline = columns.virtual[:, None], columns.pipeline[:, None]
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
    job: Job, columns: Columns, largest: Largest, passes: PassPrices, replicas: DataPrices
) -> Floats:
    """Exposed gradient reduction: all of it, or what remains after the last backward; shape (rows,).

    With overlap, a bucket is reduced while earlier layers run backward. The gradients of embedding and LM
    head are complete only at the end, so their reduction is exposed.
    """
    apart = (columns.data > 1) & (columns.zero < SHARDED)
    if not job.recipe.overlap_grad_reduce:
        return np.where(apart & (columns.zero < GRADIENTS_SHARDED), replicas.reduce[:, 0], 0.0)
    redone = np.where(columns.recompute > 0, 1 / columns.recompute_every, 0.0)
    layer_s = passes.last_pass[:, 0] + redone * passes.recompute_compute[:, 0]
    full, rest = np.divmod(largest.chunk, largest.bucket)
    compute_s, reduce_s = largest.bucket * layer_s, replicas.reduce_bucket[:, 0]
    reduced = np.where(compute_s >= reduce_s, full * compute_s + reduce_s, compute_s + full * reduce_s)
    reduced = np.where(full > 0, reduced, 0.0)
    computed = largest.chunk * layer_s
    after_rest = np.maximum(reduced, computed) + replicas.reduce_rest[:, 0]
    exposed = np.where(rest > 0, after_rest, reduced) - computed
    return np.where(apart, replicas.reduce_ends[:, 0] + exposed, 0.0)
