"""The works that add up to prices, in components: each is written once for all layouts that agree in it.

A rank's share of a layer is decided by seven degrees (`Degrees`), but no work depends on all of them but the
weight gradients of a block with experts: attention does not depend on experts, and what experts compute of
rows depends on the tokens that a rank routes, not on how tensor and context groups divide them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import RankGroup, Work
from perfsim.strategies.three_d.columns import Columns, distinct_rows
from perfsim.strategies.three_d.context import ring_terms
from perfsim.strategies.three_d.expert import (
    ExpertGroup,
    Which,
    expert_weights_work,
    experts_work,
    router_works,
    shared_work,
)
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
from perfsim.workload import Job, LayerKind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Named = Mapping[str, Sequence[Work]]
"""Works by the price that they add to."""


class Terms:
    """Works that add up to prices, one row for each combination of keys."""

    def __init__(self, fields: Sequence[str], rows: int) -> None:
        self.works: list[Work] = []
        self._fields = {name: number for number, name in enumerate(fields)}
        self._shape = len(fields), rows
        self._components: list[tuple[Ints, int, Ints, Ints]] = []

    def add(
        self, keys: Sequence[Ints], terms: Callable[..., Named], where: NDArray[np.bool_] | None = None
    ) -> None:
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
        fields, total, start = len(self._fields), np.zeros(self._shape), 0
        for place, count, of_row, rows in self._components:
            end = start + len(place)
            table = np.bincount(place, values[start:end], minlength=fields * count).reshape(fields, count)
            used = np.flatnonzero(table.any(axis=1))
            total[used[:, None], rows] += table[used].take(of_row, axis=1)
            start = end
        return total


# ------------------------------------------------------------------------------------------- layers
@lru_cache(maxsize=4096)
def attention_passes(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """Attention forward and backward with the sums of the tensor group, and in a ring of context ranks.

    These are of `tensor` to `exchange` of `Degrees`, as in the following functions.
    """
    layer = _layer(job, kind, degrees)
    forward, backward = (layer.attention.works(which) for which in ("forward", "backward"))
    return {
        "forward": (*forward, *_sums(layer, kind, FORWARD)),
        "backward": (*backward, *_sums(layer, kind, BACKWARD)),
        **ring_terms(layer.attention)._asdict(),
    }


@lru_cache(maxsize=4096)
def attention_split(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """Attention where weight gradients are a pass of their own."""
    layer = _layer(job, kind, degrees)
    inputs, weights = (layer.attention.works(which) for which in ("dgrad", "wgrad"))
    return {"inputs": (*inputs, *_sums(layer, kind, BACKWARD)), "weights": weights}


@lru_cache(maxsize=4096)
def attention_redone(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """Attention that full recompute repeats."""
    layer = _layer(job, kind, degrees, "full")
    works = (*layer.attention.works("recompute"), *_sums(layer, kind, FORWARD))
    return {"layer": works, "layer_early": works}


@lru_cache(maxsize=4096)
def core_redone(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """What selective recompute repeats, which is nothing of experts."""
    layer = _layer(job, kind, degrees, "selective")
    core = layer.attention.works("recompute")
    if kind.experts or not layer.mlp.repeats:
        return {"core": core}
    return {"core": (*core, *layer.mlp.works("recompute"), *_sums(layer, kind, FORWARD))}


@lru_cache(maxsize=4096)
def mlp_passes(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """The MLP forward and backward."""
    mlp = _layer(job, kind, degrees).mlp
    return {"forward": mlp.works("forward"), "backward": mlp.works("backward")}


@lru_cache(maxsize=4096)
def mlp_split(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """The MLP where weight gradients are a pass of their own."""
    mlp = _layer(job, kind, degrees).mlp
    return {"inputs": mlp.works("dgrad"), "weights": mlp.works("wgrad")}


@lru_cache(maxsize=4096)
def mlp_redone(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """The MLP that full recompute repeats, whole and up to the last tensor that the backward reads."""
    mlp = _layer(job, kind, degrees, "full").mlp
    stopped = replace(mlp, part=replace(mlp.part, recompute_stops_early=True))
    return {"layer": mlp.works("recompute"), "layer_early": stopped.works("recompute")}


def _layer(job: Job, kind: LayerKind, degrees: Sequence[int], mode: str = "none") -> Layer:
    """A layer of one kind; of one with experts, its attention."""
    return layer_of(job, Degrees(*degrees).layout, 0, replace(kind, experts=False), mode)


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


def routed_keys(columns: Columns) -> tuple[Ints, Ints]:
    """The fewest sequences, and the ranks that share them, with as many tokens on a rank, shape (rows,)."""
    ranks = columns.tensor * columns.context
    common = np.gcd(columns.micro_batch, ranks)
    return columns.micro_batch // common, ranks // common


@lru_cache(maxsize=4096)
def router_terms(job: Job, which: Which, sequences: int, ranks: int) -> Named:
    """The begin and the end of a block with experts, and the wait of the host."""
    group = _experts(job, sequences, ranks)
    begin, end = router_works(group.part, which)
    named: dict[str, Sequence[Work]] = dict.fromkeys(PRICES[which], (begin, end))
    return named | ({"host": group.host_works(begin)} if which == "forward" else {})


@lru_cache(maxsize=4096)
def shared_terms(job: Job, which: Which, *degrees: int) -> Named:
    """Shared experts, by `tensor` to `context` of `Degrees`."""
    work = shared_work(slice_of(job, Degrees(*degrees).layout, EXPERTS), which)
    return {} if work is None else dict.fromkeys((*PRICES[which], *HOSTED.get(which, ())), (work,))


@lru_cache(maxsize=16384)
def routed_terms(job: Job, which: Which, sequences: int, ranks: int, expert: int, shared_by: int) -> Named:
    """Routed experts on the rows that arrive."""
    work = experts_work(_experts(job, sequences, ranks, expert, shared_by).part, which)
    return dict.fromkeys((*PRICES[which], *HOSTED.get(which, ())), (work,))


@lru_cache(maxsize=4096)
def row_terms(job: Job, sequences: int, ranks: int, expert: int, shared_by: int) -> Named:
    """The way of rows to experts and back, in every pass."""
    group = _experts(job, sequences, ranks, expert, shared_by)
    names = (name for table in (PRICES, HOSTED) for names in table.values() for name in names)
    return dict.fromkeys(names, (*group.to_experts(), *group.from_experts()))


@lru_cache(maxsize=16384)
def weights_terms(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """Weight gradients of a block with experts where they are a pass of their own, by all degrees."""
    return {"weights": (expert_weights_work(slice_of(job, Degrees(*degrees).layout, kind)),)}


def _experts(job: Job, sequences: int, ranks: int, expert: int = 1, shared_by: int = 1) -> ExpertGroup:
    """The experts of a layer whose rows are those of `ranks` ranks with so many sequences together."""
    degrees = Degrees(ranks, ranks > 1, sequences, expert=expert, expert_tensor=shared_by)
    return experts_of(job, degrees.layout, group_of(job, degrees.layout, 0, EXPERTS))


# ------------------------------------------------------------------------------------------- ends
@lru_cache(maxsize=4096)
def end_terms(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """Embedding, LM head and what a received tensor needs, by `tensor` to `context` of `Degrees`."""
    stage = _stage(job, kind, degrees)
    group = stage.group
    return {
        "embedding_forward": (embedding_work(stage), *group.all_reduce_works(EMBEDDED)),
        "embedding_backward": (embedding_backward_work(stage),),
        "head_forward": (head_work(stage), *group.all_reduce_works(n_bytes=softmax_sum_bytes(stage))),
        "head_backward": (head_backward_work(stage), *group.all_reduce_works(FROM_HEAD)),
        "receive": group.all_gather_works(),
    }


@lru_cache(maxsize=4096)
def head_split(job: Job, kind: LayerKind, *degrees: int) -> Named:
    """The LM head where weight gradients are a pass of their own."""
    stage = _stage(job, kind, degrees)
    inputs = (head_dgrad_work(stage), *stage.group.all_reduce_works(FROM_HEAD))
    return {"head_inputs": inputs, "head_weights": (head_wgrad_work(stage),)}


@lru_cache(maxsize=4096)
def send_terms(job: Job, kind: LayerKind, node: int, *degrees: int) -> Named:
    """Messages between pipeline ranks; `node` is 0 where all devices are in one."""
    stage = _stage(job, kind, degrees)
    framework = job.recipe.framework
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
