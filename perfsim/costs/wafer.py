"""Seconds of work where weights stream: on a wafer cluster, and on GPUs under a SwarmX tree.

ZeRO 3 with its parameters in an external store is weight streaming: MemoryX broadcasts a layer through
SwarmX, each GPU computes its slice of the batch, and gradients are summed on the way back.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from perfsim.base.dates import days_of
from perfsim.base.errors import CatalogError
from perfsim.costs.gpu import GpuKernels, peak_flop_per_s
from perfsim.costs.price import Costs, slowest_of
from perfsim.network import WaferTree
from perfsim.network.wafer_tree import POOLS, STREAMS, Stream, Way
from perfsim.specs.calibration import WaferCalibration
from perfsim.specs.recipe import Recipe
from perfsim.work import Kind, Work
from perfsim.work.kernels import Kernel

# A layer on a wafer: products, attention, and rows of weights.
#
# A layer keeps its activations on the wafer and gets its weights row by row. Three terms describe the 20
# public logs of a CS-2 from 256M to 13B parameters and from 128 to 16,384 sequences:
#
#     seconds = f(release) [ products / (e P) + attention / (a P) + rows t ]
#
# - products: FLOPs with weights, at a fraction e of the peak P;
# - attention: FLOPs of scores and context, with the full square of the sequence, at the fraction a;
# - rows: a row of weights (one output of a linear layer) takes t in each product, whatever the tokens. It is
#   why small layers and small batches are slow: 9 H rows a layer, in the forward, its recomputation, the
#   input gradient and the weight gradient of each micro-batch;
# - f: the factor of a software release, over what is kept of the speed with many systems: (1 - loss) for
#   each doubling, in which all wait for the slowest. Every minor release shortens a step by the same share
#   between the oldest and the newest release with a log; nothing is extrapolated beyond them.
#
# What the logs cannot tell apart: rows counted by inputs (7 H) fit as well as rows counted by outputs; the
# rows of the LM head fit as well with as without, and are left out; a recomputed forward changes e, a and t
# by a quarter and no prediction. Kernels that are not matrix products read and write SRAM at its full rate.

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
        self._hops_s = {way: topology.latency_s(way) for way in get_args(Way)}
        """Latency of the hops to the farthest system, and back."""

    def compute_s(self, work: Work) -> float:
        """Seconds of all kernels of a class of work, of which a task runs its share."""
        raise CatalogError(f"{work.name} computes, which is not priced without a recipe")

    def rate_bytes_per_s(self, op: str) -> float:
        """Bytes/s of an operation that moves: the bytes/s of the slowest kind of link that it crosses."""
        kinds = STREAMS[op].kinds
        if not self.bytes_per_s.keys() >= {*kinds}:
            raise CatalogError(f"{self.system.name}: MemoryX has no flash")
        return min(self.bytes_per_s[kind] for kind in kinds)

    def duration_s(self, work: Work) -> float:
        if work.op == "broadcast":
            return self.tree_latency_s(work.comm_bytes)
        if work.op == "memoryx_update":
            return self.update_s(work.comm_bytes, work.flop)
        if work.op in STREAMS:
            return work.comm_bytes / self.rate_bytes_per_s(work.op) + self.latency_s(work)
        return work.share * self.compute_s(work)

    def latency_s(self, work: Work, /) -> float:
        """Seconds of a task that moves before its bytes use links; 0 for one that computes."""
        # The first weights of a layer are a broadcast of their own, and a gradient shows the latency of the
        # hops with its last chunk only. Samples and spills do not show the ports' latency as it is described.
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
    """e P b / (2 B): the same without attention and rows of weights."""
    lane: str = "link"
    """The lane that needs most tokens to be hidden: link, flash or update."""

    def about(self, limiting: str) -> str:
        """The micro-batch and the tokens that hide its streams; `limiting` is the step's lane, or empty."""
        if limiting in AT_SYSTEMS:
            late = "Samples arrive" if limiting == "input" else "Spilled activations move"
            return f"{late} more slowly than their tokens are computed, whatever the batch. "
        if not self.hidden_from_tokens:
            return "The rows of a layer's weights take longer to use than to arrive, whatever the batch. "
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
    """The tokens that hide streaming, with attention and rows of weights.

    A layer uses its weights for `use_s` on `tokens` tokens, which is linear in tokens and `fixed_s` for none;
    its weights take `load_s` to arrive. 0 where the fixed time alone hides them.
    """
    return max(0.0, load_s - fixed_s) / ((use_s - fixed_s) / tokens)


# What devices compute: on a wafer products, attention and rows at the speed of a software release.

PEAK = "peak"
"""The software release of an ideal machine."""


LAST_MINOR = {1: 9, 2: 10}
"""The last minor release of each major one so far [tags of the Cerebras Model Zoo, 2022-10 to 2026-03]."""


class WaferCosts(StreamCosts):
    """Prices classes of work for one recipe on one wafer cluster, with its wafer's constants or others."""

    def __init__(
        self, topology: WaferTree, recipe: Recipe, calibration: WaferCalibration | None = None
    ) -> None:
        super().__init__(topology)
        system = topology.system
        constants = calibration or system.device.calibration
        if not isinstance(constants, WaferCalibration):
            raise CatalogError(f"device {system.device.name} names no wafer calibration")
        self.lost: Mapping[str, float] = {}
        """Shares of all computing by which it takes longer than on one system, by cause."""
        self.release = known_release(recipe.runtime.software_release or system.software_release, constants)
        peak_rate = peak_flop_per_s(system, recipe)
        if self.release == PEAK:
            self.flop_per_s = peak_rate
            self.attention_flop_per_s = peak_rate
            self.row_s = 0.0
        else:
            # All systems wait for the slowest: with a deviation s of their times, 1 + s m(n) of the mean. The
            # assumed rest is the same share of speed for every doubling.
            spread = 1.0 + system.speed_spread * slowest_of(topology.num_devices)
            rest = (1.0 - system.loss_per_doubling) ** -math.log2(topology.num_devices)
            slower = slowdown(self.release, constants) * spread * rest
            self.lost = {SLOWEST: (spread - 1.0) / (spread * rest), ASSUMED_LOSS: (rest - 1.0) / rest}
            self.flop_per_s = constants.product_efficiency * peak_rate / slower
            self.attention_flop_per_s = constants.attention_efficiency * peak_rate / slower
            self.row_s = constants.row_s * slower
        self.sram_bytes_per_s = system.device.memory.bandwidth
        self.zeros_saved = system.streaming.sparse_harvest * recipe.weight_sparsity

    def compute_s(self, work: Work) -> float:
        """Seconds of rows and kernels; zeros in a layer's sparse matrices save arithmetic only."""
        saved_s = 0.0
        if self.zeros_saved and _of_layer(work):
            matrices = sum(kernel.flop for kernel in work.kernels if kernel.partition == "streamed")
            saved_s = self.zeros_saved * matrices / self.flop_per_s
        return sum(self.kernel_s(kernel) for kernel in work.kernels) + self._rows_s(work) - saved_s

    def kernel_s(self, kernel: Kernel, /) -> float:
        """Seconds of one kernel on a wafer, without the rows of its weights."""
        if kernel.op != "gemm":
            return kernel.bytes_accessed / self.sram_bytes_per_s
        return kernel.flop / (self.flop_per_s if kernel.has_weights else self.attention_flop_per_s)

    def _rows_s(self, work: Work) -> float:
        """Seconds of the rows of a layer's weights, of all chunks."""
        if not _of_layer(work):
            return 0.0
        streamed = (kernel for kernel in work.kernels if kernel.partition == "streamed")
        return self.row_s * sum(kernel.weight_rows * kernel.batch for kernel in streamed)

    def fixed_s(self, work: Work, /) -> float:
        """Seconds of a task that rows of weights take, whatever its tokens."""
        return work.share * self._rows_s(work)

    def parts_s(self, work: Work, /) -> Mapping[str, float]:
        """Rows of weights and attention as on one system, and what many systems add; the rest is products."""
        if work.kind is not Kind.COMP:
            return {}
        core = (kernel for kernel in work.kernels if kernel.op == "gemm" and not kernel.has_weights)
        alone = 1.0 - sum(self.lost.values())
        parts = {
            ROWS: alone * self.fixed_s(work),
            ATTENTION: alone * work.share * sum(map(self.kernel_s, core)),
        }
        parts |= {cause: share * self.duration_s(work) for cause, share in self.lost.items()}
        return {part: seconds for part, seconds in parts.items() if seconds > 0.0}

    def arithmetic_flop_per_s(self, _work: Work, /) -> float:
        """FLOP/s of products with weights, the same for all."""
        return self.flop_per_s


ROWS = "rows of weights"
ATTENTION = "attention"
"""What a layer does on a wafer besides products with weights; rows take the same time for all tokens."""
SLOWEST = "slowest of the systems"
ASSUMED_LOSS = "assumed loss of many systems"
"""Why a layer takes longer on many systems than on one."""


def _of_layer(work: Work) -> bool:
    return work.op.startswith("layer.")


class StreamedGpuCosts(StreamCosts):
    """Prices classes of work for one recipe on GPUs under a SwarmX tree."""

    def __init__(self, topology: WaferTree, recipe: Recipe) -> None:
        super().__init__(topology)
        self.kernels = GpuKernels(topology.system, recipe, topology.num_devices)

    def compute_s(self, work: Work) -> float:
        """Seconds of kernels on a GPU. Zeros in weights save movement but no arithmetic."""
        return self.kernels.compute_s(work)


def known_release(wanted: str, calibration: WaferCalibration) -> str:
    """The release whose speed `wanted` has: itself between the measured ones, else the nearest of them."""
    # An upper bound for all releases: the peak rate, and rows without a time.
    if wanted == PEAK:
        return PEAK
    oldest, newest = calibration.measured_releases
    if place_of(wanted) > place_of(newest):
        return newest
    return max(wanted, oldest, key=place_of)


def slowdown(release: str, calibration: WaferCalibration) -> float:
    """Time of a step under a release over its time under the newest measured one."""
    known = known_release(release, calibration)
    oldest, newest = calibration.measured_releases
    older = float(place_of(newest) - place_of(known))
    # Software grows with time: a release counts by its date between the dates of the oldest and the newest
    # measured one, or by its place in their order where one of the three has no date.
    if {known, oldest, newest} <= calibration.releases.keys() and older:
        days = {name: days_of(calibration.releases[name]) for name in (oldest, known, newest)}
        share = (days[newest] - days[known]) / (days[newest] - days[oldest])
        older = share * (place_of(newest) - place_of(oldest))
    return math.exp(calibration.growth_per_release * older)


def place_of(release: str) -> int:
    """The place of a release in their order, r2.0 after r1.9; CatalogError for a name of another form."""
    digits = release.lower().lstrip("r").split(".")
    try:
        major, minor = (*map(int, digits), 0)[:2]
    except ValueError:
        raise CatalogError(f"software release {release!r} is not of the form r2.0") from None
    return minor + sum(LAST_MINOR.get(earlier, 0) + 1 for earlier in range(1, major))
