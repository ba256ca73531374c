"""The operations of a model in NumPy, float64: what each makes, and its backward next to it.

An operation adds a `Node` to a `Tape`, so that the backward of any part of a model is that of its operations
in reverse. A rank runs them on its share: column-parallel first linears, row-parallel second ones, so that
outputs are partial sums until the peers' collective adds them [1909.08053]. Terms that must enter this sum
only once (residuals, biases of row-parallel linears) are added by the first peer. A backward reads the
weights that the rank has then, and its weight gradients are computed when they are called for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.parameters import Share, Weights

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

    def of(self, rows: Ints, places: Ints | slice) -> Routing:
        """The routing of some samples and positions."""
        return Routing(self.expert[rows][:, places], self.keeps[rows][:, places])


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

    # -------------------------------------------------------------------------- sums and shapes
    def sum(self, *terms: Node) -> Node:
        """The sum of some terms."""
        total = reduce(np.add, [term.value for term in terms])
        return self.add(total, terms, lambda _, d: ([d] * len(terms), []))

    def once(self, x: Node) -> Node:
        """A term that enters the sum over tensor peers once: zero but on the first peer."""
        return x if self.share.leads else self.moved(x, np.zeros_like(x.value), np.zeros_like)

    def piece(self, x: Node, start: int, stop: int, axis: int = -1) -> Node:
        """Some entries along an axis."""
        where: list[slice] = [slice(None)] * x.value.ndim
        where[axis] = slice(start, stop)

        def back(d: Floats) -> Floats:
            whole = np.zeros_like(x.value)
            whole[tuple(where)] = d
            return whole

        return self.moved(x, x.value[tuple(where)], back)

    def joined(self, *parts: Node) -> Node:
        """Parts one after the other along the last axis."""
        ends = np.cumsum([part.value.shape[-1] for part in parts])[:-1]
        whole = np.concatenate([part.value for part in parts], axis=-1)
        return self.add(whole, parts, lambda _, d: (np.split(d, ends, axis=-1), []))

    def repeated(self, x: Node, count: int) -> Node:
        """One head for all."""
        whole = np.repeat(x.value, count, axis=HEADS)
        return self.moved(x, whole, lambda d: np.asarray(d.sum(axis=HEADS, keepdims=True)))

    def split_heads(self, x: Node, count: int) -> Node:
        """(n, s, heads * d) to (n, heads, s, d)."""
        return self.moved(x, _split(x.value, count), _merged)

    def merge_heads(self, x: Node) -> Node:
        """(n, heads, s, d) to (n, s, heads * d)."""
        count = x.value.shape[HEADS]
        return self.moved(x, _merged(x.value), lambda d: _split(d, count))

    # ------------------------------------------------------------------------ norms and linears
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

    def linear(self, x: Node, name: str, *, adds: bool = True) -> Node:
        """A product, to which the rank `adds` its bias; all ranks have the gradient of the bias."""
        bias = f"{name}_bias"
        biased = bias in self.weights
        y = self.kept.get(name)
        if y is None:
            y = x.value @ self.weights[name]
            if biased and adds:
                y = y + self.weights[bias]
        self.products[name] = y

        def back(w: Weights, d: Floats) -> tuple[Sequence[Floats], Gradients]:
            gradients: Gradients = [(name, lambda: _flat(x.value).T @ _flat(d))]
            if biased:
                gradients.append((bias, lambda: _flat(d).sum(axis=0)))
            return [d @ w[name].T], gradients

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

    # -------------------------------------------------------------------------------- attention
    def rotated(self, x: Node) -> Node:
        """Rotary positions [2104.09864]: pairs of entries rotated by position times frequency."""
        if self.share.model.position_embedding != "rotary":
            return x
        half = x.value.shape[-1] // 2
        cosine, sine = _angles(self.share.places, half)

        def turned(value: Floats, turns: Floats) -> Floats:
            a = value[..., :half]
            b = value[..., half : 2 * half]
            rest = value[..., 2 * half :]
            return np.concatenate([a * cosine - b * turns, a * turns + b * cosine, rest], axis=-1)

        return self.moved(x, turned(x.value, sine), lambda d: turned(d, -sine))

    def core(self, q: Node, k: Node, v: Node) -> Node:
        """Scores, softmax, weighted values: on own positions, or on given ones of heads from `first_head`."""
        share = self.share
        places = self.given.get("places", share.places)
        p = _softmax(scores(q.value, k.value, (places, places), share, self.given.get("first_head", 0)))
        context = self.kept.get("context")
        if context is None:
            context = p @ of_groups(v.value, share)

        def back(_: Weights, d: Floats) -> tuple[Sequence[Floats], Gradients]:
            delta = (d * context).sum(axis=-1, keepdims=True)
            return core_gradients(p, d, (q.value, k.value, v.value), share, delta), []

        return self.add(context, [q, k, v], back)

    # ---------------------------------------------------------------------------------- experts
    def probabilities(self, logits: Node) -> Node:
        """Softmax over the last axis."""
        p = _softmax(logits.value)
        return self.moved(logits, p, lambda d: p * (d - (d * p).sum(axis=-1, keepdims=True)))

    def slots(self, z: Node, k: int) -> Node:
        """A row for every slot of a token."""
        n, s, hidden = z.value.shape
        rows = np.repeat(z.value.reshape(-1, hidden), k, axis=0)
        return self.moved(z, rows, lambda d: np.asarray(d.reshape(n, s, k, hidden).sum(axis=2)))

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

    def experts(self, rows: Node) -> Node:
        """The rank's experts on rows for them, each like an MLP: its part of the width of every expert."""
        expert = self.given["expert"]
        adds = self.share.expert_tensor.number == 0
        chosen = [np.flatnonzero(expert == number) for number in self.share.own_experts]
        tapes = []
        y = np.zeros_like(rows.value)
        for local, places in enumerate(chosen):
            own = {name: value[local] for name, value in self.weights.items() if name.startswith("expert_")}
            tape = Tape(own, self.share)
            x = Node(rows.value[places])
            gate = tape.linear(x, "expert_gate") if "expert_gate" in own else None
            activated = tape.activation(tape.linear(x, "expert_fc1"), gate)
            made = tape.linear(activated, "expert_fc2", adds=adds)
            tapes.append((tape, x, made))
            y[places] = made.value

        def back(w: Weights, d: Floats) -> tuple[Sequence[Floats], Gradients]:
            dx = np.zeros_like(rows.value)
            of_experts: dict[str, list[Callable[[], Floats]]] = {}
            for local, (places, (tape, x, made)) in enumerate(zip(chosen, tapes, strict=True)):
                own = {name: value[local] for name, value in w.items() if name.startswith("expert_")}
                arrived, gradients = tape.back(own, {made: d[places]})
                dx[places] = arrived[x]
                for name, gradient in gradients:
                    of_experts.setdefault(name, []).append(gradient)
            return [dx], [(name, partial(_stacked, made)) for name, made in of_experts.items()]

        return self.add(y, [rows], back)

    # ------------------------------------------------------------------------------------ words
    def lookup(self) -> Node:
        """Embeddings of the words that this peer holds, zero for others; the first peer adds positions."""
        share = self.share
        learned = "positions" in self.weights
        local = self.given["tokens"] - share.first_row
        held = (local >= 0) & (local < share.rows)
        x = np.where(held[..., None], self.weights["words"][np.where(held, local, 0)], 0.0)
        if share.leads and learned:
            x = x + self.weights["positions"][list(share.places)]

        def back(_: Weights, d: Floats) -> tuple[Sequence[Floats], Gradients]:
            def of_words() -> Floats:
                words = np.zeros((share.rows, d.shape[-1]))
                np.add.at(words, local[held], d[held])
                return words

            def of_positions() -> Floats:
                positions = np.zeros((share.seq_length, d.shape[-1]))
                positions[list(share.places)] = d.sum(axis=0)
                return positions

            return [], [("words", of_words), *([("positions", of_positions)] if learned else [])]

        return self.add(x, [], back)

    def logits(self, z: Node) -> Node:
        """Scores of the words of this peer; rows that pad its part take no part in the softmax."""
        made = z.value @ self.weights["head_words"].T
        biased = "head_bias" in self.weights
        if biased:
            made = made + self.weights["head_bias"]
        made[..., self.share.real_rows :] = -np.inf

        def back(w: Weights, d: Floats) -> tuple[Sequence[Floats], Gradients]:
            gradients: Gradients = [("head_words", lambda: _flat(d).T @ _flat(z.value))]
            if biased:
                gradients.append(("head_bias", lambda: _flat(d).sum(axis=0)))
            return [d @ w["head_words"]], gradients

        return self.add(made, [z], back)

    # --------------------------------------------------------------------------------- backward
    def back(self, weights: Weights, arrived: dict[Node, Floats]) -> tuple[dict[Node, Floats], Gradients]:
        """From the gradients of some nodes to those of all before them, and of weights."""
        of_weights: Gradients = []
        for node in reversed(self.nodes):
            gradient = arrived.get(node)
            if gradient is None or node.back is None:
                continue
            inputs, made = node.back(weights, gradient)
            of_weights += made
            for parent, value in zip(node.parents, inputs, strict=True):
                arrived[parent] = arrived[parent] + value if parent in arrived else value
        return arrived, of_weights


# What operations compute with.


def _stacked(gradients: Sequence[Callable[[], Floats]]) -> Floats:
    return np.stack([gradient() for gradient in gradients])


def _flat(x: Floats) -> Floats:
    """All but the last axis as one."""
    return x.reshape(-1, x.shape[-1])


def _split(x: Floats, count: int) -> Floats:
    return x.reshape(*x.shape[:2], count, x.shape[-1] // count).swapaxes(1, 2)


def _merged(x: Floats) -> Floats:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def _mean(x: Floats) -> Floats:
    """Mean over the last axis; on small arrays faster than `mean`."""
    return np.asarray(np.add.reduce(x, axis=-1, keepdims=True) / x.shape[-1])


def _softmax(x: Floats) -> Floats:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


@lru_cache(maxsize=64)
def _angles(places: tuple[int, ...], half: int) -> tuple[Floats, Floats]:
    angle = np.array(places)[:, None] / ROTARY_BASE ** (np.arange(half) / half)
    return np.cos(angle), np.sin(angle)


# Attention's core, also in parts.

Places = tuple[tuple[int, ...], tuple[int, ...]]
"""Positions of queries, and of keys."""


def scores(q: Floats, k: Floats, places: Places, share: Share, first_head: int = 0) -> Floats:
    """Scores of queries and keys at these places, with terms added to them.

    They are minus infinity for the future if causal and before a window, and ALiBi's slopes [2108.12409].
    `q` begins with the peer's head `first_head`.
    """
    made = q @ np.swapaxes(of_groups(k, share), -1, -2) / math.sqrt(share.model.head_size)
    made = made + _hidden(*places, causal=share.model.causal, window=share.window)
    if share.model.position_embedding != "alibi":
        return np.asarray(made)
    number = share.tensor.number * share.heads + first_head + np.arange(q.shape[HEADS])
    slope = 2.0 ** (-8.0 * (number + 1) / share.model.num_attention_heads)
    distance = np.abs(np.array(places[0])[:, None] - np.array(places[1])[None, :])
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
