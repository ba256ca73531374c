"""The space of layouts: every legal layout of a job on all devices, in grids.

- Tensor groups are inside a node or span whole nodes; they divide heads, query groups and MLP width.
- Context groups are inside a node or span whole nodes, with at least `LEAST_POSITIONS` of a sequence on a
  rank. They are tried for sequences from `LONG_SEQUENCE` on, and where nothing fits without.
- Pipelines have at most as many virtual stages as the model has layers, which divide as evenly as they can.
  Where the LM head is worth two layers or more, the last also has so many fewer.
- Experts are divided over ranks of a stage that divide their number, inside a node or over whole nodes; each
  is on one rank, or shared by the tensor ranks.
- Every micro-batch size that divides a replica's share of the batch, every schedule and number of chunks,
  ZeRO stages 0 to 3 (the last also in groups of a node's ranks), sequence parallelism on and off, and every
  recompute mode. `v-half` and `v-min` have a closed form for as many micro-batches as ranks, or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.costs.memory import state_bytes
from perfsim.sizes import MOST_LAYER_PASSES
from perfsim.strategies.schedules import SCHEDULES
from perfsim.strategies.three_d import grid
from perfsim.strategies.three_d.columns import MODES, Columns
from perfsim.strategies.three_d.context import context_problems
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED
from perfsim.strategies.three_d.division import Division, Divisions, divided, kind_numbers
from perfsim.strategies.three_d.expert import expert_problems
from perfsim.strategies.three_d.grid import Grid, Space, along
from perfsim.strategies.three_d.slices import EXCHANGES
from perfsim.strategies.three_d.tensor import tensor_problems
from perfsim.strategies.three_d.zero import SHARDED
from perfsim.topology import FatTree
from perfsim.transformer import parameters
from perfsim.workload import Job, ParallelLayout, layer_kinds

Ints = NDArray[np.int64]
UNEVEN = ("1f1b", "interleaved")
"""Schedules whose stages are also divided with the LM head counted, as Megatron-Core can."""
FILLED = ("v-half", "v-min")
"""Schedules whose closed form is of pipelines that micro-batches fill; elsewhere they are not listed."""
LONG_SEQUENCE = 16_384
"""Positions of a sequence from which on context degrees are tried."""
LEAST_POSITIONS = 2_048
"""Of a sequence on a context rank, in the layouts that are tried; with fewer, messages cannot hide."""
RECOMPUTE_EVERY = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Of how many layers one is recomputed, in the layouts that are tried."""


def layout_space(
    job: Job,
    topology: FatTree,
    free_degrees: tuple[str, ...],
    zero_stage: int | None = None,
    *,
    shares_sequences: bool = False,
) -> Space:
    """Every legal layout of a job on all devices; `zero_stage` fixes the ZeRO stage.

    Context degrees are tried where sequences are long, or at any length if it `shares_sequences`.
    """
    shares = "context" in free_degrees and (shares_sequences or job.seq_length >= LONG_SEQUENCE)
    degrees = [
        (tensor, context, pipeline)
        for tensor in _tensor_degrees(job, topology, free_degrees)
        for context in (_context_degrees(job, topology, tensor) if shares else (Context(1, 0),))
        for pipeline in _divisors(topology.num_devices // tensor // context.ranks, "pipeline" in free_degrees)
        if _is_legal(
            job,
            topology.num_devices // tensor // context.ranks // pipeline,
            pipeline,
            free_degrees,
            zero_stage,
        )
    ]
    pipelines = tuple(dict.fromkeys(pipeline for *_, pipeline in degrees))
    shape = _Shape(job.model.num_layers, head_layers(job), kind_numbers(job.model))
    divisions, first = _table(pipelines, shape)
    grids = []
    for tensor, context, pipeline in degrees:
        experts = list(_expert_degrees(job, topology, tensor, pipeline, free="expert" in free_degrees))
        numbers = first[pipeline] + np.arange(len(_divisions(pipeline, shape)))
        grids.append(
            _grid(job, topology, (tensor, context, pipeline), experts, numbers, divisions, zero_stage)
        )
    return Space(grids, divisions)


def indivisible_degrees(space: Space, topology: FatTree, free_degrees: tuple[str, ...]) -> int:
    """Combinations of degrees over all devices without a layout: model, batch or nodes do not divide."""
    devices = topology.num_devices
    combinations = sum(
        "data" in free_degrees or tensor * pipeline == devices
        for tensor in _divisors(devices, "tensor" in free_degrees)
        for pipeline in _divisors(devices // tensor, "pipeline" in free_degrees)
    )
    first = [part.columns for part in space.grids if part.all_legal().any()]
    return combinations - len({(columns.tensor.flat[0], columns.pipeline.flat[0]) for columns in first})


def _is_legal(
    job: Job, data: int, pipeline: int, free_degrees: tuple[str, ...], zero_stage: int | None
) -> bool:
    """Whether replicas share the batch evenly, and every pipeline rank has layers."""
    if zero_stage == SHARDED and pipeline > 1:
        return False
    shared = (data == 1 or "data" in free_degrees) and job.global_batch_size % data == 0
    shape = _Shape(job.model.num_layers, head_layers(job), kind_numbers(job.model))
    return shared and bool(_divisions(pipeline, shape))


class _Shape(NamedTuple):
    """What of a model decides how its layers divide."""

    num_layers: int
    head: int
    """Layers that the LM head counts as."""
    kinds: tuple[int, ...]


@lru_cache(maxsize=64)
def _table(pipelines: tuple[int, ...], shape: _Shape) -> tuple[Divisions, dict[int, int]]:
    """The divisions of all pipeline degrees, and where those of each degree begin."""
    divisions: list[Division] = []
    first: dict[int, int] = {}
    for pipeline in pipelines:
        first[pipeline] = len(divisions)
        divisions += _divisions(pipeline, shape)
    return Divisions(divisions), first


def _tensor_degrees(job: Job, topology: FatTree, free_degrees: tuple[str, ...]) -> Iterator[int]:
    """Tensor degrees that keep the rules, inside a node or over whole nodes."""
    node = topology.devices_per_node
    for tensor in _divisors(topology.num_devices, "tensor" in free_degrees):
        placed = node % tensor == 0 or tensor % node == 0
        inside = placed or free_degrees == ("tensor",)
        if inside and not any(tensor_problems(job, ParallelLayout(tensor=tensor))):
            yield tensor


def head_layers(job: Job) -> int:
    """Layers that take as long as the LM head, by their matrix products; the ratio rounded."""
    model, positions = job.model, job.recipe.lm_head_positions or job.seq_length
    seen = job.seq_length / 2 if model.causal and job.recipe.attention == "flash" else job.seq_length
    kind = layer_kinds(model)[model.num_layers - 1]
    layer = parameters(model).matrices_of(kind, active=True) + seen * (
        model.query_width + model.attention_width
    )
    return round(model.vocab_size * model.hidden_size * positions / job.seq_length / layer)


class Context(NamedTuple):
    """A context degree, and the index of its exchange."""

    ranks: int
    exchange: int


def _context_degrees(job: Job, topology: FatTree, tensor: int) -> Iterator[Context]:
    """No context group, and those that keep the rules, inside a node or over whole nodes."""
    node = topology.devices_per_node
    for ranks in _divisors(topology.num_devices // tensor):
        width = tensor * ranks
        placed = node % width == 0 or width % node == 0
        if ranks > 1 and (not placed or job.seq_length // ranks < LEAST_POSITIONS):
            continue
        for number, exchange in enumerate(EXCHANGES if ranks > 1 else EXCHANGES[:1]):
            layout = ParallelLayout(tensor=tensor, context=ranks, context_exchange=exchange)
            if not any(context_problems(job, layout)):
                yield Context(ranks, number)


def _expert_degrees(
    job: Job, topology: FatTree, tensor: int, pipeline: int, *, free: bool
) -> Iterator[tuple[int, int]]:
    """Expert and expert-tensor degrees that keep the rules, inside a node or over whole nodes."""
    if job.model.experts is None or not free:
        yield 1, 1
        return
    node, width = topology.devices_per_node, topology.num_devices // pipeline
    split = tensor > 1
    layout = ParallelLayout(tensor=tensor, data=width // tensor, sequence_parallel=split)
    for shared in dict.fromkeys((1, tensor)):
        most = math.gcd(job.model.experts.num_experts, width // shared)
        for ranks in _divisors(most):
            together = ranks * shared
            placed = node % together == 0 or (together % node == 0 and (shared == 1 or ranks == most))
            legal = replace(layout, expert=ranks, expert_tensor=shared)
            held = _experts_on_rank(job, pipeline * together)
            if not placed or (ranks < most and held > topology.system.device.memory.capacity):
                continue
            if not any(expert_problems(job, legal)):
                yield ranks, shared


def _experts_on_rank(job: Job, ranks: int) -> float:
    """Bytes of weights and gradients of all experts divided over so many ranks."""
    counts, states = parameters(job.model), state_bytes(job.recipe)
    routed = sum(counts.routed_of(kind) for kind in layer_kinds(job.model))
    return routed * (states.parameters + states.gradients) / ranks


@lru_cache(maxsize=1024)
def _divisions(pipeline: int, shape: _Shape) -> tuple[Division, ...]:
    """Every schedule and number of chunks on so many pipeline ranks; layers also with the LM head counted."""
    num_layers, head, kinds = shape
    if pipeline == 1:
        return (divided("1f1b", 1, 1, num_layers, kinds=kinds),)
    divisions = []
    for name, schedule in SCHEDULES.items():
        most = num_layers // pipeline
        chunks = (
            range(2, most + 1) if schedule.chunks is None else range(schedule.chunks, schedule.chunks + 1)
        )
        divisions += [
            divided(name, pipeline, count, num_layers, kinds=kinds) for count in chunks if count <= most
        ]
        if name in UNEVEN and head > 1:
            counted = (
                divided(name, pipeline, count, num_layers, head, kinds) for count in chunks if count <= most
            )
            divisions += [division for division in counted if min(division.layers) >= 0]
    return tuple(divisions)


def _grid(
    job: Job,
    topology: FatTree,
    degrees: tuple[int, Context, int],
    experts: list[tuple[int, int]],
    numbers: Ints,
    divisions: Divisions,
    zero_stage: int | None,
) -> Grid:
    """The layouts of some degrees of tensor, context and pipeline; `numbers` are those of `divisions`."""
    tensor, context, pipeline = degrees
    data = topology.num_devices // tensor // context.ranks // pipeline
    share, passes = job.global_batch_size // data, job.model.num_layers * context.ranks
    sizes = [size for size in _divisors(share) if share // size * passes <= MOST_LAYER_PASSES]
    splits = [0, 1] if tensor > 1 and _splits_evenly(job, tensor, context) else [0]
    splits = splits[-1:] if job.model.experts is not None else splits
    stages = _zero_stages(pipeline, data * context.ranks, zero_stage)
    zero, shards = zip(*_sharded(topology, tensor, data * context.ranks, stages), strict=True)
    modes, every = zip(*_recompute_modes(job, pipeline), strict=True)
    expert, expert_tensor = zip(*experts, strict=True) if experts else ((), ())
    columns = Columns(
        tensor=along(grid.EXPERTS, [tensor]),
        data=along(grid.EXPERTS, [data]),
        micro_batch=along(grid.SIZES, sizes),
        zero=along(grid.STAGES, zero),
        sequence_parallel=along(grid.SPLITS, splits),
        recompute=along(grid.MODES, modes),
        recompute_every=along(grid.MODES, every),
        division=along(grid.DIVISIONS, numbers),
        context=along(grid.EXPERTS, [context.ranks]),
        exchange=along(grid.EXPERTS, [context.exchange]),
        shards=along(grid.STAGES, shards),
        expert=along(grid.EXPERTS, expert),
        expert_tensor=along(grid.EXPERTS, expert_tensor),
        divisions=divisions,
    )
    schedules, microbatches = columns.divisions.schedule[columns.division], share // columns.micro_batch
    in_groups, fills = (np.isin(schedules, _numbers(names)) for names in (("interleaved",), FILLED))
    legal = (~in_groups | (microbatches % pipeline == 0)) & (~fills | (microbatches >= pipeline))
    return Grid(columns, legal)


def _numbers(schedules: tuple[str, ...]) -> list[int]:
    """Indices of schedules into their names."""
    names = list(SCHEDULES)
    return [names.index(name) for name in schedules]


def _sharded(topology: FatTree, tensor: int, replicas: int, zeros: list[int]) -> Iterator[tuple[int, int]]:
    """ZeRO stages, each with the ranks over which it shards: all, and under ZeRO 3 also those of a node."""
    inside = topology.devices_per_node // tensor
    for stage in zeros:
        yield stage, replicas
        if stage == SHARDED and 1 < inside < replicas and replicas % inside == 0:
            yield stage, inside


def _splits_evenly(job: Job, tensor: int, context: Context) -> bool:
    """Whether the positions of a rank divide over its tensor group."""
    layout = ParallelLayout(
        tensor=tensor,
        context=context.ranks,
        context_exchange=EXCHANGES[context.exchange],
        sequence_parallel=True,
    )
    return not any(context_problems(job, layout)) and job.seq_length % tensor == 0


def _zero_stages(pipeline: int, data: int, fixed: int | None) -> list[int]:
    """ZeRO stages; stage 3 gathers every layer on every rank, so it has no pipeline."""
    if fixed is not None:
        return [fixed]
    stages = (0, 1, GRADIENTS_SHARDED, SHARDED) if pipeline == 1 else (0, 1, GRADIENTS_SHARDED)
    return list(stages) if data > 1 else [0]


def _recompute_modes(job: Job, pipeline: int) -> list[tuple[int, int]]:
    """Recompute modes and intervals; fused attention has no scores to recompute selectively."""
    full = MODES.index("full")
    if job.recipe.recompute != "auto":
        return [(MODES.index(job.recipe.recompute), 1)]
    modes = [(MODES.index("none"), 1)]
    if job.recipe.attention == "standard":
        modes.append((MODES.index("selective"), 1))
    return modes + [(full, every) for every in recompute_intervals(job.model.num_layers // pipeline)]


def recompute_intervals(layers: int) -> list[int]:
    """The intervals of `RECOMPUTE_EVERY` that recompute different numbers of a rank's layers."""
    layers = max(1, layers)
    redone = {-(-layers // every): every for every in reversed(RECOMPUTE_EVERY) if every <= layers}
    return sorted(redone.values())


def _divisors(count: int, free: bool = True) -> list[int]:
    """Divisors in ascending order; only 1 of a degree that is not free."""
    if not free:
        return [1]
    return [number for number in range(1, count + 1) if count % number == 0]
