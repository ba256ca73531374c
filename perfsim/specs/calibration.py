"""Fitted constants, kept apart from datasheet values: the only empirical input of costs and collectives."""

from typing import Annotated, Literal

from pydantic import Field

from perfsim.base.spec import Date, DatedSpec, Spec
from perfsim.base.units import BytesPerSecond, number, quantity
from perfsim.specs.trainers import ToolName

Selective = Literal["core", "every_second_product"]
Fraction = Annotated[float, *number(1e-3, 1)]
Factor = Annotated[float, *number(1e-3, 1e3)]
"""A ratio of two times, or of two efficiencies."""
NonNegative = Annotated[float, *number(0, 1e6)]
Sharpness = Annotated[float, *number(1, 1e3)]
"""p of a p-norm."""
Side = Annotated[int, *number(1, 2**16)]
"""Length of a tile of a matrix, or a number of them."""
Latency = Annotated[float, *quantity("seconds", most=10.0)]
"""A fixed time of a kernel or a message."""
Duration = Annotated[float, *quantity("seconds", least=1e-9)]
"""A time that something takes."""
Error = Annotated[float, *number(0, 1e9)]
"""A relative error."""
WIDE_SPREAD = 0.10
"""Spread of the cases after scaling above which a single factor does not describe a cluster."""
MOST_STANDARD_ERROR = 1 / 3
"""A constant counts as determined by measurements below this relative standard error."""
CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast"]


class FitRecord(Spec):
    """How a group of constants was fitted."""

    command: str
    table: str
    """Source id of the measurements."""
    points: Annotated[int, *number(0, 1e9)]
    median_ape: Error
    p90_ape: Error
    standard_errors: dict[str, Error] = Field(default_factory=dict)
    """Relative standard error by constant, if the fit gives one."""
    note: str = ""

    @property
    def words(self) -> str:
        """How good it is."""
        errors = f"median error {100 * self.median_ape:.1f} %, p90 {100 * self.p90_ape:.1f} %"
        return f"{errors}, {self.points} points"


class Calibration(DatedSpec):
    """Fields of every calibration file."""

    fit: dict[str, FitRecord] = Field(default_factory=dict)
    """One record per group of constants."""


class TileConstants(Spec):
    """One thread-block tile of the GEMM library, in both orientations.

    The library's ranking of tiles differs from their measured speed, so there are two efficiencies:
    `choice_efficiency` decides which tile runs, `efficiency` how long it takes.
    """

    shape: tuple[Side, Side]
    efficiency: Fraction
    """Fraction of one compute unit's peak for very large k."""
    choice_efficiency: Factor
    """Efficiency implied by the library's choices; only ratios between tiles matter."""
    overhead_k: NonNegative
    """Prologue and epilogue of a tile, as a number of extra columns of k."""

    @property
    def label(self) -> str:
        """The tile's part of a constant's path, as 256x128."""
        return "x".join(str(side) for side in self.shape)


class GemmConstants(Spec):
    """Tile-and-wave model of a GEMM library on one device; `perfsim.costs.gemm` has the equations."""

    tiles: Annotated[tuple[TileConstants, ...], Field(min_length=1)]
    split_k: Annotated[tuple[Side, ...], Field(min_length=1)]
    """Numbers of parallel slices along k that the library may choose."""
    k_step: Side
    """Step along k; the last step is padded."""
    split_traffic: NonNegative
    """Time to sum the slices, as a multiple of partial-sum bytes over peak bandwidth."""
    choice_split_traffic: NonNegative
    """The same factor implied by the library's choices."""
    split_latency_s: Latency
    launch_s: Latency
    memory_fraction: Fraction
    """Fraction of the datasheet bandwidth for a GEMM bound by reading its operands."""
    overlap_sharpness: Sharpness
    """p of the p-norm that combines compute and memory time; large p means full overlap."""
    burst_fraction: Fraction
    """Ceiling of the fraction of peak in a kernel much longer than `burst_s`."""
    burst_s: Duration
    """Time until the clocks drop to that ceiling in the benchmark."""
    power_sharpness: Sharpness
    """Sharpness of the bend where efficiency reaches a power ceiling."""


class NarrowGemmConstants(Spec):
    """Matrix products with operands narrower than 16 bits, next to the 16-bit products of the same library.

    They have the tiles and waves of 16 bits; a few factors turn them into the times of the narrow table.
    """

    efficiency: Factor
    """Fraction of a compute unit's narrow peak that a tile reaches, over that in 16 bits."""
    overhead: Factor
    """Prologue and epilogue of a tile in columns of k, over those in 16 bits."""
    memory_fraction: Fraction
    burst_fraction: Fraction
    """Ceiling of the fraction of the narrow peak in a long kernel."""
    cast_bytes: NonNegative
    """Bytes that the table's cast moves per number of the first operand, at the datasheet's bandwidth.

    It finds the scale and writes one copy. A cast of training writes the transposed copy too, and takes as
    long, or as long as the bytes of both copies if they are more.
    """
    cast_s: Latency
    """Fixed time of the table's cast, which a kernel's own stands for in predictions."""


class _AttentionConstants(Spec):
    """Fused attention with the matrix instructions in which a device is fastest."""

    fraction: Fraction
    """Fraction of peak that its forward reaches in long sequences."""
    half_length: NonNegative
    """Sequence length at which it reaches half of that."""
    backward: Factor
    """Speed of the backward over the speed of the forward."""


class MemoryConstants(Spec):
    """Memory-bound kernels: element-wise, normalisation, softmax, optimizer."""

    fraction: Fraction
    """Fraction of the datasheet bandwidth for large kernels at full occupancy."""


class CommunicationConstants(Spec):
    """What a kernel of the collective library takes from the compute that runs next to it."""

    units: NonNegative
    """Compute units that it occupies inside a node: one for each channel."""
    units_per_nic: Annotated[float, *number(0.01, 1e3)]
    """Compute units per NIC that a group across nodes may use, if they are fewer; the same for a message."""
    memory_passes: dict[CollectiveOp, NonNegative]
    """Bytes read and written in device memory, over those that the device sends, by operation."""


class GpuCalibration(Calibration):
    """How fast kernels run on one GPU."""

    kind: Literal["gpu"] = "gpu"
    chip: str = ""
    """Calibration of the same chip with another memory, with which this one shares published runs."""
    gemm: GemmConstants
    memory: MemoryConstants
    kernel_latency_s: Latency
    """Fixed time of any kernel on the GPU, without the host."""
    sustained_fraction: Fraction
    """Ceiling of the fraction of peak in training, under a sustained power limit: the mean over devices."""
    sustained_spread: Annotated[float, Field(ge=0, lt=0.2)] = 0.0
    """Standard deviation of that ceiling over devices of one model, relative to the mean."""
    wgrad_factor: Factor = 1.0
    """Time of a weight-gradient GEMM over the time of a forward GEMM of the same shape."""
    attention_fraction: Fraction = 0.4
    """Fraction of the rate of its matrix instructions that fused attention reaches in long sequences."""
    attention_instruction_fraction: Fraction = 1.0
    """Rate of the matrix instructions that fused attention uses, as a fraction of peak."""
    attention_half_length: NonNegative = 0.0
    """Sequence length at which fused attention reaches half of that."""
    narrow: dict[str, NarrowGemmConstants] = Field(default_factory=dict)
    """Products in fewer than 16 bits, by precision."""
    narrow_sustained_fraction: Fraction | None = None
    """Ceiling of the fraction of the narrow peak in training; None: no lower than the table's."""
    asynchronous_attention: _AttentionConstants | None = None
    """None: the device has no other matrix instructions than `attention_fraction` is measured with."""
    one_block_attention: _AttentionConstants | None = None
    """Fused attention that holds all keys of a head on the chip, to 512 positions; None: as any other."""
    communication: CommunicationConstants | None = None
    """None: communication takes nothing from compute."""


class ProtocolSegment(Spec):
    """One protocol of the collective library inside a node: a straight line in the message size.

    seconds = latency_base_s + steps(n) latency_per_step_s
              + bytes (wire_factor(n) / bandwidth_bytes_per_s + 1 / local_bytes_per_s)
    """

    name: str
    latency_base_s: Latency
    latency_per_step_s: Latency
    bandwidth_bytes_per_s: BytesPerSecond
    """Bus bandwidth of one device, one direction."""
    local_bytes_per_s: BytesPerSecond | None = None
    """Reading and writing the message on each device; None if the bus transfer hides it."""


class NetworkProtocol(Spec):
    """One algorithm and protocol of the collective library across nodes.

    seconds = latency_base_s + intra_steps intra_step_s + inter_steps inter_step_s
              + bytes wire_factor / (bandwidth_fraction x bus bandwidth)
    """

    algorithm: Literal["ring", "tree"]
    name: str
    latency_base_s: Latency
    intra_step_s: Latency
    inter_step_s: Latency
    bandwidth_fraction: Fraction


class NetworkConstants(Spec):
    """Collectives whose group spans nodes."""

    efficiency: Fraction
    """Bus bandwidth over the line rate of the NICs that the group may use."""
    roce_efficiency: Fraction | None = None
    """The same over NICs that speak RoCE; None: as `efficiency`."""
    protocols: Annotated[tuple[NetworkProtocol, ...], Field(min_length=1)]
    send_recv_latency_s: Latency
    """Latency of a point-to-point message between nodes."""
    partial_node_rank_bytes_per_s: BytesPerSecond | None = None
    """Where devices share NICs: bound on the bus bandwidth, for each of its ranks on a node, of a group with
    several ranks of each node, but not all."""


class CollectiveCalibration(Calibration):
    """Collectives over one link: inside a node (`collectives`) or across nodes (`network`)."""

    kind: Literal["collective"] = "collective"
    collectives: dict[CollectiveOp, tuple[ProtocolSegment, ...]] = Field(default_factory=dict)
    """Protocols by operation; the fastest at each size is used."""
    measured_on_bytes_per_s: BytesPerSecond | None = None
    """Rated bandwidth of the measured link; a link rated higher carries more in the ratio, one rated lower at
    most its rate. None: no link carries more than was measured."""
    network: NetworkConstants | None = None


class WaferCalibration(Calibration):
    """Compute speed of a wafer under its newest measured software release, and the growth per release."""

    kind: Literal["wafer"] = "wafer"
    product_efficiency: Fraction
    """Fraction of peak reached by the arithmetic of products with weights."""
    attention_efficiency: Fraction
    """Fraction of peak reached by the two products of attention's core."""
    row_s: Latency
    """Time of one row of a layer's weights in one product; `perfsim.costs.wafer` has the equation."""
    growth_per_release: Annotated[float, *number(0, 1)]
    """Logarithm of the factor by which a minor release shortens a step, in the mean of the measured ones."""
    measured_releases: tuple[str, str]
    """The oldest and the newest release with a published log; steps change between them only."""
    releases: dict[str, Date] = Field(default_factory=dict)
    """When each software release could be installed, the oldest first."""
    peak_profile: str = ""
    """Which peak the efficiency is a fraction of."""


FusedAttention = Literal["synchronous", "asynchronous", "one_block"]
StateExchange = Literal["scatter_gather", "owner_broadcast"]
"""How ZeRO 1 shards and exchanges states; `perfsim.strategies.three_d.data` has the two."""
Dispatcher = Literal["all_to_all", "deepep", "all_gather"]
HIDES_SHARED: Dispatcher = "all_to_all"
"""The dispatcher next to which Megatron-Core computes shared experts (`moe_shared_expert_overlap`)."""
"""How rows travel to the ranks of their experts; `perfsim.strategies.three_d.expert` has the three."""
Fusion = Literal["cross_entropy", "cross_entropy_passes", "accumulation", "norm", "qkv", "cast"]
"""Kernels that a framework merges with others; `perfsim.work.layer` says what each saves."""


class FrameworkCalibration(Calibration):
    """What a training framework adds to a model's arithmetic, the same for every model."""

    kind: Literal["framework"] = "framework"
    tool: ToolName | None = None
    """The tool that runs its plans (`perfsim.specs.trainers`); None: no tool of the table."""
    launcher: str = ""
    """Framework with which this one shares the host's times and the runs that determine them."""
    host_s_per_kernel: Latency
    """Shortest time between two kernel launches."""
    host_blocking_s_per_kernel: Latency
    """Extra time per kernel if the host waits for each one to end (CUDA_LAUNCH_BLOCKING)."""
    overlap_sharpness: Sharpness = 4.0
    """p of the p-norm that combines device and host time of a block of kernels."""
    collective_wait_s: Latency = 0.0
    """Time until the last rank of a collective that no product hides has come to it."""
    cuda_graph: bool = False
    """Whether kernels are replayed from a recorded graph, so that the host launches none of them."""
    dispatcher: Dispatcher = "all_to_all"
    """How rows travel to experts unless a run says otherwise."""
    narrow_dispatcher: Dispatcher | None = None
    """The same of runs in fewer than 16 bits; None: as `dispatcher`."""
    expert_pass_s: Latency = 0.0
    """Time of the host in a pass of a layer whose experts take as many rows as are routed to them.

    It begins when the counts of rows have come back from the device. A CUDA graph needs neither.
    """
    grouped_rate: Fraction = 1.0
    """Speed of 16-bit products of several experts with biases in one call, over products of equal size."""
    fused: tuple[Fusion, ...] = ()
    grad_precision: Literal["bf16", "fp16"] | None = None
    """Precision in which it sums and reduces gradients unless a run says otherwise; None: fp32."""
    states: StateExchange = "scatter_gather"
    """How it shards and exchanges states under ZeRO 1."""
    grad_bucket: Annotated[float, *quantity("bytes", least=1.0)] | None = None
    """Size of a bucket of overlapped gradient reduction unless a run says otherwise; None: one layer."""
    dropout: bool = True
    """Whether attention that keeps its scores drops some of them, as models of the era did."""
    attention: FusedAttention = "synchronous"
    """Its fused attention: with the matrix instructions of the A100, with the fastest of each device, or in a
    kernel that holds all keys of a head (Apex FMHA)."""
    ceiling_share: Fraction = 1.0
    """Share of the sustained ceiling that its libraries reach on devices with newer matrix instructions."""
    pass_s: Latency = 0.0
    """Time that a rank of an interleaved pipeline loses in each pass to the host code of its schedule.

    Where it is above 0 a pass also begins only when its message has come over the pipeline's slowest link.
    """
    selective: Selective = "core"
    """What its selective recompute runs again: the attention core (Megatron-LM), or everything but fused
    attention and every second matrix product (torchtitan, by operator)."""
    overlaps_tensor: bool = False
    """Whether tensor-parallel communication overlaps products unless a run says otherwise."""
    exchange_slowdown: Annotated[float, *number(1, 100)] = 1.0
    """Time of a tensor-parallel exchange in chunks next to a product, over a collective of its bytes."""


class MeasuredStep(Spec):
    """A step time that a cluster's owner measured, and the unscaled prediction of it."""

    id: str
    measured_s: Duration
    predicted_s: Duration
    residual: Annotated[float, *number(-0.999, 1e3)]
    """Measured over scaled prediction, minus 1."""


class ClusterCalibration(Calibration):
    """One factor on all step times of one cluster, from steps that its owner measured.

    It covers one site (cooling, network, software), so it is kept apart from the device.
    """

    kind: Literal["cluster"] = "cluster"
    device: str
    """The device of the measured steps; the scale does not apply to others."""
    scale: Factor
    """Measured over predicted step time: the geometric mean of the cases."""
    frameworks: tuple[str, ...] = ()
    """Those with which the cases were predicted; empty: a file of before they were written."""
    cases: Annotated[tuple[MeasuredStep, ...], Field(min_length=2)]

    def others_than(self, framework: FrameworkCalibration | None) -> str:
        """The frameworks of the cases, where a step has another: the scale need not hold then. Else empty."""
        known = framework is None or not self.frameworks or framework.name in self.frameworks
        return "" if known else " and ".join(self.frameworks)

    @property
    def spread(self) -> float:
        """Spread of the scaled cases: the largest ratio over the smallest, minus 1."""
        ratios = [1.0 + case.residual for case in self.cases]
        return max(ratios) / min(ratios) - 1.0

    @property
    def is_wide(self) -> bool:
        """Whether the cases are too far apart for a single factor."""
        return self.spread > WIDE_SPREAD

    @property
    def note(self) -> str:
        """The note of every answer that uses the calibration."""
        worst = max(self.cases, key=lambda case: abs(case.residual))
        words = f", too far for a single factor: {worst.id} is {100 * worst.residual:+.1f} % off"
        return (
            f"step times multiplied by {self.scale:g}: cluster calibration {self.name}, {len(self.cases)} "
            f"measured steps, {100 * self.spread:.1f} % apart after scaling{words if self.is_wide else ''}"
        )


RunKind = Literal["pre-training", "fine-tuning", "warm-start"]


class ConvergenceCalibration(Calibration):
    """Critical batch and examples to the target of one's own runs, from `perfsim calibrate convergence`."""

    kind: Literal["convergence"] = "convergence"
    b_crit_tokens: Annotated[float, *number(1, 1e18)]
    """Batch at which the examples double."""
    band_factor: Annotated[float, *number(1, 1e6)]
    """Half-width of its 90 % band as a factor."""
    e_min_tokens: Annotated[float, *number(1, 1e18)] | None = None
    """Tokens to the target in the limit of small batches; None where only the noise was measured."""
    residual: Annotated[float, *number(0, 10)] = 0.0
    """Root mean square of ln(measured / fitted)."""
    batches_tokens: tuple[Annotated[float, *number(1e-6, 1e18)], ...] = ()
    """Measured batches, increasing."""
    run_kind: RunKind = "pre-training"
    notes: tuple[str, ...] = ()
