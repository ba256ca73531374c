"""Offload as a program: gradients and weights are copied between a device and its host.

The host has weights, moments and the sum of the gradients that left the device. A copy of gradients clears
those on the device; a copy of weights overwrites them there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from perfsim.graph import EMBEDDING, EMBEDDING_AND_HEAD, HEAD, Task
from perfsim.proof.execution.program import Cell, per_rank
from perfsim.strategies.three_d.offload import ACTIVATIONS

if TYPE_CHECKING:
    from perfsim.proof.execution.gpu import GpuCompiler

HOST_WEIGHTS, HOST_GRADIENT = "host weights", "host gradient"


def blocks_of(task: Task) -> tuple[int, ...]:
    """The blocks that a copy or an update is about."""
    return (EMBEDDING, HEAD) if task.block in (EMBEDDING_AND_HEAD, EMBEDDING) else (task.block,)


def store(compiler: GpuCompiler, task: Task) -> None:
    """Add gradients to those on the host, and clear them on the device; or copy activations."""
    if task.work.name == ACTIVATIONS:
        _copied(compiler, task)
        return
    place, home = compiler.place, compiler.homes[compiler.place]
    reduced = compiler.scatters[task.reads[0]] if compiler.scattered else blocks_of(task)
    blocks = [block for block in reduced if block in home]
    operands, counts = compiler.operands(anywhere=True), []
    reads, writes = list(operands), compiler.handle()
    for block in blocks:
        shard = (place, block) in compiler.sharded
        if compiler.leaves:
            cells = [compiler.reduced_to[task.reads[0], block]]
        else:
            cells = [compiler.cell("gradient shard", block)] if shard else compiler.gradient_cells(block)
        whole = compiler.gradient_cells(block) if shard and not compiler.scattered else []
        host = compiler.cell(HOST_GRADIENT, block)
        reads += [host, *cells]
        writes += [host, *cells, *whole]
        counts.append((block, len(cells), len(whole)))
        compiler.on_host.add((place, block))

    def kernel(rank: int, *values: Any) -> tuple[Any, ...]:
        results: list[Any] = [None]
        first = len(operands)
        for block, cells, whole in counts:
            host, *parts = values[first : first + 1 + cells]
            first += 1 + cells
            results += [host + np.sum(parts, axis=0), *(np.zeros_like(part) for part in parts)]
            results += [np.zeros(compiler.share(rank).layouts[block].size)] * whole
        return tuple(results)

    compiler.add(reads, writes, per_rank(kernel))


def load(compiler: GpuCompiler, task: Task) -> None:
    """Copy the host's weights to the device, a rank's shard or all; or activations."""
    if task.work.name == ACTIVATIONS:
        _copied(compiler, task)
        return
    home = compiler.homes.get(compiler.place, [])
    gathers = compiler.layout.offload_param != "none"
    blocks = [block for block in blocks_of(task) if block in home or gathers]
    operands = compiler.operands(anywhere=True)
    sources = [compiler.cell(HOST_WEIGHTS, block) for block in blocks]
    targets = _slots(compiler, blocks) if gathers else _own(compiler, blocks)

    def kernel(_: int, *values: Any) -> tuple[Any, ...]:
        return (None, *(weights.copy() for weights in values[len(operands) :]))

    compiler.add([*operands, *sources], [*compiler.handle(), *targets], per_rank(kernel))


def _copied(compiler: GpuCompiler, task: Task) -> None:
    """A copy of a tensor."""
    compiler.add([compiler.operand(task.reads[0])], compiler.handle(), per_rank(lambda _, value: (value,)))


def _own(compiler: GpuCompiler, blocks: list[int]) -> list[Cell]:
    """The weights that a device has, or its shards of them."""
    name = "weight shard" if compiler.has_shards else "weights"
    return [compiler.cell(name, block) for block in blocks]


def _slots(compiler: GpuCompiler, blocks: list[int]) -> list[Cell]:
    """The buffer of a copy of shards that are gathered next; there are two."""
    cells = compiler.in_turn("slot of copied weights", parts=len((EMBEDDING, HEAD)))[: len(blocks)]
    compiler.copied |= {(compiler.place, block): cell for block, cell in zip(blocks, cells, strict=True)}
    return cells


OFFLOAD_OPERATIONS: dict[str, Callable[[GpuCompiler, Task], None]] = {
    "offload: host.store": store,
    "offload: host.load": load,
    "offload: nvme.load": load,
}
