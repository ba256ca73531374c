"""Hardware descriptions: devices, links, nodes and systems, frozen, in SI units.

`perfsim.catalog` reads them from `hardware/**/*.yaml`, where quantities are strings with a unit. They
hold datasheet values; fitted constants are in `perfsim.calibration`, and a description names its calibration.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from pydantic import create_model, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler  # later releases have it at their top
from pydantic_core import PydanticCustomError

from perfsim.hardware.parts import (
    BytesPerNumber,
    DeviceKind,
    Devices,
    DeviceSpec,
    FatTreeSpec,
    HostSpec,
    InNetworkSpec,
    LinkSpec,
    MemorySpec,
    NodeSpec,
    PowerSpec,
    Precision,
    Release,
    TierSpec,
)
from perfsim.hardware.streaming import (
    ActivationServersSpec,
    FlashSpec,
    MemoryXSpec,
    StreamingSpec,
    SwarmXSpec,
    WeightServerSpec,
)
from perfsim.plug_ins import PlugInError, made_by
from perfsim.spec import CountedSpec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "MACHINE_PLUGINS",
    "SYSTEM_CLASSES",
    "ActivationServersSpec",
    "DeviceKind",
    "DeviceSpec",
    "Devices",
    "FatTreeSpec",
    "FlashSpec",
    "GpuClusterSpec",
    "HostSpec",
    "InNetworkSpec",
    "LinkSpec",
    "MemorySpec",
    "MemoryXSpec",
    "NodeSpec",
    "Precision",
    "Release",
    "StreamingSpec",
    "SwarmXSpec",
    "SystemSpec",
    "TierSpec",
    "WaferClusterSpec",
    "WeightServerSpec",
    "system_classes",
]


class SystemSpec(CountedSpec):
    """A machine of some kind; the question, not the system, gives the number of devices.

    A field of this type accepts a system of any kind in `system_classes`, chosen by its key `kind`.
    """

    kind: str
    device: DeviceSpec
    power: PowerSpec | None = None
    """Before cooling; None: not known, and an answer says so."""

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
    """Nodes of GPUs under a fat tree."""

    kind: Literal["gpu-cluster"]
    node: NodeSpec
    fabric: FatTreeSpec

    def machine(self, devices: int) -> str:
        """The devices in words, with the nodes that they fill: `128 A100-80GB (16 DGX)`."""
        words, nodes = super().machine(devices), devices // self.node.of_job(devices).devices
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
    software_release: Release
    """The software release whose efficiency is used unless the recipe names another."""
    weight_bytes: BytesPerNumber
    """Bytes of a weight on the wire."""
    gradient_bytes: BytesPerNumber
    """Bytes of a gradient on the wire."""

    @property
    def io_bytes_per_s(self) -> float:
        """I/O bandwidth of one system, one direction."""
        return self.io_ports * self.io_link.bandwidth


SYSTEM_CLASSES: dict[str, type[SystemSpec]] = {
    "gpu-cluster": GpuClusterSpec,
    "wafer-cluster": WaferClusterSpec,
}
"""System classes by kind; `perfsim.machines.register` adds to them."""
MACHINE_PLUGINS = "perfsim.machines"
"""Entry-point group of kinds of machine in other packages."""


def system_classes() -> dict[str, type[SystemSpec]]:
    """System classes by kind, including those of installed plug-ins."""
    return _plugin_classes() | SYSTEM_CLASSES


@cache
def _plugin_classes() -> dict[str, type[SystemSpec]]:
    from importlib.metadata import entry_points  # only where a file of a system is read

    return {point.name: _plugin_class(point) for point in entry_points(group=MACHINE_PLUGINS)}


def _plugin_class(point: EntryPoint) -> type[SystemSpec]:
    """The system class of a plug-in; for one that cannot be used, a class that refuses its systems."""
    try:
        return made_by(point, _system_type)
    except PlugInError as error:
        kind: Any = (Literal[point.name], ...)
        unusable = create_model(f"Unusable {point.name}", __base__=_Unusable, kind=kind)
        unusable.reason = str(error)
        return unusable


class _Unusable(SystemSpec):
    """A system of a plug-in that cannot be used; every description of one is refused."""

    reason: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, _data: Any) -> Any:
        raise PydanticCustomError("plug_in", "{message}", {"message": cls.reason, "help": ""})


def _system_type(machine: Any) -> type[SystemSpec]:
    system_type = machine.system_type
    if not (isinstance(system_type, type) and issubclass(system_type, SystemSpec)):
        raise TypeError(f"its system_type is {system_type!r}, which is no SystemSpec")
    return system_type
