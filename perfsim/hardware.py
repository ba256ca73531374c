"""What exists: devices, links, nodes and systems, as frozen descriptions in SI units.

A description is read from `hardware/**/*.yaml` by `perfsim.catalog`; quantities are strings with a
unit there and floats in SI here. Datasheet facts live in these classes, fitted constants in
`perfsim.calibration`, and a description only names the calibration it uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    PositiveInt,
    model_validator,
)

from perfsim.calibration import CollectiveCalibration, GpuCalibration, WaferCalibration
from perfsim.sizes import MOST_DEVICES
from perfsim.spec import CatalogSpec, Spec
from perfsim.units import Bytes, BytesPerSecond, FlopPerSecond, Seconds, Watts

Devices = Annotated[PositiveInt, Field(le=MOST_DEVICES)]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
DeviceKind = Literal["gpu", "wafer"]
StoreTier = Literal["auto", "dram", "flash"]


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

    kind: DeviceKind
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


class InNetworkSpec(Spec):
    """Switches that sum in passing (SHARP): an all-reduce crosses each device's link once each way."""

    bandwidth: Annotated[BytesPerSecond, Field(gt=0)]
    """Message over time of a long all-reduce. What nccl-tests calls bus bandwidth is 2 (n - 1) / n of it."""
    latency: Seconds
    """Before the first byte, the library's start-up; across nodes the hops of the tree come on top."""


class NodeSpec(Spec):
    """A server: devices behind one switch, and NICs that all devices share equally."""

    devices: Devices
    scale_up: LinkSpec
    """From one device into the node's switch, one direction."""
    nics: Devices
    nic: LinkSpec
    devices_share_nics: bool = False
    """Several devices stand beside one NIC, though `nics` counts a share of it for each device."""

    in_network: InNetworkSpec | None = None
    """Of all-reduces inside the node (NVLink SHARP); None: the devices alone sum."""

    @property
    def has_shared_nics(self) -> bool:
        """Whether devices have to share the NIC that they stand beside."""
        return self.devices_share_nics or self.nics < self.devices

    @property
    def inter_node_bytes_per_s(self) -> float:
        """All NICs of the node together, one direction."""
        return self.nics * self.nic.bandwidth


class FatTreeSpec(Spec):
    """A two-level fat tree: leaf switches under spines; oversubscription 1 is non-blocking."""

    nodes_per_leaf: Devices
    oversubscription: Annotated[float, Field(ge=1.0)] = 1.0
    switch_latency: Seconds
    in_network: InNetworkSpec | None = None
    """Of all-reduces across nodes (InfiniBand SHARP); None: the devices alone sum."""


class SystemSpec(CatalogSpec):
    """A machine of some kind; the number of its devices is the question's, not the system's.

    A field of this type takes a system of every kind in `system_classes`; its key `kind` chooses.
    """

    kind: str
    device: DeviceSpec

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if cls is not SystemSpec or not isinstance(value, Mapping):
            return handler(value)
        classes = system_classes()
        kind = value.get("kind")
        if kind not in classes:
            raise ValueError(f"kind {kind!r} is not one of {', '.join(classes)}")
        return cast(Self, classes[kind].model_validate(value))


class GpuClusterSpec(SystemSpec):
    """Nodes of GPUs under a fat tree; the number of nodes is the question's, not the system's."""

    kind: Literal["gpu-cluster"]
    node: NodeSpec
    fabric: FatTreeSpec


class TierSpec(Spec):
    """One medium of a weight server."""

    capacity: Bytes
    bandwidth: Annotated[BytesPerSecond, Field(gt=0)]
    """Of reads and writes together."""


class FlashSpec(TierSpec):
    """The flash of a weight server."""

    duplex: bool = False
    """Whether reads and writes each have the bandwidth; else they share it."""


class WeightServerSpec(Spec):
    """One server of MemoryX: it stores a part of the parameters and updates them."""

    bandwidth: Annotated[BytesPerSecond, Field(gt=0)]
    """Each way, towards SwarmX."""
    dram: TierSpec
    flash: FlashSpec | None = None
    arithmetic: Annotated[FlopPerSecond, Field(gt=0)]
    """Of the optimizer."""


class MemoryXSpec(Spec):
    """The store of weights and optimizer state on weight servers, with the arithmetic of the optimizer."""

    servers: PositiveInt
    server: WeightServerSpec
    placement: Literal["sharded", "by_layer"]
    """sharded: every server holds a part of each layer, so that a layer comes from all at once;
    by_layer: a layer lies on one server, the next one on the next."""
    weights_in: StoreTier
    """Where the copy of the weights lies that is streamed; auto: DRAM where it fits."""
    optimizer_state_in: StoreTier
    """Where master weights, moments and summed gradients lie; auto: DRAM where they fit."""

    @property
    def bandwidth(self) -> float:
        """Each way, all servers together."""
        return self.servers * self.server.bandwidth

    @property
    def dram_bytes(self) -> float:
        """DRAM of all servers."""
        return self.servers * self.server.dram.capacity

    @property
    def flash_bytes(self) -> float:
        """Flash of all servers."""
        return self.servers * self.server.flash.capacity if self.server.flash else 0.0


class ActivationServersSpec(Spec):
    """The servers beside each system that feed it samples and may keep activations for it."""

    per_system: PositiveInt
    bandwidth: Annotated[BytesPerSecond, Field(gt=0)]
    """Of one server, each way."""
    capacity: Bytes
    """Of one server."""
    bytes_per_token: Annotated[float, Field(ge=0)]
    """Of a sample on the wire."""
    prefetch: PositiveInt
    """Micro-batches of samples that may lie ready before they are used."""


class StreamingSpec(Spec):
    """How weights and gradients stream: what the software chooses, and a researcher may vary."""

    prefetch_depth: Annotated[int, Field(ge=0)]
    """Layers whose weights may be sent ahead of the one that computes."""
    weights_held: Literal["chunk", "layer"]
    """What a wafer holds of a layer on its way: a chunk, used as it arrives, or all of it."""
    accumulate_at: Literal["memoryx", "swarmx", "wafer"]
    """Where the gradients of a step's micro-batches are summed."""
    staged_layers: PositiveInt
    """Layers read from flash into DRAM ahead of the one that is sent."""
    sparse_index_overhead: Annotated[float, Field(ge=0)]
    """Bytes of an index for each byte of a kept weight of a sparse matrix."""
    sparse_harvest: Annotated[float, Field(ge=0, le=1)]
    """Share of the multiplications by zero that are saved: h. A matrix takes 1 - h s of its time."""


class SwarmXSpec(Spec):
    """The tree that broadcasts weights down and sums gradients up, at line rate."""

    fan_out: Annotated[int, Field(ge=2)]
    bandwidth: BytesPerSecond
    """Each way, towards one system."""
    hop_latency: Seconds
    chunk: Annotated[Bytes, Field(gt=0)]
    """What a tree node forwards at once: the unit of pipelining."""
    duplex: bool = True
    """Whether weights down and gradients up each have the bandwidth of a link; else they share it."""


class WaferClusterSpec(SystemSpec):
    """Wafer-scale systems under a SwarmX tree, fed by one MemoryX and by activation servers of their own."""

    kind: Literal["wafer-cluster"]
    io_ports: Devices
    io_link: LinkSpec
    memoryx: MemoryXSpec
    swarmx: SwarmXSpec
    activation_servers: ActivationServersSpec
    streaming: StreamingSpec
    max_systems: Devices
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


SYSTEM_CLASSES: dict[str, type[SystemSpec]] = {
    "gpu-cluster": GpuClusterSpec,
    "wafer-cluster": WaferClusterSpec,
}
"""Systems by their kind; `perfsim.machines.register` adds to them."""
MACHINE_PLUGINS = "perfsim.machines"
"""Entry points of kinds of machine in other packages."""


def system_classes() -> dict[str, type[SystemSpec]]:
    """The classes of systems by kind, those of installed plug-ins included."""
    return _plugin_classes() | SYSTEM_CLASSES


@cache
def _plugin_classes() -> dict[str, type[SystemSpec]]:
    return {point.name: point.load().system_type for point in entry_points(group=MACHINE_PLUGINS)}
