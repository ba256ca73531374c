"""Weight streaming: weights live in MemoryX and pass over the wafer layer by layer, twice a step.

Streams of one step: `memoryx/out` sends a layer's weights, `swarmx/down` broadcasts them,
`csK/compute` uses them; backward streams the same weights again, `swarmx/up` sums the gradients on
their way, and `memoryx/update` updates a layer as soon as its gradient is complete. The next step's
weights of a layer wait for that update. Every system gets the same weights and its own slice of the
batch, so one system is written and stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perfsim.errors import GraphError, InputError, LayoutError, MemoryCapacityError, Problem
from perfsim.graph import EMBEDDING, HEAD, GraphBuilder, Slots, Template, Work
from perfsim.hardware import WaferClusterSpec
from perfsim.sizes import passes_problem
from perfsim.strategies.plan import Duration, Plan
from perfsim.strategies.streaming_blocks import BlockWorks, block_works
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
LEAST_STEPS = 2
"""The second step shows the steady state: its first weights wait for the first step's updates."""


class WeightStreaming:
    """The strategy `weight-streaming`."""

    name = "weight-streaming"
    system_kind = "wafer-cluster"
    summary = "layers stream from MemoryX over wafers that hold only activations (data parallel)"
    prefetch_depth = PREFETCH_DEPTH

    def layouts(self, job: Job, topology: Topology) -> Iterator[ParallelLayout]:
        """Of the recompute groups those that need the fewest micro-batches, each split evenly.

        The software splits a batch that exceeds the wafer, and only such a batch: its best published
        micro-batches are some 90 sequences, where keeping all activations would leave room for a few.
        """
        system = topology.system
        if not isinstance(system, WaferClusterSpec):
            return
        per_system = -(-job.global_batch_size // topology.num_devices)
        sizes = {
            group: even_micro_batch(per_system, largest)
            for group in RECOMPUTE_GROUPS
            if (largest := largest_micro_batch(job, system, per_system, group, self.prefetch_depth))
        }
        largest_size = max(sizes.values(), default=0)
        for group, size in sizes.items():
            if size == largest_size:
                yield with_policy(ParallelLayout(data=topology.num_devices), size, group)

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
        per_system = -(-job.global_batch_size // layout.data)
        if layout.micro_batch_size > per_system:
            problems.append(
                f"micro_batch_size {layout.micro_batch_size} is more than a system's {per_system} sequences"
            )
        elif problem := passes_problem(job.model.num_layers, -(-per_system // layout.micro_batch_size)):
            problems.append(problem)
        return problems

    @staticmethod
    def _overflow(place: str, needs: float, capacity: float) -> str:
        return (
            f"does not fit: {place} needs {needs / 1e9:.1f} GB of {capacity / 1e9:.1f} GB; "
            "try a smaller micro_batch_size or recompute_layers 1"
        )

    def emit(self, plan: Plan, builder: GraphBuilder) -> None:
        """Write two steps; the second is the steady state."""
        builder.fold(plan.layout.data)
        _Writer(plan, builder, self.prefetch_depth).write()

    def estimate_s(self, plan: Plan, duration: Duration) -> float:
        """Sum over blocks of the larger of compute and stream, and what updates and first weights take after.

        A block is updated when its gradient is complete and the update before it is done.
        """
        works = block_works(plan)
        streamed_again = plan.layout.recompute_layers > 1
        forward_s = sum(max(duration(work.forward), duration(work.load)) for work in works)
        backward_s = updated_s = 0.0
        for work in reversed(works):
            backward_s += _backward_s(work, duration, streamed_again=streamed_again)
            updated_s = max(updated_s, backward_s + duration(work.reduce)) + duration(work.update)
        wait_s = updated_s - backward_s + duration(works[0].load) + duration(works[0].broadcast)
        return plan.num_microbatches * (forward_s + backward_s) + wait_s


def _backward_s(work: BlockWorks, duration: Duration, *, streamed_again: bool) -> float:
    """A block's backward: the longest of compute, stream and gradients; recompute may stream of its own."""
    load = duration(work.load)
    again = duration(work.recompute) if work.recompute is not None else 0.0
    first = 0.0
    if again and streamed_again:
        first, again = max(again, load), 0.0
    return first + max(again + duration(work.backward), load, duration(work.reduce))


class _Writer:
    """Records one pass over the model, and one update, and deals them out over two steps.

    A pass is one micro-batch forward and backward. What differs between passes is only what they
    find: weights of an update or the initial ones, gradients to add to, slots that a pass before frees.
    """

    def __init__(self, plan: Plan, builder: GraphBuilder, depth: int) -> None:
        self.builder = builder
        self.depth = depth
        self.works = block_works(plan)
        self.group = max(1, plan.layout.recompute_layers)
        self.passes = plan.num_microbatches
        self.steps = max(LEAST_STEPS, plan.least_steps)

    def write(self) -> None:
        flags = [(step > 0, number > 0) for step in range(self.steps) for number in range(self.passes)]
        kinds = list(dict.fromkeys((*flag, index > 0) for index, flag in enumerate(flags)))
        templates = [self._pass(*kind) for kind in kinds] + [self._update()]
        sequence: list[int] = []
        for index, flag in enumerate(flags):
            sequence.append(kinds.index((*flag, index > 0)))
            if index % self.passes == self.passes - 1:
                sequence.append(len(kinds))
        stamped = self.builder.stamp(templates, self._slots(sequence, update=len(kinds), templates=templates))
        for slot in np.flatnonzero(stamped.template == len(kinds)).tolist():
            self.builder.end_step(int(stamped.first_task[slot]) + len(templates[-1]))

    def _slots(self, sequence: list[int], update: int, templates: list[Template]) -> Slots:
        """Each slot's neighbours: the pass before it, and the update before it."""
        template = np.array(sequence, dtype=np.int64)
        index = np.arange(len(sequence), dtype=np.int64)
        is_update = template == update
        last_pass = _latest(index, ~is_update)
        last_update = _latest(index, is_update)
        sources = {}
        for name in {name for each in templates for name in each.ports}:
            source = last_update if name.startswith("weights") else last_pass
            sources[name] = (source, name)
        tag = np.where(is_update, -1, np.cumsum(~is_update) - 1) % self.passes
        return Slots(template, np.where(is_update, -1, tag), sources)

    def _pass(self, updated: bool, adds: bool, follows: bool) -> Template:
        """One micro-batch: weights from an update or initial, gradients added to earlier ones or not."""
        template = self.builder.template()
        return _Pass(template, self.works, self.depth, self.group, updated, adds, follows).record()

    def _update(self) -> Template:
        """The optimizer on MemoryX, block by block as their gradients were completed."""
        template = self.builder.template()
        for number in reversed(range(len(self.works))):
            gradient = template.port(f"gradient{number}")
            block = _block(number, len(self.works))
            weights = template.task(self.works[number].update, "memoryx/update", [gradient], block=block)
            template.output(f"weights{number}", weights.tensor)
        return template


def _block(number: int, count: int) -> int:
    """What a block is called in the graph: the embedding, a layer's number, or the head."""
    return {0: EMBEDDING, count - 1: HEAD}.get(number, number - 1)


def _latest(index: NDArray[np.int64], marked: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each slot the last marked slot before it; -1 where there is none."""
    latest = np.maximum.accumulate(np.where(marked, index, -1))
    return np.concatenate([[-1], latest[:-1]]).astype(np.int64)


@dataclass
class _Pass:
    """The recording of one pass."""

    template: Template
    works: list[BlockWorks]
    depth: int
    group: int
    """Layers whose activations are made again together, from the input of the first."""
    updated: bool
    adds: bool
    follows: bool
    computed: list[int] = field(default_factory=list)
    """Last tensor of each block computed so far, in order: what frees the slots of prefetched weights."""

    def record(self) -> Template:
        count = len(self.works)
        hidden: list[int] = []
        for number in range(count):
            weights = self._stream(number)
            hidden.append(self._compute(number, self.works[number].forward, [weights, *hidden[-1:]]))
            self.computed.append(hidden[-1])
        gradient = hidden[-1]
        for group in reversed(self._groups()):
            inputs = self._again(group, hidden)
            for number in reversed(group):
                gradient = self._backward(number, gradient, inputs[number], made=len(group) > 1)
                self.computed.append(gradient)
        for distance in range(1, self.depth + 2):
            self.template.output(f"computed-{distance}", self.computed[-distance])
        return self.template

    def _groups(self) -> list[range]:
        """Blocks in runs that are made again together; embedding and head stand alone."""
        head = len(self.works) - 1
        layers = [range(first, min(first + self.group, head)) for first in range(1, head, self.group)]
        return [range(1), *layers, range(head, head + 1)]

    def _again(self, group: range, hidden: list[int]) -> dict[int, int]:
        """The input of each block of a group; made again from the group's own where it was not kept.

        That takes the weights of the group once more. A group of one makes its activations again
        from the weights that its backward gets anyway.
        """
        inputs = {group[0]: hidden[max(group[0] - 1, 0)]}
        for number, following in pairwise(group):
            inputs[following] = self._made_again(number, inputs[number])
        if len(group) > 1:
            self._made_again(group[-1], inputs[group[-1]])
        return inputs

    def _made_again(self, number: int, before: int) -> int:
        recompute = self.works[number].recompute
        if recompute is None:
            raise GraphError(f"block {number} is in a group that is made again, but has no work for it")
        again = self._compute(number, recompute, [self._stream(number), before])
        self.computed.append(again)
        return again

    def _stream(self, number: int) -> int:
        """Send a block's weights to every wafer, no further ahead than the prefetch depth."""
        works = self.works[number]
        reads = [self.template.port(f"weights{number}")] if self.updated else []
        block = _block(number, len(self.works))
        load = self.template.task(works.load, "memoryx/out", reads, self._freed(), block)
        return self.template.task(works.broadcast, "swarmx/down", [load.tensor], block=block).tensor

    def _freed(self) -> list[int]:
        """The computation whose end frees the slot that the next weights take."""
        index = len(self.computed) - 1 - self.depth
        if index >= 0:
            return [self.template.writer(self.computed[index])]
        return [self.template.port(f"computed-{-index}")] if self.follows else []

    def _backward(self, number: int, gradient: int, before: int, *, made: bool) -> int:
        works = self.works[number]
        weights = self._stream(number)
        reads = [weights, gradient, before]
        if works.recompute is not None and not made:
            reads.append(self._compute(number, works.recompute, [weights, before]))
        result = self._compute(number, works.backward, reads)
        adds = [self.template.port(f"gradient{number}")] if self.adds else []
        block = _block(number, len(self.works))
        summed = self.template.task(works.reduce, "swarmx/up", [result + 1, *adds], block=block)
        self.template.output(f"gradient{number}", summed.tensor)
        return result

    def _compute(self, number: int, work: Work, reads: list[int]) -> int:
        block = _block(number, len(self.works))
        return self.template.task(work, "cs0/compute", reads, block=block).tensor
