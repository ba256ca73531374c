"""Seconds of the passes of layouts, in columns: prices of distinct shares of a layer, joined row by row.

Works are priced for the distinct shares of a layer (`Slices`), which are few, in components that depend on
few degrees (`terms`). A layout then takes from them what its schedule, recompute mode and ZeRO stage need.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.strategies.plan import Durations
from perfsim.strategies.three_d import terms
from perfsim.strategies.three_d.columns import MODES, Columns, distinct_rows
from perfsim.strategies.three_d.division import kinds_of
from perfsim.strategies.three_d.terms import Terms
from perfsim.strategies.three_d.zero import SHARDED
from perfsim.topology import FatTree
from perfsim.workload import Job, LayerKind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Booleans = NDArray[np.bool_]


class PassPrices(NamedTuple):
    """Seconds of the parts of the passes of one micro-batch, shape (rows, 1).

    Those of a layer have a column for each kind of layer. They are 0 where a layout has no such work.
    """

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


class LayerPrices(NamedTuple):
    """Seconds of the work of one share of a layer for one micro-batch, with its collectives; (slices,)."""

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
    block: Floats
    """Attention to a rank's own keys and values where context ranks form a ring."""
    later: Floats
    """Attention to those of another rank, and the sum with earlier results."""
    block_backward: Floats
    later_backward: Floats
    exchange: Floats
    """A message with keys and values, or with their gradients."""
    exchange_both: Floats
    host: Floats
    """What the host does in a pass of a layer with experts, beside all after the router."""
    hosted: Floats
    """The device's part of that, forward."""
    hosted_backward: Floats


class EndPrices(NamedTuple):
    """Seconds of what is around the layers for one micro-batch, shape (slices,)."""

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
    begin: Floats
    """The wait with which a pass of a pipeline begins."""


class Slices(NamedTuple):
    """The distinct shares of a layer among layouts, and what some layout with each of them does."""

    columns: Columns
    """A layout with every share."""
    of_row: Ints
    """The share of every layout."""
    splits: Booleans
    """Its weight gradients are a pass of their own."""
    selective: Booleans
    full: Booleans
    sends: Booleans
    """It has a pipeline; one device alone has no peer to send to."""


def slices_of(columns: Columns) -> Slices:
    """The distinct shares of a layer among some layouts."""
    first, of_row = distinct_rows(columns.slice_keys)

    def occurs(rows: Booleans) -> Booleans:
        return np.bincount(of_row[rows], minlength=len(first)) > 0

    return Slices(
        columns.rows(first),
        of_row,
        splits=occurs(columns.of_schedules("splits_backward")),
        selective=occurs(columns.recompute == MODES.index("selective")),
        full=occurs(columns.recompute == MODES.index("full")),
        sends=occurs(columns.pipeline > 1),
    )


class Passes:
    """The prices of passes of some layouts."""

    def __init__(self, job: Job, slices: Slices, topology: FatTree, durations: Durations) -> None:
        self._topology, self._slices = topology, len(slices.columns)
        kinds = kinds_of(job.model)
        of_kinds = [layer_terms(job, slices, kind) for kind in kinds]
        self.last_kind = of_kinds[-1]
        layers = [LayerPrices(*of_kind.sums(durations(of_kind.works))) for of_kind in of_kinds]
        self.around = end_terms(job, slices, topology)
        ends = EndPrices(*self.around.sums(durations(self.around.works)))
        self._kinds = len(kinds)
        tables = [_tables(slices.columns.context, layer) for layer in layers]
        of_layers = [table for number in range(3) for table in (own[number] for own in tables)]
        self._table = np.stack([*of_layers, *_end_tables(ends)]).reshape(-1, 2 * self._slices)
        self._redone = np.stack([own[3] for own in tables]).reshape(len(kinds), -1)

    def of(self, columns: Columns, of_row: Ints) -> PassPrices:
        """The prices of some layouts, given the share of a layer of each."""
        splits = columns.of_schedules("splits_backward")
        taken, kinds = self._table.take(of_row + self._slices * splits, axis=1), self._kinds
        forward, backward, weights = (taken[number * kinds : (number + 1) * kinds].T for number in range(3))
        *ends, send_inside, send_across, receive, begin = taken[3 * kinds :, :, None]
        mode = np.where(columns.zero == SHARDED, _EARLY[columns.recompute], columns.recompute)
        pipelined, far = columns.pipeline[:, None] > 1, _share_across(columns, self._topology)[:, None]
        redone = self._redone.take(of_row + self._slices * mode, axis=1).T
        ends += [
            np.where(pipelined, far * send_across + (1 - far) * send_inside, 0.0),
            np.where(pipelined, np.where(far > 0, send_across, send_inside), 0.0),
            np.where(pipelined & (columns.sequence_parallel[:, None] == 0), receive, 0.0),
            np.where(columns.virtual[:, None] > 1, begin, 0.0),
        ]
        return PassPrices(forward, backward, weights, redone, *ends)


_EARLY = np.array([len(MODES) if mode == "full" else number for number, mode in enumerate(MODES)])
"""The table of what is recomputed under ZeRO 3 by index of the mode."""


def _tables(ranks: Ints, part: LayerPrices) -> tuple[Floats, Floats, Floats, Floats]:
    """Forward, backward and weights, for whole and for split backwards, and what every mode recomputes."""
    ring, ring_backward = _rings_s(ranks, part)
    late, late_backward = (
        np.maximum(0.0, part.host - hosted) for hosted in (part.hosted, part.hosted_backward)
    )
    forward, none = ring + late, np.zeros(len(ranks))
    backward = ring_backward + late_backward
    redone = {"none": none, "selective": part.core, "full": part.layer + forward}
    return (
        np.stack([part.forward + forward] * 2),
        np.stack([part.backward + backward, part.inputs + backward]),
        np.stack([none, part.weights]),
        np.stack([*(redone[mode] for mode in MODES), part.layer_early + forward]),
    )


def _end_tables(part: EndPrices) -> list[Floats]:
    """The prices of ends from `embedding_forward` on, for whole and for split backwards."""
    none = np.zeros(len(part.receive))
    columns = (
        (part.embedding_forward, part.embedding_forward),
        (part.embedding_backward, none),
        (none, part.embedding_backward),
        (part.head_forward, part.head_forward),
        (part.head_backward, part.head_inputs),
        (none, part.head_weights),
        *((column, column) for column in (part.send_inside, part.send_across, part.receive, part.begin)),
    )
    return [np.stack(column) for column in columns]


def _rings_s(ranks: Ints, part: LayerPrices) -> tuple[Floats, Floats]:
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


def layer_terms(job: Job, slices: Slices, kind: LayerKind) -> Terms:
    """The works of `LayerPrices` of a layer of one kind."""
    columns, base = slices.columns, Job(job.model, job.recipe, 1)
    works, every = Terms(LayerPrices._fields, len(columns)), columns.slice_keys
    attention = every[:5]
    works.add(attention, partial(terms.attention_passes, base, kind))
    works.add(attention, partial(terms.attention_split, base, kind), slices.splits)
    works.add(attention, partial(terms.core_redone, base, kind), slices.selective)
    works.add(attention, partial(terms.attention_redone, base, kind), slices.full)
    if not kind.experts:
        mlp = every[:4]
        works.add(mlp, partial(terms.mlp_passes, base, kind))
        works.add(mlp, partial(terms.mlp_split, base, kind), slices.splits)
        works.add(mlp, partial(terms.mlp_redone, base, kind), slices.full)
        return works
    routed, divided = terms.routed_keys(columns), (columns.expert, columns.expert_tensor)
    occurs = {"dgrad": slices.splits, "recompute": slices.full}
    for which in terms.PRICES:
        where = occurs.get(which)
        works.add(routed, partial(terms.router_terms, base, which), where)
        works.add(every[:4], partial(terms.shared_terms, base, which), where)
        works.add((*routed, *divided), partial(terms.routed_terms, base, which), where)
    works.add((*routed, *divided), partial(terms.row_terms, base))
    works.add(every, partial(terms.weights_terms, base, kind), slices.splits)
    return works


def end_terms(job: Job, slices: Slices, topology: FatTree) -> Terms:
    """The works of `EndPrices`."""
    columns, base = slices.columns, Job(job.model, job.recipe, 1)
    node = topology.devices_per_node if topology.num_devices > topology.devices_per_node else 0
    works, keys, kind = (
        Terms(EndPrices._fields, len(columns)),
        columns.slice_keys[:4],
        kinds_of(job.model)[-1],
    )
    works.add(keys, partial(terms.end_terms, base, kind))
    works.add(keys, partial(terms.head_split, base, kind), slices.splits)
    works.add(keys, partial(terms.send_terms, base, kind, node), slices.sends)
    return works


def _share_across(columns: Columns, topology: FatTree) -> Floats:
    """Share of the neighbours in a pipeline that are on different nodes, shape (rows,)."""
    hops = columns.pipeline - 1
    crossings = np.minimum(hops, -(-topology.num_devices // topology.devices_per_node) - 1)
    return np.asarray(crossings / np.maximum(1, hops))
