"""What compute tasks do on a rank: the parts of layers, embedding and LM head, forward and backward.

What one task leaves to another of the same micro-batch, besides tensors of the graph, is in the frame of their
device: of every block what its attention leaves to its MLP, what is recomputed, and so on.

The layer of a module of multi-token prediction begins with embeddings and a projection, and ends with LM head
and loss. Both are parts of its attention and MLP tasks, which read the tables of embedding and LM head and add
to their gradients; embedding and LM head are on the same rank. The LM head of the model itself reads the output
of the last layer before the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.layers import (
    Attention,
    Block,
    Kept,
    combine,
    head,
    heads,
    join,
    kept_by,
    mlp,
    router,
    shared,
)
from perfsim.proof.operations import (
    Gradients,
    Part,
    Routing,
    experts,
    lookup,
    loss_gradient,
    losses,
    run_part,
    statistics,
    word_gradients,
)
from perfsim.proof.parameters import EXPERTS, Share, Weights
from perfsim.proof.program import Compiler, Values
from perfsim.specs.recipe import Recipe
from perfsim.work import EMBEDDING, HEAD, Task

Frame = dict[tuple[int, str], Any]
"""What tasks of a micro-batch leave to one another on a rank, by block and name."""
Weighed = tuple[Any, Gradients]
"""The gradient of an input, and those of weights."""


class Summand(NamedTuple):
    """A gradient and those of weights that every tensor peer holds whole: both are summed over peers."""

    values: Floats
    gradients: Floats
    """Of the whole block, zero for weights that are divided."""


def plain(value: Any) -> Any:
    """A tensor of the graph without what travels with it."""
    return value.values if isinstance(value, Summand) else value


class Rows(NamedTuple):
    """Rows of tokens on their way: a vector for each, and the expert that it is for."""

    values: Floats
    expert: Ints


@dataclass(frozen=True)
class Present:
    """The present task: when it runs, on which micro-batch and layer."""

    compiler: Compiler
    task: Task
    step: int
    recipe: Recipe | None
    mode: str
    """The recompute mode of its layer."""
    own: Callable[[int, Any], Any]
    """A rank's own positions of values of all positions of its tensor peers."""
    shared: int | None = None
    """Which operand is what shared experts made."""

    @property
    def block(self) -> int:
        """The part of the model that it is about."""
        return self.task.block

    @property
    def again(self) -> bool:
        """Whether it repeats a forward."""
        return self.task.work.op.endswith("recompute")

    @property
    def ahead(self) -> int:
        """By how many tokens the inputs of its module are later; 0 if it is of none."""
        return max(0, self.block - self.compiler.training.model.num_layers + 1) if self.block >= 0 else 0

    def share(self, rank: int) -> Share:
        """The share of a rank in its layer."""
        share = self.compiler.share(rank)
        return share.of_layer(self.block) if self.block >= 0 else share

    def tokens(self, rank: int) -> tuple[Ints, Ints]:
        """Inputs and targets of the micro-batch on a rank; those of a module are later."""
        inputs, targets = self.compiler.training.words(self.step, self.ahead)
        rows, places = self.compiler.rows(rank, self.task.tag), self.compiler.places(rank)
        return inputs[rows][:, places], targets[rows][:, places]

    def routing(self, rank: int) -> Routing:
        """The experts of the tokens of a rank, at its own positions among those of its tensor peers."""
        places = self.own(rank, np.array(self.share(rank).places)[None])[0]
        whole = self.compiler.training.routing(self.step, self.block)
        return whole.of(self.compiler.rows(rank, self.task.tag), places)

    @property
    def num_tokens(self) -> float:
        """Tokens over which its loss is averaged."""
        training = self.compiler.training
        return training.num_later_tokens if self.ahead else training.num_tokens


class Operation(NamedTuple):
    """What tasks of a kind do on a rank."""

    run: Callable[[Present, int, Weights, Values, Frame], Any]
    """Of the present task, a rank, its weights, operands and frame; makes what `kind` says."""
    kind: Literal["forward", "backward", "weights"] = "forward"
    """A forward makes the tensors that the task writes, a backward the gradient of its input and those of weights,
    a pass of its own for weights only these."""
    needs: int = 1
    """Operands."""
    reads: tuple[str, ...] = ("own",)
    """Weights: of its own block, its experts, or of the other end of the model if it is of a module."""
    quantity: str = ""
    """What serial training calls the first tensor that it makes."""
    adds: tuple[str, ...] = ("own",)
    """The blocks whose gradients it makes, named as in `reads`."""
    begins: bool = True
    """Whether it is the first of a micro-batch that makes gradients of its block."""
    loss: bool = False
    """Whether the loss is a part of it."""


# ------------------------------------------------------------------------------ ends of the model


def embedding_forward(now: Present, rank: int, w: Weights, _: Values, __: Frame) -> tuple[Any, ...]:
    """Look up the words."""
    return (run_part(partial(lookup, tokens=now.tokens(rank)[0]), w, now.share(rank)).value,)


def embedding_backward(now: Present, rank: int, _: Weights, x: Values, __: Frame) -> Gradients:
    """Gradients of words and positions."""
    return word_gradients(plain(x[0]), now.tokens(rank)[0], now.share(rank))


def _scores(now: Present, rank: int, w: Weights, y: Floats, norm: str) -> tuple[Part, Floats]:
    """Scores of words, and the statistics of their softmax."""
    targets = now.tokens(rank)[1]
    part = run_part(partial(head, length=targets.shape[1], name=norm), w, now.share(rank), y)
    return part, statistics(part.value, targets, now.share(rank))


def _loss_backward(
    now: Present, rank: int, w: Weights, scores: tuple[Part, Floats], f: Frame
) -> tuple[Floats, Gradients]:
    """Loss, and the gradients of what its LM head reads and of weights."""
    part, of_tokens = scores
    targets, count, share = now.tokens(rank)[1], now.num_tokens, now.share(rank)
    (dy,), gradients = part.backward(w, loss_gradient(part.value, of_tokens, targets, count, share))
    f[now.block, "loss"] = np.asarray(losses(of_tokens, count).sum())
    return dy, gradients


def head_forward(now: Present, rank: int, w: Weights, x: Values, f: Frame) -> tuple[Any, ...]:
    """Statistics of the softmax; modules may be between the model's last layer and its LM head."""
    y = f.pop((HEAD, "output of the model"), x[0])
    part, of_peer = _scores(now, rank, w, y, "head_norm")
    f[HEAD, "scores"] = part
    return (of_peer,)


def head_backward(now: Present, rank: int, w: Weights, x: Values, f: Frame) -> Weighed:
    """The backward of loss and LM head, from the statistics of all words."""
    return _loss_backward(now, rank, w, (f.pop((HEAD, "scores")), x[0]), f)


# ------------------------------------------------------------------------------ attention


def attention_begin(now: Present, rank: int, w: Weights, source: Any) -> Attention:
    """Queries, keys and values from the layer's input, or from what is kept of it."""
    share = now.share(rank)
    before, kept = (source.before, source.results) if isinstance(source, Kept) else (source, None)
    joint = None
    if now.ahead:
        joint = run_part(partial(join, tokens=now.tokens(rank)[0]), w, share, before)
    x = before if joint is None else joint.value
    return Attention(before, run_part(heads, w, share, x, kept=kept), joint, results=kept)


def output_of_model(now: Present, x: Values, f: Frame) -> None:
    """Keep the output of the model's own last layer, which the first module reads, for the model's LM head."""
    if now.ahead == 1 and not now.again:
        f[HEAD, "output of the model"] = x[0]


def attention_forward(now: Present, rank: int, w: Weights, x: Values, f: Frame) -> tuple[Any, ...]:
    """An attention block; a recompute repeats it, or its core alone."""
    kept = x[0].attention if isinstance(x[0], Kept) else None
    block = kept or attention_begin(now, rank, w, x[0])
    made = f[now.block, "attention"] = block.with_core(w, now.share(rank))
    output_of_model(now, x, f)
    return (made.made_output.value,)


def attention_of(now: Present, x: Values, f: Frame) -> Attention:
    """An attention block as it was repeated, or else kept."""
    repeated: Attention | None = f.get((now.block, "attention"))
    return repeated or x[1].attention


def gradient_of_attention(now: Present, x: Values, f: Frame) -> Floats:
    """The gradient of its output: the MLP's, or that of the layer if attention and MLP are parallel."""
    gradient: Floats = f.get((now.block, "output gradient"), plain(x[0]))
    return gradient


def attention_backward(now: Present, rank: int, w: Weights, x: Values, f: Frame) -> Weighed:
    """The backward of an attention block."""
    kept = attention_of(now, x, f)
    (d_context,), of_output = kept.made_output.backward(w, gradient_of_attention(now, x, f))
    d_heads, _ = kept.core.backward(w, d_context)
    (dx,), of_heads = kept.heads.backward(w, *d_heads)
    return attention_end(now, rank, w, x, f, dx, of_output + of_heads)


def attention_end(
    now: Present, rank: int, w: Weights, x: Values, f: Frame, dx: Floats, gradients: Gradients
) -> Weighed:
    """The gradient of the layer's input, which that of its MLP passes by; in a module it was joined with words."""
    joint = attention_of(now, x, f).join
    if now.share(rank).leads:
        dx = dx + plain(x[0])
    if joint is not None:
        (dx,), of_joint = joint.backward(w, dx)
        gradients = gradients + of_joint
    if now.ahead == 1:
        dx = dx + f.pop((HEAD, "gradient by the model"))
    for name in ("attention", "output gradient"):
        f.pop((now.block, name), None)
    return dx, gradients


# ------------------------------------------------------------------------------ MLP and experts


def mlp_forward(now: Present, rank: int, w: Weights, x: Values, f: Frame) -> tuple[Any, ...]:
    """An MLP block."""
    attention: Attention = f[now.block, "attention"]
    before = attention.x if now.again or now.ahead else x[1]
    part = run_part(mlp, w, now.share(rank), before, x[0], kept=attention.results)
    return _end(now, rank, w, f, part.value, part)


def _end(now: Present, rank: int, w: Weights, f: Frame, y: Floats, block: Part | Block) -> tuple[Any, ...]:
    """A layer's output, and what it keeps for its backward; a module has its own LM head behind it."""
    if now.again:
        f[now.block, "mlp"] = block
        return (y,)
    if now.ahead:
        f[now.block, "scores"] = _scores(now, rank, w, y, "mtp_norm")
    if now.recipe is None:
        raise ValueError("no recipe says what is kept")
    return y, kept_by(now.mode, now.recipe, f.pop((now.block, "attention")), block)


def _begin(now: Present, rank: int, w: Weights, x: Values, f: Frame) -> tuple[Any, Floats, Gradients]:
    """A layer's MLP as it was repeated or else kept, the gradient of its output, and those of weights by a loss."""
    kept = f.pop((now.block, "mlp"), None) or x[1].mlp
    dy = plain(x[0])
    gradients: Gradients = []
    if now.ahead:
        by_loss, gradients = _loss_backward(now, rank, w, f.pop((now.block, "scores")), f)
        if now.ahead == now.compiler.training.model.mtp_num_layers:
            f[HEAD, "gradient by the model"] = dy
            dy = by_loss
        else:
            dy = dy + by_loss
    return kept, dy, gradients


def mlp_backward(now: Present, rank: int, w: Weights, x: Values, f: Frame) -> Weighed:
    """The backward of an MLP block."""
    part, dy, gradients = _begin(now, rank, w, x, f)
    if now.share(rank).model.norms_per_layer == 1:
        f[now.block, "output gradient"] = dy
    (dx, _), own = part.backward(w, dy)
    return dx, own + gradients


def router_forward(now: Present, rank: int, w: Weights, x: Values, f: Frame) -> tuple[Any, ...]:
    """Norm, router, and a row for every slot of a token."""
    before = f[now.block, "attention"].x if now.again or now.ahead else x[1]
    part = run_part(router, w, now.share(rank), now.own(rank, before), x[0])
    routing = now.routing(rank)
    f[now.block, "router"] = part, routing
    return (Rows(part.values[2], routing.expert.ravel()),)


def shared_forward(now: Present, rank: int, w: Weights, _: Values, f: Frame) -> tuple[Any, ...]:
    """Shared experts, while rows travel."""
    z = f[now.block, "router"][0].values[1]
    part = f[now.block, "shared"] = run_part(shared, w, now.share(rank), z)
    return (part.value,)


def experts_forward(now: Present, rank: int, w: Weights, x: Values, f: Frame) -> tuple[Any, ...]:
    """The rank's experts on the rows that arrived."""
    rows: Rows = x[0]
    part = run_part(partial(experts, expert=rows.expert), w, now.share(rank), rows.values)
    f[now.block, "experts"] = part
    return (Rows(part.value, rows.expert),)


def combine_forward(now: Present, rank: int, w: Weights, x: Values, f: Frame) -> tuple[Any, ...]:
    """Rows summed to tokens."""
    of_router, routing = f.pop((now.block, "router"))
    total, _, _, p = of_router.values
    beside = [] if now.shared is None else [x[now.shared]]
    function = partial(combine, routing=routing)
    part = run_part(function, w, now.share(rank), x[0].values, total, p, *beside)
    of_experts, of_shared = (f.pop((now.block, name), None) for name in ("experts", "shared"))
    return _end(now, rank, w, f, part.value, Block(routing, of_router, of_experts, of_shared, part))


def combine_backward(now: Present, rank: int, w: Weights, x: Values, f: Frame) -> tuple[Any, ...]:
    """Gradients of rows from those of tokens."""
    block, dy, by_loss = _begin(now, rank, w, x, f)
    d, _ = block.combine.backward(w, now.own(rank, dy))
    f[now.block, "backward"] = block, d, by_loss
    return (Rows(d[0], block.routing.expert.ravel()),)


def shared_backward(now: Present, _: int, w: Weights, __: Values, f: Frame) -> tuple[Any, ...]:
    """Backward of shared experts, while gradients of rows travel."""
    block, d, gradients = f[now.block, "backward"]
    (dz,), own = block.shared.backward(w, d[3])
    f[now.block, "backward"] = block, d, gradients + own
    return (dz,)


def experts_backward(now: Present, _: int, w: Weights, x: Values, f: Frame) -> Weighed:
    """Backward of the rank's experts."""
    rows: Rows = x[0]
    (dx,), gradients = f[now.block, "backward"][0].experts.backward(w, rows.values)
    return Rows(dx, rows.expert), gradients


def router_backward(now: Present, _: int, w: Weights, x: Values, f: Frame) -> Weighed:
    """Gradient of the block's input, and those of router, norm and shared experts.

    Tensor peers have their own positions, so these gradients are summands that the next collective sums.
    """
    block, d, gradients = f.pop((now.block, "backward"))
    dz = np.zeros_like(block.router.values[1]) if now.shared is None else x[now.shared]
    (dx, _), own = block.router.backward(w, d[1], dz, x[0].values, d[2])
    return dx, own + gradients


def weight_pass(now: Present, _: int, __: Weights, x: Values, f: Frame) -> Gradients:
    """Weight gradients from what input gradients left."""
    gradients: Gradients = x[0] + f.pop((now.block, "gradients"), [])
    return gradients


def hand_on(_: Present, __: int, ___: Weights, x: Values, ____: Frame) -> tuple[Any, ...]:
    """Pass the tensor to the next stage of the same device."""
    return (x[0],)


def passes(name: str, operation: Operation, *others: str) -> dict[str, Operation]:
    """An operation in some passes."""
    return {f"{name}.{other}": operation for other in others}


FORWARD = ("forward", "recompute")
BACKWARD = ("backward", "dgrad")
OF_ENDS: Mapping[str, Operation] = {
    "embedding.forward": Operation(embedding_forward, needs=0, quantity="hidden"),
    "head.forward": Operation(head_forward),
    **passes("head", Operation(head_backward, "backward", quantity="gradient", loss=True), *BACKWARD),
    "embedding.backward": Operation(embedding_backward, "weights", reads=()),
}
"""Operations of embedding and LM head."""
OF_LAYERS: Mapping[str, Operation] = {
    **passes(
        "attention", Operation(attention_forward, reads=("own", "embedding"), quantity="attention"), *FORWARD
    ),
    **passes("mlp", Operation(mlp_forward, reads=("own", "head"), quantity="hidden"), *FORWARD),
    **passes(
        "attention",
        Operation(attention_backward, "backward", 2, ("own", "embedding"), "gradient", begins=False),
        *BACKWARD,
    ),
    **passes(
        "mlp",
        Operation(mlp_backward, "backward", 2, ("own", "head"), "middle", ("own", "head"), loss=True),
        *BACKWARD,
    ),
    **passes("router", Operation(router_forward), *FORWARD),
    **passes("shared_experts", Operation(shared_forward, needs=0), *FORWARD),
    **passes("experts", Operation(experts_forward, reads=("experts",)), *FORWARD),
    **passes("combine", Operation(combine_forward, reads=("own", "head"), quantity="hidden"), *FORWARD),
    **passes("combine", Operation(combine_backward, needs=2, reads=("own", "head"), loss=True), *BACKWARD),
    **passes("shared_experts", Operation(shared_backward, needs=0), *BACKWARD),
    **passes(
        "experts", Operation(experts_backward, "backward", reads=("experts",), adds=("experts",)), *BACKWARD
    ),
    **passes(
        "router", Operation(router_backward, "backward", quantity="middle", adds=("own", "head")), *BACKWARD
    ),
    "attention.wgrad": Operation(weight_pass, "weights", reads=(), begins=False),
    "mlp.wgrad": Operation(weight_pass, "weights", reads=(), adds=("own", "head")),
    "head.wgrad": Operation(weight_pass, "weights", reads=()),
    "experts.wgrad": Operation(weight_pass, "weights", reads=(), adds=("own", "experts", "head")),
    "stage.hand_on": Operation(hand_on, reads=()),
}
"""Operations of layers, whose halves are tasks."""


def blocks_named(now: Present, names: Sequence[str]) -> list[int]:
    """The blocks that an operation names; those of the model's ends are for modules only."""
    number = {"own": now.block, "experts": EXPERTS + now.block, "embedding": EMBEDDING, "head": HEAD}
    return [number[name] for name in names if now.ahead or name in ("own", "experts")]
