"""What compute tasks do on a rank: the parts of layers, embedding and LM head, forward and backward.

What one task leaves to another of the same micro-batch, besides tensors of the graph, is in the frame of
their device: of every block what its attention leaves to its MLP, what is recomputed, and so on.

The layer of a module of multi-token prediction begins with embeddings and a projection, and ends with LM
head and loss. Both are parts of its attention and MLP tasks, which read the tables of embedding and LM head
and add to their gradients; embedding and LM head are on the same rank. The LM head of the model itself
reads the output of the last layer before the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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
from perfsim.proof.program import Claim, Compiler, Values
from perfsim.specs.runtime import Runtime
from perfsim.work import EMBEDDING, HEAD, Task

Frame = dict[tuple[int, str], Any]
"""What tasks of a micro-batch leave to one another on a rank, by block and name."""
Weighed = tuple[Any, Gradients]
"""The gradient of an input, and those of weights."""


class Summand(NamedTuple):
    """A gradient, and gradients of weights that every tensor peer holds whole: peers sum both."""

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
    keeps: Runtime
    """What runs the training, which decides what a recompute keeps."""
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
    def has_loss(self) -> bool:
        """Whether the LM head is a part of its block."""
        return self.ahead > 0 or self.block == HEAD

    @property
    def again(self) -> bool:
        """Whether it repeats a forward."""
        return self.task.work.op.endswith("recompute")

    @property
    def ahead(self) -> int:
        """By how many tokens the inputs of its module are later; 0 if it is of none."""
        return max(0, self.block - self.compiler.training.model.num_layers + 1) if self.block >= 0 else 0

    def claim(self, operation: Operation) -> Claim | None:
        """What serial training says of the first tensor that it makes; None: nothing."""
        model = self.compiler.training.model
        numbers = {
            "hidden": max(0, self.block + 1),
            "gradient": model.num_layers if self.block == HEAD else self.block,
        }
        # That of the last layer has gradients by modules too; a core alone is not repeated up to its sum.
        partly = self.again and self.mode == "selective"
        if not operation.quantity or partly or (self.block == HEAD and model.mtp_num_layers > 0):
            return None
        number = numbers.get(operation.quantity, self.block)
        return Claim(operation.quantity, number, self.step, self.task.tag)

    @property
    def loss(self) -> Claim:
        """What serial training says of the loss."""
        return Claim("loss", self.block, self.step, self.task.tag)


class Operation(NamedTuple):
    """What tasks of a kind do on a rank."""

    run: Callable[[At], Any]
    """Makes what `kind` says."""
    kind: Literal["forward", "backward", "weights"] = "forward"
    """A forward makes the tensors that the task writes. A backward makes the gradients of its input and
    weights. A separate pass for weights makes only the gradients of weights."""
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


@dataclass
class At:
    """The present task on a rank: its weights, its operands in the graph, and its frame."""

    now: Present
    rank: int
    w: Weights
    x: Values
    frame: Frame

    @cached_property
    def share(self) -> Share:
        """The share of the rank in the layer."""
        share = self.now.compiler.share(self.rank)
        return share.of_layer(self.now.block) if self.now.block >= 0 else share

    @cached_property
    def tokens(self) -> tuple[Ints, Ints]:
        """Inputs and targets of the micro-batch; a module of multi-token prediction has later words."""
        now = self.now
        return now.compiler.tokens(self.rank, now.step, now.task.tag, now.ahead)

    @property
    def routing(self) -> Routing:
        """The experts of the tokens at the rank's own positions."""
        compiler = self.now.compiler
        places = self.own(np.array(self.share.places)[None])[0]
        whole = compiler.training.routing(self.now.step, self.now.block)
        return whole.of(compiler.rows(self.rank, self.now.task.tag), places)

    def own(self, values: Any) -> Any:
        """The rank's own positions of values of all positions of its tensor peers."""
        return self.now.own(self.rank, values)

    def run(
        self, function: Callable[..., Any], *values: Floats, kept: Mapping[str, Floats] | None = None
    ) -> Part:
        """Carry out a part of the model with the task's weights."""
        return run_part(function, self.w, self.share, *values, kept=kept)

    def keep(self, name: str, value: Any, block: int | None = None) -> Any:
        """Leave a value of the block to later tasks of the micro-batch."""
        self.frame[self.now.block if block is None else block, name] = value
        return value

    def kept(self, name: str, default: Any = None) -> Any:
        """What an earlier task left of the block."""
        return self.frame.get((self.now.block, name), default)

    def take(self, name: str, default: Any = None, block: int | None = None) -> Any:
        """What an earlier task left, for the last time."""
        return self.frame.pop((self.now.block if block is None else block, name), default)

    @property
    def beside(self) -> Any:
        """What shared experts made, or the gradient of what they read; None without them."""
        return None if self.now.shared is None else self.x[self.now.shared]


# ------------------------------------------------------------------------------ ends of the model


def _embedding_forward(at: At) -> tuple[Any, ...]:
    """Look up the words."""
    return (at.run(partial(lookup, tokens=at.tokens[0])).value,)


def _embedding_backward(at: At) -> Gradients:
    """Gradients of words and positions."""
    return word_gradients(plain(at.x[0]), at.tokens[0], at.share)


def _scores(at: At, y: Floats, norm: str) -> tuple[Part, Floats]:
    """Scores of words, and the statistics of their softmax."""
    targets = at.tokens[1]
    part = at.run(partial(head, length=targets.shape[1], name=norm), y)
    return part, statistics(part.value, targets, at.share)


def _loss_backward(at: At, part: Part, of_tokens: Floats) -> Weighed:
    """The gradients of what an LM head reads and of weights, from the scores; keeps the loss."""
    training = at.now.compiler.training
    count = training.num_later_tokens if at.now.ahead else training.num_tokens
    gradient = loss_gradient(part.value, of_tokens, at.tokens[1], count, at.share)
    (dy,), gradients = part.backward(at.w, gradient)
    at.keep("loss", np.asarray(losses(of_tokens, count).sum()))
    return dy, gradients


def _head_forward(at: At) -> tuple[Any, ...]:
    """Statistics of the softmax; modules may be between the model's last layer and its LM head."""
    part, of_peer = _scores(at, at.take("output of the model", at.x[0]), "head_norm")
    at.keep("scores", part)
    return (of_peer,)


def _head_backward(at: At) -> Weighed:
    """The backward of loss and LM head, from the statistics of all words."""
    return _loss_backward(at, at.take("scores"), at.x[0])


# ------------------------------------------------------------------------------ attention


def attention_begin(at: At) -> Attention:
    """Queries, keys and values from the layer's input, or from what is kept of it.

    The first module also keeps the output of the model's own last layer for the model's LM head.
    """
    source = at.x[0]
    before, kept = (source.before, source.results) if isinstance(source, Kept) else (source, None)
    joint = at.run(partial(join, tokens=at.tokens[0]), before) if at.now.ahead else None
    if at.now.ahead == 1 and not at.now.again:
        at.keep("output of the model", before, HEAD)
    x = before if joint is None else joint.value
    return Attention(before, at.run(heads, x, kept=kept), joint, results=kept)


def _attention_forward(at: At) -> tuple[Any, ...]:
    """An attention block; a recompute repeats it, or its core alone."""
    kept = at.x[0].attention if isinstance(at.x[0], Kept) else None
    made: Attention = at.keep("attention", (kept or attention_begin(at)).with_core(at.w, at.share))
    return (made.made_output.value,)


def attention_of(at: At) -> Attention:
    """An attention block as it was repeated, or else kept."""
    attention: Attention = at.kept("attention") or at.x[1].attention
    return attention


def output_backward(at: At) -> tuple[Floats, Gradients]:
    """The gradient of the core's output, from that of the block's own output."""
    gradient = at.kept("output gradient")
    (d_context,), gradients = attention_of(at).made_output.backward(
        at.w, plain(at.x[0]) if gradient is None else gradient
    )
    return d_context, gradients


def _attention_backward(at: At) -> Weighed:
    """The backward of an attention block."""
    d_context, of_output = output_backward(at)
    d_heads, _ = attention_of(at).core.backward(at.w, d_context)
    return attention_end(at, d_heads, of_output)


def attention_end(at: At, d_heads: Sequence[Floats], gradients: Gradients) -> Weighed:
    """From queries, keys and values to the layer's input, which the gradient of its MLP passes by.

    In a module the layer's input was joined with words.
    """
    attention = attention_of(at)
    (dx,), of_heads = attention.heads.backward(at.w, *d_heads)
    gradients = gradients + of_heads
    if at.share.leads:
        dx = dx + plain(at.x[0])
    if attention.join is not None:
        (dx,), of_joint = attention.join.backward(at.w, dx)
        gradients = gradients + of_joint
    if at.now.ahead == 1:
        dx = dx + at.take("gradient by the model", block=HEAD)
    at.take("attention")
    at.take("output gradient")
    return dx, gradients


# ------------------------------------------------------------------------------ MLP and experts


def _input_of_layer(at: At) -> Floats:
    """The residual: an operand, but where it was repeated or joined with words."""
    x: Floats = at.kept("attention").x if at.now.again or at.now.ahead else at.x[1]
    return x


def _end(at: At, y: Floats, block: Part | Block) -> tuple[Any, ...]:
    """A layer's output, and what it keeps for its backward; a module has its own LM head behind it."""
    if at.now.again:
        at.keep("mlp", block)
        return (y,)
    if at.now.ahead:
        at.keep("scores", _scores(at, y, "mtp_norm"))
    return y, kept_by(at.now.mode, at.now.keeps, at.take("attention"), block)


def _begin(at: At) -> tuple[Any, Floats, Gradients]:
    """An MLP as recomputed or kept, the gradient of its output, and the gradients of weights from a loss."""
    kept = at.take("mlp") or at.x[1].mlp
    dy = plain(at.x[0])
    if not at.now.ahead:
        return kept, dy, []
    by_loss, gradients = _loss_backward(at, *at.take("scores"))
    if at.now.ahead < at.now.compiler.training.model.mtp_num_layers:
        return kept, dy + by_loss, gradients
    at.keep("gradient by the model", dy, HEAD)
    return kept, by_loss, gradients


def _mlp_forward(at: At) -> tuple[Any, ...]:
    """An MLP block."""
    part = at.run(mlp, _input_of_layer(at), at.x[0], kept=at.kept("attention").results)
    return _end(at, part.value, part)


def _mlp_backward(at: At) -> Weighed:
    """The backward of an MLP block."""
    part, dy, gradients = _begin(at)
    if at.share.model.norms_per_layer == 1:
        at.keep("output gradient", dy)
    (dx, _), own = part.backward(at.w, dy)
    return dx, own + gradients


def _router_forward(at: At) -> tuple[Any, ...]:
    """Norm, router, and a row for every slot of a token."""
    part = at.run(router, at.own(_input_of_layer(at)), at.x[0])
    _, routing = at.keep("router", (part, at.routing))
    return (Rows(part.values[2], routing.expert.ravel()),)


def _shared_forward(at: At) -> tuple[Any, ...]:
    """Shared experts, while rows travel."""
    return (at.keep("shared", at.run(shared, at.kept("router")[0].values[1])).value,)


def _experts_forward(at: At) -> tuple[Any, ...]:
    """The rank's experts on the rows that arrived."""
    rows: Rows = at.x[0]
    part = at.keep("experts", at.run(partial(experts, expert=rows.expert), rows.values))
    return (Rows(part.value, rows.expert),)


def _combine_forward(at: At) -> tuple[Any, ...]:
    """Rows summed to tokens."""
    of_router, routing = at.take("router")
    total, _, _, p = of_router.values
    beside = [] if at.beside is None else [at.beside]
    part = at.run(partial(combine, routing=routing), at.x[0].values, total, p, *beside)
    return _end(at, part.value, Block(routing, of_router, at.take("experts"), at.take("shared"), part))


def _combine_backward(at: At) -> tuple[Any, ...]:
    """Gradients of rows from gradients of tokens."""
    block, dy, by_loss = _begin(at)
    d, _ = block.combine.backward(at.w, at.own(dy))
    at.keep("backward", (block, d, by_loss))
    return (Rows(d[0], block.routing.expert.ravel()),)


def _shared_backward(at: At) -> tuple[Any, ...]:
    """Backward of shared experts, while gradients of rows travel."""
    block, d, gradients = at.kept("backward")
    (dz,), own = block.shared.backward(at.w, d[3])
    at.keep("backward", (block, d, gradients + own))
    return (dz,)


def _experts_backward(at: At) -> Weighed:
    """Backward of the rank's experts."""
    rows: Rows = at.x[0]
    (dx,), gradients = at.kept("backward")[0].experts.backward(at.w, rows.values)
    return Rows(dx, rows.expert), gradients


def _router_backward(at: At) -> Weighed:
    """Gradient of the block's input, and those of router, norm and shared experts.

    Tensor peers have their own positions, so these gradients are summands that the next collective sums.
    """
    block, d, gradients = at.take("backward")
    dz = np.zeros_like(block.router.values[1]) if at.beside is None else at.beside
    (dx, _), own = block.router.backward(at.w, d[1], dz, at.x[0].values, d[2])
    return dx, own + gradients


def _weight_pass(at: At) -> Gradients:
    """Weight gradients from what input gradients left."""
    gradients: Gradients = at.x[0] + at.take("gradients", [])
    return gradients


def _hand_on(at: At) -> tuple[Any, ...]:
    """Pass the tensor to the next stage of the same device."""
    return (at.x[0],)


def passes(name: str, operation: Operation, *others: str) -> dict[str, Operation]:
    """An operation in some passes."""
    return {f"{name}.{other}": operation for other in others}


FORWARD = ("forward", "recompute")
BACKWARD = ("backward", "dgrad")
OF_ENDS: Mapping[str, Operation] = {
    "embedding.forward": Operation(_embedding_forward, quantity="hidden"),
    "head.forward": Operation(_head_forward),
    **passes("head", Operation(_head_backward, "backward", quantity="gradient", loss=True), *BACKWARD),
    "embedding.backward": Operation(_embedding_backward, "weights", reads=()),
}
"""Operations of embedding and LM head."""
OF_LAYERS: Mapping[str, Operation] = {
    **passes(
        "attention", Operation(_attention_forward, reads=("own", "embedding"), quantity="attention"), *FORWARD
    ),
    **passes("mlp", Operation(_mlp_forward, reads=("own", "head"), quantity="hidden"), *FORWARD),
    **passes(
        "attention",
        Operation(_attention_backward, "backward", ("own", "embedding"), "gradient", begins=False),
        *BACKWARD,
    ),
    **passes(
        "mlp",
        Operation(_mlp_backward, "backward", ("own", "head"), "middle", ("own", "head"), loss=True),
        *BACKWARD,
    ),
    **passes("router", Operation(_router_forward), *FORWARD),
    **passes("shared_experts", Operation(_shared_forward), *FORWARD),
    **passes("experts", Operation(_experts_forward, reads=("experts",)), *FORWARD),
    **passes("combine", Operation(_combine_forward, reads=("own", "head"), quantity="hidden"), *FORWARD),
    **passes("combine", Operation(_combine_backward, reads=("own", "head"), loss=True), *BACKWARD),
    **passes("shared_experts", Operation(_shared_backward), *BACKWARD),
    **passes(
        "experts", Operation(_experts_backward, "backward", reads=("experts",), adds=("experts",)), *BACKWARD
    ),
    **passes(
        "router", Operation(_router_backward, "backward", quantity="middle", adds=("own", "head")), *BACKWARD
    ),
    "attention.wgrad": Operation(_weight_pass, "weights", reads=(), begins=False),
    "mlp.wgrad": Operation(_weight_pass, "weights", reads=(), adds=("own", "head")),
    "head.wgrad": Operation(_weight_pass, "weights", reads=()),
    "experts.wgrad": Operation(_weight_pass, "weights", reads=(), adds=("own", "experts", "head")),
    "stage.hand_on": Operation(_hand_on, reads=()),
}
"""Operations of layers, whose halves are tasks."""


def blocks_named(now: Present, names: Sequence[str]) -> list[int]:
    """The blocks that an operation names; only modules use the model's ends."""
    number = {"own": now.block, "experts": EXPERTS + now.block, "embedding": EMBEDDING, "head": HEAD}
    return [number[name] for name in names if now.ahead or name in ("own", "experts")]
