"""Prices of communication over replicas and of the update, in columns, as those of passes in `prices`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from perfsim.costs.memory import reduced_grad_bytes
from perfsim.graph import RankGroup, Work
from perfsim.strategies.plan import Durations
from perfsim.strategies.three_d.columns import Columns, distinct_rows
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, Held, Replicas, layers_per_bucket
from perfsim.strategies.three_d.division import kind_numbers
from perfsim.strategies.three_d.memory import OF_LAYERS, SliceBytes, rank_parameters
from perfsim.strategies.three_d.stages import group_of
from perfsim.strategies.three_d.terms import Floats, Ints, Named, Terms
from perfsim.strategies.three_d.virtual_stage import tied_embedding_work
from perfsim.strategies.three_d.zero import SHARDED
from perfsim.topology import FatTree
from perfsim.workload import Job, ParallelLayout

ONE = np.ones(1)


class DataPrices(NamedTuple):
    """Seconds of communication over replicas, and of the update, on the rank with most parameters."""

    reduce: Floats
    """All gradients."""
    gather: Floats
    """All parameters."""
    update: Floats
    reduce_ends: Floats
    """Gradients of the embedding and LM head that the rank holds."""
    reduce_bucket: Floats
    """A bucket of overlapped reduction."""
    reduce_rest: Floats
    """The last bucket, where layers do not fill it."""
    reduce_layer: Floats
    reduce_embedding: Floats
    reduce_head: Floats
    reduce_both: Floats
    """Embedding and LM head on one rank."""
    gather_layer: Floats
    gather_both: Floats
    across_layer: Floats
    """Summing the shards of a layer's gradients over groups, on a stream of its own (ZeRO 3)."""
    across_both: Floats
    ahead_bucket: Floats
    """Gathering a bucket of parameters beside forwards."""
    ahead_ends: Floats
    """The same for the embedding, with which they begin."""
    tie: Floats
    """Summing the gradient of a tied embedding over the first and the last stage."""


class Largest(NamedTuple):
    """The rank of every layout with most parameters, shape (rows,) each; its replicas set the pace."""

    layers: Ints
    first: Ints
    last: Ints
    chunk: Ints
    """Layers of its largest chunk."""
    bucket: Ints
    """Layers that fill a bucket of gradients."""


def largest_ranks(job: Job, columns: Columns, sizes: SliceBytes) -> Largest:
    """The rank of every layout with most parameters."""
    bucket = layers_per_bucket(job.recipe, sizes.layer.max(axis=1), columns.zero)
    of_key, of_row = distinct_rows((columns.tensor, columns.division, columns.expert, columns.expert_tensor))
    columns, sizes = columns.rows(of_key), SliceBytes(*(column[of_key] for column in sizes))
    ranks = columns.ranks()
    parameters = rank_parameters(sizes, ranks) + ranks.sum_of(sizes.experts)
    largest = parameters.argmax(axis=1)[:, None]
    layers, first, last = (
        np.take_along_axis(column.astype(np.int64), largest, axis=1)[:, 0]
        for column in (ranks.layers, ranks.first, ranks.last)
    )
    chunk = -(-layers // columns.virtual)
    return Largest(layers[of_row], first[of_row], last[of_row], chunk[of_row], bucket)


class Shapes(NamedTuple):
    """Parameters of one rank: the mean layer without experts, embedding, LM head, and both of these."""

    layer: float
    experts: float
    """Those of the mean layer."""
    embedding: float
    head: float
    both: float


def data_prices(
    job: Job,
    columns: Columns,
    topology: FatTree,
    largest: Largest,
    sizes: SliceBytes,
    durations: Durations,
) -> DataPrices:
    """The prices of every layout's replicas."""
    full, rest = np.divmod(largest.chunk, largest.bucket)
    overlaps, gathers = int(job.recipe.overlap_grad_reduce), int(job.recipe.overlap_param_gather)
    keys = (
        columns.tensor,
        columns.replicas,
        columns.shards,
        straddling_stage(columns, topology.devices_per_node),
        columns.zero,
        columns.last_rank,
        largest.layers,
        largest.first,
        largest.last,
        overlaps * np.where(full > 0, largest.bucket, 0),
        overlaps * rest,
        gathers * np.minimum(largest.bucket, largest.chunk),
        columns.expert * columns.expert_tensor,
    )
    base = Job(job.model, job.recipe, 1)
    of_degrees, _ = distinct_rows((columns.tensor, keys[-1]))
    share = Counter(kind_numbers(job.model)) or Counter([0])
    weight = np.array([share[kind] for kind in range(len(share))]) / share.total()
    shapes = {
        (int(columns.tensor[row]), int(keys[-1][row])): Shapes(
            *(
                float(getattr(sizes, name)[row] @ (weight if name in OF_LAYERS else ONE))
                for name in Shapes._fields
            )
        )
        for row in of_degrees.tolist()
    }

    def works_of(*key: int) -> Named:
        works = _data_terms(base, shapes[key[0], key[-1]], ReplicaKey(*key))
        return dict(zip(DataPrices._fields, works, strict=True))

    terms = Terms(DataPrices._fields, len(columns))
    terms.add(keys, works_of)
    return DataPrices(*terms.sums(durations(terms.works))[:, :, None])


def straddling_stage(columns: Columns, node: int) -> Ints:
    """A pipeline rank whose replicas are on more nodes than those of the first, else 0; shape (rows,)."""
    width = columns.tensor * columns.replicas
    stage = np.maximum(1, node // width)
    nodes_of_first, nodes = (-(-(start % node + width) // node) for start in (0, stage * width))
    return np.where((nodes > nodes_of_first) & (stage < columns.pipeline), stage, 0)


class ReplicaKey(NamedTuple):
    """What determines the communication over the replicas of one rank."""

    tensor: int
    data: int
    """Ranks with the same parameters: replicas and their context ranks."""
    shards: int
    stage: int
    """The pipeline rank."""
    zero: int
    last_rank: int
    layers: int
    first: int
    last: int
    bucket: int
    """Layers of a bucket of overlapped reductions; 0 without overlap."""
    rest: int
    """Layers of the last such bucket."""
    ahead: int
    """Layers of a bucket whose parameters are gathered beside forwards; 0: none is."""
    holds: int
    """Ranks between two with the same experts."""


@lru_cache(maxsize=4096)
def _data_terms(job: Job, shapes: Shapes, key: ReplicaKey) -> Sequence[Sequence[Work]]:
    """The works of `DataPrices` for the replicas of one rank."""
    zero, data, first = key.zero, key.data, shapes.embedding
    if key.last and key.first:
        first = shapes.both
    ends = first if key.first else shapes.head if key.last else 0.0
    layer = Held(shapes.layer, shapes.experts)
    whole = layer * key.layers + Held(ends)
    first_rank = key.stage * key.tensor * data
    ranks = RankGroup(first_rank, key.tensor, data)
    replicas = Replicas(job.recipe, ranks, "", whole.rest, zero, key.shards, model=job.model)
    if whole.apart:
        same_experts = RankGroup(first_rank, key.holds, key.tensor * data // key.holds)
        apart = Replicas(job.recipe, same_experts, "", whole.apart, zero, model=job.model)
        replicas = replace(replicas, apart=apart)

    def reduce(held: Held, wanted: bool = True) -> list[Work]:
        works = replicas.reduce_works(held) if wanted else []
        sums = across(held.rest)
        return [work for work in works if work not in sums]

    def across(num_parameters: float) -> list[Work]:
        return replicas.across_works(num_parameters) if zero == SHARDED else []

    def gather(held: Held, wanted: bool) -> list[Work]:
        return replicas.gather_works(held) if wanted else []

    scatters, updates_shard = zero >= GRADIENTS_SHARDED, 0 < zero < SHARDED
    return (
        reduce(whole),
        gather(whole, updates_shard and not key.ahead),
        [replicas.optimizer_work()],
        reduce(Held(ends), job.recipe.overlap_grad_reduce),
        reduce(layer * key.bucket),
        reduce(layer * key.rest),
        reduce(layer, scatters),
        reduce(Held(shapes.embedding), scatters),
        reduce(Held(shapes.head), scatters),
        reduce(Held(shapes.both), scatters),
        gather(layer, zero == SHARDED),
        gather(Held(shapes.both), zero == SHARDED),
        across(shapes.layer),
        across(shapes.both),
        gather(layer * key.ahead, updates_shard and key.ahead > 0),
        gather(Held(first), updates_shard and key.ahead > 0),
        _tie_works(job, replicas, key),
    )


def _tie_works(job: Job, replicas: Replicas, key: ReplicaKey) -> list[Work]:
    """The sum of a tied embedding's gradient over the first and the last stage, if these are apart."""
    if not key.last_rank or not job.model.tied_embeddings:
        return []
    group = group_of(job, ParallelLayout(tensor=key.tensor), 0)
    grad_bytes = reduced_grad_bytes(job.recipe) / replicas.gradient_shards
    return [tied_embedding_work(group, RankGroup(0, key.last_rank * key.tensor * key.data, 2), grad_bytes)]
