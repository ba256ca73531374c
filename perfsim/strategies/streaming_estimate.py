"""The step of weight streaming in closed form: what planning screens memory policies with.

Every block of every micro-batch takes the longest of what runs beside one another: compute, weights in,
gradients out, activations out or back, and in the last micro-batch the update. Between two steps the
gradient of the first block goes up, is applied, and its weights come down.
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
        computing = sum(self.block_s(work, last=last) for work in works)
        return max(computing, self.duration(samples_work(self.plan, micro_batch_size)))

    def block_s(self, works: BlockWorks, *, last: bool) -> float:
        layout, streaming = self.plan.layout, wafer_system(self.plan).streaming
        weights, again = self.weights_s(works), self.seconds(works.recompute)
        each = self.joined_s(self.duration(works.forward), weights, self.seconds(works.spill) / self.group)
        if again and layout.recompute_layers > 1:
            each += self.joined_s(again, weights)
            again = 0.0
        up, state = 0.0, 0.0
        if last or streaming.accumulate_at != "wafer":
            up = self.duration(works.reduce)
        if last:
            state = max(self.duration(works.update), self.seconds(works.state_write))
            weights += self.seconds(works.state_read)
        backward = again + self.duration(works.backward)
        fetch = self.seconds(works.fetch) / self.group
        if not streaming.duplex:
            weights, up = weights + up, 0.0
        return each + self.joined_s(backward, weights, up, state, fetch)

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
        """The first block's gradient up, its update, and its weights down."""
        first = block_works(self.plan, last_micro_batch(self.plan))[0]
        way = [first.reduce, first.update, first.load, first.broadcast, first.stage]
        if first.stage is not None:
            way.append(first.state_write)
        return sum(self.seconds(work) for work in way)
