"""The blocks of weight streaming (embedding, layers, LM head), and their classes of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Generic, TypeVar

from perfsim.network import WaferTree
from perfsim.specs.model import layer_kinds
from perfsim.specs.streaming_layout import StreamingLayout
from perfsim.strategies.plan import Plan
from perfsim.strategies.streaming.device import (
    Store,
    StreamedDevice,
    device_of,
    kept_parameters,
    streamed_bytes,
    update_kernel,
)
from perfsim.strategies.streaming.memory import spilled_unit_bytes
from perfsim.work import Kind, RankGroup, TensorClass, Work
from perfsim.work.counts import parameters
from perfsim.work.kernels import Kernel, LayerSlice
from perfsim.work.layer import attention_kernels, embedding_kernels, head_kernels, mlp_kernels

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
        """The value of the first block."""
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
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    matrices: float = 0.0
    """Weights that can be sparse; those of a layer."""

    @property
    def layer(self) -> bool:
        """Whether it is a layer."""
        return self.op == LAYER


@lru_cache(maxsize=512)
def blocks_of(part: LayerSlice, positions: int, device: StreamedDevice) -> Blocks[Block]:
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
    layers = [
        _layer(LAYER if number == 0 else f"{LAYER} ({kind.words})", replace(part, kind=kind), device)
        for number, kind in enumerate(distinct)
    ]
    order = (0, *(1 + distinct.index(kind) for kind in kinds), 1 + len(distinct))
    return Blocks((embedding, *layers, head), order)


def _layer(name: str, part: LayerSlice, device: StreamedDevice) -> Block:
    """A layer of one kind; all its experts are streamed."""
    counts = parameters(part.model)
    forward = (*attention_kernels(part, "forward"), *mlp_kernels(part, "forward"))
    backward = (*mlp_kernels(part, "backward"), *attention_kernels(part, "backward"))
    return Block(
        name,
        LAYER,
        part,
        counts.of(part.kind),
        counts.of(part.kind),
        device.kernels(forward),
        device.kernels(backward),
        counts.matrices_of(part.kind),
    )


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
        """The same with every class of work changed."""
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
    return blocks_of(part, positions, device).of(lambda block: _Maker(block, plan, chunks).works())


def samples_work(plan: StreamingPlan, micro_batch_size: int) -> Work:
    """The transfer of one micro-batch of samples from the activation servers."""
    job = plan.job
    n_bytes = micro_batch_size * job.seq_length * plan.topology.system.activation_servers.bytes_per_token
    samples = TensorClass("samples", n_bytes)
    return Work("samples.load", Kind.MEM_LOAD, "samples", "input", comm_bytes=n_bytes, writes=(samples,))


class _Maker:
    """Builds the classes of work of one block."""

    def __init__(self, block: Block, plan: StreamingPlan, chunks: int) -> None:
        self.block = block
        self.plan = plan
        self.part = block.part
        self.chunks = chunks
        self.system = plan.topology.system
        self.systems = RankGroup(0, 1, plan.topology.num_devices)

    def works(self) -> BlockWorks:
        block = self.block
        job = self.plan.job
        chunks = self.chunks
        store = Store(job, self.system)
        kept = kept_parameters(job, block.num_parameters, block.matrices)
        whole = streamed_bytes(job, self.system, block.num_parameters, block.matrices)
        gradient_bytes = kept * self.system.gradient_bytes / chunks
        hidden = TensorClass("hidden", self.part.activation_bytes / chunks)
        gradients = TensorClass("gradients", gradient_bytes)
        recomputes = self.plan.layout.recompute_layers and block.layer
        updated = kept_parameters(job, block.updated, block.matrices)
        state_bytes = updated * store.state_bytes if store.state_in_flash else 0.0
        write_bytes = state_bytes
        if store.weights_in_flash:
            write_bytes += streamed_bytes(job, self.system, block.updated, block.matrices)
        return BlockWorks(
            load=self._move("load", "memoryx_read", "weight_stream", "weights", whole / chunks),
            broadcast=self._move("broadcast", "broadcast", "weight_stream", "weights", whole / chunks),
            forward=self._compute("forward", block.forward, hidden),
            recompute=self._compute("recompute", block.forward, hidden) if recomputes else None,
            backward=self._compute("backward", block.backward, hidden, gradients),
            reduce=self._move("reduce", "reduce", "gradient_stream", "gradients", gradient_bytes),
            reduce_part=self._move("reduce", "reduce_part", "gradient_stream", "gradients", gradient_bytes),
            update=self._update(updated),
            stage=self._move("stage", "flash_read", "weight_stream", "weights", whole)
            if store.weights_in_flash
            else None,
            state_read=self._move("state_read", "flash_read", "update", "state", state_bytes)
            if store.state_in_flash
            else None,
            state_write=self._move("state_write", "flash_write", "update", "state", write_bytes)
            if write_bytes
            else None,
            **self._spilled(),
        )

    def _compute(self, which: str, kernels: tuple[Kernel, ...], *writes: TensorClass) -> Work:
        name = f"{self.block.name}.{which}"
        op = f"{self.block.op}.{which}"
        return Work(name, Kind.COMP, op, which, kernels=kernels, writes=writes, share=1.0 / self.chunks)

    def _move(self, which: str, op: str, category: str, tensor: str, n_bytes: float) -> Work:
        kind = {"broadcast": Kind.COMM_COLL, "reduce": Kind.COMM_COLL}.get(which, Kind.MEM_LOAD)
        if op in ("flash_write", "spill"):
            kind = Kind.MEM_STORE
        group = self.systems if kind is Kind.COMM_COLL else None
        writes = (TensorClass(tensor, n_bytes),)
        return Work(f"{self.block.name}.{which}", kind, op, category, (), n_bytes, group, writes)

    def _update(self, updated: float) -> Work:
        kernel = update_kernel(self.plan.job, updated)
        weights = TensorClass("weights", kernel.bytes_accessed)
        return Work(
            f"{self.block.name}.update",
            Kind.MEM_STORE,
            "memoryx_update",
            "update",
            kernels=(kernel,),
            comm_bytes=kernel.bytes_accessed,
            writes=(weights,),
        )

    def _spilled(self) -> dict[str, Work | None]:
        layout = self.plan.layout
        if not (layout.spill and self.block.layer):
            return {"spill": None, "fetch": None}
        n_bytes = spilled_unit_bytes(self.part, layout.recompute_layers, device_of(self.system))
        return {which: self._move(which, which, "spill", "hidden", n_bytes) for which in ("spill", "fetch")}
