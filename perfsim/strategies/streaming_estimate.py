"""The step of weight streaming in closed form: what planning screens memory policies with.

Every block of every micro-batch takes the longest of what runs beside one another: compute, weights in,
gradients out, activations out or back. In the last micro-batch a block is updated when its gradient is
complete and the update before it is done; the first block is the last of them, and then its weights
come down for the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfsim.graph import Work
from perfsim.strategies.plan import Duration, Plan
from perfsim.strategies.streaming_blocks import BlockWorks, block_works, samples_work, wafer_system
from perfsim.strategies.streaming_graph import last_micro_batch


def estimate_s(plan: Plan, duration: Duration) -> float:
    """All micro-batches, each at its own size, and the bubble between two steps."""
    estimate = _Estimate(plan, duration)
    full = estimate.pass_s(plan.layout.micro_batch_size, last=False)
    last = estimate.pass_s(last_micro_batch(plan), last=True)
    return (plan.num_microbatches - 1) * full + last + estimate.bubble_s()


@dataclass
class _Estimate:
    plan: Plan
    duration: Duration

    def seconds(self, work: Work | None) -> float:
        return 0.0 if work is None else self.duration(work)

    def pass_s(self, micro_batch_size: int, *, last: bool) -> float:
        """One micro-batch forward and backward, or its samples where they come more slowly."""
        works = block_works(self.plan, micro_batch_size)
        streaming = wafer_system(self.plan).streaming
        if not last and streaming.accumulate_at == "swarmx":
            works = [work.in_tree() for work in works]
        computing = sum(self.forward_s(work) + self.backward_s(work, last=last) for work in works)
        return max(computing, self.duration(samples_work(self.plan, micro_batch_size)))

    def forward_s(self, works: BlockWorks) -> float:
        spill = self.seconds(works.spill) / self.group
        return self.joined_s(self.duration(works.forward), self.weights_s(works), spill)

    def backward_s(self, works: BlockWorks, *, last: bool) -> float:
        """Backward and what is made again for it; groups of several layers stream their weights for that."""
        layout, streaming = self.plan.layout, wafer_system(self.plan).streaming
        weights, again, first = self.weights_s(works), self.seconds(works.recompute), 0.0
        if again and layout.recompute_layers > 1:
            first, again = self.joined_s(again, weights), 0.0
        up = self.duration(works.reduce) if last or streaming.accumulate_at != "wafer" else 0.0
        if last:
            weights += self.seconds(works.state_read)
        if not streaming.duplex:
            weights, up = weights + up, 0.0
        backward = again + self.duration(works.backward)
        return first + self.joined_s(backward, weights, up, self.seconds(works.fetch) / self.group)

    @property
    def group(self) -> int:
        return max(1, self.plan.layout.recompute_layers)

    def joined_s(self, compute_s: float, weights_s: float, *beside_s: float) -> float:
        """Side by side; without prefetch a block's weights come before its computation."""
        ahead = wafer_system(self.plan).streaming.prefetch_depth > 0
        pace = max(compute_s, weights_s) if ahead else compute_s + weights_s
        return max(pace, *beside_s, 0.0)

    def weights_s(self, works: BlockWorks) -> float:
        """A block's weights; from several servers at once where each holds a block and may send ahead."""
        system = wafer_system(self.plan)
        load = self.duration(works.load)
        if system.memoryx.placement == "by_layer":
            load /= min(system.memoryx.servers, 1 + system.streaming.prefetch_depth)
        late = self.duration(works.broadcast) if not system.streaming.prefetch_depth else 0.0
        return max(load, self.seconds(works.stage)) + late

    def bubble_s(self) -> float:
        """From the end of a step's backward to the first block's new weights on the wafer.

        Updates follow one another at the pace of arithmetic or of the writing of their states; the
        weights of the first block come when both are done.
        """
        works = block_works(self.plan, last_micro_batch(self.plan))
        computed = updated = 0.0
        for work in reversed(works):
            computed += self.backward_s(work, last=True)
            paces = (self.duration(work.update), self.seconds(work.state_write))
            updated = max(updated, computed + self.duration(work.reduce)) + max(paces)
        first = works[0]
        both = min(self.duration(first.update), self.seconds(first.state_write)) if first.stage else 0.0
        way = both + sum(self.seconds(work) for work in (first.load, first.broadcast, first.stage))
        return updated - computed + way
