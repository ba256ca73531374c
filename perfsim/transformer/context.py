"""An attention block whose positions are shared by context ranks: what they exchange, and what that adds.

Ring [2310.01889]: every rank has 1 / c of the positions, and keys and values go around the ranks. With causal
attention a rank has one part from each end of the sequence, so that all blocks have equal work
(Megatron-Core). All-to-all [2309.14509, Ulysses]: before and after attention, ranks exchange heads against
positions.
"""

from __future__ import annotations

from perfsim.transformer.kernels import Kernel, LayerSlice, elementwise


def query_bytes(part: LayerSlice) -> float:
    """Bytes of the queries of one rank, or of their gradients."""
    return part.element_bytes * part.tokens * part.model.query_width / part.tensor


def context_bytes(part: LayerSlice) -> float:
    """Bytes of what the core of attention makes on one rank, or of its gradient."""
    return part.element_bytes * part.tokens * part.model.attention_width / part.tensor


def pair_bytes(part: LayerSlice) -> float:
    """Bytes of the keys and values of one rank, or of their gradients."""
    return part.element_bytes * part.tokens * part.pair_width / part.tensor


def exchange_buffer_bytes(part: LayerSlice) -> float:
    """Bytes of buffers for what context ranks exchange.

    Ring: in the backward, keys, values and their gradients that arrive and that are in use. All-to-all:
    queries, keys and values as they arrive.
    """
    if part.context == 1:
        return 0.0
    if part.context_exchange == "ring":
        return 4 * pair_bytes(part)
    return query_bytes(part) + pair_bytes(part)


def merge_kernel(part: LayerSlice) -> Kernel:
    """Adds the result of a block to that of the earlier ones, rescaled by their softmax sums."""
    return elementwise("attention_merge", 3 * context_bytes(part))


def merge_backward_kernel(part: LayerSlice) -> Kernel:
    """Adds a block's gradients of queries, keys and values to those of the earlier ones."""
    return elementwise("attention_merge.backward", 3 * (query_bytes(part) + pair_bytes(part)), launches=2)


def around_core(
    kernels: tuple[Kernel, ...], core: tuple[Kernel, ...]
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """The kernels of an attention block before and after those of its core."""
    first = next(start for start in range(len(kernels)) if kernels[start : start + len(core)] == core)
    return kernels[:first], kernels[first + len(core) :]
