"""From the input of an attention block to queries, keys and values in NumPy, and back.

One product makes them all, or they pass through narrow latents. Norms and rotary positions are between the
products and the core. Tensor peers make those of their own heads; norms and products down to latents are
whole on each peer, and their gradients are partial sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from perfsim.proof.execution.layout import Array, Share, Weights
from perfsim.workload import LatentAttention

Results = Mapping[str, Array]
"""What products of a layer made, by their weight; columns that were not kept are not numbers."""
NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0


class NormKept(NamedTuple):
    """Inputs of a norm's backward: the normalised input and the inverse of its deviation."""

    normal: Array
    inverse: Array


Heads = tuple[Array, Array, Array]
"""Queries, keys and values, or their gradients; shapes (samples, heads, positions, width)."""


class Projected(NamedTuple):
    """What the core reads, and what its backward needs besides."""

    heads: Heads
    inner: Any
    results: Results


class ProjectedGradients(NamedTuple):
    """Gradient of what the projections read, and of their weights."""

    z: Array
    products: Mapping[str, tuple[Array, Array]]
    whole: Weights


class LatentsKept(NamedTuple):
    """What latent attention keeps: of both norms, and the inputs of the products up to all heads."""

    query: NormKept | None
    query_in: Array
    pair: NormKept
    pair_in: Array


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
    tokens = tuple(range(dy.ndim - 1))
    grads = {f"{name}.scale": (dy * kept.normal).sum(axis=tokens)}
    if centres:
        grads[f"{name}.shift"] = dy.sum(axis=tokens)
    return dx * kept.inverse, grads


def _mean(x: Array) -> Array:
    """Mean over the last axis; on small arrays faster than `mean`."""
    return np.asarray(np.add.reduce(x, axis=-1, keepdims=True) / x.shape[-1])


def plain_heads(w: Weights, z: Array, share: Share, results: Results) -> Projected:
    """Queries, keys and values of one product, normalised by head if the model says so, and rotated."""
    mixed = made(w, "qkv", z, results)
    q, k, v = _split_heads(mixed, share)
    inner = None
    if share.model.qk_layernorm:
        (q, of_q), (k, of_k) = norm_forward(q, w, "query_norm"), norm_forward(k, w, "key_norm")
        inner = of_q, of_k
    heads = rotated(q, share, 1.0), rotated(k, share, 1.0), v
    return Projected(heads, inner, {**results, "qkv": mixed})


def plain_heads_dgrad(w: Weights, z: Array, inner: Any, gradients: Heads, share: Share) -> ProjectedGradients:
    """The backward of `plain_heads`."""
    d_q, d_k, d_v = gradients
    d_q, d_k = rotated(d_q, share, -1.0), rotated(d_k, share, -1.0)
    norms: Weights = {}
    if share.model.qk_layernorm:
        of_q, of_k = inner
        (d_q, norms), (d_k, other) = (
            norm_backward(d_q, w, "query_norm", of_q),
            norm_backward(d_k, w, "key_norm", of_k),
        )
        norms = norms | other
    d_mixed = np.concatenate([merge_heads(gradient) for gradient in (d_q, d_k, d_v)], axis=-1)
    return ProjectedGradients(d_mixed @ w["qkv"].T, {"qkv": (z, d_mixed)}, norms)


def latent_heads(w: Weights, z: Array, share: Share, results: Results) -> Projected:
    """Queries, and keys with values, through latents [2405.04434]; all heads have one rotary part of keys."""
    latent, whole, of_query, query_in = _latent_of(share), dict(results), None, z
    if latent.q_lora_rank is not None:
        down = whole["query_down"] = made(w, "query_down", z, results)
        query_in, of_query = norm_forward(down, w, "query_norm")
    query = whole["query"] = made(w, "query", query_in, results)
    down = whole["pair_down"] = made(w, "pair_down", z, results)
    narrow, common = down[..., : latent.kv_lora_rank], down[..., latent.kv_lora_rank :]
    pair_in, of_pair = norm_forward(narrow, w, "pair_norm")
    pair = whole["pair"] = made(w, "pair", pair_in, results)
    plain, queries, pairs = (
        latent.qk_nope_head_dim,
        split_heads(query, share.heads),
        split_heads(pair, share.heads),
    )
    q = np.concatenate([queries[..., :plain], rotated(queries[..., plain:], share, 1.0)], axis=-1)
    common = np.repeat(rotated(common[:, None], share, 1.0), share.heads, axis=1)
    k = np.concatenate([pairs[..., :plain], common], axis=-1)
    return Projected((q, k, pairs[..., plain:]), LatentsKept(of_query, query_in, of_pair, pair_in), whole)


def latent_heads_dgrad(
    w: Weights, z: Array, inner: LatentsKept, gradients: Heads, share: Share
) -> ProjectedGradients:
    """The backward of `latent_heads`; tensor peers have the products down whole, with parts of their sums."""
    (d_q, d_k, d_v), plain = gradients, _latent_of(share).qk_nope_head_dim
    turned = rotated(d_q[..., plain:], share, -1.0)
    d_query = merge_heads(np.concatenate([d_q[..., :plain], turned], axis=-1))
    common = rotated(d_k[..., plain:].sum(axis=1, keepdims=True), share, -1.0)[:, 0]
    d_pair = merge_heads(np.concatenate([d_k[..., :plain], d_v], axis=-1))
    narrow, whole = norm_backward(d_pair @ w["pair"].T, w, "pair_norm", inner.pair)
    down = {"pair_down": np.concatenate([narrow, common], axis=-1)}
    dz = d_query @ w["query"].T
    if inner.query is not None:
        down["query_down"], norm = norm_backward(dz, w, "query_norm", inner.query)
        dz, whole = down["query_down"] @ w["query_down"].T, whole | norm
    for name, gradient in down.items():
        whole[name] = outer(z, gradient)
        if f"{name}_bias" in w:
            whole[f"{name}_bias"] = gradient.sum(axis=(0, 1))
    dz = dz + down["pair_down"] @ w["pair_down"].T
    products = {"query": (inner.query_in, d_query), "pair": (inner.pair_in, d_pair)}
    return ProjectedGradients(dz, products, whole)


def _latent_of(share: Share) -> LatentAttention:
    latent = share.model.latent_attention
    if latent is None:
        raise ValueError(f"{share.model.name} has no latent attention")
    return latent


def made(w: Weights, name: str, x: Array, results: Results) -> Array:
    """What a linear with its bias makes; only columns that were not kept are computed."""
    kept = results.get(name)
    again = slice(None) if kept is None else np.isnan(kept).all(axis=(0, 1))
    y = x @ w[name][:, again]
    if f"{name}_bias" in w:
        y = y + w[f"{name}_bias"][again]
    if kept is None:
        return y
    whole = kept.copy()
    whole[..., again] = y
    return whole


def every_second(results: Results, share: Share) -> Results:
    """The results of the first, third, ... product of a layer, where queries, keys and values are three.

    So are both halves of a gated MLP [torchtitan's selective checkpoint by operator].
    """
    size, number, kept = share.model.head_size, 0, dict[str, Array]()
    for name, values in results.items():
        bounds = {"qkv": [share.heads * size, (share.heads + share.groups) * size]}.get(name, [])
        if name == "fc1" and share.model.gated_mlp:
            bounds = [values.shape[-1] // 2]
        parts = np.split(values, bounds, axis=-1)
        odd = [(number + place) % 2 == 1 for place in range(len(parts))]
        columns = [np.full_like(part, np.nan) if out else part for part, out in zip(parts, odd, strict=True)]
        kept[name], number = np.concatenate(columns, axis=-1), number + len(parts)
    return kept


def outer(x: Array, dy: Array) -> Array:
    """Sum over tokens of x (k) times dy (n)."""
    return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])


def split_heads(x: Array, count: int) -> Array:
    """(n, s, heads * d) to (n, heads, s, d)."""
    return x.reshape(*x.shape[:2], count, x.shape[-1] // count).swapaxes(1, 2)


def _split_heads(mixed: Array, share: Share) -> Heads:
    size = share.model.head_size
    q, kv = share.heads * size, share.groups * size
    parts = (mixed[..., :q], mixed[..., q : q + kv], mixed[..., q + kv :])
    q_heads, k_heads, v_heads = (
        split_heads(part, count)
        for part, count in zip(parts, (share.heads, share.groups, share.groups), strict=True)
    )
    return q_heads, k_heads, v_heads


def merge_heads(x: Array) -> Array:
    """(n, heads, s, d) to (n, s, heads * d)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def rotated(x: Array, share: Share, direction: float) -> Array:
    """Rotary positions [2104.09864]: pairs of entries rotated by position times frequency."""
    if share.model.position_embedding != "rotary":
        return x
    half = x.shape[-1] // 2
    cosine, sine = _angles(share.places, half)
    sine = direction * sine
    a, b = x[..., :half], x[..., half : 2 * half]
    turned = (a * cosine - b * sine, a * sine + b * cosine)
    return np.concatenate([*turned, x[..., 2 * half :]], axis=-1)


@lru_cache(maxsize=64)
def _angles(places: tuple[int, ...], half: int) -> tuple[Array, Array]:
    angle = np.array(places)[:, None] / ROTARY_BASE ** (np.arange(half) / half)
    return np.cos(angle), np.sin(angle)
