"""Serial training, the reference of proofs: the whole batch through the whole model on one device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.experts import (
    BlockKept,
    Routing,
    drawn_routing,
    experts_forward,
    router_forward,
    shared_forward,
)
from perfsim.proof.layers import (
    LOSS_WEIGHT,
    AttentionKept,
    HeadKept,
    Joined,
    MlpKept,
    attention_forward,
    embedding_backward,
    embedding_forward,
    head_forward,
    head_of,
    join,
    losses_of,
    mlp_forward,
    norm_of_head,
)
from perfsim.proof.shares import EXPERTS, Share, Weights, blocks
from perfsim.specs.model import TransformerConfig
from perfsim.work import EMBEDDING, HEAD

# The optimizer of proofs: Adam [1412.6980] on flat vectors, with gradients clipped by their global norm.

LEARNING_RATE = 1e-2
BETA1 = 0.9
BETA2 = 0.95
EPSILON = 1e-5
"""Large for Adam, so that gradients of pure rounding error hardly change their weights."""


MAX_NORM = 0.25
"""A limit that the gradients of small models exceed, each step by another factor."""


def clipping(squared_norm: float, max_norm: float) -> float:
    """The factor by which all gradients are multiplied [1211.5063; torch.nn.utils.clip_grad_norm_]."""
    return min(1.0, max_norm / (math.sqrt(squared_norm) + 1e-6))


class Moments(NamedTuple):
    """First and second moment, and the number of updates so far."""

    first: Floats
    second: Floats
    updates: int

    @classmethod
    def zero(cls, size: int) -> Moments:
        """The state before the first update."""
        return cls(np.zeros(size), np.zeros(size), 0)


def adam(weights: Floats, gradient: Floats, moments: Moments) -> tuple[Floats, Moments]:
    """One update with bias correction."""
    first = BETA1 * moments.first + (1 - BETA1) * gradient
    second = BETA2 * moments.second + (1 - BETA2) * gradient * gradient
    updates = moments.updates + 1
    step = (first / (1 - BETA1**updates)) / (np.sqrt(second / (1 - BETA2**updates)) + EPSILON)
    return weights - LEARNING_RATE * step, Moments(first, second, updates)


STEPS = 2
"""The second step begins with the updated weights of the first."""


@dataclass(frozen=True)
class SmallTraining:
    """A small model, its initial weights, and random words to train on, new ones each step."""

    model: TransformerConfig
    seq_length: int
    head_positions: int
    batch: int
    seed: int = 0
    max_norm: float = math.inf
    """The limit to which gradients are clipped by their global norm; infinite where nothing waits for it."""
    capacity: float | None = None
    """Most tokens of an expert in a sequence over their mean; None: none is dropped."""

    def routing(self, step: int, layer: int) -> Routing:
        """The experts of every token of a batch in a layer."""
        if self.model.experts is None:
            raise ValueError(f"{self.model.name} has no experts")
        seed = (self.seed, 2, step, layer)
        return drawn_routing(self.model.experts, self.batch, self.seq_length, self.capacity, seed)

    @cached_property
    def share(self) -> Share:
        """The whole model as one share."""
        return Share(self.model, self.seq_length)

    @property
    def num_tokens(self) -> int:
        """Tokens of a step that reach the LM head."""
        return self.batch * self.head_positions

    @property
    def num_later_tokens(self) -> float:
        """Tokens over which a module's loss is averaged, over the weight of its mean."""
        return self.batch * self.seq_length * self.model.mtp_num_layers / LOSS_WEIGHT

    def words(self, step: int, ahead: int = 0) -> tuple[Ints, Ints]:
        """Inputs and targets of one step; those of the `ahead`-th module are later by as many tokens."""
        drawn = self._words[step]
        length = self.seq_length if ahead else self.head_positions
        return drawn[:, ahead : ahead + self.seq_length], drawn[:, ahead + 1 : ahead + 1 + length]

    @cached_property
    def _words(self) -> Ints:
        rng = np.random.default_rng([self.seed, 1])
        length = self.seq_length + 1 + self.model.mtp_num_layers
        return rng.integers(0, self.model.vocab_size, (STEPS, self.batch, length))

    @cached_property
    def initial(self) -> dict[int, Weights]:
        """Initial weights by block; a tied LM head begins with the embedding's words."""
        rng = np.random.default_rng([self.seed, 0])
        weights: dict[int, Weights] = {}
        for block in blocks(self.model):
            layout = self.share.layouts[block]
            weights[block] = {name: _drawn(rng, name, shape) for name, shape in layout.shapes.items()}
        if self.model.tied_embeddings:
            weights[HEAD]["words"] = weights[EMBEDDING]["words"].copy()
        return weights


def _drawn(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Floats:
    around = 1.0 if name.endswith(".scale") else 0.0
    wide = len(shape) > 1 and not name.endswith("_bias")
    deviation = 0.5 / np.sqrt(shape[-1] if name == "words" else shape[-2]) if wide else 0.1
    return around + deviation * rng.standard_normal(shape)


@dataclass
class Record:
    """Values of one step of serial training; `hidden[k]` is the input of layer k."""

    losses: Floats
    """The part of each token in the mean loss, shape (samples, positions)."""
    later_losses: dict[int, Floats] = field(default_factory=dict)
    """The same for every module of multi-token prediction, by its layer."""
    hidden: list[Floats] = field(default_factory=list)
    attention: list[Floats] = field(default_factory=list)
    gradient: dict[int, Floats] = field(default_factory=dict)
    """Gradient of `hidden[k]`."""
    middle: dict[int, Floats] = field(default_factory=dict)
    """Gradient of the input of layer k's MLP."""
    weight_gradients: dict[int, Weights] = field(default_factory=dict)
    squared_norm: float = 0.0
    """Of all gradients before clipping."""
    clipping: float = 1.0
    """The factor that the optimizer applies to gradients."""
    weights: dict[int, Weights] = field(default_factory=dict)
    """After the update."""

    @property
    def loss(self) -> float:
        """Mean loss of the step."""
        return float(self.losses.sum() + sum(map(np.sum, self.later_losses.values())))

    def add_gradients(self, weights: dict[int, Weights], layer: int, grads: Weights) -> None:
        """Keep the gradients of a layer's weights by their blocks."""
        for block in (layer, EXPERTS + layer):
            if block in weights:
                self.weight_gradients[block] = {name: grads[name] for name in weights[block]}


def train(training: SmallTraining) -> list[Record]:
    """Train serially; one record per step."""
    weights = dict(training.initial)
    moments = {block: Moments.zero(training.share.layouts[block].size) for block in weights}
    records = []
    for step in range(STEPS):
        record = gradients(training, weights, step)
        layouts = training.share.layouts
        flats = {block: layouts[block].flat(parts) for block, parts in record.weight_gradients.items()}
        record.squared_norm = sum(
            float(np.sum(layouts[block].counted * gradient**2)) for block, gradient in flats.items()
        )
        record.clipping = clipping(record.squared_norm, training.max_norm)
        for block, before in list(weights.items()):
            layout = layouts[block]
            gradient = record.clipping * flats[block]
            flat, moments[block] = adam(layout.flat(before), gradient, moments[block])
            weights[block] = layout.views(flat)
        record.weights = dict(weights)
        records.append(record)
    return records


def gradients(training: SmallTraining, weights: dict[int, Weights], step: int) -> Record:
    """Loss and all gradients of one step."""
    share = training.share
    record = Record(np.zeros(training.batch))
    tokens, targets = training.words(step)
    x = embedding_forward(weights[EMBEDDING], tokens, share)
    record.hidden.append(x)
    kept: list[_LayerKept] = []
    for layer in range(training.model.num_layers):
        routing = training.routing(step, layer) if EXPERTS + layer in weights else None
        x, attention, of_layer = layer_forward(_whole(weights, layer), x, routing, share.of_layer(layer))
        kept.append(of_layer)
        record.attention.append(attention)
        record.hidden.append(x)
    statistics, of_head = head_forward(weights[HEAD], x, targets, share)
    record.losses = losses_of(statistics, training.num_tokens)
    d, inputs = of_head.dgrad(
        weights[HEAD], statistics, targets, training.num_tokens, share, training.seq_length
    )
    record.weight_gradients[HEAD] = inputs.wgrad(share) | inputs.norm
    d_words = _modules(training, weights, step, record)
    d = d + record.gradient.get(training.model.num_layers, 0.0)
    for layer in reversed(range(training.model.num_layers)):
        record.gradient[layer + 1] = d
        d, record.middle[layer], grads = kept[layer].backward(_whole(weights, layer), d, share)
        record.add_gradients(weights, layer, grads)
    record.gradient[0] = d
    record.weight_gradients[EMBEDDING] = _added(embedding_backward(d, tokens, share), d_words)
    if training.model.tied_embeddings:
        both = record.weight_gradients[EMBEDDING]["words"] + record.weight_gradients[HEAD]["words"]
        record.weight_gradients[EMBEDDING]["words"] = record.weight_gradients[HEAD]["words"] = both
    return record


def _modules(training: SmallTraining, weights: dict[int, Weights], step: int, record: Record) -> Weights:
    """Modules of multi-token prediction forward and backward; returns their gradients of embeddings.

    A module reads the output of the one before it, the first one that of the last layer.
    """
    share = training.share
    first = training.model.num_layers
    made = list[_Module]()
    for ahead in range(1, training.model.mtp_num_layers + 1):
        layer = first + ahead - 1
        tokens, targets = training.words(step, ahead)
        w = _whole(weights, layer)
        joined = join(w, weights[EMBEDDING], record.hidden[layer], tokens, share)
        routing = training.routing(step, layer) if EXPERTS + layer in weights else None
        y, attention, kept = layer_forward(w, joined.x, routing, share.of_layer(layer))
        statistics, of_head = head_forward(head_of(w, weights[HEAD]), y, targets, share)
        record.later_losses[layer] = losses_of(statistics, training.num_later_tokens)
        record.attention.append(attention)
        record.hidden.append(y)
        made.append(_Module(layer, tokens, targets, joined, kept, statistics, of_head))
    d = np.zeros_like(record.hidden[0])
    words = Weights()
    count = training.num_later_tokens
    for module in reversed(made):
        layer = module.layer
        w = _whole(weights, layer)
        head = head_of(w, weights[HEAD])
        length = training.seq_length
        dy, inputs = module.head.dgrad(head, module.statistics, module.targets, count, share, length)
        d, record.middle[layer], grads = module.kept.backward(w, d + dy, share)
        d, joint = module.joined.dgrad(w, d)
        grads |= joint.wgrad() | norm_of_head(inputs.norm)
        record.add_gradients(weights, layer, grads)
        record.weight_gradients[HEAD] = _added(record.weight_gradients[HEAD], inputs.wgrad(share))
        record.gradient[layer] = d
        words = _added(words, embedding_backward(joint.d_words, module.tokens, share))
    return words


class _Module(NamedTuple):
    """What a module keeps for its backward."""

    layer: int
    tokens: Ints
    targets: Ints
    joined: Joined
    kept: _LayerKept
    statistics: Floats
    head: HeadKept


def _added(first: Weights, second: Weights) -> Weights:
    """The sums of named arrays."""
    return first | {name: first[name] + value if name in first else value for name, value in second.items()}


class _LayerKept(NamedTuple):
    """What a layer keeps for its backward."""

    attention: AttentionKept
    mlp: MlpKept | BlockKept

    def backward(self, w: Weights, dy: Floats, share: Share) -> tuple[Floats, Floats, Weights]:
        """Gradients of a whole layer's input, of its MLP's input and of its weights."""
        if isinstance(self.mlp, BlockKept):
            middle, grads = _experts_backward(w, self.mlp, dy, share)
        else:
            middle, mlp = self.mlp.dgrad(w, dy, share)
            grads = mlp.wgrad(bias=share.model.bias) | mlp.norm
        d_attention = dy if share.model.norms_per_layer == 1 else middle
        dx, attention = self.attention.dgrad(w, d_attention, share)
        grads |= attention.wgrad(bias=share.model.has_attention_bias)
        for name, value in attention.norm.items():
            grads[name] = grads[name] + value if name in grads else value
        return dx + middle, middle, grads


def _whole(weights: dict[int, Weights], layer: int) -> Weights:
    """The weights of a layer with its experts."""
    return weights[layer] | weights.get(EXPERTS + layer, {})


def layer_forward(
    w: Weights, x: Floats, routing: Routing | None, share: Share
) -> tuple[Floats, Floats, _LayerKept]:
    """A whole layer, with experts if tokens are routed: its output, its attention's, and what it keeps."""
    attention, of_attention = attention_forward(w, x, share)
    if routing is None:
        y, of_mlp = mlp_forward(w, x, attention, share)
        return y, attention, _LayerKept(of_attention, of_mlp)
    total = x + attention
    rows, router = router_forward(w, total, routing)
    outputs, of_experts = experts_forward(w, rows, share)
    shared, of_shared = shared_forward(w, router.z, share) if "shared_fc1" in w else (None, None)
    y = router.combine(outputs, total, shared)
    return y, attention, _LayerKept(of_attention, BlockKept(router, of_experts, of_shared, outputs))


def _experts_backward(w: Weights, kept: BlockKept, dy: Floats, share: Share) -> tuple[Floats, Weights]:
    """Gradients of the input and of all weights of a block with experts."""
    made = kept.router.combine_backward(dy)
    own = {name: value for name, value in w.items() if name.startswith("expert_")}
    rows, of_experts = kept.experts.backward(own, made.values, share)
    d_shared: Floats | None = None
    grads: Weights = {}
    if kept.shared is not None:
        d_shared, grads = kept.shared.backward(w, kept.router.z, dy, share)
    dx, of_router = kept.router.backward(w, kept.outputs, rows, dy, d_shared)
    return dx, of_experts | grads | of_router
