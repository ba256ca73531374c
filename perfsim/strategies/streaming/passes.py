"""Writes the steps of weight streaming: passes over the model, one per micro-batch.

Passes differ only in their inputs (initial or updated weights, gradients to add to, buffers that an earlier
pass frees), and in that the last pass of a step updates each block as soon as its gradient is complete.
Streams: `memoryx/out`, `swarmx/down`, `csK/compute`, `swarmx/up`, `memoryx/update`, and `csK/samples` for
the input; where flash or spilling is used, `memoryx/flash-read`, `memoryx/flash-write`, `csK/spill` and
`csK/fetch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfsim.base.errors import GraphError
from perfsim.strategies.streaming.blocks import (
    Blocks,
    BlockWorks,
    StreamingPlan,
    block_works,
    outline,
    samples_work,
)
from perfsim.work import EMBEDDING, HEAD, GraphBuilder, Slots, Template, Work

# One pass of weight streaming, recorded once: a micro-batch forward and backward over the model.
#
# Weights are sent, whole or in chunks, when a buffer is free: 1 + `prefetch_depth` blocks can be in flight. A
# chunk is used when it arrives, and a chunk of gradients leaves when it is computed. A graph in chunks has
# the same work and weaker dependencies than a graph in layers, so it never takes longer. With prefetch it
# saves, per micro-batch, at most two loads and one reduction of each kind of block (embedding, layer, LM
# head) and the latency of each load. Without prefetch, a layer's weights arrive before its compute in a graph
# in layers, and during it in a graph in chunks, which is then the more accurate one.

DEVICE = "cs0"


class _PassKind(NamedTuple):
    """The inputs and duties of a pass."""

    updated: bool
    """Its weights come from an update, not from initialisation."""
    adds: bool
    """Its gradients are added to those of an earlier pass."""
    follows: bool
    """There is an earlier pass."""
    refilled: bool
    """Its samples take the buffer of samples of an earlier pass."""
    last: bool
    """It is the last pass of its step, which updates the blocks."""


class _PassWorks(NamedTuple):
    """The work of a pass: that of each kind of block, and its samples."""

    blocks: Blocks[BlockWorks]
    samples: Work

    def classes(self) -> list[Work]:
        """All classes of work, in an order that depends only on which of them exist."""
        return [work for block in self.blocks.values for work in block.classes()] + [self.samples]

    def outlines(self) -> _PassWorks:
        """The same without sizes; passes with equal outlines differ only in their classes of work."""
        return _PassWorks(self.blocks.of(lambda block: block.changed(outline)), outline(self.samples))


class _PassRules(NamedTuple):
    """Settings of a layout and a system that determine the dependencies of a pass."""

    recompute_layers: int
    chunks: int
    prefetch_depth: int
    staged_layers: int
    gradients_on_wafer: bool
    servers: int | None
    """Number of weight servers with blocks of their own; None: blocks are sharded over all servers."""


def _recorded(works: _PassWorks, rules: _PassRules, kind: _PassKind, builder: GraphBuilder) -> Template:
    """The template of a pass, recorded once for all batches and devices and rebound to the given work."""
    outlines = works.outlines()
    bound = dict(zip(outlines.classes(), works.classes(), strict=True))
    return _recording(outlines, rules, kind).rebound(builder, bound)


@lru_cache(maxsize=256)
def _recording(outlines: _PassWorks, rules: _PassRules, kind: _PassKind) -> Template:
    return PassRecorder(GraphBuilder().template(), outlines, rules, kind).record()


@dataclass
class PassRecorder:
    """Records one pass in a template."""

    template: Template
    works: _PassWorks
    rules: _PassRules
    kind: _PassKind
    computed: list[int] = field(default_factory=list)
    """Last tensor of each computed block, in order; its end frees a buffer of prefetched weights."""
    sent: list[int] = field(default_factory=list)
    """Last tensor of each sent block; its end frees DRAM for the next block from flash."""
    updates: list[int] = field(default_factory=list)
    spilled: dict[int, int] = field(default_factory=dict)
    """Spilled tensors by the first block of their group."""
    started: list[int] = field(default_factory=list)
    """The last tensor before each group's backward, in order."""

    @cached_property
    def blocks(self) -> list[BlockWorks]:
        return self.works.blocks.in_order()

    @property
    def depth(self) -> int:
        """Prefetch depth, less than the number of block computations in a pass."""
        return min(self.rules.prefetch_depth, 2 * len(self.blocks) - 1)

    @property
    def group(self) -> int:
        """Recompute interval: layers whose activations are recomputed from the input of the first."""
        return max(1, self.rules.recompute_layers)

    def _task(
        self, number: int, work: Work, stream: str, reads: Sequence[int] = (), after: Sequence[int] = ()
    ) -> int:
        """Record one task of a block and return the first tensor that it writes."""
        block = {0: EMBEDDING, len(self.blocks) - 1: HEAD}.get(number, number - 1)
        return self.template.task(work, stream, reads, after, block=block).tensor

    # ---------------------------------------------------------------------------------- the pass
    def record(self) -> Template:
        hidden = self._forward()
        gradient = hidden[-1]
        for group in reversed(self._groups()):
            self.started.append(gradient)
            inputs = self._recompute_group(group, hidden)
            for number in reversed(group):
                gradient = self._backward(number, gradient, inputs[number], recomputed=len(group) > 1)
                self.computed.append(gradient)
        for distance in range(1, self.depth + 2):
            self.template.output(f"computed-{distance}", self.computed[-distance])
        return self.template

    def _forward(self) -> list[int]:
        used = [self.template.port("sampled")] if self.kind.refilled else []
        samples = self.template.task(self.works.samples, f"{DEVICE}/samples", (), used)
        hidden: list[int] = [samples.tensor]
        firsts = {group[0] for group in self._groups()}
        for number, works in enumerate(self.blocks):
            if works.spill is not None and number in firsts and self.rules.recompute_layers:
                self._spill(number, hidden[-1])
            weights = self._stream(number)
            hidden.append(self._tasks(number, works.forward, weights, hidden[-1:], self._room())[-1])
            self.computed.append(hidden[-1])
            if works.spill is not None and not self.rules.recompute_layers:
                self._spill(number, hidden[-1])
        self.template.output("sampled", hidden[1])
        return hidden[1:]

    def _groups(self) -> list[range]:
        """Groups of blocks that are recomputed together; embedding and LM head have groups of their own."""
        head = len(self.blocks) - 1
        layers = [range(first, min(first + self.group, head)) for first in range(1, head, self.group)]
        return [range(1), *layers, range(head, head + 1)]

    def _recompute_group(self, group: range, hidden: list[int]) -> dict[int, int]:
        """The input of each block of a group, recomputed from the group's input where it was not kept.

        Recomputation streams the weights of the group once more. A group of a single block recomputes its
        activations with the weights that its backward gets anyway.
        """
        inputs = {group[0]: self._fetched(group[0], hidden)}
        for number, following in pairwise(group):
            inputs[following] = self._recompute_block(number, inputs[number])
        if len(group) > 1:
            self._recompute_block(group[-1], inputs[group[-1]])
        return inputs

    def _recompute_block(self, number: int, before: int) -> int:
        work = self.blocks[number].recompute
        if work is None:
            raise GraphError(f"block {number} is in a recompute group, but has no recompute work")
        tensor = self._tasks(number, work, self._stream(number), [before])[-1]
        self.computed.append(tensor)
        return tensor

    def _backward(self, number: int, gradient: int, before: int, *, recomputed: bool) -> int:
        works = self.blocks[number]
        weights = self._stream(number)
        reads = [gradient, before]
        if works.recompute is not None and not recomputed:
            reads.append(self._tasks(number, works.recompute, weights, [before])[-1])
        if self.kind.adds and self.rules.gradients_on_wafer:
            reads.append(self.template.port(f"gradient{number}"))
        parts = self._tasks(number, works.backward, weights, reads)
        self._egress(number, [part + 1 for part in parts])
        return parts[-1]

    # -------------------------------------------------------------------------------- weights in
    def _stream(self, number: int) -> list[int]:
        """Send a block's weights to every wafer, at most the prefetch depth ahead."""
        works = self.blocks[number]
        reads: list[int] = [self.template.port(f"weights{number}")] if self.kind.updated else []
        if works.stage is not None:
            stream = self._server("memoryx/flash-read", number)
            reads = [self._task(number, works.stage, stream, reads, self._room_in_dram(self.sent))]
        freed = self._freed()
        arrived = []
        for chunk in range(self.rules.chunks):
            load = self._task(number, works.load, self._server("memoryx/out", number), reads, freed)
            lane = f"swarmx/down{chunk or ''}"  # a lane per chunk: hops are latency, so chunks overlap
            arrived.append(self._task(number, works.broadcast, lane, [load]))
        self.sent.append(load)
        return arrived

    def _freed(self) -> list[int]:
        """The compute task whose end frees the buffer for the next weights."""
        index = len(self.computed) - 1 - self.depth
        if index >= 0:
            return [self.template.writer(self.computed[index])]
        return [self.template.port(f"computed-{-index}")] if self.kind.follows else []

    def _room_in_dram(self, done: Sequence[int]) -> list[int]:
        """The task that must end before one more layer is read from flash."""
        staged = self.rules.staged_layers
        return [self.template.writer(done[-staged])] if len(done) >= staged else []

    def _server(self, stream: str, number: int) -> str:
        """The stream of the weight server of a block; a common one where blocks are sharded."""
        servers = self.rules.servers
        return stream if servers is None else f"{stream}{number % servers}"

    # ------------------------------------------------------------------------------ gradients out
    def _egress(self, number: int, parts: list[int]) -> None:
        """Send gradients up the tree, added to those of earlier passes; the last pass updates the block."""
        works = self.blocks[number]
        name = f"gradient{number}"
        adds = [self.template.port(name)] if self.kind.adds and not self.rules.gradients_on_wafer else []
        self.template.output(name, parts[-1])
        if self.rules.gradients_on_wafer and not self.kind.last:
            return
        up = []
        for part in parts:
            work = works.reduce if part == parts[-1] else works.reduce_part
            up.append(self._task(number, work, self._server("swarmx/up", number), [part, *adds]))
        self.template.output(name, up[-1])
        if self.kind.last:
            self._update(number, up)

    def _update(self, number: int, gradients: list[int]) -> None:
        """Run the optimizer on MemoryX as soon as a block's gradient is complete."""
        works = self.blocks[number]
        reads = list(gradients)
        if works.state_read is not None:
            before = [self.template.port(f"state{number}")] if self.kind.updated else []
            stream = self._server("memoryx/flash-read", number)
            reads.append(
                self._task(number, works.state_read, stream, before, self._room_in_dram(self.updates))
            )
        weights = self._task(number, works.update, self._server("memoryx/update", number), reads)
        self.updates.append(weights)
        if works.state_write is not None:
            stream = self._server("memoryx/flash-write", number)
            written = self._task(number, works.state_write, stream, [weights])
            self.template.output(f"state{number}", written)
            weights = written if works.stage is not None else weights
        self.template.output(f"weights{number}", weights)

    # -------------------------------------------------------------------------------- activations
    def _spill(self, first: int, tensor: int) -> None:
        work = self.blocks[first].spill
        if work is not None:
            self.spilled[first] = self._task(first, work, f"{DEVICE}/spill", [tensor])

    def _room(self) -> list[int]:
        """The spill before the last, whose end makes room for one more tensor."""
        out = list(self.spilled.values())
        return [self.template.writer(out[-2])] if len(out) > 1 else []

    def _fetched(self, first: int, hidden: list[int]) -> int:
        """The input of a group, on the wafer or fetched while the previous group runs."""
        work = self.blocks[first].fetch
        kept = hidden[max(first - 1, 0)]
        if work is None or first not in self.spilled:
            return kept
        begun = self.template.writer(self.started[-2])
        return self._task(first, work, f"{DEVICE}/fetch", [self.spilled[first]], [begun])

    # ------------------------------------------------------------------------------------ compute
    def _tasks(
        self,
        number: int,
        work: Work,
        weights: Sequence[int],
        reads: Sequence[int],
        after: Sequence[int] = (),
    ) -> list[int]:
        """One task per chunk of the weights; returns the first tensor of each task."""
        stream = f"{DEVICE}/compute"
        return [self._task(number, work, stream, [chunk, *reads], after) for chunk in weights]


LEAST_STEPS = 2
"""The second step shows the steady state: its first weights wait for the first step's updates."""


def last_micro_batch(plan: StreamingPlan) -> int:
    """Sequences in the last micro-batch of a system, which may be smaller than the others."""
    per_system = -(-plan.job.global_batch_size // plan.layout.data)
    return per_system - (plan.num_microbatches - 1) * plan.layout.micro_batch_size


def write_steps(plan: StreamingPlan, builder: GraphBuilder) -> None:
    """Write the steps of a plan, at least two."""
    system = plan.topology.system
    passes = plan.num_microbatches
    steps = max(LEAST_STEPS, plan.least_steps)
    held = system.activation_servers.prefetch
    rules = _PassRules(
        recompute_layers=plan.layout.recompute_layers,
        chunks=plan.layout.stream_chunks,
        prefetch_depth=system.streaming.prefetch_depth,
        staged_layers=system.streaming.staged_layers,
        gradients_on_wafer=system.streaming.accumulate_at == "wafer",
        servers=None if system.memoryx.placement == "sharded" else system.memoryx.servers,
    )

    def works_of(*, last: bool) -> _PassWorks:
        size = last_micro_batch(plan) if last else plan.layout.micro_batch_size
        blocks = block_works(plan, size, plan.layout.stream_chunks)
        if not last and system.streaming.accumulate_at == "swarmx":
            blocks = blocks.of(BlockWorks.in_tree)
        return _PassWorks(blocks, samples_work(plan, size))

    index = np.arange(steps * passes, dtype=np.int64)
    kinds = [
        _PassKind(
            updated=number >= passes,
            adds=number % passes > 0,
            follows=number > 0,
            refilled=number >= held,
            last=number % passes == passes - 1,
        )
        for number in index.tolist()
    ]
    distinct = list(dict.fromkeys(kinds))
    works = {last: works_of(last=last) for last in (False, True)}
    templates = [_recorded(works[kind.last], rules, kind, builder) for kind in distinct]
    # The pass that each port of a pass reads: the update, the buffer's user, or the pass before.
    updated = np.where(index >= passes, index // passes * passes - 1, -1)
    sources = {}
    for name in {name for template in templates for name in template.ports}:
        if name.startswith(("weights", "state")):
            source = updated
        else:
            source = index - (held if name == "sampled" else 1)
        sources[name] = (np.maximum(source, -1), name)
    numbers = np.array([distinct.index(kind) for kind in kinds], dtype=np.int64)
    stamped = builder.stamp(templates, Slots(numbers, index % passes, sources))
    for step in range(1, steps + 1):
        slot = step * passes - 1
        length = len(templates[int(stamped.template[slot])])
        builder.end_step(int(stamped.first_task[slot]) + length)
