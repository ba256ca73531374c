"""Seconds of passes, of communication over replicas and of the update, in columns of layouts.

They are prices of the works that the emission writes. Seven degrees (`layout_of`) decide a rank's share of a
layer, but no work depends on all of them except the weight gradients of a block with experts: attention does
not depend on experts, and what experts compute of rows depends on the tokens that a rank routes, not on how
tensor and context groups divide them. So works are written in components, each once for all layouts that
agree in what it depends on, and summed by their role: forward, backward, recompute, send, reduce, ...
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal, NamedTuple

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.base.limits import present_limits
from perfsim.costs.memory import shares_words
from perfsim.costs.price import Costs, Shares
from perfsim.network import FatTree
from perfsim.specs.layout import RECOMPUTED, Recompute
from perfsim.specs.model import LayerKind
from perfsim.specs.recipe import Job
from perfsim.strategies.three_d.data import (
    GRADIENTS_SHARDED,
    SHARDED,
    Held,
    Replicas,
    layers_per_bucket,
    norm_works,
)
from perfsim.strategies.three_d.division import distinct_kinds, kind_numbers
from perfsim.strategies.three_d.emission import RankShare
from perfsim.strategies.three_d.expert import ExpertGroup, Which
from perfsim.strategies.three_d.layers import BACKWARD, EMBEDDED, FORWARD, FROM_HEAD, Between, head_positions
from perfsim.strategies.three_d.memory import OF_LAYERS, SliceBytes
from perfsim.strategies.three_d.pipeline import VirtualStage
from perfsim.strategies.three_d.space import MODES, Columns, distinct_rows, layout_of, taken
from perfsim.work import RankGroup, Work
from perfsim.work.layer import LayerPass

TINY_S = 1e-30
"""In place of no time where shares of a time are asked for."""
Named = Mapping[str, Sequence[Work]]
"""Works by the role that they add to."""


class _Terms:
    """Works that add up to roles, one row for each combination of keys."""

    def __init__(self, roles: Sequence[str], rows: int) -> None:
        self.works: list[Work] = []
        self._roles = {name: number for number, name in enumerate(roles)}
        self._shape = len(roles), rows
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
            present_limits().in_time(lambda: "the passes of layouts were being priced")
            for role, works in terms(*key).items():
                self.works += works
                place += [self._roles[role] * len(first) + number] * len(works)
        self._components.append((np.array(place, dtype=np.int64), len(first), of_row, rows))

    def shares(self, of: Callable[[Work], Shares], *roles: str) -> Floats:
        """Shares of units and memory of works, shape (2, works); 0 for works that add to no such role."""
        shares = np.zeros((len(self.works), 2))
        for number, work in self.adds_to(*roles):
            shares[number] = of(work)
        return shares.T

    def adds_to(self, *roles: str) -> Iterator[tuple[int, Work]]:
        """The works that add to some roles, with their indices."""
        wanted = np.array([role in roles for role in self._roles])
        parts = [wanted[place // count] for place, count, *_ in self._components]
        return ((number, self.works[number]) for number in np.flatnonzero(np.concatenate(parts)).tolist())

    def sums(self, values: Floats) -> Floats:
        """What the works add up to, shape (roles, rows), given a value of each of `works`."""
        roles = len(self._roles)
        total = np.zeros(self._shape)
        start = 0
        for place, count, of_row, rows in self._components:
            end = start + len(place)
            table = np.bincount(place, values[start:end], minlength=roles * count).reshape(roles, count)
            used = np.flatnonzero(table.any(axis=1))
            total[used[:, None], rows] += table[used].take(of_row, axis=1)
            start = end
        return total


# The passes of one micro-batch: layers, what is around them, and messages between pipeline ranks.


class _PassPrices(NamedTuple):
    """Seconds of the parts of the passes of one micro-batch, shape (rows, 1).

    Seconds of a layer have a column for each kind of layer. They are 0 where a layout has no such work.
    """

    forward: Floats
    """One layer with its collectives."""
    backward: Floats
    """One layer; without weight gradients where the schedule splits them off."""
    weights: Floats
    """Weight gradients of one layer where they are a pass of their own."""
    recompute: Floats
    computes: Floats
    """A forward and a backward without the way of rows to experts and back; 0 where none travel."""
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
    """The wait at the beginning of a pass of a pipeline."""
    # Parts of a layer that are not simply added to its passes.
    inputs: Floats
    """The backward without weight gradients."""
    block: Floats
    """Attention to a rank's own keys and values where context ranks form a ring."""
    later: Floats
    """Attention to another rank's keys and values, and the sum with earlier results."""
    block_backward: Floats
    later_backward: Floats
    exchange: Floats
    """A message with keys and values, or with their gradients."""
    exchange_both: Floats
    host: Floats
    """What the host does in a pass of a layer with experts, while the device does all after the router."""
    hosted: Floats
    """What the device does in that time, forward."""
    hosted_backward: Floats
    dispatched: Floats
    """The way of rows to experts, next to which shared experts run."""
    exchanged: Floats
    """That way and the way back."""
    shared: Floats
    """Shared experts, forward."""
    shared_backward: Floats
    shared_inputs: Floats


_OF_LAYERS = _PassPrices._fields.index("embedding_forward")
"""Prices of every kind of layer; the others are of the last kind."""


@lru_cache(maxsize=16384)
def _half_terms(job: Job, half: Literal["attention", "mlp"], run: str, number: int, *degrees: int) -> Named:
    """A half of a layer of a kind, by `tensor` to the exchange of `layout_of`; with experts its attention.

    A run is `whole` passes, a `split` backward, or what a recompute mode repeats. Under ZeRO 3 full recompute
    stops `early`, at the last tensor that the backward reads. Attention comes with the sums of the tensor
    group, and in a ring of context ranks.
    """
    kind = distinct_kinds(job.model)[number]
    layout = layout_of(*degrees)
    if run == "early":
        layout = replace(layout, zero_stage=SHARDED)
    mode = run if run in RECOMPUTED else "full" if run == "early" else "none"
    layer = RankShare(job, layout).layer(replace(kind, experts=False), mode)
    part = layer.attention if half == "attention" else layer.mlp

    def sums(which: Literal["forward", "recompute", "backward"], between: Sequence[Between]) -> list[Work]:
        """The collectives of a forward or backward; a layer with experts has only attention's."""
        if half == "mlp" or not between:
            return []
        works = layer.group.module_works(which) if between in (FORWARD, BACKWARD) else []
        if kind.experts:
            attention, other = between if between is FORWARD else reversed(between)
            between = [Between(attention.before, other.after)]
        return works + [work for products in between for work in layer.group.all_reduce_works(products)]

    if run == "whole":
        return {
            "forward": (*part.works("forward"), *sums("forward", FORWARD)),
            "backward": (*part.works("backward"), *sums("backward", BACKWARD)),
            **part.ring_terms(),
        }
    if run == "split":
        return {"inputs": (*part.works("dgrad"), *sums("backward", BACKWARD)), "weights": [part.weights]}
    again = part.works("recompute") if part.repeats else ()
    summed = layer.summed_again if mode == "full" or not kind.experts else ()
    return {"recompute": (*again, *sums("recompute", summed))}


_EXPERTS = LayerKind(experts=True)
_REPEATS_EXPERTS = np.array([*("moe" in RECOMPUTED[mode] for mode in MODES), True])
"""Whether a mode sends rows to experts again; the last is a full recompute that stops early."""
_SHARED = {"forward": "shared", "backward": "shared_backward", "dgrad": "shared_inputs"}
"""Roles of shared experts that compute while rows travel."""
_HOSTED = ("hosted", "hosted_backward")
"""Roles of what runs while the host waits for the counts of rows."""


@lru_cache(maxsize=4096)
def _router_terms(
    job: Job, which: Which, roles: Sequence[str], sequences: int, ranks: int, expert: int
) -> Named:
    """The begin and the end of a block with experts, and the wait of the host."""
    group = _experts(job, sequences, ranks, expert)
    parts = group.parts(which)
    both = parts.begin, parts.end
    named: dict[str, Sequence[Work]] = {role: both for role in roles if role not in _HOSTED}
    return named | ({"host": group.host_works(parts.begin)} if which == "forward" else {})


@lru_cache(maxsize=4096)
def _shared_terms(job: Job, which: Which, roles: Sequence[str], *degrees: int) -> Named:
    """Shared experts with their collectives, by `tensor` to `context` of `layout_of`."""
    group = RankShare(job, layout_of(*degrees)).experts(_EXPERTS)
    named = roles if group.hides_shared else [role for role in roles if role not in _SHARED.values()]
    return dict.fromkeys(named, group.shared_works(which))


@lru_cache(maxsize=4096)
def _further_head_terms(job: Job, which: LayerPass, roles: Sequence[str], *degrees: int) -> Named:
    """LM head and loss behind experts of multi-token prediction, by `tensor` to `context` of `layout_of`."""
    return dict.fromkeys(roles, (_stage(job, degrees).head(which),))


@lru_cache(maxsize=16384)
def _routed_terms(job: Job, which: Which, roles: Sequence[str], *degrees: int) -> Named:
    """Routed experts on the rows that arrive, and the way of rows to them and back; degrees of `_experts`."""
    group = _experts(job, *degrees)
    exchanges = *group.to_experts, *group.from_experts
    named: Named = dict.fromkeys(roles, (group.parts(which).experts, *exchanges))
    forward = {"dispatched": group.to_experts, "exchanged": exchanges}
    return {**named, **(forward if which == "forward" else {})}


@lru_cache(maxsize=16384)
def _apart_terms(job: Job, mode: Recompute, *degrees: int) -> Named:
    """What a mode runs again of experts by itself, by degrees of `_experts`."""
    return {"recompute": _experts(job, *degrees, mode=mode).again}


@lru_cache(maxsize=16384)
def _weights_terms(job: Job, number: int, *degrees: int) -> Named:
    """Weight gradients of a block with experts where they are a pass of their own, by all degrees."""
    group = RankShare(job, layout_of(*degrees)).experts(distinct_kinds(job.model)[number])
    return {"weights": [group.weights]}


@lru_cache(maxsize=16384)
def _experts(
    job: Job, sequences: int, ranks: int, expert: int = 1, shared_by: int = 1, mode: Recompute = "none"
) -> ExpertGroup:
    """The experts of a layer that compute the rows of `ranks` ranks with `sequences` sequences in all."""
    layout = layout_of(ranks, ranks > 1, sequences, 1, 0, expert, shared_by)
    return RankShare(job, layout).experts(_EXPERTS, mode)


@lru_cache(maxsize=4096)
def _end_terms(job: Job, splits: int, *degrees: int) -> Named:
    """Embedding and LM head in whole or split passes, by `tensor` to `context` of `layout_of`."""
    stage = _stage(job, degrees)
    group = stage.group
    return {
        "embedding_forward": (stage.embedding("forward"), *group.all_reduce_works(EMBEDDED)),
        "embedding_weights" if splits else "embedding_backward": (stage.embedding("backward"),),
        "head_forward": (stage.head("forward"), *group.softmax_works(stage.head_positions)),
        "head_backward": (stage.head("dgrad" if splits else "backward"), *group.all_reduce_works(FROM_HEAD)),
        "head_weights": (stage.head("wgrad"),) if splits else (),
    }


@lru_cache(maxsize=4096)
def _send_terms(job: Job, node: int, chunked: int, *degrees: int) -> Named:
    """Messages between pipeline ranks, inside a node and across; `node` is 0 where all devices are in one.

    In an interleaved pipeline the host waits before every pass.
    """
    stage = _stage(job, degrees)
    stack = job.runtime.stack
    waits = chunked and stack is not None and stack.pass_s > 0
    return {
        "send": (stage.send(RankGroup(0, 1, 2)),) if node != 1 else (),
        "farthest_send": (stage.send(RankGroup(0, node, 2)),) if node else (),
        "receive": () if stage.group.part.sequence_parallel else stage.group.works("all_gather"),
        "begin": (stage.wait,) if waits else (),
    }


def _stage(job: Job, degrees: Sequence[int]) -> VirtualStage:
    """A stage with embedding and LM head around layers of the last kind."""
    layout = layout_of(*degrees)
    group = RankShare(job, layout).group(distinct_kinds(job.model)[-1])
    return VirtualStage(0, 1, 0, 0, group, (), None, None, head_positions(job, layout.context))


def _at_worst(work: Work, topology: FatTree) -> Work:
    """A work of the first of many groups; where others lie in two nodes, of the first that does."""
    group = work.group
    if group is None or group.start > 0 or group.stride > topology.devices_per_node:
        return work
    width = group.stride * group.size
    start = topology.devices_per_node // width * width
    straddles = topology.devices_per_node % width and start + width <= topology.num_devices
    return replace(work, group=group._replace(start=start)) if start and straddles else work


class Passes:
    """The prices of passes for every distinct share of a layer, and way to run it, among some layouts."""

    def __init__(self, job: Job, columns: Columns, topology: FatTree, costs: Costs) -> None:
        self._topology = topology
        full = MODES.index("full")
        early = (columns.zero_stage == SHARDED) & (columns.recompute == full)
        keys = (
            *columns.slice_keys,
            columns.of_schedules("splits_backward"),
            np.where(early, len(MODES), columns.recompute),
            columns.pipeline > 1,
            columns.virtual > 1,
        )
        first, self.of_row = distinct_rows(keys)
        """The share of every layout."""
        shares = columns.rows(first)
        splits, mode, sends, chunked = (key[first] for key in keys[-4:])
        self._kinds = len(distinct_kinds(job.model))
        self._ranks = shares.context
        self._terms = _Terms(_PassPrices._fields, self._kinds * len(first))
        self._write(job, shares, splits, mode, sends, chunked)
        self._terms.works = [_at_worst(work, topology) for work in self._terms.works]
        seconds = costs.durations_s(self._terms.works)
        prices = self._sums(seconds)
        ring, ring_backward = _rings_s(self._ranks, prices)
        hidden, hidden_backward, hidden_inputs = (
            np.minimum(shared, prices.dispatched)
            for shared in (prices.shared, prices.shared_backward, prices.shared_inputs)
        )
        waits = np.maximum(0.0, prices.host - (prices.hosted - hidden))
        hidden_backward = np.where(splits, hidden_inputs, hidden_backward)
        waits_backward = np.maximum(0.0, prices.host - (prices.hosted_backward - hidden_backward))
        forward = ring + waits - hidden
        backward = np.where(splits, prices.inputs, prices.backward) - hidden_backward
        computes = prices.forward + ring + backward + hidden_backward + ring_backward - 2 * prices.exchanged
        prices = prices._replace(
            computes=np.where(prices.exchanged > 0, computes, 0.0),
            forward=prices.forward + forward,
            backward=backward + ring_backward + waits_backward,
            recompute=prices.recompute
            + np.where(mode >= full, ring, 0.0)
            + np.where(_REPEATS_EXPERTS[mode], waits - hidden, 0.0),
        )
        of_layers = [column.T for column in prices[:_OF_LAYERS]]
        self._prices = _PassPrices(*of_layers, *(column[-1][:, None] for column in prices[_OF_LAYERS:]))
        self._limited = self._limited_s(costs, seconds)
        role = "farthest_send" if topology.num_devices > topology.devices_per_node else "send"
        taken_by_sends = self._terms.shares(costs.taken, role)
        sent = [getattr(self._sums(share), role)[-1] for share in taken_by_sends]
        self.sent = np.stack(sent, axis=1)
        """What a message between pipeline ranks takes of a device, shape (shares, 2)."""
        self.exchanged = np.zeros_like(self.sent)
        """What the way of rows to experts takes of a device where passes are joined, shape (shares, 2)."""
        if columns.of_schedules("joins").any():
            taken_by_rows = self._terms.shares(costs.taken, "exchanged") * seconds
            rows = [self._sums(share).exchanged[-1] for share in taken_by_rows]
            self.exchanged = np.stack(rows, axis=1) / np.maximum(prices.exchanged[-1], TINY_S)[:, None]
        crossing = self._terms.adds_to("forward", "backward", "inputs", "dispatched")
        of_nics = self._sums(_on_nics_s(crossing, seconds, topology, costs))
        backward_s = np.where(splits, of_nics.inputs, of_nics.backward)
        shares_of_nics = of_nics.forward / prices.forward, backward_s / prices.backward, of_nics.dispatched
        self.on_nics = np.stack([part[-1] for part in shares_of_nics], axis=1)
        """Of a layer of the last kind: shares of forward and backward in which messages cross NICs, and the
        seconds in which the way of rows to experts does, shape (shares, 3)."""

    def _write(self, job: Job, shares: Columns, splits: Ints, mode: Ints, sends: Ints, chunked: Ints) -> None:
        """Write the works of every kind of layer under every share, and of what is around the last kind."""
        base = Job(job.model, job.recipe, 1)
        terms = self._terms
        kinds = distinct_kinds(job.model)

        def every(column: Ints | Bools) -> Ints:
            return np.tile(column, len(kinds)).astype(np.int64)

        number = np.repeat(np.arange(len(kinds)), len(shares))
        has_experts = np.array([kind.experts for kind in kinds])[number]
        degrees = [every(key) for key in shares.slice_keys]
        split = every(splits) > 0
        modes = every(mode)
        full = MODES.index("full")
        runs: dict[str, Bools | None] = {"whole": None, "split": split}
        for place, name in enumerate(MODES[1:full], 1):
            runs[name] = modes == place
        # Of a recompute that stops early only the MLP differs from a full one.
        for run, where in (runs | {"full": modes >= full}).items():
            terms.add((number, *degrees[:5]), partial(_half_terms, base, "attention", run), where)
        for run, where in (runs | {"full": modes == full, "early": modes > full}).items():
            dense = ~has_experts if where is None else where & ~has_experts
            terms.add((number, *degrees[:4]), partial(_half_terms, base, "mlp", run), dense)
        if has_experts.any():
            self._write_experts(base, number, has_experts, degrees, split, modes)
        last = number == len(kinds) - 1
        node = self._topology.devices_per_node
        node = node if self._topology.num_devices > node else 0
        terms.add((split.astype(np.int64), *degrees[:4]), partial(_end_terms, base), last)
        piped = last & (every(sends) > 0)
        terms.add((every(chunked), *degrees[:4]), partial(_send_terms, base, node), piped)

    def _write_experts(
        self, job: Job, number: Ints, has_experts: Bools, degrees: Sequence[Ints], split: Bools, modes: Ints
    ) -> None:
        """Write the works of blocks with experts."""
        tensor, _, micro_batch, context, _, *divided = degrees
        # The fewest sequences, and the ranks that share them, with as many tokens on a rank.
        ranks = tensor * context
        common = np.gcd(micro_batch, ranks)
        routed = micro_batch // common, ranks // common
        # What leaves an expert rank is rows, or with DeepEP tokens, however many ranks there are.
        sends_tokens = _experts(job, 1, 1, 2).part.sends_tokens
        leaving = np.minimum(divided[0], 2) if sends_tokens else np.ones_like(ranks)
        runs: tuple[tuple[Which, Sequence[str], Bools], ...] = (
            ("forward", ("forward", "hosted"), has_experts),
            ("backward", ("backward", "hosted_backward"), has_experts & ~split),
            ("dgrad", ("inputs", "hosted_backward"), has_experts & split),
            ("recompute", ("recompute",), has_experts & _REPEATS_EXPERTS[modes]),
        )
        for mode in np.unique(modes[~_REPEATS_EXPERTS[modes] & (modes > 0)]).tolist():
            where = has_experts & (modes == mode)
            self._terms.add((*routed, *divided), partial(_apart_terms, job, MODES[mode]), where)
        predicts = np.array([kind.mtp for kind in distinct_kinds(job.model)])[number]
        for which, roles, where in runs:
            if which != "recompute":
                head = partial(_further_head_terms, job, which, roles)
                self._terms.add(degrees[:4], head, where & predicts)
            self._terms.add((*routed, leaving), partial(_router_terms, job, which, roles), where)
            shared = (*roles, *([_SHARED[which]] if which in _SHARED else ()))
            self._terms.add(degrees[:4], partial(_shared_terms, job, which, shared), where)
            self._terms.add((*routed, *divided), partial(_routed_terms, job, which, roles), where)
        self._terms.add((number, *degrees), partial(_weights_terms, job), has_experts & split)

    def _sums(self, values: Floats) -> _PassPrices:
        """What works add up to, given a value of each, in arrays of shape (kinds, shares)."""
        total = self._terms.sums(values)
        return _PassPrices(*total.reshape(len(total), self._kinds, -1))

    def _limited_s(self, costs: Costs, durations_s: Floats) -> tuple[Floats, Floats]:
        """Seconds of a layer of the last kind that units, and memory bandwidth, limit.

        Forward and backward, of shape (shares, 2) each.
        """
        bound = self._terms.shares(costs.bound, "forward", "backward", "later", "later_backward")
        limits = [self._sums(share * durations_s) for share in bound]
        forward = [(limit.forward + self._ranks * limit.later)[-1] for limit in limits]
        backward = [(limit.backward + self._ranks * limit.later_backward)[-1] for limit in limits]
        return np.stack(forward, axis=1), np.stack(backward, axis=1)

    def of(self, columns: Columns, rows: Ints) -> _PassPrices:
        """The prices of some layouts; `rows` are their places among all."""
        prices = taken(self._prices, self.of_row[rows])
        # Share of the neighbours in a pipeline that are on different nodes.
        hops = columns.pipeline - 1
        nodes = self._topology.num_nodes
        far = (np.minimum(hops, nodes - 1) / np.maximum(1, hops))[:, None]
        inside = prices.send
        across = prices.farthest_send
        return prices._replace(
            send=far * across + (1 - far) * inside, farthest_send=np.where(far > 0, across, inside)
        )

    def hops(self, rows: Ints) -> Floats:
        """Seconds of a message inside a node, and of one across nodes, shape (rows, 2)."""
        return np.concatenate((self._prices.send, self._prices.farthest_send), axis=1)[self.of_row[rows]]

    def limits(self, passes: _PassPrices, rows: Ints) -> tuple[Floats, Floats]:
        """Shares of a layer's forward and backward that units and memory limit, shape (rows, 2) each."""
        forward, backward = (limited.take(self.of_row[rows], axis=0) for limited in self._limited)
        backward_s = (passes.backward + passes.weights)[:, -1:]
        return forward / passes.forward[:, -1:], backward / backward_s


def _rings_s(ranks: Ints, part: _PassPrices) -> tuple[Floats, Floats]:
    """Seconds of attention of a layer in a ring of ranks, forward and backward; 0 without one.

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


# Communication over replicas, and the update, on the rank with most parameters.


class _DataPrices(NamedTuple):
    """Seconds of communication over replicas, and of the update, on the rank with most parameters.

    Of shape (rows, 1) each.
    """

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
    """Gathering a bucket of parameters next to forwards."""
    ahead_ends: Floats
    """The same for the embedding, which begins them."""
    tie: Floats
    """Summing the gradient of an embedding on both the first and the last stage."""
    norm: Floats
    """Summing the norm of all gradients, for which every update waits."""


class _Largest(NamedTuple):
    """The rank of every layout with most parameters, shape (rows,) each; its replicas set the pace."""

    layers: Ints
    first: Ints
    last: Ints
    chunk: Ints
    """Layers of its largest chunk."""
    bucket: Ints
    """Layers that fill a bucket of gradients."""


class OverReplicas:
    """The prices of communication over replicas for every distinct way to hold states among some layouts."""

    def __init__(self, job: Job, columns: Columns, topology: FatTree, costs: Costs) -> None:
        first, self.of_row = distinct_rows(columns.state_keys)
        """The way of every layout."""
        states = columns.rows(first)
        sizes = SliceBytes.of(job, states)
        # A pipeline rank whose replicas are on more nodes than the first rank's, else 0.
        node = topology.devices_per_node
        width = states.tensor * states.replicas
        stage = np.maximum(1, node // width)
        nodes_of_first, nodes = (-(-(start % node + width) // node) for start in (0, stage * width))
        stage = np.where((nodes > nodes_of_first) & (stage < states.pipeline), stage, 0)
        self.largest = _largest_ranks(job, states, sizes)
        terms = _data_terms_of(job, states, self.largest, sizes, stage)
        seconds = costs.durations_s(terms.works)
        self.prices = _DataPrices(*terms.sums(seconds)[:, :, None])
        sharded = states.zero_stage >= GRADIENTS_SHARDED
        overlapped = ("gather_layer", "reduce_layer", "reduce_bucket", "reduce_rest")
        taken_s = terms.shares(costs.taken, *overlapped) * seconds
        on_nics_s = _on_nics_s(terms.adds_to(*overlapped), seconds, topology, costs)
        parts = [_DataPrices(*terms.sums(part)) for part in (*taken_s, on_nics_s, seconds)]
        of_gathers = [part.gather_layer for part in parts]
        of_reductions = [
            np.where(sharded, part.reduce_layer, part.reduce_bucket + part.reduce_rest) for part in parts
        ]
        self.taken = np.stack(
            [
                np.stack(shares_s, axis=1) / np.maximum(whole_s, TINY_S)[:, None]
                for *shares_s, whole_s in (of_gathers, of_reductions)
            ]
        )
        """Shares of units, memory bandwidth and NICs that gathers and reductions take, shape (2, ways, 3)."""


def _on_nics_s(
    works: Iterable[tuple[int, Work]], durations_s: Floats, topology: FatTree, costs: Costs
) -> Floats:
    """Seconds in which bytes of some of the works cross NICs; 0 inside a node, for compute and for others."""
    seconds = np.zeros(len(durations_s))
    crosses: dict[RankGroup | None, bool] = {None: False}
    for number, work in works:
        group = work.group
        if group is not None and group not in crosses:
            crosses[group] = topology.group_shape(group.ranks).nodes > 1
        if crosses[group]:
            seconds[number] = durations_s[number] - costs.latency_s(work)
    return seconds


def _largest_ranks(job: Job, columns: Columns, sizes: SliceBytes) -> _Largest:
    """The rank of every layout with most parameters."""
    bucket = layers_per_bucket(job.recipe, sizes.layer.max(axis=1), columns.zero_stage)
    of_key, of_row = distinct_rows((columns.tensor, columns.division, columns.expert, columns.expert_tensor))
    columns = columns.rows(of_key)
    sizes = taken(sizes, of_key)
    ranks = columns.ranks()
    largest = (sizes.rank_parameters(ranks) + ranks.sum_of(sizes.experts)).argmax(axis=1)[:, None]
    layers, first, last = (
        np.take_along_axis(column.astype(np.int64), largest, axis=1)[:, 0]
        for column in (ranks.layers, ranks.first, ranks.last)
    )
    chunk = -(-layers // columns.virtual)
    return _Largest(layers[of_row], first[of_row], last[of_row], chunk[of_row], bucket)


class _Shapes(NamedTuple):
    """Parameters of one rank: the mean layer without experts, embedding, LM head, and both of these."""

    layer: float
    experts: float
    """Those of the mean layer."""
    embedding: float
    head: float
    both: float


def _data_terms_of(job: Job, columns: Columns, largest: _Largest, sizes: SliceBytes, stage: Ints) -> _Terms:
    """The works of every layout's replicas; `stage` is the pipeline rank on most nodes."""
    holds = columns.expert * columns.expert_tensor
    full, rest = np.divmod(largest.chunk, largest.bucket)
    overlaps = int(job.runtime.overlap_grad_reduce)
    keys = (
        *(columns.tensor, columns.replicas, columns.shards),
        *(stage, columns.zero_stage, columns.last_rank, holds),
        *(largest.layers, largest.first, largest.last),
        overlaps * np.where(full > 0, largest.bucket, 0),
        overlaps * rest,
        int(job.runtime.overlap_param_gather) * np.minimum(largest.bucket, largest.chunk),
    )
    base = Job(job.model, job.recipe, 1)
    share = Counter(kind_numbers(job.model)) or Counter([0])
    weight = np.array([share[kind] for kind in range(len(share))]) / share.total()

    def of(name: str) -> Floats:
        """Parameters of every layout's ranks, in the mean over layers."""
        column: Floats = getattr(sizes, name)
        return column @ (weight if name in OF_LAYERS else np.ones(1))

    first, of_row = distinct_rows((columns.tensor, holds))
    columns_of_shapes = [of(name)[first].tolist() for name in _Shapes._fields]
    shapes = [_Shapes(*shape) for shape in zip(*columns_of_shapes, strict=True)]

    width = columns.tensor * columns.replicas
    peers = columns.tensor * np.where(columns.zero_stage > 0, columns.shards, 1)
    if job.model.experts is not None:
        peers = np.lcm(peers, np.where(columns.zero_stage > 0, width, holds))
    terms = _Terms(_DataPrices._fields, len(columns))
    terms.add((of_row, *keys), lambda shape, *key: _data_terms(base, shapes[shape], *key))
    # A skewed schedule checks the norm after the update.
    waits = ~columns.of_schedules("skewed")
    of_norms = (stage * width, columns.tensor, peers, width, columns.pipeline)
    terms.add(of_norms, lambda *key: {"norm": list(norm_works(*key))}, waits)
    return terms


@lru_cache(maxsize=4096)
def _data_terms(
    job: Job,
    shapes: _Shapes,
    tensor: int,
    data: int,
    shards: int,
    stage: int,
    zero: int,
    last_rank: int,
    holds: int,
    layers: int,
    first: int,
    last: int,
    bucket: int,
    rest: int,
    ahead: int,
) -> Named:
    """The works of the replicas of one rank.

    `data` ranks have the same parameters, and one of `holds` after it the same experts. Reductions overlap in
    buckets of `bucket` layers, the last of `rest`; 0: none do. Buckets of `ahead` layers may be gathered next
    to forward passes.
    """
    begins = shapes.both if last and first else shapes.embedding
    ends = begins if first else shapes.head if last else 0.0
    layer = Held(shapes.layer, shapes.experts)
    whole = layer * layers + Held(ends)
    ranks = RankGroup(stage * tensor * data, tensor, data)
    replicas = Replicas(job.recipe, ranks, "", whole.rest, zero, shards, model=job.model)
    replicas = replicas.with_experts(holds, whole.apart)

    def reduce(held: Held, wanted: bool = True) -> list[Work]:
        works = replicas.reduce_works(held) if wanted else []
        sums = across(held.rest)
        return [work for work in works if work not in sums]

    def across(num_parameters: float) -> list[Work]:
        return replicas.across_works(num_parameters) if zero == SHARDED else []

    def gather(held: Held, wanted: bool) -> list[Work]:
        return replicas.gather_works(held) if wanted else []

    tie: list[Work] = []
    if last_rank and shares_words(job.model):
        tie = [_stage(job, (tensor, False, 1)).tied_embedding(replicas, last_rank)]
    scatters = zero >= GRADIENTS_SHARDED
    gathers_ahead = replicas.gathers_ahead
    return {
        "reduce": reduce(whole),
        "gather": gather(whole, 0 < zero < SHARDED and not gathers_ahead),
        "update": [replicas.optimizer_work()],
        "reduce_ends": reduce(Held(ends), job.runtime.overlap_grad_reduce),
        "reduce_bucket": reduce(layer * bucket),
        "reduce_rest": reduce(layer * rest),
        "reduce_layer": reduce(layer, scatters),
        "reduce_embedding": reduce(Held(shapes.embedding), scatters),
        "reduce_head": reduce(Held(shapes.head), scatters),
        "reduce_both": reduce(Held(shapes.both), scatters),
        "gather_layer": gather(layer, zero == SHARDED),
        "gather_both": gather(Held(shapes.both), zero == SHARDED),
        "across_layer": across(shapes.layer),
        "across_both": across(shapes.both),
        "ahead_bucket": gather(layer * ahead, gathers_ahead),
        "ahead_ends": gather(Held(begins), gathers_ahead),
        "tie": tie,
    }
