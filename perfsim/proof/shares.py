"""Where a model's parameters are: by block, by tensor peer and by ZeRO shard.

The parameters of a block (embedding, one layer, LM head) are one flat vector of named parts, as in
distributed optimizers. A tensor peer holds columns or rows of the matrices and everything else whole
[1909.08053]; a ZeRO shard is an equal part of each of its named tensors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.specs.model import Experts, LayerKind, TransformerConfig, layer_kinds
from perfsim.work import EMBEDDING, HEAD

Weights = dict[str, Floats]
EXPERTS = 1_000_000
"""Added to the number of a layer for the block of its routed experts, held by other ranks than the rest."""


@dataclass(frozen=True)
class Share:
    """The share of a model, for sequences of `seq_length`, that one of `peers` tensor peers holds."""

    model: TransformerConfig
    seq_length: int
    peers: int = 1
    peer: int = 0
    some_places: tuple[int, ...] | None = None
    """The positions of a sequence that it computes; None: all."""
    expert_ranks: int = 1
    """Ranks with different experts, of which it is the `expert_rank`-th."""
    expert_rank: int = 0
    expert_peers: int = 1
    """Ranks that share every expert, of which it is the `expert_peer`-th."""
    expert_peer: int = 0
    whole_layers: bool = False
    """Whether routed experts are in the block of their layer, as where layers stream."""
    window: int | None = None
    """Positions that a position attends to, in a layer with a window; None: all."""

    def of_layer(self, layer: int) -> Share:
        """The share with the attention window of a layer."""
        return self if layer_kinds(self.model)[layer].window is None else self._in_window

    @cached_property
    def _in_window(self) -> Share:
        return replace(self, window=self.model.sliding_window)

    @cached_property
    def own_experts(self) -> range:
        """The experts of this rank."""
        experts = self.model.experts
        count = 0 if experts is None else experts.num_experts // self.expert_ranks
        return range(self.expert_rank * count, (self.expert_rank + 1) * count)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The positions of a sequence that it computes."""
        return tuple(range(self.seq_length)) if self.some_places is None else self.some_places

    @cached_property
    def heads(self) -> int:
        """Attention heads of this peer."""
        return self.model.num_attention_heads // self.peers

    @cached_property
    def groups(self) -> int:
        """Query groups of this peer."""
        return self.model.query_groups // self.peers

    @cached_property
    def layouts(self) -> _Layouts:
        """Where the parameters of each block are in its flat vector."""
        return _Layouts(self)

    @cached_property
    def rows(self) -> int:
        """Rows of the vocabulary, padded so that every peer has the same number."""
        return -(-self.model.vocab_size // self.peers)

    @property
    def first_row(self) -> int:
        """First row of the vocabulary of this peer."""
        return self.peer * self.rows

    @property
    def leads(self) -> bool:
        """Whether it adds the terms that must enter a sum over the peers only once."""
        return self.peer == 0


COLUMNS = {"query", "query_bias", "pair", "pair_bias"}
"""Products up to all heads, of which a tensor peer holds the columns of its own heads."""
SPLIT = COLUMNS | {"qkv", "qkv_bias", "fc1", "fc1_bias", "projection", "fc2", "words", "head_bias"}
"""Tensors of which each tensor peer holds a part; every peer holds the others whole."""


class _BlockLayout:
    """The named parts of one block in its flat vector."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], uncounted: Collection[str] = ()) -> None:
        self.shapes = shapes
        self.uncounted = uncounted
        self.sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        ends = np.cumsum([0, *self.sizes.values()]).tolist()
        self.parts = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(shapes)}
        self.size = int(ends[-1])
        self._places = [(name, part, shapes[name]) for name, part in self.parts.items()]

    def views(self, flat: Floats) -> Weights:
        """The named parts of a flat vector."""
        return {name: flat[part].reshape(shape) for name, part, shape in self._places}

    def flat(self, parts: Weights) -> Floats:
        """The flat vector of named parts; absent parts are zero."""
        result = np.zeros(self.size)
        for name, value in parts.items():
            result[self.parts[name]] = value.ravel()
        return result

    @cached_property
    def counted(self) -> Floats:
        """1 for the entries that this peer counts in the norm of all gradients, 0 for the others.

        Every parameter counts once, as in Megatron-LM (`param_is_not_shared`,
        `param_is_not_tensor_parallel_duplicate`): the first peer counts tensors that all hold, and the
        embedding counts words that it shares with the LM head.
        """
        return self.flat({name: np.ones(s) for name, s in self.shapes.items() if name not in self.uncounted})

    @lru_cache(maxsize=64)  # noqa: B019 - layouts live as long as the program that made them
    def shard_index(self, shards: int) -> Ints:
        """Row d: positions of shard d's entries in the flat vector; `size` marks padding."""
        rows = []
        for name, part in self.parts.items():
            count = -(-self.sizes[name] // shards) * shards
            places = np.full(count, self.size, dtype=np.int64)
            places[: self.sizes[name]] = np.arange(part.start, part.stop)
            rows.append(places.reshape(shards, -1))
        return np.concatenate(rows, axis=1)

    def shard(self, flat: Floats, shards: int, number: int) -> Floats:
        """One of `shards` equal parts of each named tensor."""
        return np.asarray(np.append(flat, 0.0)[self.shard_index(shards)[number]])

    def whole(self, parts: list[Floats]) -> Floats:
        """The flat vector of all shards."""
        result = np.empty(self.size + 1)
        result[self.shard_index(len(parts))] = np.stack(parts)
        return result[:-1]

    def shard_part(self, name: str, shards: int) -> slice:
        """Position of a named tensor in a shard."""
        start = 0
        for part, size in self.sizes.items():
            length = -(-size // shards)
            if part == name:
                return slice(start, start + length)
            start += length
        raise KeyError(name)


class _Layouts:
    """The layouts of all blocks for one tensor peer."""

    def __init__(self, share: Share) -> None:
        self.share = share

    def layer(self, kind: LayerKind) -> _BlockLayout:
        """Layout of a layer, without routed experts unless they are in its block."""
        share = self.share
        model = self.share.model
        hidden = model.hidden_size
        ffn = model.ffn_hidden_size // share.peers
        width = (2 if model.gated_mlp else 1) * ffn
        shapes: dict[str, tuple[int, ...]] = self._norm("norm1")
        products = self._projections() | {"projection": (share.heads * model.value_size, hidden)}
        shapes |= products
        if model.has_attention_bias:
            shapes |= {f"{name}_bias": (columns,) for name, (_, columns) in products.items()}
        shapes |= self._inner_norms()
        if model.norms_per_layer > 1:
            shapes |= self._norm("norm2")
        if kind.mtp:
            names = ("mtp_hidden", "mtp_words", "mtp_norm")
            shapes |= {key: value for name in names for key, value in self._norm(name).items()}
            shapes["mtp_joint"] = (2 * hidden, hidden)
        if kind.experts and model.experts is not None:
            experts = self.experts.shapes if share.whole_layers else {}
            return self._layout(shapes | self._router(model.experts) | experts)
        shapes |= {"fc1": (hidden, width), "fc2": (ffn, hidden)}
        if model.bias:
            shapes |= {"fc1_bias": (width,), "fc2_bias": (hidden,)}
        return self._layout(shapes)

    def _projections(self) -> dict[str, tuple[int, int]]:
        """The products before the attention core; those down to latents are whole on every tensor peer."""
        share = self.share
        model = self.share.model
        latent = self.share.model.latent_attention
        hidden = model.hidden_size
        size = model.head_size
        if latent is None:
            return {"qkv": (hidden, (share.heads + 2 * share.groups) * size)}
        rank = latent.q_lora_rank
        pair = latent.kv_lora_rank
        return {
            **({} if rank is None else {"query_down": (hidden, rank)}),
            "query": (rank or hidden, share.heads * size),
            "pair_down": (hidden, pair + latent.qk_rope_head_dim),
            "pair": (pair, share.heads * (latent.qk_nope_head_dim + latent.v_head_dim)),
        }

    def _inner_norms(self) -> dict[str, tuple[int, ...]]:
        """RMS norms of latents, or of the queries and keys of every head."""
        model = self.share.model
        latent = self.share.model.latent_attention
        widths: dict[str, int | None] = {}
        if latent is not None:
            widths = {"query_norm": latent.q_lora_rank, "pair_norm": latent.kv_lora_rank}
        if model.qk_layernorm:
            widths |= {"query_norm": model.head_size, "key_norm": model.head_size}
        return {f"{name}.scale": (width,) for name, width in widths.items() if width is not None}

    def _router(self, experts: Experts) -> dict[str, tuple[int, ...]]:
        """Router and shared experts."""
        model = self.share.model
        ffn = experts.shared_ffn_hidden_size
        shapes: dict[str, tuple[int, ...]] = {"router": (model.hidden_size, experts.num_experts)}
        if model.has_expert_bias:
            shapes["router_bias"] = (experts.num_experts,)
        if not ffn:
            return shapes
        width = (2 if model.gated_mlp else 1) * ffn
        shapes |= {"shared_fc1": (model.hidden_size, width), "shared_fc2": (ffn, model.hidden_size)}
        if model.has_expert_bias:
            shapes |= {"shared_fc1_bias": (width,), "shared_fc2_bias": (model.hidden_size,)}
        return shapes

    @cached_property
    def experts(self) -> _BlockLayout:
        """Layout of the routed experts of every layer with some."""
        share = self.share
        model = self.share.model
        experts = self.share.model.experts
        if experts is None:
            raise KeyError("the model has no experts")
        count = len(share.own_experts)
        ffn = experts.ffn_hidden_size // share.expert_peers
        width = (2 if model.gated_mlp else 1) * ffn
        hidden = model.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "expert_fc1": (count, hidden, width),
            "expert_fc2": (count, ffn, hidden),
        }
        if model.has_expert_bias:
            shapes |= {"expert_fc1_bias": (count, width), "expert_fc2_bias": (count, hidden)}
        return _BlockLayout(shapes, () if share.expert_peer == 0 else ("expert_fc2_bias",))

    @cached_property
    def _of_layer(self) -> list[_BlockLayout]:
        kinds = layer_kinds(self.share.model)
        layouts = {kind: self.layer(kind) for kind in dict.fromkeys(kinds)}
        return [layouts[kind] for kind in kinds]

    @cached_property
    def embedding(self) -> _BlockLayout:
        """Layout of the embedding."""
        share = self.share
        model = self.share.model
        shapes: dict[str, tuple[int, ...]] = {"words": (share.rows, model.hidden_size)}
        if model.position_embedding == "learned":
            shapes["positions"] = (share.seq_length, model.hidden_size)
        return self._layout(shapes)

    @cached_property
    def head(self) -> _BlockLayout:
        """Layout of the final norm and the LM head."""
        share = self.share
        model = self.share.model
        shapes = self._norm("norm1") | {"words": (share.rows, model.hidden_size)}
        if model.head_bias:
            shapes["head_bias"] = (share.rows,)
        return self._layout(shapes, *(["words"] if model.tied_embeddings else []))

    def __getitem__(self, block: int) -> _BlockLayout:
        if block >= EXPERTS:
            return self.experts
        if block >= 0:
            return self._of_layer[block]
        return self.head if block == HEAD else self.embedding

    def _layout(self, shapes: dict[str, tuple[int, ...]], *uncounted: str) -> _BlockLayout:
        held_by_all = () if self.share.leads else (name for name in shapes if name not in SPLIT)
        return _BlockLayout(shapes, {*uncounted, *held_by_all})

    def _norm(self, name: str) -> dict[str, tuple[int, ...]]:
        hidden: tuple[int, ...] = (self.share.model.hidden_size,)
        return {f"{name}.scale": hidden} | ({f"{name}.shift": hidden} if self.share.model.bias else {})


def blocks(model: TransformerConfig) -> list[int]:
    """All blocks of a model in the order of the forward."""
    kinds = layer_kinds(model)
    layers = range(len(kinds))
    experts = [EXPERTS + layer for layer in layers if kinds[layer].experts]
    return [EMBEDDING, *layers, *experts, HEAD]


def with_experts(blocks: Mapping[int, Weights], block: int, share: Share) -> Weights:
    """The named tensors of a block, with those of a layer's experts if the share has them in it."""
    experts = blocks.get(EXPERTS + block, {}) if share.whole_layers and block >= 0 else {}
    return blocks[block] | experts


def cut(whole: Weights, share: Share) -> Weights:
    """A tensor peer's part of each named tensor of a block; vocabulary rows are padded with zeros."""
    return {name: _cut(name, value, share) for name, value in whole.items()}


def _cut(name: str, value: Floats, share: Share) -> Floats:
    if name.startswith("expert_"):
        return _cut_experts(name, value, share)
    if share.peers == 1:
        return value
    if name in ("qkv", "qkv_bias"):
        size = share.model.head_size
        model = share.model
        bounds = np.cumsum([model.num_attention_heads, model.query_groups]) * size
        kinds = np.split(value, bounds.tolist(), axis=-1)
        return np.concatenate([np.split(kind, share.peers, axis=-1)[share.peer] for kind in kinds], axis=-1)
    if name in ("fc1", "fc1_bias"):
        halves = np.split(value, 2 if share.model.gated_mlp else 1, axis=-1)
        return np.concatenate([np.split(half, share.peers, axis=-1)[share.peer] for half in halves], axis=-1)
    if name in COLUMNS:
        return np.split(value, share.peers, axis=-1)[share.peer]
    if name in ("projection", "fc2"):
        return np.split(value, share.peers, axis=0)[share.peer]
    if name in ("words", "head_bias"):
        padding = [(0, share.rows * share.peers - len(value))] + [(0, 0)] * (value.ndim - 1)
        return np.split(np.pad(value, padding), share.peers, axis=0)[share.peer]
    return value


def _cut_experts(name: str, value: Floats, share: Share) -> Floats:
    """A rank's experts, and its part of their width."""
    own = value[share.own_experts.start : share.own_experts.stop]
    peers = share.expert_peers
    peer = share.expert_peer
    if name in ("expert_fc1", "expert_fc1_bias"):
        halves = np.split(own, 2 if share.model.gated_mlp else 1, axis=-1)
        return np.concatenate([np.split(half, peers, axis=-1)[peer] for half in halves], axis=-1)
    return np.split(own, peers, axis=-2)[peer] if name == "expert_fc2" else own
