"""Workloads: model, training recipe, job and layouts, with the field names of Megatron."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import model_validator

from perfsim.base.sizes import MOST_LAYERS, MOST_SEQUENCES
from perfsim.base.spec import CatalogSpec, Spec
from perfsim.base.units import number, quantity
from perfsim.specs.calibration import Dispatcher, FrameworkCalibration
from perfsim.specs.hardware import Precision, Release
from perfsim.specs.model import (
    Positions,
    Recompute,
    RecomputeKeeps,
    TransformerConfig,
)

Sequences = Annotated[int, *number(1, MOST_SEQUENCES)]
Attention = Literal["standard", "flash"]
ContextExchange = Literal["ring", "all_to_all"]
Place = Literal["none", "cpu", "nvme"]
"""Where offloaded states are: nowhere but on the device, in the memory of its host, or on its drives."""
PRECISION_BYTES: Mapping[Precision, float] = {
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_rowwise": 1.0,
    "fp8_block": 1.0 + 1 / 32,
    "mxfp8": 1.0 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}
"""Bytes of a number in memory and on the wire, with its share of the scales."""


class KernelPrecisions(Spec):
    """What runs in what: the precision of each kind of kernel."""

    forward: Precision
    """Forward products of the layers' weights."""
    input_gradient: Precision
    weight_gradient: Precision
    attention: Precision = "bf16"
    """The attention core, which has 16 bits under the usual 8-bit recipes."""
    head: Precision = "bf16"
    """The three products of the LM head."""

    def __hash__(self) -> int:
        """By value, because kernels are cached by it."""
        return hash((self.forward, self.input_gradient, self.weight_gradient, self.attention, self.head))


class TrainingRecipe(CatalogSpec):
    """How a model is trained: precision, optimizer, sequence length, batch, and the target of the run."""

    seq_length: Positions
    precision: Precision = "bf16"
    """Of matrix products; below 16 bits those of the layers, as Transformer Engine's recipes do."""
    kernels: KernelPrecisions | None = None
    """What runs in what, where it is not as `precision` says."""
    optimizer: Literal["adam", "adamw", "adam8bit", "muon", "sgd"] = "adam"
    """adam8bit: moments in 8 bits; muon: layers' matrices by their orthogonalised momentum, the rest by
    Adam."""
    global_batch_size: Sequences | None = None
    """Sequences over all devices; None: chosen by the study."""
    batch_size_per_device: Sequences | None = None
    """Sequences per device, so the global batch grows with the number of devices (weak scaling)."""
    attention: Attention = "standard"
    attention_length: Positions | None = None
    """Keys that fused attention computes for each position of unequal samples, with padding that
    its kernel does not skip; None: seq_length."""
    recompute: Recompute | Literal["auto"] = "auto"
    """auto: the planner chooses the fastest mode that fits."""
    recompute_keeps: RecomputeKeeps = "nothing"
    """Results that full recompute keeps besides each layer's input: qkv is MaxText's `save_qkv_proj`."""
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    """Whether ZeRO 1 and 2 gather the parameters of a bucket beside the first forward of those before it,
    instead of all of them after the update (Megatron-LM's `--overlap-param-gather`)."""
    dispatcher: Dispatcher | None = None
    """How rows travel to experts; None: as the framework usually does."""
    routing: Literal["balanced", "drawn"] = "drawn"
    """balanced: the run forces every expert to have equally many tokens; drawn: they differ, as usual."""
    routing_spread: Annotated[float, *number(0, 10)] = 0.03
    """Standard deviation of the logarithm of an expert's tokens over their mean.

    assumed: two published runs of Mixtral 8x22B, of which one forces balance, are 4.5 % apart with it.
    """
    grouped_products: bool = True
    """Whether the products of a rank's experts are one call; false: one call each."""
    expert_capacity: Annotated[float, *number(0.1, 1000)] | None = None
    """Most tokens of an expert over their mean, beyond which tokens are dropped; None: none is."""
    overlap_tensor: bool = False
    """Whether tensor-parallel communication overlaps the products of its tensors (user buffers of Transformer
    Engine, asynchronous tensor parallelism of PyTorch)."""
    grad_bucket: Annotated[float, *quantity("bytes", least=1.0)] | None = None
    """Size of a bucket of overlapped gradient reduction, in whole layers; None: one layer."""
    reduce_precision: Precision | None = None
    """Precision in which gradients are accumulated and reduced over replicas; None: fp32.

    bf16 is `--grad-reduce-in-bf16` of Megatron, fp16 its fp16 training without
    `--accumulate-allreduce-grads-in-fp32`.
    """
    optimizer_precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the optimizer's moments, and of its copies of narrower weights and gradients.

    bf16 with `reduce_precision: bf16` is pure bf16 training, which has no copies.
    """
    moment_precision: Literal["fp32", "bf16", "fp16"] | None = None
    """Precision of the optimizer's moments where it is not `optimizer_precision`; adam8bit has 8 bits.

    bf16 with copies in fp32 is what DeepSeek-V3 trains with [2412.19437 3.3.2].
    """
    dropout: bool = True
    """Attention and residual dropout, which take a pass over memory and store their masks."""
    fused_cross_entropy: bool = False
    """Loss and its gradient in one kernel each, on the logits as the LM head writes them.

    It is that of flash-attn (llm-foundry's default) and Megatron-LM's `--cross-entropy-loss-fusion`. False:
    passes in fp32, as in Megatron-LM of 2021 to 2023.
    """
    host_blocking: bool = False
    """Whether the host waits for every kernel (CUDA_LAUNCH_BLOCKING)."""
    lm_head_positions: Positions | None = None
    """Positions of each sequence that reach the LM head; None: all."""
    tokens: Annotated[float, *number(1, 1e18)] | None = None
    """D_min, the tokens to the target in the limit of small batches."""
    tokens_per_parameter: Annotated[float, *number(1e-6, 1e9)] | None = None
    """D_min as a multiple of the model's parameters (20: Chinchilla)."""
    target_loss: Annotated[float, *number(1e-3, 1e3)] | None = None
    """Nats per token; the loss law of the study converts it into `tokens`."""
    framework: FrameworkCalibration | None = None
    """Host-side costs of the training framework; required on GPUs."""
    software_release: Release | None = None
    """Software release of a wafer cluster; None: the system's. peak: an upper bound, never observed."""
    weight_sparsity: Annotated[float, *number(0, 0.999)] = 0.0
    """Share of unstructured zeros in the layers' weight matrices, which wafers skip."""

    @model_validator(mode="after")
    def _exclude_each_other(self) -> TrainingRecipe:
        for first, second in (
            ("global_batch_size", "batch_size_per_device"),
            ("tokens", "tokens_per_parameter"),
            ("tokens", "target_loss"),
            ("tokens_per_parameter", "target_loss"),
        ):
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ValueError(
                    f"{first} and {second} exclude each other: write only one of them "
                    f"(`{first}: null` removes an inherited one)"
                )
        if self.optimizer == "adam8bit" and self.moment_precision is not None:
            raise ValueError(
                "optimizer adam8bit and moment_precision exclude each other: its moments have 8 bits "
                "(`moment_precision: null` removes an inherited one)"
            )
        return self

    def __hash__(self) -> int:
        """By the fields that determine kernels, because these are cached by recipe."""
        return hash((self.name, self.seq_length, self.precision, self.optimizer, self.attention))

    @property
    def element_bytes(self) -> float:
        """Bytes of an activation or a weight: 4 in fp32 and tf32, else 2 (fp8 training holds 16 bits)."""
        return max(PRECISION_BYTES["bf16"], PRECISION_BYTES[self.precision])

    @property
    def expert_dispatcher(self) -> Dispatcher:
        """How rows travel to experts: as the recipe says, or as its framework usually does."""
        framework = self.framework
        if self.dispatcher is not None or framework is None:
            return self.dispatcher or "all_to_all"
        narrow = None if self.narrow_kernels is None else framework.narrow_dispatcher
        return narrow or framework.dispatcher

    @property
    def narrow_kernels(self) -> KernelPrecisions | None:
        """What runs in fewer than 16 bits; None where nothing does."""
        if self.kernels is not None or PRECISION_BYTES[self.precision] >= PRECISION_BYTES["bf16"]:
            return self.kernels
        narrow = self.precision
        return KernelPrecisions(forward=narrow, input_gradient=narrow, weight_gradient=narrow)

    def batch_over(self, num_devices: int) -> int | None:
        """Global batch on so many devices; None if the recipe gives none."""
        if self.batch_size_per_device is not None:
            return self.batch_size_per_device * num_devices
        return self.global_batch_size


@dataclass(frozen=True, slots=True)
class Job:
    """One model trained by one recipe with a given global batch (sequences over all devices)."""

    model: TransformerConfig
    recipe: TrainingRecipe
    global_batch_size: int

    @property
    def seq_length(self) -> int:
        """Tokens per sequence."""
        return self.recipe.seq_length

    @property
    def tokens_per_step(self) -> int:
        """Tokens per step over all devices."""
        return self.global_batch_size * self.recipe.seq_length


class Layout(Protocol):
    """How a job is divided over devices; the interface common to all kinds of layout.

    `tensor` ranks compute each layer together, a batch passes through `pipeline` ranks, and `data` replicas
    each train on a share of the batch. A layout is a dataclass, so that `replace` makes another one of it.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def tensor(self) -> int: ...

    @property
    def pipeline(self) -> int: ...

    @property
    def data(self) -> int: ...

    @property
    def zero_stage(self) -> int:
        """ZeRO stage: how much of the training state is sharded over the replicas [1910.02054]; 0: none."""

    @property
    def micro_batch_size(self) -> int: ...

    @property
    def recompute(self) -> Recompute: ...

    @property
    def num_devices(self) -> int: ...

    @property
    def short(self) -> str:
        """One line of text: `tp8 pp4 dp4 mbs1 recompute full`."""

    def as_dict(self, num_microbatches: int) -> dict[str, Any]:
        """Its fields under the names of the JSON interface."""


def layers_of_stages(pattern: str) -> tuple[int, ...]:
    """Layers of each virtual stage of a pipeline in Megatron-Core's notation, such as `Et*3|(tt|)*29t|L`.

    E is the embedding, t a layer, L the LM head with the loss; stages are separated by |, in the order of the
    forward pass, and x*3 or (tt|)*3 repeats. Raises ValueError in words.
    """
    text = pattern.replace(",", "").replace(" ", "")
    while repeated := re.search(r"\(([^()]*)\)\*(\d{1,4})|(\w)\*(\d{1,4})", text):
        group = repeated[1] or repeated[3] or ""
        times = int(repeated[2] or repeated[4])
        if len(group) * times > 2 * MOST_LAYERS:
            raise ValueError(f"{repeated[0]!r} repeats more than {MOST_LAYERS} layers")
        text = text[: repeated.start()] + group * times + text[repeated.end() :]
    if unknown := re.search(r"[^EtL|]", text):
        known = "E (embedding), t (layer), L (loss), | (next stage), *3 and (..)*3 (repeat)"
        raise ValueError(f"{unknown[0]!r} in {pattern[:60]!r} is none of {known}")
    stages = text.split("|")
    if text.count("E") > 1 or text.count("L") > 1 or "E" in text[1:] or "L" in text[:-1]:
        raise ValueError(
            f"{pattern[:60]!r}: the embedding E begins the first stage, the loss L ends the last"
        )
    return tuple(stage.count("t") for stage in stages)


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """A layout on GPUs: degrees, schedule, micro-batch and memory mode, all named as in YAML.

    Ranks: tensor innermost, then context, then data, then pipeline; consecutive ranks fill a node.
    `layers_per_stage` has one entry per virtual stage, in the order of the forward pass; None: even.
    """

    tensor: int = 1
    """Ranks that share every layer."""
    pipeline: int = 1
    """Pipeline stages."""
    data: int = 1
    """Replicas of the model."""
    virtual_pipeline: int = 1
    """Groups of layers of a rank, under an interleaved schedule."""
    sequence_parallel: bool = False
    """Whether tensor ranks also share the positions of norms and dropout."""
    zero_stage: int = 0
    """What replicas shard: 1 optimizer states, 2 also gradients, 3 also parameters."""
    schedule: str = "1f1b"
    """Order of the passes of micro-batches."""
    micro_batch_size: int = 1
    """Sequences that pass a replica at once."""
    recompute: Recompute = "none"
    """What the backward computes again: none, selective (attention) or full (layers)."""
    layers_per_stage: tuple[int, ...] | None = None
    """Layers of each virtual stage; None: as many in each."""
    recompute_every: int = 1
    """Of the layers of a rank, one in so many is recomputed."""
    context: int = 1
    """Ranks that share every sequence, each with an equal part of its positions."""
    context_exchange: ContextExchange = "ring"
    """What context ranks exchange: keys and values around a ring, or heads against positions."""
    shard_group: int | None = None
    """Ranks over which ZeRO shards, of which there are several groups; None: all with the same parameters."""
    offload_optimizer: Place = "none"
    """Where the optimizer's states are, which the CPU updates; gradients of ZeRO 2 and 3 go there too."""
    offload_param: Place = "none"
    """Where the parameters are that ZeRO 3 gathers."""
    offload_activations: Literal["none", "cpu"] = "none"
    """Where the activations are that a layer keeps for its backward."""
    expert: int = 1
    """Ranks of a stage (tensor, context and data alike) over which the experts of a layer are divided."""
    expert_tensor: int = 1
    """Ranks that share every expert, as tensor ranks share other layers."""

    @property
    def num_devices(self) -> int:
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters: those of a context group, times data."""
        return self.context * self.data

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO divides a state."""
        return self.replicas if self.shard_group is None else self.shard_group

    @property
    def width(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tensor * self.replicas

    @property
    def expert_replicas(self) -> int:
        """Ranks of a stage that hold the same experts."""
        return self.width // (self.expert * self.expert_tensor)

    @property
    def num_stages(self) -> int:
        return self.pipeline * self.virtual_pipeline

    @property
    def offloads(self) -> dict[str, Place]:
        """The settings of offload that are in use."""
        given: dict[str, Place] = {
            "offload_optimizer": self.offload_optimizer,
            "offload_param": self.offload_param,
            "offload_activations": self.offload_activations,
        }
        return {name: place for name, place in given.items() if place != "none"}

    @property
    def short(self) -> str:
        """`tp8 pp4 dp4 mbs1`, with the schedule if it is not 1F1B."""
        exchange = "" if self.context_exchange == "ring" else " all-to-all"
        context = f"cp{self.context}{exchange} " if self.context > 1 else ""
        shared = f" etp{self.expert_tensor}" if self.expert_tensor > 1 else ""
        experts = f"ep{self.expert}{shared} " if self.expert > 1 or shared else ""
        degrees = (
            f"tp{self.tensor} {context}{experts}pp{self.pipeline} dp{self.data} mbs{self.micro_batch_size}"
        )
        schedule = "" if self.schedule == "1f1b" else f" {self.schedule}"
        chunks = f" vpp{self.virtual_pipeline}" if self.schedule == "interleaved" else ""
        groups = "" if self.shard_group is None else f" in groups of {self.shard_group}"
        sharded = f" zero{self.zero_stage}{groups}" if self.zero_stage > 1 or groups else ""
        every = f" every {self.recompute_every} layers" if self.recompute_every > 1 else ""
        moved = "".join(f" {name} {place}" for name, place in self.offloads.items())
        return f"{degrees}{schedule}{chunks}{sharded} recompute {self.recompute}{every}{moved}"

    def as_dict(self, num_microbatches: int) -> dict[str, Any]:
        """Its fields under the names of the JSON interface."""
        context = {"context": self.context, "context_exchange": self.context_exchange}
        experts = {"expert": self.expert, "expert_tensor": self.expert_tensor}
        return {
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "data": self.data,
            "micro_batch_size": self.micro_batch_size,
            "num_microbatches": num_microbatches,
            "recompute": self.recompute,
            "recompute_every": self.recompute_every,
            "virtual_pipeline": self.virtual_pipeline,
            "sequence_parallel": self.sequence_parallel,
            "zero_stage": self.zero_stage,
            "schedule": self.schedule,
            "layers_per_stage": None if self.layers_per_stage is None else list(self.layers_per_stage),
            **(context if self.context > 1 else {}),
            **(experts if self.expert * self.expert_tensor > 1 else {}),
            **({} if self.shard_group is None else {"shard_group": self.shard_group}),
            **self.offloads,
        }
