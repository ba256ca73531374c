"""Prices of the work of layouts, in columns: one price for each distinct share of a layer, group and size.

Every field is an array of shape (rows, 1) over the rows of `Columns`, 0 where a layout has no such work;
those of a layer have one column for each kind of layer. All distinct works are priced in one call, so that a
cost model can evaluate them as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import RankGroup, Work
from perfsim.strategies.plan import Durations
from perfsim.strategies.three_d.columns import MODES, Columns, distinct_rows
from perfsim.strategies.three_d.context import ring_terms
from perfsim.strategies.three_d.division import kinds_of
from perfsim.strategies.three_d.expert import expert_weights_work
from perfsim.strategies.three_d.halves import HalfPass
from perfsim.strategies.three_d.layer import Layer
from perfsim.strategies.three_d.slices import Degrees, head_positions, slice_of
from perfsim.strategies.three_d.stages import experts_of, group_of, layer_of
from perfsim.strategies.three_d.tensor import BACKWARD, EMBEDDED, FORWARD, FROM_HEAD, Between
from perfsim.strategies.three_d.virtual_stage import (
    VirtualStage,
    embedding_backward_work,
    embedding_work,
    head_backward_work,
    head_dgrad_work,
    head_wgrad_work,
    head_work,
    pass_work,
    softmax_sum_bytes,
    transfer_work,
)
from perfsim.strategies.three_d.zero import SHARDED
from perfsim.topology import FatTree
from perfsim.workload import Job, LayerKind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Terms = Sequence[Sequence[Work]]
"""The works of every price, in the order of its fields; a price is their sum."""


class PassPrices(NamedTuple):
    """Seconds of the parts of the passes of one micro-batch."""

    forward: Floats
    """One layer with its collectives."""
    backward: Floats
    """One layer; without weight gradients where the schedule splits them off."""
    weights: Floats
    """Weight gradients of one layer where they are a pass of their own."""
    recompute: Floats
    """One layer recomputed."""
    embedding_forward: Floats
    embedding_backward: Floats
    embedding_weights: Floats
    head_forward: Floats
    head_backward: Floats
    head_weights: Floats
    send: Floats
    """Sending a tensor to a neighbour in the pipeline, the mean over neighbours."""
    farthest_send: Floats
    """The same between neighbours on different nodes, if there are any."""
    receive: Floats
    """Gathering a received tensor over the tensor group."""
    begin: Floats
    """The wait with which a pass of a pipeline begins."""


OF_LAYERS = ("forward", "backward", "weights", "recompute")
"""Fields of `PassPrices` that belong to a layer."""


class SlicePrices(NamedTuple):
    """Seconds of the work of one share of a layer for one micro-batch, with its collectives."""

    forward: Floats
    backward: Floats
    """Input and weight gradients of one layer."""
    inputs: Floats
    """Input gradients of one layer."""
    weights: Floats
    """Weight gradients of one layer."""
    core: Floats
    """What selective recompute repeats: the attention core, or as the framework says."""
    layer: Floats
    """A forward of the whole layer, which full recompute repeats."""
    layer_early: Floats
    """The same up to the last tensor that the backward reads."""
    embedding_forward: Floats
    embedding_backward: Floats
    head_forward: Floats
    head_backward: Floats
    head_inputs: Floats
    head_weights: Floats
    send_inside: Floats
    """A send inside a node."""
    send_across: Floats
    """A send between nodes."""
    receive: Floats
    block: Floats
    """Attention to a rank's own keys and values where context ranks form a ring."""
    later: Floats
    """Attention to those of another rank, and the sum with earlier results."""
    block_backward: Floats
    later_backward: Floats
    exchange: Floats
    """A message with keys and values, or with their gradients."""
    exchange_both: Floats
    begin: Floats
    """The wait with which a pass of a pipeline begins."""
    host: Floats
    """What the host does in a pass of a layer with experts, beside all after the router."""
    hosted: Floats
    """The device's part of that, forward."""
    hosted_backward: Floats


def pass_prices(job: Job, columns: Columns, topology: FatTree, durations: Durations) -> PassPrices:
    """The prices of every layout's passes."""
    kinds = [_prices_of_kind(job, columns, topology, kind, durations) for kind in kinds_of(job.model)]
    if len(kinds) == 1:
        return kinds[0]
    of_layers = {
        name: np.concatenate([getattr(of_kind, name) for of_kind in kinds], axis=1) for name in OF_LAYERS
    }
    return kinds[-1]._replace(**of_layers)


def _prices_of_kind(
    job: Job,
    columns: Columns,
    topology: FatTree,
    kind: LayerKind,
    durations: Durations,
) -> PassPrices:
    """The prices of passes whose layers are of one kind."""
    split, terms = columns.of_schedules("splits_backward")[:, None], slice_terms(job, columns, topology, kind)
    keys = columns.slice_keys if kind.experts else columns.slice_keys[: Degrees._fields.index("expert")]
    part = SlicePrices(*priced(SlicePrices._fields, keys, terms, durations))
    ring, ring_backward = _rings_s(columns.context[:, None], part)
    late, late_backward = (
        np.maximum(0.0, part.host - hosted) for hosted in (part.hosted, part.hosted_backward)
    )
    pipelined = columns.pipeline[:, None] > 1
    far = _share_across(columns, topology)[:, None]
    full = np.where(columns.zero[:, None] == SHARDED, part.layer_early, part.layer)
    mode = columns.recompute[:, None]
    redone = np.select([mode == MODES.index("selective"), mode == MODES.index("full")], [part.core, full])
    return PassPrices(
        forward=part.forward + ring + late,
        backward=np.where(split, part.inputs, part.backward) + ring_backward + late_backward,
        weights=np.where(split, part.weights, 0.0),
        recompute=redone + np.where(mode == MODES.index("full"), ring + late, 0.0),
        embedding_forward=part.embedding_forward,
        embedding_backward=np.where(split, 0.0, part.embedding_backward),
        embedding_weights=np.where(split, part.embedding_backward, 0.0),
        head_forward=part.head_forward,
        head_backward=np.where(split, part.head_inputs, part.head_backward),
        head_weights=np.where(split, part.head_weights, 0.0),
        send=np.where(pipelined, far * part.send_across + (1 - far) * part.send_inside, 0.0),
        farthest_send=np.where(pipelined, np.where(far > 0, part.send_across, part.send_inside), 0.0),
        begin=np.where(columns.virtual[:, None] > 1, part.begin, 0.0),
        receive=np.where(pipelined & (columns.sequence_parallel[:, None] == 0), part.receive, 0.0),
    )


def _rings_s(ranks: Ints, part: SlicePrices) -> tuple[Floats, Floats]:
    """Seconds of attention of a layer in a ring of so many ranks, forward and backward; 0 without one.

    A forward's messages wait only for one another, so compute waits for the first or for all of them. In a
    backward each takes the gradients of the block before, so that message and block go in step; the last
    brings gradients home.
    """
    later = ranks - 1
    hidden = np.maximum(part.block, part.exchange) + later * part.later
    forward = np.maximum(hidden, later * part.exchange + part.later)
    ends = np.maximum(part.block_backward, part.exchange) + np.maximum(part.later_backward, part.exchange)
    between = np.maximum(0, ranks - 2) * np.maximum(part.later_backward, part.exchange_both)
    return forward, ends + between + part.exchange


def slice_terms(
    job: Job, columns: Columns, topology: FatTree, kind: LayerKind
) -> Callable[[Sequence[int]], Terms]:
    """The works of `SlicePrices` for a layer of one kind, by `Columns.slice_keys`."""
    wanted = Wanted(
        split_backward=bool(columns.of_schedules("splits_backward").any()),
        modes=frozenset(MODES[mode] for mode in np.flatnonzero(np.bincount(columns.recompute)).tolist()),
        sends=bool((columns.pipeline > 1).any()),
    )
    node = topology.devices_per_node if topology.num_devices > topology.devices_per_node else 0
    base = Job(job.model, job.recipe, 1)

    def terms(key: Sequence[int]) -> Terms:
        whole = Degrees(*key)
        rest = _slice_terms(base, node, wanted, kind, whole._replace(expert=1, expert_tensor=1))
        if not kind.experts:
            return rest
        added = _expert_terms(base, wanted, whole)
        if wanted.split_backward:
            part = slice_of(base, whole.layout, kind)
            added = added | {"weights": (expert_weights_work(part),)}
        return [(*own, *added.get(name, ())) for name, own in zip(SlicePrices._fields, rest, strict=True)]

    return terms


def _share_across(columns: Columns, topology: FatTree) -> Floats:
    """Share of the neighbours in a pipeline that are on different nodes, shape (rows,)."""
    hops = columns.pipeline - 1
    crossings = np.minimum(hops, -(-topology.num_devices // topology.devices_per_node) - 1)
    return np.asarray(crossings / np.maximum(1, hops))


def priced(
    fields: Sequence[str],
    keys: Sequence[Ints],
    terms: Callable[[Sequence[int]], Terms],
    durations: Durations,
) -> list[Floats]:
    """The prices of these names for all rows of keys; `terms` lists the works of one key."""
    first, of_row = distinct_rows(keys)
    works: list[Work] = []
    place: list[int] = []
    for number, key in enumerate(zip(*(column[first].tolist() for column in keys), strict=True)):
        for column, summands in enumerate(terms(key)):
            works += summands
            place += [number * len(fields) + column] * len(summands)
    shape = (len(first), len(fields))
    table = np.bincount(place, durations(works), minlength=shape[0] * shape[1]).reshape(shape)
    return [column.take(of_row)[:, None] for column in table.T.astype(np.float64, order="C")]


class Wanted(NamedTuple):
    """What any of the layouts does, so that nothing else is priced."""

    split_backward: bool
    modes: frozenset[str]
    sends: bool
    """Whether there are pipelines; one device alone has no peer to send to."""


@lru_cache(maxsize=4096)
def _slice_terms(
    job: Job,
    node: int,
    wanted: Wanted,
    kind: LayerKind,
    degrees: Degrees,
) -> Terms:
    """The works of `SlicePrices` for one share of a layer, without those of experts.

    `node` is 0 where all devices are in one.
    """
    layout = degrees.layout
    layer = layer_of(job, layout, 0, kind)
    group, attention = layer.group, layer.attention.works
    stage = VirtualStage(0, 1, 0, 0, group, (), None, None, head_positions(job, layout.context))
    none: tuple[Work, ...] = ()

    def mlp(which: HalfPass) -> Sequence[Work]:
        return none if kind.experts else layer.mlp.works(which)

    inputs, weights, head_inputs, head_weights = none, none, none, none
    sums, sums_backward = _sums(layer, FORWARD), _sums(layer, BACKWARD)
    if wanted.split_backward:
        inputs = (*mlp("dgrad"), *attention("dgrad"), *sums_backward)
        weights = (*mlp("wgrad"), *attention("wgrad"))
        head_inputs = (head_dgrad_work(stage), *group.all_reduce_works(FROM_HEAD))
        head_weights = (head_wgrad_work(stage),)
    core, repeated, repeated_early = _recompute_terms(wanted, layer)
    framework = job.recipe.framework
    waits = framework is not None and framework.pass_s > 0
    across = (transfer_work(stage, RankGroup(0, node, 2)),) if node and wanted.sends else none
    return (
        (*attention("forward"), *mlp("forward"), *sums),
        (*mlp("backward"), *attention("backward"), *sums_backward),
        inputs,
        weights,
        core,
        repeated,
        repeated_early,
        (embedding_work(stage), *group.all_reduce_works(EMBEDDED)),
        (embedding_backward_work(stage),),
        (head_work(stage), *group.all_reduce_works(n_bytes=softmax_sum_bytes(stage))),
        (head_backward_work(stage), *group.all_reduce_works(FROM_HEAD)),
        head_inputs,
        head_weights,
        (transfer_work(stage, RankGroup(0, 1, 2)),) if node != 1 and wanted.sends else none,
        across,
        group.all_gather_works(),
        *ring_terms(layer.attention),
        (pass_work(stage),) if wanted.sends and waits else none,
        *(none,) * 3,
    )


@lru_cache(maxsize=4096)
def _expert_terms(job: Job, wanted: Wanted, degrees: Degrees) -> dict[str, Sequence[Work]]:
    """The works of `SlicePrices` that experts add to those of a layer, by the names of its fields.

    They are the same in all kinds of layers with experts, but for weight gradients, which are not here.
    """
    layout = degrees.layout
    experts = experts_of(job, layout, group_of(job, layout, 0, LayerKind(experts=True)))
    forward, backward = experts.works("forward"), experts.works("backward")
    added: dict[str, Sequence[Work]] = {
        "forward": forward,
        "backward": backward,
        "host": experts.host_works(forward[0]),
        "hosted": forward[1:-1],
        "hosted_backward": backward[1:-1],
    }
    if wanted.split_backward:
        added["inputs"] = experts.works("dgrad")
    if "full" in wanted.modes:
        added |= dict.fromkeys(("layer", "layer_early"), experts.works("recompute"))
    return added


def _recompute_terms(wanted: Wanted, layer: Layer) -> tuple[Sequence[Work], ...]:
    """What selective recompute repeats, what full recompute does, and that without the last linear."""
    core: tuple[Work, ...] = ()
    whole, early = core, core
    if "selective" in wanted.modes:
        attention, mlp = (replace(half, mode="selective") for half in (layer.attention, layer.mlp))
        core = (*attention.works("recompute"),)
        if mlp.repeats:
            core = (*core, *mlp.works("recompute"), *_sums(layer, FORWARD))
    if "full" in wanted.modes:
        attention, mlp = (replace(half, mode="full") for half in (layer.attention, layer.mlp))
        stopped = replace(mlp, part=replace(mlp.part, recompute_stops_early=True))
        whole, early = (
            (*attention.works("recompute"), *again, *_sums(layer, FORWARD))
            for again in (() if mlp.divided else half.works("recompute") for half in (mlp, stopped))
        )
    return core, whole, early


def _sums(layer: Layer, between: Sequence[Between]) -> tuple[Work, ...]:
    """The collectives of a layer's forward or backward; attention's alone if the other half is divided."""
    if layer.mlp.divided:
        attention, other = between if between is FORWARD else reversed(between)
        between = [Between(attention.before, other.after)]
    return tuple(work for products in between for work in layer.group.all_reduce_works(products))
