"""The shape of any transformer that a foreign file may describe: its exact count, and the nearest model here.

`TransformerConfig` holds dense models with equal layers. A file may hold experts, latent attention or heads
of another width: these count their parameters here, and are named as gaps of the description.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from perfsim.transformer import parameters
from perfsim.workload import TransformerConfig

Positions = Literal["learned", "rotary", "alibi", "none"]


class Gap(NamedTuple):
    """What the description cannot express; `changes_model` where it then describes another model."""

    text: str
    changes_model: bool = True


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts in `layers` layers; the other layers have the dense MLP of the shape."""

    count: int
    active: int
    """Experts that compute each token, shared ones apart."""
    ffn: int
    """Width of one expert."""
    layers: int
    shared_ffn: int = 0
    """Width of all shared experts together."""
    shared_gate: bool = False
    """Whether a vector of hidden width weighs the shared expert."""
    router_bias: bool = False

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
    experts: Experts | None = None
    latent: Latent | None = None
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
        query, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = (query + 2 * keys if self.bias_qkv else 0) + (self.hidden if self.bias_out else 0)
        return self.hidden * (2 * query + 2 * keys) + biases + self.qk_norm

    @property
    def parameters(self) -> int:
        """All parameters, with embedding and untied head."""
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
    def fields(self) -> dict[str, Any]:
        """The fields of the nearest `TransformerConfig`, without its name."""
        heads = self.heads if self.hidden % self.heads == 0 else _divisor(self.hidden, self.heads)
        groups = self.kv_heads if heads % self.kv_heads == 0 else _divisor(heads, self.kv_heads)
        bias = self.bias_mlp
        return {
            "num_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": heads,
            **({"num_query_groups": groups} if groups != heads and self.latent is None else {}),
            "ffn_hidden_size": self._active_ffn,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.positions,
            "position_embedding": self.embedding,
            "gated_mlp": self.gated,
            "tied_embeddings": self.tied,
            "bias": bias,
            **({"attention_bias": self.bias_qkv} if self.bias_qkv != bias else {}),
            **({"head_bias": True} if self.bias_head else {}),
            **({"norms_per_layer": 1} if self.norms == 1 else {}),
            **({"causal": False} if not self.causal else {}),
        }

    @property
    def _active_ffn(self) -> int:
        """Width of the MLP that a token passes: dense, or the active and shared experts together."""
        experts = self.experts
        return self.ffn if experts is None else experts.active * experts.ffn + experts.shared_ffn

    def gaps(self) -> list[Gap]:
        """What `fields` cannot say, the large ones first."""
        gaps = sorted([*self._large_gaps(), *self.remarks], key=lambda gap: not gap.changes_model)
        if any(gap.changes_model for gap in gaps):
            return gaps
        described = parameters(TransformerConfig(name="nearest", **self.fields())).total
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
        experts, latent = self.experts, self.latent
        if experts is not None:
            shared = f" and shared experts of width {experts.shared_ffn}" if experts.shared_ffn else ""
            others = self.layers - experts.layers
            dense = f", {others} dense layer{'s' * (others > 1)}" if others else ""
            yield Gap(
                f"a mixture of {experts.count} experts of width {experts.ffn}, {experts.active} for each "
                f"token{shared} in {experts.layers} layers{dense}; described with a dense MLP of width "
                f"{self._active_ffn}"
            )
        if latent is not None:
            yield Gap(
                f"latent attention (ranks {latent.query_rank or 'none'} and {latent.kv_rank}, heads of "
                f"{latent.nope} + {latent.rope} and {latent.value}); described with "
                f"{self.fields()['num_attention_heads']} heads of keys and values"
            )
        elif self.heads * self.head_dim != self.hidden:
            heads = self.fields()["num_attention_heads"]
            yield Gap(
                f"{self.heads} heads of width {self.head_dim}, {self.heads * self.head_dim} in all beside "
                f"hidden size {self.hidden}; described with {heads} heads of width {self.hidden // heads}"
            )

    def _small_parts(self) -> Iterator[str]:
        """Parts that are counted otherwise in a description."""
        if self.qk_norm:
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
