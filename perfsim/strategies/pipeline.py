"""Pipeline parallelism: one template a virtual stage and pass, stamped in the schedule's order.

A stage receives a hidden activation, runs its layers forward, sends on; and the same backwards with
gradients. The embedding stands on the first virtual stage, head and loss on the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfsim import transformer
from perfsim.graph import GraphBuilder, Kind, RankGroup, Slots, Template, TensorClass, Work
from perfsim.graph.builder import Stamped
from perfsim.strategies.schedules import Slot
from perfsim.strategies.tensor import (
    TensorGroup,
    compute_work,
    emit_layer_backward,
    emit_layer_forward,
)
from perfsim.strategies.zero import Shards

Wide = NDArray[np.int64]


@dataclass(frozen=True)
class VirtualStage:
    """One model chunk on one pipeline rank."""

    number: int
    num_stages: int
    num_layers: int
    group: TensorGroup
    next_ranks: RankGroup | None
    previous_ranks: RankGroup | None
    recompute: str
    head_positions: int
    shards: Shards | None = None
    """Where parameters are sharded over replicas (ZeRO 3)."""

    @property
    def first(self) -> bool:
        return self.number == 0

    @property
    def last(self) -> bool:
        return self.number == self.num_stages - 1

    @property
    def hidden(self) -> TensorClass:
        return TensorClass("hidden", self.group.part.activation_bytes)


def embedding_work(stage: VirtualStage) -> Work:
    """Lookup of the words of one micro-batch."""
    kernels = transformer.embedding_forward(stage.group.part)
    return compute_work("embedding.forward", "forward", kernels, (stage.hidden,))


def embedding_backward_work(stage: VirtualStage) -> Work:
    """Gradient of the word and position tables."""
    kernels = transformer.embedding_backward(stage.group.part)
    return compute_work("embedding.backward", "backward", kernels, (TensorClass("table_gradient", 0.0),))


def head_work(stage: VirtualStage) -> Work:
    """Language-model head and loss."""
    kernels = transformer.head_forward(stage.group.part, stage.head_positions)
    return compute_work("head.forward", "forward", kernels, (TensorClass("logits", 0.0),))


def head_backward_work(stage: VirtualStage) -> Work:
    """Backward of loss and head."""
    kernels = transformer.head_backward(stage.group.part, stage.head_positions)
    return compute_work("head.backward", "backward", kernels, (stage.hidden,))


def transfer_work(stage: VirtualStage, ranks: RankGroup) -> Work:
    """Send a hidden activation to the next pipeline rank, each tensor peer its own share."""
    return Work(
        name="pipeline.send",
        kind=Kind.COMM_SEND,
        op="send_recv",
        category="pipeline_communication",
        comm_bytes=stage.group.part.activation_bytes / stage.group.ranks.size,
        group=ranks,
        writes=(stage.hidden,),
    )


def softmax_sum_bytes(stage: VirtualStage) -> float:
    """Maximum, target and sum of exponentials a token, in fp32, over the vocabulary shards."""
    return 3 * 4.0 * stage.group.part.micro_batch_size * stage.head_positions


def forward_template(builder: GraphBuilder, stage: VirtualStage) -> Template:
    """Forward of one micro-batch through one virtual stage."""
    template, group = builder.template(), stage.group
    root = [stage.shards.gather_root(template)] if stage.shards else []
    if stage.first:
        hidden = template.task(embedding_work(stage), group.compute, root).tensor
        hidden = group.all_reduce(template, hidden)
    else:
        hidden = _receive(template, stage, "activation")
    done: list[int] = []
    for layer in range(stage.num_layers):
        weights = [stage.shards.gather_layer(template, done)] if stage.shards else []
        hidden, saved = emit_layer_forward(template, group, stage.recompute, hidden, weights)
        template.output(f"saved{layer}", saved)
        done.append(hidden)
    if stage.last:
        logits = template.task(head_work(stage), group.compute, [hidden, *root]).tensor
        template.output("logits", group.all_reduce(template, logits, softmax_sum_bytes(stage)))
    if stage.next_ranks is not None:
        work = transfer_work(stage, stage.next_ranks)
        template.output("activation", template.task(work, f"{group.device}/send-next", [hidden]).tensor)
    elif not stage.last:
        template.output("activation", hidden)
    return template


def backward_template(
    builder: GraphBuilder, stage: VirtualStage, layer_done: LayerDone | None = None
) -> Template:
    """Backward of one micro-batch through one virtual stage.

    `layer_done` is told each layer's weight gradient as soon as it is complete, so that its
    reduction can start while earlier layers still run backward.
    """
    template, group = builder.template(), stage.group
    if stage.last:
        gradient = template.task(head_backward_work(stage), group.compute, [template.port("logits")]).tensor
        gradient = group.all_reduce(template, gradient)
    else:
        gradient = _receive(template, stage, "gradient")
    gradient = _backward_layers(template, stage, gradient, layer_done)
    if stage.first:
        gradient = template.task(embedding_backward_work(stage), group.compute, [gradient]).tensor
    template.output("weight_gradients", gradient)
    if stage.shards:
        template.output("weight_gradients", stage.shards.scatter_root(template, gradient))
    if stage.previous_ranks is not None:
        work = transfer_work(stage, stage.previous_ranks)
        template.output("gradient", template.task(work, f"{group.device}/send-previous", [gradient]).tensor)
    elif not stage.first:
        template.output("gradient", gradient)
    return template


def _backward_layers(
    template: Template, stage: VirtualStage, gradient: int, layer_done: LayerDone | None
) -> int:
    """The layers of a stage backward; returns the gradient of the first one's input."""
    shards, done = stage.shards, [gradient]
    ahead = [shards.gather_layer(template, done)] if shards and stage.num_layers else []
    for layer in reversed(range(stage.num_layers)):
        weights, ahead = ahead, []
        if shards and layer:
            ahead = [shards.gather_layer(template, done)]
        saved = template.port(f"saved{layer}")
        gradient = emit_layer_backward(template, stage.group, stage.recompute, gradient, saved, weights)
        done.append(gradient)
        if layer_done is not None:
            layer_done.emit(template, layer, gradient)
        if shards:
            template.output(f"reduced{layer}", shards.scatter_layer(template, gradient))
    return gradient


@dataclass
class LayerDone:
    """Reduces each layer's gradient over the replicas when its backward is done."""

    work: Work
    stream: str

    def emit(self, template: Template, layer: int, gradient: int) -> None:
        reduced = template.task(self.work, self.stream, [gradient]).tensor
        template.output(f"reduced{layer}", reduced)


def _receive(template: Template, stage: VirtualStage, name: str) -> int:
    """What the neighbour sent; put together again where each tensor peer got a share."""
    received = template.port(name)
    sent_across = stage.previous_ranks if name == "activation" else stage.next_ranks
    if sent_across is None or stage.group.part.sequence_parallel:
        return received
    return stage.group.all_gather(template, received)


def stamp_slots(
    builder: GraphBuilder,
    merged: list[Slot],
    forwards: list[Template],
    backwards: list[Template],
    last_backwards: list[Template],
    num_microbatches: int,
) -> tuple[Stamped, dict[tuple[str, int, int], int]]:
    """Stamp all slots; also returns the slot number of each (pass, virtual stage, micro-batch)."""
    num_stages = len(forwards)
    pipeline = max(slot.stage for slot in merged) + 1
    templates = [*forwards, *backwards, *last_backwards]
    index: dict[tuple[str, int, int], int] = {}
    template = np.empty(len(merged), dtype=np.int64)
    activation, gradient, own = (np.full(len(merged), -1, dtype=np.int64) for _ in range(3))
    for number, slot in enumerate(merged):
        place = slot.chunk * pipeline + slot.stage
        index[slot.which, place, slot.microbatch] = number
        if slot.which == "F":
            template[number] = place
            activation[number] = index.get(("F", place - 1, slot.microbatch), -1)
        else:
            finishes = slot.microbatch == num_microbatches - 1
            template[number] = (2 if finishes else 1) * num_stages + place
            gradient[number] = index.get(("B", place + 1, slot.microbatch), -1)
            own[number] = index["F", place, slot.microbatch]
    sources = {"activation": (activation, "activation"), "gradient": (gradient, "gradient")}
    for name in {name for template_ in (*backwards, *last_backwards) for name in template_.ports}:
        sources.setdefault(name, (own, name))
    tag = np.array([slot.microbatch for slot in merged], dtype=np.int64)
    return builder.stamp(templates, Slots(template, tag, sources)), index


def tied_embedding_work(first: TensorGroup, ranks: RankGroup, grad_bytes: float) -> Work:
    """Sum of the gradients of a tied embedding over the first and the last stage."""
    rows = transformer.padded_vocab_size(first.part.model, first.part.tensor) / first.part.tensor
    n_bytes = rows * first.part.model.hidden_size * grad_bytes
    return Work(
        name="pipeline.tied_embedding",
        kind=Kind.COMM_COLL,
        op="all_reduce",
        category="pipeline_communication",
        comm_bytes=n_bytes,
        group=ranks,
        writes=(TensorClass("table_gradient", n_bytes),),
    )


def emit_tied_embedding(
    builder: GraphBuilder, first: TensorGroup, ranks: RankGroup, grad_bytes: float, reads: list[int]
) -> int:
    """Sum the gradients of a tied embedding; both stages wait for it."""
    work = tied_embedding_work(first, ranks, grad_bytes)
    return builder.task(work, f"{first.device}/send-previous", reads).tensor
