"""Context parallelism: ranks share every sequence, and exchange what attention needs of the others.

Ring [2310.01889]: while a rank attends to one block of keys and values, the next arrives from its neighbour.
In the backward they go around again, followed by their gradients, whose last message brings them home. In the
all-to-all [2309.14509] nothing is hidden: heads are exchanged against positions before the core of attention,
and back after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from perfsim import transformer
from perfsim.graph import Kind, RankGroup, Template, TensorClass, Work
from perfsim.strategies.three_d.works import COMPUTE, compute_work
from perfsim.transformer import LayerSlice
from perfsim.transformer.context import (
    around_core,
    context_bytes,
    merge_backward_kernel,
    merge_kernel,
    pair_bytes,
    query_bytes,
)

CONTEXT_STREAM = "nccl-context"
Forward = Literal["forward", "recompute"]
Backward = Literal["backward", "dgrad"]


class AttentionWorks(NamedTuple):
    """The compute of an attention block in parts, in the order of a pass."""

    first: Work
    """Norm and QKV, or in a backward the gradient of the core's output."""
    block: Work
    """Attention to the rank's own keys and values."""
    later: Work
    """Attention to those of another rank, and the sum with earlier results."""
    last: Work


def _recomputed(part: LayerSlice) -> tuple[transformer.Kernel, ...]:
    return transformer.attention_recompute(part, "full")


@lru_cache(maxsize=512)
def attention_works(part: LayerSlice, which: Forward | Backward) -> AttentionWorks:
    """The compute of an attention block around and in its core."""
    forward = which in ("forward", "recompute")
    core = transformer.attention_core(part) if forward else transformer.attention_core_backward(part)
    whole = {
        "forward": transformer.attention_forward,
        "recompute": _recomputed,
        "backward": transformer.attention_backward,
        "dgrad": transformer.attention_dgrad,
    }[which](part)
    before, after = around_core(whole, core)
    merge = merge_kernel(part) if forward else merge_backward_kernel(part)
    queries, hidden = TensorClass("queries", query_bytes(part)), TensorClass("hidden", part.activation_bytes)
    context = TensorClass("context", context_bytes(part))
    pair = TensorClass("keys_values", pair_bytes(part))
    kept = TensorClass("weight_inputs", transformer.attention_weight_input_bytes(part))
    first, last = ("qkv", "output") if forward else ("output", "qkv")
    made = (context,) if forward else (queries, pair)
    category = "backward" if which == "dgrad" else which

    def work(name: str, kernels: tuple[transformer.Kernel, ...], writes: tuple[TensorClass, ...]) -> Work:
        return compute_work(f"attention.{name}.{which}", category, kernels, writes)

    return AttentionWorks(
        first=work(first, before, (queries, pair) if forward else (context,)),
        block=work("block", core[:1], made),
        later=work("block", (*core[:1], merge), made),
        last=work(last, after, (hidden, kept) if which == "dgrad" else (hidden,)),
    )


@dataclass(frozen=True)
class ContextGroup:
    """The context-parallel group of one stage, seen from one of its ranks."""

    part: LayerSlice
    ranks: RankGroup
    device: str

    @property
    def rings(self) -> bool:
        """Whether keys and values go around a ring."""
        return self.part.context_exchange == "ring"

    def exchange_work(self, contents: str, n_bytes: float) -> Work:
        """A message of every rank to the next, or an all-to-all of what every rank has.

        A ring sends `keys_values`, their `gradients` or both; an all-to-all ends with some `heads` of all
        positions, or some `positions` of all heads.
        """
        op = "send_recv" if self.rings else "all_to_all"
        return Work(
            name=f"context.{op}",
            kind=Kind.COMM_COLL,
            op=op,
            category="context_communication",
            comm_bytes=n_bytes,
            group=self.ranks,
            writes=(TensorClass(contents, n_bytes),),
        )

    def exchanges(self, which: Forward | Backward) -> tuple[tuple[str, float], tuple[str, float]]:
        """The messages of both all-to-all of a pass: queries, keys and values, and the core's result."""
        before, after = query_bytes(self.part) + pair_bytes(self.part), context_bytes(self.part)
        if which in ("backward", "dgrad"):
            before, after = after, before
        return ("heads", before), ("positions", after)

    def forward(
        self, template: Template, which: Forward, reads: Sequence[int], block: int
    ) -> tuple[int, int]:
        """An attention block; returns its output, and the keys and values of the rank itself."""
        works, compute = attention_works(self.part, which), f"{self.device}/{COMPUTE}"
        first = template.task(works.first, compute, reads, block=block).tensor
        n_bytes = pair_bytes(self.part)
        if not self.rings:
            to_heads, to_positions = self.exchanges("forward")
            heads = self._exchanged(template, to_heads, [first], block)
            core = template.task(works.block, compute, [heads], block=block).tensor
            back = self._exchanged(template, to_positions, [core], block)
            return template.task(works.last, compute, [back, first, core], block=block).tensor, first
        pair, done = first + 1, list[int]()
        for number in range(self.ranks.size):
            last = number == self.ranks.size - 1
            ahead = pair if last else self._exchanged(template, ("keys_values", n_bytes), [pair], block)
            work = works.later if number else works.block
            done = [template.task(work, compute, [first, pair, *done], block=block).tensor]
            pair = ahead
        return template.task(works.last, compute, [*done, first], block=block).tensor, first + 1

    def backward(
        self, template: Template, which: Backward, gradient: int, saved: int, kept: int, block: int
    ) -> int:
        """The backward of an attention block; returns the first tensor of its last task.

        `kept` holds the keys and values of the rank itself: `saved`, or what a recompute wrote.
        """
        works, compute = attention_works(self.part, which), f"{self.device}/{COMPUTE}"
        first = template.task(works.first, compute, [gradient, saved], block=block).tensor
        if not self.rings:
            to_heads, to_positions = self.exchanges(which)
            heads = self._exchanged(template, to_heads, [first], block)
            core = template.task(works.block, compute, [heads, saved], block=block).tensor
            arrived = [self._exchanged(template, to_positions, [core], block)]
        else:
            arrived = self._ring_backward(template, works, (first, saved, kept), block)
        reads = [gradient, saved, first, *arrived]
        return template.task(works.last, compute, reads, block=block).tensor

    def _ring_backward(
        self, template: Template, works: AttentionWorks, reads: tuple[int, int, int], block: int
    ) -> list[int]:
        """The gradients of queries, and those of keys and values back on their rank.

        Message i carries keys and values for block i + 1 and the gradients that block i - 1 completed; the
        first leaves when the attention's backward begins.
        """
        (first, saved, kept), size, n_bytes = reads, self.ranks.size, pair_bytes(self.part)
        compute, done, pair = f"{self.device}/{COMPUTE}", list[int](), list[int]()
        for number in range(size):
            names = [*(["keys_values"] if number < size - 1 else []), *(["gradients"] if done else [])]
            message = " and ".join(names), n_bytes * len(names)
            ahead = [self._exchanged(template, message, [*(pair or [kept, first]), *done[1:]], block)]
            work = works.later if number else works.block
            queries = template.task(work, compute, [first, saved, *pair, *done[:1]], block=block).tensor
            done, pair = [queries, queries + 1], ahead
        return [done[0], self._exchanged(template, ("gradients", n_bytes), [*pair, done[1]], block)]

    def _exchanged(
        self, template: Template, message: tuple[str, float], reads: Sequence[int], block: int
    ) -> int:
        stream = f"{self.device}/{CONTEXT_STREAM}"
        return template.task(self.exchange_work(*message), stream, reads, block=block).tensor


class CoreTerms(NamedTuple):
    """The works whose times `ring_forward_s` and `ring_backward_s` combine; empty without a ring."""

    block: tuple[Work, ...] = ()
    later: tuple[Work, ...] = ()
    block_backward: tuple[Work, ...] = ()
    later_backward: tuple[Work, ...] = ()
    exchange: tuple[Work, ...] = ()
    exchange_both: tuple[Work, ...] = ()


def ring_terms(group: ContextGroup | None) -> CoreTerms:
    """The works of attention in a ring."""
    if group is None or not group.rings:
        return CoreTerms()
    forward, backward = (attention_works(group.part, which) for which in ("forward", "backward"))
    n_bytes = pair_bytes(group.part)
    return CoreTerms(
        (forward.block,),
        (forward.later,),
        (backward.block,),
        (backward.later,),
        (group.exchange_work("keys_values", n_bytes),),
        (group.exchange_work("keys_values and gradients", 2 * n_bytes),),
    )


def attention_terms(group: ContextGroup | None, which: Forward | Backward, whole: Work) -> tuple[Work, ...]:
    """The works of an attention block that run one after the other; `whole` is that of a rank alone."""
    if group is None:
        return (whole,)
    works = attention_works(group.part, which)
    if group.rings:
        return works.first, works.last
    exchanges = (group.exchange_work(*message) for message in group.exchanges(which))
    return works.first, works.block, works.last, *exchanges
