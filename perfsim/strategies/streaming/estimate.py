"""The step of weight streaming in closed form, with which the planner screens memory policies.

Each block of each micro-batch takes the longest of what runs in parallel: compute, weights in, gradients
out, activations out or back. In the last micro-batch a block is updated when its gradient is complete and
the previous update is done. The first block is updated last; then its weights are sent for the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfsim.graph import Work
from perfsim.strategies.streaming.blocks import BlockWorks, StreamingPlan, block_works, samples_work
from perfsim.strategies.streaming.graph import last_micro_batch


def estimate_s(plan: StreamingPlan, duration: Callable[[Work], float]) -> float:
    """All micro-batches, the last at its own size, and the bubble between two steps."""
    estimate = _Estimate(plan, duration)
    full = estimate.pass_s(plan.layout.micro_batch_size, last=False)
    last = estimate.pass_s(last_micro_batch(plan), last=True)
    return (plan.num_microbatches - 1) * full + last + estimate.bubble_s()


@dataclass
class _Estimate:
    plan: StreamingPlan
    duration: Callable[[Work], float]

    def seconds(self, work: Work | None) -> float:
        return 0.0 if work is None else self.duration(work)

    def pass_s(self, micro_batch_size: int, *, last: bool) -> float:
        """One micro-batch forward and backward, or the transfer of its samples where that takes longer."""
        works = block_works(self.plan, micro_batch_size)
        streaming = self.plan.topology.system.streaming
        if not last and streaming.accumulate_at == "swarmx":
            works = works.of(BlockWorks.in_tree)
        passed = works.of(lambda work: self.forward_s(work) + self.backward_s(work, last=last))
        computing, leaving = sum(passed.in_order()), 0.0
        if not last:
            leaving = sum(works.of(lambda work: self.up_s(work, last=False)).in_order())
        return max(computing, leaving, self.duration(samples_work(self.plan, micro_batch_size)))

    def forward_s(self, works: BlockWorks) -> float:
        spill = self.seconds(works.spill) / self.group
        return self.joined_s(works, self.duration(works.forward), spill)

    def backward_s(self, works: BlockWorks, *, last: bool) -> float:
        """Backward and recomputation; groups of several layers stream their weights once more for it."""
        layout = self.plan.layout
        recompute, first, behind = self.seconds(works.recompute), 0.0, 0.0
        if recompute and layout.recompute_layers > 1:
            first, recompute = self.joined_s(works, recompute), 0.0
        up = self.up_s(works, last=last)
        if last and works.stage is not None:
            behind = self.seconds(works.state_read) + self.turns_s(works)
        if not self.plan.topology.system.swarmx.duplex:
            behind, up = behind + up, 0.0
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
        flash = self.plan.topology.system.memoryx.server.flash
        return self.seconds(works.state_write) if flash is not None and not flash.duplex else 0.0

    def up_s(self, works: BlockWorks, *, last: bool) -> float:
        """Seconds to send a block's gradient to MemoryX; 0 where it stays on the wafer."""
        if not last and self.plan.topology.system.streaming.accumulate_at == "wafer":
            return 0.0
        return self.duration(works.reduce) / self.at_once

    @property
    def at_once(self) -> int:
        """Number of blocks that weight servers process in parallel."""
        memoryx = self.plan.topology.system.memoryx
        return memoryx.servers if memoryx.placement == "by_layer" else 1

    @property
    def group(self) -> int:
        return max(1, self.plan.layout.recompute_layers)

    def joined_s(self, works: BlockWorks, compute_s: float, *beside_s: float, behind: float = 0.0) -> float:
        """Seconds of a block whose compute, weights and other streams (`beside_s`) run in parallel.

        Weights arrive at the pace of links and flash, with `behind` seconds of other work on these. They go
        into one of 1 + prefetch_depth buffers, which is occupied from sending a block to the end of its
        compute; chunks of a block overlap.
        """
        load = self.duration(works.load)
        pace = max(load, self.seconds(works.stage)) / self.at_once + behind
        buffers = 1 + self.plan.topology.system.streaming.prefetch_depth
        taken = (load + self.duration(works.broadcast) + compute_s) / buffers
        if buffers == 1:  # each chunk after the first is sent during compute
            taken -= min(load, compute_s) * (1 - 1 / self.plan.layout.stream_chunks)
        return max(compute_s, pace, taken, *beside_s, 0.0)

    def bubble_s(self) -> float:
        """Seconds from the end of a step's backward to the first block's new weights on the wafer.

        Updates follow one another at the pace of their slowest part: reading state, arithmetic, writing
        state. Servers with blocks of their own work in parallel. The weights of the first block are sent
        after all updates.
        """
        works, at_once = block_works(self.plan, last_micro_batch(self.plan)), self.at_once
        seconds = works.of(
            lambda work: (
                self.backward_s(work, last=True),
                self.duration(work.reduce),
                self.update_pace_s(work),
            )
        )
        computed = updated = 0.0
        for backward, reduce, pace in reversed(seconds.in_order()):
            computed += backward
            updated = max(updated + pace / at_once, computed + reduce + pace)
        first = works.embedding
        both = min(self.duration(first.update), self.seconds(first.state_write)) if first.stage else 0.0
        way = both + sum(self.seconds(work) for work in (first.load, first.broadcast, first.stage))
        return updated - computed + way
