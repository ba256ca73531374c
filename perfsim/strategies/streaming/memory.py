"""What weight streaming holds, and where: on the device that computes, in MemoryX, on activation servers."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from perfsim.costs.memory import MemoryUse, orthogonalisation_flop, state_bytes
from perfsim.specs.hardware import DeviceKind, WaferClusterSpec
from perfsim.specs.layout import StreamingLayout
from perfsim.specs.model import layer_kinds
from perfsim.specs.optimizers import OPTIMIZERS
from perfsim.specs.recipe import Job
from perfsim.work.counts import layer_activation_bytes, parameters
from perfsim.work.kernels import Kernel, LayerSlice


@dataclass(frozen=True)
class StreamedDevice:
    """How a kind of device computes layers with streamed weights."""

    place: str
    """Name of the device and its memory."""
    as_usual: bool
    """Whether it runs the recipe's attention kernel and dropout, and all kernels take time.

    A wafer does not: its attention scores are computed in tiles and not kept, there are no dropout masks, and
    kernels other than matrix products are hidden behind the movement of weights and activations.
    """
    recompute_groups: tuple[int, ...]
    """Layers that are recomputed together in the layouts of a search; 0: all activations are kept.

    Published micro-batches of wafers (13B 90, 20B 77, 180B 30 sequences) have room for the activations of
    one layer. Whether the software recomputes is not published; the constants of a wafer are fitted with one
    layer recomputed at a time, also where more would fit.
    """

    def layer_slice(self, job: Job, micro_batch_size: int) -> LayerSlice:
        """The layer that one device computes, without partitioning."""
        recipe = job.recipe
        runtime = recipe.runtime
        return LayerSlice(
            model=job.model,
            seq_length=job.seq_length,
            micro_batch_size=micro_batch_size,
            element_bytes=recipe.element_bytes,
            attention=runtime.attention if self.as_usual else "standard",
            dropout=recipe.dropout and self.as_usual,
            fused_cross_entropy=runtime.fused_cross_entropy and self.as_usual,
        )

    def kept_bytes(self, part: LayerSlice) -> float:
        """Bytes that a layer keeps for its backward without recompute."""
        return layer_activation_bytes(part, "none" if self.as_usual else "selective")

    def kernels(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """The kernels of a pass that take time, with weights streamed row by row."""
        return tuple(
            kernel if kernel.partition == "none" else kernel._replace(partition="streamed")
            for kernel in kernels
            if self.as_usual or kernel.op == "gemm"
        )


DEVICES: Mapping[DeviceKind, StreamedDevice] = {
    "wafer": StreamedDevice("wafer", as_usual=False, recompute_groups=(1,)),
    "gpu": StreamedDevice("GPU", as_usual=True, recompute_groups=(0, 1, 2, 4)),
}

SERVERS = "activation servers"
"""Where spilled tensors are."""
IN_FLIGHT = 2
"""Spilled tensors that the wafer still holds: one in use, one in transfer."""


# What MemoryX holds and moves for each parameter, in DRAM or flash.
#
# MemoryX keeps each parameter in the format that it streams, and the state of the optimizer: the fp32 master
# copy, moments, and the fp32 sum of gradients where it sums over micro-batches. Adam reads 12 B of state
# and the gradient and writes the state back: 28 B and about 15 FLOP per parameter and step. Zeros of sparse
# weights are neither stored nor updated.

MASTER_BYTES = 4.0
GRADIENT_SUM_BYTES = 4.0
WEIGHTS = "streamed weights"
SUMS = "gradients"
MASTER = "parameters"
MOMENTS = "optimizer"
"""The parts of what MemoryX holds."""
WORDS = {WEIGHTS: "weights", SUMS: "summed gradients", MASTER: "master copy", MOMENTS: "moments"}


class Activations(NamedTuple):
    """Bytes of the activations of one micro-batch of one device."""

    kept: float
    """Held on the device from forward to backward."""
    working: float
    """The working set of one group of layers that is recomputed together."""
    spilled: float
    """On the activation servers."""


class Store:
    """What a job holds on a system while its weights stream, and what a parameter moves."""

    def __init__(self, job: Job, system: WaferClusterSpec, micro_batches: int = 1) -> None:
        self.job = job
        self.system = system
        self.tiles = system.streaming.attention_tiles if job.model.experts else 1
        """Tiles of a micro-batch in which attention is computed."""
        self.device = DEVICES[system.device.kind]
        keeps_moments = OPTIMIZERS[job.recipe.optimizer].memoryx_moments
        moments_bytes = state_bytes(job.recipe, job.model).moments if keeps_moments else 0.0
        self.counts = parameters(job.model)
        matrices = float(self.counts.body_matrices)
        kept = self.kept(float(self.counts.total), matrices)
        self.state_bytes = MASTER_BYTES + moments_bytes
        """Bytes per parameter that are read before its update and written after it."""
        self.sums_bytes = GRADIENT_SUM_BYTES * kept
        """Bytes of the summed gradients of all parameters, wherever they are summed."""
        summed = micro_batches > 1 and system.streaming.accumulate_at == "memoryx"
        self.bytes_of = {
            WEIGHTS: self.streamed_bytes(float(self.counts.total), matrices),
            SUMS: self.sums_bytes if summed else 0.0,
            MASTER: MASTER_BYTES * kept,
            MOMENTS: moments_bytes * kept,
        }
        """Bytes in MemoryX, what moves most a byte first."""
        self.dram_bytes = self._in_dram()
        """Bytes of each part that are in DRAM; the rest is in flash."""
        self.in_flash = {
            part: 1.0 - self.dram_bytes[part] / n_bytes if n_bytes else 0.0
            for part, n_bytes in self.bytes_of.items()
        }
        """Share of each part, and so of each of its blocks, that is in flash."""
        self.state_in_flash_bytes = (
            MASTER_BYTES * self.in_flash[MASTER] + moments_bytes * self.in_flash[MOMENTS]
        )
        """Bytes a parameter of master copy and moments that an update reads from flash and writes back."""
        self.sums_in_flash_bytes = GRADIENT_SUM_BYTES * self.in_flash[SUMS]
        """Bytes a parameter of a summed gradient in flash: a micro-batch reads it and writes it back."""

    def _in_dram(self) -> dict[str, float]:
        """DRAM is filled with what moves most a byte, unless the system says where a state is."""
        memoryx = self.system.memoryx
        # In a step weights are read twice a micro-batch and written once, sums of gradients read and written
        # in each micro-batch except one, master copy and moments once. Without flash all is in DRAM, fit or
        # not.
        wanted = dict.fromkeys(self.bytes_of, memoryx.optimizer_state_in) | {WEIGHTS: memoryx.weights_in}
        free = memoryx.dram_bytes if memoryx.flash_bytes else math.inf
        held = {}
        for part, n_bytes in self.bytes_of.items():
            fits = n_bytes if n_bytes <= free else float(math.floor(max(0.0, free)))
            held[part] = {"auto": fits, "dram": n_bytes, "flash": 0.0}[wanted[part]]
            free -= held[part]
        return held

    def kept(self, num_parameters: float, matrices: float = 0.0) -> float:
        """Nonzero parameters of a block, of which the `matrices` of a layer can be sparse."""
        return num_parameters - self.job.recipe.weight_sparsity * matrices

    def streamed_bytes(self, num_parameters: float, matrices: float = 0.0) -> float:
        """Bytes of a block on the wire: nonzero weights, with an index for each weight of sparse matrices."""
        sparsity = self.job.recipe.weight_sparsity
        indexed = (1.0 - sparsity) * matrices if sparsity else 0.0
        sent = self.kept(num_parameters, matrices) + self.system.streaming.sparse_index_overhead * indexed
        return sent * self.system.weight_bytes

    def update_kernel(self, num_parameters: float) -> Kernel:
        """The optimizer on some parameters: state read and written, gradient read."""
        optimizer = self.job.recipe.optimizer
        flop = OPTIMIZERS[optimizer].update_flop + orthogonalisation_flop(self.job.recipe, self.job.model)
        return Kernel(
            name=optimizer,
            op="elementwise",
            flop=flop * num_parameters,
            bytes_accessed=(2.0 * self.state_bytes + GRADIENT_SUM_BYTES) * num_parameters,
        )

    @property
    def note(self) -> str:
        """Where weights and states are, in words."""

        def size(n_bytes: float) -> str:
            return f"{n_bytes / 1e12:.3g} TB" if n_bytes >= 1e12 else f"{n_bytes / 1e9:.3g} GB"

        said = []
        for part, n_bytes in self.bytes_of.items():
            share = self.in_flash[part]
            how_much = f"{100 * share:.3g} % " if 0.0 < share < 1.0 else ""
            where = f"{how_much}in flash" if share else "in DRAM"
            if n_bytes:
                said.append(f"{size(n_bytes)} of {WORDS[part]} {where}")
        return f"MemoryX holds {', '.join(said)}"

    def activations(self, layout: StreamingLayout) -> Activations:
        """Bytes of the activations of one micro-batch of one device, and where they are."""
        part = self.device.layer_slice(self.job, layout.micro_batch_size)
        kinds = layer_kinds(self.job.model)
        by_kind = {kind: self.device.kept_bytes(replace(part, kind=kind)) for kind in dict.fromkeys(kinds)}
        layers = [by_kind[kind] for kind in kinds]
        unit = max(layers)  # of what is spilled: all that a layer keeps, or the input of a group
        kept = sum(layers)
        working = 2 * part.activation_bytes
        if group := layout.recompute_layers:
            unit = part.activation_bytes
            kept = -(-len(layers) // group) * unit
            # The group of consecutive layers, counted from the first, that keeps most.
            working = max(sum(layers[first : first + group]) for first in range(0, len(layers), group))
        working *= self._at_once(layout.micro_batch_size) / layout.micro_batch_size
        if layout.spill:
            return Activations(IN_FLIGHT * unit, working, kept)
        return Activations(kept, working, 0.0)

    def _at_once(self, micro_batch_size: int) -> float:
        """Sequences that a layer has in memory at once: one tile, or as many as one expert's tokens make."""
        experts = self.job.model.experts
        if self.tiles == 1 or experts is None:
            return micro_batch_size
        # Experts compute one after another, each its own tokens: top_k / num_experts of all in the mean.
        of_an_expert = micro_batch_size * experts.top_k / experts.num_experts
        return max(of_an_expert, float(-(-micro_batch_size // self.tiles)))

    @cached_property
    def buffer_bytes(self) -> float:
        """Buffers for each layer in flight: for all of it, or for a chunk where weights are not stored."""
        held = self.system.swarmx.chunk
        if self.system.streaming.weights_held == "layer":
            counts = self.counts
            head = counts.final_norm + self.job.model.vocab_size * self.job.model.hidden_size
            layers = (
                self.streamed_bytes(counts.of(kind), counts.of(kind, matrices=True))
                for kind in set(layer_kinds(self.job.model))
            )
            held = max(*layers, self.streamed_bytes(max(counts.embedding, head)))
        return (1 + self.system.streaming.prefetch_depth) * held

    def _gradient_sum_bytes(self, micro_batch_size: int, per_system: int) -> float:
        """Gradients that a wafer accumulates over micro-batches; 0 where it does not."""
        if self.system.streaming.accumulate_at != "wafer" or micro_batch_size >= per_system:
            return 0.0
        return self.sums_bytes

    def memory(self, layout: StreamingLayout, per_system: int) -> tuple[MemoryUse, ...]:
        """Peak memory of a wafer, of MemoryX in DRAM and in flash, and of the activation servers."""
        memory = self.system.device.memory
        memoryx = self.system.memoryx
        held = self.activations(layout)
        parts = {
            "activations": held.kept,
            "working set": held.working,
            "stream buffers": self.buffer_bytes,
            "reserved": memory.reserved,
        }
        if sums := self._gradient_sum_bytes(layout.micro_batch_size, per_system):
            parts["gradients"] = sums
        stored = {part: n_bytes for part, n_bytes in self.dram_bytes.items() if n_bytes}
        flash = {part: share * self.bytes_of[part] for part, share in self.in_flash.items() if share}
        uses = [
            MemoryUse(self.device.place, parts, memory.capacity),
            MemoryUse("MemoryX DRAM", stored, memoryx.dram_bytes, on_device=False),
        ]
        if flash:
            uses.append(MemoryUse("MemoryX flash", flash, memoryx.flash_bytes, on_device=False))
        if layout.spill:
            servers = self.system.activation_servers
            capacity = servers.per_system * servers.capacity
            spilled = {"activations": held.spilled}
            uses.append(MemoryUse(SERVERS, spilled, capacity, on_device=False))
        return tuple(uses)

    def largest_micro_batch(self, per_system: int, group: int, *, spill: bool = False) -> int:
        """The largest micro-batch of a system that fits a policy and the software makes; 0: none does."""

        def lacks_memory(size: int) -> bool:
            layout = StreamingLayout(micro_batch_size=size, recompute_layers=group, spill=spill)
            held = self.memory(layout, per_system)
            return not all(use.fits for use in held if use.on_device or use.place == SERVERS)

        of_software = self.tiles * int(self.system.streaming.micro_batch_tokens // self.job.seq_length)
        most = min(per_system, max(1, of_software))
        # A smaller one may fit no longer: its gradients are summed over micro-batches.
        return most if not lacks_memory(most) else bisect_left(range(1, most), True, key=lacks_memory)
