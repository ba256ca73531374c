"""Embedding, LM head and cross-entropy in NumPy, with the vocabulary split over tensor peers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.proof.execution.layout import Array, Share, Weights
from perfsim.proof.execution.projections import NormKept, norm_backward, norm_forward

Tokens = NDArray[np.int64]


class HeadKept(NamedTuple):
    """Activations that the LM head keeps: of its norm, its input, and the logits of this peer's words."""

    norm: NormKept
    z: Array
    logits: Array


class HeadInputs(NamedTuple):
    """Inputs of the LM head's wgrad."""

    z: Array
    d_logits: Array
    norm: Weights


def embedding_forward(w: Weights, tokens: Tokens, share: Share) -> Array:
    """Embeddings of the words that this peer holds, zero for others; the first peer adds positions."""
    local = tokens - share.first_row
    held = (local >= 0) & (local < share.rows)
    x = np.where(held[..., None], w["words"][np.where(held, local, 0)], 0.0)
    if share.leads and "positions" in w:
        x = x + w["positions"][list(share.places)]
    return x


def embedding_backward(dx: Array, tokens: Tokens, share: Share) -> Weights:
    """Gradients of the word rows of this peer, and of the positions."""
    local = tokens - share.first_row
    held = (local >= 0) & (local < share.rows)
    words = np.zeros((share.rows, dx.shape[-1]))
    np.add.at(words, local[held], dx[held])
    grads = {"words": words}
    if share.model.position_embedding == "learned":
        positions = np.zeros((share.seq_length, dx.shape[-1]))
        positions[list(share.places)] = dx.sum(axis=0)
        grads["positions"] = positions
    return grads


def head_forward(w: Weights, x: Array, targets: Tokens, share: Share) -> tuple[Array, HeadKept]:
    """Final norm and logits; returns maximum, sum of exponentials and target logit of each token.

    The peers exchange these three, as in Megatron's vocabulary-parallel cross-entropy. `targets` covers the
    positions that reach the LM head.
    """
    z, norm = norm_forward(x[:, : targets.shape[1]], w, "norm1")
    logits = z @ w["words"].T
    if "head_bias" in w:
        logits = logits + w["head_bias"]
    real = min(share.rows, share.model.vocab_size - share.first_row)
    logits[..., max(real, 0) :] = -np.inf  # padding rows take no part in the softmax
    most = logits.max(axis=-1)
    safe = np.where(np.isfinite(most), most, 0.0)
    total = np.exp(logits - safe[..., None]).sum(axis=-1)
    local = targets - share.first_row
    held = (local >= 0) & (local < max(real, 0))
    target = np.take_along_axis(logits, np.where(held, local, 0)[..., None], axis=-1)[..., 0]
    return np.stack([safe, total, np.where(held, target, 0.0)]), HeadKept(norm, z, logits)


def merged_statistics(parts: list[Array]) -> Array:
    """The statistics of all words from those of each peer: log-sum-exp in parts."""
    most = np.max([part[0] for part in parts], axis=0)
    total = sum(part[1] * np.exp(part[0] - most) for part in parts)
    return np.stack([most, np.asarray(total), np.sum([part[2] for part in parts], axis=0)])


def losses_of(statistics: Array, num_tokens: float) -> Array:
    """The part of each token in the mean loss over `num_tokens`, shape (samples, positions)."""
    most, total, target = statistics
    return np.asarray((most + np.log(total) - target) / num_tokens)


def head_dgrad(
    w: Weights,
    kept: HeadKept,
    statistics: Array,
    targets: Tokens,
    num_tokens: float,
    share: Share,
    length: int,
) -> tuple[Array, HeadInputs]:
    """The peer's part of the gradient of the last layer's output, and the inputs of the wgrad."""
    d_logits = np.exp(kept.logits - statistics[0][..., None]) / statistics[1][..., None]
    local = targets - share.first_row
    n, s = np.nonzero((local >= 0) & (local < share.rows))
    d_logits[n, s, local[n, s]] -= 1.0
    d_logits /= num_tokens
    dz, norm = norm_backward(d_logits @ w["words"], w, "norm1", kept.norm)
    dx = np.zeros((len(targets), length, dz.shape[-1]))
    dx[:, : targets.shape[1]] = dz
    return dx, HeadInputs(kept.z, d_logits, norm)


def head_wgrad(inputs: HeadInputs, share: Share) -> Weights:
    """Gradients of the LM head's rows and bias."""
    width = inputs.d_logits.shape[-1]
    flat = inputs.d_logits.reshape(-1, width)
    grads = {"words": flat.T @ inputs.z.reshape(-1, inputs.z.shape[-1])}
    if share.model.head_bias:
        grads["head_bias"] = flat.sum(axis=0)
    return grads
