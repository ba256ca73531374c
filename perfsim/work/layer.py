"""What a module of multi-token prediction adds to its layer [2412.19437 2.2, as Megatron-Core runs it].

Before the layer: the embedding of a later token and the hidden state, each through a norm, joined and
projected from 2 h to h. Behind the layer: the model's LM head and loss once more. Embedding and head share
the weights of the model's own, so a module has only the projection and three norms of its own.
"""

from __future__ import annotations

import math

from perfsim.specs.model import TransformerConfig
from perfsim.work.kernels import (
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
    residual,
    residual_backward,
)

# Kernels outside the layers: embedding, LM head and loss.

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
    table = rows * part.model.hidden_size
    size = part.element_bytes
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


def _head_linear(part: LayerSlice, positions: int) -> Kernel:
    """The LM head on `positions` per sequence."""
    vocab = padded_vocab_size(part.model, part.tensor)
    tokens = part.micro_batch_size * positions
    hidden = part.model.hidden_size
    size = part.element_bytes
    return linear("lm_head", tokens, hidden, vocab, "column", part.tensor, size)


def head_forward(part: LayerSlice, positions: int) -> tuple[Kernel, ...]:
    """Final layer norm, LM head on `positions` per sequence, cross-entropy."""
    head = _head_linear(part, positions)
    logits = float(head.m) * head.n
    passes = _cast_bytes(head.element_bytes) + CROSS_ENTROPY_FORWARD_BYTES
    fused = elementwise("cross_entropy", head.element_bytes * logits)
    loss = elementwise("cross_entropy", passes * logits, launches=12)
    return (norm("final_norm", part), head, fused if part.fused_cross_entropy else loss)


def _cross_entropy_backward(part: LayerSlice, head: Kernel) -> Kernel:
    """Gradient of the loss by the logits of the LM head; fused, it replaces them in place."""
    logits = float(head.m) * head.n
    if part.fused_cross_entropy:
        return elementwise("cross_entropy.backward", 2 * head.element_bytes * logits)
    passes = CROSS_ENTROPY_BACKWARD_BYTES + _cast_bytes(head.element_bytes)
    return elementwise("cross_entropy.backward", passes * logits, launches=6)


def head_backward(part: LayerSlice, positions: int) -> tuple[Kernel, ...]:
    """Backward of loss, LM head and final layer norm."""
    head = _head_linear(part, positions)
    return (
        _cross_entropy_backward(part, head),
        *linear_backward(head, part.main_grad_bytes, bias=False),
        norm_backward("final_norm.backward", part),
    )


def head_dgrad(part: LayerSlice, positions: int) -> tuple[Kernel, ...]:
    """Gradient of loss, LM head and final layer norm by their input."""
    head = _head_linear(part, positions)
    return (_cross_entropy_backward(part, head), linear_dgrad(head), norm_dgrad("final_norm.dgrad", part))


def head_wgrad(part: LayerSlice, positions: int) -> tuple[Kernel, ...]:
    """Gradients of the LM head's weight and the final layer norm, accumulated."""
    head = _head_linear(part, positions)
    return (*linear_wgrad(head, part.main_grad_bytes, bias=False), norm_wgrad("final_norm.wgrad", part))


# The MLP block of a layer without experts, and the shared experts of a layer with some.


def mlp_linears(part: LayerSlice, prefix: str = "", ffn: int | None = None) -> tuple[Kernel, Kernel]:
    """The linear layers of an MLP of width `ffn`; None: the model's."""
    model = part.model
    size = part.element_bytes
    ffn = model.ffn_hidden_size if ffn is None else ffn
    width = (2 if model.gated_mlp else 1) * ffn
    return (
        linear(f"{prefix}fc1", part.tokens, model.hidden_size, width, "column", part.tensor, size),
        linear(f"{prefix}fc2", part.tokens, ffn, model.hidden_size, "row", part.tensor, size),
    )


def activation(name: str, part: LayerSlice, passes: int, elements: float | None = None) -> Kernel:
    """GELU (or SwiGLU) in one kernel: `passes` reads and writes of `elements`; None: the MLP's."""
    gate = 1.5 if part.model.gated_mlp else 1.0
    if elements is None:
        elements = part.tokens * part.model.ffn_hidden_size / part.tensor
    return elementwise(name, passes * gate * part.element_bytes * elements)


def mlp_forward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Residual of the attention block, layer norm, and both linears of the MLP."""
    return (*mlp_before_fc2(part), mlp_linears(part)[1])


def mlp_before_fc2(part: LayerSlice) -> tuple[Kernel, ...]:
    """The same up to the last tensor that the backward reads."""
    return (
        *mlp_begin(part),
        mlp_linears(part)[0],
        activation("activation", part, 2),
    )


def mlp_begin(part: LayerSlice) -> tuple[Kernel, ...]:
    """Residual of the attention block, and the MLP's norm if it has one of its own."""
    own = (norm("mlp_norm", part),) if part.model.norms_per_layer > 1 else ()
    return (residual("attention_residual", part), *own)


def mlp_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Backward of the MLP block, residual first."""
    fc1, fc2 = mlp_linears(part)
    return (
        residual_backward("mlp_residual.backward", part),
        *linear_backward(fc2, part.main_grad_bytes, part.model.bias),
        activation("activation.backward", part, 3),
        *linear_backward(fc1, part.main_grad_bytes, part.model.bias),
        *((norm_backward("mlp_norm.backward", part),) if part.model.norms_per_layer > 1 else ()),
    )


def mlp_dgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradient of the MLP block's input."""
    fc1, fc2 = mlp_linears(part)
    return (
        residual_backward("mlp_residual.backward", part),
        linear_dgrad(fc2),
        activation("activation.backward", part, 3),
        linear_dgrad(fc1),
        *((norm_dgrad("mlp_norm.dgrad", part),) if part.model.norms_per_layer > 1 else ()),
    )


def mlp_wgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of the MLP block's weights, biases and norm, accumulated."""
    fc1, fc2 = mlp_linears(part)
    grad = part.main_grad_bytes
    bias = part.model.bias
    return (
        *linear_wgrad(fc2, grad, bias),
        *linear_wgrad(fc1, grad, bias),
        *((norm_wgrad("mlp_norm.wgrad", part),) if part.model.norms_per_layer > 1 else ()),
    )


def mlp_residual(part: LayerSlice) -> tuple[Kernel, ...]:
    """Bias, dropout and residual after the MLP's tensor-parallel all-reduce."""
    return (residual("mlp_residual", part),)


def _joint(part: LayerSlice) -> Kernel:
    """The projection of hidden state and embedding."""
    hidden = part.model.hidden_size
    return linear("mtp_joint", part.tokens, 2 * hidden, hidden, "column", part.tensor, part.element_bytes)


def _positions(part: LayerSlice) -> int:
    return part.seq_length // part.context


def _concatenate(part: LayerSlice, name: str) -> Kernel:
    return elementwise(name, 4 * part.activation_bytes / part.norm_share)


def before_layer(part: LayerSlice) -> tuple[Kernel, ...]:
    """Embedding, norms and projection."""
    norms = (norm("mtp_norm", part),) * 2
    return (*embedding_forward(part), *norms, _concatenate(part, "mtp_concatenate"), _joint(part))


def before_layer_dgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of hidden state and embedding."""
    norms = (norm_dgrad("mtp_norm.dgrad", part),) * 2
    return (linear_dgrad(_joint(part)), _concatenate(part, "mtp_concatenate.backward"), *norms)


def before_layer_wgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of the projection, its norms and the embedding."""
    norms = (norm_wgrad("mtp_norm.wgrad", part),) * 2
    return (*linear_wgrad(_joint(part), part.main_grad_bytes, False), *norms, *embedding_backward(part))


def before_layer_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """All of them."""
    return (
        linear_dgrad(_joint(part)),
        *linear_wgrad(_joint(part), part.main_grad_bytes, False),
        _concatenate(part, "mtp_concatenate.backward"),
        *(norm_backward("mtp_norm.backward", part),) * 2,
        *embedding_backward(part),
    )


def behind_layer(part: LayerSlice) -> tuple[Kernel, ...]:
    """Final norm, LM head and loss."""
    return head_forward(part, _positions(part))


def behind_layer_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Their backward."""
    return head_backward(part, _positions(part))


def behind_layer_dgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradient of their input."""
    return head_dgrad(part, _positions(part))


def behind_layer_wgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of their weights."""
    return head_wgrad(part, _positions(part))
