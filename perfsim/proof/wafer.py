"""Weight streaming as a program: weights in MemoryX, slots on wafers, gradients summed on their way back.

Flash, spilled activations and prefetched samples have their own buffers, so a copy moves the value that is
there when it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress
from operator import not_
from typing import Any

import numpy as np

from perfsim.base.arrays import Ints
from perfsim.proof.compute import Compiler, Operation, Target
from perfsim.proof.parameters import WORDS, Share, with_experts
from perfsim.proof.program import SHARED, Cell, Claim, Content, Message, Tensor, Values, summed
from perfsim.proof.serial import Moments, SmallTraining, adam
from perfsim.strategies.streaming.passes import StreamingPlan
from perfsim.work import EMBEDDING, HEAD, Task, TaskGraph

ROOM = 2
"""Buffers of a wafer for tensors that leave it, and for tensors that return."""


class WaferCompiler(Compiler):
    """Compiles graphs of `weight-streaming`."""

    def __init__(self, graph: TaskGraph, training: SmallTraining, plan: StreamingPlan) -> None:
        super().__init__(graph, training, plan.job.runtime)
        self.layout = plan.layout
        system = plan.topology.system
        self.slots = 1 + min(system.streaming.prefetch_depth, 2 * (plan.job.model.num_layers + 2) - 1)
        """Buffers of a wafer for arriving weights: of as many blocks as are prefetched, and of one more."""
        self.prefetch = system.activation_servers.prefetch
        out = [task.reads[0] for task in graph.tasks() if task.work.op == "spill"]
        self.leaving = {handle: Cell(0, "slot of leaving inputs", n % ROOM) for n, handle in enumerate(out)}
        """The buffer of each tensor that will be spilled."""
        self.returned: dict[int, Cell] = {}
        self.sample_slot = Cell(0, "slot of samples")
        self.whole = Share(training.model, training.seq_length, whole_layers=True)
        self.slot_of: dict[int, Cell] = {}
        self.vocabulary_gradients: dict[int, Cell] = {}
        """Gradients of embedding and LM head by block, for a word table that both share."""
        self.staged: set[int] = set()
        """Tensors with weights that were read from MemoryX's flash into its DRAM."""
        self.sums: set[int] = set()
        """Tensors with gradients of earlier micro-batches."""

    # ---------------------------------------------------------------------------------- shares
    def rows(self, rank: int, microbatch: int) -> Ints:
        """The samples of a system in a micro-batch; the last ones may have fewer or none."""
        batch = self.training.batch
        size = self.layout.micro_batch_size
        share = -(-batch // self.layout.data)
        first = rank * share + microbatch * size
        return np.arange(min(first, batch), min(first + size, (rank + 1) * share, batch))

    def share(self, _rank: int) -> Share:
        """The whole model, with the experts of a layer in its block."""
        return self.whole

    # --------------------------------------------------------------------------------- streams
    def read_store(self, task: Task) -> None:
        """MemoryX sends the weights of a block from DRAM, where flash may have staged them."""
        staged = any(handle in self.staged for handle in task.reads)
        self._read("parameters", [] if staged else [Cell(SHARED, "weights", task.block)])

    def flash_read(self, task: Task) -> None:
        """Copy weights to be sent, or optimizer states for an update, from flash to DRAM."""
        if task.work.category == "update":
            self._copy([Cell(SHARED, "moments in flash", task.block)], [Cell(SHARED, "moments", task.block)])
            return
        self.staged.add(task.writes[0])
        self._read("parameters", [Cell(SHARED, "weights in flash", task.block)])

    def flash_write(self, task: Task) -> None:
        """Copy updated states from DRAM to flash; words that embedding and LM head share for both."""
        made = [("moments", task.block), ("weights", task.block)]
        if task.block == EMBEDDING and self.training.model.tied_embeddings:
            made.append(("weights", HEAD))
        for_flash = [Cell(SHARED, f"{name} in flash", of) for name, of in made]
        self._copy([Cell(SHARED, name, of) for name, of in made], for_flash)

    def spill(self, task: Task) -> None:
        """Move a group's kept activations off the wafer: its input, or all activations of a layer."""
        if self.layout.recompute_layers:
            self._read("activations", [self.leaving[task.reads[0]]])
        else:
            self._copy([self.frame()], [Cell(self.place, "spilled activations", task.block)])

    def fetch(self, task: Task) -> None:
        """Bring a group's spilled activations back."""
        if self.layout.recompute_layers:
            slots = self.in_turn("slot of returning inputs", ROOM)
            self.returned[task.writes[0]] = slots[0]
            self._read("activations", [], slots)
        else:
            self._copy([Cell(self.place, "spilled activations", task.block)], [self.frame()])

    def _read(self, content: Content, sources: Sequence[Cell], targets: Sequence[Cell] = ()) -> None:
        """Give the last value read to the task's own tensor, and to other buffers."""
        message = Message(content, "made", blocks=(self.task.block,))
        count = 1 + len(targets)
        self.add(lambda _, *values: (values[-1],) * count, sources, targets, message=message)

    def _copy(self, sources: Sequence[Cell], targets: Sequence[Cell]) -> None:
        """Copy buffers to others."""
        first = len(self.task.reads)
        self.add(lambda _, *values: (None, *values[first:]), sources, targets)

    def samples(self, task: Task) -> None:
        """Inputs and targets of a micro-batch arrive on the wafer."""
        step = self.step
        (self.sample_slot,) = self.in_turn("slot of samples", self.prefetch)
        self.add(lambda rank, *_: (None, self.tokens(rank, step, task.tag)), (), [self.sample_slot])

    def broadcast(self, task: Task) -> None:
        """SwarmX sends the weights to every wafer, where slots are used in turn."""
        if not task.reads:
            raise self.refuse("its weights", "it reads no weights that MemoryX sends")
        place = task.work.group.start if task.work.group else 0
        (slot,) = self.in_turn("slot of weights", self.slots)
        self.slot_of[task.block] = slot._replace(place=place)
        group = self._group(task)

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            pairs = zip(members, values, strict=True)
            return [(None, weights if rank in group else None) for rank, (weights,) in pairs]

        message = Message("parameters", "read", blocks=(task.block,))
        self.add(kernel, (), [self.slot_of[task.block]], places=[place], joined=True, message=message)

    def reduce(self, task: Task) -> None:
        """SwarmX sums the wafers' gradients; MemoryX or the tree adds those of earlier micro-batches."""
        group = self._group(task)
        stored = [self.handles[handle][0].place == SHARED for handle in task.reads]

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            in_group = [inputs for rank, inputs in zip(members, values, strict=True) if rank in group]
            parts = list(compress(values[0], stored))
            for inputs in in_group:
                parts += compress(inputs, map(not_, stored))
            return [(summed(parts),)] * len(members)

        if task.block in WORDS:
            self.vocabulary_gradients[task.block] = Cell(SHARED, "tensor", task.writes[0])
        message = Message("gradients", "made", blocks=(task.block,))
        self.add(kernel, joined=True, message=message)

    def _group(self, task: Task) -> Collection[int]:
        """The wafers in a collective."""
        return task.work.group.ranks if task.work.group else range(self.layout.data)

    def update(self, task: Task) -> None:
        """Adam in MemoryX; embedding and LM head that share a word table are updated once, together.

        The embedding is updated with the sum of both gradients, and the LM head copies its words.
        """
        tied = self.training.model.tied_embeddings
        both = tied and task.block == EMBEDDING
        blocks = [task.block, *([HEAD] if both else [])]
        of_head = [self.vocabulary_gradients[HEAD]] if both and HEAD in self.vocabulary_gradients else []
        if both and not of_head:
            raise self.refuse("gradient of the head", "no task reduced it for the shared word table")
        first = len(task.reads) + len(of_head)
        words, words_of_head = (self.whole.layouts[block].parts[name] for block, name in WORDS.items())
        states = [Cell(SHARED, name, block) for block in blocks for name in ("weights", "moments")]

        def run(_: int, *values: Any) -> tuple[Any, ...]:
            gradient = values[0].copy()
            flat, moments, *others = values[first:]
            if both:
                gradient[words] += values[first - 1][words_of_head]
            updated, state = adam(flat, gradient, moments)
            if tied and task.block == HEAD:
                for new, old in ((updated, flat[words_of_head]), (state.first, 0.0), (state.second, 0.0)):
                    new[words_of_head] = old
            if not both:
                return None, gradient, updated, state
            weights_of_head = others[0].copy()
            weights_of_head[words_of_head] = updated[words]
            return None, gradient, updated, state, weights_of_head, others[1]

        claims = []
        if not (tied and task.block == HEAD):  # its words wait for the embedding's
            claims.append((1, Claim("weight gradient", task.block, self.step, -1)))
            claims += [(2 + 2 * n, Claim("weights", block, self.step, -1)) for n, block in enumerate(blocks)]
        record = Cell(SHARED, f"gradient used in step {self.step + 1}", task.block)
        self.add(run, [*of_head, *states], [record, *states], claims=claims)

    # --------------------------------------------------------------------------------- compute
    def compute(self, operation: Operation, *_: Any) -> None:
        """A task that each wafer runs.

        The embedding takes the samples out of their slot. The input of a group is kept in a slot while it
        leaves, and read from another once it is back; of layers that run again nothing else is kept.
        """
        task = self.task
        samples = Cell(self.place, "samples", EMBEDDING)
        op = task.work.op
        begins = [samples] if op == "embedding.forward" else []
        reads = [self.sample_slot if begins else samples] if task.block in WORDS else []
        reads += [self.returned[handle] for handle in task.reads if handle in self.returned]
        leaves = op.endswith("forward") and task.writes[0] in self.leaving
        out = [self.leaving[task.writes[0]]] if leaves else []
        forgets = [self.frame()] if op == "layer.forward" and self.layout.recompute_layers else []

        def also(read: Values, made: Sequence[Tensor | None]) -> list[Any]:
            return [*(read[0] for _ in begins), *(made[0] for _ in out), *({} for _ in forgets)]

        super().compute(operation, reads, [*begins, *out, *forgets], also)

    def weights(self, block: int) -> Cell:
        """The slot in which a block's weights arrived."""
        if block not in self.slot_of:
            raise self.refuse("its weights", "nothing streamed them to this wafer")
        return self.slot_of[block]

    def frame(self) -> Cell:
        """Buffer of the activations that the present block keeps."""
        return Cell(self.place, "activations", self.task.block)

    def target(self, block: int) -> Target:
        """The tensor of gradients, with those of earlier micro-batches that are on the wafer."""
        earlier = [Cell(self.place, "tensor", handle) for handle in self.task.reads if handle in self.sums]
        self.sums.add(self.task.writes[1])
        return Target(block, earlier[0] if earlier else None, None)

    # ----------------------------------------------------------------------------------- start
    def initial(self, cell: Cell, _rank: int) -> Any:
        """Initial value of a buffer; KeyError if it has none."""
        layout = self.whole.layouts[cell.number]
        if cell.name in ("weights", "weights in flash"):
            return layout.flat(with_experts(self.training.initial, cell.number, self.whole).items())
        if cell.name in ("moments", "moments in flash"):
            return Moments.zero(layout.size)
        if cell.name == "activations":
            return {}
        raise KeyError(cell)


WaferCompiler.operations = {
    "wait": WaferCompiler.copy,
    "memoryx_read": WaferCompiler.read_store,
    "flash_read": WaferCompiler.flash_read,
    "flash_write": WaferCompiler.flash_write,
    "samples": WaferCompiler.samples,
    "spill": WaferCompiler.spill,
    "fetch": WaferCompiler.fetch,
    "broadcast": WaferCompiler.broadcast,
    "reduce": WaferCompiler.reduce,
    "reduce_in_tree": WaferCompiler.reduce,
    "memoryx_update": WaferCompiler.update,
}
"""Method for each other operation; add new ones here."""
