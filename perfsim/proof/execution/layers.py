"""One transformer layer in NumPy, float64: forward, and backward as a whole or in two passes.

Every function works on one tensor peer's share: column-parallel first linears, row-parallel second ones,
so outputs are partial sums until the peers' collective adds them [1909.08053]. Terms that must enter this
sum only once (residuals, biases of row-parallel linears) are added by the first peer. The backward of a
norm is linear in its output gradient, so it is applied to the partial sum and commutes with the
collective; the gradients of its scale and shift are partial sums too and are returned separately, as are
those of other weights that every peer holds whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from perfsim.proof.execution.layout import Array, Share, Weights
from perfsim.proof.execution.projections import (
    Heads,
    NormKept,
    Results,
    latent_heads,
    latent_heads_dgrad,
    made,
    merge_heads,
    norm_backward,
    norm_forward,
    outer,
    plain_heads,
    plain_heads_dgrad,
    split_heads,
)

Places = tuple[tuple[int, ...], tuple[int, ...]]
"""Positions of queries, and of keys."""


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
    inner: Any = None
    """What norms between products and core keep, with the inputs of later products."""
    results: Results | None = None
    """What the products made."""


class MlpKept(NamedTuple):
    """Activations that an MLP block keeps."""

    norm: NormKept
    z: Array
    u: Array
    activated: Array


class Linears(NamedTuple):
    """Inputs and output gradients of a block's linears, which its weight gradients read."""

    products: Mapping[str, tuple[Array, Array]]
    """By the weight of each product."""
    norm: Weights
    """Gradients of norms and of other weights that every peer holds whole; of peers, partial sums."""


# ------------------------------------------------------------------------------------- attention
def attention_forward(
    w: Weights, x: Array, share: Share, results: Results | None = None, context: Array | None = None
) -> tuple[Array, AttentionKept]:
    """Norm, projections, core, output projection: this peer's part of the block's output.

    Of `results` and the core's `context`, what was kept is not computed again.
    """
    kept = with_core(attention_inputs(w, x, share, results), share, context)
    out = None if results is None else results.get("projection")
    if out is None or np.isnan(out).any():
        out = attention_output(w, kept, share)
    return out, kept._replace(results={**(kept.results or {}), "projection": out})


def attention_inputs(w: Weights, x: Array, share: Share, results: Results | None = None) -> AttentionKept:
    """Norm, queries, keys and values, without the core; `results` of products are not computed again."""
    z, norm = norm_forward(x, w, "norm1")
    make = plain_heads if share.model.latent_attention is None else latent_heads
    projected = make(w, z, share, results or {})
    return AttentionKept(
        x, norm, z, *projected.heads, None, None, inner=projected.inner, results=projected.results
    )


def attention_output(w: Weights, kept: AttentionKept, share: Share) -> Array:
    """Output projection: this peer's part of the block's output."""
    out = merge_heads(_required(kept.context)) @ w["projection"]
    if "projection_bias" in w and share.leads:
        out = out + w["projection_bias"]
    return out


def with_core(kept: AttentionKept, share: Share, context: Array | None = None) -> AttentionKept:
    """The activations with scores and softmax of queries and keys, and with context if it is not given."""
    probabilities = softmax(masked_scores(kept.q, kept.k, (share.places, share.places), share))
    if context is None:
        context = probabilities @ repeated(kept.v, share)
    return kept._replace(probabilities=probabilities, context=context)


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
    return split_heads(d_out @ w["projection"].T, share.heads)


def attention_inputs_dgrad(
    w: Weights, kept: AttentionKept, gradients: Heads, d_out: Array, share: Share
) -> tuple[Array, Linears]:
    """`attention_dgrad` from the gradients of queries, keys and values on."""
    back = plain_heads_dgrad if share.model.latent_attention is None else latent_heads_dgrad
    before = back(w, kept.z, kept.inner, gradients, share)
    dx, norm = norm_backward(before.z, w, "norm1", kept.norm)
    out = merge_heads(_required(kept.context)), d_out
    return dx, Linears({**before.products, "projection": out}, norm | before.whole)


def attention_wgrad(inputs: Linears, share: Share) -> Weights:
    """Gradients of the attention block's linears but those that every peer holds whole."""
    return _linear_grads(inputs, bias=share.model.has_attention_bias)


# ------------------------------------------------------------------------------------------- MLP
def mlp_forward(
    w: Weights, x: Array, attention: Array, share: Share, results: Results | None = None
) -> tuple[Array, MlpKept]:
    """Residual of the attention block, norm, both linears; the first peer's part carries the residual."""
    total = x + attention
    parallel = share.model.norms_per_layer == 1
    z, norm = norm_forward(x if parallel else total, w, "norm1" if parallel else "norm2")
    u = made(w, "fc1", z, results or {})
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
    return dx, Linears({"fc1": (kept.z, du), "fc2": (kept.activated, dy)}, norm)


def mlp_wgrad(inputs: Linears, share: Share) -> Weights:
    """Gradients of the MLP's linears."""
    return _linear_grads(inputs, bias=share.model.bias)


# --------------------------------------------------------------------------------------- helpers
def _linear_grads(inputs: Linears, *, bias: bool) -> Weights:
    grads = {name: outer(x, dy) for name, (x, dy) in inputs.products.items()}
    if bias:
        grads |= {f"{name}_bias": dy.sum(axis=(0, 1)) for name, (_, dy) in inputs.products.items()}
    return grads


def _required(value: Array | None) -> Array:
    """An activation that must have been kept or recomputed."""
    if value is None:
        raise ValueError("the attention core was neither kept nor recomputed")
    return value


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


GELU_SCALE, GELU_CUBIC = math.sqrt(2.0 / math.pi), 0.044715
"""GELU by its tanh approximation [1606.08415]."""


def activation_forward(u: Array, share: Share) -> Array:
    """GELU; in a gated MLP SiLU of the first half times the second [2002.05202]."""
    if share.model.gated_mlp:
        gate, up = u[..., : u.shape[-1] // 2], u[..., u.shape[-1] // 2 :]
        return gate / (1.0 + np.exp(-gate)) * up
    return 0.5 * u * (1.0 + np.tanh(GELU_SCALE * (u + GELU_CUBIC * u * u * u)))


def activation_backward(u: Array, d: Array, share: Share) -> Array:
    """Gradient of the activation's input."""
    if share.model.gated_mlp:
        gate, up = u[..., : u.shape[-1] // 2], u[..., u.shape[-1] // 2 :]
        sigmoid = 1.0 / (1.0 + np.exp(-gate))
        d_gate = d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
        return np.concatenate([d_gate, d * gate * sigmoid], axis=-1)
    t = np.tanh(GELU_SCALE * (u + GELU_CUBIC * u * u * u))
    slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * u * u)
    return d * (0.5 * (1.0 + t) + 0.5 * u * (1.0 - t * t) * slope)
