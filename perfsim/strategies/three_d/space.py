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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np

from perfsim.base.arrays import Bools, Ints
from perfsim.base.sizes import MOST_LAYER_PASSES
from perfsim.costs.memory import state_bytes
from perfsim.network import FatTree
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import Recompute, layer_kinds
from perfsim.specs.recipe import Job
from perfsim.strategies.schedules import SCHEDULES, Trait, schedule_called
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, SHARDED
from perfsim.strategies.three_d.division import Division, Divisions, RankColumns, divided, kind_numbers
from perfsim.strategies.three_d.layers import EXCHANGES
from perfsim.strategies.three_d.legal import context_refusals, expert_refusals, tensor_refusals
from perfsim.work.counts import parameters

# Layouts in columns: row i of every array is one layout.

Table = TypeVar("Table", bound=tuple[Any, ...])
_BLOCK = 4096
"""Layouts that are evaluated at once."""
_LOOKUP = 8
"""Up to how many codes per row are numbered with a table of all codes instead of by sorting."""
MODES: tuple[Recompute, ...] = get_args(Recompute)


@dataclass(frozen=True)
class Columns:
    """Layouts of one job; every field but `divisions` is an array of shape (rows,).

    In a `Grid` it has the shape of a grid, or one that broadcasts to it.
    """

    tensor: Ints
    data: Ints
    micro_batch: Ints
    zero: Ints
    sequence_parallel: Ints
    recompute: Ints
    """Index into `MODES`."""
    recompute_every: Ints
    division: Ints
    """Row of `divisions`, which holds schedule, pipeline and virtual pipeline."""
    context: Ints
    exchange: Ints
    """Index into `EXCHANGES`."""
    shards: Ints
    """Ranks over which ZeRO divides a state."""
    expert: Ints
    expert_tensor: Ints
    divisions: Divisions

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def replicas(self) -> Ints:
        """Ranks with the same parameters: replicas and their context ranks."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> Ints:
        """Ranks with the same experts."""
        return self.tensor * self.replicas // (self.expert * self.expert_tensor)

    @property
    def slice_keys(self) -> tuple[Ints, ...]:
        """What determines the share of a layer that a rank computes for a micro-batch."""
        in_context = self.tensor, self.sequence_parallel, self.micro_batch, self.context, self.exchange
        return *in_context, self.expert, self.expert_tensor

    @property
    def state_keys(self) -> tuple[Ints, ...]:
        """What determines the model states of a rank, and their communication over replicas."""
        on_ranks = self.tensor, self.data, self.division, self.context, self.expert, self.expert_tensor
        return *on_ranks, self.zero, self.shards

    @property
    def pipeline(self) -> Ints:
        return self.divisions.pipeline[self.division]

    @property
    def virtual(self) -> Ints:
        return self.divisions.virtual[self.division]

    @property
    def last_rank(self) -> Ints:
        return self.divisions.last_rank[self.division]

    @cached_property
    def by_schedule(self) -> dict[str, Ints | slice]:
        """The rows of every schedule."""
        schedules = self.divisions.schedule[self.division]
        names = list(SCHEDULES)
        counts = np.bincount(schedules.ravel(), minlength=len(names))
        if counts.max(initial=0) == schedules.size:
            return {names[index]: slice(None) for index in np.flatnonzero(counts)}
        return {names[index]: np.flatnonzero(schedules == index) for index in np.flatnonzero(counts)}

    def alike(self) -> Ints:
        """Rows in the order of ZeRO stage, schedule and number of ranks, so that few blocks have several.

        A block has the terms of ZeRO 2 and 3, and as many ranks, as any of its rows.
        """
        size, schedule = (table[self.division] for table in (self.divisions.sizes, self.divisions.schedule))
        code = (self.zero * len(SCHEDULES) + schedule) * (int(size.max(initial=0)) + 1) + size
        return np.argsort(code.astype(np.int16), kind="stable")

    def of_schedules(self, trait: Trait) -> Bools:
        """Whether every layout's schedule has a trait."""
        return self.divisions.of_schedules(trait)[self.division]

    def microbatches(self, job: Job) -> Ints:
        """Micro-batches of one replica."""
        return job.global_batch_size // (self.data * self.micro_batch)

    def rows(self, chosen: Ints | Bools | slice) -> Columns:
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return Columns(**columns, divisions=self.divisions)

    def ranks(self) -> RankColumns:
        """Representative ranks of every layout, shape (rows, ranks)."""
        width = self.divisions.sizes[self.division].max(initial=1)
        return self.divisions.ranks.of(self.division, int(width))

    def layout(self, row: int) -> ParallelLayout:
        division = self.divisions[int(self.division[row])]
        numbers: dict[str, Any] = {name: int(getattr(self, column)[row]) for column, name in _NUMBERS.items()}
        return ParallelLayout(
            **numbers,
            pipeline=division.pipeline,
            virtual_pipeline=division.virtual,
            schedule=division.schedule,
            sequence_parallel=bool(self.sequence_parallel[row]),
            recompute=MODES[int(self.recompute[row])],
            layers_per_stage=None if division.even else division.layers,
            context_exchange=EXCHANGES[int(self.exchange[row])],
            shard_group=None if self.shards[row] == self.replicas[row] else int(self.shards[row]),
        )


_NUMBERS = {
    "tensor": "tensor",
    "data": "data",
    "micro_batch": "micro_batch_size",
    "zero": "zero_stage",
    "recompute_every": "recompute_every",
    "context": "context",
    "expert": "expert",
    "expert_tensor": "expert_tensor",
}
"""The setting of a layout in each column that holds the setting itself."""
_COLUMNS = tuple(field.name for field in fields(Columns) if field.name != "divisions")


def distinct_rows(keys: Sequence[Ints]) -> tuple[Ints, Ints]:
    """The first row of every distinct combination of columns from 0 on, and the combination of every row."""
    code = np.zeros(len(keys[0]), dtype=np.int64)
    size = 1
    for column in keys:
        values = int(column.max(initial=0)) + 1
        if size * values > _LOOKUP * len(code):
            first, code = _numbered(code, size)
            size = len(first)
        code = code * values + column
        size *= values
    return _numbered(code, size)


def _numbered(code: Ints, size: int) -> tuple[Ints, Ints]:
    """The first row of every distinct code below `size`, in their order, and which of these every row has."""
    if size > _LOOKUP * len(code):
        _, first, of_row = np.unique(code, return_index=True, return_inverse=True)
        return first, of_row
    first = np.full(size, -1)
    first[code[::-1]] = np.arange(len(code))[::-1]  # of equal codes the first row, which is set last
    occurs = np.flatnonzero(first >= 0)
    number = np.empty_like(first)
    number[occurs] = np.arange(len(occurs))
    return first[occurs], number[code]


def _fields_of(columns: Columns) -> list[Ints]:
    """The numbers that describe layouts, in the order of the fields."""
    return [getattr(columns, name) for name in _COLUMNS]


def blocks_of(rows: int) -> Iterator[slice]:
    """Blocks of rows that are evaluated at once, so that their arrays stay in the cache."""
    return (slice(start, start + _BLOCK) for start in range(0, rows, _BLOCK))


def taken(table: Table, rows: Ints) -> Table:
    """The rows of a named tuple of columns."""
    return type(table)(*(column[rows] for column in table))


def division_of(job: Job, layout: ParallelLayout) -> Division:
    """How a layout divides the layers of a job."""
    given = layout.layers_per_stage
    kinds = kind_numbers(job.model)
    if given is None:
        num_layers = job.model.num_layers
        return divided(layout.schedule, layout.pipeline, layout.virtual_pipeline, num_layers, kinds=kinds)
    return Division(layout.schedule, layout.pipeline, layout.virtual_pipeline, given, kinds)


def columns_of(job: Job, layout: ParallelLayout) -> Columns:
    """One layout as a single row. Raises LayoutError for an unknown schedule."""
    schedule_called(layout.schedule)
    values = {column: getattr(layout, name) for column, name in _NUMBERS.items()} | {
        "sequence_parallel": layout.sequence_parallel,
        "recompute": MODES.index(layout.recompute),
        "division": 0,
        "exchange": EXCHANGES.index(layout.context_exchange),
        "shards": layout.shards,
    }
    columns = {column: np.array([value], dtype=np.int64) for column, value in values.items()}
    return Columns(**columns, divisions=Divisions((division_of(job, layout),)))


# Layouts in grids: combinations of experts, divisions, micro-batches, ZeRO stages and recompute modes.

EXPERTS, DIVISIONS, SIZES, STAGES, SPLITS, MODE_AXIS = range(6)
"""The axes of a grid: expert degrees, divisions of layers, micro-batch sizes, ZeRO stages, sequence
parallelism, and recompute."""


def _along(axis: int, values: Sequence[int] | Ints) -> Ints:
    """Values along one axis of a grid."""
    return np.reshape(np.asarray(values, dtype=np.int64), [-1 if axis == other else 1 for other in range(6)])


@dataclass(frozen=True)
class Grid:
    """Layouts that have tensor, context, pipeline and data degree in common."""

    columns: Columns
    """Every array broadcasts to the shape of the grid."""
    legal: Bools
    """Which divisions go with which sizes, broadcasts as well."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Values along each axis."""
        return np.broadcast_shapes(*(column.shape for column in _fields_of(self.columns)))

    def all_legal(self) -> Bools:
        return np.broadcast_to(self.legal, self.shape)

    def write(self, chosen: Bools, table: Ints) -> None:
        """Write the chosen layouts to an array of shape (fields, rows), in the order of `Columns`."""
        at = np.nonzero(chosen)
        for row, column in zip(table, _fields_of(self.columns), strict=True):
            axis = int(np.argmax(column.shape))
            row[:] = column.flat[0] if column.size == 1 else column.ravel().take(at[axis])

    def by_schedule(self) -> Iterator[tuple[slice, Ints, Columns]]:
        """The divisions of every schedule, the sizes that are legal with one of them, and these layouts."""
        schedules = self.columns.divisions.schedule[self.columns.division].ravel()
        ends = [*(np.flatnonzero(np.diff(schedules)) + 1).tolist(), len(schedules)]
        for start, end in zip([0, *ends], ends, strict=False):
            legal = self.all_legal()[:, start:end].any(axis=(EXPERTS, DIVISIONS, STAGES, SPLITS, MODE_AXIS))
            sizes = np.flatnonzero(legal)
            if len(sizes):
                division = self.columns.division[:, start:end]
                micro_batch = self.columns.micro_batch[:, :, sizes]
                yield (
                    slice(start, end),
                    sizes,
                    replace(self.columns, division=division, micro_batch=micro_batch),
                )

    def without_passes(self, table: Table) -> Table:
        """The first along the axes of sequence parallelism and recompute, of arrays with one axis more."""
        return type(table)(*(column[..., :1, :1, :] for column in table))


@dataclass(frozen=True)
class Space:
    """The layouts of several grids, one grid after the other."""

    grids: Sequence[Grid]
    divisions: Divisions

    def __len__(self) -> int:
        return sum(int(grid.all_legal().sum()) for grid in self.grids)

    def rows(self, chosen: Bools | None = None) -> Columns:
        """The chosen layouts, given one flag for each; None: all."""
        flags = [grid.all_legal() for grid in self.grids]
        counts = [int(legal.sum()) for legal in flags]
        if chosen is not None:
            parts = np.split(chosen, np.cumsum(counts))[:-1]
            flags = [legal.copy() for legal in flags]
            for legal, part in zip(flags, parts, strict=True):
                legal[legal] = part
            counts = [int(part.sum()) for part in parts]
        ends = np.cumsum([0, *counts])
        table = np.empty((len(_COLUMNS), ends[-1]), dtype=np.int64)
        for grid, legal, start, end in zip(self.grids, flags, ends[:-1], ends[1:], strict=True):
            grid.write(legal, table[:, start:end])
        return Columns(**dict(zip(_COLUMNS, table, strict=True)), divisions=self.divisions)

    def layout(self, row: int) -> ParallelLayout:
        for grid in self.grids:
            places = np.flatnonzero(grid.all_legal())
            if row < len(places):
                chosen = np.zeros(len(places), dtype=np.bool_)
                chosen[row] = True
                return Space([grid], self.divisions).rows(chosen).layout(0)
            row -= len(places)
        raise IndexError(f"a space of {len(self)} layouts has no layout {row + len(self)}")


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
    shape = _Shape(job.model.num_layers, head_layers(job), kind_numbers(job.model))

    def is_legal(data: int, pipeline: int) -> bool:
        shared = (data == 1 or "data" in free_degrees) and job.global_batch_size % data == 0
        return shared and not (zero_stage == SHARDED and pipeline > 1) and bool(_divisions(pipeline, shape))

    degrees = [
        (tensor, context, pipeline)
        for tensor in _tensor_degrees(job, topology, free_degrees)
        for context in (_context_degrees(job, topology, tensor) if shares else (_Context(1, 0),))
        for pipeline in _divisors(topology.num_devices // tensor // context.ranks, "pipeline" in free_degrees)
        if is_legal(topology.num_devices // tensor // context.ranks // pipeline, pipeline)
    ]
    pipelines = tuple(dict.fromkeys(pipeline for *_, pipeline in degrees))
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
        if inside and not any(tensor_refusals(job, ParallelLayout(tensor=tensor))):
            yield tensor


def head_layers(job: Job) -> int:
    """Layers that take as long as the LM head, by their matrix products; the ratio rounded."""
    model = job.model
    positions = job.recipe.lm_head_positions or job.seq_length
    seen = job.seq_length / 2 if model.causal and job.runtime.attention == "flash" else job.seq_length
    kind = layer_kinds(model)[model.num_layers - 1]
    layer = parameters(model).matrices_of(kind, active=True) + seen * (
        model.query_width + model.attention_width
    )
    return round(model.vocab_size * model.hidden_size * positions / job.seq_length / layer)


class _Context(NamedTuple):
    """A context degree, and the index of its exchange."""

    ranks: int
    exchange: int


def _context_degrees(job: Job, topology: FatTree, tensor: int) -> Iterator[_Context]:
    """No context group, and those that keep the rules, inside a node or over whole nodes."""
    node = topology.devices_per_node
    for ranks in _divisors(topology.num_devices // tensor):
        width = tensor * ranks
        placed = node % width == 0 or width % node == 0
        if ranks > 1 and (not placed or job.seq_length // ranks < LEAST_POSITIONS):
            continue
        for number, exchange in enumerate(EXCHANGES if ranks > 1 else EXCHANGES[:1]):
            layout = ParallelLayout(tensor=tensor, context=ranks, context_exchange=exchange)
            if not any(context_refusals(job, layout)):
                yield _Context(ranks, number)


def _expert_degrees(
    job: Job, topology: FatTree, tensor: int, pipeline: int, *, free: bool
) -> Iterator[tuple[int, int]]:
    """Expert and expert-tensor degrees that keep the rules, inside a node or over whole nodes."""
    if job.model.experts is None or not free:
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
        for ranks in _divisors(most):
            together = ranks * shared
            placed = node % together == 0 or (together % node == 0 and (shared == 1 or ranks == most))
            legal = replace(layout, expert=ranks, expert_tensor=shared)
            held_bytes = experts_bytes / (pipeline * together)
            if not placed or (ranks < most and held_bytes > topology.system.device.memory.capacity):
                continue
            if not any(expert_refusals(job, legal)):
                yield ranks, shared


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
        if schedule.has("counts_head") and head > 1:
            counted = (
                divided(name, pipeline, count, num_layers, head, kinds) for count in chunks if count <= most
            )
            divisions += [division for division in counted if min(division.layers) >= 0]
    return tuple(divisions)


def _grid(
    job: Job,
    topology: FatTree,
    degrees: tuple[int, _Context, int],
    experts: list[tuple[int, int]],
    numbers: Ints,
    divisions: Divisions,
    zero_stage: int | None,
) -> Grid:
    """The layouts of some degrees of tensor, context and pipeline; `numbers` are those of `divisions`."""
    tensor, context, pipeline = degrees
    data = topology.num_devices // tensor // context.ranks // pipeline
    share = job.global_batch_size // data
    passes = job.model.num_layers * context.ranks
    sizes = [size for size in _divisors(share) if share // size * passes <= MOST_LAYER_PASSES]
    split = ParallelLayout(
        tensor=tensor,
        context=context.ranks,
        context_exchange=EXCHANGES[context.exchange],
        sequence_parallel=True,
    )
    even = job.seq_length % tensor == 0 and not any(context_refusals(job, split))
    splits = [0, 1] if tensor > 1 and even else [0]
    splits = splits[-1:] if job.model.experts is not None else splits
    replicas = data * context.ranks
    inside = topology.devices_per_node // tensor
    zeros = [0, 1, GRADIENTS_SHARDED, SHARDED] if replicas > 1 else [0]
    zeros = [stage for stage in zeros if stage < SHARDED or pipeline == 1]  # 3 gathers layers on every rank
    sharded = [(stage, replicas) for stage in (zeros if zero_stage is None else [zero_stage])]
    if sharded[-1][0] == SHARDED and 1 < inside < replicas and replicas % inside == 0:
        sharded.append((SHARDED, inside))
    zero, shards = zip(*sharded, strict=True)
    modes, every = zip(*_recompute_modes(job, pipeline), strict=True)
    expert, expert_tensor = zip(*experts, strict=True) if experts else ((), ())
    columns = Columns(
        tensor=_along(EXPERTS, [tensor]),
        data=_along(EXPERTS, [data]),
        micro_batch=_along(SIZES, sizes),
        zero=_along(STAGES, zero),
        sequence_parallel=_along(SPLITS, splits),
        recompute=_along(MODE_AXIS, modes),
        recompute_every=_along(MODE_AXIS, every),
        division=_along(DIVISIONS, numbers),
        context=_along(EXPERTS, [context.ranks]),
        exchange=_along(EXPERTS, [context.exchange]),
        shards=_along(STAGES, shards),
        expert=_along(EXPERTS, expert),
        expert_tensor=_along(EXPERTS, expert_tensor),
        divisions=divisions,
    )
    microbatches = share // columns.micro_batch
    legal = ~columns.of_schedules("in_groups") | (microbatches % pipeline == 0)
    legal &= ~columns.of_schedules("fills_only") | (microbatches >= pipeline)
    return Grid(columns, legal)


def _recompute_modes(job: Job, pipeline: int) -> list[tuple[int, int]]:
    """Recompute modes and intervals; fused attention has no scores to recompute selectively."""
    full = MODES.index("full")
    if job.recipe.recompute != "auto":
        return [(MODES.index(job.recipe.recompute), 1)]
    modes = [(MODES.index("none"), 1)]
    if job.runtime.attention == "standard":
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
