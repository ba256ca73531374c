"""The tensors of a model by their axes.

A tensor is written by its axes, `hf` for the first product of an MLP. `AXES` says how long each axis is and
which ranks divide it: columns or rows of matrices over tensor peers [1909.08053], experts over their ranks.
Whoever divides no axis of a tensor holds it whole, as every tensor rank does routers and projections down to
latents (Megatron-Core: `TopKRouter`, `parallel_mode="duplicated"`), next to norms and biases of sums.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from perfsim.specs.model import LayerKind, TransformerConfig
from perfsim.work.graph import EMBEDDING

EXPERTS = 1_000_000
"""The block of the routed experts of a layer, held by other ranks than the rest, and added to its number."""
Divider = Literal["tensor", "expert", "expert_tensor"]
"""The dimension of a layout that divides an axis."""


class _Axis(NamedTuple):
    """How long an axis is in the whole model, and over which ranks it is divided."""

    length: Callable[[TransformerConfig], int]
    divided: Divider | None = None


AXES: Mapping[str, _Axis] = {
    "h": _Axis(lambda model: model.hidden_size),
    "j": _Axis(lambda model: 2 * model.hidden_size),  # hidden states joined with words
    "m": _Axis(lambda model: model.hidden_size, "tensor"),  # what becomes of both
    "v": _Axis(lambda model: model.vocab_size, "tensor"),
    "s": _Axis(lambda model: model.max_position_embeddings or 0),  # the sequence of a small model
    "q": _Axis(lambda model: model.num_attention_heads * model.head_size, "tensor"),
    "k": _Axis(lambda model: model.query_groups * model.head_size, "tensor"),
    "o": _Axis(lambda model: model.num_attention_heads * model.value_size, "tensor"),
    "d": _Axis(lambda model: model.head_size),
    "a": _Axis(lambda model: model.given_latents().q_lora_rank or 0),
    "b": _Axis(lambda model: model.given_latents().kv_lora_rank),
    "c": _Axis(lambda model: model.given_latents().kv_lora_rank + model.given_latents().qk_rope_head_dim),
    "p": _Axis(
        lambda model: model.num_attention_heads * (model.given_latents().qk_nope_head_dim + model.value_size),
        "tensor",
    ),
    "f": _Axis(lambda model: model.ffn_hidden_size, "tensor"),
    "e": _Axis(lambda model: model.given_experts().num_experts, "expert"),
    "r": _Axis(lambda model: model.given_experts().num_experts),  # what the router chooses from
    "u": _Axis(lambda model: model.given_experts().ffn_hidden_size, "expert_tensor"),
    "w": _Axis(lambda model: model.given_experts().shared_ffn_hidden_size, "tensor"),
}


def is_whole(axes: str) -> bool:
    """Whether no rank divides a tensor of a layer, so that every tensor rank holds all of it."""
    return not any(AXES[axis].divided for axis in axes)


def _norm(name: str, axis: str, model: TransformerConfig) -> dict[str, str]:
    """A layer norm; an RMS norm has no shift."""
    return {f"{name}.scale": axis, **({f"{name}.shift": axis} if model.bias else {})}


def _products(axes: Mapping[str, str], *, bias: bool) -> dict[str, str]:
    """Matrices, and their biases along the columns; a matrix of experts has one bias for each expert."""
    biases = {f"{name}_bias": f"{of[:-2]}{of[-1]}" for name, of in axes.items()} if bias else {}
    return {**axes, **biases}


def _halves(prefix: str, axes: str, model: TransformerConfig) -> dict[str, str]:
    """The products of an MLP: two first ones if it is gated."""
    lead, first, width = axes[:-2], axes[-2], axes[-1]
    gate = {f"{prefix}gate": axes} if model.gated_mlp else {}
    return {**gate, f"{prefix}fc1": axes, f"{prefix}fc2": f"{lead}{width}{first}"}


def tensors_of(model: TransformerConfig, block: LayerKind | int) -> dict[str, str]:
    """The tensors of a block by name, each with its axes.

    A block is a layer of a kind without its routed experts, these (`EXPERTS`), the embedding, or the final
    norm and LM head, which has the embedding's table of words if the two are tied.
    """
    if block == EXPERTS:
        return _products(_halves("expert_", "ehu", model), bias=model.has_expert_bias)
    if block == EMBEDDING:
        return {"words": "vh", **({"positions": "sh"} if model.position_embedding == "learned" else {})}
    if not isinstance(block, LayerKind):
        bias = {"head_bias": "v"} if model.head_bias else {}
        return {**_norm("head_norm", "h", model), "head_words": "vh", **bias}
    latent = model.latent_attention
    norms: dict[str, str] = {}
    if latent is None:
        products = {"query": "hq", "key": "hk", "value": "hk"}
        if model.qk_layernorm:
            norms = {"query_norm.scale": "d", "key_norm.scale": "d"}
    else:
        narrow = latent.q_lora_rank is not None
        products = {"query_down": "ha", "query": "aq"} if narrow else {"query": "hq"}
        products |= {"pair_down": "hc", "pair": "bp"}
        norms = {**({"query_norm.scale": "a"} if narrow else {}), "pair_norm.scale": "b"}
    products["projection"] = "oh"
    axes = {**_norm("norm1", "h", model), **_products(products, bias=model.has_attention_bias), **norms}
    if model.norms_per_layer > 1:
        axes |= _norm("norm2", "h", model)
    if block.mtp:
        for name in ("mtp_hidden", "mtp_words", "mtp_norm"):
            axes |= _norm(name, "h", model)
        axes["mtp_joint"] = "jm"
    if not block.experts:
        return axes | _products(_halves("", "hf", model), bias=model.bias)
    products = {"router": "hr"}
    if model.given_experts().shared_ffn_hidden_size:
        products |= _halves("shared_", "hw", model)
    return axes | _products(products, bias=model.has_expert_bias)
