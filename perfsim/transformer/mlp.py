"""The MLP block of a layer without experts, and the shared experts of a layer with some."""

from __future__ import annotations

from perfsim.transformer.kernels import (
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


def mlp_linears(part: LayerSlice, prefix: str = "", ffn: int | None = None) -> tuple[Kernel, Kernel]:
    """The linear layers of an MLP of width `ffn`; None: the model's."""
    model, size = part.model, part.element_bytes
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
    grad, bias = part.main_grad_bytes, part.model.bias
    return (
        *linear_wgrad(fc2, grad, bias),
        *linear_wgrad(fc1, grad, bias),
        *((norm_wgrad("mlp_norm.wgrad", part),) if part.model.norms_per_layer > 1 else ()),
    )


def mlp_residual(part: LayerSlice) -> tuple[Kernel, ...]:
    """Bias, dropout and residual after the MLP's tensor-parallel all-reduce."""
    return (residual("mlp_residual", part),)
