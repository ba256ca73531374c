"""What is trained and how: model, recipe, and the two together as a job.

Field names are Megatron's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, PositiveInt, model_validator

from perfsim.calibration import FrameworkCalibration
from perfsim.hardware import Precision
from perfsim.sizes import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_SEQUENCES,
    MOST_VOCABULARY,
    MOST_WIDTH,
)
from perfsim.spec import CatalogSpec
from perfsim.units import Bytes

Layers = Annotated[PositiveInt, Field(le=MOST_LAYERS)]
Width = Annotated[PositiveInt, Field(le=MOST_WIDTH)]
Heads = Annotated[PositiveInt, Field(le=MOST_HEADS)]
Vocabulary = Annotated[PositiveInt, Field(le=MOST_VOCABULARY)]
Positions = Annotated[PositiveInt, Field(le=MOST_POSITIONS)]
Sequences = Annotated[PositiveInt, Field(le=MOST_SEQUENCES)]
Recompute = Literal["none", "selective", "full"]
Attention = Literal["standard", "flash"]


class TransformerConfig(CatalogSpec):
    """A decoder (or encoder) stack of identical layers between an embedding and a head."""

    num_layers: Layers
    hidden_size: Width
    num_attention_heads: Heads
    ffn_hidden_size: Width
    vocab_size: Vocabulary
    max_position_embeddings: Positions
    num_query_groups: Heads | None = None
    """Key and value heads; None: as many as query heads."""
    gated_mlp: bool = False
    tied_embeddings: bool = True
    head_bias: bool = False
    bias: bool = True
    attention_bias: bool | None = None
    """Biases of the attention's linears; None: as `bias`."""
    norms_per_layer: Literal[1, 2] = 2
    """1: attention and MLP read one normalised input, side by side (GPT-J)."""
    causal: bool = True
    """A position sees only what stands before it; false for an encoder."""
    position_embedding: Literal["learned", "rotary", "alibi", "none"] = "learned"

    @model_validator(mode="after")
    def _heads_divide(self) -> TransformerConfig:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.num_attention_heads % self.query_groups:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_query_groups {self.query_groups}"
            )
        return self

    def __hash__(self) -> int:
        """By shape: kernels and prices of a model are remembered under it."""
        return hash((self.name, self.num_layers, self.hidden_size, self.ffn_hidden_size, self.vocab_size))

    @property
    def query_groups(self) -> int:
        return self.num_query_groups or self.num_attention_heads

    @property
    def has_attention_bias(self) -> bool:
        return self.bias if self.attention_bias is None else self.attention_bias

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads


class TrainingRecipe(CatalogSpec):
    """How a model is trained: precision, optimizer, lengths, and what ends the run."""

    seq_length: Positions
    precision: Precision = "bf16"
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    global_batch_size: Sequences | None = None
    """Sequences over all devices; None: the study chooses."""
    batch_size_per_device: PositiveInt | None = None
    """Sequences on each device, so that the global batch grows with their number (weak scaling)."""
    attention: Attention = "standard"
    recompute: Recompute | Literal["auto"] = "auto"
    """auto: the planner chooses the cheapest mode that fits."""
    overlap_grad_reduce: bool = False
    grad_bucket: Bytes | None = None
    """Gradients that are reduced at once where that overlaps: whole layers, as many as fill it; None: one."""
    reduce_precision: Precision | None = None
    """Precision of gradients on the wire; None: fp32 main gradients (Megatron mixed precision)."""
    dropout: bool = True
    """Attention and residual dropout, which cost a pass over memory and keep their masks."""
    host_blocking: bool = False
    """The host waits for every kernel (CUDA_LAUNCH_BLOCKING)."""
    lm_head_positions: Positions | None = None
    """Positions of each sequence that reach the language-model head; None: all."""
    tokens: Annotated[float, Field(gt=0)] | None = None
    """D_min: tokens to the target in the limit of small batches."""
    tokens_per_parameter: Annotated[float, Field(gt=0)] | None = None
    """The same as a multiple of the model's parameters (20: Chinchilla)."""
    target_loss: Annotated[float, Field(gt=0)] | None = None
    """Nats a token; turned into `tokens` by a loss law."""
    framework: FrameworkCalibration | None = None
    """What the training framework's host side costs; needed on GPUs."""
    software_release: str | None = None
    """Release of a wafer cluster's software; None: the system's. peak: an upper bound, never observed."""
    weight_sparsity: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the weights of the layers' matrices that are zero, anywhere; wafers skip them."""

    @model_validator(mode="after")
    def _one_of_each(self) -> TrainingRecipe:
        for one, other in (
            ("global_batch_size", "batch_size_per_device"),
            ("tokens", "tokens_per_parameter"),
        ):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ValueError(f"{one} and {other} say the same thing twice: write one of them")
        return self

    def __hash__(self) -> int:
        """By what decides the work: passages of a recipe are remembered under it."""
        return hash((self.name, self.seq_length, self.precision, self.optimizer, self.attention))

    def batch_over(self, num_devices: int) -> int | None:
        """Sequences a step over so many devices, where the recipe says."""
        if self.batch_size_per_device is not None:
            return self.batch_size_per_device * num_devices
        return self.global_batch_size


@dataclass(frozen=True, slots=True)
class Job:
    """One model trained by one recipe with a chosen global batch (sequences, all devices)."""

    model: TransformerConfig
    recipe: TrainingRecipe
    global_batch_size: int

    @property
    def seq_length(self) -> int:
        return self.recipe.seq_length

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.recipe.seq_length


class Layout(Protocol):
    """How a job is divided over devices: what all kinds of layout have in common.

    `tensor` ranks compute each layer together, a batch passes `pipeline` ranks one after another, and
    `data` replicas train on their own share of the batch.
    """

    @property
    def tensor(self) -> int: ...

    @property
    def pipeline(self) -> int: ...

    @property
    def data(self) -> int: ...

    @property
    def zero_stage(self) -> int:
        """How much of the training state the replicas share between them [1910.02054]; 0: nothing."""

    @property
    def micro_batch_size(self) -> int: ...

    @property
    def recompute(self) -> Recompute: ...

    @property
    def num_devices(self) -> int: ...

    @property
    def short(self) -> str:
        """One line, as people say it: `tp8 pp4 dp4 mbs1 recompute full`."""

    def as_dict(self, num_microbatches: int) -> dict[str, Any]:
        """Its fields by the names of the JSON interface."""


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """A layout on GPUs: degrees, schedule, micro-batch and memory mode, all named as in YAML.

    Ranks: tensor innermost, then data, then pipeline; consecutive ranks fill a node.
    `layers_per_stage` has one entry per virtual stage in the order of the data; None: even.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    virtual_pipeline: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 0
    schedule: str = "1f1b"
    micro_batch_size: int = 1
    recompute: Recompute = "none"
    layers_per_stage: tuple[int, ...] | None = None

    @property
    def num_devices(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def num_stages(self) -> int:
        return self.pipeline * self.virtual_pipeline

    @property
    def short(self) -> str:
        """`tp8 pp4 dp4 mbs1`, with the schedule where that is not 1F1B."""
        degrees = f"tp{self.tensor} pp{self.pipeline} dp{self.data} mbs{self.micro_batch_size}"
        how = "" if self.schedule == "1f1b" else f" {self.schedule}"
        chunks = f" vpp{self.virtual_pipeline}" if self.schedule == "interleaved" else ""
        sharded = f" zero{self.zero_stage}" if self.zero_stage > 1 else ""
        return f"{degrees}{how}{chunks}{sharded} recompute {self.recompute}"

    def as_dict(self, num_microbatches: int) -> dict[str, Any]:
        """Its fields by the names of the JSON interface."""
        return {
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "data": self.data,
            "micro_batch_size": self.micro_batch_size,
            "num_microbatches": num_microbatches,
            "recompute": self.recompute,
            "virtual_pipeline": self.virtual_pipeline,
            "sequence_parallel": self.sequence_parallel,
            "zero_stage": self.zero_stage,
            "schedule": self.schedule,
            "layers_per_stage": None if self.layers_per_stage is None else list(self.layers_per_stage),
        }


@dataclass(frozen=True, slots=True)
class StreamingLayout:
    """A layout of weight streaming: every system computes whole layers on its share of the batch.

    `data` counts systems. `recompute_layers` is the number of layers whose activations are recomputed
    together (0: all are kept), `spill` keeps activations on activation servers instead of the device, and
    `stream_chunks` is the number of pieces in which a layer streams (1: as a whole).
    """

    data: int = 1
    micro_batch_size: int = 1
    recompute: Recompute = "none"
    recompute_layers: int = 0
    spill: bool = False
    stream_chunks: int = 1

    @property
    def tensor(self) -> int:
        return 1

    @property
    def pipeline(self) -> int:
        return 1

    @property
    def zero_stage(self) -> int:
        """0: the systems hold no state that they could share."""
        return 0

    @property
    def num_devices(self) -> int:
        return self.data

    @property
    def short(self) -> str:
        """`dp4 mbs90 recompute full`."""
        return f"dp{self.data} mbs{self.micro_batch_size} recompute {self.recompute}"

    def as_dict(self, num_microbatches: int) -> dict[str, Any]:
        """Its fields by the names of the JSON interface."""
        chunks = {"stream_chunks": self.stream_chunks} if self.stream_chunks > 1 else {}
        return {
            "data": self.data,
            "micro_batch_size": self.micro_batch_size,
            "num_microbatches": num_microbatches,
            "recompute": self.recompute,
            "recompute_layers": self.recompute_layers,
            "spill": self.spill,
            **chunks,
        }
