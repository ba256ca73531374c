"""Pipeline parallelism: one template per virtual stage and pass, stamped in the order of the schedule.

A stage receives a hidden activation, runs its layers forward and sends the result; the backward does the
same with gradients. The embedding is on the first virtual stage, LM head and loss are on the last. Where the
schedule splits the backward, weight gradients are a third pass that uses tensors saved by the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from perfsim.costs.memory import routed_parameters, stage_parameters
from perfsim.strategies.three_d.data import Held, Replicas, Shards
from perfsim.strategies.three_d.layers import (
    EMBEDDED,
    FROM_HEAD,
    Layer,
    TensorGroup,
    WeightInputs,
    compute_work,
)
from perfsim.work import (
    EMBEDDING,
    EMBEDDING_AND_HEAD,
    HEAD,
    WAIT_OF_HOST,
    GraphBuilder,
    Kind,
    RankGroup,
    Template,
    TensorClass,
    Work,
)
from perfsim.work.builder import Port
from perfsim.work.counts import head_weight_input_bytes
from perfsim.work.kernels import LayerSlice
from perfsim.work.layer import LayerPass, embedding_kernels, head_kernels, padded_vocab_size

# A virtual stage: one model chunk on one pipeline rank, and its work outside layers.


@lru_cache(maxsize=512)
def _held_by_layer(part: LayerSlice) -> Held:
    """Parameters of a layer on one rank."""
    routed = routed_parameters(part)
    return Held(stage_parameters(part, 1, first=False, last=False) - routed, routed)


@dataclass(frozen=True)
class VirtualStage:
    """One model chunk on one pipeline rank."""

    number: int
    num_stages: int
    rank: int
    """Its pipeline rank."""
    first_layer: int
    """Index of its first layer in the model."""
    group: TensorGroup
    layers: tuple[Layer, ...]
    next_ranks: RankGroup | None
    previous_ranks: RankGroup | None
    head_positions: int
    waits: bool = False
    """Whether its passes begin with a wait of the host."""
    shards: Shards | None = None
    """The shards if parameters are sharded over replicas (ZeRO 3)."""

    @property
    def first(self) -> bool:
        """Whether it is the first stage, with the embedding."""
        return self.number == 0

    @property
    def last(self) -> bool:
        """Whether it is the last stage, with LM head and loss."""
        return self.number == self.num_stages - 1

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def held_by(self, layers: range) -> Held:
        """Parameters of some of its layers, by their indices in the stage."""
        return sum((_held_by_layer(self.layers[layer].group.part) for layer in layers), Held())

    @property
    def largest_layer(self) -> float:
        """Parameters of its largest layer, by which buckets are filled."""
        return max((_held_by_layer(layer.group.part).rest for layer in self.layers), default=0.0)

    @property
    def embedding_and_head(self) -> Held:
        """Parameters of embedding and LM head, if it has them."""
        return Held(stage_parameters(self.group.part, 0, first=self.first, last=self.last))

    @property
    def empty(self) -> bool:
        """Whether it has no weights and only passes tensors on."""
        return not (self.num_layers or self.first or self.last)

    @property
    def hidden(self) -> TensorClass:
        return TensorClass("hidden", self.group.part.activation_bytes)


def embedding_work(stage: VirtualStage, which: Literal["forward", "backward"]) -> Work:
    """The embedding lookup of one micro-batch, or the gradient of the word and position tables."""
    made = stage.hidden if which == "forward" else TensorClass("table_gradient", 0.0)
    return compute_work(f"embedding.{which}", which, embedding_kernels(stage.group.part, which), (made,))


def head_work(stage: VirtualStage, which: LayerPass) -> Work:
    """LM head and loss in one pass; input gradients come with the inputs of the weight gradient."""
    part = stage.group.part
    positions = stage.head_positions
    kept = TensorClass("weight_inputs", head_weight_input_bytes(part, positions))
    made = {
        "forward": (TensorClass("logits", 0.0),),
        "backward": (stage.hidden,),
        "dgrad": (stage.hidden, kept),
        "wgrad": (TensorClass("weight_gradient", 0.0),),
    }[which]
    category = "forward" if which == "forward" else "backward"
    return compute_work(f"head.{which}", category, head_kernels(part, positions, which), made)


def pass_work(stage: VirtualStage) -> Work:
    """The start of a pass: the host runs the schedule and waits for the tensor."""
    return Work(
        WAIT_OF_HOST,
        Kind.COMP,
        "stage.hand_on",
        "pipeline_communication",
        comm_bytes=stage.group.part.activation_bytes / stage.group.ranks.size,
        writes=(stage.hidden,),
    )


def transfer_work(stage: VirtualStage, ranks: RankGroup) -> Work:
    """Send of a hidden activation to the next pipeline rank; each tensor peer sends its share."""
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
    """Bytes reduced over vocabulary shards: maximum, target and sum of exponentials per token, in fp32."""
    return 3 * 4.0 * stage.group.part.micro_batch_size * stage.head_positions


def tied_embedding_work(first: TensorGroup, ranks: RankGroup, grad_bytes: float) -> Work:
    """Sum of the gradients of a tied embedding over the first and last stage."""
    rows = padded_vocab_size(first.part.model, first.part.tensor) / first.part.tensor
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


def forward_template(
    builder: GraphBuilder, stage: VirtualStage, gathered: Replicas | None = None
) -> Template:
    """Forward of one micro-batch through one virtual stage.

    It begins with the gathers of parameters that its replicas updated in the step before, if they are given.
    """
    template = builder.template()
    group = stage.group
    shards = stage.shards
    root = shards.gather(template, shards.root, [], EMBEDDING_AND_HEAD) if shards else []
    arrived = _gathers(template, stage, gathered) if gathered else {}
    root += arrived.pop(EMBEDDING_AND_HEAD, [])
    if stage.first:
        hidden = template.task(embedding_work(stage, "forward"), group.compute, root, block=EMBEDDING).tensor
        hidden = group.all_reduce(template, hidden, EMBEDDED)
    else:
        hidden = _receive(template, stage, "activation")
    hidden = _begin(template, stage, hidden)
    done: list[int] = []
    for number, layer in enumerate(stage.layers):
        block = stage.first_layer + number
        weights = arrived.get(block, [])
        if shards:
            weights = shards.gather_forward(template, done, block)
        if layer.attention.part.kind.mtp and not stage.first:
            weights = [*weights, *root]  # its own loss is behind the LM head
        hidden, saved = layer.forward(template, hidden, weights, block=block)
        template.output(f"saved{number}", saved)
        done.append(hidden)
    if stage.last:
        logits = template.task(head_work(stage, "forward"), group.compute, [hidden, *root], block=HEAD).tensor
        template.output("logits", group.all_reduce(template, logits, n_bytes=softmax_sum_bytes(stage)))
    else:
        _send(template, stage, "activation", hidden)
    return template


def _gathers(template: Template, stage: VirtualStage, replicas: Replicas) -> dict[int, list[int]]:
    """Gathers the parameters of a stage in the order of their use; the tensors of each layer by its block."""
    count = stage.num_layers
    stream = replicas.stream
    arrived = dict[int, list[int]]()
    per_bucket = replicas.layers_per_bucket(stage.largest_layer)

    def ends(block: int) -> None:
        works = replicas.gather_works(stage.embedding_and_head)
        arrived[EMBEDDING_AND_HEAD] = [template.task(work, stream, block=block).tensor for work in works]

    if stage.first:
        ends(EMBEDDING_AND_HEAD if stage.last else EMBEDDING)
    for layer in range(0, count, per_bucket):
        size = min(per_bucket, count - layer)
        block = stage.first_layer + layer
        works = replicas.gather_works(stage.held_by(range(layer, layer + size)), size)
        tensors = [template.task(work, stream, block=block).tensor for work in works]
        arrived |= {block + number: [tensor + number for tensor in tensors] for number in range(size)}
    if stage.last and not stage.first:
        ends(HEAD)
    return arrived


@dataclass(frozen=True)
class Reduction:
    """Reduces the gradients of a virtual stage over replicas as soon as a bucket is complete.

    Reductions therefore overlap with the backward of earlier layers.
    """

    of_layers: Callable[[range], Sequence[Work]]
    """The reduction of some layers of the stage at once."""
    stream: str
    embedding_and_head: Sequence[Work] = ()
    """The reduction of embedding and LM head, if it is in every micro-batch (ZeRO 2)."""
    in_flight: int | None = None
    """Layers whose unsharded gradients fit in the buffers; None: all."""
    follows: bool = False
    """An earlier pass on this rank may still be reducing from the same buffers."""
    per_bucket: int = 1
    """Layers that fill a bucket."""

    def emit_bucket(self, template: Template, stage: VirtualStage, gradients: Sequence[int]) -> list[int]:
        """Reduce a bucket if the latest gradient completes it.

        `gradients` are those of the stage's layers so far, from the last layer on.
        """
        layer = stage.num_layers - len(gradients)
        count = (len(gradients) - 1) % self.per_bucket + 1
        if layer and count < self.per_bucket:
            return []
        block = stage.first_layer + layer
        reduced = self.emit(template, self.of_layers(range(layer, layer + count)), gradients[-count:], block)
        for number in range(layer, layer + count):
            template.output(f"reduced{number}", reduced)
        return [reduced]

    def emit(self, template: Template, works: Sequence[Work], reads: Sequence[int], block: int) -> int:
        """Reduce gradients by works that follow one another; the last tensor."""
        for work in works:
            reads = [template.task(work, self.stream, reads, block=block).tensor]
        return reads[-1]

    def room(self, template: Template, reduced: list[int]) -> list[int]:
        """The reduction, here or in the earlier pass, that frees the buffer of the next layer's gradient."""
        if self.in_flight is None:
            return []
        earlier = self.in_flight - len(reduced)
        if earlier > 0:
            return [template.port(f"freed{earlier}")] if self.follows else []
        return [template.writer(reduced[-self.in_flight])]

    def room_of_embedding_and_head(self, template: Template) -> list[int]:
        """The last reduction of the earlier pass, which frees the buffers of embedding and LM head."""
        return [template.port("freed0")] if self.follows and self.embedding_and_head else []

    def leave(self, template: Template, reduced: list[int]) -> None:
        """Output the reductions that free buffers for the next pass: `freed0` is the last of all.

        `freed{i}` is that of the i-th layer from the end, or the last of all in a pass with fewer layers.
        """
        if self.in_flight is None:
            return
        ends = template.outputs.get("reduced_embedding_and_head")
        last = [*reduced, *([] if ends is None else [ends])]
        if not last:
            return
        template.output("freed0", last[-1])
        for earlier in range(1, self.in_flight + 1):
            tensor = reduced[-earlier] if earlier <= len(reduced) else last[-1]
            template.output(f"freed{earlier}", tensor)


def backward_template(
    builder: GraphBuilder, stage: VirtualStage, reduction: Reduction | None = None
) -> Template:
    """Backward of one micro-batch through one virtual stage, including weight gradients."""
    template = builder.template()
    group = stage.group
    shards = stage.shards
    count = stage.num_layers
    if stage.last:
        logits = [template.port("logits")]
        room = reduction.room_of_embedding_and_head(template) if reduction else []
        gradient = template.task(head_work(stage, "backward"), group.compute, logits, room, block=HEAD).tensor
        gradient = group.all_reduce(template, gradient, FROM_HEAD)
    else:
        gradient = _receive(template, stage, "gradient")
    gradient = _begin(template, stage, gradient)
    gradients: list[int] = []
    reduced: list[int] = []
    block = stage.first_layer + count - 1
    ahead = shards.gather_backward(template, count - 1, count, block) if shards and count else []
    for layer in reversed(range(count)):
        block = stage.first_layer + layer
        weights = ahead
        ahead = []
        if shards and layer:
            ahead = shards.gather_backward(template, layer - 1, count, block - 1)
        saved = template.port(f"saved{layer}")
        room = reduction.room(template, reduced) if reduction else []
        gradient, _ = stage.layers[layer].backward(
            template, "backward", gradient, saved, weights, room, block=block
        )
        if reduction is not None:
            gradients.append(gradient)
            reduced += reduction.emit_bucket(template, stage, gradients)
        if shards:
            template.output(
                f"reduced{layer}", shards.scatter(template, shards.layers[layer], gradient, block)
            )
    gradient = _complete(template, stage, gradient, [gradient], reduction, reduced)
    if shards:
        scattered = shards.scatter(template, shards.root, gradient, EMBEDDING_AND_HEAD)
        template.output("weight_gradients", scattered)
    if not stage.first:
        _send(template, stage, "gradient", gradient)
    return template


def _complete(
    template: Template,
    stage: VirtualStage,
    gradient: int,
    inputs: Sequence[int],
    reduction: Reduction | None,
    reduced: list[int],
) -> int:
    """End the pass with all weight gradients: that of the embedding from its `inputs`, and the reductions."""
    if stage.first:
        room = reduction.room_of_embedding_and_head(template) if reduction else []
        table = embedding_work(stage, "backward")
        gradient = template.task(table, stage.group.compute, inputs, room, block=EMBEDDING).tensor
    if not stage.empty:
        template.output("weight_gradients", gradient)
        if reduction is not None:
            if works := reduction.embedding_and_head:
                ends = reduction.emit(template, works, [gradient], EMBEDDING_AND_HEAD)
                template.output("reduced_embedding_and_head", ends)
            reduction.leave(template, reduced)
    return gradient


def dgrad_template(builder: GraphBuilder, stage: VirtualStage) -> Template:
    """Backward of one micro-batch without weight gradients, which the previous stage waits for."""
    template = builder.template()
    group = stage.group
    if stage.last:
        logits = [template.port("logits")]
        head = template.task(head_work(stage, "dgrad"), group.compute, logits, block=HEAD).tensor
        template.output("head_inputs", head + 1)
        gradient = group.all_reduce(template, head, FROM_HEAD)
        if group.ranks.size > 1:
            template.output("head_sum", gradient)
    else:
        gradient = _receive(template, stage, "gradient")
    gradient = _begin(template, stage, gradient)
    for layer in reversed(range(stage.num_layers)):
        saved = template.port(f"saved{layer}")
        block = stage.first_layer + layer
        gradient, inputs = stage.layers[layer].backward(template, "dgrad", gradient, saved, block=block)
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
    """Weight gradients of one micro-batch on one virtual stage, in the order of the backward."""
    template = builder.template()
    group = stage.group
    gradient = -1
    if stage.last:
        inputs_of_head = [template.port("head_inputs")]
        if group.ranks.size > 1:
            inputs_of_head.append(template.port("head_sum"))
        room = reduction.room_of_embedding_and_head(template) if reduction else []
        gradient = template.task(
            head_work(stage, "wgrad"), group.compute, inputs_of_head, room, block=HEAD
        ).tensor
    gradients: list[int] = []
    reduced: list[int] = []
    for layer in reversed(range(stage.num_layers)):
        names = WeightInputs._fields if group.ranks.size > 1 else WeightInputs._fields[:2]
        inputs = WeightInputs(*(template.port(f"{name}{layer}") for name in names))
        room = reduction.room(template, reduced) if reduction else []
        block = stage.first_layer + layer
        gradient = stage.layers[layer].wgrad(template, inputs, room, block=block)
        if reduction is not None:
            gradients.append(gradient)
            reduced += reduction.emit_bucket(template, stage, gradients)
    inputs_of_table = [template.port("embedding_inputs")] if stage.first else []
    _complete(template, stage, gradient, inputs_of_table, reduction, reduced)
    return template


def _begin(template: Template, stage: VirtualStage, tensor: int) -> int:
    """The tensor with which a pass begins, once the host is ready."""
    if not stage.waits:
        return tensor
    return template.task(pass_work(stage), stage.group.compute, [tensor]).tensor


def _receive(template: Template, stage: VirtualStage, name: str) -> int:
    """The tensor from the neighbour, all-gathered where each tensor peer got a share."""
    received = template.port(name)
    sent_across = stage.previous_ranks if name == "activation" else stage.next_ranks
    if sent_across is None or stage.group.part.sequence_parallel:
        return received
    return stage.group.all_gather(template, received)


def _send(template: Template, stage: VirtualStage, name: str, tensor: int) -> None:
    """Pass an activation to the next stage or a gradient to the previous one; a send if ranks differ."""
    forward = name == "activation"
    ranks = stage.next_ranks if forward else stage.previous_ranks
    if ranks is not None:
        stream = f"{stage.group.device}/send-{'next' if forward else 'previous'}"
        tensor = template.task(transfer_work(stage, ranks), stream, [tensor]).tensor
    template.output(name, _own(template, stage, tensor))


def _own(template: Template, stage: VirtualStage, tensor: int) -> int:
    """The tensor, copied if it is a port, since outputs must be written by this template."""
    if not isinstance(tensor, Port):
        return tensor
    work = compute_work("stage.hand_on", "forward", (), (stage.hidden,))  # no compute
    return template.task(work, stage.group.compute, [tensor]).tensor
