"""Shapes of transformers: layers, attention, experts; the sequence of layer kinds that every strategy reads.

Layers of one kind have the same kernels (`LayerSlice.kind`), parameters (`Parameters.of`) and activations;
what folds, stamps or prices layers works on kinds, and never asks why two layers differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import model_validator

from perfsim.base.sizes import MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_VOCABULARY, MOST_WIDTH
from perfsim.base.spec import CatalogSpec, Date, Spec
from perfsim.base.units import number

RecomputeKeeps = Literal["nothing", "qkv"]
Layers = Annotated[int, *number(1, MOST_LAYERS)]
Width = Annotated[int, *number(1, MOST_WIDTH)]
Heads = Annotated[int, *number(1, MOST_HEADS)]
Vocabulary = Annotated[int, *number(1, MOST_VOCABULARY)]
Positions = Annotated[int, *number(1, MOST_POSITIONS)]
ExpertCount = Annotated[int, *number(1, MOST_WIDTH)]


class Experts(Spec):
    """A mixture of experts in place of the MLP: a router sends every token to `top_k` of them."""

    num_experts: ExpertCount
    """Routed experts of a layer."""
    top_k: ExpertCount
    """Routed experts that compute a token."""
    ffn_hidden_size: Width
    """Width of one routed expert."""
    shared_ffn_hidden_size: Annotated[int, *number(0, MOST_WIDTH)] = 0
    """Width of all shared experts together, which compute every token; 0: none."""
    first_dense_layers: Annotated[int, *number(0, MOST_LAYERS)] = 0
    """Layers before the first one with experts."""
    interval: Layers = 1
    """Every n-th layer has experts, counted from the first layer of the model: layers n, 2 n, ..."""
    groups: ExpertCount = 1
    """Groups of experts among which the router chooses first (`n_group` of DeepSeek)."""
    top_groups: ExpertCount = 1
    """Groups to which a token's experts are limited (`topk_group`)."""
    bias: bool | None = None
    """Whether experts and router have biases; None: as the model's `bias`."""

    @model_validator(mode="after")
    def _consistent(self) -> Experts:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.num_experts} experts of a layer")
        if self.num_experts % self.groups:
            raise ValueError(f"num_experts {self.num_experts} is not a multiple of groups {self.groups}")
        reached = self.top_groups * self.num_experts // self.groups
        if self.top_groups > self.groups or reached < self.top_k:
            raise ValueError(
                f"top_groups {self.top_groups} of {self.groups} groups hold {reached} experts; a token needs "
                f"{self.top_k}"
            )
        return self

    def in_layer(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts instead of an MLP."""
        return layer >= self.first_dense_layers and (layer + 1) % self.interval == 0


class LatentAttention(Spec):
    """Multi-head latent attention [2405.04434]: queries, and keys with values, pass through narrow latents.

    Fields have the names of DeepSeek's config.json. A head of queries and keys is `qk_nope_head_dim` +
    `qk_rope_head_dim` wide; the rotary part of the keys is common to all heads.
    """

    q_lora_rank: Width | None = None
    """None: queries are projected directly."""
    kv_lora_rank: Width
    qk_nope_head_dim: Width
    qk_rope_head_dim: Width
    v_head_dim: Width

    @property
    def head_size(self) -> int:
        """Width of a head of queries and keys."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class TransformerConfig(CatalogSpec):
    """A decoder (or encoder) stack between an embedding and an LM head; `layer_kinds` lists its layers."""

    num_layers: Layers
    hidden_size: Width
    num_attention_heads: Heads
    ffn_hidden_size: Width
    """Width of the MLP of layers without experts."""
    vocab_size: Vocabulary
    max_position_embeddings: Positions
    released: Date | None = None
    """When the model was published (`2023-07`), by which a recipe is chosen where none is given."""
    num_query_groups: Heads | None = None
    """Key and value heads; None: as many as query heads."""
    head_dim: Width | None = None
    """Width of an attention head; None: hidden_size / num_attention_heads."""
    latent_attention: LatentAttention | None = None
    """Low-rank queries, keys and values in place of `head_dim` and `num_query_groups`."""
    qk_layernorm: bool = False
    """Whether the queries and keys of every head are normalised."""
    sliding_window: Positions | None = None
    """Positions that a position attends to in layers with a window; None: no layer has one."""
    sliding_window_pattern: Layers | None = None
    """Every n-th layer attends to all positions, counted from the first layer: layers n, 2 n, ...; None:
    every layer has the window."""
    experts: Experts | None = None
    mtp_num_layers: Annotated[int, *number(0, 16)] = 0
    """Layers after the last one that predict one more token each (multi-token prediction, 2412.19437 2.2)."""
    gated_mlp: bool = False
    tied_embeddings: bool = True
    head_bias: bool = False
    bias: bool = True
    attention_bias: bool | None = None
    """Whether the attention's linears have biases; None: as `bias`."""
    norms_per_layer: Annotated[int, *number(1, 2)] = 2
    """1: attention and MLP run in parallel on one normalised input (GPT-J)."""
    causal: bool = True
    """Whether a position attends only to earlier ones; false for an encoder."""
    position_embedding: Literal["learned", "rotary", "alibi", "none"] = "learned"

    @model_validator(mode="after")
    def _heads_divide(self) -> TransformerConfig:
        if self.latent_attention is not None:
            given = [name for name in ("head_dim", "num_query_groups") if getattr(self, name) is not None]
            if given:
                raise ValueError(
                    f"latent_attention gives its heads' widths; remove {' and '.join(given)} "
                    f"(`{given[0]}: null` removes an inherited one)"
                )
        elif self.head_dim is None and self.hidden_size % self.num_attention_heads:
            divisors = (count for count in range(1, self.hidden_size + 1) if self.hidden_size % count == 0)
            near = min(divisors, key=lambda count: abs(count - self.num_attention_heads))
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}; the nearest number that divides it is {near}; give head_dim if "
                "heads have another width"
            )
        if self.num_attention_heads % self.query_groups:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_query_groups {self.query_groups}"
            )
        return self

    @model_validator(mode="after")
    def _layers_agree(self) -> TransformerConfig:
        experts = self.experts
        if experts is not None and not any(map(experts.in_layer, range(self.num_layers))):
            raise ValueError(
                f"experts: none of {self.num_layers} layers has any with first_dense_layers "
                f"{experts.first_dense_layers} and interval {experts.interval}"
            )
        if experts is not None and self.norms_per_layer == 1:
            raise ValueError("experts: with norms_per_layer 1 the MLP runs next to the attention; take 2")
        if self.sliding_window_pattern is not None and self.sliding_window is None:
            raise ValueError("sliding_window_pattern needs sliding_window, the positions of the window")
        if not self.causal and (self.sliding_window or self.mtp_num_layers):
            raise ValueError("sliding_window and mtp_num_layers need causal attention")
        return self

    def __hash__(self) -> int:
        """By shape, because kernels and prices are cached by model."""
        layers = (self.num_layers, self.mtp_num_layers, self.experts)
        return hash((self.name, self.hidden_size, self.ffn_hidden_size, layers))

    def given_experts(self) -> Experts:
        """The experts of a model that has some; ValueError for another."""
        if self.experts is None:
            raise ValueError(f"{self.name} has no experts")
        return self.experts

    def given_latents(self) -> LatentAttention:
        """The latents of a model that has some; ValueError for another."""
        if self.latent_attention is None:
            raise ValueError(f"{self.name} has no latent attention")
        return self.latent_attention

    @property
    def query_groups(self) -> int:
        """Number of key and value heads."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def has_attention_bias(self) -> bool:
        """Whether the attention's linears have biases."""
        return self.bias if self.attention_bias is None else self.attention_bias

    @property
    def has_expert_bias(self) -> bool:
        """Whether experts and router have biases."""
        bias = None if self.experts is None else self.experts.bias
        return self.bias if bias is None else bias

    @property
    def head_size(self) -> int:
        """Width of an attention head's queries and keys."""
        if self.latent_attention is not None:
            return self.latent_attention.head_size
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def value_size(self) -> int:
        """Width of an attention head's values."""
        return self.head_size if self.latent_attention is None else self.latent_attention.v_head_dim

    @property
    def query_width(self) -> int:
        """Width of the queries of all heads."""
        return self.num_attention_heads * self.head_size

    @property
    def attention_width(self) -> int:
        """Width of the values of all heads, which the output projection reads."""
        return self.num_attention_heads * self.value_size


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What makes a layer unlike others of its model."""

    experts: bool = False
    """Whether it has experts instead of the MLP."""
    window: int | None = None
    """Positions that a position attends to; None: all."""
    mtp: bool = False
    """Whether it is a module of multi-token prediction: it joins its input with the embedding of a later
    token by a projection, and has LM head and loss of its own behind it."""

    @property
    def words(self) -> str:
        """`experts in a window`."""
        mlp = "experts" if self.experts else "dense"
        window = "" if self.window is None else " in a window"
        return f"{mlp}{window}{' for a further token' if self.mtp else ''}"


PLAIN = LayerKind()
"""A layer with an MLP and attention to all positions."""


@lru_cache(maxsize=256)
def layer_kinds(model: TransformerConfig) -> tuple[LayerKind, ...]:
    """The kind of every layer in the order of the forward pass, layers of multi-token prediction last."""
    experts = model.experts
    pattern = model.sliding_window_pattern
    kinds = [
        LayerKind(
            experts=experts is not None and experts.in_layer(layer),
            window=None if pattern is not None and (layer + 1) % pattern == 0 else model.sliding_window,
        )
        for layer in range(model.num_layers)
    ]
    return (*kinds, *[replace(kinds[-1], mtp=True)] * model.mtp_num_layers)
