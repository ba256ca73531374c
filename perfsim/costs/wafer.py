"""Seconds of work where weights stream: on a wafer cluster, and on GPUs under a SwarmX tree.

ZeRO 3 with its parameters in an external store is weight streaming: MemoryX broadcasts a layer through
SwarmX, each GPU computes its slice of the batch, and gradients are summed on the way back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from perfsim.base.errors import CatalogError
from perfsim.costs.gpu import GpuKernels, peak_flop_per_s
from perfsim.costs.price import Costs
from perfsim.network import WaferTree
from perfsim.network.wafer_tree import POOLS, STREAMS, Stream, Way
from perfsim.specs.calibration import WaferCalibration
from perfsim.specs.recipe import Recipe
from perfsim.work import Work
from perfsim.work.kernels import Kernel

# Matrix products on a square mesh of cores, and the movement over the links of the mesh.
#
# A product of (m, k) by (k, n) keeps its left operand stationary, spread over the mesh: tokens along one
# axis, features along the other. The right operand (k n elements) moves along one axis, the partial sums
# (m n) along the other. With c cores, c^0.5 in a row, each link carries (k + m) n / c^0.5 elements:
#
#     seconds = 2 m n k / (e P) + (m + k) n / c^0.5 t
#
# with e P FLOP/s reached and t seconds per element and link.
#
# This is the communication of SUMMA [van de Geijn, Watts 1997] with one stationary operand. FLOPs grow with
# all three sides of a product and movement with two, so utilisation falls for smaller layers: by
# 1/(1 + t e P/(2 c^0.5 k)) for many tokens. A batch of b products (attention heads) divides the mesh into b
# squares with c^0.5 / b^0.5 cores in a row, which work in parallel: (m + k) n b^0.5 / c^0.5 t. Experts take
# the whole mesh one after another, as their weights arrive: b (m + k) n / c^0.5 t with m rows of one
# expert. Their FLOPs are those of the k experts of a token, the movement that of all, so their intensity is
# k / E of a dense MLP's.
#
# Kernels that are not matrix products read and write SRAM at its full rate.

# Seconds of movement around a wafer: weights, gradients, samples, spilled activations, updates.
#
# Weights and gradients cross the tree at line rate: a layer occupies MemoryX and the tree for its bytes over
# the bandwidth of the slowest link, and its first byte takes one hop and one chunk per level. MemoryX has
# many weight servers: all of them send, read and update a layer that is sharded over them; a layer on a
# single server moves at the rate of that server. An update takes the longer of its memory traffic and its
# arithmetic.
#
# Not counted: adding the gradients of micro-batches in MemoryX. That moves 10 B per parameter in DRAM for 2 B
# on the wire, which is hidden where a server's DRAM is five times as fast as its port (12 times on CS-2).


_COMPUTES = Stream("link", "down", ())


class StreamCosts(Costs):
    """Prices movement on one wafer cluster; what its devices compute is priced by its kinds."""

    def __init__(self, topology: WaferTree) -> None:
        system = self.system = topology.system
        store = system.memoryx
        self.shares = store.servers if store.placement == "sharded" else 1
        """Servers that work on one layer."""
        rated = topology.edges.rated
        links = dict.fromkeys(POOLS, self.shares) | {"feed": system.activation_servers.per_system}
        self.bytes_per_s = {kind: links.get(kind, 1) * rate for kind, rate in rated.items()}
        """The most that each kind of link on the way of a layer carries."""
        self._topology = topology

    def compute_s(self, work: Work) -> float:
        """Seconds of all kernels of a class of work, of which a task runs its share."""
        raise CatalogError(f"{work.name} computes, which is not priced without a recipe")

    def rate_bytes_per_s(self, op: str) -> float:
        """Bytes/s of an operation that moves: those of the slowest kind of link that it crosses."""
        kinds = STREAMS[op].kinds
        if not self.bytes_per_s.keys() >= {*kinds}:
            raise CatalogError(f"{self.system.name}: MemoryX has no flash")
        return min(self.bytes_per_s[kind] for kind in kinds)

    def duration_s(self, work: Work) -> float:
        """Seconds of one task of this class."""
        if work.op == "broadcast":
            return self.tree_latency_s(work.comm_bytes)
        if work.op == "memoryx_update":
            return self.update_s(work.comm_bytes, work.flop)
        if work.op in STREAMS:
            return work.comm_bytes / self.rate_bytes_per_s(work.op) + self.latency_s(work)
        return work.share * self.compute_s(work)

    def latency_s(self, work: Work, /) -> float:
        """Seconds of a task that moves before its bytes use links; 0 for one that computes.

        The first weights of a layer are a broadcast of their own, and a gradient shows the latency of the
        hops with its last chunk only. Samples and spills do not show the ports' latency as it is described.
        """
        if work.op in ("reduce", "reduce_in_tree"):
            return self.tree_latency_s(work.comm_bytes, "up")
        lane, way, kinds = STREAMS.get(work.op, _COMPUTES)
        described_s = self.system.io_link.latency if "io" in kinds else 0.0
        return 0.0 if lane == "link" else self._topology.slowest_s(way, *kinds) - described_s

    def tree_latency_s(self, n_bytes: float, way: Way = "down") -> float:
        """First byte between MemoryX and the farthest system: the hops of its path and a chunk per level."""
        forwarded = min(self.system.swarmx.chunk, n_bytes)
        chunks_s = len(self._topology.tree_levels) * forwarded / self.bytes_per_s["swarmx"]
        return self._hops_s[way] + chunks_s

    @cached_property
    def _hops_s(self) -> dict[Way, float]:
        """Latency of the hops to the farthest system, and back."""
        return {way: self._topology.latency_s(way) for way in get_args(Way)}

    def update_s(self, n_bytes: float, flop: float) -> float:
        """The optimizer on the servers that hold the layer: the longer of traffic and arithmetic."""
        arithmetic = self.system.memoryx.server.arithmetic
        busy_s = max(n_bytes / self.bytes_per_s["dram"], flop / arithmetic / self.shares)
        return self._topology.slowest_s("down", "dram") + busy_s


# The roofline of weight streaming: the tokens from which compute hides the streaming of weights.
#
# A weight crosses the link in b / B seconds and is used once per token, in 2 / (e P) seconds. Streaming is
# hidden where T tokens take longer than the weight:
#
#     T >= e P b / (2 B)        e efficiency, P peak FLOP/s, b bytes a weight, B bytes/s of the link
#
# Sparsity cancels, except for the index of each weight, which is part of b. At 7.48 PFLOP/s, 2 bytes and 150
# GB/s these are 49,867 tokens; a Model Zoo configuration of GPT-3 13B (release 1.7.1) asks for more than 24
# sequences of 2,048 tokens, 49,152.

AT_SYSTEMS = ("input", "spilling")
"""Lanes between a system and its activation servers."""
HIDES = {"link": "a layer's weights", "flash": "what flash moves", "update": "the updates"}
"""What the compute of tokens hides, by lane."""


@dataclass(frozen=True, slots=True)
class StreamingRoof:
    """The tokens of a micro-batch on one system, compared with those that hide streaming."""

    tokens: float
    """Tokens of a micro-batch on a system."""
    hidden_from_tokens: float
    """With fewer tokens, a layer's weights arrive after the previous layer is done (weight stall)."""
    formula_tokens: float
    """e P b / (2 B): the same without attention and movement over the mesh."""
    lane: str = "link"
    """The lane that needs most tokens to be hidden: link, flash or update."""

    def about(self, limiting: str) -> str:
        """The micro-batch compared with the tokens that hide its streams; none hide samples or spills.

        `limiting` is the lane that limits the step; empty where none does.
        """
        if limiting in AT_SYSTEMS:
            late = "Samples arrive" if limiting == "input" else "Spilled activations move"
            return f"{late} more slowly than their tokens are computed, whatever the batch. "
        if not self.hidden_from_tokens:
            return "A layer's weights take longer to pass over the mesh than to arrive, whatever the batch. "
        than = "above" if self.tokens >= self.hidden_from_tokens else "below"
        arithmetic = f" ({self.formula_tokens:,.0f} by arithmetic alone)" if self.lane == "link" else ""
        return (
            f"A system's micro-batch of {self.tokens:,.0f} tokens is {than} the "
            f"{self.hidden_from_tokens:,.0f} that hide {HIDES[self.lane]}{arithmetic}. "
        )


def roof_tokens(flop_per_s: float, weight_bytes: float, link_bytes_per_s: float) -> float:
    """The tokens T of the formula above; `flop_per_s` is e P."""
    return flop_per_s * weight_bytes / (2.0 * link_bytes_per_s)


def hidden_from_tokens(tokens: float, use_s: float, fixed_s: float, load_s: float) -> float:
    """The tokens that hide streaming, with attention and movement over the mesh.

    A layer uses its weights for `use_s` on `tokens` tokens, which is linear in tokens and `fixed_s` for none;
    its weights take `load_s` to arrive. 0 where the fixed time alone hides them.
    """
    return max(0.0, load_s - fixed_s) / ((use_s - fixed_s) / tokens)


# What devices compute: on a wafer FLOPs at the measured efficiency of a software release, and movement.

PEAK = "peak"
"""The software release of an ideal machine."""


LAST_MINOR = {1: 9, 2: 10}
"""The last minor release of each major one so far [tags of the Cerebras Model Zoo, 2022-10 to 2026-03]."""


class WaferCosts(StreamCosts):
    """Prices classes of work for one recipe on one wafer cluster."""

    def __init__(self, topology: WaferTree, recipe: Recipe) -> None:
        super().__init__(topology)
        system = topology.system
        calibration = system.device.calibration
        if not isinstance(calibration, WaferCalibration):
            raise CatalogError(f"device {system.device.name} names no wafer calibration")
        wanted = recipe.runtime.software_release or system.software_release
        self.release = nearest_release(wanted, calibration)
        peak = self.release == PEAK
        efficiency = 1.0 if peak else calibration.efficiency[self.release]
        self.flop_per_s = efficiency * peak_flop_per_s(system, recipe)
        """FLOP/s of the arithmetic of a matrix product without movement: e P."""
        self.link_s_per_element = 0.0 if peak else calibration.link_s_per_element
        self.cores = system.device.compute_units
        self.sram_bytes_per_s = system.device.memory.bandwidth
        self.zeros_saved = system.streaming.sparse_harvest * recipe.weight_sparsity

    def compute_s(self, work: Work) -> float:
        """Seconds of kernels one after another; zeros in a layer's sparse matrices save arithmetic only."""
        saved_s = 0.0
        if self.zeros_saved and work.op.startswith("layer."):
            matrices = sum(kernel.flop for kernel in work.kernels if kernel.partition == "streamed")
            saved_s = self.zeros_saved * matrices / self.flop_per_s
        return sum(self.kernel_s(kernel) for kernel in work.kernels) - saved_s

    def kernel_s(self, kernel: Kernel, /) -> float:
        """Seconds of one kernel on a wafer."""
        if kernel.op != "gemm":
            return kernel.bytes_accessed / self.sram_bytes_per_s
        return kernel.flop / self.flop_per_s + self._moving_s(kernel)

    def _moving_s(self, kernel: Kernel) -> float:
        """Seconds of a product to move its right operand and partial sums over the mesh."""
        elements = (kernel.m + kernel.k) * kernel.n
        share = kernel.batch if kernel.grouped else math.sqrt(kernel.batch)
        return elements * share / math.sqrt(self.cores) * self.link_s_per_element

    def movement_s(self, work: Work, /) -> float:
        """Seconds of a task of this class to move operands and partial sums over the mesh."""
        return work.share * sum(self._moving_s(kernel) for kernel in work.kernels)

    def fixed_s(self, work: Work, /) -> float:
        """Seconds to move weights and their gradients over the mesh."""
        elements = sum(
            (kernel.m if kernel.weight_gradient else kernel.k) * kernel.n * kernel.batch
            for kernel in work.kernels
            if kernel.partition == "streamed"
        )
        return work.share * (elements / math.sqrt(self.cores) * self.link_s_per_element)

    def arithmetic_flop_per_s(self, _work: Work, /) -> float:
        """FLOP/s of matrix products, the same for all."""
        return self.flop_per_s


class StreamedGpuCosts(StreamCosts):
    """Prices classes of work for one recipe on GPUs under a SwarmX tree."""

    def __init__(self, topology: WaferTree, recipe: Recipe) -> None:
        super().__init__(topology)
        self.kernels = GpuKernels(topology.system, recipe, topology.num_devices)

    def kernel_s(self, kernel: Kernel, /) -> float:
        """Seconds of one kernel on a GPU."""
        return self.kernels.kernel_s(kernel)

    def compute_s(self, work: Work) -> float:
        """Seconds of kernels on a GPU. Zeros in weights save movement but no arithmetic."""
        return self.kernels.compute_s(work)


def nearest_release(wanted: str, calibration: WaferCalibration) -> str:
    """The measured release to use for `wanted`.

    Releases are ordered by number; an unmeasured release uses the nearest earlier release, or the earliest.
    `peak` is an upper bound for all releases: efficiency 1, a mesh without delay.
    """
    measured = sorted(calibration.efficiency, key=_number)
    if wanted == PEAK or wanted in measured:
        return wanted
    earlier = [release for release in measured if _number(release) <= _number(wanted)]
    return earlier[-1] if earlier else measured[0]


def place_of(release: str) -> int:
    """The place of a release in their order, r2.0 after r1.9; CatalogError for a name of another form."""
    major, minor = (*_number(release), 0)[:2]
    return minor + sum(LAST_MINOR.get(earlier, 0) + 1 for earlier in range(1, major))


def growth_per_release(calibration: WaferCalibration) -> float:
    """Mean growth of the log efficiency per release, from the oldest measured one to the newest."""
    places = {place_of(release): math.log(value) for release, value in calibration.efficiency.items()}
    oldest = min(places)
    newest = max(places)
    return (places[newest] - places[oldest]) / (newest - oldest) if newest > oldest else 0.0


def _number(release: str) -> tuple[int, ...]:
    digits = release.lower().lstrip("r").split(".")
    try:
        return tuple(int(part) for part in digits)
    except ValueError:
        raise CatalogError(f"software release {release!r} is not of the form r2.0") from None
