"""What runs a recipe: the framework, its kernels, what it overlaps. It changes times, not what is learned."""

from typing import Annotated, Literal

from perfsim.base.spec import DatedSpec, Name
from perfsim.base.units import quantity
from perfsim.specs.calibration import Dispatcher, FrameworkCalibration, FusedAttention, Fusion, StateExchange
from perfsim.specs.hardware import Release
from perfsim.specs.model import Positions, RecomputeKeeps
from perfsim.specs.trainers import ANY, TRAINERS, Limits, RunsOn, ToolName

Attention = Literal["standard", "flash"]


class Runtime(DatedSpec):
    """A training stack with its settings, as `workloads/runtimes/*.yaml` describe it."""

    name: Name = "default"
    line: str = ""
    """Runtimes of one line replace one another: a question about a day takes the newest that existed. Not
    inherited; empty: it has no others."""
    attention: Attention = "standard"
    attention_kernel: FusedAttention | None = None
    """Which fused attention runs, as with `NVTE_FUSED_ATTN=0` (synchronous); None: the framework's."""
    attention_length: Positions | None = None
    """Keys that fused attention computes for each position of unequal samples, with padding that
    its kernel does not skip; None: seq_length."""
    recompute_keeps: RecomputeKeeps = "nothing"
    """Results that full recompute keeps besides each layer's input: qkv is MaxText's `save_qkv_proj`."""
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    """Whether ZeRO 1 and 2 gather the parameters of a bucket during the first forward pass of the bucket
    before it, instead of gathering all of them after the update (Megatron-LM's `--overlap-param-gather`)."""
    dispatcher: Dispatcher | None = None
    """How rows travel to experts; None: as the framework usually does."""
    grouped_products: bool = True
    """Whether the products of a rank's experts are one call; false: one call each."""
    overlap_tensor: bool = False
    """Whether tensor-parallel communication overlaps the products of its tensors (user buffers of Transformer
    Engine, which Megatron-Bridge does not use in NVFP4; asynchronous tensor parallelism of PyTorch)."""
    grad_bucket: Annotated[float, *quantity("bytes", least=1.0)] | None = None
    """Size of a bucket of overlapped gradient reduction, in whole layers; None: as the framework has it."""
    states: StateExchange | None = None
    """How ZeRO 1 shards and exchanges states; None: as the framework does.

    scatter_gather reduce-scatters gradients and all-gathers parameters. With owner_broadcast (InternEvo)
    gradients are all-reduced, and each rank broadcasts the whole tensors that it owns.
    """
    fused: tuple[Fusion, ...] | None = None
    """Kernels that are merged with others; None: those that the framework merges."""
    fused_cross_entropy: bool = False
    """Loss and its gradient in one kernel each, on the logits as the LM head writes them.

    As in flash-attn (llm-foundry's default) and with Megatron-LM's `--cross-entropy-loss-fusion`. False:
    passes in fp32, as in Megatron-LM of 2021 to 2023.
    """
    host_blocking: bool = False
    """Whether the host waits for every kernel (CUDA_LAUNCH_BLOCKING)."""
    cuda_graph: bool | None = None
    """Whether whole steps are replayed from a CUDA graph; None: as the framework usually does."""
    framework: FrameworkCalibration | None = None
    """Host-side costs of the training framework; required on GPUs."""
    tool: RunsOn | None = None
    """The tool that runs its plans; any: none needs to; None: the framework's."""
    zero_stages: tuple[Literal[0, 1, 2, 3], ...] | None = None
    """ZeRO stages of the layouts that are planned with it; None: all that its tool runs."""
    by_rule: bool = False
    """Whether it was chosen because nobody named one: ranges of its steps allow for other software."""
    software_release: Release | None = None
    """Software release of a wafer cluster; None: the system's. peak: an upper bound, never observed."""

    @property
    def takes_plans(self) -> ToolName | None:
        """The tool that takes its plans, as `--emit` calls it; None: none does."""
        if self.tool is not None and self.tool != "any":
            return self.tool
        return self.framework.tool if self.framework else None

    @property
    def searched(self) -> Limits | None:
        """The limits of layouts that are planned; None: all that can be simulated."""
        return None if self.tool == ANY else self.limits

    @property
    def limits(self) -> Limits | None:
        """What its tool ran on GPUs when the framework was last measured; None: it names no tool."""
        framework = self.framework
        tool = self.takes_plans
        if framework is not None and (tool is None or not TRAINERS[tool].rows):
            tool = framework.tool
        if tool is None:
            return None
        if framework is None or framework.date_is_recalled:  # which limits nothing
            return Limits(tool, zero_stages=self.zero_stages)
        return Limits(tool, framework.date or "", self.zero_stages)

    @property
    def stack(self) -> FrameworkCalibration | None:
        """The constants of the framework with the settings that are given here instead; None without one."""
        alike = ("fused", "cuda_graph", "grad_bucket", "states")
        given = {"attention": self.attention_kernel, **{name: getattr(self, name) for name in alike}}
        changes = {name: value for name, value in given.items() if value is not None}
        if self.framework is None or not changes:
            return self.framework
        return self.framework.model_copy(update=changes)
