"""Seconds of offload: copies between a GPU and its host, drives behind it, and the optimizer on the CPU.

All devices of a host do the same at the same time, so each has its share of the host's memory and drives:

    copy         bytes / min(link, memory / devices [, drives / devices])
    optimizer    max(bytes / (fraction memory / devices), bytes of drives / (drives / devices))

Copies are made by the GPU's copy engines, which take nothing from its compute.
"""

from __future__ import annotations

from perfsim.errors import CatalogError
from perfsim.graph import Work
from perfsim.hardware import GpuClusterSpec, HostSpec

LOADS = ("host.load", "nvme.load")
STORE = "host.store"
UPDATES = ("host.update", "nvme.update")
HOST_OPERATIONS = frozenset({*LOADS, STORE, *UPDATES})
"""Operations that a host prices: copies to the device, from it, and updates."""


class HostCosts:
    """Prices offload on one system; CatalogError where it describes no host."""

    def __init__(self, system: GpuClusterSpec, num_devices: int) -> None:
        self.system = system
        self.num_devices = num_devices

    @property
    def host(self) -> HostSpec:
        """The host of the system's nodes."""
        if self.system.node.host is None:
            raise CatalogError(f"{self.system.name} describes no host memory (node.host)")
        return self.system.node.host

    @property
    def sharing(self) -> int:
        """Devices that share a host's memory."""
        return min(self.host.devices, self.num_devices)

    def rate_bytes_per_s(self, op: str) -> float:
        """Bytes/s of a copy while all devices of the host make one."""
        rate = min(self.host.link, self.host.memory.bandwidth / self.sharing)
        return min(rate, self.drives_bytes_per_s) if op.startswith("nvme") else rate

    @property
    def drives_bytes_per_s(self) -> float:
        """A device's share of the drives."""
        if self.host.nvme is None:
            raise CatalogError(f"{self.system.name} describes no local drives (node.host.nvme)")
        return self.host.nvme.bandwidth / self.sharing

    def duration_s(self, work: Work) -> float:
        """Seconds of one task: a copy of `comm_bytes`, or an update.

        The kernels of an update move its bytes in the host's memory, `comm_bytes` go to and from drives.
        """
        if work.op not in UPDATES:
            return work.comm_bytes / self.rate_bytes_per_s(work.op)
        memory = self.host.optimizer_fraction * self.host.memory.bandwidth / self.sharing
        seconds = work.bytes_accessed / memory
        return max(seconds, work.comm_bytes / self.drives_bytes_per_s) if work.comm_bytes else seconds
