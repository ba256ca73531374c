"""Modules of multi-token prediction in NumPy, float64: what they add to their layer [2412.19437 2.2].

Before the layer the hidden state and the embedding of a later token, each through a norm, are joined and
projected; behind it are a norm, the model's own LM head and the loss of the token after that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.shares import Share, Weights
from perfsim.specs.model import LatentAttention

# From the input of an attention block to queries, keys and values in NumPy, and back.
#
# One product makes them all, or they pass through narrow latents. Norms and rotary positions are between the
# products and the core. Tensor peers make those of their own heads; norms and products down to latents are
# whole on each peer, and their gradients are partial sums.

Results = Mapping[str, Floats]
"""What products of a layer made, by their weight; columns that were not kept are not numbers."""
NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0


class NormKept(NamedTuple):
    """Inputs of a norm's backward: the normalised input and the inverse of its deviation."""

    normal: Floats
    inverse: Floats

    def backward(self, dy: Floats, w: Weights, name: str) -> tuple[Floats, Weights]:
        """Gradient of a norm's input, and of its scale and shift."""
        scale = w[f"{name}.scale"]
        centres = f"{name}.shift" in w
        d_normal = dy * scale
        dx = d_normal - self.normal * _mean(d_normal * self.normal)
        if centres:
            dx = dx - _mean(d_normal)
        tokens = tuple(range(dy.ndim - 1))
        grads = {f"{name}.scale": (dy * self.normal).sum(axis=tokens)}
        if centres:
            grads[f"{name}.shift"] = dy.sum(axis=tokens)
        return dx * self.inverse, grads


Heads = tuple[Floats, Floats, Floats]
"""Queries, keys and values, or their gradients; shapes (samples, heads, positions, width)."""


class Projected(NamedTuple):
    """What the core reads, and what its backward needs besides."""

    heads: Heads
    inner: Any
    results: Results


class _ProjectedGradients(NamedTuple):
    """Gradient of what the projections read, and of their weights."""

    z: Floats
    products: Mapping[str, tuple[Floats, Floats]]
    whole: Weights


class _LatentsKept(NamedTuple):
    """What latent attention keeps: of both norms, and the inputs of the products up to all heads."""

    query: NormKept | None
    query_in: Floats
    pair: NormKept
    pair_in: Floats


def norm_forward(x: Floats, w: Weights, name: str) -> tuple[Floats, NormKept]:
    """Layer norm, or without a shift RMS norm, which does not centre either."""
    shift = w.get(f"{name}.shift")
    centred = x if shift is None else x - _mean(x)
    inverse = 1.0 / np.sqrt(_mean(centred * centred) + NORM_EPSILON)
    normal = centred * inverse
    y = normal * w[f"{name}.scale"]
    return (y if shift is None else y + shift), NormKept(normal, inverse)


def _mean(x: Floats) -> Floats:
    """Mean over the last axis; on small arrays faster than `mean`."""
    return np.asarray(np.add.reduce(x, axis=-1, keepdims=True) / x.shape[-1])


def _plain_heads(w: Weights, z: Floats, share: Share, results: Results) -> Projected:
    """Queries, keys and values of one product, normalised by head if the model says so, and rotated."""
    mixed = made(w, "qkv", z, results)
    q, k, v = _heads_of(mixed, share)
    inner = None
    if share.model.qk_layernorm:
        (q, of_q), (k, of_k) = norm_forward(q, w, "query_norm"), norm_forward(k, w, "key_norm")
        inner = of_q, of_k
    heads = _rotated(q, share, 1.0), _rotated(k, share, 1.0), v
    return Projected(heads, inner, {**results, "qkv": mixed})


def _plain_heads_dgrad(
    w: Weights, z: Floats, inner: Any, gradients: Heads, share: Share
) -> _ProjectedGradients:
    """The backward of `_plain_heads`."""
    d_q, d_k, d_v = gradients
    d_q = _rotated(d_q, share, -1.0)
    d_k = _rotated(d_k, share, -1.0)
    norms: Weights = {}
    if share.model.qk_layernorm:
        of_q, of_k = inner
        (d_q, norms), (d_k, other) = (
            of_q.backward(d_q, w, "query_norm"),
            of_k.backward(d_k, w, "key_norm"),
        )
        norms = norms | other
    d_mixed = np.concatenate([_merge_heads(gradient) for gradient in (d_q, d_k, d_v)], axis=-1)
    return _ProjectedGradients(d_mixed @ w["qkv"].T, {"qkv": (z, d_mixed)}, norms)


def latent_heads(w: Weights, z: Floats, share: Share, results: Results) -> Projected:
    """Queries, and keys with values, through latents [2405.04434]; all heads have one rotary part of keys."""
    latent = _latent_of(share)
    whole = dict(results)
    of_query = None
    query_in = z
    if latent.q_lora_rank is not None:
        down = whole["query_down"] = made(w, "query_down", z, results)
        query_in, of_query = norm_forward(down, w, "query_norm")
    query = whole["query"] = made(w, "query", query_in, results)
    down = whole["pair_down"] = made(w, "pair_down", z, results)
    narrow = down[..., : latent.kv_lora_rank]
    common = down[..., latent.kv_lora_rank :]
    pair_in, of_pair = norm_forward(narrow, w, "pair_norm")
    pair = whole["pair"] = made(w, "pair", pair_in, results)
    plain = latent.qk_nope_head_dim
    queries = _split_heads(query, share.heads)
    pairs = _split_heads(pair, share.heads)
    q = np.concatenate([queries[..., :plain], _rotated(queries[..., plain:], share, 1.0)], axis=-1)
    common = np.repeat(_rotated(common[:, None], share, 1.0), share.heads, axis=1)
    k = np.concatenate([pairs[..., :plain], common], axis=-1)
    return Projected((q, k, pairs[..., plain:]), _LatentsKept(of_query, query_in, of_pair, pair_in), whole)


def _latent_heads_dgrad(
    w: Weights, z: Floats, inner: _LatentsKept, gradients: Heads, share: Share
) -> _ProjectedGradients:
    """The backward of `latent_heads`; tensor peers have the products down whole, with parts of their sums."""
    (d_q, d_k, d_v), plain = gradients, _latent_of(share).qk_nope_head_dim
    turned = _rotated(d_q[..., plain:], share, -1.0)
    d_query = _merge_heads(np.concatenate([d_q[..., :plain], turned], axis=-1))
    common = _rotated(d_k[..., plain:].sum(axis=1, keepdims=True), share, -1.0)[:, 0]
    d_pair = _merge_heads(np.concatenate([d_k[..., :plain], d_v], axis=-1))
    narrow, whole = inner.pair.backward(d_pair @ w["pair"].T, w, "pair_norm")
    down = {"pair_down": np.concatenate([narrow, common], axis=-1)}
    dz = d_query @ w["query"].T
    if inner.query is not None:
        down["query_down"], norm = inner.query.backward(dz, w, "query_norm")
        dz = down["query_down"] @ w["query_down"].T
        whole = whole | norm
    for name, gradient in down.items():
        whole[name] = outer(z, gradient)
        if f"{name}_bias" in w:
            whole[f"{name}_bias"] = gradient.sum(axis=(0, 1))
    dz = dz + down["pair_down"] @ w["pair_down"].T
    products = {"query": (inner.query_in, d_query), "pair": (inner.pair_in, d_pair)}
    return _ProjectedGradients(dz, products, whole)


def _latent_of(share: Share) -> LatentAttention:
    latent = share.model.latent_attention
    if latent is None:
        raise ValueError(f"{share.model.name} has no latent attention")
    return latent


def made(w: Weights, name: str, x: Floats, results: Results) -> Floats:
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
    size = share.model.head_size
    number = 0
    kept = dict[str, Floats]()
    for name, values in results.items():
        bounds = {"qkv": [share.heads * size, (share.heads + share.groups) * size]}.get(name, [])
        if name == "fc1" and share.model.gated_mlp:
            bounds = [values.shape[-1] // 2]
        parts = np.split(values, bounds, axis=-1)
        odd = [(number + place) % 2 == 1 for place in range(len(parts))]
        columns = [np.full_like(part, np.nan) if out else part for part, out in zip(parts, odd, strict=True)]
        kept[name], number = np.concatenate(columns, axis=-1), number + len(parts)
    return kept


def outer(x: Floats, dy: Floats) -> Floats:
    """Sum over tokens of x (k) times dy (n)."""
    return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])


def _split_heads(x: Floats, count: int) -> Floats:
    """(n, s, heads * d) to (n, heads, s, d)."""
    return x.reshape(*x.shape[:2], count, x.shape[-1] // count).swapaxes(1, 2)


def _heads_of(mixed: Floats, share: Share) -> Heads:
    size = share.model.head_size
    q = share.heads * size
    kv = share.groups * size
    parts = (mixed[..., :q], mixed[..., q : q + kv], mixed[..., q + kv :])
    q_heads, k_heads, v_heads = (
        _split_heads(part, count)
        for part, count in zip(parts, (share.heads, share.groups, share.groups), strict=True)
    )
    return q_heads, k_heads, v_heads


def _merge_heads(x: Floats) -> Floats:
    """(n, heads, s, d) to (n, s, heads * d)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def _rotated(x: Floats, share: Share, direction: float) -> Floats:
    """Rotary positions [2104.09864]: pairs of entries rotated by position times frequency."""
    if share.model.position_embedding != "rotary":
        return x
    half = x.shape[-1] // 2
    cosine, sine = _angles(share.places, half)
    sine = direction * sine
    a = x[..., :half]
    b = x[..., half : 2 * half]
    turned = (a * cosine - b * sine, a * sine + b * cosine)
    return np.concatenate([*turned, x[..., 2 * half :]], axis=-1)


@lru_cache(maxsize=64)
def _angles(places: tuple[int, ...], half: int) -> tuple[Floats, Floats]:
    angle = np.array(places)[:, None] / ROTARY_BASE ** (np.arange(half) / half)
    return np.cos(angle), np.sin(angle)


# Embedding, LM head and cross-entropy in NumPy, with the vocabulary split over tensor peers.


class HeadKept(NamedTuple):
    """Activations that the LM head keeps: of its norm, its input, and the logits of this peer's words."""

    norm: NormKept
    z: Floats
    logits: Floats

    def dgrad(
        self,
        w: Weights,
        statistics: Floats,
        targets: Ints,
        num_tokens: float,
        share: Share,
        length: int,
    ) -> tuple[Floats, HeadInputs]:
        """The peer's part of the gradient of the last layer's output, and the inputs of the wgrad."""
        d_logits = np.exp(self.logits - statistics[0][..., None]) / statistics[1][..., None]
        local = targets - share.first_row
        n, s = np.nonzero((local >= 0) & (local < share.rows))
        d_logits[n, s, local[n, s]] -= 1.0
        d_logits /= num_tokens
        dz, norm = self.norm.backward(d_logits @ w["words"], w, "norm1")
        dx = np.zeros((len(targets), length, dz.shape[-1]))
        dx[:, : targets.shape[1]] = dz
        return dx, HeadInputs(self.z, d_logits, norm)


class HeadInputs(NamedTuple):
    """Inputs of the LM head's wgrad."""

    z: Floats
    d_logits: Floats
    norm: Weights

    def wgrad(self, share: Share) -> Weights:
        """Gradients of the LM head's rows and bias."""
        width = self.d_logits.shape[-1]
        flat = self.d_logits.reshape(-1, width)
        grads = {"words": flat.T @ self.z.reshape(-1, self.z.shape[-1])}
        if share.model.head_bias:
            grads["head_bias"] = flat.sum(axis=0)
        return grads


def embedding_forward(w: Weights, tokens: Ints, share: Share) -> Floats:
    """Embeddings of the words that this peer holds, zero for others; the first peer adds positions."""
    local = tokens - share.first_row
    held = (local >= 0) & (local < share.rows)
    x = np.where(held[..., None], w["words"][np.where(held, local, 0)], 0.0)
    if share.leads and "positions" in w:
        x = x + w["positions"][list(share.places)]
    return x


def embedding_backward(dx: Floats, tokens: Ints, share: Share) -> Weights:
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


def head_forward(w: Weights, x: Floats, targets: Ints, share: Share) -> tuple[Floats, HeadKept]:
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


def merged_statistics(parts: list[Floats]) -> Floats:
    """The statistics of all words from those of each peer: log-sum-exp in parts."""
    most = np.max([part[0] for part in parts], axis=0)
    total = sum(part[1] * np.exp(part[0] - most) for part in parts)
    return np.stack([most, np.asarray(total), np.sum([part[2] for part in parts], axis=0)])


def losses_of(statistics: Floats, num_tokens: float) -> Floats:
    """The part of each token in the mean loss over `num_tokens`, shape (samples, positions)."""
    most, total, target = statistics
    return np.asarray((most + np.log(total) - target) / num_tokens)


# One transformer layer in NumPy, float64: forward, and backward as a whole or in two passes.
#
# Every function works on one tensor peer's share: column-parallel first linears, row-parallel second ones,
# so outputs are partial sums until the peers' collective adds them [1909.08053]. Terms that must enter this
# sum only once (residuals, biases of row-parallel linears) are added by the first peer. The backward of a
# norm is linear in its output gradient, so it is applied to the partial sum and commutes with the
# collective; the gradients of its scale and shift are partial sums too and are returned separately, as are
# those of other weights that every peer holds whole.

Places = tuple[tuple[int, ...], tuple[int, ...]]
"""Positions of queries, and of keys."""


class AttentionKept(NamedTuple):
    """Activations that an attention block keeps; None for those of a core to recompute."""

    x: Floats
    norm: NormKept
    z: Floats
    q: Floats
    k: Floats
    v: Floats
    probabilities: Floats | None
    context: Floats | None
    core: Any = None
    """What the core keeps instead of probabilities where context ranks share a sequence."""
    inner: Any = None
    """What norms between products and core keep, with the inputs of later products."""
    results: Results | None = None
    """What the products made."""

    def with_core(self, share: Share, context: Floats | None = None) -> AttentionKept:
        """The activations with scores and softmax, and with context if it is not given."""
        probabilities = softmax(masked_scores(self.q, self.k, (share.places, share.places), share))
        if context is None:
            context = probabilities @ repeated(self.v, share)
        return self._replace(probabilities=probabilities, context=context)

    def without_core(self) -> AttentionKept:
        """The activations that selective recompute keeps."""
        return self._replace(probabilities=None, context=None)

    def output(self, w: Weights, share: Share) -> Floats:
        """Output projection: this peer's part of the block's output."""
        out = _merge_heads(_required(self.context)) @ w["projection"]
        if "projection_bias" in w and share.leads:
            out = out + w["projection_bias"]
        return out

    def dgrad(self, w: Weights, d_out: Floats, share: Share) -> tuple[Floats, Linears]:
        """The peer's part of the input gradient without the residual, and the inputs of the wgrad."""
        gradients = core_gradients(
            _required(self.probabilities), context_gradient(w, d_out, share), (self.q, self.k, self.v), share
        )
        return self.inputs_dgrad(w, gradients, d_out, share)

    def inputs_dgrad(
        self, w: Weights, gradients: Heads, d_out: Floats, share: Share
    ) -> tuple[Floats, Linears]:
        """`attention_dgrad` from the gradients of queries, keys and values on."""
        back = _plain_heads_dgrad if share.model.latent_attention is None else _latent_heads_dgrad
        before = back(w, self.z, self.inner, gradients, share)
        dx, norm = self.norm.backward(before.z, w, "norm1")
        out = _merge_heads(_required(self.context)), d_out
        return dx, Linears({**before.products, "projection": out}, norm | before.whole)


class MlpKept(NamedTuple):
    """Activations that an MLP block keeps."""

    norm: NormKept
    z: Floats
    u: Floats
    activated: Floats

    def dgrad(self, w: Weights, dy: Floats, share: Share) -> tuple[Floats, Linears]:
        """The peer's part of the input gradient with the residual, and the inputs of the wgrad."""
        du = activation_backward(self.u, dy @ w["fc2"].T, share)
        name = "norm1" if share.model.norms_per_layer == 1 else "norm2"
        dx, norm = self.norm.backward(du @ w["fc1"].T, w, name)
        if share.leads:
            dx = dx + dy
        return dx, Linears({"fc1": (self.z, du), "fc2": (self.activated, dy)}, norm)


class Linears(NamedTuple):
    """Inputs and output gradients of a block's linears, which its weight gradients read."""

    products: Mapping[str, tuple[Floats, Floats]]
    """By the weight of each product."""
    norm: Weights
    """Gradients of norms and of other weights that every peer holds whole; of peers, partial sums."""

    def wgrad(self, *, bias: bool) -> Weights:
        """Gradients of a block's linears but those that every peer holds whole."""
        grads = {name: outer(x, dy) for name, (x, dy) in self.products.items()}
        if bias:
            grads |= {f"{name}_bias": dy.sum(axis=(0, 1)) for name, (_, dy) in self.products.items()}
        return grads


# ------------------------------------------------------------------------------------- attention
def attention_forward(
    w: Weights, x: Floats, share: Share, results: Results | None = None, context: Floats | None = None
) -> tuple[Floats, AttentionKept]:
    """Norm, projections, core, output projection: this peer's part of the block's output.

    Of `results` and the core's `context`, what was kept is not computed again.
    """
    kept = attention_inputs(w, x, share, results).with_core(share, context)
    out = None if results is None else results.get("projection")
    if out is None or np.isnan(out).any():
        out = kept.output(w, share)
    return out, kept._replace(results={**(kept.results or {}), "projection": out})


def attention_inputs(w: Weights, x: Floats, share: Share, results: Results | None = None) -> AttentionKept:
    """Norm, queries, keys and values, without the core; `results` of products are not computed again."""
    z, norm = norm_forward(x, w, "norm1")
    make = _plain_heads if share.model.latent_attention is None else latent_heads
    projected = make(w, z, share, results or {})
    return AttentionKept(
        x, norm, z, *projected.heads, None, None, inner=projected.inner, results=projected.results
    )


def core_gradients(
    p: Floats, d_context: Floats, inputs: Heads, share: Share, delta: Floats | None = None
) -> Heads:
    """Gradients of queries, keys and values from the probabilities and the gradient of the core's output.

    `delta` is the sum over all keys of probabilities times their gradients; None: over these keys.
    """
    q, k, v = inputs
    d_p = d_context @ np.swapaxes(repeated(v, share), -1, -2)
    if delta is None:
        delta = (d_p * p).sum(axis=-1, keepdims=True)
    d_scores = p * (d_p - delta) / math.sqrt(share.model.head_size)
    d_k = folded(np.swapaxes(d_scores, -1, -2) @ q, share)
    return d_scores @ repeated(k, share), d_k, folded(np.swapaxes(p, -1, -2) @ d_context, share)


def context_gradient(w: Weights, d_out: Floats, share: Share) -> Floats:
    """Gradient of the core's output, by head."""
    return _split_heads(d_out @ w["projection"].T, share.heads)


# ------------------------------------------------------------------------------------------- MLP
def mlp_forward(
    w: Weights, x: Floats, attention: Floats, share: Share, results: Results | None = None
) -> tuple[Floats, MlpKept]:
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


# --------------------------------------------------------------------------------------- helpers


def _required(value: Floats | None) -> Floats:
    """An activation that must have been kept or recomputed."""
    if value is None:
        raise ValueError("the attention core was neither kept nor recomputed")
    return value


def repeated(x: Floats, share: Share) -> Floats:
    """Keys or values of each group, repeated for each query head."""
    times = share.heads // share.groups
    return x if times == 1 else np.repeat(x, times, axis=1)


def folded(dx: Floats, share: Share) -> Floats:
    """Gradients of keys or values summed over the query heads of each group."""
    if share.heads == share.groups:
        return dx
    n, _, s, d = dx.shape
    return np.asarray(dx.reshape(n, -1, share.heads // share.groups, s, d).sum(axis=2))


def softmax(x: Floats) -> Floats:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def masked_scores(q: Floats, k: Floats, places: Places, share: Share, first_head: int = 0) -> Floats:
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
def _hidden(queries: tuple[int, ...], keys: tuple[int, ...], *, causal: bool, window: int | None) -> Floats:
    distance = np.array(queries)[:, None] - np.array(keys)[None, :]
    before = False if window is None else distance >= window
    return np.where(((distance < 0) & causal) | before, -np.inf, 0.0)


GELU_SCALE = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715
"""GELU by its tanh approximation [1606.08415]."""


def activation_forward(u: Floats, share: Share) -> Floats:
    """GELU; in a gated MLP SiLU of the first half times the second [2002.05202]."""
    if share.model.gated_mlp:
        gate = u[..., : u.shape[-1] // 2]
        up = u[..., u.shape[-1] // 2 :]
        return gate / (1.0 + np.exp(-gate)) * up
    return 0.5 * u * (1.0 + np.tanh(GELU_SCALE * (u + GELU_CUBIC * u * u * u)))


def activation_backward(u: Floats, d: Floats, share: Share) -> Floats:
    """Gradient of the activation's input."""
    if share.model.gated_mlp:
        gate = u[..., : u.shape[-1] // 2]
        up = u[..., u.shape[-1] // 2 :]
        sigmoid = 1.0 / (1.0 + np.exp(-gate))
        d_gate = d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
        return np.concatenate([d_gate, d * gate * sigmoid], axis=-1)
    t = np.tanh(GELU_SCALE * (u + GELU_CUBIC * u * u * u))
    slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * u * u)
    return d * (0.5 * (1.0 + t) + 0.5 * u * (1.0 - t * t) * slope)


LOSS_WEIGHT = 0.3
"""Of the mean loss of all modules beside that of the model itself [2412.19437 4.2]."""


class Joined(NamedTuple):
    """The input of a module's layer, and what the backward of its projection needs."""

    x: Floats
    both: Floats
    hidden: NormKept
    words: NormKept

    def dgrad(self, w: Weights, d_joined: Floats) -> tuple[Floats, JointInputs]:
        """Gradient of the hidden states, and the inputs of the other gradients."""
        d_hidden, d_words = np.split(d_joined @ w["mtp_joint"].T, 2, axis=-1)
        dx, of_hidden = self.hidden.backward(d_hidden, w, "mtp_hidden")
        d_words, of_words = self.words.backward(d_words, w, "mtp_words")
        return dx, JointInputs(self.both, d_joined, of_hidden | of_words, d_words)


class JointInputs(NamedTuple):
    """What the gradients of a projection's weights and of embeddings are computed from."""

    both: Floats
    d_joined: Floats
    norms: Weights
    d_words: Floats

    def wgrad(self) -> Weights:
        """Gradients of the projection and its norms."""
        return {"mtp_joint": outer(self.both, self.d_joined)} | self.norms


def join(w: Weights, table: Weights, x: Floats, tokens: Ints, share: Share) -> Joined:
    """Hidden states joined with the embeddings of later tokens."""
    hidden, of_hidden = norm_forward(x, w, "mtp_hidden")
    words, of_words = norm_forward(embedding_forward(table, tokens, share), w, "mtp_words")
    both = np.concatenate([hidden, words], axis=-1)
    return Joined(both @ w["mtp_joint"], both, of_hidden, of_words)


def head_of(w: Weights, head: Weights) -> Weights:
    """The model's LM head behind a module's own norm."""
    own = {
        f"norm1{name[len('mtp_norm') :]}": value for name, value in w.items() if name.startswith("mtp_norm")
    }
    return head | own


def norm_of_head(norm: Weights) -> Weights:
    """Gradients of a module's own norm from those of the norm of its LM head."""
    return {f"mtp_norm{name[len('norm1') :]}": value for name, value in norm.items()}
