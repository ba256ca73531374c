"""Hardware descriptions of `hardware/**/*.yaml`, in SI units: devices, links, nodes and systems.

They hold datasheet values; fitted constants are in the calibration that a description names.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, cast

from pydantic import AfterValidator, Field, create_model, field_validator, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from perfsim.base.errors import CatalogError, InputError, PerfsimError, made_by, plug_ins
from perfsim.base.sizes import MOST_DEVICES, MOST_LAYERS, MOST_MESH, MOST_PARTS
from perfsim.base.spec import CatalogSpec, DatedSpec, Name, Spec
from perfsim.base.units import Bytes, BytesPerSecond, FlopPerSecond, Watts, number, quantity
from perfsim.specs.calibration import CollectiveCalibration, GpuCalibration, Latency, WaferCalibration
from perfsim.specs.precisions import PRECISIONS, Precision
from perfsim.specs.wall_clock import Range

Devices = Annotated[int, *number(1, MOST_DEVICES)]


def _release(name: str) -> str:
    if re.fullmatch(r"peak|[rR]?[0-9]{1,3}(\.[0-9]{1,3}){0,2}", name):
        return name
    raise InputError(f"software release {name[:60]!r} is not of the form r2.0", "write for example r2.0")


Release = Annotated[str, AfterValidator(_release)]
"""A software release of a wafer, or `peak`: an upper bound."""
Parts = Annotated[int, *number(1, MOST_PARTS)]
BytesPerNumber = Annotated[float, *number(1e-3, 1e3)]
DeviceKind = Literal["gpu", "wafer"]
LinkProtocol = Literal["infiniband", "roce"]
StoreTier = Literal["auto", "dram", "flash"]


class MemorySpec(Spec):
    """A memory with its capacity and bandwidth."""

    capacity: Annotated[float, *quantity("bytes", least=1.0, bits=False)]
    bandwidth: Annotated[float, *quantity("bytes_per_s", bits=False)]
    reserved: Annotated[float, *quantity("bytes", bits=False)] = 0.0
    """Not available to a training step: context, communication buffers, fragmentation; on a wafer, code."""
    cache: Bytes = 0.0
    """Size of its last-level cache."""


class DeviceSpec(DatedSpec):
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
    """None in the file of a GPU: the calibration of the nearest one."""
    chip: str = ""
    """Name of a device with the same chip but another memory or links, whose calibration this one has."""
    generation: str = ""
    """Generation of chips to which it belongs; empty: it is one of its own."""

    def computes(self, precision: Precision) -> bool:
        """Whether it has matrix products at a precision."""
        return self.peak_of(precision) in self.peak

    def peak_of(self, precision: Precision) -> Precision:
        """The precision at whose datasheet peak products at a precision run."""
        return precision if precision in self.peak else PRECISIONS[precision].peak_of or precision

    def peak_flop_per_s(self, precision: Precision) -> float:
        """Datasheet peak of matrix products at a precision. Raises CatalogError where it has none."""
        if self.computes(precision):
            return self.peak[self.peak_of(precision)]
        known = ", ".join(sorted(self.peak))
        raise CatalogError(f"{self.name} has no peak for {precision}; it has {known}")

    @property
    def constants(self) -> str:
        """Name of its constants, one for all memories of a chip; its own name if it has none."""
        if self.calibration is None:
            return self.name
        return getattr(self.calibration, "chip", "") or self.calibration.name


class LinkSpec(DatedSpec):
    """A link in one direction: bytes per second, and seconds for the first byte."""

    bandwidth: BytesPerSecond
    latency: Latency
    protocol: LinkProtocol | None = None
    """What a NIC speaks; None: nothing is known, or the link joins devices of one node."""
    calibration: CollectiveCalibration | None = None
    """Measured performance of collectives on this link."""


class _InNetworkSpec(Spec):
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
    in_network: _InNetworkSpec | None = None
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
        """The node as a job uses it: of several servers the most, above a quarter, that all nodes share."""
        if self.server is None or num_devices <= self.devices:
            return self
        sizes = range(self.devices - self.devices % self.server, self.devices // 4, -self.server)
        used = next((size for size in sizes if num_devices % size == 0), self.devices)
        nics = self.nics * used
        if nics % self.devices:
            return self
        return self.model_copy(update={"devices": used, "nics": nics // self.devices})

    @property
    def inter_node_bytes_per_s(self) -> float:
        """Bandwidth of all NICs of the node, one direction."""
        return self.nics * self.nic.bandwidth


class FatTreeSpec(Spec):
    """A two-level fat tree: leaf switches under spines; oversubscription 1 is non-blocking."""

    nodes_per_leaf: Devices
    oversubscription: Annotated[float, *number(1, 1e4)] = 1.0
    switch_latency: Latency
    in_network: _InNetworkSpec | None = None
    """InfiniBand SHARP for all-reduces across nodes; None: only devices reduce."""


class PowerSpec(Range[Watts]):
    """Power in training of a node, or of a wafer-scale system with its share of the servers."""

    idle: Watts | None = None
    """While its devices wait; None: not known, and waiting counts as computing."""

    @model_validator(mode="after")
    def _idle_is_least(self) -> Self:
        if self.idle is not None and self.idle > self.low:
            raise ValueError("idle must not be above low, the least power in training")
        return self


# What wafers stream from: weight and activation servers, their drives, and the network between.


class FlashSpec(TierSpec):
    """The flash of a weight server."""

    duplex: bool = False
    """Whether reads and writes have the bandwidth each; else they share it."""


class _StoreTotal(NamedTuple):
    """A tier of the store outside the devices, over all its servers."""

    name: str
    capacity_bytes: float
    bytes_per_s: float
    counted: str
    """Where its figures come from."""


class WeightServerSpec(Spec):
    """One MemoryX server, which stores and updates a part of the parameters."""

    bandwidth: BytesPerSecond
    """In each direction, towards SwarmX."""
    dram: TierSpec
    flash: FlashSpec | None = None
    arithmetic: FlopPerSecond
    """Rate of the optimizer's arithmetic."""


class MemoryXSpec(Spec):
    """MemoryX: weight servers that store weights and optimizer state and run the optimizer."""

    servers: Parts
    server: WeightServerSpec
    placement: Literal["sharded", "by_layer"]
    """sharded: every server stores a part of each layer, so all servers send a layer together;
    by_layer: a layer is on one server, the next layer on the next server."""
    weights_in: StoreTier
    """Location of the streamed copy of the weights; auto: DRAM as far as it goes."""
    optimizer_state_in: StoreTier
    """Location of summed gradients, master weights and moments; auto: DRAM first, in this order."""

    @property
    def bandwidth(self) -> float:
        """Bandwidth of all servers in each direction."""
        return self.servers * self.server.bandwidth

    @property
    def tiers(self) -> tuple[_StoreTotal, ...]:
        """DRAM and flash of all servers, the faster first."""
        of = f"{self.servers} servers, each as below"
        stores = {"DRAM": self.server.dram, "flash": self.server.flash}
        return tuple(
            _StoreTotal(f"MemoryX {name}", self.servers * store.capacity, self.servers * store.bandwidth, of)
            for name, store in stores.items()
            if store is not None
        )

    @property
    def dram_bytes(self) -> float:
        return self.servers * self.server.dram.capacity

    @property
    def flash_bytes(self) -> float:
        return self.servers * self.server.flash.capacity if self.server.flash else 0.0


class ActivationServersSpec(Spec):
    """Servers of each system that provide samples and may store its activations."""

    per_system: Parts
    bandwidth: BytesPerSecond
    """One server, in each direction."""
    capacity: Bytes
    """One server."""
    bytes_per_token: Annotated[float, *number(0, 1e9)]
    """Bytes of a sample on the wire, per token."""
    prefetch: Parts
    """Micro-batches of samples that may be buffered ahead of use."""


class StreamingSpec(Spec):
    """How weights and gradients are streamed: choices of the software, which studies may vary."""

    prefetch_depth: Annotated[int, *number(0, MOST_LAYERS)]
    """Layers whose weights may be sent ahead of the computing layer."""
    weights_held: Literal["chunk", "layer"]
    """How much of an arriving layer a wafer holds: a chunk, used on arrival, or the whole layer."""
    micro_batch_tokens: Annotated[int, *number(1, 10**12)] = 10**12
    """Most tokens of a micro-batch of a system that the software makes by itself."""
    attention_tiles: Annotated[int, *number(1, 4096)] = 1
    """Tiles of a micro-batch in which models with experts compute attention; 1: as a whole.

    Experts get the tokens of all tiles at once, so that each of their rows is used for more tokens. A
    layer's activations take the memory of one tile [batch tiling on attention, doi 10.1145/3731599.3767407].
    """
    accumulate_at: Literal["memoryx", "swarmx", "wafer"]
    """Where the gradients of a step's micro-batches are summed."""
    staged_layers: Annotated[int, *number(1, MOST_LAYERS)]
    """Layers read from flash into DRAM ahead of the layer that is sent."""
    sparse_index_overhead: Annotated[float, *number(0, 100)]
    """Index bytes per byte of a kept weight of a sparse matrix."""
    sparse_harvest: Annotated[float, *number(0, 1)]
    """Share h of multiplications by zero that are skipped; a matrix takes 1 - h s of its dense time."""


class SwarmXSpec(Spec):
    """The tree that broadcasts weights down and sums gradients up, at line rate."""

    fan_out: Annotated[int, *number(2, MOST_DEVICES)]
    bandwidth: BytesPerSecond
    """In each direction, towards one system."""
    hop_latency: Latency
    chunk: Annotated[float, *quantity("bytes", least=1.0)]
    """Unit in which a tree node forwards data, and thus of pipelining."""
    duplex: bool = True
    """Whether weights down and gradients up have the bandwidth of a link each; else they share it."""


class _NounSpec(Spec):
    """What people call a device of a system, and a node of several."""

    device: Name
    node: str = ""
    """Empty where nobody counts nodes."""


class SystemSpec(CatalogSpec):
    """A machine of some kind; the question, not the system, gives the number of devices.

    A field of this type accepts a system of any kind in `system_classes`, chosen by its key `kind`.
    """

    noun: _NounSpec | None = None
    """Not inherited, since a file that extends another may name another device."""
    kind: str
    device: DeviceSpec
    power: PowerSpec | None = None
    """Before cooling; None: not known, and an answer says so."""

    def with_(self, **changes: Any) -> Self:
        """A copy with some values changed; under another name it has no noun, unless one is given."""
        changed = super().with_(**changes)
        keeps = changed.name == self.name or "noun" in changes
        return changed if keeps else changed.model_copy(update={"noun": None})

    @property
    def devices_noun(self) -> str:
        """Several of its devices: `A100-80GB`; without a noun `devices of NAME`."""
        return self.noun.device if self.noun else f"devices of {self.name}"

    @property
    def stores(self) -> tuple[_StoreTotal, ...]:
        """Tiers of memory that all its devices share; none where every device has its own."""
        return ()

    def machine(self, devices: int) -> str:
        """So many of its devices in words: `128 A100-80GB (16 DGX)`, `16 CS-2`."""
        if self.noun is None:
            return f"{devices:,} device{'' if devices == 1 else 's'} of {self.name}"
        return f"{devices:,} {self.noun.device}"

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if cls is not SystemSpec or not isinstance(value, Mapping):
            return handler(value)
        classes = system_classes()
        kind = value.get("kind")
        if not isinstance(kind, str) or kind not in classes:
            raise ValueError(f"kind {kind!r} is not one of {', '.join(classes)}")
        return cast(Self, classes[kind].model_validate(value))


class GpuClusterSpec(SystemSpec):
    """Nodes of GPUs under a fat tree."""

    kind: Literal["gpu-cluster"]
    node: NodeSpec
    fabric: FatTreeSpec

    @field_validator("device")
    @classmethod
    def _is_a_gpu(cls, device: DeviceSpec) -> DeviceSpec:
        if device.kind != "gpu":
            message = f"`{device.name}` is of kind {device.kind}; a gpu-cluster has devices of kind gpu"
            help_text = "name a GPU, such as h100-sxm5-80gb, or extend a wafer-cluster, such as cs-2"
            raise InputError(message, help_text)
        return device

    def machine(self, devices: int) -> str:
        """The devices in words, with the nodes that they fill: `128 A100-80GB (16 DGX)`."""
        words = super().machine(devices)
        nodes = devices // self.node.of_job(devices).devices
        if self.noun is None or not self.noun.node or nodes == 0:
            return words
        return f"{words} ({nodes:,} {self.noun.node})"


class WaferClusterSpec(SystemSpec):
    """Wafer-scale systems under a SwarmX tree, with one MemoryX and activation servers per system."""

    kind: Literal["wafer-cluster"]
    io_ports: Devices
    io_link: LinkSpec
    memoryx: MemoryXSpec
    swarmx: SwarmXSpec
    activation_servers: ActivationServersSpec
    streaming: StreamingSpec
    max_systems: Devices
    loss_per_doubling: Annotated[float, *number(0, 0.5)] = 0.0
    """Share of speed that every doubling of the systems loses beyond what the tree explains."""
    speed_spread: Annotated[float, *number(0, 0.5)] = 0.0
    """Standard deviation of the times of systems at the same work, as a share; all wait for the slowest."""
    software_release: Release
    """The software release whose efficiency is used unless the recipe names another."""
    weight_bytes: BytesPerNumber
    """Bytes of a weight on the wire."""
    gradient_bytes: BytesPerNumber
    """Bytes of a gradient on the wire."""

    @property
    def stores(self) -> tuple[_StoreTotal, ...]:
        """The tiers of MemoryX, which is one for all systems."""
        return self.memoryx.tiers

    @property
    def io_bytes_per_s(self) -> float:
        """I/O bandwidth of one system, one direction."""
        return self.io_ports * self.io_link.bandwidth


SYSTEM_CLASSES: dict[str, type[SystemSpec]] = {
    "gpu-cluster": GpuClusterSpec,
    "wafer-cluster": WaferClusterSpec,
}
"""System classes by kind; `perfsim.machines.register` adds to them."""


def system_classes() -> dict[str, type[SystemSpec]]:
    """System classes by kind, with the classes of installed plug-ins."""
    return _plugin_classes() | SYSTEM_CLASSES


@cache
def _plugin_classes() -> dict[str, type[SystemSpec]]:
    """The system classes of plug-ins; for one that cannot be used, a class that refuses its systems."""
    classes: dict[str, type[SystemSpec]] = {}
    for point in plug_ins("machines"):
        try:
            classes[point.name] = made_by(point, _system_type)
        except PerfsimError as error:
            kind: Any = (Literal[point.name], ...)
            unusable = create_model(f"Unusable {point.name}", __base__=_Unusable, kind=kind)
            unusable.reason = str(error)
            classes[point.name] = unusable
    return classes


class _Unusable(SystemSpec):
    """A system of a plug-in that cannot be used; every description of one is refused."""

    reason: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, _data: Any) -> Any:
        raise InputError(cls.reason)


def _system_type(machine: Any) -> type[SystemSpec]:
    system_type = machine.system_type
    if not (isinstance(system_type, type) and issubclass(system_type, SystemSpec)):
        raise TypeError(f"its system_type is {system_type!r}, which is no SystemSpec")
    return system_type
