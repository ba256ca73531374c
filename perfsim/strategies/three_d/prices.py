"""Prices of passes, of communication over replicas and of the update, in columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal, NamedTuple

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.costs.memory import reduced_grad_bytes
from perfsim.network import FatTree
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import LayerKind
from perfsim.specs.recipe import Job
from perfsim.strategies.plan import Durations
from perfsim.strategies.three_d.context import ring_terms
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, SHARDED, Held, Replicas, layers_per_bucket
from perfsim.strategies.three_d.division import kind_numbers, kinds_of
from perfsim.strategies.three_d.emission import experts_of, group_of, layer_of
from perfsim.strategies.three_d.expert import (
    ExpertGroup,
    Which,
    expert_weights_work,
    experts_work,
    router_works,
    shared_work,
)
from perfsim.strategies.three_d.layers import (
    BACKWARD,
    EMBEDDED,
    FORWARD,
    FROM_HEAD,
    Between,
    Degrees,
    Layer,
    head_positions,
    slice_of,
)
from perfsim.strategies.three_d.memory import OF_LAYERS, SliceBytes, rank_parameters
from perfsim.strategies.three_d.pipeline import (
    VirtualStage,
    embedding_work,
    head_work,
    pass_work,
    softmax_sum_bytes,
    tied_embedding_work,
    transfer_work,
)
from perfsim.strategies.three_d.space import MODES, Columns, distinct_rows
from perfsim.work import RankGroup, Work

# The works that add up to prices, in components: each is written once for all layouts that agree in it.
#
# A rank's share of a layer is decided by seven degrees (`Degrees`), but no work depends on all of them but
# the weight gradients of a block with experts: attention does not depend on experts, and what experts compute
# of rows depends on the tokens that a rank routes, not on how tensor and context groups divide them.

Named = Mapping[str, Sequence[Work]]
"""Works by the price that they add to."""


class Terms:
    """Works that add up to prices, one row for each combination of keys."""

    def __init__(self, fields: Sequence[str], rows: int) -> None:
        self.works: list[Work] = []
        self._fields = {name: number for number, name in enumerate(fields)}
        self._shape = len(fields), rows
        self._components: list[tuple[Ints, int, Ints, Ints]] = []

    def add(self, keys: Sequence[Ints], terms: Callable[..., Named], where: Bools | None = None) -> None:
        """Works that depend on some keys, of shape (rows,) each; only in the rows of `where`."""
        rows = np.arange(self._shape[1]) if where is None else np.flatnonzero(where)
        if not len(rows):
            return
        keys = [column[rows] for column in keys]
        first, of_row = distinct_rows(keys)
        place: list[int] = []
        for number, key in enumerate(zip(*(column[first].tolist() for column in keys), strict=True)):
            for name, works in terms(*key).items():
                self.works += works
                place += [self._fields[name] * len(first) + number] * len(works)
        self._components.append((np.array(place, dtype=np.int64), len(first), of_row, rows))

    def adds_to(self, *names: str) -> Ints:
        """Indices of the works that add to some prices."""
        wanted = [self._fields[name] for name in names]
        parts = [np.isin(place // count, wanted) for place, count, *_ in self._components]
        return np.flatnonzero(np.concatenate(parts))

    def sums(self, values: Floats) -> Floats:
        """What the works add up to, shape (fields, rows), given a value of each of `works`."""
        fields = len(self._fields)
        total = np.zeros(self._shape)
        start = 0
        for place, count, of_row, rows in self._components:
            end = start + len(place)
            table = np.bincount(place, values[start:end], minlength=fields * count).reshape(fields, count)
            used = np.flatnonzero(table.any(axis=1))
            total[used[:, None], rows] += table[used].take(of_row, axis=1)
            start = end
        return total


# ------------------------------------------------------------------------------------------- layers
Run = Literal["whole", "split", "selective", "full"]
"""What is run of a layer: whole passes, a split backward, or what a recompute mode repeats."""


@lru_cache(maxsize=16384)
def _half_terms(
    job: Job, kind: LayerKind, half: Literal["attention", "mlp"], run: Run, *degrees: int
) -> Named:
    """A half of a layer, by `tensor` to `exchange` of `Degrees`; of a layer with experts its attention.

    Attention comes with the sums of the tensor group, and in a ring of context ranks. Selective recompute is
    that of both halves; of experts it repeats nothing.
    """
    mode = run if run in ("selective", "full") else "none"
    layer = layer_of(job, Degrees(*degrees).layout, 0, replace(kind, experts=False), mode)
    part = layer.attention if half == "attention" else layer.mlp

    def sums(between: Sequence[Between]) -> tuple[Work, ...]:
        return _sums(layer, kind, between) if half == "attention" else ()

    if run == "whole":
        return {
            "forward": (*part.works("forward"), *sums(FORWARD)),
            "backward": (*part.works("backward"), *sums(BACKWARD)),
            **ring_terms(part),
        }
    if run == "split":
        return {"inputs": (*part.works("dgrad"), *sums(BACKWARD)), "weights": part.works("wgrad")}
    again = part.works("recompute")
    if run == "selective":
        both = not kind.experts and layer.mlp.repeats
        return {"core": (*again, *layer.mlp.works("recompute"), *sums(FORWARD)) if both else again}
    # An MLP is repeated whole, or up to the last tensor that the backward reads.
    stopped = replace(part, part=replace(part.part, recompute_stops_early=True))
    return {
        "layer": (*again, *sums(FORWARD)),
        "layer_early": (*stopped.works("recompute"), *sums(FORWARD)),
    }


def _sums(layer: Layer, kind: LayerKind, between: Sequence[Between]) -> tuple[Work, ...]:
    """The collectives of a layer's forward or backward; one with experts has those of attention alone."""
    if kind.experts:
        attention, other = between if between is FORWARD else reversed(between)
        between = [Between(attention.before, other.after)]
    return tuple(work for products in between for work in layer.group.all_reduce_works(products))


# ------------------------------------------------------------------------------------------- experts
EXPERTS = LayerKind(experts=True)
PRICES: Mapping[Which, tuple[str, ...]] = {
    "forward": ("forward",),
    "backward": ("backward",),
    "dgrad": ("inputs",),
    "recompute": ("layer", "layer_early"),
}
"""The prices that the passes of a block with experts add to."""
HOSTED: Mapping[Which, tuple[str, ...]] = {"forward": ("hosted",), "backward": ("hosted_backward",)}
"""The same of what runs while the host waits."""


@lru_cache(maxsize=4096)
def _router_terms(job: Job, which: Which, sequences: int, ranks: int) -> Named:
    """The begin and the end of a block with experts, and the wait of the host."""
    group = _experts(job, sequences, ranks)
    begin, end = router_works(group.part, which)
    named: dict[str, Sequence[Work]] = dict.fromkeys(PRICES[which], (begin, end))
    return named | ({"host": group.host_works(begin)} if which == "forward" else {})


@lru_cache(maxsize=4096)
def _shared_terms(job: Job, which: Which, *degrees: int) -> Named:
    """Shared experts, by `tensor` to `context` of `Degrees`."""
    work = shared_work(slice_of(job, Degrees(*degrees).layout, EXPERTS), which)
    return {} if work is None else dict.fromkeys((*PRICES[which], *HOSTED.get(which, ())), (work,))


@lru_cache(maxsize=16384)
def _routed_terms(job: Job, which: Which, sequences: int, ranks: int, expert: int, shared_by: int) -> Named:
    """Routed experts on the rows that arrive."""
    work = experts_work(_experts(job, sequences, ranks, expert, shared_by).part, which)
    return dict.fromkeys((*PRICES[which], *HOSTED.get(which, ())), (work,))


@lru_cache(maxsize=4096)
def _row_terms(job: Job, sequences: int, ranks: int, expert: int, shared_by: int) -> Named:
    """The way of rows to experts and back, in every pass."""
    group = _experts(job, sequences, ranks, expert, shared_by)
    names = (name for table in (PRICES, HOSTED) for names in table.values() for name in names)
    return dict.fromkeys(names, (*group.to_experts(), *group.from_experts()))


@lru_cache(maxsize=16384)
def _weights_terms(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """Weight gradients of a block with experts where they are a pass of their own, by all degrees."""
    return {"weights": (expert_weights_work(slice_of(job, Degrees(*degrees).layout, kind)),)}


def _experts(job: Job, sequences: int, ranks: int, expert: int = 1, shared_by: int = 1) -> ExpertGroup:
    """The experts of a layer whose rows are those of `ranks` ranks with so many sequences together."""
    degrees = Degrees(ranks, ranks > 1, sequences, expert=expert, expert_tensor=shared_by)
    return experts_of(job, degrees.layout, group_of(job, degrees.layout, 0, EXPERTS))


# ------------------------------------------------------------------------------------------- ends
@lru_cache(maxsize=4096)
def _end_works(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """Embedding, LM head and what a received tensor needs, by `tensor` to `context` of `Degrees`."""
    stage = _stage(job, kind, degrees)
    group = stage.group
    return {
        "embedding_forward": (embedding_work(stage, "forward"), *group.all_reduce_works(EMBEDDED)),
        "embedding_backward": (embedding_work(stage, "backward"),),
        "head_forward": (
            head_work(stage, "forward"),
            *group.all_reduce_works(n_bytes=softmax_sum_bytes(stage)),
        ),
        "head_backward": (head_work(stage, "backward"), *group.all_reduce_works(FROM_HEAD)),
        "receive": group.all_gather_works(),
    }


@lru_cache(maxsize=4096)
def _head_split(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """The LM head where weight gradients are a pass of their own."""
    stage = _stage(job, kind, degrees)
    inputs = (head_work(stage, "dgrad"), *stage.group.all_reduce_works(FROM_HEAD))
    return {"head_inputs": inputs, "head_weights": (head_work(stage, "wgrad"),)}


@lru_cache(maxsize=4096)
def _send_terms(job: Job, kind: LayerKind, node: int, *degrees: int) -> Named:
    """Messages between pipeline ranks; `node` is 0 where all devices are in one."""
    stage = _stage(job, kind, degrees)
    framework = job.runtime.stack
    return {
        "send_inside": (transfer_work(stage, RankGroup(0, 1, 2)),) if node != 1 else (),
        "send_across": (transfer_work(stage, RankGroup(0, node, 2)),) if node else (),
        "begin": (pass_work(stage),) if framework is not None and framework.pass_s > 0 else (),
    }


def _stage(job: Job, kind: LayerKind, degrees: Sequence[int]) -> VirtualStage:
    """A stage with embedding and LM head around layers of one kind."""
    part = Degrees(*degrees)
    group = group_of(job, part.layout, 0, kind)
    return VirtualStage(0, 1, 0, 0, group, (), None, None, head_positions(job, part.context))


# Seconds of the passes of layouts, in columns: prices of distinct shares of a layer, joined row by row.
#
# Works are priced for the distinct shares of a layer (`Slices`), which are few, in components that depend on
# few degrees (`terms`). A layout then takes from them what its schedule, recompute mode and ZeRO stage need.


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
    splits: Bools
    """Its weight gradients are a pass of their own."""
    selective: Bools
    full: Bools
    sends: Bools
    """It has a pipeline; one device alone has no peer to send to."""


def slices_of(columns: Columns) -> Slices:
    """The distinct shares of a layer among some layouts."""
    first, of_row = distinct_rows(columns.slice_keys)

    def occurs(rows: Bools) -> Bools:
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
        self.around = _end_terms(job, slices, topology)
        ends = EndPrices(*self.around.sums(durations(self.around.works)))
        self._kinds = len(kinds)
        tables = [_tables(slices.columns.context, layer) for layer in layers]
        of_layers = [part[number] for number in range(3) for part in tables]
        self._table = np.stack([*of_layers, *_end_tables(ends)]).reshape(-1, 2 * self._slices)
        self._redone = np.stack([part[3] for part in tables]).reshape(len(kinds), -1)

    def of(self, columns: Columns, of_row: Ints) -> PassPrices:
        """The prices of some layouts, given the share of a layer of each."""
        splits = columns.of_schedules("splits_backward")
        taken = self._table.take(of_row + self._slices * splits, axis=1)
        kinds = self._kinds
        forward, backward, weights = (taken[number * kinds : (number + 1) * kinds].T for number in range(3))
        *ends, send_inside, send_across, receive, begin = taken[3 * kinds :, :, None]
        mode = np.where(columns.zero == SHARDED, _EARLY[columns.recompute], columns.recompute)
        pipelined = columns.pipeline[:, None] > 1
        # Share of the neighbours in a pipeline that are on different nodes.
        hops = columns.pipeline - 1
        nodes = -(-self._topology.num_devices // self._topology.devices_per_node)
        far = (np.minimum(hops, nodes - 1) / np.maximum(1, hops))[:, None]
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
    forward = ring + late
    none = np.zeros(len(ranks))
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
    columns = slices.columns
    base = Job(job.model, job.recipe, 1)
    works = Terms(LayerPrices._fields, len(columns))
    every = columns.slice_keys
    runs: dict[Run, Bools | None] = {
        "whole": None,
        "split": slices.splits,
        "selective": slices.selective,
        "full": slices.full,
    }
    for run, where in runs.items():
        works.add(every[:5], partial(_half_terms, base, kind, "attention", run), where)
        if not kind.experts and run != "selective":
            works.add(every[:4], partial(_half_terms, base, kind, "mlp", run), where)
    if not kind.experts:
        return works
    # The fewest sequences, and the ranks that share them, with as many tokens on a rank.
    ranks = columns.tensor * columns.context
    common = np.gcd(columns.micro_batch, ranks)
    routed = columns.micro_batch // common, ranks // common
    divided = (columns.expert, columns.expert_tensor)
    occurs = {"dgrad": slices.splits, "recompute": slices.full}
    for which in PRICES:
        where = occurs.get(which)
        works.add(routed, partial(_router_terms, base, which), where)
        works.add(every[:4], partial(_shared_terms, base, which), where)
        works.add((*routed, *divided), partial(_routed_terms, base, which), where)
    works.add((*routed, *divided), partial(_row_terms, base))
    works.add(every, partial(_weights_terms, base, kind), slices.splits)
    return works


def _end_terms(job: Job, slices: Slices, topology: FatTree) -> Terms:
    columns = slices.columns
    base = Job(job.model, job.recipe, 1)
    node = topology.devices_per_node if topology.num_devices > topology.devices_per_node else 0
    works = Terms(EndPrices._fields, len(columns))
    keys = columns.slice_keys[:4]
    kind = kinds_of(job.model)[-1]
    works.add(keys, partial(_end_works, base, kind))
    works.add(keys, partial(_head_split, base, kind), slices.splits)
    works.add(keys, partial(_send_terms, base, kind, node), slices.sends)
    return works


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
    columns = columns.rows(of_key)
    sizes = SliceBytes(*(column[of_key] for column in sizes))
    ranks = columns.ranks()
    parameters = rank_parameters(sizes, ranks) + ranks.sum_of(sizes.experts)
    largest = parameters.argmax(axis=1)[:, None]
    layers, first, last = (
        np.take_along_axis(column.astype(np.int64), largest, axis=1)[:, 0]
        for column in (ranks.layers, ranks.first, ranks.last)
    )
    chunk = -(-layers // columns.virtual)
    return Largest(layers[of_row], first[of_row], last[of_row], chunk[of_row], bucket)


class _Shapes(NamedTuple):
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
    overlaps = int(job.runtime.overlap_grad_reduce)
    gathers = int(job.runtime.overlap_param_gather)
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
        (int(columns.tensor[row]), int(keys[-1][row])): _Shapes(
            *(
                float(getattr(sizes, name)[row] @ (weight if name in OF_LAYERS else ONE))
                for name in _Shapes._fields
            )
        )
        for row in of_degrees.tolist()
    }

    terms = Terms(DataPrices._fields, len(columns))
    terms.add(keys, lambda *key: _data_terms(base, shapes[key[0], key[-1]], _ReplicaKey(*key)))
    return DataPrices(*terms.sums(durations(terms.works))[:, :, None])


def straddling_stage(columns: Columns, node: int) -> Ints:
    """A pipeline rank whose replicas are on more nodes than those of the first, else 0; shape (rows,)."""
    width = columns.tensor * columns.replicas
    stage = np.maximum(1, node // width)
    nodes_of_first, nodes = (-(-(start % node + width) // node) for start in (0, stage * width))
    return np.where((nodes > nodes_of_first) & (stage < columns.pipeline), stage, 0)


class _ReplicaKey(NamedTuple):
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
def _data_terms(job: Job, shapes: _Shapes, key: _ReplicaKey) -> Named:
    zero = key.zero
    data = key.data
    first = shapes.embedding
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

    tie: list[Work] = []
    if key.last_rank and job.model.tied_embeddings:
        group = group_of(job, ParallelLayout(tensor=key.tensor), 0)
        ends_of_pipeline = RankGroup(0, key.last_rank * key.tensor * data, 2)
        grad_bytes = reduced_grad_bytes(job.recipe) / replicas.gradient_shards
        tie = [tied_embedding_work(group, ends_of_pipeline, grad_bytes)]
    scatters = zero >= GRADIENTS_SHARDED
    updates_shard = 0 < zero < SHARDED
    return {
        "reduce": reduce(whole),
        "gather": gather(whole, updates_shard and not key.ahead),
        "update": [replicas.optimizer_work()],
        "reduce_ends": reduce(Held(ends), job.runtime.overlap_grad_reduce),
        "reduce_bucket": reduce(layer * key.bucket),
        "reduce_rest": reduce(layer * key.rest),
        "reduce_layer": reduce(layer, scatters),
        "reduce_embedding": reduce(Held(shapes.embedding), scatters),
        "reduce_head": reduce(Held(shapes.head), scatters),
        "reduce_both": reduce(Held(shapes.both), scatters),
        "gather_layer": gather(layer, zero == SHARDED),
        "gather_both": gather(Held(shapes.both), zero == SHARDED),
        "across_layer": across(shapes.layer),
        "across_both": across(shapes.both),
        "ahead_bucket": gather(layer * key.ahead, updates_shard and key.ahead > 0),
        "ahead_ends": gather(Held(first), updates_shard and key.ahead > 0),
        "tie": tie,
    }
