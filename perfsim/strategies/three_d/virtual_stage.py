"""A virtual stage: one model chunk on one pipeline rank, and its work outside layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from perfsim import transformer
from perfsim.costs.memory import routed_parameters, stage_parameters
from perfsim.graph import WAIT_OF_HOST, Kind, RankGroup, TensorClass, Work
from perfsim.strategies.three_d.data import Held
from perfsim.strategies.three_d.halves import compute_work
from perfsim.strategies.three_d.layer import Layer
from perfsim.strategies.three_d.tensor import TensorGroup
from perfsim.strategies.three_d.zero import Shards
from perfsim.transformer import LayerSlice


@lru_cache(maxsize=512)
def held_by_layer(part: LayerSlice) -> Held:
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
        """Number of its layers."""
        return len(self.layers)

    def held_by(self, layers: range) -> Held:
        """Parameters of some of its layers, by their indices in the stage."""
        return sum((held_by_layer(self.layers[layer].group.part) for layer in layers), Held())

    @property
    def largest_layer(self) -> float:
        """Parameters of its largest layer, by which buckets are filled."""
        return max((held_by_layer(layer.group.part).rest for layer in self.layers), default=0.0)

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
        """The hidden activation between layers."""
        return TensorClass("hidden", self.group.part.activation_bytes)


def embedding_work(stage: VirtualStage) -> Work:
    """Embedding lookup of one micro-batch."""
    kernels = transformer.embedding_forward(stage.group.part)
    return compute_work("embedding.forward", "forward", kernels, (stage.hidden,))


def embedding_backward_work(stage: VirtualStage) -> Work:
    """Gradient of the word and position tables."""
    kernels = transformer.embedding_backward(stage.group.part)
    return compute_work("embedding.backward", "backward", kernels, (TensorClass("table_gradient", 0.0),))


def head_work(stage: VirtualStage) -> Work:
    """LM head and loss."""
    kernels = transformer.head_forward(stage.group.part, stage.head_positions)
    return compute_work("head.forward", "forward", kernels, (TensorClass("logits", 0.0),))


def head_backward_work(stage: VirtualStage) -> Work:
    """Backward of loss and LM head."""
    kernels = transformer.head_backward(stage.group.part, stage.head_positions)
    return compute_work("head.backward", "backward", kernels, (stage.hidden,))


def head_dgrad_work(stage: VirtualStage) -> Work:
    """Input gradient of loss and LM head, with the inputs of its weight gradient."""
    part, positions = stage.group.part, stage.head_positions
    kept = TensorClass("weight_inputs", transformer.head_weight_input_bytes(part, positions))
    return compute_work(
        "head.dgrad", "backward", transformer.head_dgrad(part, positions), (stage.hidden, kept)
    )


def head_wgrad_work(stage: VirtualStage) -> Work:
    """Weight gradient of the LM head."""
    kernels = transformer.head_wgrad(stage.group.part, stage.head_positions)
    return compute_work("head.wgrad", "backward", kernels, (TensorClass("weight_gradient", 0.0),))


def hand_on_work(stage: VirtualStage) -> Work:
    """No compute: a stage without layers passes on its input within its rank."""
    return compute_work("stage.hand_on", "forward", (), (stage.hidden,))


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
