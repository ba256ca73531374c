"""A model by its parts, each as operations; and what a layer keeps of them from its forward to its backward.

Serial training carries out all parts of a layer at once, undivided; the ranks of a schedule carry out each
in a task of its own, on their shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.operations import (
    Node,
    Part,
    Routing,
    Run,
    activation,
    add,
    core,
    experts,
    joined,
    linear,
    logits,
    lookup,
    merge_heads,
    norm,
    once,
    piece,
    probabilities,
    repeated,
    rotated,
    run_part,
    slots,
    split_heads,
    weighted,
)
from perfsim.proof.parameters import Share, Weights, latent_of
from perfsim.specs.runtime import Runtime

# ------------------------------------------------------------------------------ attention


def heads(run: Run, x: Node) -> tuple[Node, ...]:
    """Norm, queries, keys and values, which shape (samples, heads, positions, width)."""
    share = run.share
    z = norm(run, x, "norm1")
    if share.model.latent_attention is not None:
        return _latent_heads(run, z)
    q = split_heads(run, linear(run, z, "query"), share.heads)
    k = split_heads(run, linear(run, z, "key"), share.groups)
    v = split_heads(run, linear(run, z, "value"), share.groups)
    if share.model.qk_layernorm:
        q, k = norm(run, q, "query_norm"), norm(run, k, "key_norm")
    return rotated(run, q), rotated(run, k), v


def _latent_heads(run: Run, z: Node) -> tuple[Node, ...]:
    """Queries, and keys with values, through latents [2405.04434]; all heads have one rotary part of keys."""
    share = run.share
    latent = latent_of(share.model)
    plain, turning = latent.qk_nope_head_dim, latent.qk_rope_head_dim
    narrow = z
    if latent.q_lora_rank is not None:
        narrow = norm(run, linear(run, z, "query_down"), "query_norm")
    queries = split_heads(run, linear(run, narrow, "query"), share.heads)
    down = linear(run, z, "pair_down")
    width = latent.kv_lora_rank
    of_pairs = norm(run, piece(run, down, 0, width), "pair_norm")
    pairs = split_heads(run, linear(run, of_pairs, "pair"), share.heads)
    common = rotated(run, split_heads(run, piece(run, down, width, width + turning), 1))
    turned = rotated(run, piece(run, queries, plain, plain + turning))
    q = joined(run, piece(run, queries, 0, plain), turned)
    k = joined(run, piece(run, pairs, 0, plain), repeated(run, common, share.heads))
    return q, k, piece(run, pairs, plain, plain + latent.v_head_dim)


def output(run: Run, context: Node) -> Node:
    """Output projection: this peer's part of the block's output."""
    return linear(run, merge_heads(run, context), "projection", closes=True)


def attention(run: Run, x: Node) -> Node:
    """An attention block without its residual."""
    q, k, v = heads(run, x)
    return output(run, core(run, q, k, v))


# ------------------------------------------------------------------------------ MLP and experts


def mlp(run: Run, x: Node, attended: Node) -> Node:
    """Residual of the attention block, norm, both linears; the first peer's part carries the residual."""
    total = add(run, x, attended)
    parallel = run.share.model.norms_per_layer == 1
    z = norm(run, x, "norm1") if parallel else norm(run, total, "norm2")
    return add(run, _linears(run, z, ""), once(run, total))


def _linears(run: Run, z: Node, prefix: str) -> Node:
    """Both products of an MLP, or of shared experts, and what is between them."""
    gate = linear(run, z, f"{prefix}gate") if run.share.model.gated_mlp else None
    u = linear(run, z, f"{prefix}fc1")
    return linear(run, activation(run, u, gate), f"{prefix}fc2", closes=not prefix)


def router(run: Run, x: Node, attended: Node) -> tuple[Node, ...]:
    """The residual, its norm, a row for every slot of a token, and how much each expert counts.

    Which experts compute a token is drawn (`Routing`), so that ranks agree on it whatever their rounding;
    how much each counts is the router's softmax over all experts, so the router has gradients.
    """
    total = add(run, x, attended)
    z = norm(run, total, "norm2")
    p = probabilities(run, linear(run, z, "router"))
    k = run.share.model.experts.top_k if run.share.model.experts else 0
    return total, z, slots(run, z, k), p


def shared(run: Run, z: Node) -> Node:
    """Shared experts, which compute every token; each rank has them whole."""
    return _linears(run, z, "shared_")


def combine(run: Run, outputs: Node, total: Node, p: Node, *beside: Node, routing: Routing) -> Node:
    """What experts made of rows, weighted and summed to tokens, with the residual and shared experts."""
    return add(run, total, weighted(run, outputs, p, routing), *beside)


def feed_forward(run: Run, x: Node, attended: Node, routing: Routing | None) -> Node:
    """The MLP of a layer, or all its experts."""
    if routing is None:
        return mlp(run, x, attended)
    total, z, rows, p = router(run, x, attended)
    made = experts(run, rows, routing.expert.ravel())
    beside = [shared(run, z)] if "shared_fc1" in run.weights else []
    return combine(run, made, total, p, *beside, routing=routing)


# ------------------------------------------------------------------------------ ends of a model


def join(run: Run, x: Node, tokens: Ints) -> Node:
    """The input of a module of multi-token prediction: hidden states and later words [2412.19437 2.2]."""
    hidden = norm(run, x, "mtp_hidden")
    words = norm(run, lookup(run, tokens), "mtp_words")
    return linear(run, joined(run, hidden, words), "mtp_joint")


def head(run: Run, y: Node, length: int, name: str = "head_norm") -> Node:
    """Final norm and scores of words, of the positions that reach the LM head."""
    return logits(run, norm(run, piece(run, y, 0, length, axis=1), name))


# What a layer keeps from its forward to its backward, by recompute mode.

OPERATORS = "operators"
"""The mode of a selective recompute that keeps the results of some operators."""


class Attention(NamedTuple):
    """An attention block as it was carried out: its parts, None where they have to be repeated."""

    before: Floats
    """The input of the layer; of a module, before it is joined with words."""
    heads: Part
    join: Part | None = None
    core: Any = None
    """The core as a part; of ranks that share sequences in a ring, what its backward reads."""
    output: Part | None = None
    results: Mapping[str, Floats] | None = None
    """What was kept of its layer where it is repeated."""

    @property
    def x(self) -> Floats:
        """The input of the block, which is also its residual."""
        return self.heads.inputs[0].value

    def with_core(self, w: Weights, share: Share) -> Attention:
        """The block with its core and its output; what is kept of them is not computed again."""
        inner = run_part(core, w, share, *self.heads.values, kept=self.results)
        return self._replace(core=inner, output=run_part(output, w, share, inner.value, kept=self.results))

    @property
    def made_output(self) -> Part:
        """Its output, which must have been kept or repeated."""
        if self.output is None:
            raise ValueError("the attention core was neither kept nor recomputed")
        return self.output

    @property
    def products(self) -> dict[str, Floats]:
        """What its linears made, in their order."""
        return self.heads.products | (self.output.products if self.output else {})


class Block(NamedTuple):
    """A block with experts as it was carried out."""

    routing: Routing
    router: Part
    experts: Part
    shared: Part | None
    combine: Part


class Kept(NamedTuple):
    """Activations that a layer keeps: all, all but the attention core, or only its input and some results."""

    before: Floats
    """The input of the layer."""
    attention: Attention | None = None
    mlp: Part | Block | None = None
    results: Mapping[str, Floats] | None = None
    """What products and the core made, if a recompute keeps it."""


def every_second(products: Mapping[str, Floats]) -> dict[str, Floats]:
    """The results of the first, third, ... product of a layer [torchtitan's checkpoint by operator]."""
    return dict(list(products.items())[::2])


def kept_by(mode: str, runtime: Runtime, attention: Attention, mlp: Part | Block) -> Kept:
    """What a layer under a recompute mode keeps; by operator experts are kept whole."""
    before = attention.before
    if mode == "full":
        keeps = runtime.recompute_keeps == "qkv"
        return Kept(before, results=attention.heads.products if keeps else {})
    if mode == OPERATORS:
        whole = mlp if isinstance(mlp, Block) else None
        inner = mlp.products if isinstance(mlp, Part) else {}
        first = {name: value for name, value in inner.items() if name != "fc2"}
        results = every_second(attention.products | first)
        if runtime.attention == "flash" and isinstance(attention.core, Part):
            results["context"] = attention.core.value
        return Kept(before, mlp=whole, results=results)
    selective = attention._replace(core=None, output=None)
    return Kept(before, selective if mode == "selective" else attention, mlp)
