"""Peak memory of the ranks of layouts, in columns.

Every part is an array of shape (rows, ranks), one row per layout. A rank holds its model states, the
activations of micro-batches in flight, the temporaries of one pass, and the buffers of sharded states:

    states + max over moments of (activations held x layers x bytes + weight inputs held x bytes)
    + working set + gathered parameters [ZeRO 3] + gradient buckets [ZeRO 2, 3] + reserved
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Bools, Floats
from perfsim.costs.gpu import HostCosts
from perfsim.costs.memory import MemoryUse, logit_bytes, routed_parameters, stage_parameters, state_bytes
from perfsim.network import FatTree
from perfsim.specs.hardware import GpuClusterSpec
from perfsim.specs.layout import ParallelLayout, Place, Recompute
from perfsim.specs.model import LayerKind
from perfsim.specs.recipe import Job
from perfsim.strategies.schedules import schedule_called
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, IN_FLIGHT, SHARDED
from perfsim.strategies.three_d.division import RankColumns, distinct_kinds
from perfsim.strategies.three_d.layers import head_positions, slice_of
from perfsim.strategies.three_d.space import MODES, PLACES, Columns, distinct_rows, layout_of
from perfsim.work import counts

BUCKETS = "gradient buckets"
"""The part of unsharded gradients of a few layers."""


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

    @classmethod
    def of(cls, job: Job, columns: Columns) -> SliceBytes:
        """The bytes of every layout's slice of a layer for one sequence."""
        tensor, split, _, *others = columns.slice_keys
        keys = (tensor, split, np.ones_like(tensor), *others, columns.recompute)
        first, of_row = distinct_rows(keys)
        sizes = _slice_sizes(Job(job.model, job.recipe, 1))
        table = np.array([sizes(*key) for key in zip(*(key[first].tolist() for key in keys), strict=True)])
        by_field = table.T.take(of_row, axis=2).swapaxes(1, 2)  # rows of a kind are contiguous, which is fast
        named = zip(cls._fields, by_field, strict=True)
        return cls(*(column if name in OF_LAYERS else column[..., :1] for name, column in named))

    def rank_parameters(self, ranks: RankColumns) -> Floats:
        """Parameters of every rank without experts, shape (rows, ranks)."""
        ends = np.where(ranks.first, np.where(ranks.last, self.both, self.embedding), 0.0)
        ends = ends + np.where(ranks.last & ~ranks.first, self.head, 0.0)
        return np.asarray(ranks.sum_of(self.layer) + ends)


OF_LAYERS = ("keeps_all", "keeps", "inputs", "layer", "experts")
"""Fields of `SliceBytes` that belong to a layer."""


@lru_cache(maxsize=64)
def _slice_sizes(job: Job) -> Callable[..., list[tuple[float, ...]]]:
    """`SliceBytes` of every kind of layer, by arguments of `layout_of` and the index of a recompute mode."""
    kinds = distinct_kinds(job.model)

    def of_kind(kind: LayerKind, layout: ParallelLayout, mode: Recompute) -> tuple[float, ...]:
        part = slice_of(job, layout, kind)
        positions = head_positions(job, layout.context)
        return (
            counts.layer_activation_bytes(part, "none"),
            counts.layer_activation_bytes(part, mode),
            counts.attention_weight_input_bytes(part) + counts.mlp_weight_input_bytes(part),
            part.activation_bytes,
            counts.head_weight_input_bytes(part, positions),
            logit_bytes(part, positions),
            counts.parameters(job.model).on_tensor_rank(kind, part.tensor),
            routed_parameters(part),
            stage_parameters(part, 0, first=True, last=False),
            stage_parameters(part, 0, first=False, last=True, apart=True),
            stage_parameters(part, 0, first=True, last=True),
            part.exchange_buffer_bytes,
        )

    @lru_cache(maxsize=16384)
    def sizes(*key: int) -> list[tuple[float, ...]]:
        *degrees, mode = key
        return [of_kind(kind, layout_of(*degrees), MODES[mode]) for kind in kinds]

    return sizes


def rank_bytes(job: Job, columns: Columns, ranks: RankColumns, system: GpuClusterSpec) -> dict[str, Floats]:
    """Peak memory of every rank by part, arrays of shape (rows, ranks)."""
    states = state_bytes(job.recipe, job.model)
    zero = columns.zero_stage[:, None]
    data = columns.shards[:, None]
    # Layouts that differ only in how ZeRO shards hold the same apart from states: it is computed once.
    first, of_row = distinct_rows(columns.unsharded_keys)
    alike = columns.rows(first)
    ranks = ranks.rows(first)
    sizes = SliceBytes.of(job, alike)
    parameters = sizes.rank_parameters(ranks)
    # Experts of which no other rank has a copy are neither gathered nor reduced.
    copied = alike.tensor * alike.replicas > alike.expert * alike.expert_tensor
    largest = ranks.largest_of(sizes.layer + copied[:, None] * sizes.experts)
    whole = (IN_FLIGHT * largest + parameters - ranks.sum_of(sizes.layer))[of_row]
    parts = states.sharded(parameters[of_row], zero, data)
    if sizes.experts.any():
        experts = ranks.sum_of(sizes.experts)[of_row]
        shards = (columns.tensor * columns.replicas // (columns.expert * columns.expert_tensor))[:, None]
        for name, n_bytes in states.sharded(experts, zero, shards).items():
            parts[name] = parts[name] + n_bytes
    parts |= {name: held[of_row] for name, held in _held_bytes(job, alike, ranks, sizes).items()}
    has_buckets = (zero >= GRADIENTS_SHARDED) & (data > 1)
    parts["gathered parameters"] = np.where(zero == SHARDED, whole * states.parameters, 0.0)
    parts[BUCKETS] = np.where(has_buckets, whole * states.gradients, 0.0)
    parts["reserved"] = np.full(whole.shape, system.device.memory.reserved)
    return parts


def _held_bytes(job: Job, columns: Columns, ranks: RankColumns, sizes: SliceBytes) -> dict[str, Floats]:
    """Peak memory of the micro-batches in flight on every rank, and the temporaries of one pass."""
    sequences = columns.micro_batch_size[:, None]
    redone = columns.recomputed_share(ranks)
    kept = ranks.sum_of(sizes.keeps_all) * (1 - redone) + ranks.sum_of(sizes.keeps) * redone
    inputs = ranks.sum_of(sizes.inputs) + np.where(ranks.first, sizes.embedding_inputs, 0.0)
    inputs = sequences * (inputs + np.where(ranks.last, sizes.head_inputs, 0.0))
    # Of the moments that may be the peak the one at which a rank holds most of both.
    moments = _in_flight(job, columns, ranks)
    held = moments[..., 0] * (sequences * kept)[..., None], moments[..., 1] * inputs[..., None]
    at = (held[0] + held[1]).argmax(axis=-1)[..., None]
    activations, weight_inputs = (np.take_along_axis(part, at, axis=-1)[..., 0] for part in held)
    # Temporaries of one pass: a recomputed layer, or the logits on the last stage; exchanges.
    layer = np.where(columns.recompute[:, None] > 0, ranks.largest_of(sizes.keeps_all - sizes.keeps), 0.0)
    passing = np.maximum(layer, np.where(ranks.last, sizes.logits, 0.0))
    return {
        "activations": activations,
        "weight gradient inputs": weight_inputs,
        "working set": np.asarray(sequences * (passing + sizes.exchanged)),
    }


def _in_flight(job: Job, columns: Columns, ranks: RankColumns) -> Floats:
    """Activations and weight inputs at possible peaks, of a rank's layers: (rows, ranks, moments, 2)."""
    divisions = columns.divisions
    microbatches = columns.divisions.filled(columns.division, columns.microbatches(job))
    first, of_row = distinct_rows((columns.division, microbatches))
    keys = (column[first].tolist() for column in (columns.division, microbatches, ranks.rank))
    found = [
        [divisions[division].in_flight(rank, count) for rank in of_ranks]
        for division, count, of_ranks in zip(*keys, strict=True)
    ]
    most = max((len(moments) for of_ranks in found for moments in of_ranks), default=0)
    # Ranks with fewer possible peaks repeat their first.
    table = [[moments + moments[:1] * (most - len(moments)) for moments in of_ranks] for of_ranks in found]
    return np.array(table)[of_row]


# Offload: what is not on the device, but in the memory of the host or on its drives.


class _Moved(NamedTuple):
    """Memory of ranks by part, arrays of shape (rows, ranks)."""

    device: dict[str, Floats]
    host: dict[str, Floats]
    drives: dict[str, Floats]

    @classmethod
    def of(cls, job: Job, columns: Columns, ranks: RankColumns, topology: FatTree) -> _Moved:
        """The memory of layouts whose states are where each has them."""
        device = rank_bytes(job, columns, ranks, topology.system)
        off: dict[Place, dict[str, Floats]] = {"cpu": {}, "nvme": {}}
        zero = columns.zero_stage[:, None]

        def move(part: str, place: Place, moved: Bools, kept: Floats | float = 0.0) -> None:
            """Move a part of some rows to a place, but for what is kept on the device."""
            off[place][part] = np.where(moved, device[part], 0.0)
            device[part] = np.where(moved, kept, device[part])

        # Gradients of ZeRO 2 and 3 are in the memory of the host, wherever the optimizer is. Of a single rank
        # two layers, and embedding and LM head as one more, may still be on the device. So may the
        # activations of two layers: of one that computes, and of one that leaves or comes back.
        for number, place in enumerate(PLACES[1:], 1):
            optimizer, param, activations = (column[:, None] == number for column in columns.offloads)
            if optimizer.any():
                move("optimizer", place, optimizer)
                leaves = optimizer & (zero >= GRADIENTS_SHARDED)
                some = np.minimum(1.0, (IN_FLIGHT + 1) / (ranks.layers + 1)) * device["gradients"]
                device[BUCKETS] = np.where(leaves & (columns.replicas[:, None] == 1), some, device[BUCKETS])
                move("gradients", "cpu", leaves)
            if param.any():
                move("parameters", place, param & (zero == SHARDED))
            if activations.any():
                kept = np.minimum(1.0, IN_FLIGHT / ranks.layers) * device["activations"]
                move("activations", place, activations, kept)
        return cls(device, off["cpu"], off["nvme"])

    def tiers(self, topology: FatTree) -> Iterator[tuple[str, dict[str, Floats], float]]:
        """What the devices of a host hold off them: name, bytes if all hold as much as a rank, capacity."""
        host = topology.system.node.host
        if host is None:
            return
        sharing = HostCosts(topology).sharing
        held = (("host memory", self.host, host.memory), ("drives", self.drives, host.nvme))
        for name, parts, tier in held:
            if parts and tier is not None:
                shared = {part: sharing * column for part, column in parts.items()}
                yield f"{name} of {sharing} devices", shared, tier.capacity


def memory_shares(job: Job, columns: Columns, topology: FatTree) -> tuple[Floats, Bools]:
    """Shares of the fullest device's memory that layouts use, and which fit there and on the host."""
    on_device = np.empty(len(columns))
    fits = np.empty(len(columns), dtype=np.bool_)

    def fullest(parts: Mapping[str, Floats]) -> Floats:
        return np.asarray(np.asarray(sum(parts.values())).max(axis=1))

    for rows, some in columns.blocks(by_zero=False):
        moved = _Moved.of(job, some, some.ranks(), topology)
        on_device[rows] = fullest(moved.device) / topology.system.device.memory.capacity
        fits[rows] = on_device[rows] <= 1.0
        for _, parts, capacity in moved.tiers(topology):
            fits[rows] &= fullest(parts) / capacity <= 1.0
    return on_device, fits


def stage_memory(job: Job, layout: ParallelLayout, topology: FatTree) -> tuple[MemoryUse, ...]:
    """Peak memory of one rank of each pipeline stage, and of a host and its drives with offload."""
    columns = Columns.of(job, layout)
    moved = _Moved.of(job, columns, columns.divisions[0].ranks(), topology)
    optional = {"gathered parameters", BUCKETS}
    if not schedule_called(layout.schedule).has("splits_backward"):
        optional.add("weight gradient inputs")
    shown = {name: column[0] for name, column in moved.device.items() if column.any() or name not in optional}
    capacity = topology.system.device.memory.capacity
    stages = [
        MemoryUse(f"stage {rank}", {name: float(column[rank]) for name, column in shown.items()}, capacity)
        for rank in range(layout.pipeline)
    ]
    for place, parts, size in moved.tiers(topology):
        held = {part: float(column.max()) for part, column in parts.items()}
        stages.append(MemoryUse(place, held, size, on_device=False))
    return tuple(stages)
