"""Weight streaming: weights live in MemoryX and pass over the wafer layer by layer, twice a step.

Streams of one step: `memoryx/out` sends a layer's weights, `swarmx/down` broadcasts them,
`csK/compute` uses them; backward streams the same weights again, `swarmx/up` sums the gradients on
their way, and `memoryx/update` updates a layer as soon as its gradient is complete. The next step's
weights of a layer wait for that update. Every system gets the same weights and its own slice of the
batch, so one system is written and stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from perfsim import transformer
from perfsim.errors import InputError, LayoutError, MemoryCapacityError, Problem
from perfsim.graph import GraphBuilder, Kind, RankGroup, TensorClass, Work
from perfsim.hardware import WaferClusterSpec
from perfsim.strategies.plan import Duration, Plan
from perfsim.strategies.wafer_memory import (
    even_micro_batch,
    largest_micro_batch,
    policy_name,
    wafer_memory,
    wafer_slice,
    with_policy,
)
from perfsim.topology import Topology
from perfsim.transformer import Kernel, LayerSlice, parameters
from perfsim.workload import Job, ParallelLayout

PREFETCH_DEPTH = 1
"""Layers whose weights may arrive ahead of the one that computes."""
RECOMPUTE_GROUPS = (0, 1, 2, 4)
STEPS = 2
"""The second step shows the steady state: its first weights wait for the first step's updates."""
UPDATE_STATE_BYTES = 28.0
"""Bytes MemoryX moves a parameter: read gradient, weight and two moments, write the last three, fp32."""


@dataclass(frozen=True)
class Block:
    """What is streamed at once: the embedding, one layer, or the head."""

    name: str
    num_parameters: float
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    layer: bool

    @property
    def streams_weights(self) -> bool:
        return self.num_parameters > 0


def blocks_of(job: Job, part: LayerSlice) -> tuple[Block, ...]:
    """The model in the order in which it is streamed forward."""
    counts = parameters(job.model)
    forward = (*transformer.attention_forward(part), *transformer.mlp_forward(part))
    backward = (*transformer.mlp_backward(part), *transformer.attention_backward(part))
    positions = job.recipe.lm_head_positions or job.seq_length
    table = job.model.vocab_size * job.model.hidden_size
    embedding = Block(
        "embedding",
        counts.embedding,
        transformer.embedding_forward(part),
        transformer.embedding_backward(part),
        layer=False,
    )
    layers = tuple(
        Block(f"layer{number}", counts.layer, _matrix(forward), _matrix(backward), layer=True)
        for number in range(job.model.num_layers)
    )
    head = Block(
        "head",
        counts.final_norm + table,
        _matrix(transformer.head_forward(part, positions)),
        _matrix(transformer.head_backward(part, positions)),
        layer=False,
    )
    return (embedding, *layers, head)


def _matrix(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Matrix work as the wafer does it: weights arrive row by row, one AXPY a weight."""
    streamed = (kernel for kernel in kernels if kernel.op != "elementwise")
    return tuple(
        replace(kernel, partition="streamed" if kernel.op == "gemm" else "none") for kernel in streamed
    )


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
                    raise MemoryCapacityError(self._overflow(use.place, use.total_bytes, use.capacity_bytes))
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
        works = [_BlockWorks.of(block, plan) for block in blocks_of(plan.job, _part(plan))]
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


def _part(plan: Plan) -> LayerSlice:
    return wafer_slice(plan.job, plan.layout.micro_batch_size)


@dataclass(frozen=True)
class _BlockWorks:
    """The classes of work of one block."""

    load: Work
    broadcast: Work
    forward: Work
    recompute: Work | None
    backward: Work
    reduce: Work
    update: Work

    @classmethod
    def of(cls, block: Block, plan: Plan) -> _BlockWorks:
        system = plan.system
        if not isinstance(system, WaferClusterSpec):
            raise InputError(f"{system.name} is not a wafer cluster")
        systems = RankGroup(0, 1, plan.topology.num_devices)
        kind = "layer" if block.layer else block.name
        part = _part(plan)
        weights = TensorClass("weights", block.num_parameters * system.weight_bytes)
        gradients = TensorClass("gradients", block.num_parameters * system.gradient_bytes)
        hidden = TensorClass("hidden", part.activation_bytes)

        def compute(which: str, category: str, kernels: tuple[Kernel, ...], *writes: TensorClass) -> Work:
            op = f"{kind}.{which}"
            return Work(op, Kind.COMP, op, category, kernels=kernels, writes=writes)

        again = plan.layout.recompute_layers and block.layer
        return cls(
            load=Work(
                f"{kind}.load",
                Kind.MEM_LOAD,
                "memoryx_read",
                "weight_stream",
                comm_bytes=weights.n_bytes,
                writes=(weights,),
            ),
            broadcast=Work(
                f"{kind}.broadcast",
                Kind.COMM_COLL,
                "broadcast",
                "weight_stream",
                comm_bytes=weights.n_bytes,
                group=systems,
                writes=(weights,),
            ),
            forward=compute("forward", "forward", block.forward, hidden),
            recompute=compute("recompute", "recompute", block.forward, hidden) if again else None,
            backward=compute("backward", "backward", block.backward, hidden, gradients),
            reduce=Work(
                f"{kind}.reduce",
                Kind.COMM_COLL,
                "reduce",
                "gradient_stream",
                comm_bytes=gradients.n_bytes,
                group=systems,
                writes=(gradients,),
            ),
            update=Work(
                f"{kind}.update",
                Kind.MEM_STORE,
                "memoryx_update",
                "update",
                comm_bytes=block.num_parameters * UPDATE_STATE_BYTES,
                writes=(weights,),
            ),
        )


class _Writer:
    """Writes optimizer steps and remembers which tensor holds each block's current weights."""

    def __init__(self, plan: Plan, builder: GraphBuilder, depth: int) -> None:
        self.plan = plan
        self.builder = builder
        self.depth = depth
        self.works = [_BlockWorks.of(block, plan) for block in blocks_of(plan.job, _part(plan))]
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
