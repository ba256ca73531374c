"""The backward of a layer in two passes: gradients of inputs (dgrad), then of weights (wgrad) [2401.10241].

The next stage waits only for dgrad; wgrad can run at any later time. Together they have the FLOPs of the
whole backward. A norm's wgrad reads its input and output gradient again, since dgrad is a kernel of its own.
"""

from __future__ import annotations

from perfsim.transformer.ends import cross_entropy_backward, head_linear
from perfsim.transformer.kernels import (
    Kernel,
    LayerSlice,
    activation,
    attention_core_backward,
    attention_projections,
    elementwise,
    join_gradients,
    linear_dgrad,
    linear_wgrad,
    mlp_linears,
    residual_backward,
    rotary,
)


def attention_dgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradient of the attention block's input, with the whole backward of the attention core."""
    qkv, projection = attention_projections(part)
    return (
        residual_backward("attention_residual.backward", part),
        linear_dgrad(projection),
        *attention_core_backward(part),
        *rotary(part),
        join_gradients(part),
        linear_dgrad(qkv),
        _norm_dgrad("attention_norm.dgrad", part),
    )


def attention_wgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of the attention block's weights, biases and norm, accumulated."""
    qkv, projection = attention_projections(part)
    grad, bias = part.main_grad_bytes, part.model.has_attention_bias
    return (
        *linear_wgrad(projection, grad, bias),
        *linear_wgrad(qkv, grad, bias),
        _norm_wgrad("attention_norm.wgrad", part),
    )


def mlp_dgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradient of the MLP block's input."""
    fc1, fc2 = mlp_linears(part)
    return (
        residual_backward("mlp_residual.backward", part),
        linear_dgrad(fc2),
        activation("activation.backward", part, 3),
        linear_dgrad(fc1),
        *((_norm_dgrad("mlp_norm.dgrad", part),) if part.model.norms_per_layer > 1 else ()),
    )


def mlp_wgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of the MLP block's weights, biases and norm, accumulated."""
    fc1, fc2 = mlp_linears(part)
    grad, bias = part.main_grad_bytes, part.model.bias
    return (
        *linear_wgrad(fc2, grad, bias),
        *linear_wgrad(fc1, grad, bias),
        *((_norm_wgrad("mlp_norm.wgrad", part),) if part.model.norms_per_layer > 1 else ()),
    )


def head_dgrad(part: LayerSlice, positions: int) -> tuple[Kernel, ...]:
    """Gradient of loss, LM head and final layer norm by their input."""
    head = head_linear(part, positions)
    return (cross_entropy_backward(part, head), linear_dgrad(head), _norm_dgrad("final_norm.dgrad", part))


def head_wgrad(part: LayerSlice, positions: int) -> tuple[Kernel, ...]:
    """Gradients of the LM head's weight and the final layer norm, accumulated."""
    head = head_linear(part, positions)
    return (
        *linear_wgrad(head, part.main_grad_bytes, bias=False),
        _norm_wgrad("final_norm.wgrad", part),
    )


def _norm_dgrad(name: str, part: LayerSlice) -> Kernel:
    """Input and output gradient read, input gradient written."""
    return elementwise(name, 3 * part.activation_bytes / part.norm_share)


def _norm_wgrad(name: str, part: LayerSlice) -> Kernel:
    """Gradients of scale and shift: both read, reduced in two kernels, accumulated."""
    return elementwise(name, 2 * part.activation_bytes / part.norm_share, launches=3)
