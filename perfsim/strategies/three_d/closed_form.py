"""A closed form of a pipelined step in columns, to screen layouts; the best are then simulated.

With m micro-batches and t = f + b + w, the passes of one micro-batch on a rank:

    step = m pace + bubble of the schedule (`schedules.py`)
           + exposed gradient reduction + tied embedding + optimizer

The pace is the largest t of a rank, or what neighbours with transfers between them need (`_pace_of_pairs`).
It omits effects that need simulation: imbalance during warm-up, contention.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.costs.price import MOST_TAKEN, Costs
from perfsim.network import FatTree
from perfsim.specs.recipe import Job
from perfsim.strategies.schedules import PacedRanks, PassTimes, Trait, schedule_called
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, IN_FLIGHT, SHARDED
from perfsim.strategies.three_d.prices import TINY_S, OverReplicas, Passes
from perfsim.strategies.three_d.space import Columns, taken

_TIE = 1e-12


def estimate_steps_s(job: Job, columns: Columns, topology: FatTree, costs: Costs, updates: bool) -> Floats:
    """Step time of every layout by the formula above, shape (rows,); `updates`: with its update."""
    if not len(columns):
        return np.zeros(0)
    passes = Passes(job, columns, topology, costs)
    replicas = OverReplicas(job, columns, topology, costs)
    seconds = np.empty(len(columns), dtype=np.float64)
    for rows, some in columns.blocks():
        steps = Steps(job, some, rows, passes, replicas)
        seconds[rows] = steps.seconds()
        if not updates:
            seconds[rows] -= steps.replicas.update[:, 0]
    return seconds


def _lost(taken: Floats, bound: Floats) -> Floats:
    """Seconds that compute loses per second of a communication hidden behind it, shape (rows, 1).

    While a communication that takes shares u and h of a device runs, compute of which compute units limit a
    share c of the time and memory bandwidth a share m progresses at rate 1 / (1 + g), with g = c u / (1 - u)
    + m h / (1 - h), as in the simulation (`engine/rules.py`). Each hidden second costs g / (1 + g) seconds.
    `taken` and `bound` have columns for units and memory bandwidth.
    """
    taken = np.minimum(taken, MOST_TAKEN)
    longer = (taken / (1.0 - taken) * bound).sum(axis=1, keepdims=True)
    return np.asarray(longer / (1.0 + longer))


def _delayed_weights(columns: Columns, microbatches: Ints) -> Ints:
    """Micro-batches whose weight gradients the last rank computes in a row, at the end of a step."""
    fills = np.where(columns.of_schedules("skewed") & ~columns.of_schedules("v_shaped"), 2, 1)
    delayed = np.minimum(fills * (columns.pipeline - 1), microbatches - 1)
    return np.where(columns.of_schedules("splits_backward"), delayed, 0)


class _BufferWaits(NamedTuple):
    """Seconds of one micro-batch that last passes wait for ZeRO 2's reductions, shape (rows, ranks)."""

    steady_s: Floats
    """With the schedule's other passes between last passes."""
    bare_s: Floats
    """With nothing between them."""


class Steps:
    """The steps of layouts that are estimated at once.

    Arrays are of shape (rows, ranks), with representative ranks (`RankColumns`), or (rows,).
    """

    def __init__(
        self, job: Job, columns: Columns, rows: Ints, passes: Passes, replicas: OverReplicas
    ) -> None:
        state = replicas.of_row[rows]
        self.columns = columns
        self.model = job.model
        self.overlaps = job.runtime.overlap_grad_reduce
        self.ranks = columns.ranks()
        self.microbatches = columns.microbatches(job)
        self.passes = passes.of(columns, rows)
        self.replicas = taken(replicas.prices, state)
        self.largest = taken(replicas.largest, state)
        gather, reduce = replicas.taken[:, state]
        forward, backward = passes.limits(self.passes, rows)
        self.slower_send = _lost(passes.sent[passes.of_row[rows]], (forward + backward) / 2)
        """Seconds that compute loses for each second of a message, a gather or a reduction next to it."""
        on_nics = passes.on_nics[passes.of_row[rows]].T[:, :, None]
        forward_on_nics, backward_on_nics, self.dispatched = on_nics
        # A message that shares NICs with a gather or a reduction takes twice as long next to it. Weight
        # gradients of their own pass have no messages.
        on_reduce = np.where(self._has("splits_backward"), 0.0, reduce[:, 2:])
        self.slower_gather = _lost(gather[:, :2], forward) + gather[:, 2:] * forward_on_nics
        self.slower_gather_backward = _lost(gather[:, :2], backward) + gather[:, 2:] * backward_on_nics
        self.slower_reduce = _lost(reduce[:, :2], backward) + on_reduce * backward_on_nics
        self.slower_dispatch = on_reduce * (1.0 - backward_on_nics)
        self.hops = passes.hops(rows)
        self.redone = columns.recomputed_layers(self.ranks) / np.maximum(1, self.ranks.layers)
        """Share of a rank's layers that are recomputed."""

    def _has(self, trait: Trait) -> Bools:
        """Whether schedules have a trait, shape (rows, 1)."""
        return self.columns.of_schedules(trait)[:, None]

    def seconds(self) -> Floats:
        """Seconds of every step, shape (rows,)."""
        columns = self.columns
        passes = self.passes
        replicas = self.replicas
        pipeline = columns.pipeline
        microbatches = self.microbatches
        computed = self.pass_times()
        waits = self._waits_for_buffers(computed)
        wait_s = waits.steady_s + self._lost_beside_reductions(computed, waits.steady_s)
        split = self._has("splits_backward")
        # The pass that completes gradients is longer by the wait.
        times = computed._replace(
            backward_s=computed.backward_s + np.where(split, 0.0, wait_s),
            weights_s=computed.weights_s + np.where(split, wait_s, 0.0),
        )
        sends = self._send_times()
        tied = np.logical_and(self.model.tied_embeddings, columns.last_rank > 0)
        total_s = times.total_s
        # Of ranks that take as long but for rounding the first, however prices were added up.
        slowest = np.argmax(total_s >= (1.0 - _TIE) * total_s.max(axis=1, keepdims=True), axis=1)[:, None]
        slowest_times = PassTimes(*(np.take_along_axis(part, slowest, axis=1)[:, 0] for part in times))
        steady_wait, bare_wait = (np.take_along_axis(part, slowest, axis=1)[:, 0] for part in waits)
        others = PassTimes(
            *(
                (self.ranks.number * (busy + sent)).sum(axis=1) - part
                for busy, sent, part in zip(times, sends, slowest_times, strict=True)
            )
        )
        tight = self._has("tight")[:, 0]
        # A pass outside a tight pipeline gathers its input over the tensor group first.
        gathered_s = np.where(tight, 0.0, 2 * columns.virtual * passes.receive[:, 0])
        pace = slowest_times.total_s + gathered_s
        pace = np.maximum(pace, self._pace_of_pairs(times))
        # A rank sends and receives a tensor in every pass; in a tight pipeline it waits for half of them.
        beside_s = 4 * columns.virtual * (passes.send * self.slower_send)[:, 0]
        beside_s = np.where(tight & ~split[:, 0], beside_s / 2, beside_s)
        pace = pace + np.where(pipeline > 1, beside_s, 0.0)
        bare = self._bare_microbatches()
        sent = sum(part.max(axis=1) for part in sends)
        seconds = (microbatches - bare) * pace
        seconds += bare * (slowest_times.total_s + sent + bare_wait - steady_wait)
        # The last rank ends a step with weight gradients that wait for each other's reductions.
        delayed = _delayed_weights(columns, microbatches) * (bare_wait - steady_wait)
        for name, rows in columns.by_schedule.items():
            paced = PacedRanks(slowest_times.of(rows), others.of(rows), pipeline[rows])
            schedule = schedule_called(name)
            together = tied[rows] | (not schedule.has("skewed"))
            bubble = schedule.bubble_s(paced, columns.virtual[rows], microbatches[rows], together)
            late = np.where(together, paced.others.forward_s / columns.virtual[rows], 0.0)
            seconds[rows] += np.where(delayed[rows] > 0, np.maximum(bubble, late + delayed[rows]), bubble)
        last_wait = np.where(columns.virtual > 1, bare_wait, steady_wait) / columns.virtual
        reduced = self.reduction_s(pipeline * (slowest_times.backward_s + slowest_times.weights_s))
        # Under ZeRO 3 a step ends with the last sums over groups that shard.
        across = np.maximum(0.0, replicas.across_layer - replicas.reduce_both) + replicas.across_both
        reduced = np.maximum(0.0, reduced - last_wait) + across[:, 0]
        ends = (replicas.tie + replicas.update + replicas.gather)[:, 0]
        return np.asarray(seconds + reduced + ends + self.gathered_ahead_s())

    # -------------------------------------------------------------------------------- passes
    def pass_times(self) -> PassTimes:
        """Seconds of one micro-batch through all chunks of every rank, shape (rows, ranks) each.

        Under ZeRO 3 compute and communication overlap, so the longer of the two counts; compute includes what
        it loses next to communication. The gathers of the embedding, the LM head and the first layer are
        exposed, and so are the last reductions. Sums over groups that shard have a stream of their own.
        """
        ranks = self.ranks
        passes = self.passes
        replicas = self.replicas
        begin = self.columns.virtual[:, None] * passes.begin
        forward = begin + ranks.sum_of(passes.forward)
        forward += ranks.first * passes.embedding_forward + ranks.last * passes.head_forward
        backward = begin + ranks.sum_of(passes.backward) + self.redone * ranks.sum_of(passes.recompute)
        backward += ranks.first * passes.embedding_backward + ranks.last * passes.head_backward
        weights = ranks.sum_of(passes.weights)
        weights += ranks.first * passes.embedding_weights + ranks.last * passes.head_weights
        sharded = self.columns.zero[:, None] == SHARDED
        if not sharded.any():
            return PassTimes(forward, backward, weights)
        scattered = self._scattered_s()
        gathered = ranks.layers * replicas.gather_layer
        hidden = np.minimum(gathered - replicas.gather_layer, forward)
        slowed_forward = forward + hidden * self.slower_gather
        sharded_forward = replicas.gather_both + np.maximum(gathered, replicas.gather_layer + slowed_forward)
        across = ranks.layers * replicas.across_layer + replicas.across_both
        last_reduced = replicas.reduce_layer + replicas.reduce_both
        both = np.maximum(gathered + scattered, TINY_S)
        hidden = np.minimum(np.maximum(0.0, both - last_reduced), backward)
        lost_s = (gathered * self.slower_gather_backward + scattered * self.slower_reduce) / both
        sharded_backward = np.maximum(gathered + scattered, backward + hidden * lost_s + last_reduced)
        sharded_backward = np.maximum(sharded_backward, across - sharded_forward)
        return PassTimes(
            np.where(sharded, sharded_forward, forward),
            np.where(sharded, sharded_backward, backward),
            weights,
        )

    def _lost_beside_reductions(self, times: PassTimes, wait_s: Floats) -> Floats:
        """Seconds that backwards lose next to ZeRO 2's reductions; slower ones wait less for buffers."""
        sharded = (self.columns.zero[:, None] == GRADIENTS_SHARDED) & self.overlaps
        if not sharded.any():
            return np.zeros(wait_s.shape)
        hidden = np.minimum(np.maximum(0.0, self._scattered_s() - wait_s), times.total_s)
        return np.where(sharded, np.maximum(0.0, hidden * self.slower_reduce - wait_s), 0.0)

    def _waits_for_buffers(self, times: PassTimes) -> _BufferWaits:
        """Waits for the buffers of ZeRO 2's gradients.

        A chunk computes the gradients of L layers in w each; a layer is reduced in r while others are
        computed, and `IN_FLIGHT` layers have buffers. With f of other passes between and c of recompute in a
        layer, a chunk takes the longest of f + L (c + w), f + c + 2 w + (L - 2) r and L r. A pass of one
        layer waits for the reduction of the pass before it: w + max(f + c, r).
        """
        columns = self.columns
        ranks = self.ranks
        passes = self.passes
        sharded = columns.zero[:, None] == GRADIENTS_SHARDED
        if not sharded.any():
            return _BufferWaits(np.zeros(ranks.layers.shape), np.zeros(ranks.layers.shape))
        virtual = columns.virtual[:, None]
        reduce = self.replicas.reduce_layer
        split = self._has("splits_backward")
        layers = np.maximum(1, ranks.layers)
        redone = self.redone * ranks.sum_of(passes.recompute)
        busy = np.where(split, times.weights_s, times.backward_s - redone)
        redone = np.where(split, 0.0, redone)
        layer = ranks.sum_of(np.where(split, passes.weights, passes.backward)) / layers
        ends = busy - ranks.layers * layer
        ends_reduced = self._ends_scattered_s()
        scattered = ranks.layers * reduce + ends_reduced
        layers = ranks.layers / virtual
        ones = np.clip(2.0 - layers, 0.0, 1.0)

        def wait(other: Floats) -> Floats:
            if not self.overlaps:
                return np.where(sharded, scattered, 0.0)
            first = redone / np.maximum(1.0, layers) + 2 * virtual * layer + ends
            chained = other + first + (ranks.layers - IN_FLIGHT * virtual) * reduce
            reduced = scattered + np.where(ranks.last, ends + layer, 0.0)
            several = np.maximum(0.0, np.maximum(chained, reduced) - other - redone - busy)
            beside = (other + redone) / virtual
            single = (virtual - 1) * np.maximum(0.0, reduce - beside)
            single += np.maximum(0.0, reduce + ends_reduced - beside)
            return np.where(sharded, ones * single + (1.0 - ones) * several, 0.0)

        alternates = (self.microbatches > columns.pipeline)[:, None] & ~self._has("forwards_first")
        other = times.forward_s + np.where(split, times.backward_s, 0.0)
        return _BufferWaits(wait(np.where(alternates, other, 0.0)), wait(np.zeros_like(other)))

    def _scattered_s(self) -> Floats:
        """Seconds to reduce-scatter all gradients of one micro-batch, layer by layer."""
        return np.asarray(self.ranks.layers * self.replicas.reduce_layer + self._ends_scattered_s())

    def _ends_scattered_s(self) -> Floats:
        """Seconds to reduce-scatter the gradients of embedding and LM head where a rank holds them."""
        first = self.ranks.first
        last = self.ranks.last
        both = np.where(first & last, self.replicas.reduce_both, 0.0)
        embedding = np.where(first & ~last, self.replicas.reduce_embedding, 0.0)
        return both + embedding + np.where(last & ~first, self.replicas.reduce_head, 0.0)

    # ------------------------------------------------------------------------------ pipeline
    def _bare_microbatches(self) -> Floats:
        """Micro-batches whose forwards have no backward next to them that could hide their transfers.

        An interleaved rank fills its pipeline with (v - 1) p chunks of forwards; where there is one group of
        micro-batches all forwards run first. A rank's next chunk then waits for the same micro-batch to come
        around.
        """
        pipeline = self.columns.pipeline
        virtual = self.columns.virtual
        filling = np.minimum(self.microbatches, (virtual - 1) * pipeline / virtual)
        bare = np.where(self.microbatches == pipeline, self.microbatches, filling)
        return np.where((virtual > 1) & ~self._has("v_shaped")[:, 0], bare, 0.0)

    def _send_times(self) -> PassTimes:
        """Seconds that the tensors of one micro-batch take to and from the neighbours of every rank."""
        ranks = self.ranks
        passes = self.passes
        virtual = self.columns.virtual[:, None]
        pipeline = self.columns.pipeline[:, None]
        # In a V both chunks of the last rank are neighbours.
        turns = self._has("v_shaped") & (ranks.rank == pipeline - 1)
        upstream = np.where(pipeline > 1, virtual - ranks.first - turns, 0)
        downstream = np.where(pipeline > 1, virtual - ranks.last - turns, 0)
        forward = upstream * passes.receive + downstream * passes.send
        backward = downstream * passes.receive + upstream * passes.send
        return PassTimes(forward, backward, np.zeros(forward.shape))

    def _pace_of_pairs(self, times: PassTimes) -> Floats:
        """Seconds per micro-batch that neighbours in a tight pipeline need, shape (rows,); 0 in others.

        In the steady state of 1F1B a rank's next forward waits for a backward of its neighbour: two
        micro-batches take the passes of both ranks and a transfer each way, less the weight gradients of one,
        which fill the wait where they are a pass of their own.
        """
        number = self.ranks.number
        exposed = self.passes.farthest_send + self.passes.receive - times.weights_s / 2
        exposed = np.maximum(0.0, exposed)
        busy = times.total_s
        alike = np.where(number > 1, busy + exposed, 0.0)
        neighbours = (busy[:, 1:] + busy[:, :-1]) / 2 + exposed[:, 1:]
        neighbours = np.where(number[:, 1:] > 0, neighbours, 0.0)
        pace = np.concatenate([alike, neighbours], axis=1).max(axis=1)
        return np.where(self._has("tight")[:, 0], pace, 0.0)

    # ------------------------------------------------------------------------------ replicas
    def gathered_ahead_s(self) -> Floats:
        """Exposed gathers at the start of a step, shape (rows,): embedding, first bucket, and slower ones."""
        largest = self.largest
        bucket = self.replicas.ahead_bucket[:, 0]
        buckets = np.maximum(1, -(-largest.chunk // np.maximum(1, largest.bucket)))
        forward = np.minimum(largest.bucket, largest.chunk) * self.passes.forward[:, -1]
        later = np.where(bucket > 0, (buckets - 1) * np.maximum(0.0, bucket - forward), 0.0)
        return np.asarray(self.replicas.ahead_ends[:, 0] + bucket + later)

    def reduction_s(self, last_group_s: Floats) -> Floats:
        """Exposed gradient reduction: all of it, or what remains after the last backward; shape (rows,).

        What backwards lose next to the rest of it counts as well.

        With overlap, a bucket is reduced while earlier layers run backward. The gradients of embedding and LM
        head are complete only at the end, so their reduction is exposed. The chunks of an interleaved rank
        are complete one after the other during the backwards of the last `pipeline` micro-batches
        (`last_group_s`).
        """
        columns = self.columns
        passes = self.passes
        largest = self.largest
        apart = (columns.replicas > 1) & (columns.zero < SHARDED)
        whole = columns.zero < GRADIENTS_SHARDED
        if not self.overlaps:
            return np.where(apart & whole, self.replicas.reduce[:, 0], 0.0)
        redone = np.where(columns.recompute > 0, 1 / columns.recompute_every, 0.0)
        layer_s = passes.backward[:, -1] + redone * passes.recompute[:, -1]
        layer_s = np.where(self._has("splits_backward")[:, 0], passes.weights[:, -1], layer_s)
        full, rest = np.divmod(largest.chunk, largest.bucket)
        compute_s = largest.bucket * layer_s
        reduce_s = self.replicas.reduce_bucket[:, 0]
        rest_s = np.where(rest > 0, self.replicas.reduce_rest[:, 0], 0.0)
        reduced = np.where(compute_s >= reduce_s, full * compute_s + reduce_s, compute_s + full * reduce_s)
        reduced = np.where(full > 0, reduced, 0.0)
        computed = largest.chunk * layer_s
        after_rest = np.maximum(reduced, computed) + rest_s
        exposed = np.where(rest > 0, after_rest, reduced) - computed
        of_all = (full * reduce_s + rest_s) * largest.layers / np.maximum(1, largest.chunk)
        chunks = columns.virtual
        in_turn = np.minimum(compute_s, computed) + of_all - last_group_s * (chunks - 1) / chunks - computed
        in_turn = np.where(chunks > 1, in_turn, 0.0)
        exposed = np.where(whole, np.maximum(exposed, in_turn), exposed)
        hidden = np.minimum(of_all - np.maximum(0.0, exposed), last_group_s)
        hidden = np.where(whole, np.maximum(0.0, hidden), 0.0)
        # Where reductions take longer than compute, slower compute only hides more of them.
        last_s = np.where(rest > 0, rest_s, reduce_s)
        exposed = np.maximum(exposed, np.minimum(exposed, last_s) + hidden * self.slower_reduce[:, 0])
        return np.where(apart, self.replicas.reduce_ends[:, 0] + exposed, 0.0)
