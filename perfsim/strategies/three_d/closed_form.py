"""A closed form of a pipelined step in columns: the first estimate, of all layouts.

With m micro-batches, v chunks a rank and t the passes of one micro-batch on a rank:

    step = m max(t) + bubble + exposed gradient reduction + tied embedding + norm + optimizer
    bubble = share of the schedule x (sum(t) - max(t)) / v

The share is what ranks idle of the time in which one micro-batch passes the others, with equal passes
(`schedules.py`). Imbalance during warm-up, messages that wait for one another and waits for buffers are left
to the longest path over passes (`pass_path.py`), which ranks the layouts that this puts first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.costs.price import MOST_TAKEN, Costs
from perfsim.network import FatTree
from perfsim.specs.recipe import Job
from perfsim.strategies.schedules import Trait
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, SHARDED
from perfsim.strategies.three_d.prices import TINY_S, OverReplicas, Passes
from perfsim.strategies.three_d.space import Columns, taken


@dataclass(frozen=True)
class Priced:
    """Layouts of a job with the prices of their passes, and of what their replicas exchange, on a machine."""

    job: Job
    columns: Columns
    topology: FatTree
    costs: Costs

    @cached_property
    def _passes(self) -> Passes:
        return Passes(self.job, self.columns, self.topology, self.costs)

    @cached_property
    def _replicas(self) -> OverReplicas:
        return OverReplicas(self.job, self.columns, self.topology, self.costs)

    def steps(self, chosen: Ints) -> Iterator[tuple[Ints, Steps]]:
        """The steps of chosen layouts that are evaluated at once, with their places among these."""
        for places, columns in self.columns.rows(chosen).blocks():
            yield places, Steps(self.job, columns, chosen[places], self._passes, self._replicas)


def estimate_steps_s(priced: Priced, chosen: Ints) -> Floats:
    """Step time of chosen layouts by the formula above, shape (chosen,), with an update on the devices."""
    seconds = np.empty(len(chosen), dtype=np.float64)
    for places, steps in priced.steps(chosen):
        seconds[places] = steps.seconds()
    return seconds


def _lost(taken: Floats, bound: Floats) -> Floats:
    """Seconds that compute loses per second of a communication hidden behind it, shape (rows, 1).

    While a communication that takes shares u and h of a device runs, compute of which compute units limit a
    share c of the time and memory bandwidth a share m progresses at rate 1 / (1 + g), with g = c u / (1 - u)
    + m h / (1 - h), as in the simulation (`engine/rules.py`). Each hidden second costs g / (1 + g) seconds.
    `taken` and `bound` have columns for units and memory bandwidth.
    """
    taken = np.minimum(taken, MOST_TAKEN)
    slower = taken / (1.0 - taken) * bound
    longer = slower[:, :1] + slower[:, 1:]
    return np.asarray(longer / (1.0 + longer))


class Steps:
    """The steps of layouts that are estimated at once.

    Arrays are of shape (rows, ranks), with representative ranks (`RankColumns`), or (rows,).
    """

    def __init__(
        self, job: Job, columns: Columns, rows: Ints, passes: Passes, replicas: OverReplicas
    ) -> None:
        state = replicas.of_row[rows]
        self.columns = columns
        self.overlaps = job.runtime.overlap_grad_reduce
        self.ranks = columns.ranks()
        self.microbatches = columns.microbatches(job)
        self.passes = passes.of(columns, rows)
        prices = taken(replicas.prices, state)
        on_host = columns.offload_optimizer[:, None] > 0
        self.replicas = prices._replace(update=np.where(on_host, 0.0, prices.update))
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
        """The same for the way of rows to experts, beyond the mean over a layer."""
        # Of joined passes, rows of one travel and the host works for it while the other computes.
        layers = self.passes
        slower_rows = _lost(passes.exchanged[passes.of_row[rows]], (forward + backward) / 2)
        slowed_s = layers.computes + np.minimum(2 * layers.exchanged, layers.computes) * slower_rows
        joined_s = np.maximum(slowed_s, 2 * np.maximum(layers.exchanged, layers.host))
        hidden_s = np.maximum(0.0, layers.forward + layers.backward - joined_s)
        self.hidden_s = np.where(self._has("joins") & (layers.computes > 0), hidden_s / 2, 0.0)
        """Seconds by which each of two joined passes is shorter, a layer of every kind."""
        # Passes of the last rank before its first backward have none to be joined with.
        alone = (columns.virtual - 1) * columns.pipeline + 1
        joined = np.maximum(0.0, 1.0 - alone / (columns.virtual * self.microbatches))
        self.hidden_mean_s = joined[:, None] * self.hidden_s
        """The same in the mean over the passes of a step."""
        self.hops = passes.hops(rows)
        self.redone = columns.recomputed_share(self.ranks)

    def _has(self, trait: Trait) -> Bools:
        """Whether schedules have a trait, shape (rows, 1)."""
        return self.columns.of_schedules(trait)[:, None]

    def seconds(self) -> Floats:
        """Seconds of every step, shape (rows,)."""
        columns = self.columns
        passes = self.passes
        replicas = self.replicas
        forward_s, backward_s, weights_s = self.pass_times()
        total_s = self._next_to_reductions_s(forward_s + backward_s + weights_s)
        slowest_s = total_s.max(axis=1)
        others_s = (self.ranks.number * total_s).sum(axis=1) - slowest_s
        # Of a tight pipeline a message is exposed where no weight gradients fill the wait; a pass outside one
        # gathers its input over the tensor group first.
        tight = self._has("tight")[:, 0]
        exposed_s = passes.farthest_send + passes.receive - weights_s / 2
        exposed_s = np.maximum(0.0, exposed_s.max(axis=1))
        gathered_s = 2 * columns.virtual * passes.receive[:, 0]
        beside_s = 4 * columns.virtual * (passes.send * self.slower_send)[:, 0]
        neighbours_s = np.where(tight, exposed_s + beside_s / 2, gathered_s + beside_s)
        pace_s = slowest_s + np.where(columns.pipeline > 1, neighbours_s, 0.0)
        # With fewer micro-batches than fill the pipeline twice, all schedules idle.
        unfilled = 1.0 - self.microbatches / (2 * columns.pipeline)
        bubble_s = np.maximum(columns.bubble, unfilled) * others_s / columns.virtual
        ends_s = (replicas.tie + replicas.norm + replicas.update + replicas.gather)[:, 0]
        ends_s += self.reduction_s(backward_s + weights_s) + self.gathered_ahead_s()
        return np.asarray(self.microbatches * pace_s + bubble_s + ends_s)

    def pass_times(self) -> tuple[Floats, Floats, Floats]:
        """Seconds of one micro-batch through all chunks of every rank: forward, backward, weight gradients.

        Under ZeRO 3 compute and communication overlap, so the longer of the two counts; compute includes what
        it loses next to communication. The gathers of the embedding, the LM head and the first layer are
        exposed, and so are the last reductions.
        """
        ranks = self.ranks
        passes = self.passes
        replicas = self.replicas
        begin = self.columns.virtual[:, None] * passes.begin
        forward = begin + ranks.sum_of(passes.forward - self.hidden_mean_s)
        forward += ranks.first * passes.embedding_forward + ranks.last * passes.head_forward
        backward = begin + ranks.sum_of(passes.backward - self.hidden_mean_s)
        backward += self.redone * ranks.sum_of(passes.recompute)
        backward += ranks.first * passes.embedding_backward + ranks.last * passes.head_backward
        weights = ranks.sum_of(passes.weights)
        weights += ranks.first * passes.embedding_weights + ranks.last * passes.head_weights
        sharded = self.columns.zero_stage[:, None] == SHARDED
        if not sharded.any():
            return forward, backward, weights
        scattered = self._scattered_s()
        gathered = ranks.layers * replicas.gather_layer
        slowed_forward = forward + np.minimum(gathered, forward) * self.slower_gather
        sharded_forward = replicas.gather_both + np.maximum(gathered, replicas.gather_layer + slowed_forward)
        lost_s = gathered * self.slower_gather_backward + scattered * self.slower_reduce
        slowed_backward = backward + np.minimum(1.0, backward / (gathered + scattered + TINY_S)) * lost_s
        last_reduced = replicas.reduce_layer + replicas.reduce_both
        sharded_backward = np.maximum(gathered + scattered, slowed_backward + last_reduced)
        return (
            np.where(sharded, sharded_forward, forward),
            np.where(sharded, sharded_backward, backward),
            weights,
        )

    def _next_to_reductions_s(self, total_s: Floats) -> Floats:
        """Seconds of all passes of one micro-batch next to ZeRO 2's reductions, shape (rows, ranks)."""
        scattered_s = self._scattered_s()
        sharded = self.columns.zero_stage[:, None] == GRADIENTS_SHARDED
        if not self.overlaps:
            return np.where(sharded, total_s + scattered_s, total_s)
        slowed_s = total_s + np.minimum(scattered_s, total_s) * self.slower_reduce
        return np.where(sharded, np.maximum(slowed_s, scattered_s), total_s)

    def _scattered_s(self) -> Floats:
        """Seconds to reduce-scatter all gradients of one micro-batch, layer by layer."""
        replicas = self.replicas
        first = self.ranks.first
        last = self.ranks.last
        ends = np.where(first & last, replicas.reduce_both, 0.0)
        ends += np.where(first & ~last, replicas.reduce_embedding, 0.0)
        ends += np.where(last & ~first, replicas.reduce_head, 0.0)
        return np.asarray(self.ranks.layers * replicas.reduce_layer + ends)

    def gathered_ahead_s(self) -> Floats:
        """Exposed gathers at the start of a step, shape (rows,): embedding, first bucket, and slower ones."""
        largest = self.largest
        bucket = self.replicas.ahead_bucket[:, 0]
        buckets = np.maximum(1, -(-largest.chunk // np.maximum(1, largest.bucket)))
        forward = np.minimum(largest.bucket, largest.chunk) * self.passes.forward[:, -1]
        later = np.where(bucket > 0, (buckets - 1) * np.maximum(0.0, bucket - forward), 0.0)
        return np.asarray(self.replicas.ahead_ends[:, 0] + bucket + later)

    def reduction_s(self, backward_s: Floats) -> Floats:
        """Exposed gradient reduction: all of it, or what remains after the last backward; shape (rows,).

        What backwards lose next to the rest of it counts as well.

        With overlap, a bucket is reduced while earlier layers run backward. The gradients of embedding and LM
        head are complete only at the end, so their reduction is exposed. The chunks of an interleaved rank
        are complete one after the other during the backwards of the last `pipeline` micro-batches, which
        take `backward_s` each on every rank.
        """
        columns = self.columns
        last_group_s = columns.pipeline * backward_s.max(axis=1)
        passes = self.passes
        largest = self.largest
        apart = (columns.replicas > 1) & (columns.zero_stage < SHARDED)
        whole = columns.zero_stage < GRADIENTS_SHARDED
        if not self.overlaps:
            return np.where(apart & whole, self.replicas.reduce[:, 0], 0.0)
        layer_s = passes.backward[:, -1] + self.redone.max(axis=1) * passes.recompute[:, -1]
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
