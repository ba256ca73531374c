"""One transformer layer in NumPy, float64: forward, and backward as a whole or in two passes.

Every function works on one tensor peer's share: column-parallel first linears, row-parallel second ones,
so outputs are partial sums until the peers' collective adds them [1909.08053]. Terms that must enter this
sum only once (residuals, biases of row-parallel linears) are added by the first peer. The backward of a
norm is linear in its output gradient, so it is applied to the partial sum and commutes with the
collective; the gradients of its scale and shift are partial sums too and are returned separately.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from perfsim.proof.execution.layout import Array, Share, Weights

NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0
Places = tuple[tuple[int, ...], tuple[int, ...]]
"""Positions of queries, and of keys."""


class NormKept(NamedTuple):
    """Inputs of a norm's backward: the normalised input and the inverse of its deviation."""

    normal: Array
    inverse: Array


class AttentionKept(NamedTuple):
    """Activations that an attention block keeps; None for those of a core to recompute."""

    x: Array
    norm: NormKept
    z: Array
    q: Array
    k: Array
    v: Array
    probabilities: Array | None
    context: Array | None
    core: Any = None
    """What the core keeps instead of probabilities where context ranks share a sequence."""


class MlpKept(NamedTuple):
    """Activations that an MLP block keeps."""

    norm: NormKept
    z: Array
    u: Array
    activated: Array


class Linears(NamedTuple):
    """Inputs and output gradients of a block's linears, which its weight gradients read."""

    first_in: Array
    first_out: Array
    second_in: Array
    second_out: Array
    norm: Weights
    """Gradients of scale and shift; partial sums if there are peers."""


# ------------------------------------------------------------------------------------------ norm
def norm_forward(x: Array, w: Weights, name: str) -> tuple[Array, NormKept]:
    """Layer norm, or without a shift RMS norm, which does not centre either."""
    shift = w.get(f"{name}.shift")
    centred = x if shift is None else x - _mean(x)
    inverse = 1.0 / np.sqrt(_mean(centred * centred) + NORM_EPSILON)
    normal = centred * inverse
    y = normal * w[f"{name}.scale"]
    return (y if shift is None else y + shift), NormKept(normal, inverse)


def norm_backward(dy: Array, w: Weights, name: str, kept: NormKept) -> tuple[Array, Weights]:
    """Gradient of a norm's input, and of its scale and shift."""
    scale, centres = w[f"{name}.scale"], f"{name}.shift" in w
    d_normal = dy * scale
    dx = d_normal - kept.normal * _mean(d_normal * kept.normal)
    if centres:
        dx = dx - _mean(d_normal)
    grads = {f"{name}.scale": (dy * kept.normal).sum(axis=(0, 1))}
    if centres:
        grads[f"{name}.shift"] = dy.sum(axis=(0, 1))
    return dx * kept.inverse, grads


def _mean(x: Array) -> Array:
    """Mean over the last axis; on small arrays faster than `mean`."""
    return np.asarray(np.add.reduce(x, axis=-1, keepdims=True) / x.shape[-1])


# ------------------------------------------------------------------------------------- attention
def attention_forward(w: Weights, x: Array, share: Share) -> tuple[Array, AttentionKept]:
    """Norm, QKV, core, output projection: this peer's part of the block's output."""
    kept = with_core(attention_inputs(w, x, share), share)
    return attention_output(w, kept, share), kept


def attention_inputs(w: Weights, x: Array, share: Share) -> AttentionKept:
    """Norm, queries, keys and values, without the core."""
    z, norm = norm_forward(x, w, "norm1")
    mixed = z @ w["qkv"]
    if "qkv_bias" in w:
        mixed = mixed + w["qkv_bias"]
    q, k, v = _split_heads(mixed, share)
    q, k = _rotated(q, share, 1.0), _rotated(k, share, 1.0)
    return AttentionKept(x, norm, z, q, k, v, None, None)


def attention_output(w: Weights, kept: AttentionKept, share: Share) -> Array:
    """Output projection: this peer's part of the block's output."""
    out = _merge_heads(_required(kept.context)) @ w["projection"]
    if "projection_bias" in w and share.leads:
        out = out + w["projection_bias"]
    return out


def with_core(kept: AttentionKept, share: Share) -> AttentionKept:
    """The activations with scores, softmax and context computed from queries, keys and values."""
    probabilities = softmax(masked_scores(kept.q, kept.k, (share.places, share.places), share))
    return kept._replace(probabilities=probabilities, context=probabilities @ repeated(kept.v, share))


def without_core(kept: AttentionKept) -> AttentionKept:
    """The activations that selective recompute keeps."""
    return kept._replace(probabilities=None, context=None)


def attention_dgrad(w: Weights, kept: AttentionKept, d_out: Array, share: Share) -> tuple[Array, Linears]:
    """The peer's part of the input gradient without the residual, and the inputs of the wgrad."""
    p, d_context = _required(kept.probabilities), context_gradient(w, d_out, share)
    d_p = d_context @ np.swapaxes(repeated(kept.v, share), -1, -2)
    d_v = folded(np.swapaxes(p, -1, -2) @ d_context, share)
    d_scores = p * (d_p - (d_p * p).sum(axis=-1, keepdims=True)) / math.sqrt(share.model.head_size)
    d_q = d_scores @ repeated(kept.k, share)
    d_k = folded(np.swapaxes(d_scores, -1, -2) @ kept.q, share)
    return attention_inputs_dgrad(w, kept, (d_q, d_k, d_v), d_out, share)


def context_gradient(w: Weights, d_out: Array, share: Share) -> Array:
    """Gradient of the core's output, by head."""
    return _heads(d_out @ w["projection"].T, share.heads, share)


def attention_inputs_dgrad(
    w: Weights, kept: AttentionKept, gradients: tuple[Array, Array, Array], d_out: Array, share: Share
) -> tuple[Array, Linears]:
    """`attention_dgrad` from the gradients of queries, keys and values on."""
    d_q, d_k, d_v = gradients
    d_q, d_k = _rotated(d_q, share, -1.0), _rotated(d_k, share, -1.0)
    d_mixed = np.concatenate([_merge_heads(gradient) for gradient in (d_q, d_k, d_v)], axis=-1)
    dx, norm = norm_backward(d_mixed @ w["qkv"].T, w, "norm1", kept.norm)
    return dx, Linears(kept.z, d_mixed, _merge_heads(_required(kept.context)), d_out, norm)


def attention_wgrad(inputs: Linears, share: Share) -> Weights:
    """Gradients of the attention block's linears."""
    return _linear_grads(inputs, "qkv", "projection", bias=share.model.has_attention_bias)


# ------------------------------------------------------------------------------------------- MLP
def mlp_forward(w: Weights, x: Array, attention: Array, share: Share) -> tuple[Array, MlpKept]:
    """Residual of the attention block, norm, both linears; the first peer's part carries the residual."""
    total = x + attention
    parallel = share.model.norms_per_layer == 1
    z, norm = norm_forward(x if parallel else total, w, "norm1" if parallel else "norm2")
    u = z @ w["fc1"]
    if "fc1_bias" in w:
        u = u + w["fc1_bias"]
    activated = activation_forward(u, share)
    y = activated @ w["fc2"]
    if share.leads:
        y = y + total
        if "fc2_bias" in w:
            y = y + w["fc2_bias"]
    return y, MlpKept(norm, z, u, activated)


def mlp_dgrad(w: Weights, kept: MlpKept, dy: Array, share: Share) -> tuple[Array, Linears]:
    """The peer's part of the input gradient with the residual, and the inputs of the wgrad."""
    du = activation_backward(kept.u, dy @ w["fc2"].T, share)
    name = "norm1" if share.model.norms_per_layer == 1 else "norm2"
    dx, norm = norm_backward(du @ w["fc1"].T, w, name, kept.norm)
    if share.leads:
        dx = dx + dy
    return dx, Linears(kept.z, du, kept.activated, dy, norm)


def mlp_wgrad(inputs: Linears, share: Share) -> Weights:
    """Gradients of the MLP's linears."""
    return _linear_grads(inputs, "fc1", "fc2", bias=share.model.bias)


# --------------------------------------------------------------------------------------- helpers
def _linear_grads(inputs: Linears, first: str, second: str, *, bias: bool) -> Weights:
    grads = {
        first: outer(inputs.first_in, inputs.first_out),
        second: outer(inputs.second_in, inputs.second_out),
    }
    if bias:
        grads[f"{first}_bias"] = inputs.first_out.sum(axis=(0, 1))
        grads[f"{second}_bias"] = inputs.second_out.sum(axis=(0, 1))
    return grads


def outer(x: Array, dy: Array) -> Array:
    """Sum over tokens of x (k) times dy (n)."""
    return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])


def _required(value: Array | None) -> Array:
    """An activation that must have been kept or recomputed."""
    if value is None:
        raise ValueError("the attention core was neither kept nor recomputed")
    return value


def _heads(x: Array, count: int, share: Share) -> Array:
    """(n, s, heads * d) to (n, heads, s, d)."""
    return x.reshape(*x.shape[:2], count, share.model.head_size).swapaxes(1, 2)


def _split_heads(mixed: Array, share: Share) -> tuple[Array, Array, Array]:
    size = share.model.head_size
    q, kv = share.heads * size, share.groups * size
    parts = (mixed[..., :q], mixed[..., q : q + kv], mixed[..., q + kv :])
    q_heads, k_heads, v_heads = (
        _heads(part, count, share)
        for part, count in zip(parts, (share.heads, share.groups, share.groups), strict=True)
    )
    return q_heads, k_heads, v_heads


def _merge_heads(x: Array) -> Array:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def repeated(x: Array, share: Share) -> Array:
    """Keys or values of each group, repeated for each query head."""
    times = share.heads // share.groups
    return x if times == 1 else np.repeat(x, times, axis=1)


def folded(dx: Array, share: Share) -> Array:
    """Gradients of keys or values summed over the query heads of each group."""
    if share.heads == share.groups:
        return dx
    n, _, s, d = dx.shape
    return np.asarray(dx.reshape(n, -1, share.heads // share.groups, s, d).sum(axis=2))


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def masked_scores(q: Array, k: Array, places: Places, share: Share, first_head: int = 0) -> Array:
    """Scores of queries and keys at these places, with terms added to them.

    They are minus infinity for the future if causal and before a window, and ALiBi's slopes [2108.12409].
    `q` begins with the peer's head `first_head`.
    """
    scores = q @ np.swapaxes(repeated(k, share), -1, -2) / math.sqrt(share.model.head_size)
    scores = scores + _hidden(*places, causal=share.model.causal, window=share.window)
    if share.model.position_embedding != "alibi":
        return np.asarray(scores)
    number = share.peer * share.heads + first_head + np.arange(q.shape[1])
    slope = 2.0 ** (-8.0 * (number + 1) / share.model.num_attention_heads)
    distance = np.abs(np.array(places[0])[:, None] - np.array(places[1])[None, :])
    return np.asarray(scores - slope[:, None, None] * distance)


@lru_cache(maxsize=64)
def _hidden(queries: tuple[int, ...], keys: tuple[int, ...], *, causal: bool, window: int | None) -> Array:
    distance = np.array(queries)[:, None] - np.array(keys)[None, :]
    before = False if window is None else distance >= window
    return np.where(((distance < 0) & causal) | before, -np.inf, 0.0)


def _rotated(x: Array, share: Share, direction: float) -> Array:
    """Rotary positions [2104.09864]: pairs of entries rotated by position times frequency."""
    if share.model.position_embedding != "rotary":
        return x
    half = share.model.head_size // 2
    cosine, sine = _angles(share.places, half)
    sine = direction * sine
    a, b = x[..., :half], x[..., half : 2 * half]
    turned = (a * cosine - b * sine, a * sine + b * cosine)
    return np.concatenate([*turned, x[..., 2 * half :]], axis=-1)


@lru_cache(maxsize=64)
def _angles(places: tuple[int, ...], half: int) -> tuple[Array, Array]:
    angle = np.array(places)[:, None] / ROTARY_BASE ** (np.arange(half) / half)
    return np.cos(angle), np.sin(angle)


GELU_SCALE, GELU_CUBIC = math.sqrt(2.0 / math.pi), 0.044715
"""GELU by its tanh approximation [1606.08415]."""


def activation_forward(u: Array, share: Share) -> Array:
    """GELU; in a gated MLP SiLU of the first half times the second [2002.05202]."""
    if share.model.gated_mlp:
        gate, up = np.split(u, 2, axis=-1)
        return gate / (1.0 + np.exp(-gate)) * up
    return 0.5 * u * (1.0 + np.tanh(GELU_SCALE * (u + GELU_CUBIC * u * u * u)))


def activation_backward(u: Array, d: Array, share: Share) -> Array:
    """Gradient of the activation's input."""
    if share.model.gated_mlp:
        gate, up = np.split(u, 2, axis=-1)
        sigmoid = 1.0 / (1.0 + np.exp(-gate))
        d_gate = d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
        return np.concatenate([d_gate, d * gate * sigmoid], axis=-1)
    t = np.tanh(GELU_SCALE * (u + GELU_CUBIC * u * u * u))
    slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * u * u)
    return d * (0.5 * (1.0 + t) + 0.5 * u * (1.0 - t * t) * slope)
