"""What compute tasks do on a rank: parts of layers, embedding and LM head, forward and backward.

A tensor of the graph is a bundle of named arrays (`Tensor`), so that a collective sums, cuts or joins all of
them alike. What one task leaves to another of the same micro-batch, besides tensors of the graph, is in the
frame of their device: each block as far as it was carried out.

The layer of a module of multi-token prediction begins with embeddings and a projection, and ends with LM
head and loss. Both are parts of its attention and MLP tasks, which read the tables of embedding and LM head
and add to their gradients; embedding and LM head are on the same rank. The LM head of the model itself
reads the output of the last layer before the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.proof import operations
from perfsim.proof.parameters import Share, Weights
from perfsim.proof.program import Tensor
from perfsim.proof.ranks import Ranks
from perfsim.work import HEAD, Task

Made = tuple[Sequence[Tensor | None], operations.Gradients]
"""The tensors that a task writes, and gradients of weights to add."""
Frame = dict[Any, Any]
"""What tasks of a micro-batch leave to one another on a rank: blocks by their number, and some by name."""
MODEL_OUTPUT = "output of the model"
MODEL_GRADIENT = "gradient by the model's own loss"
LATER_WORDS = "gradients of words by modules"
OF_ROUTER = "gradients of weights around experts"


@dataclass
class OnRank:
    """The present compute task on one rank: its weights, its operands in the graph, and its frame."""

    ranks: Ranks
    task: Task
    step: int
    ahead: int
    """How many tokens later the inputs of its multi-token module are; 0 outside modules."""
    mode: str
    """The recompute mode of its layer; `operators` where selective is by operator."""
    rank: int
    share: Share
    w: Weights
    operands: Sequence[Any]
    frame: Frame

    def arrived(self, name: str) -> Any:
        """An array of the first operand that has it; KeyError if none has."""
        for tensor in self.operands:
            if isinstance(tensor, dict) and name in tensor:
                return tensor[name]
        raise KeyError(f"no tensor that it reads has {name}")

    def taken_by(self, operation: Operation) -> list[str]:
        """The arrays that an operation takes from its operands."""
        there = {name for tensor in self.operands if isinstance(tensor, dict) for name in tensor}
        return [*operation.takes, *(name for name in operation.also_takes if name in there)]

    @property
    def saved(self) -> operations.Block | None:
        """What the forward of its layer kept, if it reads that."""
        tensors = (tensor for tensor in self.operands if isinstance(tensor, dict))
        return next((tensor["saved"] for tensor in tensors if "saved" in tensor), None)

    @property
    def block(self) -> operations.Block:
        """Its block as far as it was carried out, with what the forward kept."""
        block: operations.Block = self.frame.setdefault(self.task.block, operations.Block())
        if saved := self.saved:
            block.parts = saved.parts | block.parts
        return block

    @property
    def words(self) -> tuple[Any, Any]:
        """Inputs and targets of the micro-batch; a module has later words."""
        return self.ranks.tokens(self.rank, self.step, self.task.tag, self.ahead)

    @property
    def routing(self) -> operations.Routing:
        """The routing of the tokens at the rank's own positions."""
        return self.ranks.routing(self.rank, self.step, self.task.block, self.task.tag)


class Operation(NamedTuple):
    """What tasks of a kind do on a rank."""

    run: Callable[[OnRank, Operation], Made]
    parts: tuple[str, ...] = ()
    """In the order of the forward."""
    takes: tuple[str, ...] = ("hidden",)
    """Arrays that it takes from its operands."""
    gives: tuple[str, ...] = ("hidden",)
    """Arrays of the first tensor that it writes."""
    also_takes: tuple[str, ...] = ()
    """Arrays that it takes where an operand has them."""
    also_gives: tuple[str, ...] = ()
    """Arrays of a second tensor, where it writes one."""
    begin: Callable[[OnRank, operations.Block], None] | None = None
    """What a backward does before its parts."""
    end: Callable[[OnRank, operations.Block], None] | None = None
    reads: Literal["", "own", "experts"] = "own"
    """The block whose weights it reads; in a module it also reads the weights of embedding and LM head."""
    adds: Literal["", "own", "experts", "both"] = ""
    """The blocks to whose gradients it adds, in a module also the LM head's; else a later task adds them."""
    loss: bool = False
    """Whether the loss is a part of it, in a block with an LM head."""
    quantity: str = ""
    """What serial training calls the first tensor that it makes."""


def forward(at: OnRank, operation: Operation) -> Made:
    """Carry out parts on what arrived; the last task of a layer saves what its backward needs."""
    number = at.task.block
    again = at.task.work.op.endswith("recompute")
    block = at.frame[number]
    if again and (saved := at.saved):
        block.values = saved.values | block.values
        block.parts = saved.parts | block.parts
    for name in at.taken_by(operation):
        block.values[name] = at.arrived(name)
    if "router" in operation.parts and "router" in at.w:
        block.values["hidden"] = at.ranks.own(at.rank, block.values["hidden"])
        block.values |= {"routing": at.routing, "expert": at.routing.expert.ravel()}
    given = {name: block.values[name] for name in ("routing", "expert") if name in block.values}
    if number < 0 or at.ahead:
        given["tokens"], given["targets"] = at.words
    block.forward(operation.parts, at.w, at.share, given)
    if "scores" in operation.parts and "scores" in block.values:
        block.values["statistics"] = operations.statistics(block.values["scores"], given["targets"], at.share)
    tensors: list[Tensor | None] = [{name: block.values[name] for name in operation.gives}]
    if operation.quantity == "hidden" and not again and len(at.task.writes) > 1:
        tensors.append({"saved": block.saved(at.mode, at.ranks.runtime), **block.operands(at.mode)})
        at.frame[number] = block.module_head
    elif operation.also_gives and len(at.task.writes) > 1:
        tensors.append({name: block.values[name] for name in operation.also_gives})
    return tensors, []


def enter(at: OnRank, operation: Operation) -> Made:
    """Begin a block with what arrived, or repeat it from what was saved.

    The first module also keeps the output of the model's own last layer for the model's LM head.
    """
    block = operations.Block()
    if saved := at.saved:
        module = at.frame.get(at.task.block, block)  # its scores are not repeated
        block = operations.Block(saved.values | module.values, saved.parts | module.parts, saved.results)
    elif "hidden" in operation.takes:
        hidden = at.arrived("hidden")
        if at.ahead == 1:
            at.frame[MODEL_OUTPUT] = hidden
        elif at.task.block == HEAD:
            hidden = at.frame.pop(MODEL_OUTPUT, hidden)
        block.values = {"hidden": hidden, "before": hidden}
    at.frame[at.task.block] = block
    return forward(at, operation._replace(takes=()))


def backward(at: OnRank, operation: Operation) -> Made:
    """Go back through parts from the gradients that arrived.

    Gradients of weights wait for a task of their block that adds some; experts have a block of their own.
    """
    block = at.block
    for name in at.taken_by(operation):
        block.gradients[name] = at.arrived(name)
    if operation.begin:
        operation.begin(at, block)
    made = block.backward(operation.parts, at.w)
    if operation.end:
        operation.end(at, block)
    tensors: list[Tensor | None] = [{name: block.gradients.pop(name) for name in operation.gives} or None]
    if operation.also_gives and len(at.task.writes) > 1:
        tensors.append({name: block.gradients.pop(name) for name in operation.also_gives})
    if operation.adds == "experts":
        return tensors, made
    block.of_weights += made
    return tensors, block.take_weights() if operation.adds else []


def _by_loss(at: OnRank, block: operations.Block) -> None:
    """The loss, and its gradient by the scores."""
    count = at.ranks.training.num_tokens(at.ahead)
    of_tokens = block.values["statistics"] if at.ahead else block.gradients.pop("statistics")
    scored = block.values["scores"]
    losses, block.gradients["scores"] = operations.cross_entropy(
        scored, of_tokens, at.words[1], count, at.share
    )
    at.frame["loss"] = losses.sum()


def _from_output(at: OnRank, block: operations.Block) -> None:
    """The gradient of a layer's output, which in a module the loss adds to.

    What arrives at the last module is the gradient of the model's own last layer by the model's own loss.
    """
    if at.ahead:
        _by_loss(at, block)
        if at.ahead == at.ranks.training.model.mtp_num_layers:
            at.frame[MODEL_GRADIENT] = block.gradients.pop("hidden")
        block.of_weights += block.backward(("scores",), at.w)
    if "mlp" in block.parts and at.share.model.norms_per_layer == 1:
        block.values["output gradient"] = block.gradients["hidden"]


def _from_tokens(at: OnRank, block: operations.Block) -> None:
    """The gradient of the output of experts, at a rank's own positions."""
    _from_output(at, block)
    block.gradients["hidden"] = at.ranks.own(at.rank, block.gradients["hidden"])
    block.gradients |= {"expert": at.routing.expert.ravel()}


def _to_attention(at: OnRank, block: operations.Block) -> None:
    """The gradient of attention's output, and of its residual too unless the MLP is parallel to it."""
    block.gradients["attended"] = block.values.get("output gradient", block.gradients["hidden"])
    _residual(at, block)


def _residual(at: OnRank, block: operations.Block) -> None:
    """The gradient that passes attention by enters the sum over tensor peers once."""
    if not at.share.leads:
        del block.gradients["hidden"]


def _leave(at: OnRank, block: operations.Block) -> None:
    """End the backward of a layer; the first module hands on what the model's own loss says of its input."""
    if at.ahead == 1:
        block.gradients["hidden"] = block.gradients["hidden"] + at.frame.pop(MODEL_GRADIENT)
    block.parts = {}
    block.values = {}


def _weight_pass(at: OnRank, _: Operation) -> Made:
    """Weight gradients from what input gradients left."""
    return [None], at.arrived("of weights") + at.frame.pop((OF_ROUTER, at.task.block), [])


# Attention whose ranks share sequences, in parts. In a ring each block's scores enter a running softmax
# [1805.02867], and gradients of keys and values travel one message behind them.


class _Ring(NamedTuple):
    """What the backward of a core in a ring reads: its output, and the log of the sum of exponentials."""

    context: Floats
    log_sum: Floats


def _qkv(at: OnRank, operation: Operation) -> Made:
    """Norm, queries, keys and values; a recompute reads the layer's input from what is saved."""
    tensors, _ = enter(at, operation)
    return [*tensors, own_pair(at.block, at.share)], []


def _block(at: OnRank, operation: Operation) -> Made:
    """The core on one block of keys and values, or on all positions of some heads."""
    share = at.share
    block = at.frame[at.task.block]
    if at.ranks.rings:
        # Attend to one more block: largest score, sum of exponentials, and sum of weighted values so far.
        pair, *earlier = at.operands[1:]
        before = earlier[0] if earlier else None
        made = operations.scores(block.values["q"], pair["k"], (share.positions, pair["positions"]), share)
        most = made.max(axis=-1, keepdims=True)
        if before:
            most = np.maximum(most, before["most"])
        e = np.exp(made - most)
        total = e.sum(axis=-1, keepdims=True)
        weighted = e @ operations.of_groups(pair["v"], share)
        if before:
            scale = np.exp(before["most"] - most)
            total = before["total"] * scale + total
            weighted = before["weighted"] * scale + weighted
        return [{"weighted": weighted, "total": total, "most": most}], []
    # After the all-to-all a rank has some of the heads of its tensor peer.
    for name in operation.takes:
        block.values[name] = at.arrived(name)
    count = block.values["q"].shape[operations.HEADS]
    first = at.rank // share.tensor.of % (share.heads // count) * count
    given = {"positions": tuple(range(share.seq_length)), "first_head": first}
    block.forward(operation.parts, at.w, share, given)
    return [{"context": block.values["context"]}], []


def own_pair(block: operations.Block, share: Share) -> Tensor:
    """The keys and values of a rank itself, and their positions."""
    made = block.parts["heads"].makes
    return {"k": made["k"].value, "v": made["v"].value, "positions": share.positions}


def _output(at: OnRank, operation: Operation) -> Made:
    """The output projection of what the core made, from the running softmax or from other ranks."""
    block = at.frame[at.task.block]
    if at.ranks.rings:
        done = at.operands[0]
        context = done["weighted"] / done["total"]
        block.parts["core"] = _Ring(context, done["most"] + np.log(done["total"]))
    else:
        context = at.arrived("context")
    block.values["context"] = context
    return forward(at, operation)


def _block_backward(at: OnRank, operation: Operation) -> Made:
    """Gradients of queries, keys and values by one block, or of all positions of some heads."""
    if not at.ranks.rings:
        return backward(at, operation)
    block = at.block
    inner = block.parts["core"]
    first, _, *later = at.operands
    q = block.parts["heads"].makes["q"].value
    pair = later[0] if later else own_pair(block, at.share)
    d = first["context"]
    made = operations.scores(q, pair["k"], (at.share.positions, pair["positions"]), at.share)
    delta = (d * inner.context).sum(axis=-1, keepdims=True)
    p = np.exp(made - inner.log_sum)
    d_q, d_k, d_v = operations.core_gradients(p, d, (q, pair["k"], pair["v"]), at.share, delta)
    if later:
        d_q = d_q + later[1]["q"]
    return [{"q": d_q}, {"of k": d_k, "of v": d_v}], []


def _qkv_backward(at: OnRank, operation: Operation) -> Made:
    """The rest of the attention's backward, from the gradients of queries, keys and values."""
    gradients = at.block.gradients
    for name in "qkv":
        travelled = at.ranks.rings and name != "q"
        gradients[name] = at.arrived(f"of {name}" if travelled else name)
    return backward(at, operation)


def _both(name: str, there: Operation, back: Operation) -> dict[str, Operation]:
    """An operation forward and repeated, and backward, whole or its input gradients alone."""
    forwards = {f"{name}.{which}": there for which in ("forward", "recompute")}
    return forwards | {f"{name}.{which}": back for which in ("backward", "dgrad")}


ROWS = ("rows", "expert")
_HEADS_AND_JOIN = ("join", "heads")
QKV = ("q", "k", "v")
LAYER = (*operations.ATTENTION, *operations.FEED_FORWARD)
_LAYER_BEGIN = Operation(
    backward, operations.ATTENTION, begin=_to_attention, end=_leave, adds="own", quantity="gradient"
)
COMPUTE: Mapping[str, Operation] = {
    "embedding.forward": Operation(enter, ("lookup",), (), quantity="hidden"),
    "embedding.backward": Operation(backward, ("lookup",), gives=(), adds="own"),
    **_both(
        "head",
        Operation(enter, ("scores",), gives=("statistics",)),
        Operation(
            backward, ("scores",), ("statistics",), begin=_by_loss, adds="own", loss=True, quantity="gradient"
        ),
    ),
    **_both(
        "attention",
        Operation(enter, operations.ATTENTION, gives=("attended",), quantity="attention"),
        _LAYER_BEGIN,
    ),
    **_both(
        "attention.qkv",
        Operation(_qkv, _HEADS_AND_JOIN, gives=QKV),
        _LAYER_BEGIN._replace(run=_qkv_backward, parts=_HEADS_AND_JOIN, begin=_residual),
    ),
    **_both(
        "attention.block",
        Operation(_block, ("core",), QKV, reads=""),
        Operation(_block_backward, ("core",), ("context",), QKV, reads=""),
    ),
    **_both(
        "attention.output",
        Operation(_output, ("output",), (), ("attended",), quantity="attention"),
        Operation(backward, ("output",), gives=("context",), begin=_to_attention),
    ),
    **_both(
        "mlp",
        Operation(forward, ("mlp", "scores"), ("attended",), quantity="hidden"),
        Operation(backward, ("mlp",), begin=_from_output, adds="own", loss=True, quantity="middle"),
    ),
    **_both(
        "router",
        Operation(forward, ("router",), ("attended",), ROWS, also_gives=("z",)),
        Operation(backward, ("router",), ("rows",), also_takes=("z",), adds="own", quantity="middle"),
    ),
    **_both(
        "shared_experts",
        Operation(forward, ("shared",), (), ("shared",), also_takes=("z",)),
        Operation(backward, ("shared",), (), ("z",), also_takes=("shared",)),
    ),
    **_both(
        "experts",
        Operation(forward, ("experts",), ROWS, ROWS, reads="experts"),
        Operation(backward, ("experts",), ROWS, ROWS, reads="experts", adds="experts"),
    ),
    **_both(
        "combine",
        Operation(forward, ("combine", "scores"), ("rows",), also_takes=("shared",), quantity="hidden"),
        Operation(backward, ("combine",), gives=ROWS, also_gives=("shared",), begin=_from_tokens, loss=True),
    ),
    **_both(
        "layer",
        Operation(enter, LAYER, quantity="hidden"),
        Operation(backward, LAYER, adds="own", end=_leave, quantity="gradient"),
    ),
    **dict.fromkeys(
        ("attention.wgrad", "mlp.wgrad", "head.wgrad"), Operation(_weight_pass, reads="", adds="own")
    ),
    "experts.wgrad": Operation(_weight_pass, reads="", adds="both"),
    # Pass the tensor to the next stage of the same device.
    "stage.hand_on": Operation(lambda at, _: ([at.operands[0]], []), reads=""),
}
"""What compute tasks do, by their operation (`Work.op`); add new ones here."""
