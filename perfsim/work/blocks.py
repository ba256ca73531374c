"""The blocks of a model as a framework runs them: kernels fused, and with narrow matrix products.

Blocks are written as eager PyTorch runs them. A fused kernel is merged with its neighbour:

- accumulation: the weight gradient's product adds to the main gradient, which it reads and writes itself;
- norm: one pass reads input and output gradient and writes the input gradient; scale and shift in a second;
- qkv: gradients of queries, keys and values are written side by side.

A product with operands narrower than 16 bits needs them cast: the input before the forward product and the
output gradient before its gradient. The cast writes the transposed copy too, which the weight gradient reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps

from perfsim.specs.hardware import Precision
from perfsim.specs.recipe import PRECISION_BYTES
from perfsim.work import attention, experts, layer
from perfsim.work.kernels import Kernel, LayerSlice, elementwise

Block = Callable[[LayerSlice], tuple[Kernel, ...]]
_NORM_BACKWARD_SHARE = 3.0 / 5.0
"""Passes of a fused norm's backward over those of `kernels.norm_backward`."""


def as_run(
    block: Callable[..., tuple[Kernel, ...]],
) -> Callable[..., tuple[Kernel, ...]]:
    """A block whose first argument is a `LayerSlice`, with its kernels as the framework runs them."""

    @wraps(block)
    def written(part: LayerSlice, *rest: int) -> tuple[Kernel, ...]:
        run = block(part, *rest)
        if part.fused:
            run = tuple(_fused(run, part))
        return run if part.precisions is None else tuple(_cast(run, part))

    return written


def _fused(run: tuple[Kernel, ...], part: LayerSlice) -> Iterator[Kernel]:
    for kernel in run:
        if kernel.op != "elementwise":
            yield kernel
        elif "qkv" in part.fused and kernel.name == "qkv.join_gradients":
            continue
        elif "norm" in part.fused and kernel.name.endswith("_norm.backward"):
            share = _NORM_BACKWARD_SHARE * kernel.bytes_accessed
            yield kernel._replace(bytes_accessed=share, launches=2)
        elif "accumulation" in part.fused and kernel.name.endswith(".accumulate"):
            summed = 2 * part.main_grad_bytes
            share = summed / (part.element_bytes + summed)
            yield kernel._replace(bytes_accessed=share * kernel.bytes_accessed, launches=0)
        else:
            yield kernel


def _cast(run: tuple[Kernel, ...], part: LayerSlice) -> Iterator[Kernel]:
    for kernel in run:
        narrow = _precision(kernel, part)
        if narrow is None:
            yield kernel
            continue
        if not kernel.weight_gradient:
            yield elementwise(f"{kernel.name}.cast", cast_bytes(narrow) * kernel.m * kernel.k * kernel.batch)
        moved = PRECISION_BYTES[narrow] * (kernel.m * kernel.k + kernel.k * kernel.n) * kernel.batch
        moved += kernel.element_bytes * kernel.m * kernel.n * kernel.batch
        yield kernel._replace(precision=narrow, bytes_accessed=moved)


def _precision(kernel: Kernel, part: LayerSlice) -> Precision | None:
    """The precision of a product with weights; None where it has 16 bits, and for other kernels."""
    table = part.precisions
    if table is None or kernel.op != "gemm" or (kernel.batch > 1 and not kernel.grouped):
        return None
    if kernel.name.startswith(experts.ROUTER):
        return None
    if kernel.name.startswith("lm_head"):
        narrow = table.head
    elif kernel.weight_gradient:
        narrow = table.weight_gradient
    else:
        narrow = table.input_gradient if kernel.name.endswith(".dgrad") else table.forward
    return narrow if PRECISION_BYTES[narrow] < part.element_bytes else None


def cast_bytes(precision: Precision) -> float:
    """Bytes per number of a cast of 16 bits to two narrow copies, one of them transposed.

    One pass reads the number and writes both copies. Where the scale is that of the numbers themselves they
    are read once more to find it: for nvfp4 once; for fp8_rowwise the rows and the columns are scaled and
    written in passes of their own.
    """
    reads = {"fp8_rowwise": 8.0, "nvfp4": 4.0}.get(precision, 2.0)
    return reads + 2 * PRECISION_BYTES[precision]


def _attention(block: Block, before: Block, *, backward: bool = False) -> Block:
    """The attention block of any layer; that of multi-token prediction begins with a projection."""

    def whole(part: LayerSlice) -> tuple[Kernel, ...]:
        if not part.kind.mtp:
            return block(part)
        return (*block(part), *before(part)) if backward else (*before(part), *block(part))

    return wraps(block)(as_run(whole))


def _mlp(dense: Block, sparse: Block, behind: Block, *, backward: bool = False) -> Block:
    """The MLP block of any layer: an MLP or experts; that of multi-token prediction ends with a loss."""

    def whole(part: LayerSlice) -> tuple[Kernel, ...]:
        own = (sparse if part.kind.experts else dense)(part)
        if not part.kind.mtp:
            return own
        return (*behind(part), *own) if backward else (*own, *behind(part))

    return wraps(dense)(as_run(whole))


attention_forward = _attention(attention.attention_forward, layer.before_layer)
attention_backward = _attention(attention.attention_backward, layer.before_layer_backward, backward=True)
attention_dgrad = _attention(attention.attention_dgrad, layer.before_layer_dgrad, backward=True)
attention_wgrad = _attention(attention.attention_wgrad, layer.before_layer_wgrad, backward=True)
mlp_forward = _mlp(layer.mlp_forward, experts.mlp_forward, layer.behind_layer)
mlp_backward = _mlp(layer.mlp_backward, experts.mlp_backward, layer.behind_layer_backward, backward=True)
mlp_dgrad = _mlp(layer.mlp_dgrad, experts.mlp_dgrad, layer.behind_layer_dgrad, backward=True)
mlp_wgrad = _mlp(layer.mlp_wgrad, experts.mlp_wgrad, layer.behind_layer_wgrad, backward=True)
combine_forward = _mlp(experts.combine_forward, experts.combine_forward, layer.behind_layer)
combine_backward = _mlp(
    experts.combine_backward, experts.combine_backward, layer.behind_layer_backward, backward=True
)
combine_dgrad = _mlp(
    experts.combine_backward, experts.combine_backward, layer.behind_layer_dgrad, backward=True
)
router_forward, router_backward, router_dgrad = (
    as_run(block) for block in (experts.router_forward, experts.router_backward, experts.router_dgrad)
)
experts_forward, experts_backward, experts_dgrad = (
    as_run(block) for block in (experts.experts_forward, experts.experts_backward, experts.experts_dgrad)
)
shared_forward, shared_backward, shared_dgrad = (
    as_run(block) for block in (experts.shared_forward, experts.shared_backward, experts.shared_dgrad)
)
embedding_backward = as_run(layer.embedding_backward)
head_forward = as_run(layer.head_forward)
head_backward = as_run(layer.head_backward)
head_dgrad = as_run(layer.head_dgrad)
head_wgrad = as_run(layer.head_wgrad)
