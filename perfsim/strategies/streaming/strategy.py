"""Weight streaming: weights are in MemoryX and are streamed to the wafer layer by layer, twice a step.

Streams of a step: `memoryx/out` sends a layer's weights, `swarmx/down` broadcasts them, `csK/compute` uses
them. The backward streams the same weights again, `swarmx/up` sums the gradients on the way, and
`memoryx/update` updates a layer as soon as its gradient is complete. The weights of a layer for the next step
wait for that update. Every system gets the same weights and its own slice of the batch, so the graph is
folded to one system.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

from perfsim.base.errors import LayoutError, MemoryCapacityError, Problem
from perfsim.base.sizes import passes_problem
from perfsim.costs.price import Costs
from perfsim.network import WaferTree
from perfsim.specs.hardware import WaferClusterSpec
from perfsim.specs.layout import StreamingLayout
from perfsim.specs.recipe import Job
from perfsim.strategies.plan import Strategy
from perfsim.strategies.streaming.memory import SERVERS, SUMS, Store
from perfsim.strategies.streaming.passes import BlockWorks, StreamedSteps, StreamingPlan
from perfsim.work import GraphBuilder, Work

# The step of weight streaming in closed form, by which the planner screens memory policies.
#
# Each block of each micro-batch takes the longest of what runs in parallel: compute, weights in, gradients
# out, activations out or back. In the last micro-batch a block is updated when its gradient is complete and
# the previous update is done. The first block is updated last; then its weights are sent for the next step.


class _Estimate:
    """The seconds of a step of a plan, given the seconds of a work."""

    def __init__(self, steps: StreamedSteps, duration: Callable[[Work], float]) -> None:
        self.steps = steps
        self.duration = duration
        self.layout = steps.plan.layout
        self.system = steps.plan.topology.system
        self.group = max(1, self.layout.recompute_layers)
        memoryx = self.system.memoryx
        self.at_once = memoryx.servers if memoryx.placement == "by_layer" else 1
        """Number of blocks that weight servers process in parallel."""

    def seconds(self, work: Work | None) -> float:
        return 0.0 if work is None else self.duration(work)

    def step_s(self) -> float:
        """All micro-batches, the last at its own size, and the bubble between two steps."""
        full = self.pass_s(last=False)
        last = self.pass_s(last=True)
        return (self.steps.plan.num_microbatches - 1) * full + last + self.bubble_s()

    def pass_s(self, *, last: bool) -> float:
        """One micro-batch forward and backward, or the transfer of its samples where that takes longer."""
        works = self.steps.blocks(last=last)
        both_ways = cache(lambda block: self.forward_s(block) + self.backward_s(block, last=last))
        computing = sum(map(both_ways, works))
        samples = self.duration(self.steps.samples(last=last))
        if last:
            return max(computing, samples)
        leaving = sum(map(cache(partial(self.up_s, last=False)), works))
        flash = sum(map(cache(self.flash_s), works))
        return max(computing, leaving, flash / self.at_once, samples)

    def forward_s(self, works: BlockWorks) -> float:
        spill = self.seconds(works.spill) / self.group
        return self.joined_s(works, self.duration(works.forward), spill)

    def backward_s(self, works: BlockWorks, *, last: bool) -> float:
        """Backward and recomputation; groups of several layers stream their weights once more for it."""
        recompute = self.seconds(works.recompute)
        first = 0.0
        behind = 0.0
        if recompute and self.layout.recompute_layers > 1:
            first = self.joined_s(works, recompute)
            recompute = 0.0
        up = self.up_s(works, last=last)
        if last and works.stage is not None:
            behind = self.seconds(works.state_read) + self.turns_s(works)
        if not self.system.swarmx.duplex:
            behind = behind + up
            up = 0.0
        elif not last:
            up = 0.0  # the rest leaves during the next forward
        backward = recompute + self.duration(works.backward)
        fetch = self.seconds(works.fetch) / self.group
        return first + self.joined_s(works, backward, up, fetch, behind=behind)

    def update_pace_s(self, works: BlockWorks) -> float:
        """Seconds of an update in its slowest part, which sets the pace of updates."""
        read = self.seconds(works.state_read) if works.stage is None else 0.0
        return max(self.duration(works.update), self.seconds(works.state_write), read + self.turns_s(works))

    def turns_s(self, works: BlockWorks) -> float:
        """Seconds to write a block's state to half-duplex flash, which blocks reads."""
        flash = self.system.memoryx.server.flash
        return self.seconds(works.state_write) if flash is not None and not flash.duplex else 0.0

    def flash_s(self, works: BlockWorks) -> float:
        """Seconds of flash for a block in a micro-batch before the last: weights and sum of gradients."""
        read = self.seconds(works.sum_read)
        write = self.seconds(works.sum_write)
        flash = self.system.memoryx.server.flash
        sums = read + write if flash is not None and not flash.duplex else max(read, write)
        return 2.0 * self.seconds(works.stage) + sums

    def up_s(self, works: BlockWorks, *, last: bool) -> float:
        """Seconds to send a block's gradient to MemoryX; 0 where it stays on the wafer."""
        if not last and self.system.streaming.accumulate_at == "wafer":
            return 0.0
        return self.duration(works.reduce) / self.at_once

    def joined_s(self, works: BlockWorks, compute_s: float, *beside_s: float, behind: float = 0.0) -> float:
        """Seconds of a block whose compute, weights and other streams (`beside_s`) run in parallel."""
        # Weights arrive at the pace of links and flash, with `behind` seconds of other work on these. They go
        # into one of 1 + prefetch_depth buffers, which is occupied from sending a block to the end of its
        # compute; chunks of a block overlap.
        load = self.duration(works.load)
        pace = max(load, self.seconds(works.stage)) / self.at_once + behind
        buffers = 1 + self.system.streaming.prefetch_depth
        taken = (load + self.duration(works.broadcast) + compute_s) / buffers
        if buffers == 1:  # each chunk after the first is sent during compute
            taken -= min(load, compute_s) * (1 - 1 / self.layout.stream_chunks)
        return max(compute_s, pace, taken, *beside_s, 0.0)

    def bubble_s(self) -> float:
        """Seconds from the end of a step's backward to the first block's new weights on the wafer."""
        works = self.steps.blocks(last=True)

        @cache
        def seconds(block: BlockWorks) -> tuple[float, float, float]:
            backward = self.backward_s(block, last=True)
            return backward, self.duration(block.reduce), self.update_pace_s(block)

        # Updates follow one another at the pace of their slowest part: read state, arithmetic, write state.
        # Servers with blocks of their own work in parallel. The first weights are sent after all updates.
        computed = updated = 0.0
        for backward, reduce, pace in map(seconds, reversed(works)):
            computed += backward
            updated = max(updated + pace / self.at_once, computed + reduce + pace)
        first = works[0]
        both = min(self.duration(first.update), self.seconds(first.state_write)) if first.stage else 0.0
        way = both + sum(self.seconds(work) for work in (first.load, first.broadcast, first.stage))
        return updated - computed + way


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
        """The device's recompute intervals with the fewest micro-batches, and spilled layouts with fewer."""
        per_system = -(-job.global_batch_size // topology.num_devices)
        base = StreamingLayout(data=topology.num_devices, stream_chunks=_needed_chunks(topology.system))
        store = Store(job, topology.system)
        groups = store.device.recompute_groups
        largest = {group: store.largest_micro_batch(per_system, group) for group in groups}
        widest = max(largest.values())

        # The software of wafers splits only a batch that exceeds the wafer or `micro_batch_tokens`.
        def split(fits: int, group: int, *, spill: bool = False) -> StreamingLayout:
            """A system's batch in the fewest parts that fit, of even sizes; the last part may be smaller."""
            count = -(-per_system // fits)
            return replace(
                base,
                micro_batch_size=-(-per_system // count),
                recompute_layers=group,
                recompute="full" if group else "none",
                spill=spill,
            )

        any_fits = widest > 0
        for group, size in largest.items():
            if widest and size >= split(widest, group).micro_batch_size:
                yield split(widest, group)
            spilling = store.largest_micro_batch(per_system, group, spill=True)
            if spilling > size:
                any_fits = True
                yield split(spilling, group, spill=True)
        # Where not even one sequence fits, the layout that needs least is refused with what it needs.
        if not any_fits:
            yield split(1, 1, spill=True)

    def plan(
        self, job: Job, topology: WaferTree, layout: StreamingLayout, *, check_memory: bool = True
    ) -> StreamingPlan:
        """Check one layout; `micro_batch_size` is per system."""
        if problems := self._problems(job, topology, layout):
            raise LayoutError([Problem(text) for text in problems])
        per_system = -(-job.global_batch_size // layout.data)
        microbatches = -(-per_system // layout.micro_batch_size)
        store = Store(job, topology.system, microbatches)
        memory = store.memory(layout, per_system)
        for use in memory:
            if use.fits or not check_memory:
                continue
            advice = "more weight servers (memoryx.servers) or flash in them (memoryx.server.flash)"
            if use.place == "MemoryX DRAM" and topology.system.memoryx.flash_bytes:
                advice = "more weight servers (memoryx.servers) or weights_in and optimizer_state_in auto"
            if use.on_device or use.place == SERVERS:
                other = "recompute_layers 1" if use.on_device else "spill=false"
                advice = f"a smaller micro_batch_size or {other}"
            if use.on_device and use.parts_bytes.get(SUMS, 0.0) > use.capacity_bytes / 2:
                advice = "gradients summed elsewhere (streaming.accumulate_at) or a batch of one micro-batch"
            elif use.on_device and (layout.micro_batch_size, layout.recompute_layers) == (1, 1):
                least = "one layer of one sequence is the least"
                advice = f"shorter sequences than {job.seq_length:,} tokens; {least}"
            unit, name = (1e12, "TB") if use.capacity_bytes >= 1e12 else (1e9, "GB")
            needs = f"{use.total_bytes / unit:.1f} {name} of {use.capacity_bytes / unit:.1f} {name}"
            said = f"does not fit: {use.place} needs {needs}; try {advice}"
            raise MemoryCapacityError(use.total_bytes / use.capacity_bytes, said)
        notes = tuple(self._notes(store, layout, microbatches))
        return StreamingPlan(self, job, topology, layout, microbatches, memory, notes)

    def _problems(self, job: Job, topology: WaferTree, layout: StreamingLayout) -> list[str]:
        problems = []
        if layout.data != topology.num_devices:
            problems.append(f"data {layout.data} must equal the {topology.num_devices} systems")
        if job.global_batch_size < layout.data:
            words = f"global_batch_size {job.global_batch_size} gives some of {layout.data} systems nothing"
            problems.append(f"{words}; nearest: {layout.data} sequences, or {job.global_batch_size} systems")
        if layout.recompute != ("full" if layout.recompute_layers else "none"):
            words = f"recompute {layout.recompute} with recompute_layers {layout.recompute_layers}"
            problems.append(f"{words}: whole layers are recomputed, full, or none with recompute_layers 0")
        if not 1 <= layout.stream_chunks <= MOST_CHUNKS:
            problems.append(f"stream_chunks {layout.stream_chunks} must be 1 to {MOST_CHUNKS}")
        per_system = -(-job.global_batch_size // layout.data)
        blocks = job.model.num_layers + job.model.mtp_num_layers
        size = layout.micro_batch_size
        if size > per_system:
            problems.append(f"micro_batch_size {size} is more than a system's {per_system} sequences")
        elif problem := passes_problem(blocks, -(-per_system // size)):
            problems.append(problem)
        return problems

    @staticmethod
    def _notes(store: Store, layout: StreamingLayout, microbatches: int) -> Iterator[str]:
        group = layout.recompute_layers
        policy = {0: "resident", 1: "recompute every layer"}.get(group, f"recompute every {group} layers")
        if layout.spill:
            policy = "spill" if group == 0 else f"{policy}, inputs spilled"
        if microbatches > 1:
            policy += f", split in {microbatches} micro-batches"
        yield f"{store.device.place} memory policy: {policy}"
        yield store.note
        if layout.stream_chunks < _needed_chunks(store.system):
            yield (
                "compute waits for all weights of a layer, though the machine uses weights as they arrive; "
                "without prefetch this step is too slow: stream_chunks or --detail chunk models the overlap"
            )
        elif _needed_chunks(store.system) > 1:
            yield f"no prefetch: layers are streamed and used in {layout.stream_chunks} chunks"
        if store.job.recipe.weight_sparsity:
            share = 100 * store.job.recipe.weight_sparsity
            yield (
                f"{share:.4g} % of the layers' weights are zero: MFU counts FLOPs of nonzero weights, HFU "
                "executed FLOPs"
            )

    def emit(self, plan: StreamingPlan, builder: GraphBuilder) -> None:
        """Write two steps; the second is the steady state."""
        builder.fold(plan.layout.data)
        StreamedSteps(plan).write(builder)

    def estimate_s(self, plan: StreamingPlan, costs: Costs) -> float:
        """The larger of compute and streams, summed over blocks, and the bubble between two steps."""
        return _Estimate(StreamedSteps(plan), costs.duration_s).step_s()


def _needed_chunks(system: WaferClusterSpec) -> int:
    """Chunks of a layer that an accurate step needs: without prefetch, only one layer's chunks overlap."""
    whole = system.streaming.prefetch_depth > 0 or system.streaming.weights_held == "layer"
    return 1 if whole else STREAM_CHUNKS
