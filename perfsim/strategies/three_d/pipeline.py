"""Pipeline parallelism: one template a virtual stage and pass, to be stamped in the schedule's order.

A stage receives a hidden activation, runs its layers forward, sends on; and the same backwards with
gradients. The embedding stands on the first virtual stage, head and loss on the last. Where the
schedule splits the backward, weight gradients are a third pass on what the second left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfsim.graph import EMBEDDING, EMBEDDING_AND_HEAD, HEAD, GraphBuilder, RankGroup, Template, Work
from perfsim.graph.builder import Port
from perfsim.strategies.three_d.tensor import (
    TensorGroup,
    WeightInputs,
    emit_layer_backward,
    emit_layer_dgrad,
    emit_layer_forward,
    emit_layer_wgrad,
)
from perfsim.strategies.three_d.virtual_stage import (
    VirtualStage,
    embedding_backward_work,
    embedding_work,
    hand_on_work,
    head_backward_work,
    head_dgrad_work,
    head_wgrad_work,
    head_work,
    softmax_sum_bytes,
    tied_embedding_work,
    transfer_work,
)


def forward_template(builder: GraphBuilder, stage: VirtualStage) -> Template:
    """Forward of one micro-batch through one virtual stage."""
    template, group = builder.template(), stage.group
    root = [stage.shards.gather_root(template)] if stage.shards else []
    if stage.first:
        hidden = template.task(embedding_work(stage), group.compute, root, block=EMBEDDING).tensor
        hidden = group.all_reduce(template, hidden)
    else:
        hidden = _receive(template, stage, "activation")
    done: list[int] = []
    for layer in range(stage.num_layers):
        block = stage.first_layer + layer
        weights = [stage.shards.gather_forward(template, done, block)] if stage.shards else []
        hidden, saved = emit_layer_forward(template, group, stage.recompute, hidden, weights, block=block)
        template.output(f"saved{layer}", saved)
        done.append(hidden)
    if stage.last:
        logits = template.task(head_work(stage), group.compute, [hidden, *root], block=HEAD).tensor
        template.output("logits", group.all_reduce(template, logits, softmax_sum_bytes(stage)))
    else:
        _send(template, stage, "activation", hidden)
    return template


@dataclass(frozen=True)
class Reduction:
    """Reduces the gradients of a virtual stage over the replicas as soon as a bucket of them is complete.

    So the reduction of a bucket can run while earlier layers still run backward.
    """

    of_layers: Callable[[int], Work]
    """The reduction of so many layers at once."""
    stream: str
    embedding_and_head: Work | None = None
    """Of embedding and head, where they are reduced in every micro-batch (ZeRO 2)."""
    in_flight: int | None = None
    """Layers whose gradients may be whole at once; None: all."""
    follows: bool = False
    """A pass before it on this rank may still be reducing, and its buffers are those of this one."""
    per_bucket: int = 1
    """Layers that fill a bucket."""

    def emit_bucket(self, template: Template, stage: VirtualStage, made: Sequence[int]) -> list[int]:
        """Reduce the bucket that the layer made last fills; nothing where it does not.

        `made` are the gradients of the stage's layers so far, the last layer's first.
        """
        layer, count = stage.num_layers - len(made), (len(made) - 1) % self.per_bucket + 1
        if layer and count < self.per_bucket:
            return []
        block = stage.first_layer + layer
        work = self.of_layers(count)
        reduced = template.task(work, self.stream, made[-count:], block=block).tensor
        for each in range(layer, layer + count):
            template.output(f"reduced{each}", reduced)
        return [reduced]

    def emit_embedding_and_head(self, template: Template, gradient: int) -> None:
        if self.embedding_and_head is not None:
            reduced = template.task(
                self.embedding_and_head, self.stream, [gradient], block=EMBEDDING_AND_HEAD
            ).tensor
            template.output("reduced_embedding_and_head", reduced)

    def room(self, template: Template, reduced: list[int]) -> list[int]:
        """The reduction that frees the buffer of the next layer's gradient: here, or in the pass before."""
        if self.in_flight is None:
            return []
        earlier = self.in_flight - len(reduced)
        if earlier > 0:
            return [template.port(f"freed{earlier}")] if self.follows else []
        return [template.writer(reduced[-self.in_flight])]

    def room_of_embedding_and_head(self, template: Template) -> list[int]:
        """Frees the gradient buffers of embedding and LM head: the last reduction of the pass before."""
        return [template.port("freed0")] if self.follows and self.embedding_and_head is not None else []

    def leave(self, template: Template, reduced: list[int]) -> None:
        """Name for the next pass what frees buffers: the last reduction of all, and those of the last layers.

        A pass of fewer layers than buffers names its last one for those that it lacks.
        """
        if self.in_flight is None:
            return
        ends = template.outputs.get("reduced_embedding_and_head")
        last = [*reduced, *([] if ends is None else [ends])]
        if not last:
            return
        template.output("freed0", last[-1])
        for earlier in range(1, self.in_flight + 1):
            found = reduced[-earlier] if earlier <= len(reduced) else last[-1]
            template.output(f"freed{earlier}", found)


def backward_template(
    builder: GraphBuilder, stage: VirtualStage, reduction: Reduction | None = None
) -> Template:
    """Backward of one micro-batch through one virtual stage, weight gradients included."""
    template, group = builder.template(), stage.group
    if stage.last:
        logits = [template.port("logits")]
        room = reduction.room_of_embedding_and_head(template) if reduction else []
        gradient = template.task(head_backward_work(stage), group.compute, logits, room, block=HEAD).tensor
        gradient = group.all_reduce(template, gradient)
    else:
        gradient = _receive(template, stage, "gradient")
    gradient, reduced = _backward_layers(template, stage, gradient, reduction)
    if stage.first:
        table, room = (
            embedding_backward_work(stage),
            reduction.room_of_embedding_and_head(template) if reduction else [],
        )
        gradient = template.task(table, group.compute, [gradient], room, block=EMBEDDING).tensor
    if not stage.empty:
        template.output("weight_gradients", gradient)
    if reduction is not None:
        reduction.emit_embedding_and_head(template, gradient)
        reduction.leave(template, reduced)
    if stage.shards:
        template.output("weight_gradients", stage.shards.scatter_root(template, gradient))
    if not stage.first:
        _send(template, stage, "gradient", gradient)
    return template


def _backward_layers(
    template: Template, stage: VirtualStage, gradient: int, reduction: Reduction | None
) -> tuple[int, list[int]]:
    """The layers of a stage backward; returns the gradient of the first one's input, and what was reduced."""
    shards, count = stage.shards, stage.num_layers
    made: list[int] = []
    reduced: list[int] = []
    block = stage.first_layer + count - 1
    ahead = [shards.gather_backward(template, count - 1, count, block)] if shards and count else []
    for layer in reversed(range(count)):
        block = stage.first_layer + layer
        weights, ahead = ahead, []
        if shards and layer:
            ahead = [shards.gather_backward(template, layer - 1, count, block - 1)]
        saved = template.port(f"saved{layer}")
        room = reduction.room(template, reduced) if reduction else []
        gradient = emit_layer_backward(
            template, stage.group, stage.recompute, gradient, saved, weights, room, block=block
        )
        if reduction is not None:
            made.append(gradient)
            reduced += reduction.emit_bucket(template, stage, made)
        if shards:
            template.output(f"reduced{layer}", shards.scatter_layer(template, gradient, block))
    return gradient, reduced


def dgrad_template(builder: GraphBuilder, stage: VirtualStage) -> Template:
    """Backward of one micro-batch without weight gradients: what the stage before waits for."""
    template, group = builder.template(), stage.group
    if stage.last:
        logits = [template.port("logits")]
        head = template.task(head_dgrad_work(stage), group.compute, logits, block=HEAD).tensor
        template.output("head_inputs", head + 1)
        gradient = group.all_reduce(template, head)
        if group.ranks.size > 1:
            template.output("head_sum", gradient)
    else:
        gradient = _receive(template, stage, "gradient")
    for layer in reversed(range(stage.num_layers)):
        saved = template.port(f"saved{layer}")
        block = stage.first_layer + layer
        gradient, inputs = emit_layer_dgrad(template, group, stage.recompute, gradient, saved, block=block)
        for name, tensor in inputs._asdict().items():
            if tensor is not None:
                template.output(f"{name}{layer}", tensor)
    if stage.first:
        template.output("embedding_inputs", _own(template, stage, gradient))
    else:
        _send(template, stage, "gradient", gradient)
    return template


def wgrad_template(
    builder: GraphBuilder, stage: VirtualStage, reduction: Reduction | None = None
) -> Template:
    """Weight gradients of one micro-batch in one virtual stage, in the order of the backward."""
    template, group = builder.template(), stage.group
    gradient = -1
    if stage.last:
        names = ["head_inputs", *(["head_sum"] if group.ranks.size > 1 else [])]
        inputs_of_head = [template.port(name) for name in names]
        room = reduction.room_of_embedding_and_head(template) if reduction else []
        gradient = template.task(
            head_wgrad_work(stage), group.compute, inputs_of_head, room, block=HEAD
        ).tensor
    made: list[int] = []
    reduced: list[int] = []
    for layer in reversed(range(stage.num_layers)):
        known = WeightInputs._fields if group.ranks.size > 1 else WeightInputs._fields[:2]
        inputs = WeightInputs(*(template.port(f"{name}{layer}") for name in known))
        room = reduction.room(template, reduced) if reduction else []
        gradient = emit_layer_wgrad(template, group, inputs, room, block=stage.first_layer + layer)
        if reduction is not None:
            made.append(gradient)
            reduced += reduction.emit_bucket(template, stage, made)
    if stage.first:
        inputs_of_table = [template.port("embedding_inputs")]
        table, room = (
            embedding_backward_work(stage),
            reduction.room_of_embedding_and_head(template) if reduction else [],
        )
        gradient = template.task(table, group.compute, inputs_of_table, room, block=EMBEDDING).tensor
    if not stage.empty:
        template.output("weight_gradients", gradient)
        if reduction is not None:
            reduction.emit_embedding_and_head(template, gradient)
            reduction.leave(template, reduced)
    return template


def _receive(template: Template, stage: VirtualStage, name: str) -> int:
    """What the neighbour sent; put together again where each tensor peer got a share."""
    received = template.port(name)
    sent_across = stage.previous_ranks if name == "activation" else stage.next_ranks
    if sent_across is None or stage.group.part.sequence_parallel:
        return received
    return stage.group.all_gather(template, received)


def _send(template: Template, stage: VirtualStage, name: str, tensor: int) -> None:
    """Give an activation to the next stage or a gradient to the previous; sent where ranks differ."""
    forward = name == "activation"
    ranks = stage.next_ranks if forward else stage.previous_ranks
    if ranks is not None:
        stream = f"{stage.group.device}/send-{'next' if forward else 'previous'}"
        tensor = template.task(transfer_work(stage, ranks), stream, [tensor]).tensor
    template.output(name, _own(template, stage, tensor))


def _own(template: Template, stage: VirtualStage, tensor: int) -> int:
    """The tensor as one that this template writes, since only those can be outputs."""
    if not isinstance(tensor, Port):
        return tensor
    return template.task(hand_on_work(stage), stage.group.compute, [tensor]).tensor


def emit_tied_embedding(
    builder: GraphBuilder, first: TensorGroup, ranks: RankGroup, grad_bytes: float, reads: list[int]
) -> int:
    """Sum the gradients of a tied embedding; both stages wait for it."""
    work = tied_embedding_work(first, ranks, grad_bytes)
    return builder.task(work, f"{first.device}/send-previous", reads, block=EMBEDDING_AND_HEAD).tensor
