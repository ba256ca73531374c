"""Attention of ranks that share sequences: its parts, and what the ranks exchange between them.

In a ring each block's scores enter a running softmax [1805.02867]. Gradients of keys and values travel one
message behind them, and every rank adds its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.proof.experts import Kept
from perfsim.proof.gpu_compute import GpuCompute, Values
from perfsim.proof.layers import (
    AttentionKept,
    Linears,
    attention_inputs,
    context_gradient,
    core_gradients,
    masked_scores,
    repeated,
    softmax,
)
from perfsim.proof.program import Cell, Message
from perfsim.proof.shares import Share
from perfsim.work import Task

HEADS = 1
POSITIONS = 2
"""Axes of queries, keys and values."""


class _Pair(NamedTuple):
    """Keys and values, and their places."""

    k: Floats
    v: Floats
    places: tuple[int, ...]


class _Travelling(NamedTuple):
    """A message of a ring: keys and values, the gradients of those before them, or both."""

    pair: _Pair | None
    gradients: tuple[Floats, ...] | None = None

    @property
    def elements(self) -> int:
        """Numbers that are sent."""
        arrays = (*((self.pair.k, self.pair.v) if self.pair else ()), *(self.gradients or ()))
        return sum(int(array.size) for array in arrays)


class _Running(NamedTuple):
    """A softmax over the blocks so far: largest score, sum of exponentials, and sum of weighted values."""

    most: Floats
    total: Floats
    weighted: Floats


class _Core(NamedTuple):
    """Arrays that an all-to-all exchanges, and what the core keeps for its backward."""

    arrays: tuple[Floats, ...]
    kept: Any = None


class _Heads(NamedTuple):
    """What the core of some heads keeps: queries, keys, values and probabilities of all positions."""

    q: Floats
    k: Floats
    v: Floats
    probabilities: Floats


def _running_softmax(q: Floats, pair: _Pair, share: Share, before: _Running | None) -> _Running:
    """Attend to one more block."""
    scores = masked_scores(q, pair.k, (share.places, pair.places), share)
    most = scores.max(axis=-1, keepdims=True)
    if before is not None:
        most = np.maximum(most, before.most)
    e = np.exp(scores - most)
    total = e.sum(axis=-1, keepdims=True)
    weighted = e @ repeated(pair.v, share)
    if before is None:
        return _Running(most, total, weighted)
    scale = np.exp(before.most - most)
    return _Running(most, before.total * scale + total, before.weighted * scale + weighted)


def _block_gradients(
    kept: AttentionKept, d_context: Floats, pair: _Pair, share: Share
) -> tuple[Floats, Floats, Floats]:
    """Gradients of queries, keys and values by one block, from the sums that the forward kept."""
    scores = masked_scores(kept.q, pair.k, (share.places, pair.places), share)
    delta = (d_context * np.asarray(kept.context)).sum(axis=-1, keepdims=True)
    return core_gradients(np.exp(scores - kept.core), d_context, (kept.q, pair.k, pair.v), share, delta)


class ContextCompute(GpuCompute):
    """Compiles attention in parts."""

    # --------------------------------------------------------------------------------- forward
    def attention_qkv(self, task: Task) -> None:
        """Norm, queries, keys and values; a recompute reads the layer's input from what is saved."""
        self.needs(1)
        recomputes = task.work.op.endswith("recompute")

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            x, results = (operands[0].x, operands[0].results) if recomputes else (operands[0], None)
            share = self.share(rank)
            kept = attention_inputs(self.views(rank, task.block, buffers[0]), x, share, results)
            return kept, _Travelling(_Pair(kept.k, kept.v, share.places))

        self.compute(run, [self.weights(task.block)])

    def attention_block(self, task: Task) -> None:
        """The core on one block of keys and values, or on all positions of some heads."""
        self.needs(1)

        def ring(rank: int, operands: Values, _: Values) -> tuple[Any, ...]:
            kept, message, *before = operands
            share = self.share(rank).of_layer(task.block)
            return (_running_softmax(kept.q, message.pair, share, before[0] if before else None),)

        def heads(rank: int, operands: Values, _: Values) -> tuple[Any, ...]:
            q, k, v = operands[0]
            share = self.share(rank).of_layer(task.block)
            places = tuple(range(self.training.seq_length))
            # After the all-to-all a rank has some of the heads of its tensor peer.
            first = rank // self.layout.tensor % self.layout.context * (share.heads // self.layout.context)
            scores = masked_scores(q, k, (places, places), share, first)
            p = softmax(scores)
            return (_Core((p @ repeated(v, share),), _Heads(q, k, v, p)),)

        self.compute(ring if self._rings else heads)

    def attention_output(self, task: Task) -> None:
        """The output projection; the block's activations go to the MLP task, or to the backward."""
        self.needs(2)
        recomputes = task.work.op.endswith("recompute")
        buffer = self.cell("recomputed attention" if recomputes else "attention kept")

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            done, kept, *core = operands
            if self._rings:
                log_sum = done.most + np.log(done.total)
                kept = kept._replace(context=done.weighted / done.total, core=log_sum)
            else:
                kept = kept._replace(context=done[0], core=core[0].kept)
            return kept.output(self.views(rank, task.block, buffers[0]), self.share(rank)), kept

        self.compute(run, [self.weights(task.block)], [buffer], self.completes("attention", task.block))

    # -------------------------------------------------------------------------------- backward
    def _kept_cells(self, block: int) -> tuple[list[Cell], list[Cell]]:
        """Buffers with recomputed activations, and with the layer's output gradient."""
        recomputed = [self.cell("recomputed attention")] if self.mode_of(block) == "full" else []
        parallel = self.training.model.norms_per_layer == 1
        return recomputed, [self.cell("output gradient")] if parallel else []

    @staticmethod
    def _kept(saved: Kept, recomputed: Sequence[AttentionKept]) -> Any:
        return recomputed[0] if recomputed else saved.attention

    def attention_output_backward(self, task: Task) -> None:
        """Gradient of the core's output."""
        self.needs(2)
        _, beside = self._kept_cells(task.block)

        def run(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            d_out = buffers[1] if beside else operands[0]
            return (
                _Core((context_gradient(self.views(rank, task.block, buffers[0]), d_out, self.share(rank)),)),
            )

        self.compute(run, [self.weights(task.block), *beside])

    def attention_block_backward(self, task: Task) -> None:
        """Gradients of queries, keys and values by one block, or of all positions of some heads."""
        self.needs(2)
        recomputed, _ = self._kept_cells(task.block)

        def ring(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            first, saved, *later = operands
            kept = self._kept(saved, buffers)
            share = self.share(rank).of_layer(task.block)
            pair = later[0].pair if later else self._own_pair(kept, rank)
            made = _block_gradients(kept, first.arrays[0], pair, share)
            queries = made[0] + later[1].arrays[0] if later else made[0]
            return _Core((queries,)), made[1:]

        def heads(rank: int, operands: Values, buffers: Values) -> tuple[Any, ...]:
            (d_context,), saved = operands[:2]
            core = self._kept(saved, buffers).core
            p = core.probabilities
            share = self.share(rank)
            delta = (d_context * (p @ repeated(core.v, share))).sum(axis=-1, keepdims=True)
            return _Core(core_gradients(p, d_context, core[:3], share, delta)), None

        self.compute(ring if self._rings else heads, recomputed)

    def attention_qkv_backward(self, task: Task) -> None:
        """The rest of the attention's backward, from the gradients of queries, keys and values."""
        self.needs(4)
        norm = self._norm_of("attention")
        recomputed, beside = self._kept_cells(task.block)

        def dgrad(rank: int, operands: Values, buffers: Values) -> tuple[Floats, Linears, Floats]:
            middle, saved, _, *arrived = operands
            w = self.views(rank, task.block, buffers[0])
            share = self.share(rank)
            kept = self._kept(saved, buffers[1 : 1 + len(recomputed)])
            d_out = buffers[1 + len(recomputed)] if beside else middle
            made = arrived[0]
            if self._rings:
                made = (*arrived[0].arrays, *arrived[1].gradients)
            dx, inputs = kept.inputs_dgrad(w, made, d_out, share)
            return (dx + middle if share.leads else dx), inputs, middle

        claims = self.completes("gradient", task.block, (norm, task.block))
        whole = task.work.op.endswith("backward")
        reads = [self.weights(task.block), *recomputed, *beside]
        self._backward(dgrad, norm, reads, [], claims, whole=whole)

    # ------------------------------------------------------------------------------- exchanges
    def ring_shift(self, task: Task) -> None:
        """Every rank sends to the next; what it sends is named by the tensor that it writes."""
        self.needs(1)
        contents = task.work.writes[0].name

        def sent(rank: int, source: Any, *done: tuple[Floats, ...]) -> _Travelling:
            if isinstance(source, Kept):
                source = _Travelling(self._own_pair(source.attention, rank))
            pair = source.pair if "keys_values" in contents else None
            if "gradients" not in contents:
                return _Travelling(pair)
            before = source.gradients
            if before is None:
                return _Travelling(pair, done[0])
            return _Travelling(pair, tuple(a + b for a, b in zip(before, done[0], strict=True)))

        def kernel(members: Sequence[int], values: list[list[Any]]) -> list[tuple[Any, ...]]:
            messages = [sent(rank, *inputs) for rank, inputs in zip(members, values, strict=True)]
            return [(messages[number - 1],) for number in range(len(members))]

        def elements(_: list[Any], made: tuple[Any, ...]) -> int:
            return int(made[0].elements)

        self.add(self.operands(), self.handle(), kernel, joined=True, message=Message("exchanged", elements))

    def all_to_all(self, task: Task) -> None:
        """Exchange heads against positions: to all positions of some heads, or back."""
        self.needs(1)
        gathers = task.work.writes[0].name == "heads"
        cut, joined = (HEADS, POSITIONS) if gathers else (POSITIONS, HEADS)

        def kernel(members: Sequence[int], values: list[list[Any]]) -> list[tuple[Any, ...]]:
            arrays = [
                (value.q, value.k, value.v) if isinstance(value, AttentionKept) else value.arrays
                for (value, *_) in values
            ]
            split = [[np.split(array, len(members), axis=cut) for array in own] for own in arrays]
            return [
                (
                    tuple(
                        np.concatenate(parts, axis=joined)
                        for parts in zip(*([parts[number] for parts in own] for own in split), strict=True)
                    ),
                )
                for number in range(len(members))
            ]

        def elements(_: list[Any], made: tuple[Any, ...]) -> int:
            return sum(int(array.size) for array in made[0])

        self.add(self.operands(), self.handle(), kernel, joined=True, message=Message("exchanged", elements))

    def _own_pair(self, kept: Any, rank: int) -> _Pair:
        """The keys and values of a rank itself."""
        return _Pair(kept.k, kept.v, self.share(rank).places)

    @property
    def _rings(self) -> bool:
        return self.layout.context_exchange == "ring"


_FORWARD = ("forward", "recompute")
_BACKWARD = ("backward", "dgrad")
CONTEXT_OPERATIONS = {
    f"attention.{part}.{which}": method
    for part, passes, method in (
        ("qkv", _FORWARD, ContextCompute.attention_qkv),
        ("block", _FORWARD, ContextCompute.attention_block),
        ("output", _FORWARD, ContextCompute.attention_output),
        ("output", _BACKWARD, ContextCompute.attention_output_backward),
        ("block", _BACKWARD, ContextCompute.attention_block_backward),
        ("qkv", _BACKWARD, ContextCompute.attention_qkv_backward),
    )
    for which in passes
} | {
    "context_communication: send_recv": ContextCompute.ring_shift,
    "context_communication: all_to_all": ContextCompute.all_to_all,
}
"""Method for each operation of attention in parts."""
