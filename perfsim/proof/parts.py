"""A model in parts: each makes named arrays from named arrays, and adds up their gradients on the way back.

Serial training carries out all parts of a layer at once, undivided; the ranks of a schedule carry out some
parts in each task, on their shares. `hidden` runs through all of them: a layer's input, its output, and on
the way back the gradient of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from perfsim.base.arrays import Floats
from perfsim.proof.operations import Gradients, Node, Tape
from perfsim.proof.parameters import Share, Weights, latent_of
from perfsim.specs.runtime import Runtime


def _join(tape: Tape, x: Node) -> Node:
    """The input of a module of multi-token prediction: hidden states and later words [2412.19437 2.2]."""
    hidden = tape.norm(x, "mtp_hidden")
    words = tape.norm(tape.lookup(), "mtp_words")
    return tape.linear(tape.joined(hidden, words), "mtp_joint")


def _heads(tape: Tape, x: Node) -> tuple[Node, ...]:
    """Norm, queries, keys and values, which shape (samples, heads, positions, width)."""
    share = tape.share
    z = tape.norm(x, "norm1")
    if share.model.latent_attention is not None:
        return _latent_heads(tape, z)
    q = tape.split_heads(tape.linear(z, "query"), share.heads)
    k = tape.split_heads(tape.linear(z, "key"), share.groups)
    v = tape.split_heads(tape.linear(z, "value"), share.groups)
    if share.model.qk_layernorm:
        q = tape.norm(q, "query_norm")
        k = tape.norm(k, "key_norm")
    return tape.rotated(q), tape.rotated(k), v


def _latent_heads(tape: Tape, z: Node) -> tuple[Node, ...]:
    """Queries, and keys with values, through latents [2405.04434]; all heads have one rotary part of keys."""
    share = tape.share
    latent = latent_of(share.model)
    plain = latent.qk_nope_head_dim
    narrow = z
    if latent.q_lora_rank is not None:
        narrow = tape.norm(tape.linear(z, "query_down"), "query_norm")
    queries = tape.split_heads(tape.linear(narrow, "query"), share.heads)
    down = tape.linear(z, "pair_down")
    width = latent.kv_lora_rank
    of_pairs = tape.norm(tape.piece(down, 0, width), "pair_norm")
    pairs = tape.split_heads(tape.linear(of_pairs, "pair"), share.heads)
    common = tape.rotated(tape.split_heads(tape.piece(down, width, width + latent.qk_rope_head_dim), 1))
    turned = tape.rotated(tape.piece(queries, plain, plain + latent.qk_rope_head_dim))
    q = tape.joined(tape.piece(queries, 0, plain), turned)
    k = tape.joined(tape.piece(pairs, 0, plain), tape.repeated(common, share.heads))
    return q, k, tape.piece(pairs, plain, plain + latent.v_head_dim)


def _output(tape: Tape, context: Node) -> Node:
    """Output projection: this peer's part of the block's output."""
    return tape.linear(tape.merge_heads(context), "projection", adds=tape.share.leads)


def _mlp(tape: Tape, x: Node, attended: Node) -> Node:
    """Residual of the attention block, norm, both linears; the first peer's part carries the residual."""
    total = tape.sum(x, attended)
    parallel = tape.share.model.norms_per_layer == 1
    z = tape.norm(x, "norm1") if parallel else tape.norm(total, "norm2")
    return tape.sum(_linears(tape, z), tape.once(total))


def _linears(tape: Tape, z: Node, prefix: str = "") -> Node:
    """Both products of an MLP, or of shared experts, and what is between them."""
    gate = tape.linear(z, f"{prefix}gate") if tape.share.model.gated_mlp else None
    u = tape.linear(z, f"{prefix}fc1")
    return tape.linear(tape.activation(u, gate), f"{prefix}fc2", adds=tape.share.leads or bool(prefix))


def _router(tape: Tape, x: Node, attended: Node) -> tuple[Node, ...]:
    """The residual, its norm, a row for every slot of a token, and how much each expert counts.

    Which experts compute a token is drawn (`Routing`), so that ranks agree on it whatever their rounding;
    how much each counts is the router's softmax over all experts, so the router has gradients.
    """
    total = tape.sum(x, attended)
    z = tape.norm(total, "norm2")
    p = tape.probabilities(tape.linear(z, "router"))
    k = tape.share.model.experts.top_k if tape.share.model.experts else 0
    return total, z, tape.slots(z, k), p


def _combine(tape: Tape, total: Node, rows: Node, p: Node, *shared: Node) -> Node:
    """What experts made of rows, weighted and summed to tokens, with the residual and shared experts."""
    return tape.sum(total, tape.weighted(rows, p), *shared)


def _scores(tape: Tape, y: Node) -> Node:
    """Final norm and scores of words, of the positions that reach the LM head."""
    name = "mtp_norm" if "mtp_norm.scale" in tape.weights else "head_norm"
    return tape.logits(tape.norm(tape.piece(y, 0, tape.given["targets"].shape[1], axis=1), name))


class _Row(NamedTuple):
    """A part: its function, the arrays that it takes and makes, and a tensor of every block that has it."""

    run: Callable[..., Node | tuple[Node, ...]]
    takes: tuple[str, ...]
    makes: tuple[str, ...]
    of_blocks_with: str = ""


ATTENTION = ("join", "heads", "core", "output")
FEED_FORWARD = ("mlp", "router", "shared", "experts", "combine")
PARTS: Mapping[str, _Row] = {
    "lookup": _Row(Tape.lookup, (), ("hidden",)),
    "join": _Row(_join, ("hidden",), ("hidden",), "mtp_joint"),
    "heads": _Row(_heads, ("hidden",), ("q", "k", "v")),
    "core": _Row(Tape.core, ("q", "k", "v"), ("context",)),
    "output": _Row(_output, ("context",), ("attended",)),
    "mlp": _Row(_mlp, ("hidden", "attended"), ("hidden",), "fc1"),
    "router": _Row(_router, ("hidden", "attended"), ("total", "z", "rows", "p"), "router"),
    # Shared experts compute every token; each rank has them whole.
    "shared": _Row(partial(_linears, prefix="shared_"), ("z",), ("shared",), "shared_fc1"),
    "experts": _Row(Tape.experts, ("rows",), ("rows",), "expert_fc1"),
    "combine": _Row(_combine, ("total", "rows", "p", "shared"), ("hidden",), "router"),
    "scores": _Row(_scores, ("hidden",), ("scores",), "head_words"),
}
"""All parts; a layer runs those of `ATTENTION` and `FEED_FORWARD` that its weights have, in their order."""


class _Part(NamedTuple):
    """A part that was carried out."""

    takes: dict[str, Node]
    makes: dict[str, Node]
    tape: Tape

    def backward(self, weights: Weights, gradients: dict[str, Floats]) -> Gradients:
        """Replace gradients of what it made by those of what it took, which are added to earlier ones."""
        made = {node: gradients.pop(name) for name, node in self.makes.items() if name in gradients}
        arrived, of_weights = self.tape.back(weights, made)
        for name, node in self.takes.items():
            if node in arrived:
                gradients[name] = gradients[name] + arrived[node] if name in gradients else arrived[node]
        return of_weights


OPERATORS = "operators"
"""The mode of a selective recompute that keeps the results of some operators."""


@dataclass
class Block:
    """A layer, the embedding or the LM head for one micro-batch on one rank, as far as it was carried out."""

    values: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    """Carried out in this micro-batch, or kept from its forward."""
    results: Mapping[str, Floats] = field(default_factory=dict)
    """What products and the core made, where a recompute keeps it."""
    gradients: dict[str, Any] = field(default_factory=dict)
    """Of named arrays, during the backward."""
    of_weights: Gradients = field(default_factory=list)
    """Gradients of weights that no task has added yet."""

    def forward(
        self, names: Iterable[str], weights: Weights, share: Share, given: Mapping[str, Any] | None = None
    ) -> None:
        """Carry out the parts that the block has and did not keep."""
        for name in names:
            row = PARTS[name]
            if name in self.parts:
                self.values |= {array: node.value for array, node in self.parts[name].makes.items()}
                continue
            if row.of_blocks_with and row.of_blocks_with not in weights:
                continue
            tape = Tape(weights, share, self.results, given or {})
            takes = {taken: Node(self.values[taken]) for taken in row.takes if taken in self.values}
            made = row.run(tape, *takes.values())
            nodes = made if isinstance(made, tuple) else (made,)
            makes = dict(zip(row.makes, nodes, strict=True))
            self.parts[name] = _Part(takes, makes, tape)
            self.values |= {array: node.value for array, node in makes.items()}

    def backward(self, names: tuple[str, ...], weights: Weights) -> Gradients:
        """Go back through parts, from the gradients of what they made; returns those of weights."""
        made: Gradients = []
        for name in reversed(names):
            if name in self.parts:
                made += self.parts[name].backward(weights, self.gradients)
        return made

    def take_weights(self) -> Gradients:
        """The gradients of weights that no task has added yet, which one adds now."""
        made = self.of_weights
        self.of_weights = []
        return made

    @property
    def module_head(self) -> Block:
        """What a module of multi-token prediction keeps of its LM head besides what it saves."""
        values = {name: value for name, value in self.values.items() if name in ("scores", "statistics")}
        return Block(values, {name: part for name, part in self.parts.items() if name == "scores"})

    def saved(self, mode: str, runtime: Runtime) -> Block:
        """What a layer under a recompute mode keeps from its forward; by operator experts are kept whole."""
        before = {"hidden": self.values["before"]}
        parts = {name: part for name, part in self.parts.items() if name != "scores"}
        if mode == "none":
            return Block(before, parts)
        if mode == "selective":
            return Block(before, {name: parts[name] for name in parts if name not in ("core", "output")})
        if mode == "full":
            keeps = runtime.recompute_keeps == "qkv"
            return Block(before, results=parts["heads"].tape.products if keeps else {})
        products = [parts[name].tape.products for name in ("heads", "output", "mlp") if name in parts]
        results = every_second(
            {name: made for of_part in products for name, made in of_part.items() if name != "fc2"}
        )
        if runtime.attention == "flash" and isinstance(parts["core"], _Part):
            results["context"] = self.values["context"]
        of_experts = {name: parts[name] for name in FEED_FORWARD if name in parts and name != "mlp"}
        return Block(before, of_experts, results)


def every_second(products: Mapping[str, Floats]) -> dict[str, Floats]:
    """The results of the first, third, ... product of a layer [torchtitan's checkpoint by operator]."""
    return dict(list(products.items())[::2])
