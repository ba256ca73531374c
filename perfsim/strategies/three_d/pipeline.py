"""Pipeline parallelism: one template per virtual stage and pass, stamped in the order of the schedule.

A stage receives a hidden activation, runs its layers forward and sends the result; the backward does the
same with gradients. The embedding is on the first virtual stage, LM head and loss are on the last. Where the
schedule splits the backward, weight gradients are a third pass that uses tensors saved by the second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from perfsim.costs.memory import routed_parameters, stage_parameters, state_bytes
from perfsim.strategies.three_d.data import GROUPS_STREAM, IN_FLIGHT, SHARDED, Held, Replicas, collective
from perfsim.strategies.three_d.layers import (
    EMBEDDED,
    FROM_HEAD,
    Backward,
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
from perfsim.work.builder import InBlock, Port
from perfsim.work.counts import head_weight_input_bytes, parameters
from perfsim.work.kernels import LayerSlice
from perfsim.work.layer import LayerPass, embedding_kernels, head_kernels, padded_vocab_size

# A virtual stage: one model chunk on one pipeline rank, and its work outside layers.


@lru_cache(maxsize=512)
def _held_by_layer(part: LayerSlice) -> Held:
    return Held(parameters(part.model).on_tensor_rank(part.kind, part.tensor), routed_parameters(part))


@dataclass(frozen=True)
class VirtualStage:
    """One model chunk on one pipeline rank."""

    number: int
    num_stages: int
    rank: int
    first_layer: int
    """Index of its first layer in the model."""
    group: TensorGroup
    layers: tuple[Layer, ...]
    next_ranks: RankGroup | None
    previous_ranks: RankGroup | None
    head_positions: int
    waits: bool = False
    """Whether its passes begin with a wait of the host."""

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
    def embedding_and_head(self) -> Held:
        return Held(stage_parameters(self.group.part, 0, self.first, self.last, apart=self.rank > 0))

    @property
    def empty(self) -> bool:
        """Whether it has no weights and only passes tensors on."""
        return not (self.num_layers or self.first or self.last)

    @property
    def hidden(self) -> TensorClass:
        return TensorClass("hidden", self.group.part.activation_bytes)

    # What the stage computes and sends outside layers.
    def embedding(self, which: Literal["forward", "backward"]) -> Work:
        """The embedding lookup of one micro-batch, or the gradient of the word and position tables."""
        made = self.hidden if which == "forward" else TensorClass("table_gradient", 0.0)
        return compute_work("embedding", which, embedding_kernels(self.group.part, which), made)

    def head(self, which: LayerPass) -> Work:
        """LM head and loss in one pass; input gradients come with the inputs of the weight gradient."""
        part = self.group.part
        positions = self.head_positions
        kept = TensorClass("weight_inputs", head_weight_input_bytes(part, positions))
        made = {
            "forward": (TensorClass("logits", 0.0),),
            "backward": (self.hidden,),
            "dgrad": (self.hidden, kept),
            "wgrad": (TensorClass("weight_gradient", 0.0),),
        }[which]
        return compute_work("head", which, head_kernels(part, positions, which), *made)

    @property
    def wait(self) -> Work:
        """The start of a pass: the host runs the schedule and waits for the tensor."""
        return self._handing_on(WAIT_OF_HOST, Kind.COMP, "stage.hand_on", None)

    def send(self, ranks: RankGroup) -> Work:
        """Send of a hidden activation to the next pipeline rank; each tensor peer sends its share."""
        return self._handing_on("pipeline.send", Kind.COMM_SEND, "send_recv", ranks)

    def tied_embedding(self, replicas: Replicas, last_rank: int) -> Work:
        """Sum of the gradients of an embedding over the first rank, with its replicas, and the last."""
        part = self.group.part
        rows = padded_vocab_size(part.model, part.tensor) / part.tensor
        shards = replicas.shards if replicas.shards_gradients else 1
        grad_bytes = state_bytes(replicas.recipe).reduced / shards
        made = TensorClass("table_gradient", rows * part.model.hidden_size * grad_bytes)
        ranks = RankGroup(0, last_rank * replicas.ranks.stride * replicas.size, 2)
        return collective("pipeline", "all_reduce", made.n_bytes, ranks, made, name="pipeline.tied_embedding")

    def _handing_on(self, name: str, kind: Kind, op: str, ranks: RankGroup | None) -> Work:
        return Work(
            name,
            kind,
            op,
            "pipeline_communication",
            comm_bytes=self.group.part.activation_bytes / self.group.ranks.size,
            group=ranks,
            writes=(self.hidden,),
        )


class StagePass:
    """Writes one pass of one micro-batch through one virtual stage, as a template.

    A pass that `reduces` completes the weight gradients and reduces them over replicas, as soon as a bucket
    is complete; where that overlaps, with the backward of earlier layers. It `follows` where an earlier pass
    on its rank may still be reducing from the same buffers.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        stage: VirtualStage,
        replicas: Replicas,
        *,
        reduces: bool = False,
        overlaps: bool = False,
        follows: bool = False,
    ) -> None:
        self.template = builder.template()
        self.stage = stage
        self.group = stage.group
        self.replicas = replicas
        self.sharded = replicas.zero_stage == SHARDED
        self.reduces = reduces or self.sharded
        self.stream = replicas.stream if overlaps or self.sharded else self.group.compute
        """The stream of reductions."""
        self.follows = follows
        largest = max((_held_by_layer(layer.group.part).rest for layer in stage.layers), default=0.0)
        self.per_bucket = replicas.layers_per_bucket(largest)
        self.in_flight = IN_FLIGHT if reduces and replicas.shards_gradients else None
        """Layers whose unsharded gradients fit in the buffers; None: all."""
        scatters = self.sharded or self.in_flight is not None
        self.reduces_ends = scatters and (stage.first or stage.last)
        """Whether embedding and LM head are reduced in every micro-batch (ZeRO 2 and 3)."""
        self.gradients: list[int] = []
        """Those of the stage's layers so far, from the last layer on."""
        self.reduced: list[int] = []

    def _compute(self, work: Work, reads: Sequence[int], block: int, after: Sequence[int] = ()) -> int:
        return self.template.task(work, self.group.compute, reads, after, block=block).tensor

    def forward(self, *, gathers: bool = False) -> Template:
        """The forward; it begins with the gathers of parameters that replicas updated, if it `gathers`."""
        template = self.template
        stage = self.stage
        root = self._gather(stage.embedding_and_head, EMBEDDING_AND_HEAD) if self.sharded else []
        arrived = self._gathers() if gathers else {}
        root += arrived.pop(EMBEDDING_AND_HEAD, [])
        if stage.first:
            hidden = self._compute(stage.embedding("forward"), root, EMBEDDING)
            hidden = self.group.write(template, hidden, self.group.all_reduce_works(EMBEDDED))
        else:
            hidden = self._receive("activation")
        hidden = self._begin(hidden)
        done: list[int] = []
        for number, layer in enumerate(stage.layers):
            block = stage.first_layer + number
            weights = arrived.get(block, [])
            if self.sharded:  # after the forward of the layer `IN_FLIGHT` before it
                after = [template.writer(done[-IN_FLIGHT])] if len(done) >= IN_FLIGHT else []
                weights = self._gather(stage.held_by(range(number, number + 1)), block, after)
            if layer.attention.part.kind.mtp and not stage.first:
                weights = [*weights, *root]  # its own loss is behind the LM head
            hidden, saved = layer.forward(InBlock(template, block), hidden, weights)
            template.output(f"saved{number}", saved)
            done.append(hidden)
        if stage.last:
            logits = self._compute(stage.head("forward"), [hidden, *root], HEAD)
            sums = self.group.softmax_works(stage.head_positions)
            template.output("logits", self.group.write(template, logits, sums))
        else:
            self._send("activation", hidden)
        return template

    def _gathers(self) -> dict[int, list[int]]:
        """Gathers the stage's parameters in the order of their use; tensors of each layer by its block."""
        stage = self.stage
        arrived = dict[int, list[int]]()
        if stage.first:
            block = EMBEDDING_AND_HEAD if stage.last else EMBEDDING
            arrived[EMBEDDING_AND_HEAD] = self._gather(stage.embedding_and_head, block)
        for layer in range(0, stage.num_layers, self.per_bucket):
            size = min(self.per_bucket, stage.num_layers - layer)
            block = stage.first_layer + layer
            tensors = self._gather(stage.held_by(range(layer, layer + size)), block, count=size)
            arrived |= {block + number: [tensor + number for tensor in tensors] for number in range(size)}
        if stage.last and not stage.first:
            arrived[EMBEDDING_AND_HEAD] = self._gather(stage.embedding_and_head, HEAD)
        return arrived

    def backward(self, which: Backward = "backward") -> Template:
        """The backward with weight gradients, or only what the previous stage waits for (`dgrad`)."""
        template = self.template
        stage = self.stage
        split = which == "dgrad"
        if stage.last:
            room = self._room_of_embedding_and_head()
            head = self._compute(stage.head(which), [template.port("logits")], HEAD, room)
            gradient = self.group.write(template, head, self.group.all_reduce_works(FROM_HEAD))
            if split:
                template.output("head_inputs", head + 1)
                if self.group.ranks.size > 1:
                    template.output("head_sum", gradient)
        else:
            gradient = self._receive("gradient")
        gradient = self._begin(gradient)
        ahead = self._gather_backward(stage.num_layers - 1)
        for layer in reversed(range(stage.num_layers)):
            weights = ahead
            ahead = self._gather_backward(layer - 1)
            at = InBlock(template, stage.first_layer + layer)
            reads = [gradient, template.port(f"saved{layer}"), *weights]
            gradient, inputs = stage.layers[layer].backward(at, which, reads, self._room())
            if split:
                for name, tensor in inputs._asdict().items():
                    if tensor is not None:
                        template.output(f"{name}{layer}", tensor)
            else:
                self._reduce(gradient)
        if not split:
            gradient = self._complete(gradient, [gradient])
        if not stage.first:
            self._send("gradient", gradient)
        elif split:
            template.output("embedding_inputs", self._own(gradient))
        return template

    def wgrad(self) -> Template:
        """Weight gradients, in the order of the backward."""
        template = self.template
        stage = self.stage
        summed = self.group.ranks.size > 1
        gradient = -1
        if stage.last:
            inputs_of_head = [template.port(name) for name in ("head_inputs", "head_sum")[: 1 + summed]]
            room = self._room_of_embedding_and_head()
            gradient = self._compute(stage.head("wgrad"), inputs_of_head, HEAD, room)
        for layer in reversed(range(stage.num_layers)):
            names = WeightInputs._fields if summed else WeightInputs._fields[:2]
            inputs = WeightInputs(*(template.port(f"{name}{layer}") for name in names))
            at = InBlock(template, stage.first_layer + layer)
            gradient = stage.layers[layer].wgrad(at, inputs, self._room())
            self._reduce(gradient)
        self._complete(gradient, [template.port("embedding_inputs")] if stage.first else [])
        return template

    def _reduce(self, gradient: int) -> None:
        """Reduce a bucket if the gradient of a layer completes it."""
        if not self.reduces:
            return
        stage = self.stage
        self.gradients.append(gradient)
        layer = stage.num_layers - len(self.gradients)
        count = (len(self.gradients) - 1) % self.per_bucket + 1
        if layer and count < self.per_bucket:
            return
        works = self.replicas.reduce_works(stage.held_by(range(layer, layer + count)))
        reduced = self._emit(works, self.gradients[-count:], stage.first_layer + layer)
        for number in range(layer, layer + count):
            self.template.output(f"reduced{number}", reduced)
        self.reduced.append(reduced)

    def _emit(self, works: Sequence[Work], reads: Sequence[int], block: int) -> int:
        """Reduce gradients by works that follow one another; the last tensor."""
        for work in works:
            stream = self.stream
            if self.sharded and work.op == "all_reduce":  # next to the gathers of the next layers
                stream = f"{self.replicas.device}/{GROUPS_STREAM}"
            reads = [self.template.task(work, stream, reads, block=block).tensor]
        return reads[-1]

    def _room(self) -> list[int]:
        """The reduction, here or in the earlier pass, that frees the buffer of the next layer's gradient."""
        if self.in_flight is None:
            # The host waits for the bucket before the one whose reduction it began.
            waits = self.replicas.has_owners and len(self.reduced) > 1
            return [self.template.writer(self.reduced[-2])] if waits else []
        earlier = self.in_flight - len(self.reduced)
        if earlier > 0:
            return [self.template.port(f"freed{earlier}")] if self.follows else []
        return [self.template.writer(self.reduced[-self.in_flight])]

    def _room_of_embedding_and_head(self) -> list[int]:
        """The last reduction of the earlier pass, which frees the buffers of embedding and LM head."""
        return [self.template.port("freed0")] if self.follows and self.reduces_ends else []

    def _complete(self, gradient: int, inputs: Sequence[int]) -> int:
        """End the pass with all weight gradients, the embedding's from its `inputs`, and with reductions.

        It outputs the reductions that free buffers for the next pass: `freed0` is the last of all, `freed{i}`
        the last of the i-th layer from the end, or the last of all in a pass with fewer layers.
        """
        stage = self.stage
        if stage.first:
            room = self._room_of_embedding_and_head()
            gradient = self._compute(stage.embedding("backward"), inputs, EMBEDDING, room)
        if stage.empty:
            return gradient
        self.template.output("weight_gradients", gradient)
        last = list(self.reduced)
        if self.reduces_ends:
            works = self.replicas.reduce_works(stage.embedding_and_head)
            last.append(self._emit(works, [gradient], EMBEDDING_AND_HEAD))
            self.template.output("reduced_embedding_and_head", last[-1])
        if self.in_flight is not None and last:
            self.template.output("freed0", last[-1])
            for earlier in range(1, self.in_flight + 1):
                tensor = self.reduced[-earlier] if earlier <= len(self.reduced) else last[-1]
                self.template.output(f"freed{earlier}", tensor)
        return gradient

    # Every rank holds a shard of each layer [1910.02054, 2304.11277]. A layer is all-gathered before its
    # forward and again before its backward, its gradients are reduce-scattered after it, and at most two
    # layers are unsharded at once. One communication stream runs both, in the order in which the host issues
    # them: the next layer's gather before this layer's reduction (backward prefetch).
    def _gather_backward(self, layer: int) -> list[int]:
        """All-gather one layer while the layer after it runs backward; nothing where it is not sharded.

        The first `IN_FLIGHT` gathers wait for the forward of the layers that were unsharded last. Later
        gathers follow, on the same stream, the reduce-scatter of the layer whose memory they take.
        """
        stage = self.stage
        if not self.sharded or layer < 0:
            return []
        freed = 2 * stage.num_layers - IN_FLIGHT - 1 - layer
        after: list[int] = [self.template.port(f"saved{freed}")] if 0 <= freed < stage.num_layers else []
        return self._gather(stage.held_by(range(layer, layer + 1)), stage.first_layer + layer, after)

    def _gather(self, held: Held, block: int, after: Sequence[int] = (), count: int = 1) -> list[int]:
        """All-gather some parameters, as `count` equal tensors of each group of ranks; the first of each."""
        works = self.replicas.gather_works(held, count)
        stream = self.replicas.stream
        return [self.template.task(work, stream, (), after, block=block).tensor for work in works]

    def _begin(self, tensor: int) -> int:
        """The tensor that a pass begins with, once the host is ready."""
        if not self.stage.waits:
            return tensor
        return self.template.task(self.stage.wait, self.group.compute, [tensor]).tensor

    def _receive(self, name: str) -> int:
        """The tensor from the neighbour, all-gathered where each tensor peer got a share."""
        received = self.template.port(name)
        sent_across = self.stage.previous_ranks if name == "activation" else self.stage.next_ranks
        if sent_across is None or self.group.part.sequence_parallel:
            return received
        return self.group.write(self.template, received, self.group.works("all_gather"))

    def _send(self, name: str, tensor: int) -> None:
        """Pass an activation to the next stage or a gradient to the previous one; a send if ranks differ."""
        forward = name == "activation"
        ranks = self.stage.next_ranks if forward else self.stage.previous_ranks
        if ranks is not None:
            stream = f"{self.group.device}/send-{'next' if forward else 'previous'}"
            tensor = self.template.task(self.stage.send(ranks), stream, [tensor]).tensor
        self.template.output(name, self._own(tensor))

    def _own(self, tensor: int) -> int:
        """The tensor, copied if it is a port, since outputs must be written by this template."""
        if not isinstance(tensor, Port):
            return tensor
        hand_on = "stage.hand_on"  # no compute
        work = Work(hand_on, Kind.COMP, hand_on, "forward", writes=(self.stage.hidden,))
        return self.template.task(work, self.group.compute, [tensor]).tensor
