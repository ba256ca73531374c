"""Writes the steps of weight streaming: passes over the model, one per micro-batch.

Passes differ only in their inputs (initial or updated weights, gradients to add to, buffers that an earlier
pass frees), and in that the last pass of a step updates each block as soon as its gradient is complete.
Streams: `memoryx/out`, `swarmx/down`, `csK/compute`, `swarmx/up`, `memoryx/update`, and `csK/samples` for
the input; where flash or spilling is used, `memoryx/flash-read`, `memoryx/flash-write`, `csK/spill` and
`csK/fetch`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfsim.graph import GraphBuilder, Slots, Template
from perfsim.strategies.streaming.blocks import BlockWorks, StreamingPlan, block_works, samples_work
from perfsim.strategies.streaming.passes import PassKind, PassRules, PassWorks, recorded

LEAST_STEPS = 2
"""The second step shows the steady state: its first weights wait for the first step's updates."""


def last_micro_batch(plan: StreamingPlan) -> int:
    """Sequences in the last micro-batch of a system, which may be smaller than the others."""
    per_system = -(-plan.job.global_batch_size // plan.layout.data)
    return per_system - (plan.num_microbatches - 1) * plan.layout.micro_batch_size


@dataclass
class StreamingWriter:
    """Writes the steps of a plan, at least two."""

    plan: StreamingPlan
    builder: GraphBuilder

    @property
    def steps(self) -> int:
        """Number of steps to write."""
        return max(LEAST_STEPS, self.plan.least_steps)

    def write(self) -> None:
        """Write all steps."""
        passes = self.plan.num_microbatches
        kinds = [self._kind(index) for index in range(self.steps * passes)]
        distinct = list(dict.fromkeys(kinds))
        works = {last: self._works(last=last) for last in (False, True)}
        rules = PassRules.of(self.plan)
        templates = [recorded(works[kind.last], rules, kind, self.builder) for kind in distinct]
        slots = self._slots(np.array([distinct.index(kind) for kind in kinds]), templates)
        stamped = self.builder.stamp(templates, slots)
        for step in range(1, self.steps + 1):
            slot = step * passes - 1
            length = len(templates[int(stamped.template[slot])])
            self.builder.end_step(int(stamped.first_task[slot]) + length)

    def _kind(self, index: int) -> PassKind:
        step, number = divmod(index, self.plan.num_microbatches)
        return PassKind(
            updated=step > 0,
            adds=number > 0,
            follows=index > 0,
            refilled=index >= self.plan.topology.system.activation_servers.prefetch,
            last=number == self.plan.num_microbatches - 1,
        )

    def _works(self, *, last: bool) -> PassWorks:
        size = last_micro_batch(self.plan) if last else self.plan.layout.micro_batch_size
        blocks = block_works(self.plan, size, self.plan.layout.stream_chunks)
        if not last and self.plan.topology.system.streaming.accumulate_at == "swarmx":
            blocks = blocks.of(BlockWorks.in_tree)
        return PassWorks(blocks, samples_work(self.plan, size))

    def _slots(self, numbers: np.ndarray, templates: list[Template]) -> Slots:
        """The pass that each port of a slot reads: the previous pass, the update, or the buffer's user."""
        passes = self.plan.num_microbatches
        index = np.arange(len(numbers), dtype=np.int64)
        updated = np.where(index >= passes, index // passes * passes - 1, -1)
        refilled = index - self.plan.topology.system.activation_servers.prefetch
        sources = {}
        for name in {name for template in templates for name in template.ports}:
            if name.startswith(("weights", "state")):
                source = updated
            else:
                source = refilled if name == "sampled" else index - 1
            sources[name] = (np.maximum(source, -1).astype(np.int64), name)
        return Slots(numbers.astype(np.int64), index % passes, sources)
