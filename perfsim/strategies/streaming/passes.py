"""Writes the steps of weight streaming: its blocks, and passes over them, one per micro-batch.

The blocks are the embedding, the layers and the LM head. Passes differ only in their inputs (initial or
updated weights, gradients to add to, buffers that an earlier pass frees), and in that the last pass of a step
updates each block as soon as its gradient is complete. Besides the streams of `strategy.py` there is one for
the input, `csK/samples`, and for flash and spilling `memoryx/flash-read`, `-write`, `csK/spill`, `csK/fetch`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np

from perfsim.network import WaferTree
from perfsim.specs.hardware import StreamingSpec
from perfsim.specs.layout import StreamingLayout
from perfsim.specs.model import LayerKind, layer_kinds
from perfsim.strategies.plan import Plan
from perfsim.strategies.streaming.memory import WEIGHTS, Store, StreamedDevice
from perfsim.work import EMBEDDING, HEAD, GraphBuilder, Kind, RankGroup, Slots, Template, TensorClass, Work
from perfsim.work.counts import parameters
from perfsim.work.graph import compute_stream
from perfsim.work.kernels import LayerSlice
from perfsim.work.layer import Kernels, attention_kernels, embedding_kernels, head_kernels, mlp_kernels

StreamingPlan = Plan[StreamingLayout, WaferTree]

LAYER = "layer"
"""The operation of a layer's block, and the name of the most frequent kind of layer."""


@dataclass(frozen=True, eq=False)
class _Block:
    """A unit of streaming: the embedding, one layer, or the LM head."""

    name: str
    part: LayerSlice
    num_parameters: float
    forward: Kernels
    backward: Kernels
    matrices: float = field(default=0.0, kw_only=True)
    """Weights that can be sparse: the weights of a layer."""
    tied: float = field(default=0.0, kw_only=True)
    """Parameters that the LM head shares with the embedding, whose block updates them."""

    @property
    def op(self) -> str:
        """Its name without the kind of layer."""
        return self.name.partition(" ")[0]


_WAYS: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")


@lru_cache(maxsize=512)
def _blocks_of(part: LayerSlice, positions: int, device: StreamedDevice, tiles: int) -> tuple[_Block, ...]:
    """The blocks of a model on a device, in the order of the forward; layers of a kind are the same block.

    `positions` are the inputs of the LM head. Attention is computed tile by tile, with its rows in each.
    """

    def attention(layer: LayerSlice, which: Literal["forward", "backward"]) -> Kernels:
        size = layer.micro_batch_size
        tile = -(-size // tiles)
        parts = [replace(layer, micro_batch_size=min(tile, size - at)) for at in range(0, size, tile)]
        return tuple(kernel for part in parts for kernel in attention_kernels(part, which))

    model = part.model
    counts = parameters(model)
    table = model.vocab_size * model.hidden_size
    embedding = _Block("embedding", part, counts.embedding, *(embedding_kernels(part, way) for way in _WAYS))
    of_head = (device.kernels(head_kernels(part, positions, way)) for way in _WAYS)
    tied = table if model.tied_embeddings else 0.0
    head = _Block("head", part, counts.final_norm + table, *of_head, tied=tied)
    kinds = layer_kinds(model)
    layers = dict[LayerKind, _Block]()
    for kind, _ in Counter(kinds).most_common():
        layer = replace(part, kind=kind)
        name = f"{LAYER} ({kind.words})" if layers else LAYER
        forward = device.kernels((*attention(layer, "forward"), *mlp_kernels(layer, "forward")))
        backward = device.kernels((*mlp_kernels(layer, "backward"), *attention(layer, "backward")))
        matrices = counts.of(kind, matrices=True)
        layers[kind] = _Block(name, layer, counts.of(kind), forward, backward, matrices=matrices)
    return (embedding, *(layers[kind] for kind in kinds), head)


@dataclass(frozen=True, eq=False)
class BlockWorks:
    """The classes of work of one block; streams are of one chunk, the rest of the whole block.

    `stage`, `state_read` and `state_write` exist where weights or optimizer state are in flash, `sum_read`
    and `sum_write` where sums of gradients are; `spill` and `fetch` where activations leave the wafer.
    """

    load: Work
    broadcast: Work
    forward: Work
    recompute: Work | None
    backward: Work
    reduce: Work
    reduce_part: Work
    """For all chunks of a gradient except the last, which hide their latency."""
    update: Work
    stage: Work | None
    state_read: Work | None
    state_write: Work | None
    sum_read: Work | None
    sum_write: Work | None
    spill: Work | None
    fetch: Work | None


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
    """Its gradients are added to the gradients of an earlier pass."""
    follows: bool
    """There is an earlier pass."""
    refilled: bool
    """Its samples take the buffer of samples of an earlier pass."""
    last: bool
    """It is the last pass of its step, which updates the blocks."""


class _PassShape(NamedTuple):
    """What decides on the tasks of a pass, however much each of them computes or moves."""

    recompute_layers: int
    stream_chunks: int
    streaming: StreamingSpec
    servers: int
    """Weight servers that take the blocks in turn; 0 where each has a part of every block."""
    outputs: tuple[int, ...]
    """How many tensors each class of work writes."""
    works: tuple[tuple[tuple[int, ...], ...], ...]
    """The number of every class of work of a pass before the last of a step, and of the last: of its samples,
    and of the fields of its blocks (-1: none)."""


@dataclass
class _PassRecorder:
    """Records one pass in a template."""

    template: Template
    shape: _PassShape
    kind: _PassKind
    samples: Work
    blocks: list[BlockWorks]
    computed: list[int] = field(default_factory=list)
    """Last tensor of each computed block, in order; its end frees a buffer of prefetched weights."""
    sent: list[int] = field(default_factory=list)
    """Last tensor of each sent block; its end frees DRAM for the next block from flash."""
    updates: list[int] = field(default_factory=list)
    summed: list[int] = field(default_factory=list)
    """Summed gradient of each block, in order; its end frees DRAM for the next sum from flash."""
    spilled: dict[int, int] = field(default_factory=dict)
    """Spilled tensors by the first block of their group."""
    started: list[int] = field(default_factory=list)
    """The last tensor before each group's backward, in order."""

    @property
    def depth(self) -> int:
        """Prefetch depth, less than the number of block computations in a pass."""
        return min(self.shape.streaming.prefetch_depth, 2 * len(self.blocks) - 1)

    @property
    def gradients_on_wafer(self) -> bool:
        return self.shape.streaming.accumulate_at == "wafer"

    def _task(
        self, number: int, work: Work, stream: str, reads: Sequence[int] = (), after: Sequence[int] = ()
    ) -> int:
        """Record one task of a block and return the first tensor that it writes."""
        block = {0: EMBEDDING, len(self.blocks) - 1: HEAD}.get(number, number - 1)
        return self.template.task(work, stream, reads, after, block=block).tensor

    def record(self) -> Template:
        used = [self.template.port("sampled")] if self.kind.refilled else []
        samples = self.template.task(self.samples, f"{DEVICE}/samples", (), used)
        hidden: list[int] = [samples.tensor]
        firsts = {group[0] for group in self._groups()}
        for number, works in enumerate(self.blocks):
            if self.shape.recompute_layers and number in firsts:
                self._spill(number, hidden[-1])
            weights = self._stream(number)
            # The end of the spill before the last makes room for one more tensor.
            room = [self.template.writer(out) for out in list(self.spilled.values())[-2:-1]]
            hidden.append(self._tasks(number, works.forward, weights, hidden[-1:], room)[-1])
            self.computed.append(hidden[-1])
            if not self.shape.recompute_layers:
                self._spill(number, hidden[-1])
        self.template.output("sampled", hidden[1])
        del hidden[0]  # the samples: from here on the output of each block
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

    def _groups(self) -> list[range]:
        """Groups of blocks that are recomputed together; embedding and LM head have groups of their own."""
        head = len(self.blocks) - 1
        group = max(1, self.shape.recompute_layers)
        layers = [range(first, min(first + group, head)) for first in range(1, head, group)]
        return [range(1), *layers, range(head, head + 1)]

    def _recompute_group(self, group: range, hidden: list[int]) -> dict[int, int]:
        """The input of each block of a group, recomputed from the group's input where it was not kept."""
        first = group[0]
        inputs = {first: hidden[max(first - 1, 0)]}
        fetch = self.blocks[first].fetch
        if fetch is not None and first in self.spilled:  # while the previous group runs
            begun = self.template.writer(self.started[-2])
            inputs[first] = self._task(first, fetch, f"{DEVICE}/fetch", [self.spilled[first]], [begun])
        # The weights of the group are streamed once more for it. A group of a single block recomputes its
        # activations with the weights that its backward gets anyway.
        before = inputs[first]
        for number in group if len(group) > 1 else ():
            inputs[number] = before
            if (work := self.blocks[number].recompute) is not None:
                before = self._tasks(number, work, self._stream(number), [before])[-1]
                self.computed.append(before)
        return inputs

    def _backward(self, number: int, gradient: int, before: int, *, recomputed: bool) -> int:
        works = self.blocks[number]
        weights = self._stream(number)
        reads = [gradient, before]
        if works.recompute is not None and not recomputed:
            reads.append(self._tasks(number, works.recompute, weights, [before])[-1])
        if self.kind.adds and self.gradients_on_wafer:
            reads.append(self.template.port(f"gradient{number}"))
        parts = self._tasks(number, works.backward, weights, reads)
        # Gradients go up the tree, added to the sums of earlier passes; the last pass updates the block.
        own = [part + 1 for part in parts]
        name = f"gradient{number}"
        if self.gradients_on_wafer and not self.kind.last:
            self.template.output(name, own[-1])
            return parts[-1]
        adds = self._earlier_sum(number) if self.kind.adds and not self.gradients_on_wafer else []
        up = []
        for part in own:
            work = works.reduce if part == own[-1] else works.reduce_part
            up.append(self._at_server(number, work, "swarmx/up", [part, *adds]))
        self.summed.append(up[-1])
        if self.kind.last:
            self._update(number, up)
        elif works.sum_write is not None:
            up.append(self._at_server(number, works.sum_write, "memoryx/flash-write", up))
        self.template.output(name, up[-1])
        return parts[-1]

    def _earlier_sum(self, number: int) -> list[int]:
        """The gradient of a block in earlier micro-batches, read from flash where it is there."""
        earlier = self.template.port(f"gradient{number}")
        work = self.blocks[number].sum_read
        if work is None:
            return [earlier]
        return [self._from_flash(number, work, [earlier], self.summed)]

    def _stream(self, number: int) -> list[int]:
        """Send a block's weights to every wafer, at most the prefetch depth ahead."""
        works = self.blocks[number]
        reads: list[int] = [self.template.port(f"weights{number}")] if self.kind.updated else []
        if works.stage is not None:
            reads = [self._from_flash(number, works.stage, reads, self.sent)]
        # The end of an earlier block's compute frees the buffer for these weights.
        index = len(self.computed) - 1 - self.depth
        freed: list[int] = (
            [self.template.port(f"computed-{-index}")] if index < 0 and self.kind.follows else []
        )
        freed += [self.template.writer(self.computed[index])] if index >= 0 else []
        arrived = []
        for chunk in range(self.shape.stream_chunks):
            load = self._at_server(number, works.load, "memoryx/out", reads, freed)
            lane = f"swarmx/down{chunk or ''}"  # a lane per chunk: hops are latency, so chunks overlap
            arrived.append(self._task(number, works.broadcast, lane, [load]))
        self.sent.append(load)
        return arrived

    def _from_flash(self, number: int, work: Work, reads: Sequence[int], done: Sequence[int]) -> int:
        """Record a read from flash, for which the end of an earlier layer of `done` makes room in DRAM."""
        staged = self.shape.streaming.staged_layers
        room = [self.template.writer(done[-staged])] if len(done) >= staged else []
        return self._at_server(number, work, "memoryx/flash-read", reads, room)

    def _at_server(
        self, number: int, work: Work, stream: str, reads: Sequence[int], after: Sequence[int] = ()
    ) -> int:
        """Record a task of a block on the stream of its weight server; blocks that are sharded have one."""
        server = number % self.shape.servers if self.shape.servers else ""
        return self._task(number, work, f"{stream}{server}", reads, after)

    def _update(self, number: int, gradients: list[int]) -> None:
        """Run the optimizer on MemoryX as soon as a block's gradient is complete."""
        works = self.blocks[number]
        reads = list(gradients)
        if works.state_read is not None:
            before = [self.template.port(f"state{number}")] if self.kind.updated else []
            reads.append(self._from_flash(number, works.state_read, before, self.updates))
        weights = self._at_server(number, works.update, "memoryx/update", reads)
        self.updates.append(weights)
        if works.state_write is not None:
            written = self._at_server(number, works.state_write, "memoryx/flash-write", [weights])
            self.template.output(f"state{number}", written)
            weights = written if works.stage is not None else weights
        self.template.output(f"weights{number}", weights)

    def _spill(self, first: int, tensor: int) -> None:
        work = self.blocks[first].spill
        if work is not None:
            self.spilled[first] = self._task(first, work, f"{DEVICE}/spill", [tensor])

    def _tasks(
        self, number: int, work: Work, weights: Sequence[int], reads: Sequence[int], after: Sequence[int] = ()
    ) -> list[int]:
        """One task per chunk of the weights; returns the first tensor of each task."""
        stream = compute_stream(DEVICE)
        return [self._task(number, work, stream, [chunk, *reads], after) for chunk in weights]


LEAST_STEPS = 2
"""The second step shows the steady state: its first weights wait for the first step's updates."""


class StreamedSteps:
    """The works of a plan, and its steps as a graph."""

    def __init__(self, plan: StreamingPlan) -> None:
        self.plan = plan
        self.system = plan.topology.system
        self.store = Store(plan.job, self.system, plan.num_microbatches)

    def sequences(self, *, last: bool) -> int:
        """Sequences in a micro-batch of a system; the last micro-batch of a step may have fewer."""
        size = self.plan.layout.micro_batch_size
        per_system = -(-self.plan.job.global_batch_size // self.plan.layout.data)
        return per_system - (self.plan.num_microbatches - 1) * size if last else size

    def samples(self, *, last: bool) -> Work:
        """The transfer of the samples of a micro-batch from the activation servers."""
        tokens = self.sequences(last=last) * self.plan.job.seq_length
        n_bytes = tokens * self.system.activation_servers.bytes_per_token
        samples = TensorClass("samples", n_bytes)
        return Work("samples.load", Kind.MEM_LOAD, "samples", "input", comm_bytes=n_bytes, writes=(samples,))

    def blocks(self, *, last: bool = False, chunks: int = 1) -> list[BlockWorks]:
        """The works of every block in the order of the forward, split into `chunks`; one for layers alike."""
        job = self.plan.job
        device = self.store.device
        part = device.layer_slice(job, self.sequences(last=last))
        positions = job.recipe.lm_head_positions or job.seq_length
        blocks = _blocks_of(part, positions, device, self.store.tiles)
        # Before the last micro-batch of a step, gradients may stay in SwarmX to be summed.
        stays = not last and self.system.streaming.accumulate_at == "swarmx"
        reduce = "reduce_in_tree" if stays else "reduce"
        return list(map(cache(partial(self._works_of, chunks=chunks, reduce=reduce)), blocks))

    def _works_of(self, block: _Block, chunks: int, reduce: str) -> BlockWorks:
        """The classes of work of one block; `reduce` is what sums its gradients."""
        layout = self.plan.layout
        store = self.store
        whole = store.streamed_bytes(block.num_parameters, block.matrices)
        kept = store.kept(block.num_parameters, block.matrices)
        own = block.num_parameters - block.tied
        updated = store.kept(own, block.matrices)
        state = TensorClass("state", updated * store.state_in_flash_bytes)
        weights_in_flash = store.in_flash[WEIGHTS]
        weight_bytes = weights_in_flash * store.streamed_bytes(own, block.matrices)
        written = TensorClass("state", state.n_bytes + weight_bytes)
        hidden = TensorClass("hidden", block.part.activation_bytes / chunks)
        gradients = TensorClass("gradients", kept * self.system.gradient_bytes / chunks)
        chunk = TensorClass("weights", whole / chunks)
        staged = TensorClass("weights", weights_in_flash * whole)
        sums = TensorClass("gradients", kept * store.sums_in_flash_bytes)
        unit = 0.0
        if layout.spill and block.op == LAYER:
            part = block.part
            unit = part.activation_bytes if layout.recompute_layers else store.device.kept_bytes(part)
        spilled = TensorClass("hidden", unit)

        def compute(which: str, kernels: Kernels, *writes: TensorClass) -> Work:
            name = f"{block.name}.{which}"
            op = f"{block.op}.{which}"
            return Work(name, Kind.COMP, op, which, kernels=kernels, writes=writes, share=1.0 / chunks)

        def move(which: str, op: str, category: str, moved: TensorClass, kind: Kind) -> Work:
            systems = RankGroup(0, 1, self.plan.topology.num_devices) if kind is Kind.COMM_COLL else None
            return Work(f"{block.name}.{which}", kind, op, category, (), moved.n_bytes, systems, (moved,))

        def some(which: str, op: str, category: str, moved: TensorClass, kind: Kind) -> Work | None:
            return move(which, op, category, moved, kind) if moved.n_bytes else None

        kernel = store.update_kernel(updated)
        accessed = TensorClass("weights", kernel.bytes_accessed)
        update = move("update", "memoryx_update", "update", accessed, Kind.MEM_STORE)
        recomputes = layout.recompute_layers and block.op == LAYER
        return BlockWorks(
            load=move("load", "memoryx_read", "weight_stream", chunk, Kind.MEM_LOAD),
            broadcast=move("broadcast", "broadcast", "weight_stream", chunk, Kind.COMM_COLL),
            forward=compute("forward", block.forward, hidden),
            recompute=compute("recompute", block.forward, hidden) if recomputes else None,
            backward=compute("backward", block.backward, hidden, gradients),
            reduce=move("reduce", reduce, "gradient_stream", gradients, Kind.COMM_COLL),
            reduce_part=move("reduce", f"{reduce}_part", "gradient_stream", gradients, Kind.COMM_COLL),
            update=replace(update, kernels=(kernel,)),
            stage=some("stage", "flash_read", "weight_stream", staged, Kind.MEM_LOAD),
            state_read=some("state_read", "flash_read", "update", state, Kind.MEM_LOAD),
            state_write=some("state_write", "flash_write", "update", written, Kind.MEM_STORE),
            sum_read=some("sum_read", "flash_read", "gradient_stream", sums, Kind.MEM_LOAD),
            sum_write=some("sum_write", "flash_write", "gradient_stream", sums, Kind.MEM_STORE),
            spill=some("spill", "spill", "spill", spilled, Kind.MEM_STORE),
            fetch=some("fetch", "fetch", "spill", spilled, Kind.MEM_LOAD),
        )

    def _shape(self) -> tuple[_PassShape, list[Work]]:
        """The shape of its passes, and its classes of work by their numbers."""
        layout = self.plan.layout
        memoryx = self.system.memoryx
        numbers: dict[Work, int] = {}

        def numbered(works: Iterable[Work | None]) -> tuple[int, ...]:
            return tuple(-1 if work is None else numbers.setdefault(work, len(numbers)) for work in works)

        of_passes = []
        for last in (False, True):
            blocks = self.blocks(last=last, chunks=layout.stream_chunks)
            fields = (vars(block).values() for block in blocks)
            of_passes.append(tuple(map(numbered, ([self.samples(last=last)], *fields))))
        shape = _PassShape(
            recompute_layers=layout.recompute_layers,
            stream_chunks=layout.stream_chunks,
            streaming=self.system.streaming,
            servers=0 if memoryx.placement == "sharded" else memoryx.servers,
            outputs=tuple(len(work.writes) for work in numbers),
            works=tuple(of_passes),
        )
        return shape, [*numbers]

    def write(self, builder: GraphBuilder) -> None:
        """Write the steps of the plan, at least two, into an empty graph."""
        passes = self.plan.num_microbatches
        steps = max(LEAST_STEPS, self.plan.least_steps)
        held = self.system.activation_servers.prefetch
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
        shape, works = self._shape()
        templates = _recorded(shape, tuple(distinct))
        builder.work_ids |= {works[int(each.name)]: place for each, place in templates[0].work_ids.items()}
        builder.stream_ids |= templates[0].stream_ids
        # The pass that each port of a pass reads: the update, the buffer's user, or the pass before.
        updated = np.where(index >= passes, index // passes * passes - 1, -1)
        sources = {}
        for name in {name for template in templates for name in template.ports}:
            source = updated
            if not name.startswith(("weights", "state")):
                source = index - (held if name == "sampled" else 1)
            sources[name] = (np.maximum(source, -1), name)
        numbers = np.array([distinct.index(kind) for kind in kinds], dtype=np.int64)
        stamped = builder.stamp(templates, Slots(numbers, index % passes, sources))
        for step in range(1, steps + 1):
            slot = step * passes - 1
            length = len(templates[int(stamped.template[slot])])
            builder.end_step(int(stamped.first_task[slot]) + length)


@lru_cache(maxsize=64)
def _recorded(shape: _PassShape, kinds: tuple[_PassKind, ...]) -> list[Template]:
    """Passes of these kinds; each class of work has one in its place that is named by its number."""
    works: list[Any] = [
        Work(str(number), Kind.COMP, "", "", writes=(TensorClass("", 0.0),) * count)
        for number, count in enumerate(shape.outputs)
    ]
    works.append(None)
    builder = GraphBuilder()
    templates = []
    for kind in kinds:
        (samples,), *fields = shape.works[kind.last]
        blocks = [BlockWorks(*(works[number] for number in block)) for block in fields]
        templates.append(_PassRecorder(builder.template(), shape, kind, works[samples], blocks).record())
    return templates
