"""Context parallelism: ranks share every sequence, and exchange what attention needs of the others.

Ring [2310.01889]: while a rank attends to one block of keys and values, the next arrives from its neighbour.
In the backward they go around again, followed by their gradients, whose last message brings them home. In the
all-to-all [2309.14509] nothing is hidden: heads are exchanged against positions before the core of attention,
and back after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from perfsim.strategies.three_d.data import collective
from perfsim.strategies.three_d.layers import Attention, Backward, Forward, Made, compute_work
from perfsim.work import RankGroup, TensorClass, Work
from perfsim.work.builder import InBlock
from perfsim.work.counts import attention_weight_input_bytes
from perfsim.work.kernels import LayerSlice
from perfsim.work.layer import attention_core, attention_kernels, attention_recompute, merge_kernel

CONTEXT_STREAM = "nccl-context"


class _AttentionWorks(NamedTuple):
    """The compute of an attention block in parts, in the order of a pass."""

    first: Work
    """Norm and QKV, or in a backward the gradient of the core's output."""
    block: Work
    """Attention to the rank's own keys and values."""
    later: Work
    """Attention to keys and values of another rank, and the sum with earlier results."""
    last: Work


@lru_cache(maxsize=512)
def _attention_works(part: LayerSlice, which: Forward | Backward) -> _AttentionWorks:
    """The compute of an attention block around and in its core."""
    forward = which in ("forward", "recompute")
    core = attention_core(part, backward=not forward)
    whole = attention_recompute(part, "full") if which == "recompute" else attention_kernels(part, which)
    start = next(start for start in range(len(whole)) if whole[start : start + len(core)] == core)
    before = whole[:start]
    after = whole[start + len(core) :]
    merge = merge_kernel(part, backward=not forward)
    queries = TensorClass("queries", part.query_bytes)
    hidden = TensorClass("hidden", part.activation_bytes)
    context = TensorClass("context", part.context_bytes)
    pair = TensorClass("keys_values", part.pair_bytes)
    kept = TensorClass("weight_inputs", attention_weight_input_bytes(part))
    first, last = ("qkv", "output") if forward else ("output", "qkv")
    made = (context,) if forward else (queries, pair)
    begun = (queries, pair) if forward else (context,)
    return _AttentionWorks(
        first=compute_work(f"attention.{first}", which, before, *begun),
        block=compute_work("attention.block", which, core[:1], *made),
        later=compute_work("attention.block", which, (*core[:1], merge), *made),
        last=compute_work(f"attention.{last}", which, after, hidden, *([kept] if which == "dgrad" else [])),
    )


@dataclass(frozen=True)
class ContextGroup(Attention):
    """Attention of a rank that shares its sequences with a group."""

    ranks: RankGroup

    @property
    def rings(self) -> bool:
        """Whether keys and values go around a ring."""
        return self.part.context_exchange == "ring"

    def works(self, which: Forward | Backward) -> Sequence[Work]:
        """The works of a pass that run one after the other; in a ring, those around `ring_terms`."""
        works = _attention_works(self.part, which)
        if self.rings:
            return works.first, works.last
        exchanges = (self.exchange_work(*message) for message in self._all_to_alls(which))
        return works.first, works.block, works.last, *exchanges

    def _all_to_alls(self, which: Forward | Backward) -> tuple[tuple[str, float], tuple[str, float]]:
        """Contents and bytes of both of a pass: queries, keys and values, and what the core makes of them."""
        before = self.part.query_bytes + self.part.pair_bytes
        after = self.part.context_bytes
        if which in ("backward", "dgrad"):
            before, after = after, before
        return ("heads", before), ("positions", after)

    def exchange_work(self, contents: str, n_bytes: float) -> Work:
        """A message of every rank to the next, or an all-to-all of what every rank has.

        A ring sends `keys_values`, their `gradients` or both; an all-to-all ends with some `heads` of all
        positions, or some `positions` of all heads.
        """
        op = "send_recv" if self.rings else "all_to_all"
        return collective("context", op, n_bytes, self.ranks, TensorClass(contents, n_bytes))

    def forward(self, at: InBlock, which: Forward, reads: Sequence[int]) -> Made:
        """Write the forward or its repetition; it keeps the keys and values of the rank itself."""
        works = _attention_works(self.part, which)
        if which == "recompute" and not self.part.repeats_layer(self.mode):
            kernels = attention_recompute(self.part, self.mode)
            made = self._task(at, replace(works.first, kernels=kernels), reads)
            return made if self.rings else made._replace(kept=made.output)
        first = self._task(at, works.first, reads).output
        n_bytes = self.part.pair_bytes
        if not self.rings:
            to_heads, to_positions = self._all_to_alls(which)
            heads = self._exchanged(at, to_heads, [first])
            core = self._task(at, works.block, [heads]).output
            back = self._exchanged(at, to_positions, [core])
            return Made(self._task(at, works.last, [back, first, core]).output, first)
        pair = first + 1
        done = list[int]()
        for number in range(self.ranks.size):
            last = number == self.ranks.size - 1
            ahead = pair if last else self._exchanged(at, ("keys_values", n_bytes), [pair])
            work = works.later if number else works.block
            done = [self._task(at, work, [first, pair, *done]).output]
            pair = ahead
        return Made(self._task(at, works.last, [*done, first]).output, first + 1)

    def backward(self, at: InBlock, which: Backward, reads: Sequence[int], after: Sequence[int] = ()) -> Made:
        """Write the backward; the last it reads has the rank's own keys and values, saved or recomputed."""
        gradient, saved, kept = reads
        works = _attention_works(self.part, which)
        first = self._task(at, works.first, [gradient, saved], after).output
        if not self.rings:
            to_heads, to_positions = self._all_to_alls(which)
            heads = self._exchanged(at, to_heads, [first])
            core = self._task(at, works.block, [heads, saved]).output
            arrived = [self._exchanged(at, to_positions, [core])]
        else:
            arrived = self._ring_backward(at, works, (first, saved, kept))
        return self._task(at, works.last, [gradient, saved, first, *arrived])

    def _ring_backward(self, at: InBlock, works: _AttentionWorks, reads: tuple[int, int, int]) -> list[int]:
        """The gradients of queries, and the gradients of keys and values back on their rank.

        Message i carries keys and values for block i + 1 and the gradients that block i - 1 completed; the
        first leaves when the attention's backward begins.
        """
        (first, saved, kept), size, n_bytes = reads, self.ranks.size, self.part.pair_bytes
        done = list[int]()
        pair = list[int]()
        for number in range(size):
            names = [*(["keys_values"] if number < size - 1 else []), *(["gradients"] if done else [])]
            message = " and ".join(names), n_bytes * len(names)
            ahead = [self._exchanged(at, message, [*(pair or [kept, first]), *done[1:]])]
            work = works.later if number else works.block
            done = list(self._task(at, work, [first, saved, *pair, *done[:1]]))
            pair = ahead
        return [done[0], self._exchanged(at, ("gradients", n_bytes), [*pair, done[1]])]

    def _exchanged(self, at: InBlock, message: tuple[str, float], reads: Sequence[int]) -> int:
        return at.task(self.exchange_work(*message), f"{self.device}/{CONTEXT_STREAM}", reads)

    def ring_terms(self) -> dict[str, Sequence[Work]]:
        if not self.rings:
            return {}
        forward, backward = (_attention_works(self.part, which) for which in ("forward", "backward"))
        n_bytes = self.part.pair_bytes
        return {
            "block": [forward.block],
            "later": [forward.later],
            "block_backward": [backward.block],
            "later_backward": [backward.later],
            "exchange": [self.exchange_work("keys_values", n_bytes)],
            "exchange_both": [self.exchange_work("keys_values and gradients", 2 * n_bytes)],
        }
