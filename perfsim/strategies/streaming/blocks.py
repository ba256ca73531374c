"""The blocks of weight streaming (embedding, layers, LM head), and their classes of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Generic, TypeVar

from perfsim.network import WaferTree
from perfsim.specs.model import layer_kinds
from perfsim.specs.streaming_layout import StreamingLayout
from perfsim.strategies.plan import Plan
from perfsim.strategies.streaming.memory import (
    Store,
    StreamedDevice,
    device_of,
    kept_parameters,
    spilled_unit_bytes,
    streamed_bytes,
    update_kernel,
)
from perfsim.work import Kind, RankGroup, TensorClass, Work
from perfsim.work.counts import parameters
from perfsim.work.kernels import LayerSlice
from perfsim.work.layer import Kernels, attention_kernels, embedding_kernels, head_kernels, mlp_kernels

StreamingPlan = Plan[StreamingLayout, WaferTree]
"""A plan of weight streaming."""

LAYER = "layer"
"""The operation of a layer's block, and the name of the most frequent kind of layer."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Blocks(Generic[T]):
    """One value per kind of block: the embedding, every kind of layer, the LM head."""

    values: tuple[T, ...]
    order: tuple[int, ...]
    """The index of the value of each block, in the order of the forward pass."""

    def of(self, function: Callable[[T], R]) -> Blocks[R]:
        """`function` of the value of each kind of block."""
        return Blocks(tuple(map(function, self.values)), self.order)

    @property
    def embedding(self) -> T:
        return self.values[0]

    @property
    def layers(self) -> tuple[T, ...]:
        """The values of the kinds of layers, the most frequent one first."""
        return self.values[1:-1]

    def in_order(self) -> list[T]:
        """One entry per block, in the order of the forward pass."""
        return [self.values[index] for index in self.order]


@dataclass(frozen=True)
class Block:
    """A unit of streaming: the embedding, one layer, or the LM head."""

    name: str
    op: str
    part: LayerSlice
    num_parameters: float
    updated: float
    """Parameters that its update changes; a tied embedding belongs to the embedding block."""
    forward: Kernels
    backward: Kernels
    matrices: float = 0.0
    """Weights that can be sparse; those of a layer."""

    @property
    def layer(self) -> bool:
        return self.op == LAYER


@lru_cache(maxsize=512)
def _blocks_of(part: LayerSlice, positions: int, device: StreamedDevice) -> Blocks[Block]:
    """The kinds of block of a model on a device; `positions` are the inputs of the LM head."""
    model = part.model
    counts = parameters(model)
    table = model.vocab_size * model.hidden_size
    embedding = Block(
        "embedding",
        "embedding",
        part,
        counts.embedding,
        counts.embedding,
        embedding_kernels(part, "forward"),
        embedding_kernels(part, "backward"),
    )
    head = Block(
        "head",
        "head",
        part,
        counts.final_norm + table,
        counts.final_norm + (0.0 if model.tied_embeddings else table),
        device.kernels(head_kernels(part, positions, "forward")),
        device.kernels(head_kernels(part, positions, "backward")),
    )
    kinds = layer_kinds(model)
    distinct = [kind for kind, _ in Counter(kinds).most_common()]
    layers = []
    for number, kind in enumerate(distinct):
        layer = replace(part, kind=kind)
        forward = (*attention_kernels(layer, "forward"), *mlp_kernels(layer, "forward"))
        backward = (*mlp_kernels(layer, "backward"), *attention_kernels(layer, "backward"))
        layers.append(
            Block(
                LAYER if number == 0 else f"{LAYER} ({kind.words})",
                LAYER,
                layer,
                counts.of(kind),
                counts.of(kind),
                device.kernels(forward),
                device.kernels(backward),
                counts.matrices_of(kind),
            )
        )
    order = (0, *(1 + distinct.index(kind) for kind in kinds), 1 + len(distinct))
    return Blocks((embedding, *layers, head), order)


@dataclass(frozen=True)
class BlockWorks:
    """The classes of work of one block; streams are of one chunk, the rest of the whole block.

    `stage`, `state_read` and `state_write` exist where weights or optimizer state are in flash; `spill`
    and `fetch` exist where activations of a layer leave the wafer.
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
    spill: Work | None
    fetch: Work | None

    def classes(self) -> list[Work]:
        """The classes of work that exist."""
        works = (getattr(self, name) for name in _FIELDS)
        return [work for work in works if work is not None]

    def changed(self, change: Callable[[Work], Work]) -> BlockWorks:
        works = ((name, getattr(self, name)) for name in _FIELDS)
        return BlockWorks(**{name: work and change(work) for name, work in works})

    def in_tree(self) -> BlockWorks:
        """The same with gradients that stay in SwarmX to be summed."""
        return replace(
            self,
            reduce=replace(self.reduce, op="reduce_in_tree"),
            reduce_part=replace(self.reduce_part, op="reduce_in_tree_part"),
        )


_FIELDS = tuple(field.name for field in fields(BlockWorks))


def outline(work: Work) -> Work:
    """A class of work without its sizes: name, kind, operation and outputs."""
    writes = tuple(TensorClass(tensor.name, 0.0) for tensor in work.writes)
    return Work(work.name, work.kind, work.op, work.category, writes=writes)


def block_works(
    plan: StreamingPlan, micro_batch_size: int | None = None, chunks: int = 1
) -> Blocks[BlockWorks]:
    """The work of each kind of block, split into `chunks`."""
    device = device_of(plan.topology.system)
    part = device.layer_slice(plan.job, micro_batch_size or plan.layout.micro_batch_size)
    positions = plan.job.recipe.lm_head_positions or plan.job.seq_length
    return _blocks_of(part, positions, device).of(partial(_works_of, plan=plan, chunks=chunks))


def samples_work(plan: StreamingPlan, micro_batch_size: int) -> Work:
    """The transfer of one micro-batch of samples from the activation servers."""
    job = plan.job
    n_bytes = micro_batch_size * job.seq_length * plan.topology.system.activation_servers.bytes_per_token
    samples = TensorClass("samples", n_bytes)
    return Work("samples.load", Kind.MEM_LOAD, "samples", "input", comm_bytes=n_bytes, writes=(samples,))


def _works_of(block: Block, plan: StreamingPlan, chunks: int) -> BlockWorks:
    """The classes of work of one block."""
    job = plan.job
    layout = plan.layout
    system = plan.topology.system
    store = Store(job, system)
    kept = kept_parameters(job, block.num_parameters, block.matrices)
    whole = streamed_bytes(job, system, block.num_parameters, block.matrices)
    updated = kept_parameters(job, block.updated, block.matrices)
    state_bytes = updated * store.state_bytes if store.state_in_flash else 0.0
    write_bytes = state_bytes
    if store.weights_in_flash:
        write_bytes += streamed_bytes(job, system, block.updated, block.matrices)
    hidden = TensorClass("hidden", block.part.activation_bytes / chunks)
    gradients = TensorClass("gradients", kept * system.gradient_bytes / chunks)

    def compute(which: str, kernels: Kernels, *writes: TensorClass) -> Work:
        name = f"{block.name}.{which}"
        op = f"{block.op}.{which}"
        return Work(name, Kind.COMP, op, which, kernels=kernels, writes=writes, share=1.0 / chunks)

    def move(which: str, op: str, category: str, moved: TensorClass, kind: Kind = Kind.MEM_LOAD) -> Work:
        systems = RankGroup(0, 1, plan.topology.num_devices) if kind is Kind.COMM_COLL else None
        return Work(f"{block.name}.{which}", kind, op, category, (), moved.n_bytes, systems, (moved,))

    def reduce(op: str) -> Work:
        return move("reduce", op, "gradient_stream", gradients, Kind.COMM_COLL)

    def update() -> Work:
        kernel = update_kernel(job, updated)
        return Work(
            f"{block.name}.update",
            Kind.MEM_STORE,
            "memoryx_update",
            "update",
            kernels=(kernel,),
            comm_bytes=kernel.bytes_accessed,
            writes=(TensorClass("weights", kernel.bytes_accessed),),
        )

    chunk = TensorClass("weights", whole / chunks)
    spilled = TensorClass("hidden", 0.0)
    if spills := layout.spill and block.layer:
        spilled = TensorClass(
            "hidden", spilled_unit_bytes(block.part, layout.recompute_layers, device_of(system))
        )
    return BlockWorks(
        load=move("load", "memoryx_read", "weight_stream", chunk),
        broadcast=move("broadcast", "broadcast", "weight_stream", chunk, Kind.COMM_COLL),
        forward=compute("forward", block.forward, hidden),
        recompute=compute("recompute", block.forward, hidden)
        if layout.recompute_layers and block.layer
        else None,
        backward=compute("backward", block.backward, hidden, gradients),
        reduce=reduce("reduce"),
        reduce_part=reduce("reduce_part"),
        update=update(),
        stage=move("stage", "flash_read", "weight_stream", TensorClass("weights", whole))
        if store.weights_in_flash
        else None,
        state_read=move("state_read", "flash_read", "update", TensorClass("state", state_bytes))
        if store.state_in_flash
        else None,
        state_write=move(
            "state_write", "flash_write", "update", TensorClass("state", write_bytes), Kind.MEM_STORE
        )
        if write_bytes
        else None,
        spill=move("spill", "spill", "spill", spilled, Kind.MEM_STORE) if spills else None,
        fetch=move("fetch", "fetch", "spill", spilled) if spills else None,
    )
