"""What a layer keeps from its forward to its backward, by recompute mode."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.layers import (
    AttentionKept,
    MlpKept,
    NormKept,
    Results,
    activation_backward,
    activation_forward,
    every_second,
    norm_forward,
    outer,
    softmax,
)
from perfsim.proof.shares import Share, Weights
from perfsim.specs.model import Experts
from perfsim.specs.recipe import Recipe

# A block with experts in NumPy, float64: router, the rows of tokens, experts, and their backward.
#
# Which experts compute a token is fixed by a seed, so that ranks agree on it whatever their rounding; how
# much each counts is the router's softmax over all experts, so the router has gradients. Every expert of a
# layer has equally many tokens of each sequence. Beyond a capacity the later tokens of a sequence are
# dropped: their rows travel with weight zero, as padding does.


class Routing(NamedTuple):
    """The experts of every token of a batch, and which of them keep it; shapes (samples, positions, k)."""

    expert: Ints
    keeps: NDArray[np.bool_]

    def of(self, rows: Ints, places: Ints | slice) -> Routing:
        """The routing of some samples and positions."""
        return Routing(self.expert[rows][:, places], self.keeps[rows][:, places])


@lru_cache(maxsize=64)
def drawn_routing(
    experts: Experts, batch: int, length: int, capacity: float | None, seed: tuple[int, ...]
) -> Routing:
    """Routing in which the slots of a sequence go round the experts in an order of its own."""
    rng = np.random.default_rng(seed)
    count = experts.num_experts
    k = experts.top_k
    order = np.stack([rng.permutation(count) for _ in range(batch)])
    slots = np.arange(length * k) % count
    expert = order[:, slots]
    turn = np.arange(length * k) // count  # how many slots of the expert came before in the sequence
    most = length * k if capacity is None else max(1, int(capacity * length * k / count))
    keeps = np.broadcast_to(turn < most, expert.shape)
    return Routing(expert.reshape(batch, length, k), keeps.reshape(batch, length, k))


class Rows(NamedTuple):
    """Rows of tokens on their way: a vector for each, and the expert that it is for."""

    values: Floats
    expert: Ints


class _RouterKept(NamedTuple):
    """What the router keeps for its backward."""

    norm: NormKept
    z: Floats
    probabilities: Floats
    routing: Routing

    @property
    def weights(self) -> Floats:
        """The weight of every slot, shape (samples, positions, k); zero of a dropped one."""
        own = np.take_along_axis(self.probabilities, self.routing.expert, axis=-1)
        return np.asarray(own * self.routing.keeps)

    def combine(self, outputs: Floats, total: Floats, shared: Floats | None) -> Floats:
        """Rows weighted and summed to tokens, with the residual and shared experts."""
        weighted = outputs.reshape(*self.weights.shape, -1) * self.weights[..., None]
        y = total + np.asarray(weighted.sum(axis=-2))
        return y if shared is None else np.asarray(y + shared)

    def combine_backward(self, dy: Floats) -> Rows:
        """Gradients of what experts made of the rows."""
        rows = dy[..., None, :] * self.weights[..., None]
        return Rows(rows.reshape(-1, dy.shape[-1]), self.routing.expert.ravel())

    def backward(
        self, w: Weights, outputs: Floats, rows: Floats, dy: Floats, d_shared: Floats | None
    ) -> tuple[Floats, Weights]:
        """Gradient of the block's input with the residual, and of router and norm."""
        routing = self.routing
        hidden = dy.shape[-1]
        shape = (*routing.expert.shape, hidden)
        d_weight = (outputs.reshape(shape) * dy[..., None, :]).sum(axis=-1) * routing.keeps
        d_p = np.zeros_like(self.probabilities)
        np.put_along_axis(d_p, routing.expert, d_weight, axis=-1)
        p = self.probabilities
        d_logits = p * (d_p - (d_p * p).sum(axis=-1, keepdims=True))
        dz = rows.reshape(shape).sum(axis=-2) + d_logits @ w["router"].T
        if d_shared is not None:
            dz = dz + d_shared
        dx, grads = self.norm.backward(dz, w, "norm2")
        grads["router"] = outer(self.z, d_logits)
        if "router_bias" in w:
            grads["router_bias"] = d_logits.sum(axis=(0, 1))
        return dx + dy, grads


class _ExpertsKept(NamedTuple):
    """What experts keep for their backward: rows, and the inputs of both products' gradients."""

    rows: Rows
    u: Floats
    activated: Floats

    def backward(self, w: Weights, dy: Floats, share: Share) -> tuple[Floats, Weights]:
        """Gradients of rows (its part of a sum over peers) and of the rank's experts."""
        grads = {name: np.zeros_like(w[name]) for name in w}
        dx = np.zeros_like(dy)
        for local, own in _by_expert(self.rows, share):
            du = activation_backward(self.u[own], dy[own] @ w["expert_fc2"][local].T, share)
            dx[own] = du @ w["expert_fc1"][local].T
            grads["expert_fc1"][local] = self.rows.values[own].T @ du
            grads["expert_fc2"][local] = self.activated[own].T @ dy[own]
            if "expert_fc1_bias" in w:
                grads["expert_fc1_bias"][local] = du.sum(axis=0)
            if "expert_fc2_bias" in w:
                grads["expert_fc2_bias"][local] = dy[own].sum(axis=0)
        return dx, grads


class _SharedKept(NamedTuple):
    """What shared experts keep."""

    u: Floats
    activated: Floats

    def backward(self, w: Weights, z: Floats, dy: Floats, share: Share) -> tuple[Floats, Weights]:
        """Gradients of the input and the weights of shared experts."""
        du = activation_backward(self.u, dy @ w["shared_fc2"].T, share)
        grads = {"shared_fc1": outer(z, du), "shared_fc2": outer(self.activated, dy)}
        if "shared_fc1_bias" in w:
            grads |= {"shared_fc1_bias": du.sum(axis=(0, 1)), "shared_fc2_bias": dy.sum(axis=(0, 1))}
        return du @ w["shared_fc1"].T, grads


class BlockKept(NamedTuple):
    """What the whole block keeps on a rank."""

    router: _RouterKept
    experts: _ExpertsKept
    shared: _SharedKept | None
    outputs: Floats
    """What experts made of the rank's own rows."""


# ------------------------------------------------------------------------------------------ forward
def router_forward(w: Weights, total: Floats, routing: Routing) -> tuple[Rows, _RouterKept]:
    """Norm, scores of all experts, and a row for every slot of a token."""
    z, norm = norm_forward(total, w, "norm2")
    logits = z @ w["router"]
    if "router_bias" in w:
        logits = logits + w["router_bias"]
    kept = _RouterKept(norm, z, softmax(logits), routing)
    k = routing.expert.shape[-1]
    hidden = z.shape[-1]
    values = np.repeat(z.reshape(-1, hidden), k, axis=0)
    return Rows(values, routing.expert.ravel()), kept


def experts_forward(w: Weights, rows: Rows, share: Share) -> tuple[Floats, _ExpertsKept]:
    """A rank's experts on rows: its part of the width of every expert."""
    width = w["expert_fc1"].shape[-1]
    ffn = w["expert_fc2"].shape[-2]
    u = np.empty((len(rows.expert), width))
    activated = np.empty((len(rows.expert), ffn))
    y = np.zeros_like(rows.values)
    for local, own in _by_expert(rows, share):
        u[own] = rows.values[own] @ w["expert_fc1"][local]
        if "expert_fc1_bias" in w:
            u[own] += w["expert_fc1_bias"][local]
        activated[own] = activation_forward(u[own], share)
        y[own] = activated[own] @ w["expert_fc2"][local]
        if "expert_fc2_bias" in w and share.expert_peer == 0:
            y[own] += w["expert_fc2_bias"][local]
    return y, _ExpertsKept(rows, u, activated)


def shared_forward(w: Weights, z: Floats, share: Share) -> tuple[Floats, _SharedKept]:
    """Shared experts, which compute every token."""
    u = z @ w["shared_fc1"]
    if "shared_fc1_bias" in w:
        u = u + w["shared_fc1_bias"]
    activated = activation_forward(u, share)
    y = activated @ w["shared_fc2"]
    return (y + w["shared_fc2_bias"] if "shared_fc2_bias" in w else y), _SharedKept(u, activated)


# ----------------------------------------------------------------------------------------- backward


def _by_expert(rows: Rows, share: Share) -> list[tuple[int, Ints]]:
    """The number of each of a rank's experts among them, and its rows."""
    return [(local, np.flatnonzero(rows.expert == expert)) for local, expert in enumerate(share.own_experts)]


OPERATORS = "operators"
"""The mode of a selective recompute that keeps the results of some operators."""


class Kept(NamedTuple):
    """Activations that a layer keeps: all, all but the attention core, or only its input and some results."""

    attention: AttentionKept | None
    mlp: MlpKept | BlockKept | None
    x: Floats
    results: Results | None = None
    """What products made, if a recompute keeps it."""
    context: Floats | None = None
    """What the core made, if a recompute keeps it."""


def kept_by(
    mode: str, recipe: Recipe, share: Share, attention: AttentionKept, mlp: MlpKept | BlockKept
) -> Kept:
    """What a layer under a recompute mode keeps; by operator experts are kept whole."""
    results = dict(attention.results or {})
    context = None
    if mode == "full":
        results.pop("projection", None)
        return Kept(None, None, attention.x, results if recipe.runtime.recompute_keeps == "qkv" else None)
    if mode == OPERATORS:
        if isinstance(mlp, MlpKept):
            results["fc1"] = mlp.u
        if recipe.runtime.attention == "flash":
            context = attention.context
        whole = mlp if isinstance(mlp, BlockKept) else None
        return Kept(None, whole, attention.x, every_second(results, share), context)
    return Kept(attention.without_core() if mode == "selective" else attention, mlp, attention.x)
