"""What wafers stream from: weight and activation servers, their drives, and the network between."""

from __future__ import annotations

from typing import Annotated, Literal

from perfsim.calibration import Latency
from perfsim.hardware.parts import Parts, StoreTier, TierSpec
from perfsim.sizes import MOST_DEVICES, MOST_LAYERS
from perfsim.spec import Spec
from perfsim.units import Bytes, BytesPerSecond, FlopPerSecond, number, quantity


class FlashSpec(TierSpec):
    """The flash of a weight server."""

    duplex: bool = False
    """Whether reads and writes have the bandwidth each; else they share it."""


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
    """Location of the streamed copy of the weights; auto: DRAM if it fits."""
    optimizer_state_in: StoreTier
    """Location of master weights, moments and summed gradients; auto: DRAM if they fit."""

    @property
    def bandwidth(self) -> float:
        """Bandwidth of all servers in each direction."""
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
