"""Kernels outside the layers: embedding, LM head and loss."""

from __future__ import annotations

import math

from perfsim.transformer.kernels import (
    FULL,
    Kernel,
    LayerSlice,
    elementwise,
    linear,
    linear_backward,
    linear_dgrad,
    linear_wgrad,
    norm,
    norm_backward,
    norm_dgrad,
    norm_wgrad,
)
from perfsim.workload import TransformerConfig

VOCAB_MULTIPLE = 128
"""Megatron pads the vocabulary to a multiple of this times the tensor degree."""


def padded_vocab_size(model: TransformerConfig, tensor: int) -> int:
    """Vocabulary rounded up to whole tiles on every tensor rank (Megatron's padding)."""
    multiple = VOCAB_MULTIPLE * tensor
    return math.ceil(model.vocab_size / multiple) * multiple


def embedding_forward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Word lookup, addition of positions, dropout."""
    return (
        elementwise("embedding_lookup", 2 * part.activation_bytes, launches=4),
        elementwise("embedding_positions", 5 * part.activation_bytes, launches=2),
    )


def embedding_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradient of the lookup: scattered into a dense table, then accumulated."""
    rows = padded_vocab_size(part.model, part.tensor) / part.tensor
    table, size = rows * part.model.hidden_size, part.element_bytes
    return (
        elementwise("embedding.scatter", 3 * part.activation_bytes + size * table, launches=4),
        elementwise("embedding.accumulate", table * (size + 2 * part.main_grad_bytes)),
    )


CROSS_ENTROPY_FORWARD_BYTES = 32.0
"""Per logit, in the fp32 passes of Megatron-LM's vocabulary-parallel cross-entropy: maximum (4), subtract
(8), exponential (8), sum (4), divide by the sum (8); before them logits in 16 bits are cast."""
CROSS_ENTROPY_BACKWARD_BYTES = 8.0
"""Per logit: scale by the incoming gradient; after it the gradient is cast to the precision of the logits."""


def _cast_bytes(element_bytes: float) -> float:
    """Bytes read and written by a cast of one number to or from fp32; none if it is in fp32."""
    return element_bytes + FULL if element_bytes < FULL else 0.0


def head_linear(part: LayerSlice, positions: int) -> Kernel:
    """The LM head on `positions` per sequence."""
    vocab = padded_vocab_size(part.model, part.tensor)
    tokens = part.micro_batch_size * positions
    hidden, size = part.model.hidden_size, part.element_bytes
    return linear("lm_head", tokens, hidden, vocab, "column", part.tensor, size)


def head_forward(part: LayerSlice, positions: int) -> tuple[Kernel, ...]:
    """Final layer norm, LM head on `positions` per sequence, cross-entropy."""
    head = head_linear(part, positions)
    logits, passes = float(head.m) * head.n, _cast_bytes(head.element_bytes) + CROSS_ENTROPY_FORWARD_BYTES
    fused = elementwise("cross_entropy", head.element_bytes * logits)
    loss = elementwise("cross_entropy", passes * logits, launches=12)
    return (norm("final_norm", part), head, fused if part.fused_cross_entropy else loss)


def cross_entropy_backward(part: LayerSlice, head: Kernel) -> Kernel:
    """Gradient of the loss by the logits of the LM head; fused, it replaces them in place."""
    logits = float(head.m) * head.n
    if part.fused_cross_entropy:
        return elementwise("cross_entropy.backward", 2 * head.element_bytes * logits)
    passes = CROSS_ENTROPY_BACKWARD_BYTES + _cast_bytes(head.element_bytes)
    return elementwise("cross_entropy.backward", passes * logits, launches=6)


def head_backward(part: LayerSlice, positions: int) -> tuple[Kernel, ...]:
    """Backward of loss, LM head and final layer norm."""
    head = head_linear(part, positions)
    return (
        cross_entropy_backward(part, head),
        *linear_backward(head, part.main_grad_bytes, bias=False),
        norm_backward("final_norm.backward", part),
    )


def head_dgrad(part: LayerSlice, positions: int) -> tuple[Kernel, ...]:
    """Gradient of loss, LM head and final layer norm by their input."""
    head = head_linear(part, positions)
    return (cross_entropy_backward(part, head), linear_dgrad(head), norm_dgrad("final_norm.dgrad", part))


def head_wgrad(part: LayerSlice, positions: int) -> tuple[Kernel, ...]:
    """Gradients of the LM head's weight and the final layer norm, accumulated."""
    head = head_linear(part, positions)
    return (*linear_wgrad(head, part.main_grad_bytes, bias=False), norm_wgrad("final_norm.wgrad", part))
