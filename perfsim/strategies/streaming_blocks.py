"""What weight streaming streams at once, embedding, layers, head, and the work each of them asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfsim import transformer
from perfsim.errors import InputError
from perfsim.graph import Kind, RankGroup, TensorClass, Work
from perfsim.hardware import WaferClusterSpec
from perfsim.strategies.plan import Plan
from perfsim.strategies.wafer_memory import wafer_slice
from perfsim.transformer import Kernel, LayerSlice, parameters
from perfsim.workload import Job

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
    layer = Block("layer", counts.layer, _matrix(forward), _matrix(backward), layer=True)
    head = Block(
        "head",
        counts.final_norm + table,
        _matrix(transformer.head_forward(part, positions)),
        _matrix(transformer.head_backward(part, positions)),
        layer=False,
    )
    return (embedding, *[layer] * job.model.num_layers, head)


def _matrix(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Matrix work as the wafer does it: weights arrive row by row, one AXPY a weight.

    Products of activations with activations (scores, context) involve no weight.
    """
    return tuple(
        kernel if kernel.partition == "none" else replace(kernel, partition="streamed")
        for kernel in kernels
        if kernel.op == "gemm"
    )


@dataclass(frozen=True)
class BlockWorks:
    """The classes of work of one block."""

    load: Work
    broadcast: Work
    forward: Work
    recompute: Work | None
    backward: Work
    reduce: Work
    update: Work


def block_works(plan: Plan) -> list[BlockWorks]:
    """The work of every block of a plan, in the order in which it is streamed forward."""
    part = wafer_slice(plan.job, plan.layout.micro_batch_size)
    blocks = blocks_of(plan.job, part)
    works = {block.name: _works(block, plan, part) for block in dict.fromkeys(blocks)}
    return [works[block.name] for block in blocks]


def _works(block: Block, plan: Plan, part: LayerSlice) -> BlockWorks:
    system = plan.system
    if not isinstance(system, WaferClusterSpec):
        raise InputError(f"{system.name} is not a wafer cluster")
    kind = block.name
    weights = TensorClass("weights", block.num_parameters * system.weight_bytes)
    gradients = TensorClass("gradients", block.num_parameters * system.gradient_bytes)
    hidden = TensorClass("hidden", part.activation_bytes)
    systems = RankGroup(0, 1, plan.topology.num_devices)
    state = TensorClass("weights", block.num_parameters * UPDATE_STATE_BYTES)

    def compute(which: str, kernels: tuple[Kernel, ...], *writes: TensorClass) -> Work:
        op = f"{kind}.{which}"
        return Work(op, Kind.COMP, op, which, kernels=kernels, writes=writes)

    def move(which: str, node: Kind, op: str, category: str, tensor: TensorClass) -> Work:
        group = systems if node is Kind.COMM_COLL else None
        return Work(f"{kind}.{which}", node, op, category, (), tensor.n_bytes, group, (tensor,))

    again = plan.layout.recompute_layers and block.layer
    return BlockWorks(
        load=move("load", Kind.MEM_LOAD, "memoryx_read", "weight_stream", weights),
        broadcast=move("broadcast", Kind.COMM_COLL, "broadcast", "weight_stream", weights),
        forward=compute("forward", block.forward, hidden),
        recompute=compute("recompute", block.forward, hidden) if again else None,
        backward=compute("backward", block.backward, hidden, gradients),
        reduce=move("reduce", Kind.COMM_COLL, "reduce", "gradient_stream", gradients),
        update=move("update", Kind.MEM_STORE, "memoryx_update", "update", state),
    )
