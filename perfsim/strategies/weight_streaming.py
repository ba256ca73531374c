"""Weight streaming: weights live in MemoryX and pass over the wafer layer by layer, twice a step.

Streams of one step: `memoryx/out` sends a layer's weights, `swarmx/down` broadcasts them,
`csK/compute` uses them; backward streams the same weights again, `swarmx/up` sums the gradients on
their way, and `memoryx/update` updates a layer as soon as its gradient is complete. The next step's
weights of a layer wait for that update. Every system gets the same weights and its own slice of the
batch, so one system is written and stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfsim.errors import InputError, LayoutError, MemoryCapacityError, Problem
from perfsim.graph import GraphBuilder, Work
from perfsim.hardware import WaferClusterSpec
from perfsim.strategies.plan import Duration, Plan
from perfsim.strategies.streaming_blocks import block_works
from perfsim.strategies.wafer_memory import (
    even_micro_batch,
    largest_micro_batch,
    policy_name,
    wafer_memory,
    with_policy,
)
from perfsim.topology import Topology
from perfsim.workload import Job, ParallelLayout

PREFETCH_DEPTH = 1
"""Layers whose weights may arrive ahead of the one that computes."""
RECOMPUTE_GROUPS = (0, 1, 2, 4)
STEPS = 2
"""The second step shows the steady state: its first weights wait for the first step's updates."""


class WeightStreaming:
    """The strategy `weight-streaming`."""

    name = "weight-streaming"
    system_kind = "wafer-cluster"
    summary = "layers stream from MemoryX over wafers that hold only activations (data parallel)"
    prefetch_depth = PREFETCH_DEPTH

    def layouts(self, job: Job, topology: Topology) -> Iterator[ParallelLayout]:
        """For each recompute group, the fewest micro-batches that fit."""
        system = topology.system
        if not isinstance(system, WaferClusterSpec):
            return
        per_system = -(-job.global_batch_size // topology.num_devices)
        for group in RECOMPUTE_GROUPS:
            largest = largest_micro_batch(job, system, per_system, group, self.prefetch_depth)
            if largest:
                base = ParallelLayout(data=topology.num_devices)
                yield with_policy(base, even_micro_batch(per_system, largest), group)

    def plan(
        self, job: Job, topology: Topology, layout: ParallelLayout, *, check_memory: bool = True
    ) -> Plan:
        """Check one layout; `micro_batch_size` is per system and micro-batch."""
        system = topology.system
        if not isinstance(system, WaferClusterSpec):
            raise InputError(f"strategy {self.name} runs on wafer clusters; {system.name} is a {system.kind}")
        problems = self._problems(job, topology, layout)
        if problems:
            raise LayoutError([Problem(text) for text in problems])
        per_system = -(-job.global_batch_size // layout.data)
        microbatches = -(-per_system // layout.micro_batch_size)
        memory = wafer_memory(job, layout, system, self.prefetch_depth)
        if check_memory:
            for use in memory:
                if not use.fits:
                    raise MemoryCapacityError(
                        use.total_bytes / use.capacity_bytes,
                        self._overflow(use.place, use.total_bytes, use.capacity_bytes),
                    )
        notes = (f"wafer memory policy: {policy_name(layout, microbatches)}",)
        return Plan(self.name, job, topology, layout, microbatches, memory, notes)

    def _problems(self, job: Job, topology: Topology, layout: ParallelLayout) -> list[str]:
        problems = []
        if layout.tensor != 1 or layout.pipeline != 1:
            problems.append("weight streaming is data parallel only: tensor and pipeline must be 1")
        if layout.data != topology.num_devices:
            problems.append(f"data {layout.data} must equal the {topology.num_devices} systems")
        if job.global_batch_size < layout.data:
            problems.append(
                f"global_batch_size {job.global_batch_size} gives some of {layout.data} systems nothing"
            )
        return problems

    @staticmethod
    def _overflow(place: str, needs: float, capacity: float) -> str:
        return (
            f"does not fit: {place} needs {needs / 1e9:.1f} GB of {capacity / 1e9:.1f} GB; "
            "try a smaller micro_batch_size or recompute_layers 1"
        )

    def emit(self, plan: Plan, builder: GraphBuilder) -> None:
        """Write two steps; the second is the steady state."""
        writer = _Writer(plan, builder, self.prefetch_depth)
        for _ in range(STEPS):
            writer.step()

    def estimate_s(self, plan: Plan, duration: Duration) -> float:
        """Sum over blocks of the larger of compute and stream, and the bubble between two steps."""
        works = block_works(plan)
        each = 0.0
        for work in works:
            load = duration(work.load)
            each += max(duration(work.forward), load)
            each += max(duration(work.backward), load, duration(work.reduce))
            if work.recompute is not None:
                each += duration(work.recompute)
        first = works[0]
        bubble = sum(duration(work) for work in (first.reduce, first.update, first.load, first.broadcast))
        return plan.num_microbatches * each + bubble


class _Writer:
    """Writes optimizer steps and remembers which tensor holds each block's current weights."""

    def __init__(self, plan: Plan, builder: GraphBuilder, depth: int) -> None:
        self.plan = plan
        self.builder = builder
        self.depth = depth
        self.works = block_works(plan)
        self.weights: list[list[int]] = [[] for _ in self.works]
        self.used: list[int] = []
        """Compute tasks in order: what frees the slots of prefetched weights."""

    def step(self) -> None:
        gradients: list[list[int]] = [[] for _ in self.works]
        for microbatch in range(self.plan.num_microbatches):
            hidden: list[int] = []
            kept = []
            for number in range(len(self.works)):
                hidden = [self._forward(number, hidden, microbatch)]
                kept.append(hidden[0])
            gradient = [kept[-1]]
            for number in reversed(range(len(self.works))):
                before = kept[number - 1] if number else kept[0]
                gradient = [self._backward(number, gradient[0], before, microbatch, gradients)]
        for number in reversed(range(len(self.works))):
            update = self.builder.task(self.works[number].update, "memoryx/update", gradients[number])
            self.weights[number] = [update.tensor]
        self.builder.end_step()

    def _stream(self, number: int, microbatch: int) -> int:
        """Send a block's weights to every wafer, no further ahead than the prefetch depth."""
        works = self.works[number]
        freed = self.used[-1 - self.depth :][:1] if len(self.used) > self.depth else []
        load = self.builder.task(works.load, "memoryx/out", self.weights[number], freed, microbatch)
        return self.builder.task(works.broadcast, "swarmx/down", [load.tensor], (), microbatch).tensor

    def _forward(self, number: int, hidden: list[int], microbatch: int) -> int:
        weights = self._stream(number, microbatch)
        return self._compute(self.works[number].forward, [weights, *hidden], microbatch)

    def _backward(
        self, number: int, gradient: int, before: int, microbatch: int, gradients: list[list[int]]
    ) -> int:
        works = self.works[number]
        weights = self._stream(number, microbatch)
        reads = [weights, gradient, before]
        if works.recompute is not None:
            reads.append(self._compute(works.recompute, [weights, before], microbatch))
            self.used.pop()
        result = self._compute(works.backward, reads, microbatch)
        reduced = self.builder.task(works.reduce, "swarmx/up", [result + 1], (), microbatch)
        gradients[number].append(reduced.tensor)
        return result

    def _compute(self, work: Work, reads: list[int], microbatch: int) -> int:
        task = self.builder.task(work, "cs0/compute", reads, (), microbatch)
        self.used.append(task.id)
        return task.tensor
