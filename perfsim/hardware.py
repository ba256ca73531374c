"""What exists: devices, links, nodes and systems, as frozen descriptions in SI units.

A description is read from `hardware/**/*.yaml` by `perfsim.catalog`; quantities are strings with a
unit there and floats in SI here. Datasheet facts live in these classes, fitted constants in
`perfsim.calibration`, and a description only names the calibration it uses.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from perfsim.calibration import CollectiveCalibration, GpuCalibration, WaferCalibration
from perfsim.units import Bytes, BytesPerSecond, FlopPerSecond, Seconds, Watts

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]


class Spec(BaseModel):
    """A frozen description; unknown keys are errors, and every leaf has a source or an assumption."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CatalogSpec(Spec):
    """A description that stands in a file of its own and is found by its name.

    `sources` maps a key (or the first part of a dotted path) to a source id of the catalogue's
    `sources.yaml`; `assumed` maps a key to the reason why a value without a source stands there.
    """

    name: str
    description: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    assumed: dict[str, str] = Field(default_factory=dict)


class MemorySpec(Spec):
    """A memory: how much it holds and how fast it is read."""

    capacity: Bytes
    bandwidth: BytesPerSecond
    reserved: Bytes = 0.0
    """Not available to a training step: context, communication buffers, fragmentation; code on a wafer."""
    cache: Bytes = 0.0
    """Last-level cache in front of it."""

    @property
    def usable_bytes(self) -> float:
        return self.capacity - self.reserved


class DeviceSpec(CatalogSpec):
    """A device that computes: a GPU, or a wafer."""

    kind: Literal["gpu", "wafer"]
    peak: dict[Precision, FlopPerSecond]
    vector_peak: dict[Precision, FlopPerSecond] = Field(default_factory=dict)
    """Of the units beside the matrix cores, which run matrices of odd sizes."""
    memory: MemorySpec
    compute_units: PositiveInt
    """Streaming multiprocessors of a GPU, cores of a wafer."""
    power: Watts | None = None
    calibration: GpuCalibration | WaferCalibration | None = None


class LinkSpec(CatalogSpec):
    """A link in one direction: bytes a second and the seconds that the first byte takes."""

    bandwidth: BytesPerSecond
    latency: Seconds
    calibration: CollectiveCalibration | None = None
    """How collectives behave on this link, where that was measured."""


class NodeSpec(Spec):
    """A server: devices behind one switch, and NICs that all devices share equally."""

    devices: PositiveInt
    scale_up: LinkSpec
    """From one device into the node's switch, one direction."""
    nics: PositiveInt
    nic: LinkSpec

    @property
    def inter_node_bytes_per_s(self) -> float:
        """All NICs of the node together, one direction."""
        return self.nics * self.nic.bandwidth


class FatTreeSpec(Spec):
    """A two-level fat tree: leaf switches under spines; oversubscription 1 is non-blocking."""

    nodes_per_leaf: PositiveInt
    oversubscription: Annotated[float, Field(ge=1.0)] = 1.0
    switch_latency: Seconds


class GpuClusterSpec(CatalogSpec):
    """Nodes of GPUs under a fat tree; the number of nodes is the question's, not the system's."""

    kind: Literal["gpu-cluster"]
    device: DeviceSpec
    node: NodeSpec
    fabric: FatTreeSpec


class MemoryXSpec(Spec):
    """The store of weights and optimizer state, with the arithmetic of the optimizer."""

    capacity: Bytes
    bandwidth: BytesPerSecond
    """Each way, towards SwarmX."""
    update_bandwidth: BytesPerSecond
    """Optimizer state read and written a second by all weight servers together."""


class SwarmXSpec(Spec):
    """The tree that broadcasts weights down and sums gradients up, at line rate."""

    fan_out: Annotated[int, Field(ge=2)]
    bandwidth: BytesPerSecond
    """Each way, towards one system."""
    hop_latency: Seconds
    chunk: Bytes
    """What a tree node forwards at once: the unit of pipelining."""


class WaferClusterSpec(CatalogSpec):
    """Wafer-scale systems under a SwarmX tree, fed by one MemoryX."""

    kind: Literal["wafer-cluster"]
    device: DeviceSpec
    io_ports: PositiveInt
    io_link: LinkSpec
    memoryx: MemoryXSpec
    swarmx: SwarmXSpec
    max_systems: PositiveInt
    software_release: str
    """The release whose efficiency is used unless the question names another."""
    weight_bytes: Annotated[float, Field(gt=0)]
    """Bytes on the wire for one weight."""
    gradient_bytes: Annotated[float, Field(gt=0)]
    """Bytes on the wire for one gradient."""

    @property
    def io_bytes_per_s(self) -> float:
        """Into one system, one direction."""
        return self.io_ports * self.io_link.bandwidth


SystemSpec = GpuClusterSpec | WaferClusterSpec
