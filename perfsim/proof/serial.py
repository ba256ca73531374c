"""Serial training, the reference of proofs: the whole batch through the whole model on one device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.proof import operations
from perfsim.proof.parameters import WORDS, Share, Weights, blocks
from perfsim.specs.model import Experts, TransformerConfig
from perfsim.work import EMBEDDING, HEAD
from perfsim.work.tensors import EXPERTS

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


LOSS_WEIGHT = 0.3
"""Weight of the mean loss of all modules; the model's own loss has weight 1 [2412.19437 4.2]."""
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

    def routing(self, step: int, layer: int) -> operations.Routing:
        """The experts of every token of a batch in a layer."""
        seed = (self.seed, 2, step, layer)
        return _drawn_routing(self.model.given_experts(), self.batch, self.seq_length, self.capacity, seed)

    @cached_property
    def share(self) -> Share:
        return Share(self.model, self.seq_length)

    def num_tokens(self, ahead: int) -> float:
        """Tokens over which the loss of the words `ahead` is averaged, over the weight of its mean."""
        if ahead:
            return self.batch * self.seq_length * self.model.mtp_num_layers / LOSS_WEIGHT
        return self.batch * self.head_positions

    def words(self, step: int, ahead: int = 0) -> tuple[Ints, Ints]:
        """Inputs and targets of one step, later by as many tokens for the `ahead`-th module."""
        drawn = self._words[step]
        length = self.seq_length if ahead else self.head_positions
        return drawn[:, ahead : ahead + self.seq_length], drawn[:, ahead + 1 : ahead + 1 + length]

    @cached_property
    def records(self) -> list[Record]:
        """Serial training, one record per step."""
        return train(self)

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
            weights[block] = {}
            for name, shape in self.share.layouts[block].shapes.items():
                around = 1.0 if name.endswith(".scale") else 0.0
                wide = len(shape) > 1 and not name.endswith("_bias")
                deviation = 0.5 / np.sqrt(shape[-1] if name in WORDS.values() else shape[-2]) if wide else 0.1
                weights[block][name] = around + deviation * rng.standard_normal(shape)
        if self.model.tied_embeddings:
            weights[HEAD][WORDS[HEAD]] = weights[EMBEDDING][WORDS[EMBEDDING]].copy()
        return weights


@lru_cache(maxsize=64)
def _drawn_routing(
    experts: Experts, batch: int, length: int, capacity: float | None, seed: tuple[int, ...]
) -> operations.Routing:
    """Routing in which the slots of a sequence go round the experts in an order of its own."""
    rng = np.random.default_rng(seed)
    count = experts.num_experts
    k = experts.top_k
    order = np.stack([rng.permutation(count) for _ in range(batch)])
    slots = np.arange(length * k) % count
    expert = order[:, slots]
    turn = np.arange(length * k) // count  # how many slots of the expert came before in the sequence
    # Beyond a capacity the later tokens are dropped: their rows travel with weight zero, as padding does.
    most = length * k if capacity is None else max(1, int(capacity * length * k / count))
    keeps = np.broadcast_to(turn < most, expert.shape)
    return operations.Routing(expert.reshape(batch, length, k), keeps.reshape(batch, length, k))


@dataclass
class Record:
    """Values of one step of serial training; `hidden[k]` is the input of layer k."""

    losses: dict[int, Floats] = field(default_factory=dict)
    """The part of each token in the mean loss, shape (samples, positions), by LM head or module."""
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
        return float(sum(map(np.sum, self.losses.values())))


def train(training: SmallTraining) -> list[Record]:
    """Train serially; one record per step."""
    weights = dict(training.initial)
    layouts = training.share.layouts
    moments = {block: Moments.zero(layouts[block].size) for block in weights}
    records = []
    for step in range(STEPS):
        record = gradients(training, weights, step)
        flats = {block: layouts[block].flat(made.items()) for block, made in record.weight_gradients.items()}
        squares = [float(np.sum(layouts[block].counted * flat**2)) for block, flat in flats.items()]
        record.squared_norm = sum(squares)
        record.clipping = clipping(record.squared_norm, training.max_norm)
        for block, parts in weights.items():
            before = layouts[block].flat(parts.items())
            flat, moments[block] = adam(before, record.clipping * flats[block], moments[block])
            weights[block] = layouts[block].views(flat)
        record.weights = dict(weights)
        records.append(record)
    return records


def gradients(training: SmallTraining, weights: dict[int, Weights], step: int) -> Record:
    """Loss and all gradients of one step."""
    record = Record()
    share = training.share
    layouts = share.layouts
    num_layers = training.model.num_layers
    modules = range(num_layers, num_layers + training.model.mtp_num_layers)
    parts_of = {EMBEDDING: ("lookup",), HEAD: ("scores",)}
    carried_out: list[tuple[int, str, operations.Tape, operations.Node | None]] = []
    """Parts by block and name, each with its tape and the hidden states before it."""
    arrived: dict[operations.Node, Floats] = {}
    """Gradients so far; before the backward, only the scores of words have one."""

    def read(block: int) -> Weights:
        """The weights that a block reads, with its experts, and of a module embedding and LM head."""
        own = weights[block] | weights.get(EXPERTS + block, {})
        return own | weights[EMBEDDING] | weights[HEAD] if block in modules else own

    hidden: operations.Node | None = None
    for block in (EMBEDDING, *range(num_layers), HEAD, *modules):
        ahead = max(0, block - num_layers + 1)
        tokens, targets = training.words(step, ahead)
        given: dict[str, Any] = {"tokens": tokens, "targets": targets}
        if EXPERTS + block in weights:
            routing = training.routing(step, block)
            given |= {"routing": routing, "expert": routing.expert.ravel()}
        # A module reads the output of the module before it, the first one the output of the last layer.
        nodes = {"hidden": hidden} if hidden else {}
        for name in parts_of.get(block, (*operations.ATTENTION, *operations.FEED_FORWARD, "scores")):
            tape = operations.Tape(read(block), share.of_layer(block), given=given)
            carried_out.append((block, name, tape, nodes.get("hidden")))
            nodes |= operations.PARTS[name].carried_out(tape, nodes)
        hidden = nodes["hidden"]
        if block != HEAD:
            record.hidden.append(hidden.value)
        if "attended" in nodes:
            record.attention.append(nodes["attended"].value)
        if "scores" in nodes:
            scored = nodes["scores"].value
            of_words = operations.statistics(scored, targets, share)
            count = training.num_tokens(ahead)
            record.losses[block], d_scores = operations.cross_entropy(scored, of_words, targets, count, share)
            arrived[nodes["scores"]] = d_scores
    flats = {block: np.zeros(layouts[block].size) for block in weights}
    for block, name, tape, x in reversed(carried_out):
        made = tape.back(read(block), arrived)
        for number in {block, EXPERTS + block, EMBEDDING, HEAD} & flats.keys():
            flats[number] += layouts[number].gradient(made)
        if x is not None and x in arrived:  # of the block's input, once its first part has added to it
            record.gradient[num_layers if block == HEAD else block] = arrived[x]
            if name in ("mlp", "router"):
                record.middle[block] = arrived[x]
    record.weight_gradients = {block: layouts[block].views(flat) for block, flat in flats.items()}
    if training.model.tied_embeddings:
        both = sum(record.weight_gradients[block][words] for block, words in WORDS.items())
        for block, words in WORDS.items():
            record.weight_gradients[block][words] = np.asarray(both)
    return record
