"""What a module of multi-token prediction adds to its layer [2412.19437 2.2, as Megatron-Core runs it].

Before the layer: the embedding of a later token and the hidden state, each through a norm, joined and
projected from 2 h to h. Behind the layer: the model's LM head and loss once more. Embedding and head share
the weights of the model's own, so a module has only the projection and three norms of its own.
"""

from __future__ import annotations

from perfsim.transformer.ends import (
    embedding_backward,
    embedding_forward,
    head_backward,
    head_dgrad,
    head_forward,
    head_wgrad,
)
from perfsim.transformer.kernels import (
    Kernel,
    LayerSlice,
    elementwise,
    linear,
    linear_dgrad,
    linear_wgrad,
    norm,
    norm_backward,
    norm_dgrad,
    norm_wgrad,
)


def joint(part: LayerSlice) -> Kernel:
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
    return (*embedding_forward(part), *norms, _concatenate(part, "mtp_concatenate"), joint(part))


def before_layer_dgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of hidden state and embedding."""
    norms = (norm_dgrad("mtp_norm.dgrad", part),) * 2
    return (linear_dgrad(joint(part)), _concatenate(part, "mtp_concatenate.backward"), *norms)


def before_layer_wgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of the projection, its norms and the embedding."""
    norms = (norm_wgrad("mtp_norm.wgrad", part),) * 2
    return (*linear_wgrad(joint(part), part.main_grad_bytes, False), *norms, *embedding_backward(part))


def before_layer_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """All of them."""
    return (
        linear_dgrad(joint(part)),
        *linear_wgrad(joint(part), part.main_grad_bytes, False),
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
