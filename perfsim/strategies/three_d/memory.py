"""Peak memory of the ranks of layouts, in columns.

Every part is an array of shape (rows, ranks), one row per layout. A rank holds its model states, the
activations of micro-batches in flight, the temporaries of one pass, and the buffers of sharded states:

    states + max over moments of (activations held x layers x bytes + weight inputs held x bytes)
    + working set + gathered parameters [ZeRO 3] + gradient buckets [ZeRO 2, 3] + reserved
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.costs.memory import (
    MemoryUse,
    logit_bytes,
    routed_parameters,
    sharded_state_bytes,
    stage_parameters,
    state_bytes,
)
from perfsim.hardware import GpuClusterSpec
from perfsim.strategies.schedules import in_flight, schedule_called
from perfsim.strategies.three_d.columns import MODES, Columns, blocks_of, columns_of, distinct_rows
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED
from perfsim.strategies.three_d.division import INTERLEAVED, RankColumns, chunk_peaks, kinds_of
from perfsim.strategies.three_d.slices import Degrees, head_positions, slice_of
from perfsim.strategies.three_d.zero import IN_FLIGHT, SHARDED
from perfsim.transformer import (
    LayerSlice,
    attention_weight_input_bytes,
    head_weight_input_bytes,
    layer_activation_bytes,
    mlp_weight_input_bytes,
)
from perfsim.transformer.context import exchange_buffer_bytes
from perfsim.workload import Job, LayerKind, ParallelLayout

Floats = NDArray[np.float64]


class SliceBytes(NamedTuple):
    """What one rank holds of a layer for one sequence, and its parameters.

    What belongs to a layer has one column for each kind of layer, the rest a single one.
    """

    keeps_all: Floats
    """Activations of a layer without recompute."""
    keeps: Floats
    """Activations of a layer that is recomputed as the layout says."""
    inputs: Floats
    """Inputs and output gradients of a layer's weights."""
    embedding_inputs: Floats
    head_inputs: Floats
    logits: Floats
    layer: Floats
    """Parameters of one layer, without experts."""
    experts: Floats
    """Parameters of the experts of one layer."""
    embedding: Floats
    head: Floats
    """Parameters of the LM head where the embedding is on another rank."""
    both: Floats
    """Parameters of embedding and LM head on one rank."""
    exchanged: Floats
    """Buffers for what context ranks exchange."""


OF_LAYERS = ("keeps_all", "keeps", "inputs", "layer", "experts")
"""Fields of `SliceBytes` that belong to a layer."""


@lru_cache(maxsize=1024)
def _slice_bytes(part: LayerSlice, positions: int, mode: str) -> tuple[float, ...]:
    return (
        layer_activation_bytes(part, "none"),
        layer_activation_bytes(part, mode),
        attention_weight_input_bytes(part) + mlp_weight_input_bytes(part),
        part.activation_bytes,
        head_weight_input_bytes(part, positions),
        logit_bytes(part, positions),
        stage_parameters(part, 1, first=False, last=False) - routed_parameters(part),
        routed_parameters(part),
        stage_parameters(part, 0, first=True, last=False),
        stage_parameters(part, 0, first=False, last=True),
        stage_parameters(part, 0, first=True, last=True),
        exchange_buffer_bytes(part),
    )


def slice_bytes(job: Job, columns: Columns) -> SliceBytes:
    """The bytes of every layout's slice of a layer, shape (rows, 1)."""
    tensor, split, _, *others = columns.slice_keys
    keys = (tensor, split, np.ones_like(tensor), *others, columns.recompute)
    first, of_row = distinct_rows(keys)

    def row(kind: LayerKind, *key: int) -> tuple[float, ...]:
        degrees = Degrees(*key[:-1])
        part = slice_of(job, degrees.layout, kind)
        return _slice_bytes(part, head_positions(job, degrees.context), MODES[key[-1]])

    distinct = list(zip(*(key[first].tolist() for key in keys), strict=True))
    tables = [np.array([row(kind, *key) for key in distinct]).T for kind in kinds_of(job.model)]
    by_kind = [
        np.stack([table[number] for table in tables], axis=1).take(of_row, axis=0)
        for number in range(len(SliceBytes._fields))
    ]
    of_layers = (name in OF_LAYERS for name in SliceBytes._fields)
    return SliceBytes(
        *(
            column if all_kinds else column[:, :1]
            for column, all_kinds in zip(by_kind, of_layers, strict=True)
        )
    )


def rank_parameters(sizes: SliceBytes, ranks: RankColumns) -> Floats:
    """Parameters of every rank without those of experts, shape (rows, ranks)."""
    ends = np.where(ranks.first, np.where(ranks.last, sizes.both, sizes.embedding), 0.0)
    ends = ends + np.where(ranks.last & ~ranks.first, sizes.head, 0.0)
    return np.asarray(ranks.sum_of(sizes.layer) + ends)


def recomputed_layers(columns: Columns, ranks: RankColumns) -> NDArray[np.int64]:
    """Layers of every rank that are recomputed, one in `recompute_every`."""
    every = columns.recompute_every[:, None]
    return np.where(columns.recompute[:, None] > 0, -(-ranks.layers // every), 0)


def recomputed_share(layout: Columns) -> float:
    """Share of the layers of a single layout that its recompute mode applies to; 1 without recompute."""
    ranks = layout.divisions[0].ranks()
    redone = recomputed_layers(layout, ranks).sum()
    return float(redone / ranks.layers.sum()) if redone else 1.0


def rank_bytes(job: Job, columns: Columns, ranks: RankColumns, system: GpuClusterSpec) -> dict[str, Floats]:
    """Peak memory of every rank by part, arrays of shape (rows, ranks)."""
    sizes = slice_bytes(job, columns)
    states, buffers = _state_bytes(job, columns, ranks, sizes)
    held = _held_bytes(job, columns, ranks, sizes)
    reserved = np.full(ranks.layers.shape, system.device.memory.reserved)
    return {**states, **held, **buffers, "reserved": reserved}


def _state_bytes(
    job: Job, columns: Columns, ranks: RankColumns, sizes: SliceBytes
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """The model states of every rank, and the buffers of those that are sharded."""
    states, zero, data = state_bytes(job.recipe, job.model), columns.zero[:, None], columns.shards[:, None]
    parameters = rank_parameters(sizes, ranks)
    largest = (sizes.layer + sizes.experts).max(axis=1, keepdims=True)
    whole = IN_FLIGHT * largest + parameters - ranks.sum_of(sizes.layer)
    has_buckets = (zero >= GRADIENTS_SHARDED) & (data > 1)
    buffers = {
        "gathered parameters": np.where(zero == SHARDED, whole * states.parameters, 0.0),
        "gradient buckets": np.where(has_buckets, whole * states.gradients, 0.0),
    }
    held = sharded_state_bytes(parameters, states, zero, data)
    if sizes.experts.any():
        experts = ranks.sum_of(sizes.experts)
        shards = columns.expert_replicas[:, None]
        for name, n_bytes in sharded_state_bytes(experts, states, zero, shards).items():
            held[name] = held[name] + n_bytes
    return held, buffers


def _held_bytes(job: Job, columns: Columns, ranks: RankColumns, sizes: SliceBytes) -> dict[str, Floats]:
    """Peak memory of the micro-batches in flight on every rank, and the temporaries of one pass."""
    sequences = columns.micro_batch[:, None]
    recomputed = recomputed_layers(columns, ranks)
    redone = recomputed / np.maximum(1, ranks.layers)
    kept = ranks.sum_of(sizes.keeps_all) * (1 - redone) + ranks.sum_of(sizes.keeps) * redone
    inputs = ranks.sum_of(sizes.inputs) + np.where(ranks.first, sizes.embedding_inputs, 0.0)
    inputs = inputs + np.where(ranks.last, sizes.head_inputs, 0.0)
    activations, weight_inputs = sequences * kept * _chunk_peaks(job, columns, ranks), sequences * inputs
    held = {name: np.zeros(kept.shape) for name in ("activations", "weight gradient inputs")}
    pipeline, virtual = columns.pipeline[:, None], columns.virtual[:, None]
    microbatches = columns.microbatches(job)[:, None]
    for name, rows in columns.by_schedule.items():
        moments = in_flight(name, ranks.rank[rows], pipeline[rows], virtual[rows], microbatches[rows])
        own = [
            (moment.activations * activations[rows], moment.weight_inputs * weight_inputs[rows])
            for moment in moments
        ]
        parts = own[0]
        for new in own[1:]:
            more = new[0] + new[1] > parts[0] + parts[1]
            parts = (np.where(more, new[0], parts[0]), np.where(more, new[1], parts[1]))
        held["activations"][rows], held["weight gradient inputs"][rows] = parts
    held["working set"] = _working_bytes(columns, ranks, sizes)
    return held


def _chunk_peaks(job: Job, columns: Columns, ranks: RankColumns) -> Floats:
    """What unequal chunks of an interleaved rank hold in flight over what equal ones would."""
    factors, divisions = np.ones(ranks.layers.shape), columns.divisions
    rows = columns.by_schedule.get(INTERLEAVED)
    if rows is None:
        return factors
    uneven = np.array([not division.even for division in divisions.divisions])
    rows = np.arange(len(columns))[rows]
    rows = rows[uneven[columns.division[rows]]]
    microbatches = np.minimum(columns.microbatches(job), 3 * columns.pipeline)[rows]
    first, of_row = distinct_rows((columns.division[rows], microbatches))
    peaks = [
        chunk_peaks(divisions[int(columns.division[rows[number]])], int(microbatches[number]))
        for number in first.tolist()
    ]
    for number, peak in enumerate(peaks):
        own = rows[of_row == number]
        factors[own] = peak[ranks.rank[own]]
    return factors


def _working_bytes(columns: Columns, ranks: RankColumns, sizes: SliceBytes) -> Floats:
    """Temporary bytes of one pass: a recomputed layer, or the logits on the last stage; exchanges."""
    layer = (sizes.keeps_all - sizes.keeps).max(axis=1, keepdims=True)
    redone = np.where(columns.recompute[:, None] > 0, layer, 0.0)
    logits = np.where(ranks.last, sizes.logits, 0.0)
    return np.asarray(columns.micro_batch[:, None] * (np.maximum(redone, logits) + sizes.exchanged))


def peak_bytes(job: Job, columns: Columns, system: GpuClusterSpec) -> Floats:
    """Peak memory of the fullest rank of every layout, shape (rows,)."""
    peaks = np.zeros(len(columns))
    for rows in columns.by_schedule.values():
        peaks[rows] = _schedule_peak_bytes(job, columns.rows(rows))
    return peaks + system.device.memory.reserved


def _schedule_peak_bytes(job: Job, columns: Columns) -> Floats:
    """`peak_bytes` of layouts of one schedule, without what is reserved.

    Model states do not depend on micro-batches and recompute, nor what is in flight on ZeRO, so each is
    evaluated only for the layouts that differ in it.
    """
    experts = (columns.expert, columns.expert_tensor)
    on_ranks = (columns.tensor, columns.data, columns.division, columns.context, *experts)
    first, of_state = distinct_rows((*on_ranks, columns.zero, columns.shards))
    some = columns.rows(first)
    states, buffers = _state_bytes(job, some, some.ranks(), slice_bytes(job, some))
    modes = (columns.sequence_parallel, columns.recompute, columns.recompute_every, columns.exchange)
    first, of_held = distinct_rows((*on_ranks, columns.micro_batch, *modes))
    some = columns.rows(first)
    held = _held_bytes(job, some, some.ranks(), slice_bytes(job, some))
    parts = [
        (sum(states.values()), of_state),
        *((part, of_held) for part in held.values() if part.any()),
        *((part, of_state) for part in buffers.values() if part.any()),
    ]
    by_rank = [(np.ascontiguousarray(np.transpose(part)), of_row) for part, of_row in parts]
    peaks = np.empty(len(columns))
    for rows in blocks_of(len(columns)):
        taken = [part.take(of_row[rows], axis=1) for part, of_row in by_rank]
        peaks[rows] = np.asarray(sum(taken)).max(axis=0)
    return peaks


def stage_memory(job: Job, layout: ParallelLayout, system: GpuClusterSpec) -> tuple[MemoryUse, ...]:
    """Peak memory of one rank of each pipeline stage."""
    columns = columns_of(job, layout)
    parts = rank_bytes(job, columns, columns.divisions[0].ranks(), system)
    shown = {name: column[0] for name, column in parts.items() if _is_shown(name, layout)}
    capacity = system.device.memory.capacity
    return tuple(
        MemoryUse(f"stage {rank}", {name: float(column[rank]) for name, column in shown.items()}, capacity)
        for rank in range(layout.pipeline)
    )


def _is_shown(name: str, layout: ParallelLayout) -> bool:
    """Whether a part applies to a layout; parts that do not are not listed."""
    if name == "weight gradient inputs":
        return schedule_called(layout.schedule).splits_backward
    if name == "gathered parameters":
        return layout.zero_stage == SHARDED
    if name == "gradient buckets":
        return layout.zero_stage >= GRADIENTS_SHARDED and layout.replicas > 1
    return True
