"""Seconds of work on a GPU cluster.

A compute task takes as long as its kernels on the GPU, but at least as long as the host takes to launch
them (a smooth maximum, since the host can run ahead only so far). The time of a collective follows from its
algorithm and the links that its group spans.

A collective kernel occupies compute units and moves bytes in device memory, so compute next to it is slower.
The part of a task that units limit (matrix products, fused attention) and the part that memory limits
(element-wise kernels) get longer as what is left to them shrinks; latencies and launches do not.

A tensor-parallel collective may be exchanged next to a product (user buffers of Transformer Engine,
asynchronous tensor parallelism of PyTorch). Both are cut into t chunks, one for each rank, that go around a
ring: a chunk of the product runs while the next chunk comes, or while the last partial result goes on. With p
and e the seconds of a chunk of the product and of the exchange, which takes a share u of the compute units,

    exposed = p + (t - 1) max(e, p + u e) - seconds of the whole product.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from perfsim.base.errors import CatalogError, GraphError
from perfsim.base.groups import listed
from perfsim.costs.gemm import GemmModel, measured_products
from perfsim.costs.price import MOST_TAKEN, NONE, Costs, Shares, slowest_of
from perfsim.network import FatTree, Group
from perfsim.network.collectives import CollectiveModel, wire_factor
from perfsim.specs.calibration import CollectiveOp, GpuCalibration
from perfsim.specs.hardware import HostSpec, SystemSpec
from perfsim.specs.precisions import PRECISIONS, Precision
from perfsim.specs.recipe import Recipe
from perfsim.work import WAIT_OF_EXPERTS, WAIT_OF_HOST, RankGroup, Work
from perfsim.work.kernels import Kernel
from perfsim.work.layer import cast_bytes

# Seconds of offload: copies between a GPU and its host, drives behind it, and the optimizer on the CPU.
#
# All devices of a host do the same at the same time, so each has its share of the host's memory and drives:
#
#     copy         bytes / min(link, memory / devices [, drives / devices])
#     optimizer    max(bytes / (fraction memory / devices), bytes of drives / (drives / devices))
#
# Copies are made by the GPU's copy engines, which take nothing from its compute.

LOADS = ("host.load", "nvme.load")
STORE = "host.store"
UPDATES = ("host.update", "nvme.update")
HOST_OPERATIONS = frozenset({*LOADS, STORE, *UPDATES})
"""Operations that a host prices: copies to the device, from it, and updates."""
HOST = "waits for the host"
LEAST_WAIT = 0.01
"""Share of a task below which its wait for the host is not told apart."""


class HostCosts:
    """Prices offload on one system; CatalogError where it describes no host."""

    def __init__(self, topology: FatTree) -> None:
        self.system = topology.system
        self.num_devices = topology.num_devices
        self.edges = topology.edges

    @property
    def host(self) -> HostSpec:
        if self.system.node.host is None:
            raise CatalogError(f"{self.system.name} describes no host memory (node.host)")
        return self.system.node.host

    @property
    def sharing(self) -> int:
        """Devices that share a host's memory."""
        return min(self.host.devices, self.num_devices)

    def rate_bytes_per_s(self, op: str) -> float:
        """Bytes/s of a copy while all devices of the host make one."""
        rate = min(self.edges.rated["pcie"], self.edges.rated["dram"] / self.sharing)
        return min(rate, self.drives_bytes_per_s) if op.startswith("nvme") else rate

    @property
    def drives_bytes_per_s(self) -> float:
        """A device's share of the drives."""
        if self.host.nvme is None:
            raise CatalogError(f"{self.system.name} describes no local drives (node.host.nvme)")
        return self.edges.rated["nvme"] / self.sharing

    def duration_s(self, work: Work) -> float:
        """Seconds of a copy of `comm_bytes`, or of an update, whose `comm_bytes` go to and from drives."""
        if work.op not in UPDATES:
            return self.latency_s(work.op) + work.comm_bytes / self.rate_bytes_per_s(work.op)
        memory = self.host.optimizer_fraction * self.edges.rated["dram"] / self.sharing
        seconds = work.bytes_accessed / memory
        seconds = max(seconds, work.comm_bytes / self.drives_bytes_per_s) if work.comm_bytes else seconds
        return self.latency_s(work.op) + seconds

    def crossed(self, op: str) -> list[str]:
        """The kinds of links that a copy or an update crosses, from the device on."""
        kinds = ["dram"] if op in UPDATES else ["pcie", "dram"]
        return [*kinds, "nvme"] if op.startswith("nvme") else kinds

    def latency_s(self, op: str) -> float:
        """Latency of the links that a copy or an update crosses."""
        return sum(self.edges.usual.seconds[kind][op != STORE] for kind in self.crossed(op))


MATRIX_CORE_ROW_BYTES = 16
"""Matrix cores need rows of 16 bytes: a 16-bit product uses them only if n and k are multiples of 8 (NVIDIA,
Matrix Multiplication Background User's Guide)."""
_COLLECTIVES = frozenset(get_args(CollectiveOp))
_OF_EXPERTS = ("router.", "shared_experts.", "experts.", "combine.")
"""How the works of a block with experts begin."""


class GpuKernels:
    """Prices the compute of the slowest of `devices` GPUs under one recipe; prices are cached."""

    def __init__(self, system: SystemSpec, recipe: Recipe, devices: int = 1) -> None:
        self.recipe = recipe
        runtime = recipe.runtime
        if runtime.stack is None:
            message = f"runtime {runtime.name} names no framework, so launches cannot be priced on GPUs"
            raise CatalogError(message)
        calibration = system.device.calibration
        if not isinstance(calibration, GpuCalibration):
            message = f"device {system.device.name} names no GPU calibration, so nothing can be priced"
            raise CatalogError(message)
        self.framework = runtime.stack
        self.gpu = calibration
        self.peak_flop_per_s = peak_flop_per_s(system, recipe)
        # 1 on devices whose matrix instructions the framework's libraries were written for.
        ceiling_share = 1.0 if self.gpu.asynchronous_attention is None else self.framework.ceiling_share
        # Chips of one model differ in the clock that they hold under the same power limit, and all wait for
        # the slowest.
        slower = self.gpu.sustained_spread * slowest_of(devices)
        slowest = self.gpu.sustained_fraction * max(0.0, 1.0 - slower)
        self.gemm = GemmModel(
            self.gpu.gemm,
            self.peak_flop_per_s,
            system.device.memory.bandwidth,
            system.device.compute_units,
            ceiling_share * slowest,
            recipe.element_bytes,
        )
        table = recipe.narrow_kernels
        kernels = (
            () if table is None else (table.forward, table.input_gradient, table.weight_gradient, table.head)
        )
        self.narrow = {
            precision: self.gemm.narrow(self.gpu, system.device, precision)
            for precision in set(kernels)
            if PRECISIONS[precision].is_narrow
        }
        # How many times the bytes of both copies a cast takes, where it is measured.
        self.slower_cast: dict[Precision | None, float] = {}
        for precision in self.narrow:
            measured = measured_products(self.gpu, precision)
            if measured is not None:
                moved = PRECISIONS[precision].cast_passes * measured.cast_bytes * self.gpu.memory.fraction
                self.slower_cast[precision] = max(1.0, moved / cast_bytes(precision))
        self.vector_flop_per_s = system.device.vector_peak.get(recipe.precision)
        self.cache_bytes = system.device.memory.cache
        self.memory_bytes_per_s = self.gpu.memory.fraction * system.device.memory.bandwidth
        self._kernels: dict[Kernel, float] = {}

    def compute_s(self, work: Work) -> float:
        """Seconds of the kernels of one task, at least the time of the host to launch them."""
        return self._with_host(sum(map(self.kernel_s, work.kernels)), self._launches(work))

    def _launches(self, work: Work) -> int:
        """Launches that the device may wait for: of a collective one, since waits of streams are no kernels.

        Those of an exchange are made while its product runs, those of a block with experts are in the time of
        the host in such a block, where the framework has one.
        """
        in_exchange = work.next_to is not None and self.recipe.overlaps_tensor
        in_block = self.framework.expert_pass_s > 0.0 and work.name.startswith(_OF_EXPERTS)
        if in_exchange or in_block:
            return 0
        return 1 if work.kind.is_communication else work.launches

    def price_gemms(self, works: Iterable[Work]) -> None:
        """Price all matrix products of some works at once, as arrays; later prices find them in the cache."""
        used: dict[Kernel, None] = {}
        for work in works:
            used.update(dict.fromkeys(work.kernels))
            if work.next_to is not None and work.group is not None:  # exchanged next to a product, in chunks
                used.update(dict.fromkeys((work.next_to, _chunk(work.next_to, work.group.size))))
        kernels = [kernel for kernel in used if kernel.op == "gemm" and kernel not in self._kernels]
        if not kernels:
            return
        for precision in {kernel.precision: None for kernel in kernels}:
            alike = [kernel for kernel in kernels if kernel.precision == precision]
            shapes = np.array([(kernel.m, kernel.n, kernel.k, kernel.batch) for kernel in alike], dtype=float)
            distinct, of_kernel = np.unique(shapes, axis=0, return_inverse=True)
            seconds = self.gemm_of(precision).time_s(*distinct.T, sustained=True)[of_kernel.ravel()]
            for kernel, gemm_s in zip(alike, seconds.tolist(), strict=True):
                self._kernels[kernel] = self._gemm_s(kernel, gemm_s)

    def gemm_of(self, precision: Precision | None) -> GemmModel:
        """The model of products at a precision; None: the precision of the recipe's 16 bits, or more."""
        return self.gemm if precision is None else self.narrow[precision]

    def _with_host(self, device_s: float, launches: int) -> float:
        """Device and host time combined: the longer of the two, or their sum where the host blocks."""
        host_s = 0.0 if self.framework.cuda_graph else launches * self.framework.host_s_per_kernel
        if self.recipe.runtime.host_blocking:
            return device_s + host_s + launches * self.framework.host_blocking_s_per_kernel
        return _smooth_maximum(device_s, host_s, self.framework.overlap_sharpness)

    def kernel_s(self, kernel: Kernel, /) -> float:
        if (cached := self._kernels.get(kernel)) is not None:
            return cached
        if kernel.op == "elementwise":
            # Half of its bytes are reads, and the output of the previous kernel is read from the cache as far
            # as it fits. Half of the cache counts, since the other half holds the kernel's own output.
            launches = max(1, kernel.launches)
            bytes_per_launch = self.slower_cast.get(kernel.precision, 1.0) * kernel.bytes_accessed / launches
            moved_bytes = launches * (bytes_per_launch - min(bytes_per_launch, self.cache_bytes) / 2)
            seconds = kernel.launches * self.gpu.kernel_latency_s + moved_bytes / self.memory_bytes_per_s
        elif kernel.op == "attention":
            # At length s it reaches s / (s + half length) of its speed on long sequences.
            known = {
                "asynchronous": self.gpu.asynchronous_attention,
                "one_block": self.gpu.one_block_attention,
            }
            if (kernels := known.get(self.framework.attention)) is not None:
                slower = 1.0 + kernels.half_length / kernel.n
                speed = kernels.backward if kernel.name.endswith(".backward") else 1.0
                fraction = speed * kernels.fraction
            else:
                slower = 1.0 + self.gpu.attention_half_length / kernel.m
                fraction = self.gpu.attention_fraction * self.gpu.attention_instruction_fraction
            computing_s = kernel.flop * slower / (fraction * self.peak_flop_per_s)
            moving_s = kernel.bytes_accessed / self.memory_bytes_per_s
            seconds = self.gpu.kernel_latency_s + max(moving_s, computing_s)
        else:
            shape = (kernel.m, kernel.n, kernel.k, kernel.batch)
            gemm_s = self.gemm_of(kernel.precision).time_s(*shape, sustained=True)
            seconds = self._gemm_s(kernel, gemm_s)
        self._kernels[kernel] = seconds
        return seconds

    def _gemm_s(self, kernel: Kernel, seconds: float) -> float:
        """Seconds of a matrix product from the seconds of its shape."""
        seconds *= self.gpu.wgrad_factor if kernel.weight_gradient else 1.0
        in_one_call = kernel.biased and kernel.batch > 1 and kernel.precision is None
        if in_one_call and self.recipe.runtime.grouped_products:
            seconds /= self.framework.grouped_rate
        # Without whole rows a product cannot use matrix cores. The rows of experts, which vary, are
        # contiguous in neither operand.
        sides = (kernel.n, kernel.k)
        aligned = all(side * kernel.element_bytes % MATRIX_CORE_ROW_BYTES == 0 for side in sides)
        if aligned or kernel.grouped or self.vector_flop_per_s is None:
            return seconds
        return max(seconds, kernel.flop / self.vector_flop_per_s)


class GpuCosts(GpuKernels, Costs):
    """Prices classes of work for one recipe on one GPU cluster; prices are cached."""

    def __init__(self, topology: FatTree, recipe: Recipe) -> None:
        super().__init__(topology.system, recipe, topology.num_devices)
        self.topology = topology
        self.collectives = CollectiveModel.of_tree(topology)
        self.host = HostCosts(topology)
        self._works: dict[Work, float] = {}
        self._bytes_s: dict[Work, float] = {}
        self._sending_s: dict[Work, float] = {}
        self._bounds: dict[Work, Shares] = {}
        self._groups: dict[RankGroup, Group] = {}

    def duration_s(self, work: Work) -> float:
        seconds = self._works.get(work)
        if seconds is None:
            if work.name == WAIT_OF_HOST:
                # What a pipeline rank loses as a pass begins grows with the message of the pass.
                model = self.collectives
                several = self.topology.num_devices > model.node.devices
                rate = model.nic_share_bytes_per_s if several else model.node.scale_up.bandwidth
                seconds = self.framework.pass_s + work.comm_bytes / rate
            elif work.name == WAIT_OF_EXPERTS:
                seconds = self.framework.expert_pass_s
            elif work.op in HOST_OPERATIONS:
                seconds = self.host.duration_s(work)
            elif work.kind.is_communication:
                seconds = float(self.durations_s([work])[0])
            else:
                seconds = self.compute_s(work)
            self._works[work] = seconds
        return seconds

    def parts_s(self, work: Work, /) -> Mapping[str, float]:
        """Seconds in which a device has no kernel of a task to run, since the host has not launched it."""
        if work.op in HOST_OPERATIONS:
            return {}
        seconds = self.duration_s(work)
        busy_s = self._sending_s.get(work)
        waits_s = seconds - (sum(map(self.kernel_s, work.kernels)) if busy_s is None else busy_s)
        return {HOST: waits_s} if waits_s > LEAST_WAIT * seconds else {}

    def durations_s(self, works: Sequence[Work]) -> NDArray[np.float64]:
        """Seconds of several classes of work; new shapes and sizes are priced as arrays."""
        new = [work for work in dict.fromkeys(works) if work not in self._works]
        self.price_gemms(new)
        sent = (work for work in new if work.kind.is_communication)
        alike = listed(((*self._collective(work), work.fan_out), work) for work in sent)
        for (op, group, fan_out), members in alike.items():
            sizes = np.array([work.comm_bytes for work in members])
            seconds = self.collectives.seconds(op, sizes, group, fan_out)
            parts_s = seconds.total_s.tolist(), seconds.bytes_s.tolist()
            for work, alone_s, bytes_s in zip(members, *parts_s, strict=True):
                exposed_s = self._exposed_s(work, alone_s)
                launches = self._launches(work)
                waits_s = self.framework.collective_wait_s if launches and alone_s > 0.0 else 0.0
                self._works[work] = self._with_host(waits_s + exposed_s, launches)
                self._sending_s[work] = waits_s + exposed_s
                # Of what a product hides, bytes have the same share as of the whole.
                self._bytes_s[work] = bytes_s / alone_s * exposed_s if alone_s > 0.0 else 0.0
        for work in new:
            self.duration_s(work)
        return np.fromiter(map(self._works.__getitem__, works), np.float64, len(works))

    def _exposed_s(self, work: Work, alone_s: float) -> float:
        """Seconds of a collective, less what the product next to it hides."""
        product = work.next_to
        if product is None or work.group is None or not self.recipe.overlaps_tensor:
            return alone_s
        chunks = work.group.size
        chunk_s = self.kernel_s(_chunk(product, chunks))
        exchange_s = self.framework.exchange_slowdown * alone_s / (chunks - 1)
        units = min(MOST_TAKEN, self._taken(work, exchange_s * (chunks - 1)).units)
        beside_s = max(exchange_s, chunk_s + units * exchange_s)
        return max(0.0, chunk_s + (chunks - 1) * beside_s - self.kernel_s(product))

    def latency_s(self, work: Work, /) -> float:
        """Latency of a communication, without the time of its bytes: hops and the host."""
        if work.op in HOST_OPERATIONS:
            return self.host.latency_s(work.op)
        return max(0.0, self.duration_s(work) - self._bytes_s[work])

    def taken(self, work: Work, /) -> Shares:
        """Compute units of a collective kernel, and its reads and writes over the achieved bandwidth."""
        return self._taken(work, self.duration_s(work)) if work.kind.is_communication else NONE

    def _taken(self, work: Work, seconds: float) -> Shares:
        """What a communication takes that lasts so long."""
        constants = self.gpu.communication
        if constants is None:
            return NONE
        op, group = self._collective(work)
        if group.size == 1 or seconds <= 0.0:
            return NONE
        sent_bytes = work.comm_bytes * wire_factor(op, group.size)
        passes = constants.memory_passes.get(op, 0.0)
        # A kernel has a unit for each of its channels: across nodes no more than the NICs can feed, and those
        # of one NIC for a message between two ranks, also inside a node.
        units = constants.units
        if op == "send_recv":
            units = min(units, constants.units_per_nic)
        elif group.nodes > 1:
            node = self.topology.system.node
            nics = max(1.0, node.nics * group.fewest_per_node / node.devices)
            units = min(units, constants.units_per_nic * nics)
        return Shares(
            units / self.topology.system.device.compute_units,
            passes * sent_bytes / seconds / self.memory_bytes_per_s,
        )

    def bound(self, work: Work, /) -> Shares:
        """Shares of the time of a compute task that units and memory limit."""
        if work in self._bounds:
            return self._bounds[work]
        moves = work.kind.is_communication or work.op in HOST_OPERATIONS
        shares = NONE
        if not moves and (seconds := self.compute_s(work)) > 0.0:
            kernels = [(kernel, self.kernel_s(kernel)) for kernel in work.kernels]
            units_s = sum(kernel_s for kernel, kernel_s in kernels if kernel.op != "elementwise")
            moving = [pair for pair in kernels if pair[0].op == "elementwise"]
            latency_s = self.gpu.kernel_latency_s * sum(kernel.launches for kernel, _ in moving)
            moving_s = sum(kernel_s for _, kernel_s in moving)
            # Where the host takes part of the time, the device counts by the slope of the smooth maximum.
            slope = 1.0
            if not self.recipe.runtime.host_blocking:
                slope = ((units_s + moving_s) / seconds) ** (self.framework.overlap_sharpness - 1)
            shares = Shares(slope * units_s / seconds, slope * (moving_s - latency_s) / seconds)
        self._bounds[work] = shares
        return shares

    def _collective(self, work: Work) -> tuple[CollectiveOp, Group]:
        """The operation of a communication, and how its group lies over nodes."""
        if work.group is None:
            raise GraphError(f"communication {work.name} has no group")
        if work.op not in _COLLECTIVES:
            raise GraphError(f"communication {work.name} is {work.op}, which no model prices")
        return cast(CollectiveOp, work.op), self.group(work.group)

    def group(self, ranks: RankGroup) -> Group:
        """How a group of ranks lies over the nodes; an ablation of published runs has another."""
        if ranks not in self._groups:
            self._groups[ranks] = self.topology.group_shape(ranks.ranks)
        return self._groups[ranks]


def _chunk(product: Kernel, chunks: int) -> Kernel:
    """One of so many chunks of a product."""
    return product._replace(m=max(1, product.m // chunks), flop=product.flop / chunks)


def peak_flop_per_s(system: SystemSpec, recipe: Recipe) -> float:
    """Datasheet peak of a device for products that are not narrow: at a recipe's precision, or in bf16."""
    narrow = PRECISIONS[recipe.precision].is_narrow
    return system.device.peak_flop_per_s("bf16" if narrow else recipe.precision)


def _smooth_maximum(a: float, b: float, sharpness: float) -> float:
    """(a^p + b^p)^(1/p): the larger of the two, or slightly more where they are close."""
    largest = max(a, b)
    if largest <= 0.0:
        return 0.0
    return float(largest * (1.0 + (min(a, b) / largest) ** sharpness) ** (1.0 / sharpness))
