"""Kernels of the embedding by shape."""

from __future__ import annotations

from perfsim.transformer.kernels import Kernel, LayerSlice, elementwise, padded_vocab_size


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
