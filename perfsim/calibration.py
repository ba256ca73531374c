"""Constants that were fitted, kept apart from the datasheet: one file, one fit, one record.

Every class carries a `fit` record: the command that made it, the table it was made from, how many
points, and the residual. `perfsim.costs` and `perfsim.collectives` read these numbers and nothing
else that is empirical. Seconds and bytes a second are strings with a unit in YAML, SI floats here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from perfsim.units import BytesPerSecond, Seconds

Fraction = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
MOST_STANDARD_ERROR = 1 / 3
"""The largest relative standard error with which measurements are said to determine a constant."""
CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast"]


class FitRecord(BaseModel):
    """How a set of constants came to be."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    command: str
    table: str
    """Source id of the measurements."""
    points: int
    median_ape: float
    p90_ape: float
    standard_errors: dict[str, float] = Field(default_factory=dict)
    """Relative standard error by constant, where the fit gives one."""
    note: str = ""


class Constants(BaseModel):
    """A frozen group of constants inside a calibration file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def label(self) -> str:
        """What tells it from the others of a list, as a part of its constants' paths."""
        return str(getattr(self, "name", ""))


class Calibration(BaseModel):
    """What every calibration file carries."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    description: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    assumed: dict[str, str] = Field(default_factory=dict)
    fit: dict[str, FitRecord] = Field(default_factory=dict)
    """One record per group of constants."""

    def constants(self) -> dict[str, float | tuple[float, ...]]:
        """Every number by its dotted path; parts of a list go by their label, as in `gemm.tiles.256x128`."""
        described = {"name", "description", "kind", "sources", "assumed", "fit"}
        held = {name: getattr(self, name) for name in type(self).model_fields if name not in described}
        return dict(_numbers(held, ""))

    def unaccounted(self) -> list[str]:
        """Paths of the constants that rest on nothing.

        A fitted one rests on a relative standard error below `MOST_STANDARD_ERROR`, or on a source or a
        reason of its own, not of the whole group that was fitted; any other one on a source or a reason.
        """
        return [path for path in self.constants() if not self._is_accounted(path)]

    def _is_accounted(self, path: str) -> bool:
        record = max((key for key in self.fit if _covers(key, path)), key=len, default="")
        if any(_covers(key, path) and len(key) > len(record) for key in (*self.sources, *self.assumed)):
            return True
        errors = self.fit[record].standard_errors if record else {}
        own = [error for name, error in errors.items() if f".{path}".endswith(f".{name}")]
        return bool(own) and max(own) < MOST_STANDARD_ERROR


def _covers(key: str, path: str) -> bool:
    return path == key or path.startswith(f"{key}.")


def _numbers(value: object, path: str) -> Iterator[tuple[str, float | tuple[float, ...]]]:
    """The numbers under a value of a calibration, by path."""
    if isinstance(value, Constants):
        value = {name: getattr(value, name) for name in type(value).model_fields if name != "shape"}
    if isinstance(value, tuple) and value and isinstance(value[0], Constants):
        value = {part.label: part for part in value}
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _numbers(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, float | int | tuple):
        yield path, value


class TileConstants(Constants):
    """One thread-block tile of the GEMM library, in both orientations.

    The library's own ranking of tiles differs from what they deliver, so there are two
    efficiencies: `choice_efficiency` decides which tile runs, `efficiency` how long it takes.
    """

    shape: tuple[PositiveInt, PositiveInt]
    efficiency: Fraction
    """Of one compute unit's peak, for an endless k."""
    choice_efficiency: Positive
    """What the library seems to believe; only ratios between tiles matter."""
    overhead_k: NonNegative
    """Prologue and epilogue of a tile, as so many extra columns of k."""

    @property
    def label(self) -> str:
        """The tile's part of a constant's path, as 256x128."""
        return "x".join(str(side) for side in self.shape)


class GemmConstants(Constants):
    """Tile-and-wave model of a GEMM library on one device; `perfsim.costs.gemm` has the equations."""

    tiles: Annotated[tuple[TileConstants, ...], Field(min_length=1)]
    split_k: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Numbers of slices along k that the library may run side by side."""
    k_step: PositiveInt
    """k is walked in steps of this size, the last one padded."""
    split_traffic: NonNegative
    """Seconds of summing the slices, as a multiple of partial-sum bytes over peak bandwidth."""
    choice_split_traffic: NonNegative
    """The same, as the library seems to believe."""
    split_latency_s: Seconds
    launch_s: Seconds
    memory_fraction: Fraction
    """Of the datasheet bandwidth, for a GEMM that is bound by reading its operands."""
    overlap_sharpness: Annotated[float, Field(ge=1)]
    """p of the p-norm that joins compute and memory time; large: perfect overlap."""
    burst_fraction: Fraction
    """Ceiling of the fraction of peak in a kernel much longer than `burst_s`."""
    burst_s: Annotated[Seconds, Field(gt=0)]
    """How long a kernel runs before the benchmark's clocks come down to the ceiling."""
    power_sharpness: Annotated[float, Field(ge=1)]
    """How abruptly efficiency meets a power ceiling; large: abruptly."""


class MemoryConstants(Constants):
    """Memory-bound kernels: element-wise, normalisation, softmax, optimizer."""

    fraction: Fraction
    """Of the datasheet bandwidth, at full occupancy and sizes past the ramp."""


class GpuCalibration(Calibration):
    """How fast kernels run on one GPU."""

    kind: Literal["gpu"] = "gpu"
    gemm: GemmConstants
    memory: MemoryConstants
    kernel_latency_s: Seconds
    """Fixed time of any kernel on the GPU, host not counted."""
    sustained_fraction: Fraction
    """Ceiling of the fraction of peak in training, where the power limit holds for hours."""
    wgrad_factor: Positive = 1.0
    """Time of a weight-gradient GEMM over that of a forward GEMM of the same shape."""
    attention_fraction: Fraction = 0.4
    """Of peak, reached by fused attention on the FLOPs it computes in long sequences."""
    attention_half_length: NonNegative = 0.0
    """Sequence length at which fused attention reaches half of that."""


class ProtocolSegment(Constants):
    """One protocol of the collective library inside a node: a straight line in the message size.

    seconds = latency_base_s + steps(n) latency_per_step_s
              + bytes (wire_factor(n) / bandwidth_bytes_per_s + 1 / local_bytes_per_s)
    """

    name: str
    latency_base_s: Seconds
    latency_per_step_s: Seconds
    bandwidth_bytes_per_s: BytesPerSecond
    """Of the bus, one direction of one device."""
    local_bytes_per_s: BytesPerSecond | None = None
    """Reading and writing the whole message on each device; None: hidden behind the bus."""


class NetworkProtocol(Constants):
    """One algorithm and protocol of the collective library across nodes.

    seconds = latency_base_s + intra_steps intra_step_s + inter_steps inter_step_s
              + bytes wire_factor / (bandwidth_fraction x bus bandwidth)
    """

    algorithm: Literal["ring", "tree"]
    name: str
    latency_base_s: Seconds
    intra_step_s: Seconds
    inter_step_s: Seconds
    bandwidth_fraction: Fraction

    @property
    def label(self) -> str:
        """Algorithm and protocol, as ring-LL128."""
        return f"{self.algorithm}-{self.name}"


class NetworkConstants(Constants):
    """Collectives whose group spans nodes."""

    efficiency: Fraction
    """Bus bandwidth over the line rate of the NICs that the group may use."""
    protocols: Annotated[tuple[NetworkProtocol, ...], Field(min_length=1)]
    send_recv_latency_s: Seconds
    """Point to point between two nodes, before the first byte."""
    partial_node_bytes_per_s: BytesPerSecond | None = None
    """Where devices share NICs: most that the bus of a group carries with more than one place of each node,
    but not all."""


class CollectiveCalibration(Calibration):
    """How collectives behave on a link: inside a node (`collectives`), across nodes (`network`)."""

    kind: Literal["collective"] = "collective"
    collectives: dict[CollectiveOp, tuple[ProtocolSegment, ...]] = Field(default_factory=dict)
    """Protocols by operation; the fastest one is used at each size."""
    network: NetworkConstants | None = None


class WaferCalibration(Calibration):
    """How fast a wafer computes, by release of its software."""

    kind: Literal["wafer"] = "wafer"
    efficiency: dict[str, Fraction]
    """Fraction of peak that the arithmetic of matrix products reaches, by software release."""
    link_s_per_element: Seconds
    """Time in which an element passes a link of the mesh; `perfsim.costs.mesh` has the equation."""
    peak_profile: str = ""
    """Which peak the efficiency is a fraction of."""


class FrameworkCalibration(Calibration):
    """What the training framework's host side costs, whatever the model."""

    kind: Literal["framework"] = "framework"
    host_s_per_kernel: Seconds
    """The host cannot launch kernels faster than this."""
    host_blocking_s_per_kernel: Seconds
    """Beside that, the wait for every kernel to end, where the host waits (CUDA_LAUNCH_BLOCKING)."""
    overlap_sharpness: Annotated[float, Field(ge=1)] = 4.0
    """p of the p-norm that joins device and host time of a block of kernels."""


class MeasuredStep(Constants):
    """A step that the owner of a cluster measured, beside what the model said of it before scaling."""

    id: str
    measured_s: Annotated[Seconds, Field(gt=0)]
    predicted_s: Annotated[Seconds, Field(gt=0)]
    residual: Annotated[float, Field(gt=-1)]
    """Measured over scaled prediction, less 1."""


class ClusterCalibration(Calibration):
    """One factor on every step time of one cluster, from steps that its owner measured.

    It belongs to a place (its cooling, its network, its software), so it stands apart from the device.
    """

    kind: Literal["cluster"] = "cluster"
    device: str
    """The device that the steps were measured on; the scale says nothing of another one."""
    scale: Positive
    """Measured over predicted step time: the geometric mean of the cases."""
    cases: Annotated[tuple[MeasuredStep, ...], Field(min_length=2)]

    @property
    def spread(self) -> float:
        """How far the cases lie apart once scaled: the largest over the smallest, less 1."""
        ratios = [1.0 + case.residual for case in self.cases]
        return max(ratios) / min(ratios) - 1.0
