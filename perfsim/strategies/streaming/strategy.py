"""Weight streaming: weights are in MemoryX and are streamed to the wafer layer by layer, twice a step.

Streams of a step: `memoryx/out` sends a layer's weights, `swarmx/down` broadcasts them, `csK/compute` uses
them. The backward streams the same weights again, `swarmx/up` sums the gradients on the way, and
`memoryx/update` updates a layer as soon as its gradient is complete. The weights of a layer for the next step
wait for that update. Every system gets the same weights and its own slice of the batch, so the graph is
folded to one system.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfsim.costs.memory import MemoryUse
from perfsim.costs.price import Costs
from perfsim.errors import LayoutError, MemoryCapacityError, Problem
from perfsim.graph import GraphBuilder
from perfsim.hardware import WaferClusterSpec
from perfsim.sizes import passes_problem
from perfsim.strategies.plan import Strategy, check_runs_on
from perfsim.strategies.streaming.blocks import StreamingPlan
from perfsim.strategies.streaming.device import device_of
from perfsim.strategies.streaming.estimate import estimate_s
from perfsim.strategies.streaming.graph import StreamingWriter
from perfsim.strategies.streaming.memory import (
    even_micro_batch,
    largest_micro_batch,
    policy_name,
    wafer_memory,
    with_policy,
)
from perfsim.strategies.streaming.memoryx import Store
from perfsim.topology import WaferTree
from perfsim.workload import Job, StreamingLayout, layer_kinds

RECOMPUTE_GROUPS = (0, 1, 2, 4)
STREAM_CHUNKS = 16
"""Default number of chunks of a layer where layers are streamed in chunks."""
MOST_CHUNKS = 4096
"""Limit of `stream_chunks`: with more, a chunk of a published model is smaller than a chunk of SwarmX."""


class WeightStreaming(Strategy[StreamingLayout, WaferTree]):
    """The strategy `weight-streaming`."""

    name = "weight-streaming"
    system_kind = "wafer-cluster"
    summary = "layers stream from MemoryX over wafers that hold only activations (data parallel)"

    def layouts(self, job: Job, topology: WaferTree) -> Iterator[StreamingLayout]:
        """Recompute intervals with the fewest micro-batches, and spilled layouts where these need fewer.

        The real software splits only a batch that exceeds the wafer. Its best published micro-batches have
        some 90 sequences, while only a few would fit with all activations kept. Where not even one sequence
        fits, the layout that needs least is refused with what it needs.
        """
        system = topology.system
        per_system = -(-job.global_batch_size // topology.num_devices)
        base = StreamingLayout(data=topology.num_devices, stream_chunks=needed_chunks(system))
        largest = {group: largest_micro_batch(job, system, per_system, group) for group in RECOMPUTE_GROUPS}
        widest = even_micro_batch(per_system, max(largest.values())) if any(largest.values()) else 0
        any_fits = widest > 0
        for group, size in largest.items():
            if size >= widest > 0:
                yield with_policy(base, widest, group)
            spilling = largest_micro_batch(job, system, per_system, group, spill=True)
            if spilling > size:
                any_fits = True
                yield with_policy(base, even_micro_batch(per_system, spilling), group, spill=True)
        if not any_fits:
            yield with_policy(base, 1, 1, spill=True)

    def plan(
        self, job: Job, topology: WaferTree, layout: StreamingLayout, *, check_memory: bool = True
    ) -> StreamingPlan:
        """Check one layout; `micro_batch_size` is per system."""
        check_runs_on(self, topology.system)
        system = topology.system
        problems = self._problems(job, topology, layout)
        if problems:
            raise LayoutError([Problem(text) for text in problems])
        per_system = -(-job.global_batch_size // layout.data)
        microbatches = -(-per_system // layout.micro_batch_size)
        memory = wafer_memory(job, layout, system, per_system)
        if check_memory:
            for use in memory:
                if not use.fits:
                    raise MemoryCapacityError(
                        use.total_bytes / use.capacity_bytes, _overflow(use, job, layout)
                    )
        notes = tuple(self._notes(job, system, layout, microbatches))
        return StreamingPlan(self.name, job, topology, layout, microbatches, memory, notes)

    def _problems(self, job: Job, topology: WaferTree, layout: StreamingLayout) -> list[str]:
        problems = []
        if layout.data != topology.num_devices:
            problems.append(f"data {layout.data} must equal the {topology.num_devices} systems")
        if job.global_batch_size < layout.data:
            problems.append(
                f"global_batch_size {job.global_batch_size} gives some of {layout.data} systems nothing"
            )
        if not 1 <= layout.stream_chunks <= MOST_CHUNKS:
            problems.append(f"stream_chunks {layout.stream_chunks} must be 1 to {MOST_CHUNKS}")
        per_system = -(-job.global_batch_size // layout.data)
        if layout.micro_batch_size > per_system:
            problems.append(
                f"micro_batch_size {layout.micro_batch_size} is more than a system's {per_system} sequences"
            )
        elif problem := passes_problem(
            len(layer_kinds(job.model)), -(-per_system // layout.micro_batch_size)
        ):
            problems.append(problem)
        return problems

    @staticmethod
    def _notes(
        job: Job, system: WaferClusterSpec, layout: StreamingLayout, microbatches: int
    ) -> Iterator[str]:
        yield f"{device_of(system).place} memory policy: {policy_name(layout, microbatches)}"
        yield Store(job, system).note
        if layout.stream_chunks < needed_chunks(system):
            yield (
                "compute waits for all weights of a layer, though the machine uses weights as they arrive; "
                "without prefetch this step is too slow: stream_chunks or --detail chunk models the overlap"
            )
        elif needed_chunks(system) > 1:
            yield f"no prefetch: layers are streamed and used in {layout.stream_chunks} chunks"
        if job.recipe.weight_sparsity:
            share = 100 * job.recipe.weight_sparsity
            yield (
                f"{share:.4g} % of the layers' weights are zero: MFU counts FLOPs of nonzero weights, HFU "
                "executed FLOPs"
            )

    def emit(self, plan: StreamingPlan, builder: GraphBuilder) -> None:
        """Write two steps; the second is the steady state."""
        builder.fold(plan.layout.data)
        StreamingWriter(plan, builder).write()

    def estimate_s(self, plan: StreamingPlan, costs: Costs) -> float:
        """The larger of compute and streams, summed over blocks, and the bubble between two steps."""
        return estimate_s(plan, costs.duration_s)


def needed_chunks(system: WaferClusterSpec) -> int:
    """Chunks of a layer that an accurate step needs: 1 where layers are prefetched or held whole.

    Without prefetch, weights overlap with compute only between chunks of the same layer.
    """
    whole = system.streaming.prefetch_depth > 0 or system.streaming.weights_held == "layer"
    return 1 if whole else STREAM_CHUNKS


def _overflow(use: MemoryUse, job: Job, layout: StreamingLayout) -> str:
    """The message for memory that does not fit, with what would help."""
    helps = {
        "wafer": "a smaller micro_batch_size or recompute_layers 1",
        "GPU": "a smaller micro_batch_size or recompute_layers 1",
        "activation servers": "a smaller micro_batch_size or spill=false",
    }
    advice = helps.get(
        use.place, "more weight servers (memoryx.servers) or flash in them (memoryx.server.flash)"
    )
    if use.on_device and (layout.micro_batch_size, layout.recompute_layers) == (1, 1):
        advice = f"shorter sequences than {job.seq_length:,} tokens; one layer of one sequence is the least"
    unit, name = (1e12, "TB") if use.capacity_bytes >= 1e12 else (1e9, "GB")
    needs, capacity = use.total_bytes / unit, use.capacity_bytes / unit
    return f"does not fit: {use.place} needs {needs:.1f} {name} of {capacity:.1f} {name}; try {advice}"
