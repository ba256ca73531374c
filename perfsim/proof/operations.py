"""The operations of a model in NumPy, float64: what each makes, and its backward next to it.

An operation adds a `Node` to a `Tape`, so that the backward of any part of a model runs the backwards of its
operations in reverse. A rank runs them on its share: column-parallel first linears, row-parallel second ones,
so that outputs are partial sums until the peers' collective adds them [1909.08053]. Terms that must enter
this sum only once (residuals, biases of row-parallel linears) are added by the first peer. A backward reads
the weights that the rank has then, and its weight gradients are computed when they are called for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.parameters import WORDS, Share, Weights
from perfsim.specs.layout import RECOMPUTED
from perfsim.specs.runtime import Runtime
from perfsim.work import HEAD

Gradients = list[tuple[str, Callable[[], Floats]]]
"""Gradients of weights by their names, computed when they are called."""
_Back = Callable[[Weights, Floats], tuple[Sequence[Floats], Gradients]]
"""Takes the weights and the gradient of the result; gives the gradients of inputs and weights."""
NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0
HEADS = 1
"""The axis of heads in queries, keys and values: (samples, heads, positions, width)."""
GELU_SCALE = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715
"""GELU by its tanh approximation [1606.08415]."""


class Routing(NamedTuple):
    """The experts of every token of a batch, and which of them keep it; shapes (samples, positions, k)."""

    expert: Ints
    keeps: NDArray[np.bool_]

    def of(self, rows: Ints, positions: Ints | slice) -> Routing:
        """The routing of some samples and positions."""
        return Routing(self.expert[rows][:, positions], self.keeps[rows][:, positions])


@dataclass(eq=False, slots=True)
class Node:
    """What an operation made, from which others, and its backward."""

    value: Floats
    parents: Sequence[Node] = ()
    back: _Back | None = None


@dataclass
class Tape:
    """The operations that one rank carries out, in their order."""

    weights: Weights
    share: Share
    kept: Mapping[str, Floats] = field(default_factory=dict)
    """What linears and the core made before; a recompute does not compute it again."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What has no gradient: `tokens`, `targets`, the `routing` of tokens, the `expert` of rows."""
    nodes: list[Node] = field(default_factory=list)
    products: dict[str, Floats] = field(default_factory=dict)
    """What every linear made, in their order."""

    def add(self, value: Floats, parents: Sequence[Node], back: _Back) -> Node:
        """A node that was made from others."""
        node = Node(value, parents, back)
        self.nodes.append(node)
        return node

    def moved(self, x: Node, value: Floats, back: Callable[[Floats], Floats]) -> Node:
        """What one node becomes without weights, such as another shape."""
        return self.add(value, [x], lambda _, d: ([back(d)], []))

    def sum(self, *terms: Node) -> Node:
        total = reduce(np.add, [term.value for term in terms])
        return self.add(total, terms, lambda _, d: ([d] * len(terms), []))

    def once(self, x: Node) -> Node:
        """A term that enters the sum over tensor peers once: zero but on the first peer."""
        return x if self.share.leads else self.moved(x, np.zeros_like(x.value), np.zeros_like)

    def arranged(self, x: Node, how: Callable[[Any], Any]) -> Node:
        """Its entries in another shape or order, some of them or some more than once."""
        number = how(np.arange(x.value.size).reshape(x.value.shape))

        def back(d: Floats) -> Floats:
            whole: Floats = np.bincount(number.ravel(), d.ravel(), x.value.size).astype(float)
            return whole.reshape(x.value.shape)

        return self.moved(x, how(x.value), back)

    def piece(self, x: Node, start: int, stop: int) -> Node:
        """Some entries along the last axis."""
        return self.arranged(x, lambda values: values[..., start:stop])

    def joined(self, *parts: Node) -> Node:
        """Parts one after the other along the last axis."""
        ends = np.cumsum([part.value.shape[-1] for part in parts])[:-1]
        whole = np.concatenate([part.value for part in parts], axis=-1)
        return self.add(whole, parts, lambda _, d: (np.split(d, ends, axis=-1), []))

    def split_heads(self, x: Node, count: int) -> Node:
        """(n, s, heads * d) to (n, heads, s, d)."""
        return self.arranged(x, lambda values: values.reshape(*values.shape[:2], count, -1).swapaxes(1, 2))

    def norm(self, x: Node, name: str) -> Node:
        """Layer norm, or without a shift RMS norm, which does not centre either.

        Its backward is linear in the gradient of its output, so it commutes with the sum over tensor peers.
        """
        shift = self.weights.get(f"{name}.shift")
        centred = x.value if shift is None else x.value - _mean(x.value)
        inverse = 1.0 / np.sqrt(_mean(centred * centred) + NORM_EPSILON)
        normal = centred * inverse
        y = normal * self.weights[f"{name}.scale"]

        def back(w: Weights, d: Floats) -> tuple[Sequence[Floats], Gradients]:
            d_normal = d * w[f"{name}.scale"]
            dx = d_normal - normal * _mean(d_normal * normal)
            tokens = tuple(range(d.ndim - 1))
            gradients: Gradients = [(f"{name}.scale", lambda: (d * normal).sum(axis=tokens))]
            if shift is not None:
                dx = dx - _mean(d_normal)
                gradients.append((f"{name}.shift", lambda: d.sum(axis=tokens)))
            return [dx * inverse], gradients

        return self.add(y if shift is None else y + shift, [x], back)

    def product(self, x: Node, name: str, axes: str = "kn", *, adds: bool = True) -> Node:
        """Rows times a matrix with these axes, to which the rank `adds` its bias.

        Axis r has the rows, which each have the matrix of their expert. All ranks have the gradient of the
        bias.
        """
        expert = self.given["expert"] - self.share.own_experts.start if "r" in axes else None
        bias = "head_bias" if name == WORDS[HEAD] else f"{name}_bias"
        biased = bias in self.weights
        y = self.kept.get(name)
        if y is None:
            y = np.einsum(f"rk,{axes}->rn", _flat(x.value), _of_rows(self.weights[name], expert))
            if biased and adds:
                y = y + _of_rows(self.weights[bias], expert)
            y = y.reshape(*x.value.shape[:-1], -1)
        self.products[name] = y

        def back(w: Weights, d: Floats) -> tuple[Sequence[Floats], Gradients]:
            rows = _flat(d)

            def of_matrix() -> Floats:
                return _summed_rows(np.einsum(f"rk,rn->{axes}", _flat(x.value), rows), w[name], expert)

            def of_bias() -> Floats:
                return rows.sum(axis=0) if expert is None else _summed_rows(rows, w[bias], expert)

            dx = np.einsum(f"rn,{axes}->rk", rows, _of_rows(w[name], expert)).reshape(x.value.shape)
            return [dx], [(name, of_matrix), *([(bias, of_bias)] if biased else [])]

        return self.add(y, [x], back)

    def activation(self, u: Node, gate: Node | None) -> Node:
        """Between both products of an MLP: GELU, or SiLU of a gate times the other half [2002.05202]."""
        x = u.value
        if gate is None:
            t = np.tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x))

            def through_gelu(d: Floats) -> Floats:
                slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * x * x)
                return d * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)

            return self.moved(u, 0.5 * x * (1.0 + t), through_gelu)
        g = gate.value
        sigmoid = 1.0 / (1.0 + np.exp(-g))

        def back(_: Weights, d: Floats) -> tuple[Sequence[Floats], Gradients]:
            return [d * g * sigmoid, d * x * sigmoid * (1.0 + g * (1.0 - sigmoid))], []

        return self.add(g / (1.0 + np.exp(-g)) * x, [u, gate], back)

    def rotated(self, x: Node) -> Node:
        """Rotary positions [2104.09864]: pairs of entries rotated by position times frequency."""
        if self.share.model.position_embedding != "rotary":
            return x
        half = x.value.shape[-1] // 2
        cosine, sine = _angles(self.share.positions, half)

        def turned(value: Floats, turns: Floats) -> Floats:
            a = value[..., :half]
            b = value[..., half : 2 * half]
            rest = value[..., 2 * half :]
            return np.concatenate([a * cosine - b * turns, a * turns + b * cosine, rest], axis=-1)

        return self.moved(x, turned(x.value, sine), lambda d: turned(d, -sine))

    def core(self, q: Node, k: Node, v: Node) -> Node:
        """Scores, softmax, weighted values: on own positions, or on given ones of heads from `first_head`."""
        share = self.share
        positions = self.given.get("positions", share.positions)
        p = _softmax(scores(q.value, k.value, (positions, positions), share, self.given.get("first_head", 0)))
        context = self.kept.get("context")
        if context is None:
            context = p @ of_groups(v.value, share)

        def back(_: Weights, d: Floats) -> tuple[Sequence[Floats], Gradients]:
            delta = (d * context).sum(axis=-1, keepdims=True)
            return core_gradients(p, d, (q.value, k.value, v.value), share, delta), []

        return self.add(context, [q, k, v], back)

    def probabilities(self, logits: Node) -> Node:
        """Softmax over the last axis."""
        p = _softmax(logits.value)
        return self.moved(logits, p, lambda d: p * (d - (d * p).sum(axis=-1, keepdims=True)))

    def weighted(self, outputs: Node, p: Node) -> Node:
        """Rows summed to tokens with the probabilities of their experts; a dropped row has weight zero."""
        routing: Routing = self.given["routing"]
        rows = outputs.value.reshape(*routing.expert.shape, -1)
        weights = np.take_along_axis(p.value, routing.expert, axis=-1) * routing.keeps

        def back(_: Weights, d: Floats) -> tuple[Sequence[Floats], Gradients]:
            d_p = np.zeros_like(p.value)
            d_weight = (rows * d[..., None, :]).sum(axis=-1) * routing.keeps
            np.put_along_axis(d_p, routing.expert, d_weight, axis=-1)
            return [(d[..., None, :] * weights[..., None]).reshape(outputs.value.shape), d_p], []

        return self.add(np.asarray((rows * weights[..., None]).sum(axis=-2)), [outputs, p], back)

    def lookup(self) -> Node:
        """Embeddings of the words that this peer holds, zero for others; the first peer adds positions."""
        share = self.share
        learned = "positions" in self.weights
        local = self.given["tokens"] - share.first_row
        held = (local >= 0) & (local < share.rows)
        x = np.where(held[..., None], self.weights["words"][np.where(held, local, 0)], 0.0)
        if share.leads and learned:
            x = x + self.weights["positions"][list(share.positions)]

        def back(_: Weights, d: Floats) -> tuple[Sequence[Floats], Gradients]:
            def of_words() -> Floats:
                words = np.zeros((share.rows, d.shape[-1]))
                np.add.at(words, local[held], d[held])
                return words

            def of_positions() -> Floats:
                positions = np.zeros((share.seq_length, d.shape[-1]))
                positions[list(share.positions)] = d.sum(axis=0)
                return positions

            return [], [("words", of_words), *([("positions", of_positions)] if learned else [])]

        return self.add(x, [], back)

    def back(self, weights: Weights, arrived: dict[Node, Floats]) -> Gradients:
        """Add the gradients of all nodes before those that arrived; returns the gradients of weights."""
        of_weights: Gradients = []
        for node in reversed(self.nodes):
            gradient = arrived.get(node)
            if gradient is None or node.back is None:
                continue
            inputs, made = node.back(weights, gradient)
            of_weights += made
            for parent, value in zip(node.parents, inputs, strict=True):
                arrived[parent] = arrived[parent] + value if parent in arrived else value
        return of_weights


# What operations compute with.


def _flat(x: Floats) -> Floats:
    """All but the last axis as one."""
    return x.reshape(-1, x.shape[-1])


def _of_rows(weights: Floats, expert: Ints | None) -> Floats:
    """The weights of each row's expert; without experts, the weights of all rows."""
    return weights if expert is None else weights[expert]


def _summed_rows(of_rows: Floats, weights: Floats, expert: Ints | None) -> Floats:
    """The gradient of weights from that by each row's; without experts rows are summed already."""
    if expert is None:
        return of_rows
    total = np.zeros_like(weights)
    np.add.at(total, expert, of_rows)
    return total


def _mean(x: Floats) -> Floats:
    """Mean over the last axis; on small arrays faster than `mean`."""
    return np.asarray(np.add.reduce(x, axis=-1, keepdims=True) / x.shape[-1])


def _softmax(x: Floats) -> Floats:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


@lru_cache(maxsize=64)
def _angles(positions: tuple[int, ...], half: int) -> tuple[Floats, Floats]:
    angle = np.array(positions)[:, None] / ROTARY_BASE ** (np.arange(half) / half)
    return np.cos(angle), np.sin(angle)


# Attention's core, also in parts.

Positions = tuple[tuple[int, ...], tuple[int, ...]]
"""Positions of queries, and of keys."""


def scores(q: Floats, k: Floats, positions: Positions, share: Share, first_head: int = 0) -> Floats:
    """Scores of queries and keys at these positions, with terms added to them.

    They are minus infinity for the future if causal and before a window, and ALiBi's slopes [2108.12409].
    `q` begins with the peer's head `first_head`.
    """
    made = q @ np.swapaxes(of_groups(k, share), -1, -2) / math.sqrt(share.model.head_size)
    made = made + _hidden(*positions, causal=share.model.causal, window=share.window)
    if share.model.position_embedding != "alibi":
        return np.asarray(made)
    number = share.tensor.number * share.heads + first_head + np.arange(q.shape[HEADS])
    slope = 2.0 ** (-8.0 * (number + 1) / share.model.num_attention_heads)
    distance = np.abs(np.array(positions[0])[:, None] - np.array(positions[1])[None, :])
    return np.asarray(made - slope[:, None, None] * distance)


@lru_cache(maxsize=64)
def _hidden(queries: tuple[int, ...], keys: tuple[int, ...], *, causal: bool, window: int | None) -> Floats:
    distance = np.array(queries)[:, None] - np.array(keys)[None, :]
    before = False if window is None else distance >= window
    return np.where(((distance < 0) & causal) | before, -np.inf, 0.0)


def of_groups(x: Floats, share: Share) -> Floats:
    """Keys or values of each group, repeated for each query head."""
    times = share.heads // share.groups
    return x if times == 1 else np.repeat(x, times, axis=HEADS)


def core_gradients(
    p: Floats, d: Floats, inputs: tuple[Floats, Floats, Floats], share: Share, delta: Floats
) -> list[Floats]:
    """Gradients of queries, keys and values from the probabilities and the gradient of the core's output.

    `delta` is the sum over all keys of probabilities times their gradients.
    """
    q, k, v = inputs
    d_p = d @ np.swapaxes(of_groups(v, share), -1, -2)
    d_scores = p * (d_p - delta) / math.sqrt(share.model.head_size)
    of_heads = (np.swapaxes(d_scores, -1, -2) @ q, np.swapaxes(p, -1, -2) @ d)
    if share.heads != share.groups:  # summed over the query heads of each group
        n, _, s, _ = k.shape
        times = share.heads // share.groups
        of_heads = tuple(dx.reshape(n, -1, times, s, dx.shape[-1]).sum(axis=2) for dx in of_heads)
    return [d_scores @ of_groups(k, share), *of_heads]


# The cross-entropy of a divided vocabulary, as Megatron's: peers exchange the maximum, the sum of
# exponentials and the target's score of each token.


def statistics(scored: Floats, targets: Ints, share: Share) -> Floats:
    """Maximum, sum of exponentials and target's score of each token over the words of this peer."""
    most = scored.max(axis=-1)
    safe = np.where(np.isfinite(most), most, 0.0)
    total = np.exp(scored - safe[..., None]).sum(axis=-1)
    local = targets - share.first_row
    held = (local >= 0) & (local < share.real_rows)
    target = np.take_along_axis(scored, np.where(held, local, 0)[..., None], axis=-1)[..., 0]
    return np.stack([safe, total, np.where(held, target, 0.0)])


def merged_statistics(parts: Sequence[Floats]) -> Floats:
    """The statistics of all words, joined from each peer's words: log-sum-exp in parts."""
    most = np.max([part[0] for part in parts], axis=0)
    total = sum(part[1] * np.exp(part[0] - most) for part in parts)
    return np.stack([most, np.asarray(total), np.sum([part[2] for part in parts], axis=0)])


def cross_entropy(
    scored: Floats, stats: Floats, targets: Ints, num_tokens: float, share: Share
) -> tuple[Floats, Floats]:
    """The part of each token in the mean loss over `num_tokens`, and its gradient by this peer's scores."""
    most, total, target = stats
    d = np.exp(scored - most[..., None]) / total[..., None]
    local = targets - share.first_row
    n, s = np.nonzero((local >= 0) & (local < share.rows))
    d[n, s, local[n, s]] -= 1.0
    return np.asarray((most + np.log(total) - target) / num_tokens), np.asarray(d / num_tokens)


# A model in parts: each makes named arrays from named arrays, and adds up their gradients on the way back.
#
# Serial training carries out all parts of a layer at once, undivided; the ranks of a schedule carry out some
# parts in each task, on their shares. `hidden` runs through all of them: a layer's input, its output, and on
# the way back the gradient of either.


def _join(tape: Tape, x: Node) -> Node:
    """The input of a module of multi-token prediction: hidden states and later words [2412.19437 2.2]."""
    hidden = tape.norm(x, "mtp_hidden")
    words = tape.norm(tape.lookup(), "mtp_words")
    return tape.product(tape.joined(hidden, words), "mtp_joint")


def _heads(tape: Tape, x: Node) -> tuple[Node, ...]:
    """Norm, queries, keys and values, which shape (samples, heads, positions, width)."""
    share = tape.share
    z = tape.norm(x, "norm1")
    if share.model.latent_attention is not None:
        return _latent_heads(tape, z)
    q = tape.split_heads(tape.product(z, "query"), share.heads)
    k = tape.split_heads(tape.product(z, "key"), share.groups)
    v = tape.split_heads(tape.product(z, "value"), share.groups)
    if share.model.qk_layernorm:
        q = tape.norm(q, "query_norm")
        k = tape.norm(k, "key_norm")
    return tape.rotated(q), tape.rotated(k), v


def _latent_heads(tape: Tape, z: Node) -> tuple[Node, ...]:
    """Queries, and keys with values, through latents [2405.04434]; all heads have one rotary part of keys."""
    share = tape.share
    latent = share.model.given_latents()
    plain = latent.qk_nope_head_dim
    narrow = z
    if latent.q_lora_rank is not None:
        narrow = tape.norm(tape.product(z, "query_down"), "query_norm")
    queries = tape.split_heads(tape.product(narrow, "query"), share.heads)
    down = tape.product(z, "pair_down")
    width = latent.kv_lora_rank
    of_pairs = tape.norm(tape.piece(down, 0, width), "pair_norm")
    pairs = tape.split_heads(tape.product(of_pairs, "pair"), share.heads)
    to_all = partial(np.repeat, repeats=share.heads, axis=HEADS)
    common = tape.rotated(tape.split_heads(tape.piece(down, width, width + latent.qk_rope_head_dim), 1))
    turned = tape.rotated(tape.piece(queries, plain, plain + latent.qk_rope_head_dim))
    q = tape.joined(tape.piece(queries, 0, plain), turned)
    k = tape.joined(tape.piece(pairs, 0, plain), tape.arranged(common, to_all))
    return q, k, tape.piece(pairs, plain, plain + latent.v_head_dim)


def _output(tape: Tape, context: Node) -> Node:
    """Output projection: this peer's part of the block's output."""
    merged = tape.arranged(context, lambda x: x.swapaxes(1, 2).reshape(len(x), x.shape[2], -1))
    return tape.product(merged, "projection", adds=tape.share.leads)


def _mlp(tape: Tape, x: Node, attended: Node) -> Node:
    """Residual of the attention block, norm, both linears; the first peer's part carries the residual."""
    total = tape.sum(x, attended)
    parallel = tape.share.model.norms_per_layer == 1
    z = tape.norm(x, "norm1") if parallel else tape.norm(total, "norm2")
    return tape.sum(_linears(tape, z), tape.once(total))


def _linears(tape: Tape, z: Node, prefix: str = "") -> Node:
    """Both products of an MLP, of shared experts or of routed ones, and what is between them."""
    share = tape.share
    adds = share.expert_tensor.number == 0 if prefix == "expert_" else share.leads
    axes = "rkn" if prefix == "expert_" else "kn"
    gate = tape.product(z, f"{prefix}gate", axes) if share.model.gated_mlp else None
    u = tape.product(z, f"{prefix}fc1", axes)
    return tape.product(tape.activation(u, gate), f"{prefix}fc2", axes, adds=adds)


def _router(tape: Tape, x: Node, attended: Node) -> tuple[Node, ...]:
    """The residual, its norm, a row for every slot of a token, and how much each expert counts.

    Which experts compute a token is drawn (`Routing`), so that ranks agree on it whatever their rounding;
    how much each counts is the router's softmax over all experts, so the router has gradients.
    """
    total = tape.sum(x, attended)
    z = tape.norm(total, "norm2")
    p = tape.probabilities(tape.product(z, "router"))
    k = tape.share.model.experts.top_k if tape.share.model.experts else 0
    rows = tape.arranged(z, lambda values: np.repeat(values.reshape(-1, values.shape[-1]), k, axis=0))
    return total, z, rows, p


def _combine(tape: Tape, total: Node, rows: Node, p: Node, *shared: Node) -> Node:
    """What experts made of rows, weighted and summed to tokens, with the residual and shared experts."""
    return tape.sum(total, tape.weighted(rows, p), *shared)


def _scores(tape: Tape, y: Node) -> Node:
    """Final norm and scores of words, of the positions that reach the LM head.

    Rows that pad the rank's part of the words take no part in the softmax.
    """
    name = "mtp_norm" if "mtp_norm.scale" in tape.weights else "head_norm"
    count = tape.given["targets"].shape[1]
    z = tape.norm(tape.arranged(y, lambda values: values[:, :count]), name)
    made = tape.product(z, WORDS[HEAD], "nk")
    made.value[..., tape.share.real_rows :] = -np.inf
    return made


class _Row(NamedTuple):
    """A part: its function, the arrays that it takes and makes, and a tensor of every block that has it."""

    run: Callable[..., Node | tuple[Node, ...]]
    takes: tuple[str, ...]
    makes: tuple[str, ...]
    of_blocks_with: str = ""

    def carried_out(self, tape: Tape, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """The nodes that it makes from those that it takes; nothing in a block that has no such part."""
        if self.of_blocks_with and self.of_blocks_with not in tape.weights:
            return {}
        made = self.run(tape, *(nodes[name] for name in self.takes if name in nodes))
        return dict(zip(self.makes, made if isinstance(made, tuple) else (made,), strict=True))


ATTENTION = ("join", "heads", "core", "output")
FEED_FORWARD = ("mlp", "router", "shared", "experts", "combine")
PARTS: Mapping[str, _Row] = {
    "lookup": _Row(Tape.lookup, (), ("hidden",)),
    "join": _Row(_join, ("hidden",), ("hidden",), "mtp_joint"),
    "heads": _Row(_heads, ("hidden",), ("q", "k", "v")),
    "core": _Row(Tape.core, ("q", "k", "v"), ("context",)),
    "output": _Row(_output, ("context",), ("attended",)),
    "mlp": _Row(_mlp, ("hidden", "attended"), ("hidden",), "fc1"),
    "router": _Row(_router, ("hidden", "attended"), ("total", "z", "rows", "p"), "router"),
    # Shared experts compute every token; routed ones compute rows.
    "shared": _Row(partial(_linears, prefix="shared_"), ("z",), ("shared",), "shared_fc1"),
    "experts": _Row(partial(_linears, prefix="expert_"), ("rows",), ("rows",), "expert_fc1"),
    "combine": _Row(_combine, ("total", "rows", "p", "shared"), ("hidden",), "router"),
    "scores": _Row(_scores, ("hidden",), ("scores",), "head_words"),
}
"""All parts; a layer runs what its weights have of `ATTENTION` and `FEED_FORWARD`, in their order."""


class _Part(NamedTuple):
    """A part that was carried out."""

    takes: dict[str, Node]
    makes: dict[str, Node]
    tape: Tape

    def backward(self, weights: Weights, gradients: dict[str, Floats]) -> Gradients:
        """Replace gradients of what it made by gradients of what it took, which are added to earlier ones."""
        made = {node: gradients.pop(name) for name, node in self.makes.items() if name in gradients}
        of_weights = self.tape.back(weights, made)
        for name, node in self.takes.items():
            if node in made:
                gradients[name] = gradients[name] + made[node] if name in gradients else made[node]
        return of_weights


OPERATORS = "operators"
"""The mode of a selective recompute that keeps the results of some operators."""
_WHOLE = {"core_attn": ("core", "output"), "mlp": FEED_FORWARD}
"""Parts that a module of recompute runs again."""
_AROUND = {"layernorm": ("heads", "mlp", "router"), "mla_up_proj": ("heads",), "moe_act": ("experts",)}
"""Parts that a module runs again but for products whose results are kept."""


def _modules(mode: str) -> frozenset[str]:
    """The modules that a mode runs again by themselves; none where it runs the layer again."""
    return frozenset() if mode == "full" else RECOMPUTED.get(mode, frozenset())


@dataclass
class Block:
    """A layer, the embedding or the LM head for one micro-batch on one rank, as far as it was carried out."""

    values: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    """Carried out in this micro-batch, or kept from its forward."""
    results: Mapping[str, Floats] = field(default_factory=dict)
    """What products and the core made, where a recompute keeps it."""
    gradients: dict[str, Any] = field(default_factory=dict)
    """Of named arrays, during the backward."""
    of_weights: Gradients = field(default_factory=list)
    """Gradients of weights that no task has added yet."""

    def forward(
        self, names: Iterable[str], weights: Weights, share: Share, given: Mapping[str, Any] | None = None
    ) -> None:
        """Carry out the parts that the block has and did not keep."""
        for name in names:
            if name not in self.parts:
                tape = Tape(weights, share, self.results, given or {})
                takes = {own: Node(self.values[own]) for own in PARTS[name].takes if own in self.values}
                if makes := PARTS[name].carried_out(tape, takes):
                    self.parts[name] = _Part(takes, makes, tape)
            if name in self.parts:
                self.values |= {array: node.value for array, node in self.parts[name].makes.items()}

    def backward(self, names: tuple[str, ...], weights: Weights) -> Gradients:
        """Go back through parts, from the gradients of what they made; returns the gradients of weights."""
        made: Gradients = []
        for name in reversed(names):
            if name in self.parts:
                made += self.parts[name].backward(weights, self.gradients)
        return made

    def take_weights(self) -> Gradients:
        """The gradients of weights that no task has added yet, which one adds now."""
        made = self.of_weights
        self.of_weights = []
        return made

    @staticmethod
    def repeats_alone(mode: str, op: str) -> bool:
        """Whether a task of recompute runs modules up to no result that ranks sum."""
        modules = _modules(mode)
        return bool(modules) and ("mlp" not in modules or op.startswith("attention"))

    def operands(self, mode: str) -> dict[str, Any]:
        """What a mode keeps besides, for tasks that run modules of the layer again."""
        modules = _modules(mode)
        kept = {"attended": self.values["attended"]} if modules & {"mlp", "layernorm"} else {}
        if "moe_act" in modules and "experts" in self.parts:
            experts = self.parts["experts"]
            kept |= {"rows": experts.takes["rows"].value, "expert": experts.tape.given["expert"]}
        return kept

    @property
    def module_head(self) -> Block:
        """What a module of multi-token prediction keeps of its LM head besides what it saves."""
        values = {name: value for name, value in self.values.items() if name in ("scores", "statistics")}
        return Block(values, {name: part for name, part in self.parts.items() if name == "scores"})

    def saved(self, mode: str, runtime: Runtime) -> Block:
        """What a layer under a recompute mode keeps from its forward; by operator experts are kept whole."""
        before = {"hidden": self.values["before"]}
        parts = {name: part for name, part in self.parts.items() if name != "scores"}
        if modules := _modules(mode):
            if "join" in parts:
                before = {"hidden": parts["join"].makes["hidden"].value}
            whole = {name for module in modules for name in _WHOLE.get(module, ())}
            around = {name for module in modules for name in _AROUND.get(module, ())} - whole
            if "mlp" in parts and "norm2.scale" not in parts["mlp"].tape.weights:
                around -= {"mlp"}  # its norm is the one of attention, whose output it keeps
            of_parts = (parts[name].tape.products for name in around if name in parts)
            results = {name: made for products in of_parts for name, made in products.items()}
            for name in ("query", "pair") if "mla_up_proj" in modules else ():
                del results[name]
            kept = {name: part for name, part in parts.items() if name not in whole | around}
            return Block(before, kept, results)
        if mode == "none":
            return Block(before, parts)
        if mode == "full":
            keeps = runtime.recompute_keeps == "qkv"
            return Block(before, results=parts["heads"].tape.products if keeps else {})
        products = [parts[name].tape.products for name in ("heads", "output", "mlp") if name in parts]
        results = _every_second(
            {name: made for of_part in products for name, made in of_part.items() if name != "fc2"}
        )
        if runtime.attention == "flash" and isinstance(parts["core"], _Part):
            results["context"] = self.values["context"]
        of_experts = {name: parts[name] for name in FEED_FORWARD if name in parts and name != "mlp"}
        return Block(before, of_experts, results)


def _every_second(products: Mapping[str, Floats]) -> dict[str, Floats]:
    """The results of the first, third, ... product of a layer [torchtitan's checkpoint by operator]."""
    return dict(list(products.items())[::2])
