"""Memory, closed form and screening of layouts with offload (`offload`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Floats
from perfsim.costs.gpu import HostCosts
from perfsim.costs.memory import MemoryUse, state_bytes
from perfsim.costs.price import Costs, Shares
from perfsim.network import FatTree
from perfsim.specs.layout import ParallelLayout, Place
from perfsim.specs.recipe import Job
from perfsim.strategies.screening import MEMORY, Screening
from perfsim.strategies.three_d.closed_form import estimate_steps_s
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, IN_FLIGHT, SHARDED
from perfsim.strategies.three_d.division import RankColumns
from perfsim.strategies.three_d.memory import rank_bytes
from perfsim.strategies.three_d.offload import HostWorks
from perfsim.strategies.three_d.space import Columns, blocks_of, columns_of
from perfsim.work import RankGroup, Work

Parts = dict[str, Floats]
MANY = 1e9
"""Parameters of the works from which the seconds of one parameter are taken."""
BUCKETS = "gradient buckets"


class Places(NamedTuple):
    """Where offloaded states are."""

    optimizer: Place = "none"
    param: Place = "none"
    activations: Place = "none"

    @classmethod
    def of(cls, layout: ParallelLayout) -> Places:
        """The places of a layout."""
        return cls(layout.offload_optimizer, layout.offload_param, layout.offload_activations)

    def on(self, layout: ParallelLayout) -> ParallelLayout:
        """The layout with its states there."""
        return replace(layout, offload_optimizer=self.optimizer, offload_param=self.param)


def tried_places(job: Job, topology: FatTree) -> list[Places]:
    """The offload that the planner tries where nothing fits without; none where it is not modelled."""
    host = topology.system.node.host
    if host is None or job.model.experts is not None:
        return []
    drives = [] if host.nvme is None else [Places("nvme", "cpu"), Places("nvme", "nvme")]
    return [Places("cpu"), Places("cpu", "cpu"), *drives]


def offloaded_layouts(job: Job, topology: FatTree, space: Columns) -> Iterator[ParallelLayout]:
    """Every layout of a space with each kind of offload that is tried."""
    for places, rows in _moved_rows(job, topology, space):
        yield from (places.on(rows.layout(row)) for row in range(len(rows)))


def _moved_rows(job: Job, topology: FatTree, space: Columns) -> Iterator[tuple[Places, Columns]]:
    """The layouts that may have each kind of offload.

    A device without replicas, which has nothing to shard, also has the stages at which states may leave it.
    """
    alone = space.rows((space.replicas == 1) & (space.pipeline == 1) & (space.zero == 0))
    for places in tried_places(job, topology):
        yield places, space.rows(_may_move(space, places))
        stage = GRADIENTS_SHARDED if places.param == "none" else SHARDED
        yield places, replace(alone, zero=np.full_like(alone.zero, stage))


def _may_move(space: Columns, places: Places) -> NDArray[np.bool_]:
    """Layouts whose states may be at these places: `legal` has the rules."""
    stays = (space.pipeline == 1) | (space.zero < GRADIENTS_SHARDED)
    return np.asarray(stays & ((space.zero == SHARDED) | (places.param == "none")))


# -------------------------------------------------------------------------------------- memory
class Moved(NamedTuple):
    """Memory of ranks by part: on the device, in the memory of the host, on its drives."""

    device: Parts
    cpu: Parts
    nvme: Parts


def _moved(parts: Mapping[str, Floats], layers: Any, zero: Any, replicas: Any, places: Places) -> Moved:
    """The memory of ranks after offload, from their memory without; arrays of one shape, or numbers.

    Gradients of ZeRO 2 and 3 are in the memory of the host, wherever the optimizer is. Of a single rank two
    layers, and embedding and LM head as one more, may still be on the device. So may the activations of two
    layers: of one that computes, and of one that leaves or comes back.
    """
    device = dict(parts)
    off = {"cpu": Parts(), "nvme": Parts()}
    if places.optimizer != "none":
        off[places.optimizer]["optimizer"] = parts["optimizer"]
        device["optimizer"] = np.zeros_like(parts["optimizer"])
        leaves = np.broadcast_to(zero >= GRADIENTS_SHARDED, parts["optimizer"].shape)
        gradients = "gradients"
        off["cpu"][gradients] = np.where(leaves, parts[gradients], 0.0)
        device[gradients] = np.where(leaves, 0.0, parts[gradients])
        some = np.minimum(1.0, (IN_FLIGHT + 1) / (layers + 1)) * parts[gradients]
        kept = np.where(leaves & (replicas == 1), some, parts.get(BUCKETS, 0.0))
        if kept.any():
            device[BUCKETS] = kept
    if places.param != "none":
        sharded = np.broadcast_to(zero == SHARDED, parts["parameters"].shape)
        off[places.param]["parameters"] = np.where(sharded, parts["parameters"], 0.0)
        device["parameters"] = np.where(sharded, 0.0, parts["parameters"])
    if places.activations != "none":
        off["cpu"]["activations"] = parts["activations"]
        device["activations"] = np.minimum(1.0, IN_FLIGHT / layers) * parts["activations"]
    return Moved(device, off["cpu"], off["nvme"])


def offloaded_memory(
    job: Job, layout: ParallelLayout, topology: FatTree, uses: tuple[MemoryUse, ...]
) -> tuple[MemoryUse, ...]:
    """The memory of a plan's stages, of a host and of its drives, from that of the stages without offload."""
    host = topology.system.node.host
    if host is None or not layout.offloads:
        return uses
    ranks = columns_of(job, layout).divisions[0].ranks()
    stages = {part: np.array([use.parts_bytes[part] for use in uses]) for part in uses[0].parts_bytes}
    states = _moved(stages, ranks.layers[0], layout.zero_stage, layout.replicas, Places.of(layout))
    left = tuple(
        replace(use, parts_bytes={part: float(column[number]) for part, column in states.device.items()})
        for number, use in enumerate(uses)
    )
    devices = HostCosts(topology.system, topology.num_devices).sharing
    tiers = (("host memory", states.cpu, host.memory), ("drives", states.nvme, host.nvme))
    return left + tuple(
        MemoryUse(
            f"{name} of {devices} devices",
            {part: devices * float(column.max()) for part, column in parts.items()},
            tier.capacity,
            on_device=False,
        )
        for name, parts, tier in tiers
        if parts and tier is not None
    )


# ------------------------------------------------------------------------------------ estimate
class _UpdatedOnHost(Costs):
    """Prices of the graph without offload, with nothing for the update of the device."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs

    def duration_s(self, work: Work) -> float:
        """Seconds of one task."""
        return 0.0 if work.op == "optimizer" else self.costs.duration_s(work)

    def durations_s(self, works: Sequence[Work]) -> Floats:
        """Seconds of several classes of work."""
        updates = np.array([work.op == "optimizer" for work in works], dtype=bool)
        return np.where(updates, 0.0, self.costs.durations_s(works))

    def taken(self, work: Work, /) -> Shares:
        """What a communication takes of its devices."""
        return self.costs.taken(work)

    def bound(self, work: Work, /) -> Shares:
        """What limits a compute task."""
        return self.costs.bound(work)

    def send_s(self, ends: RankGroup, n_bytes: float, /) -> float:
        """Seconds of a message."""
        return self.costs.send_s(ends, n_bytes)


@dataclass(frozen=True)
class _Shard:
    """The parameters that the rank with most of them updates, shape (rows,), and its pieces of an update."""

    parameters: Floats
    pieces: Floats

    @classmethod
    def of(cls, job: Job, ranks: RankColumns, optimizer: Floats) -> _Shard:
        """From the bytes of optimizer states on every rank, without offload."""
        fullest = optimizer.argmax(axis=1)[:, None]

        def there(column: Any) -> Floats:
            return np.asarray(np.take_along_axis(column.astype(float), fullest, axis=1)[:, 0])

        ends = np.maximum(there(ranks.first), there(ranks.last))
        return cls(there(optimizer) / state_bytes(job.recipe).optimizer, there(ranks.layers) + ends)


def estimate_offloaded_s(
    job: Job, columns: Columns, places: Places, topology: FatTree, costs: Costs
) -> Floats:
    """Step time of every layout with its states at these places, shape (rows,).

        step = passes + update on the host
        forward = max(compute, copies of parameters)
        backward = max(compute, copies of parameters, copies of gradients but the two beside the next forward)
        update of n pieces = s + u + l + (n - 1) max(s, u, l)

    s, u and l are the seconds to copy the gradients of a piece, to update it and to copy its parameters.
    """
    priced: Costs = _UpdatedOnHost(costs) if places.optimizer != "none" else costs
    base = estimate_steps_s(job, columns, topology, priced)
    ranks = columns.ranks()
    parts = rank_bytes(job, columns, ranks, topology.system)
    shard = _Shard.of(job, ranks, parts["optimizer"])
    works = HostWorks(job.recipe, places.optimizer, places.param)
    many = [works.store(MANY), works.update(MANY), works.load(MANY)]
    store, update, load = (float(seconds) / MANY for seconds in costs.durations_s(many))
    leaves = (columns.zero >= GRADIENTS_SHARDED) & (places.optimizer != "none")
    loads = (columns.zero == SHARDED) & (places.param != "none")
    piece = shard.parameters / shard.pieces
    stages = [
        np.where(leaves, 0.0, store * piece),
        update * piece,
        np.where(loads, 0.0, load * piece),
    ]
    updated = sum(stages) + (shard.pieces - 1) * np.maximum.reduce(stages)
    updated = updated if places.optimizer != "none" else np.zeros(len(columns))
    stored = leaves * store * shard.parameters
    loaded = loads * load * shard.parameters
    kept = np.zeros(len(columns))
    if places.activations != "none":
        per_byte = float(costs.durations_s([works.load(MANY)])[0]) / works.load(MANY).comm_bytes
        kept = parts["activations"].max(axis=1) * per_byte
    microbatches = columns.microbatches(job)
    pass_s = base / (microbatches + columns.pipeline - 1)
    forward = np.where(columns.recompute > 0, 1 / 4, 1 / 3) * pass_s
    backward = pass_s - forward
    longer = np.maximum.reduce([forward, loaded, kept])
    last = stored / shard.pieces
    beside = np.minimum(IN_FLIGHT * last, longer)  # copies of gradients that end beside the next forward
    bound = stored - beside > backward
    waits = longer + np.maximum.reduce([backward, loaded + kept, stored - beside]) - pass_s
    waits = waits + kept / job.model.num_layers  # the last layer's return
    tail = np.where(bound, IN_FLIGHT * last, last)
    return np.asarray(base + microbatches * (waits + loaded / shard.pieces) + tail + updated)


# ----------------------------------------------------------------------------------- screening
def _shares_of(job: Job, columns: Columns, places: Places, topology: FatTree) -> tuple[Floats, Floats]:
    """Shares of the fullest device's memory, and of the host's memory or drives, that layouts use."""
    on_device = np.zeros(len(columns))
    off_device = np.zeros(len(columns))
    system = topology.system
    host = topology.system.node.host
    if host is None:
        return on_device, off_device
    sharing = HostCosts(system, topology.num_devices).sharing
    for rows in blocks_of(len(columns)):
        some = columns.rows(rows)
        ranks = some.ranks()
        parts = rank_bytes(job, some, ranks, system)
        zero = some.zero[:, None]
        replicas = some.replicas[:, None]
        states = _moved(parts, ranks.layers, zero, replicas, places)
        on_device[rows] = _fullest(states.device) / system.device.memory.capacity
        for off, tier in ((states.cpu, host.memory), (states.nvme, host.nvme)):
            if off and tier is not None:
                share = sharing * _fullest(off) / tier.capacity
                off_device[rows] = np.maximum(off_device[rows], share)
    return on_device, off_device


def _fullest(parts: Parts) -> Floats:
    return np.asarray(np.asarray(sum(parts.values())).max(axis=1))


def offloaded_screening(
    job: Job, topology: FatTree, costs: Costs, space: Columns, without: Screening
) -> Screening:
    """All layouts with each kind of offload; `without` are those of the same space, none of which fits."""
    kept: list[tuple[Places, Columns]] = []
    estimates = [without.estimate_s]
    shares = [without.memory_share]
    screened = without.screened
    closest = (np.inf, without.closest)
    for places, rows in _moved_rows(job, topology, space):
        if not len(rows):
            continue
        on_device, off_device = _shares_of(job, rows, places, topology)
        fits = np.maximum(on_device, off_device) <= 1.0
        screened += len(rows)
        nearest = int(np.argmin(np.where(fits, np.inf, on_device)))
        if not fits.all() and on_device[nearest] < closest[0]:
            closest = (float(on_device[nearest]), places.on(rows.layout(nearest)))
        if fits.any():
            kept.append((places, rows.rows(fits)))
            estimates.append(estimate_offloaded_s(job, kept[-1][1], places, topology, costs))
            shares.append(on_device[fits])
    starts = np.cumsum([0, *(len(rows) for _, rows in kept)])

    def layout(index: int) -> ParallelLayout:
        group = int(np.searchsorted(starts, index, side="right")) - 1
        places, rows = kept[group]
        return places.on(rows.layout(index - int(starts[group])))

    refused = screened - int(starts[-1])
    return replace(
        without,
        estimate_s=np.concatenate(estimates),
        memory_share=np.concatenate(shares),
        layout=layout,
        screened=screened,
        refused={MEMORY: refused} if refused else {},
        closest=closest[1],
    )
