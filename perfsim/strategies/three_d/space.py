"""The space of layouts: every legal layout of a job on all devices.

- Tensor groups are inside a node or span whole nodes; they divide heads, query groups and MLP width. In
  domains of several servers, such as racks of 72, some groups of any kind may also lie in two domains.
- Context groups are inside a node or span whole nodes, with at least `LEAST_POSITIONS` of a sequence on a
  rank, and twice as many where a step has a sequence for every device and some layout fits.
- Pipelines have at most as many virtual stages as the model has layers, and one each for embedding and LM
  head. Layers divide as evenly as they can; where the LM head is worth two or more, by its FLOPs or by their
  time in fewer bits, the last stage also has so many fewer.
- Experts are divided over ranks of a stage that divide their number, inside a node or over whole nodes; each
  is on one rank, or shared by the tensor ranks.
- Every micro-batch size that divides a replica's share of the batch, every schedule and number of chunks,
  ZeRO stages 0 to 3 (the last also in groups of a node's ranks), sequence parallelism on and off, and every
  recompute mode. `v-half` and `v-min` have a closed form for as many micro-batches as ranks, or more.
- Of all these what the tool of the job's runtime runs (`perfsim.specs.trainers`), where it names one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ids, Ints
from perfsim.base.limits import present_limits
from perfsim.base.sizes import MOST_LAYER_PASSES
from perfsim.costs.memory import state_bytes
from perfsim.network import FatTree
from perfsim.specs.layout import EXCHANGES, OF_LATENTS, OF_MODULES, OFFLOADS, ParallelLayout, Place, Recompute
from perfsim.specs.model import layer_kinds
from perfsim.specs.precisions import PRECISIONS
from perfsim.specs.recipe import Job
from perfsim.specs.trainers import TRAINERS, Limits
from perfsim.strategies.schedules import JOINED, SCHEDULES, Trait, schedule_called
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, SHARDED, ZERO_STAGES
from perfsim.strategies.three_d.division import ENDS, Division, Divisions, RankColumns, divided, kind_numbers
from perfsim.strategies.three_d.legal import DEGREE_RULES
from perfsim.work.counts import parameters

# Layouts in columns: row i of every array is one layout.

Table = TypeVar("Table", bound=tuple[Any, ...])
_BLOCK = 8192
"""Layouts that are evaluated at once."""
_LARGEST = 2**62
"""Codes of combinations of columns are below."""
MODES: tuple[Recompute, ...] = get_args(Recompute)
PLACES: tuple[Place, ...] = get_args(Place)


@dataclass(frozen=True)
class Columns:
    """Layouts of one job; every field but `divisions` is an array of shape (rows,)."""

    tensor: Ints
    sequence_parallel: Ints
    micro_batch_size: Ints
    context: Ints
    context_exchange: Ints
    """Index into `EXCHANGES`."""
    expert: Ints
    expert_tensor: Ints
    data: Ints
    zero_stage: Ints
    recompute: Ints
    """Index into `MODES`."""
    recompute_every: Ints
    division: Ints
    """Row of `divisions`, which holds schedule, pipeline and virtual pipeline."""
    shards: Ints
    """Ranks over which ZeRO divides a state."""
    offload_optimizer: Ints
    """Index into `PLACES`, as all that layouts offload."""
    offload_param: Ints
    offload_activations: Ints
    divisions: Divisions

    @classmethod
    def of(cls, job: Job, layout: ParallelLayout) -> Columns:
        """One layout as a single row. Raises LayoutError for an unknown schedule."""
        schedule_called(layout.schedule)
        columns = {"division": np.zeros(1, dtype=np.int64)}
        for column in _COLUMNS:
            if column not in columns:
                value = getattr(layout, column)
                number = _CHOICES[column].index(value) if column in _CHOICES else value
                columns[column] = np.array([number], dtype=np.int64)
        return cls(**columns, divisions=Divisions((Division.of(job, layout),)))

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def replicas(self) -> Ints:
        """Ranks with the same parameters: replicas and their context ranks."""
        return self.data * self.context

    @property
    def slice_keys(self) -> tuple[Ints, ...]:
        """What determines the share of a layer that a rank computes for a micro-batch."""
        return tuple(getattr(self, name) for name in _OF_SLICE)

    @property
    def state_keys(self) -> tuple[Ints, ...]:
        """What determines the model states of a rank, and their communication over replicas."""
        on_ranks = self.tensor, self.data, self.division, self.context, self.expert, self.expert_tensor
        return *on_ranks, self.zero_stage, self.shards

    @property
    def unsharded_keys(self) -> tuple[Ints, ...]:
        """All but how ZeRO shards states, and where these are."""
        sharding = ("zero_stage", "shards", *OFFLOADS)
        return tuple(getattr(self, name) for name in _COLUMNS if name not in sharding)

    @property
    def offloads(self) -> tuple[Ints, ...]:
        """Where each part is that layouts offload."""
        return tuple(getattr(self, name) for name in OFFLOADS)

    def kinds(self) -> tuple[Ints, Ints]:
        """As `distinct_rows`, kinds of layouts: degrees, replicas, ZeRO, recompute, schedule and offload."""
        ordered = (self.pipeline > 1) | self.of_schedules("joins")
        schedule = np.where(ordered, 1 + self.divisions.schedule[self.division], 0)
        several, some = (np.asarray(number > 1, np.int64) for number in (self.replicas, self.recompute_every))
        held = self.tensor, self.context, self.expert, several, self.zero_stage
        return distinct_rows((*held, self.recompute, some, schedule, *self.offloads))

    @property
    def pipeline(self) -> Ints:
        return self.divisions.pipeline[self.division]

    @property
    def virtual(self) -> Ints:
        return self.divisions.virtual[self.division]

    @property
    def bubble(self) -> Floats:
        """The bubble of every layout's schedule, as a share: see `Schedule`."""
        bubbles = np.array([schedule.bubble for schedule in SCHEDULES.values()])
        return np.asarray(bubbles[self.divisions.schedule[self.division]])

    @property
    def last_rank(self) -> Ints:
        return self.divisions.last_rank[self.division]

    def blocks(self, *, by_zero: bool = True) -> Iterator[tuple[Ints, Columns]]:
        """Rows that are evaluated at once, so that their arrays stay in the cache, and these layouts.

        They are in the order of ZeRO stage (`by_zero`), schedule and number of ranks, so that few blocks have
        several: a block has the terms of ZeRO 2 and 3, and as many ranks, as any of its rows.
        """
        size, schedule = (table[self.division] for table in (self.divisions.sizes, self.divisions.schedule))
        code = (by_zero * self.zero_stage * len(SCHEDULES) + schedule) * (int(size.max(initial=0)) + 1) + size
        order = np.argsort(code.astype(np.int16), kind="stable")
        for start in range(0, len(self), _BLOCK):
            present_limits().in_time(partial("{:,} of {:,} layouts were tried".format, start, len(self)))
            rows = order[start : start + _BLOCK]
            yield rows, self.rows(rows)

    def of_schedules(self, trait: Trait) -> Bools:
        """Whether every layout's schedule has a trait."""
        return self.divisions.of_schedules(trait)[self.division]

    def microbatches(self, job: Job) -> Ints:
        """Micro-batches of one replica."""
        return job.global_batch_size // (self.data * self.micro_batch_size)

    def rows(self, chosen: Ints | Bools | slice) -> Columns:
        numbered = isinstance(chosen, np.ndarray) and chosen.dtype != np.bool_
        rows = chosen if numbered else np.arange(len(self))[chosen]
        columns = {name: getattr(self, name).take(rows) for name in _COLUMNS}
        return Columns(**columns, divisions=self.divisions)

    def ranks(self) -> RankColumns:
        """Representative ranks of every layout, shape (rows, ranks)."""
        width = self.divisions.sizes[self.division].max(initial=1)
        return self.divisions.ranks.rows(self.division, int(width))

    def recomputed(self) -> Bools:
        """Whether every layer is recomputed, shape (rows, layers); see `Division.recomputed`."""
        first, of_row = distinct_rows((self.division, self.recompute_every))
        pairs = zip(self.division[first].tolist(), self.recompute_every[first].tolist(), strict=True)
        of_pairs = np.array([self.divisions[division].recomputed(every) for division, every in pairs])
        return of_pairs[of_row] & (self.recompute[:, None] > 0)

    def recomputed_share(self, ranks: RankColumns) -> Floats:
        """Share of the layers of every rank that is recomputed."""
        first, of_row = distinct_rows((self.division, self.recompute_every))
        keys = (column[first].tolist() for column in (self.division, self.recompute_every, ranks.rank))
        found = [
            self.divisions[division].recomputed_shares(every)[of_ranks]
            for division, every, of_ranks in zip(*keys, strict=True)
        ]
        return np.where(self.recompute[:, None] > 0, np.array(found)[of_row], 0.0)

    def indivisible(self, devices: int, free_degrees: tuple[str, ...]) -> int:
        """Combinations of degrees over all devices without a layout: model, batch or nodes do not divide."""
        combinations = sum(
            "data" in free_degrees or tensor * pipeline == devices
            for tensor in divisors(devices, "tensor" in free_degrees)
            for pipeline in divisors(devices // tensor, "pipeline" in free_degrees)
        )
        first, _ = distinct_rows((self.tensor, self.pipeline))
        return combinations - len(first)

    def layout(self, row: int) -> ParallelLayout:
        division = self.divisions[int(self.division[row])]
        replicas = self.data[row] * self.context[row]
        columns = [name for name in _COLUMNS if name not in ("division", "shards")]
        return ParallelLayout(
            **_settings({name: int(getattr(self, name)[row]) for name in columns}),
            pipeline=division.pipeline,
            virtual_pipeline=division.virtual,
            schedule=division.schedule,
            layers_per_stage=None if division.even else division.layers,
            shard_group=None if self.shards[row] == replicas else int(self.shards[row]),
        )


_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "sequence_parallel": (False, True),
    "recompute": MODES,
    "context_exchange": EXCHANGES,
    **dict.fromkeys(OFFLOADS, PLACES),
}
"""The values whose indices some columns hold."""
_COLUMNS = tuple(field.name for field in fields(Columns) if field.name != "divisions")
_OF_SLICE = _COLUMNS[: _COLUMNS.index("expert_tensor") + 1]


def _settings(columns: Mapping[str, int]) -> dict[str, Any]:
    """The settings of a layout whose columns hold these numbers."""
    return {name: _CHOICES[name][number] if name in _CHOICES else number for name, number in columns.items()}


def layout_of(*numbers: int) -> ParallelLayout:
    """A layout by the first of the columns that determine a rank's share of a layer (`slice_keys`)."""
    return ParallelLayout(**_settings(dict(zip(_OF_SLICE, numbers, strict=False))))


def distinct_rows(keys: Sequence[Ints]) -> tuple[Ints, Ints]:
    """The first row of every distinct combination of columns from 0 on, and the combination of every row."""
    code = np.zeros(len(keys[0]), dtype=np.int64)
    size = 1
    for column in keys:
        values = int(column.max(initial=0)) + 1
        if size * values > _LARGEST:
            _, code = np.unique(code, return_inverse=True)
            size = len(code)
        code = code * values + column
        size *= values
    _, first, of_row = np.unique(code, return_index=True, return_inverse=True)
    return first, of_row


def taken(table: Table, rows: Ints) -> Table:
    """The rows of a named tuple of columns."""
    return type(table)(*(column.take(rows, axis=0) for column in table))


LEAST_POSITIONS = 2_048
"""Of a sequence on a context rank, in the layouts that are tried; with fewer, messages cannot hide."""
RECOMPUTE_EVERY = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Of how many layers one is recomputed, in the layouts that are tried."""
MOST_JOINED = 4
"""Chunks of a rank whose passes are joined, in the layouts that are tried; both ends of each expose rows."""


def layout_space(
    job: Job,
    topology: FatTree,
    free_degrees: tuple[str, ...],
    zero_stage: int | None = None,
    *,
    shortens: bool = False,
) -> Columns:
    """Every legal layout of a job on all devices; `zero_stage` fixes the ZeRO stage.

    If it `shortens` sequences, context ranks may have as few positions as where sequences are few.
    """
    shares = "context" in free_degrees
    few = shortens or job.global_batch_size < topology.num_devices
    positions = LEAST_POSITIONS if few else 2 * LEAST_POSITIONS
    limits = job.runtime.searched
    runs = partial(_runs, limits)
    model = job.model
    heads = tuple(head for head in sorted({head_layers(job, 2.0), head_layers(job)}) if head > 1)
    barred = [name for name in JOINED.values() if not _takes(job, ParallelLayout(schedule=name, expert=2))]
    barred = barred if model.experts else [*JOINED.values()]
    shape = _Shape(model.num_layers, heads, kind_numbers(model), tuple(barred), limits)

    def is_legal(data: int, pipeline: int) -> bool:
        shared = (data == 1 or "data" in free_degrees) and job.global_batch_size % data == 0
        return shared and not (zero_stage == SHARDED and pipeline > 1) and bool(_divisions(pipeline, shape))

    # Tensor degrees that keep the rules, inside a node or over whole nodes.
    tensors = [
        tensor
        for tensor in divisors(topology.num_devices, "tensor" in free_degrees)
        if (_placed(topology, tensor) or free_degrees == ("tensor",))
        and not any(DEGREE_RULES["tensor"](job, ParallelLayout(tensor=tensor)))
        and any(runs(tensor=tensor, sequence_parallel=split) for split in (False, True))
    ]
    degrees = [
        (tensor, context, exchange, pipeline)
        for tensor in tensors
        for context, exchange in (_context_degrees(job, topology, tensor, positions) if shares else ((1, 0),))
        for pipeline in divisors(topology.num_devices // tensor // context, "pipeline" in free_degrees)
        if is_legal(topology.num_devices // tensor // context // pipeline, pipeline)
    ]
    divisions = _table(tuple(dict.fromkeys(pipeline for *_, pipeline in degrees)), shape)
    parts = [np.zeros((len(_COLUMNS), 0), dtype=np.int32)]
    for tensor, context, exchange, pipeline in degrees:
        experts = list(_expert_degrees(job, topology, tensor, pipeline, free="expert" in free_degrees))
        numbers = np.flatnonzero(divisions.pipeline == pipeline)
        of_degrees = (tensor, context, exchange, pipeline)
        parts.append(_combined(job, topology, of_degrees, experts, divisions, numbers, zero_stage))
    return Columns(**dict(zip(_COLUMNS, np.concatenate(parts, axis=1), strict=True)), divisions=divisions)


@lru_cache(maxsize=8192)
def _runs(limits: Limits | None, **settings: Any) -> bool:
    """Whether the tool of a job runs a layout with some settings and no others; true where it names none."""
    return limits is None or limits.runs(ParallelLayout(**settings))


def _takes(job: Job, layout: ParallelLayout) -> bool:
    """Whether the tool of a job has what a layout makes of it; true where it names none."""
    limits = job.runtime.searched
    return limits is None or not any(limits.lacks_of(layout, job))


class _Shape(NamedTuple):
    """What of a job decides how its layers divide."""

    num_layers: int
    heads: tuple[int, ...]
    """Layers that the LM head may count as."""
    kinds: tuple[int, ...]
    barred: tuple[str, ...]
    """Schedules that join passes, which no rows that travel to experts, or the tool, allow."""
    limits: Limits | None


@lru_cache(maxsize=64)
def _table(pipelines: tuple[int, ...], shape: _Shape) -> Divisions:
    return Divisions([division for pipeline in pipelines for division in _divisions(pipeline, shape)])


def _placed(topology: FatTree, width: int) -> bool:
    """Whether groups of `width` consecutive ranks are tried: in a node, over whole ones, or over domains."""
    node = min(topology.devices_per_node, topology.num_devices)
    return topology.system.node.server is not None or node % width == 0 or width % node == 0


def head_layers(job: Job, layer_bytes: float | None = None) -> int:
    """Layers that take as long as the LM head, by their matrix products; the ratio rounded.

    Those of a layer take as long as its numbers are wide (None: the recipe's), all others as in 16 bits.
    """
    width = layer_bytes or PRECISIONS[job.recipe.precision].bytes
    model = job.model
    positions = job.recipe.lm_head_positions or job.seq_length
    seen = job.seq_length / 2 if model.causal and job.runtime.attention == "flash" else job.seq_length
    kind = layer_kinds(model)[model.num_layers - 1]
    products = parameters(model).of(kind, active=True, matrices=True) * min(1.0, width / 2)
    layer = products + seen * (model.query_width + model.attention_width)
    return round(model.vocab_size * model.hidden_size * positions / job.seq_length / layer)


def _context_degrees(job: Job, topology: FatTree, tensor: int, positions: int) -> Iterator[tuple[int, int]]:
    """Context degrees that keep the rules, inside a node or over whole nodes; with the index of exchange."""
    recompute = "none" if job.recipe.recompute == "auto" else job.recipe.recompute
    alone = ParallelLayout(tensor, recompute=recompute, expert_tensor=tensor)
    for ranks in divisors(topology.num_devices // tensor):
        placed = _placed(topology, tensor * ranks)
        if ranks > 1 and (not placed or job.seq_length // ranks < positions):
            continue
        for number, exchange in enumerate(EXCHANGES if ranks > 1 else EXCHANGES[:1]):
            layout = replace(alone, context=ranks, context_exchange=exchange)
            if _takes(job, layout) and not any(DEGREE_RULES["context"](job, layout)):
                yield ranks, number


def _expert_degrees(
    job: Job, topology: FatTree, tensor: int, pipeline: int, *, free: bool
) -> Iterator[tuple[int, int]]:
    """Expert and expert-tensor degrees that keep the rules, inside a node or over whole nodes."""
    has_ranks = any(_runs(job.runtime.searched, expert=2, data=2, zero_stage=stage) for stage in (1, SHARDED))
    if job.model.experts is None or not (free and has_ranks):
        yield 1, 1
        return
    node = topology.devices_per_node
    width = topology.num_devices // pipeline
    layout = ParallelLayout(tensor=tensor, data=width // tensor, sequence_parallel=tensor > 1)
    counts = parameters(job.model)
    states = state_bytes(job.recipe)
    routed = sum(counts.routed_of(kind) for kind in layer_kinds(job.model))
    experts_bytes = routed * (states.parameters + states.gradients)
    for shared in dict.fromkeys((1, tensor)):
        most = math.gcd(job.model.experts.num_experts, width // shared)
        for ranks in divisors(most):
            together = ranks * shared
            within = together <= node or shared == 1 or ranks == most
            placed = _placed(topology, together) and within
            legal = replace(layout, expert=ranks, expert_tensor=shared)
            held_bytes = experts_bytes / (pipeline * together)
            if not placed or (ranks < most and held_bytes > topology.system.device.memory.capacity):
                continue
            if _takes(job, legal) and not any(DEGREE_RULES["expert"](job, legal)):
                yield ranks, shared


@lru_cache(maxsize=1024)
def _divisions(pipeline: int, shape: _Shape) -> tuple[Division, ...]:
    """Every schedule and number of chunks on `pipeline` ranks; layers also with the LM head counted."""
    num_layers, heads, kinds, barred, limits = shape
    runs = partial(_runs, limits)
    divisions = []
    if pipeline == 1:
        divisions.append(divided("1f1b", 1, 1, num_layers, kinds=kinds))
    for name, schedule in SCHEDULES.items():
        joins = schedule.has("joins")
        if name in barred or (pipeline == 1 and not (joins and schedule.chunks == 1)):
            continue
        if not runs(pipeline=pipeline, schedule=name):
            continue
        most = (num_layers + ENDS) // pipeline
        several = range(2, (min(most, MOST_JOINED) if joins else most) + 1)
        chunks = several if schedule.chunks is None else (schedule.chunks,)
        for counted in (0, *heads) if schedule.has("counts_head") else (0,):
            listed = (divided(name, pipeline, count, num_layers, counted, kinds) for count in chunks)
            divisions += [
                division
                for division in listed
                if min(division.layers) >= 0
                and division.virtual <= most
                and (division.even or runs(pipeline=pipeline, layers_per_stage=division.layers))
            ]
    return tuple(dict.fromkeys(divisions))


def _combined(
    job: Job,
    topology: FatTree,
    degrees: tuple[int, int, int, int],
    experts: list[tuple[int, int]],
    divisions: Divisions,
    numbers: Ints,
    zero_stage: int | None,
) -> Ids:
    """The layouts of some degrees of tensor, context, exchange and pipeline, shape (columns, rows).

    They combine expert degrees, `numbers` of `divisions`, micro-batch sizes, ZeRO stages with shards,
    sequence parallelism, and recompute modes with intervals.
    """
    tensor, context, exchange, pipeline = degrees
    limits = job.runtime.searched
    runs = partial(_runs, limits)
    data = topology.num_devices // tensor // context // pipeline
    share = job.global_batch_size // data
    passes = job.model.num_layers * context
    sizes = [size for size in divisors(share) if share // size * passes <= MOST_LAYER_PASSES]
    split = layout_of(tensor, True, 1, context, exchange)
    even = job.seq_length % tensor == 0 and not any(DEGREE_RULES["context"](job, split))
    splits = [0, 1] if tensor > 1 and even else [0]
    splits = [split for split in splits if split == (tensor > 1) or job.model.experts is None]
    replicas = data * context
    inside = topology.devices_per_node // tensor
    zeros = [0, 1, GRADIENTS_SHARDED, SHARDED] if replicas > 1 else [0]
    zeros = [stage for stage in zeros if stage < SHARDED or pipeline == 1]  # 3 gathers layers on every rank
    sharded = [(stage, replicas) for stage in (zeros if zero_stage is None else [zero_stage])]
    if sharded[-1][0] == SHARDED and 1 < inside < replicas and replicas % inside == 0:
        sharded.append((SHARDED, inside))

    def runs_sharded(stage: int, ranks: int, expert: int = 1, shared: int = 1) -> bool:
        group = None if ranks == replicas else ranks
        of_ranks: dict[str, Any] = {"pipeline": pipeline, "schedule": divisions[int(numbers[0])].schedule}
        of_ranks |= {"shard_group": group, "context": context, "tensor": tensor, "zero_stage": stage}
        of_ranks |= {"expert": expert, "expert_tensor": shared, "context_exchange": EXCHANGES[exchange]}
        of_ranks |= {"data": min(data, 2), "sequence_parallel": splits[-1:] == [1]}  # whether it has replicas
        return _takes(job, ParallelLayout(zero_stage=stage)) and runs(**of_ranks)

    splits = [split for split in splits if runs(tensor=tensor, sequence_parallel=bool(split))]
    sharded = [pair for pair in sharded if runs_sharded(*pair)]
    of_divisions = [
        [
            (mode, every)
            for mode, every in _recompute_modes(job, max(own.layers))
            if runs(pipeline=pipeline, schedule=own.schedule, recompute=MODES[mode], recompute_every=every)
        ]
        for own in map(divisions.__getitem__, numbers.tolist())
    ]
    modes = sorted(set(chain(*of_divisions)))
    if not (experts and sharded and splits and modes):
        return np.zeros((len(_COLUMNS), 0), dtype=np.int32)
    microbatches = share // np.array(sizes, dtype=np.int64)
    in_groups, fills_only, joins = (
        divisions.of_schedules(trait)[numbers, None] for trait in ("in_groups", "fills_only", "joins")
    )
    legal = (~in_groups | (microbatches % pipeline == 0)) & (~fills_only | (microbatches >= pipeline))
    counted = () if limits is None else (*TRAINERS[limits.tool].filled, *TRAINERS[limits.tool].even)
    for row, division in enumerate(map(divisions.__getitem__, numbers.tolist())):
        if division.schedule in counted:
            staged = ParallelLayout(1, pipeline, data, division.virtual, schedule=division.schedule)
            legal[row] &= [_takes(job, replace(staged, micro_batch_size=size)) for size in sizes]
    shards_experts = np.array([[runs_sharded(*of, *pair) for of in sharded] for pair in experts])
    has_mode = np.array([[mode in some for mode in modes] for some in of_divisions])
    shape = (len(experts), *legal.shape, len(sharded), len(splits), len(modes))
    # Passes are joined for rows that travel to experts, and under ZeRO 3 a micro-batch is alone.
    travels = np.array([ranks > 1 for ranks, _ in experts])[:, None, None]
    allowed = np.broadcast_to((legal & (~joins | travels))[..., None, None, None], shape)
    allowed = allowed & has_mode[:, None, None, None, :] & shards_experts[:, None, None, :, None, None]
    alone = np.array([stage == SHARDED for stage, _ in sharded])[:, None, None]
    at = np.nonzero(allowed & ~(joins[..., None, None, None] & alone))
    expert, expert_tensor = np.array(experts).T[:, at[0]]
    zero, shards = np.array(sharded).T[:, at[3]]
    recompute, every = np.array(modes).T[:, at[5]]
    columns = {
        "tensor": tensor,
        "data": data,
        "micro_batch_size": np.array(sizes)[at[2]],
        "zero_stage": zero,
        "sequence_parallel": np.array(splits)[at[4]],
        "recompute": recompute,
        "recompute_every": every,
        "division": numbers[at[1]],
        "context": context,
        "context_exchange": exchange,
        "shards": shards,
        "expert": expert,
        "expert_tensor": expert_tensor,
        **dict.fromkeys(OFFLOADS, 0),
    }
    return np.array([np.broadcast_to(columns[name], len(at[0])) for name in _COLUMNS], dtype=np.int32)


def _recompute_modes(job: Job, longest: int) -> list[tuple[int, int]]:
    """Recompute modes and intervals of stages of up to `longest` layers; fused attention keeps no scores."""
    full = MODES.index("full")
    if job.recipe.recompute != "auto":
        return [(MODES.index(job.recipe.recompute), 1)]
    modes = [(MODES.index("none"), 1)]
    if job.runtime.attention == "standard":
        modes.append((MODES.index("selective"), 1))
    # Intervals that recompute different numbers of a stage's layers.
    redone = {-(-longest // every): every for every in reversed(RECOMPUTE_EVERY) if every <= longest}
    return modes + [(full, every) for every in sorted(redone.values())]


def with_offload(job: Job, topology: FatTree, space: Columns) -> Columns:
    """A space, and its layouts with each kind of offload that is tried; none where it is not modelled.

    A device without replicas, which has nothing to shard, also has the stages at which states may leave.
    """
    host = topology.system.node.host
    if host is None or job.model.experts is not None:
        return space
    limits = job.runtime.searched
    if not _takes(job, ParallelLayout(offload_optimizer="cpu")):
        return space
    pairs: list[tuple[Place, Place]] = [("cpu", "none"), ("cpu", "cpu")]
    if host.nvme is not None:
        pairs += [("nvme", "cpu"), ("nvme", "nvme")]
    alone = (space.replicas == 1) & (space.zero_stage == 0)
    parts = [space]
    for optimizer, param in pairs:
        places = {"offload_optimizer": optimizer, "offload_param": param}
        # Rules of `legal`: only ZeRO 3 moves parameters, and a pipeline shards no gradients that move.
        allowed = ZERO_STAGES if param == "none" else (SHARDED,)
        stages = [stage for stage in allowed if _runs(limits, data=2, zero_stage=stage, **places)]
        for stage in stages:
            at_stage = space.zero_stage == stage
            if stage in (stages[0], GRADIENTS_SHARDED) and _runs(limits, zero_stage=stage, **places):
                at_stage |= alone
            columns = space.rows(at_stage & ((space.pipeline == 1) | (stage < GRADIENTS_SHARDED)))
            moved = replace(
                columns,
                zero_stage=np.full_like(columns.zero_stage, stage),
                offload_optimizer=np.full_like(columns.zero_stage, PLACES.index(optimizer)),
                offload_param=np.full_like(columns.zero_stage, PLACES.index(param)),
            )
            parts.append(moved)
    return _joined(parts)


def with_light_recompute(job: Job, space: Columns, short: Bools) -> Columns:
    """A space and, at its end, its layouts without recompute that lack memory with what costs least time.

    These are norms and, of latent attention, up-projections, where the tool runs them by themselves.
    """
    mode: Recompute = "norms" if job.model.latent_attention is None else "latents+norms"
    return _with_recompute(job, space, [mode], short)


def with_module_recompute(job: Job, space: Columns) -> Columns:
    """A space and, for its layouts without recompute or joined passes, one with each mode of modules."""
    unfit = OF_LATENTS if job.model.latent_attention is None else ()
    modes = [mode for mode in OF_MODULES if mode not in unfit]
    return _with_recompute(job, space, modes, ~space.of_schedules("joins"))


def _with_recompute(job: Job, space: Columns, modes: Sequence[Recompute], tried: Bools) -> Columns:
    """A space and, for those of its layouts without recompute that are tried, one with each of the modes."""
    if job.recipe.recompute != "auto":
        return space
    some = space.rows(tried & (space.recompute == MODES.index("none")))
    runs = (MODES.index(mode) for mode in modes if _runs(job.runtime.searched, recompute=mode))
    return _joined([space, *(replace(some, recompute=np.full_like(some.recompute, mode)) for mode in runs)])


def _joined(parts: Sequence[Columns]) -> Columns:
    """Layouts of the same divisions, one after the other."""
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return Columns(**joined, divisions=parts[0].divisions)


def divisors(count: int, free: bool = True) -> list[int]:
    """Divisors in ascending order; only 1 of a degree that is not free."""
    if not free:
        return [1]
    small = [number for number in range(1, math.isqrt(count) + 1) if count % number == 0]
    return sorted({*small, *(count // number for number in small)})
