"""The shape of any transformer that a foreign file may describe: its exact count, and the nearest model here.

A file may hold what `TransformerConfig` does not: experts in irregular layers, sinks, gates of shared
experts, norms with other vectors. They count their parameters here, and are named as gaps of the
description.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from perfsim.specs.model import TransformerConfig
from perfsim.work.counts import parameters

Positions = Literal["learned", "rotary", "alibi", "none"]


class Gap(NamedTuple):
    """What the description cannot express; `changes_model` where it then describes another model."""

    text: str
    changes_model: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpertShape:
    """A mixture of experts in some layers; the other layers have the dense MLP of the shape."""

    count: int
    active: int
    """Experts that compute each token, shared ones apart."""
    ffn: int
    """Width of one expert."""
    pattern: tuple[bool, ...]
    """Whether each layer has experts."""
    shared_ffn: int = 0
    """Width of all shared experts together."""
    shared_gate: bool = False
    """Whether a vector of hidden width weighs the shared expert."""
    router_bias: bool = False
    groups: int = 1
    top_groups: int = 1

    @property
    def layers(self) -> int:
        """Layers with experts."""
        return sum(self.pattern)

    def fields(self, shape: Shape) -> dict[str, Any]:
        """The fields of the nearest `workload.Experts`."""
        first, interval = _regular(self.pattern)
        reached = self.top_groups * self.count // self.groups
        grouped = self.count % self.groups == 0 and self.top_groups <= self.groups and reached >= self.active
        given = {
            "shared_ffn_hidden_size": (self.shared_ffn, 0),
            "first_dense_layers": (first, 0),
            "interval": (interval, 1),
            "groups": (self.groups if grouped else 1, 1),
            "top_groups": (self.top_groups if grouped else 1, 1),
        }
        return {
            "num_experts": self.count,
            "top_k": self.active,
            "ffn_hidden_size": self.ffn,
            **{name: value for name, (value, usual) in given.items() if value != usual},
            **({"bias": True} if shape.bias_mlp and not shape.has_shifts else {}),
        }

    def parameters(self, shape: Shape) -> int:
        """Of one layer."""
        router = self.count * shape.hidden + (self.count if self.router_bias else 0)
        gate = shape.hidden if self.shared_gate else 0
        return (
            router
            + gate
            + self.count * shape.mlp_parameters(self.ffn)
            + shape.mlp_parameters(self.shared_ffn)
        )


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Multi-head latent attention: queries and key-values pass through narrow latents."""

    query_rank: int | None
    """None: queries are projected directly."""
    kv_rank: int
    nope: int
    """Width of a head's part without positions."""
    rope: int
    value: int

    def fields(self) -> dict[str, Any]:
        """The fields of `workload.LatentAttention`."""
        return {
            **({} if self.query_rank is None else {"q_lora_rank": self.query_rank}),
            "kv_lora_rank": self.kv_rank,
            "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rope,
            "v_head_dim": self.value,
        }

    def parameters(self, shape: Shape) -> int:
        """Matrices and latent norms of one layer."""
        width = shape.heads * (self.nope + self.rope)
        rank = self.query_rank
        query = shape.hidden * width if rank is None else rank * (shape.hidden + 1 + width)
        keys = shape.hidden * (self.kv_rank + self.rope) + self.kv_rank
        keys += self.kv_rank * shape.heads * (self.nope + self.value)
        biases = (rank or 0) + self.kv_rank + self.rope + shape.hidden if shape.bias_qkv else 0
        return query + keys + shape.heads * self.value * shape.hidden + biases


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder or encoder, with everything that its parameter count depends on."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    positions: int
    """Longest sequence."""
    gated: bool = False
    tied: bool = True
    causal: bool = True
    embedding: Positions = "learned"
    extra_positions: int = 0
    """Rows of the position table beyond the longest sequence (OPT has 2)."""
    norm_vectors: int = 2
    """Vectors of a norm: 2 with scale and shift, 1 for RMSNorm, 0 without parameters."""
    norms: int = 2
    """Of one layer, those of queries and keys apart."""
    final_norm: bool = True
    qk_norm: int = 0
    """Parameters of the norms of queries and keys of one layer."""
    bias_qkv: bool = True
    bias_out: bool = True
    bias_mlp: bool = True
    bias_head: bool = False
    other: tuple[tuple[str, int], ...] = ()
    """Further parts with their parameters: projections of the embedding, token types, sinks."""
    experts: ExpertShape | None = None
    latent: Latent | None = None
    window: int | None = None
    """Positions that a position attends to in layers with a window."""
    window_pattern: int | None = None
    """Every n-th layer attends to all; None: every layer has the window."""
    mtp_layers: int = 0
    """Layers that predict further tokens, which the count leaves out."""
    remarks: tuple[Gap, ...] = ()
    """Gaps that do not follow from the fields above."""

    # ------------------------------------------------------------------------------- counts
    def mlp_parameters(self, width: int) -> int:
        """Parameters of a dense MLP of this width; 0 for width 0."""
        matrices = (3 if self.gated else 2) * self.hidden * width
        biases = (2 if self.gated else 1) * width + self.hidden
        return matrices + (biases if self.bias_mlp and width else 0)

    @property
    def attention_parameters(self) -> int:
        """Parameters of the attention of one layer."""
        if self.latent is not None:
            return self.latent.parameters(self)
        query = self.heads * self.head_dim
        keys = self.kv_heads * self.head_dim
        biases = (query + 2 * keys if self.bias_qkv else 0) + (self.hidden if self.bias_out else 0)
        return self.hidden * (2 * query + 2 * keys) + biases + self.qk_norm

    @property
    def parameters(self) -> int:
        """All parameters, with embedding and untied head, without layers that predict further tokens."""
        routed = self.experts.layers if self.experts is not None else 0
        norms = (self.norms * self.layers + self.final_norm) * self.norm_vectors * self.hidden
        total = self.layers * self.attention_parameters + norms
        total += (self.layers - routed) * self.mlp_parameters(self.ffn)
        if self.experts is not None:
            total += routed * self.experts.parameters(self)
        rows = self.vocab + (self.positions + self.extra_positions if self.embedding == "learned" else 0)
        head = 0 if self.tied else self.vocab * self.hidden
        return (
            total
            + rows * self.hidden
            + head
            + (self.vocab if self.bias_head else 0)
            + sum(count for _, count in self.other)
        )

    # ------------------------------------------------------------------------------ description
    @property
    def has_shifts(self) -> bool:
        """Whether norms have a shift, as models with biases do."""
        return self.norm_vectors == 2

    def fields(self) -> dict[str, Any]:
        """The fields of the nearest `TransformerConfig`, without its name."""
        groups = self.kv_heads if self.heads % self.kv_heads == 0 else _divisor(self.heads, self.kv_heads)
        only_experts = self.experts is not None and all(self.experts.pattern)
        bias = self.bias_mlp and (self.has_shifts or not only_experts)
        own_width = self.latent is None and self.heads * self.head_dim != self.hidden
        return {
            "num_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            **({"num_query_groups": groups} if groups != self.heads and self.latent is None else {}),
            **({"head_dim": self.head_dim} if own_width else {}),
            **({"latent_attention": self.latent.fields()} if self.latent is not None else {}),
            **({"qk_layernorm": True} if self.qk_norm == 2 * self.head_dim else {}),
            **(self._window_fields() if self.window is not None and self.causal else {}),
            "ffn_hidden_size": self.ffn,
            **({"experts": self.experts.fields(self)} if self.experts is not None else {}),
            **({"mtp_num_layers": self.mtp_layers} if self.mtp_layers and self.causal else {}),
            "vocab_size": self.vocab,
            "max_position_embeddings": self.positions,
            "position_embedding": self.embedding,
            "gated_mlp": self.gated,
            "tied_embeddings": self.tied,
            "bias": bias,
            **({"attention_bias": self.bias_qkv} if self.bias_qkv != bias else {}),
            **({"head_bias": True} if self.bias_head else {}),
            **({"norms_per_layer": 1} if self.norms == 1 and self.experts is None else {}),
            **({"causal": False} if not self.causal else {}),
        }

    def _window_fields(self) -> dict[str, Any]:
        every = {} if self.window_pattern is None else {"sliding_window_pattern": self.window_pattern}
        return {"sliding_window": self.window, **every}

    def gaps(self) -> list[Gap]:
        """What `fields` cannot say, the large ones first."""
        gaps = sorted([*self._large_gaps(), *self.remarks], key=lambda gap: not gap.changes_model)
        if any(gap.changes_model for gap in gaps):
            return gaps
        counts = parameters(TransformerConfig.model_validate({"name": "nearest", **self.fields()}))
        described = counts.total - counts.mtp
        if described != self.parameters:
            gaps.append(
                Gap(
                    f"{', '.join(self._small_parts()) or 'small vectors'}: the description has {described:,} "
                    f"parameters, the file {self.parameters:,}",
                    changes_model=abs(described / self.parameters - 1) > SMALL,
                )
            )
        return gaps

    def _large_gaps(self) -> Iterator[Gap]:
        experts = self.experts
        if experts is not None and _in_layers(self.layers, *_regular(experts.pattern)) != experts.pattern:
            numbers = ", ".join(str(layer) for layer, has in enumerate(experts.pattern, 1) if has)
            first, interval = _regular(experts.pattern)
            yield Gap(
                f"experts in layers {numbers[:60]}{'...' * (len(numbers) > 60)}; described in every "
                f"{interval}. layer after the first {first}"
            )

    def _small_parts(self) -> Iterator[str]:
        """Parts that are counted otherwise in a description."""
        if self.experts is not None and self.experts.shared_gate:
            yield "a gate of the shared experts"
        if self.experts is not None and self.experts.router_bias and "bias" not in self.experts.fields(self):
            yield "biases of the router"
        if self.qk_norm and self.qk_norm != 2 * self.head_dim:
            yield "norms of queries and keys"
        if self.norms > 2:
            yield f"{self.norms} norms a layer"
        if self.norm_vectors != (2 if self.bias_mlp else 1):
            yield ("norms without parameters", "norms without shifts", "norms with shifts")[self.norm_vectors]
        if self.bias_qkv != self.bias_out:
            yield f"biases of {'query, key and value' if self.bias_qkv else 'the attention output'} alone"
        if not self.final_norm:
            yield "no final norm"
        if self.extra_positions:
            yield f"{self.extra_positions} more rows of positions"
        yield from (name for name, _ in self.other)


SMALL = 0.005
"""Share of the parameters up to which a difference is a remark and not another model."""


def _divisor(number: int, most: int) -> int:
    """The largest divisor that is not above `most`."""
    return next(count for count in range(min(number, most), 0, -1) if number % count == 0)


_MOST_INTERVAL = 64
"""Largest interval of layers with experts that is looked for."""


def _in_layers(layers: int, first: int, interval: int) -> tuple[bool, ...]:
    return tuple(layer >= first and (layer + 1) % interval == 0 for layer in range(layers))


def _regular(pattern: tuple[bool, ...]) -> tuple[int, int]:
    """Layers before the first with experts and their interval, that give this pattern or as many layers."""
    first = pattern.index(True)
    layers = len(pattern)
    intervals = range(1, min(layers, _MOST_INTERVAL) + 1)
    candidates = [(start, interval) for start in (first, 0) for interval in intervals]
    candidates.append((layers - sum(pattern), 1))
    made = {candidate: _in_layers(layers, *candidate) for candidate in candidates}
    exact = (candidate for candidate, own in made.items() if own == pattern)
    as_many = (candidate for candidate, own in made.items() if sum(own) == sum(pattern))
    first_dense, interval = next(exact, None) or next(as_many)
    return (first_dense if first_dense >= interval or interval == 1 else 0), interval
