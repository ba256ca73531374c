"""What systems are made of: devices, links, nodes, networks, power and nouns, frozen, in SI units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

from perfsim.calibration import CollectiveCalibration, GpuCalibration, Latency, WaferCalibration
from perfsim.errors import CatalogError
from perfsim.sizes import MOST_DEVICES, MOST_MESH, MOST_PARTS
from perfsim.spec import CatalogSpec, Spec
from perfsim.units import Bytes, BytesPerSecond, FlopPerSecond, Watts, number, quantity

Devices = Annotated[int, *number(1, MOST_DEVICES)]


def _release(name: str) -> str:
    if re.fullmatch(r"peak|[rR]?[0-9]{1,3}(\.[0-9]{1,3}){0,2}", name):
        return name
    message = f"software release {name[:60]!r} is not of the form r2.0"
    raise PydanticCustomError("release", "{message}", {"message": message, "help": "write for example r2.0"})


Release = Annotated[str, AfterValidator(_release)]
"""A software release of a wafer, or `peak`: an upper bound."""
Parts = Annotated[int, *number(1, MOST_PARTS)]
BytesPerNumber = Annotated[float, *number(1e-3, 1e3)]
Precision = Literal[
    "fp32", "tf32", "fp16", "bf16", "fp8", "fp8_rowwise", "fp8_block", "mxfp8", "nvfp4", "mxfp4"
]
"""`fp8` has one scale a tensor, `fp8_rowwise` one a row, `fp8_block` one for 128 numbers, `mxfp8` for 32,
`nvfp4` one for 16."""
PEAK_OF: Mapping[Precision, Precision] = {"fp8_rowwise": "fp8", "fp8_block": "fp8", "mxfp8": "fp8"}
"""Precisions whose products run at the datasheet peak of another one."""
DeviceKind = Literal["gpu", "wafer"]
StoreTier = Literal["auto", "dram", "flash"]


MemoryBytes = Annotated[float, *quantity("bytes", bits=False)]
MemoryBytesPerSecond = Annotated[float, *quantity("bytes_per_s", bits=False)]


class MemorySpec(Spec):
    """A memory with its capacity and bandwidth."""

    capacity: MemoryBytes
    bandwidth: MemoryBytesPerSecond
    reserved: MemoryBytes = 0.0
    """Not available to a training step: context, communication buffers, fragmentation; on a wafer, code."""
    cache: Bytes = 0.0
    """Size of its last-level cache."""

    @property
    def usable_bytes(self) -> float:
        """Capacity for a training step."""
        return self.capacity - self.reserved


class DeviceSpec(CatalogSpec):
    """A GPU or a wafer."""

    kind: DeviceKind
    peak: dict[Precision, FlopPerSecond]
    vector_peak: dict[Precision, FlopPerSecond] = Field(default_factory=dict)
    """Peak of the units outside the matrix cores, which compute matrices of odd sizes."""
    memory: MemorySpec
    compute_units: Annotated[int, *number(1, 1e8)]
    """Streaming multiprocessors of a GPU, cores of a wafer."""
    power: Watts | None = None
    calibration: GpuCalibration | WaferCalibration | None = None
    """None in the file of a GPU: that of the nearest one."""
    chip: str = ""
    """Name of a device with the same chip but another memory or links, whose calibration this one has."""

    def computes(self, precision: Precision) -> bool:
        """Whether it has matrix products at a precision."""
        return precision in self.peak or PEAK_OF.get(precision) in self.peak

    def peak_flop_per_s(self, precision: Precision) -> float:
        """Datasheet peak of matrix products at a precision. Raises CatalogError where it has none."""
        if not self.computes(precision):
            known = ", ".join(sorted(self.peak))
            raise CatalogError(f"{self.name} has no peak for {precision}; it has {known}")
        return self.peak[precision if precision in self.peak else PEAK_OF[precision]]

    @property
    def constants(self) -> str:
        """Name of its constants, one for all memories of a chip; its own name if it has none."""
        if self.calibration is None:
            return self.name
        return getattr(self.calibration, "chip", "") or self.calibration.name


class LinkSpec(CatalogSpec):
    """A link in one direction: bytes per second, and seconds for the first byte."""

    bandwidth: BytesPerSecond
    latency: Latency
    calibration: CollectiveCalibration | None = None
    """Measured performance of collectives on this link."""


class InNetworkSpec(Spec):
    """In-network reduction (SHARP): an all-reduce crosses each device's link once in each direction."""

    bandwidth: BytesPerSecond
    """Message size over time of a long all-reduce; the bus bandwidth of nccl-tests is 2 (n - 1) / n of it."""
    latency: Latency
    """Start-up of the library before the first byte; across nodes the hops of the tree are added."""
    enabled: bool = True
    """False: the switches can do it, and the library is told not to."""


class TierSpec(Spec):
    """A memory or storage of a server, by capacity and bandwidth."""

    capacity: Bytes
    bandwidth: BytesPerSecond
    """Reads and writes together."""


class HostSpec(Spec):
    """A CPU with its memory, storage behind it, and the link of each of its devices to it."""

    devices: Devices
    """Devices that share it."""
    link: BytesPerSecond
    """Between a device and the host, in each direction."""
    memory: TierSpec
    nvme: TierSpec | None = None
    """Local drives of these devices together; None: offload to drives is refused."""
    optimizer_fraction: Annotated[float, *number(1e-3, 1)]
    """Share of the memory's bandwidth that an optimizer on the CPU reaches."""


class NodeSpec(Spec):
    """A server, or an NVLink domain of several: devices on one switch, and NICs that all share equally."""

    devices: Devices
    server: Devices | None = None
    """Devices of one server, where a node is a domain of several; None: the node is one server.

    A job that needs several domains takes as many whole servers of each, if its devices can be divided so.
    """
    scale_up: LinkSpec
    """From one device into the node's switch, or to one other device of a full mesh; one direction."""
    full_mesh: bool = False
    """Whether each device has a link to every other one of its node, and there is no switch."""
    nics: Devices
    nic: LinkSpec
    devices_share_nics: bool = False
    """Whether several devices share one NIC although `nics` counts one per device."""

    in_network: InNetworkSpec | None = None
    """NVLink SHARP for all-reduces inside the node; None: only devices reduce."""
    host: HostSpec | None = None
    """Host memory of a server; None: offload to it is refused."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.server is not None and self.devices % self.server:
            raise ValueError(f"{self.devices} devices cannot be divided into servers of {self.server}")
        if self.full_mesh and self.devices > MOST_MESH:
            raise ValueError(f"a full mesh has at most {MOST_MESH} devices, not {self.devices}")
        return self

    def lanes(self, size: int) -> int:
        """Links of `scale_up` that a device has to the others of a group of `size` in its node."""
        return max(1, size - 1) if self.full_mesh else 1

    def of_job(self, num_devices: int) -> Self:
        """The node as a job uses it: of several servers, the most that it can take of every node alike."""
        if self.server is None or num_devices <= self.devices:
            return self
        sizes = range(self.devices - self.devices % self.server, 0, -self.server)
        used = next((size for size in sizes if num_devices % size == 0), self.devices)
        nics = self.nics * used
        if nics % self.devices:
            return self
        return self.model_copy(update={"devices": used, "nics": nics // self.devices})

    @property
    def has_shared_nics(self) -> bool:
        """Whether several devices share a NIC."""
        return self.devices_share_nics or self.nics < self.devices

    @property
    def inter_node_bytes_per_s(self) -> float:
        """Bandwidth of all NICs of the node, one direction."""
        return self.nics * self.nic.bandwidth


class FatTreeSpec(Spec):
    """A two-level fat tree: leaf switches under spines; oversubscription 1 is non-blocking."""

    nodes_per_leaf: Devices
    oversubscription: Annotated[float, *number(1, 1e4)] = 1.0
    switch_latency: Latency
    in_network: InNetworkSpec | None = None
    """InfiniBand SHARP for all-reduces across nodes; None: only devices reduce."""


class PowerSpec(Spec):
    """Power in training of a node, or of a wafer-scale system with its share of the servers."""

    low: Watts
    typical: Watts
    high: Watts
    idle: Watts | None = None
    """While its devices wait; None: not known, and waiting counts as computing."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.typical <= self.high:
            raise ValueError("low, typical and high must be in this order")
        if self.idle is not None and self.idle > self.low:
            raise ValueError("idle must not be above low, the least power in training")
        return self
