"""What is learned and how: precisions, optimizer, sequences, batch, target; and the job that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from perfsim.base.sizes import MOST_SEQUENCES
from perfsim.base.spec import CatalogSpec, DatedSpec, Spec
from perfsim.base.units import number
from perfsim.specs.calibration import Dispatcher
from perfsim.specs.layout import Recompute
from perfsim.specs.model import Positions, TransformerConfig
from perfsim.specs.optimizers import OPTIMIZERS, OptimizerName
from perfsim.specs.precisions import PRECISIONS, Precision, StatePrecision
from perfsim.specs.runtime import Runtime

Sequences = Annotated[int, *number(1, MOST_SEQUENCES)]


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


RUNTIME_FIELDS = tuple(name for name in Runtime.model_fields if name not in DatedSpec.model_fields)
"""Settings that recipes had before there were runtimes."""


class _Phase(Spec):
    """A later phase of training, such as dense fine-tuning, at the batch of the first phase."""

    tokens: Annotated[float, *number(1, 1e18)]
    weight_sparsity: Annotated[float, *number(0, 0.999)] = 0.0
    """Share of zeros in the layers' weight matrices; 0: dense."""


class Recipe(CatalogSpec):
    """What is learned: sequences, batch, precisions, optimizer, and the target of the run."""

    moved: ClassVar[Mapping[str, str]] = {
        name: f"a setting of the runtime: write runtime: {{extends: NAME, {name}: ...}} with a NAME of "
        f"`perfsim show runtimes`, or runtime.{name} as a path"
        for name in RUNTIME_FIELDS
    }
    seq_length: Positions
    precision: Precision = "bf16"
    """Of matrix products; below 16 bits only of the layers' products, as in Transformer Engine's recipes."""
    kernels: KernelPrecisions | None = None
    """What runs in what, where it is not as `precision` says."""
    optimizer: OptimizerName = "adam"
    """adam8bit: moments in 8 bits; muon: layers' matrices by their orthogonalised momentum, the rest by
    Adam."""
    global_batch_size: Sequences | None = None
    """Sequences over all devices; None: chosen by the study."""
    batch_size_per_device: Sequences | None = None
    """Sequences per device, so the global batch grows with the number of devices (weak scaling)."""
    recompute: Recompute | Literal["auto"] = "auto"
    """auto: the planner chooses the fastest mode that fits."""
    routing: Literal["balanced", "drawn"] = "drawn"
    """balanced: the run forces every expert to have equally many tokens; drawn: they differ, as usual."""
    routing_spread: Annotated[float, *number(0, 10)] = 0.03
    """Standard deviation of the logarithm of an expert's tokens over their mean.

    assumed: two published runs of Mixtral 8x22B, of which one forces balance, are 4.5 % apart with it.
    """
    expert_capacity: Annotated[float, *number(0.1, 1000)] | None = None
    """Most tokens of an expert over their mean, beyond which tokens are dropped; None: none is."""
    reduce_precision: Precision | None = None
    """Precision in which gradients are accumulated and reduced over replicas; None: fp32.

    bf16 is `--grad-reduce-in-bf16` of Megatron, fp16 its fp16 training without
    `--accumulate-allreduce-grads-in-fp32`.
    """
    optimizer_precision: StatePrecision = "fp32"
    """Precision of the optimizer's moments, and of its copies of narrower weights and gradients.

    bf16 with `reduce_precision: bf16` is pure bf16 training, which has no copies.
    """
    moment_precision: StatePrecision | None = None
    """Precision of the optimizer's moments where it is not `optimizer_precision`; adam8bit has 8 bits.

    bf16 with copies in fp32 is what DeepSeek-V3 trains with [2412.19437 3.3.2].
    """
    dropout: bool = True
    """Attention and residual dropout, which take a pass over memory and store their masks."""
    lm_head_positions: Positions | None = None
    """Positions of each sequence that reach the LM head; None: all."""
    tokens: Annotated[float, *number(1, 1e18)] | None = None
    """D_min, the tokens to the target in the limit of small batches."""
    tokens_per_parameter: Annotated[float, *number(1e-6, 1e9)] | None = None
    """D_min as a multiple of the model's parameters (20: Chinchilla)."""
    target_loss: Annotated[float, *number(1e-3, 1e3)] | None = None
    """Nats per token; the loss law of the study converts it into `tokens`."""
    runtime: Runtime = Field(default_factory=Runtime)
    """What runs it where a question names no other runtime."""
    weight_sparsity: Annotated[float, *number(0, 0.999)] = 0.0
    """Share of unstructured zeros in the layers' weight matrices, which wafers skip."""
    later: Annotated[tuple[_Phase, ...], Field(max_length=100)] = ()
    """Phases after the target, in order, whose times are added to the time to it.

    With `weight_sparsity` and a dense phase: sparse pre-training, dense fine-tuning [2303.10464].
    """

    @model_validator(mode="after")
    def _exclude_each_other(self) -> Recipe:
        for first, second in (
            ("global_batch_size", "batch_size_per_device"),
            ("tokens", "tokens_per_parameter"),
            ("tokens", "target_loss"),
            ("tokens_per_parameter", "target_loss"),
        ):
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ValueError(
                    f"{first} and {second} exclude each other: write only one of them "
                    "(`null` removes an inherited one)"
                )
        if OPTIMIZERS[self.optimizer].moment_bytes is not None and self.moment_precision is not None:
            raise ValueError(
                f"optimizer {self.optimizer} and moment_precision exclude each other: its moments have a "
                "precision of their own (`moment_precision: null` removes an inherited one)"
            )
        if self.tokens is not None and self.tokens < self.seq_length:
            raise ValueError(f"tokens: {self.tokens:g} are less than a sequence of {self.seq_length}")
        if self.lm_head_positions is not None and self.lm_head_positions > self.seq_length:
            raise ValueError(
                f"lm_head_positions {self.lm_head_positions} is more than seq_length {self.seq_length}; "
                "leave it out where the output layer reads every position"
            )
        return self

    def __hash__(self) -> int:
        """By the fields that determine kernels, because these are cached by recipe."""
        return hash((self.name, self.seq_length, self.precision, self.optimizer, self.runtime.attention))

    @property
    def element_bytes(self) -> float:
        """Bytes of an activation or a weight: 4 in fp32 and tf32, else 2 (fp8 training holds 16 bits)."""
        return max(PRECISIONS["bf16"].bytes, PRECISIONS[self.precision].bytes)

    @property
    def expert_dispatcher(self) -> Dispatcher:
        """How rows travel to experts: as the recipe says, or as its framework usually does."""
        framework = self.runtime.framework
        if self.runtime.dispatcher is not None or framework is None:
            return self.runtime.dispatcher or "all_to_all"
        narrow = None if self.narrow_kernels is None else framework.narrow_dispatcher
        return narrow or framework.dispatcher

    @property
    def narrow_kernels(self) -> KernelPrecisions | None:
        """What runs in fewer than 16 bits; None where nothing does."""
        if self.kernels is not None or not PRECISIONS[self.precision].is_narrow:
            return self.kernels
        narrow = self.precision
        return KernelPrecisions(forward=narrow, input_gradient=narrow, weight_gradient=narrow)

    @property
    def overlaps_tensor(self) -> bool:
        """Whether tensor-parallel communication overlaps the products of its tensors."""
        return self.runtime.overlap_tensor and PRECISIONS[self.precision].is_overlapped

    def ran_with(self, **settings: Any) -> Recipe:
        """The recipe with some settings of its runtime changed, which are not checked."""
        return self.model_copy(update={"runtime": self.runtime.model_copy(update=settings)})

    def batch_over(self, num_devices: int) -> int | None:
        """Global batch on so many devices; None if the recipe gives none."""
        if self.batch_size_per_device is not None:
            return self.batch_size_per_device * num_devices
        return self.global_batch_size


@dataclass(frozen=True, slots=True)
class Job:
    """One model trained by one recipe with a given global batch (sequences over all devices)."""

    model: TransformerConfig
    recipe: Recipe
    global_batch_size: int

    @property
    def runtime(self) -> Runtime:
        return self.recipe.runtime

    @property
    def seq_length(self) -> int:
        """Tokens per sequence."""
        return self.recipe.seq_length

    @property
    def tokens_per_step(self) -> int:
        """Tokens per step over all devices."""
        return self.global_batch_size * self.recipe.seq_length
