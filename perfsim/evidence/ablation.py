"""Ablation of the GPU model: each mechanism is removed and published runs are predicted again.

A removal is a wrapper around the prices; graphs do not change. Fitted constants do not change either;
`Tangent.refitted` predicts each family by a new fit without it. A step time is the length of the critical
path, which leaves out only the contention for links, times the slowdown of compute during communication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.base.arrays import Bools, Floats
from perfsim.base.errors import PerfsimError
from perfsim.catalog import Catalog, default_catalog
from perfsim.costs.gemm import GemmModel, Geometry
from perfsim.costs.gpu import GpuCosts
from perfsim.evidence.cases import CaseRows, PlacedCase, StepCase, mapped
from perfsim.evidence.left_out import LeavingOut, LeftOut, Tangent
from perfsim.evidence.score import Scored
from perfsim.network import FatTree
from perfsim.network.collectives import CollectiveModel
from perfsim.network.topology import Group
from perfsim.specs.calibration import GpuCalibration
from perfsim.specs.precisions import Precision
from perfsim.work import WAIT_OF_HOST, TaskGraph
from perfsim.work.kernels import Kernel

_LARGER_MEMORY = "a100-sxm4"
_SMALLER_MEMORY = "a100-sxm4-40gb"
"""Calibrations of one chip with two memories."""
_NOTHING = "nothing"
"""Key of the prediction with every mechanism in place."""
_ATTENTION_CORE = ("scores", "softmax", "attention_dropout", "context", "flash_attention")

Parts = Mapping[str, Callable[[GpuCosts], object]]
"""Other parts of the prices, by attribute, each made from the prices as they are."""


@dataclass(frozen=True)
class _Removal:
    """A mechanism and the change of prices that removes it."""

    key: str
    instead: str = "free"
    """The assumption that replaces it."""
    parts: Parts = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    """Fitted constants of the mechanism, which a new fit leaves out."""
    works: tuple[str, ...] = ()
    """Categories, and beginnings of names, of work that takes no time."""
    kernel: Callable[[Kernel, GpuCosts], float] = lambda _, __: 1.0
    """Factor on the time of a kernel on the device; with 0 the host still launches it."""
    tasks: Callable[[TaskGraph], Bools] | None = None
    """Tasks that take no time; None: all of `works`."""
    alone: bool = False
    """Communication takes nothing from the compute that runs at the same time."""

    def idle(self, graph: TaskGraph) -> Bools:
        """Which tasks take no time."""
        if self.tasks is not None:
            return self.tasks(graph)
        idle = [work.category in self.works or work.name.startswith(self.works) for work in graph.works]
        return np.array(idle, dtype=np.bool_)[graph.work]


class _WithoutMechanism(GpuCosts):
    """The prices of a plan without one mechanism."""

    def __init__(self, placed: PlacedCase, removal: _Removal) -> None:
        super().__init__(placed.on(FatTree), placed.plan.job.recipe)
        self.removal = removal
        for part, made in removal.parts.items():
            setattr(self, part, made(self))

    def kernel_s(self, kernel: Kernel) -> float:
        return super().kernel_s(kernel) * self.removal.kernel(kernel, self)


def _set(part: str, **values: object) -> Parts:
    """Other values in one part of the prices: its framework, its calibration of the GPU."""
    return {part: lambda costs: getattr(costs, part).model_copy(update=values)}


def _unfitted(part: str, **values: object) -> dict[str, Any]:
    """Other values of constants in one part of the prices, which a new fit leaves out."""
    return {"parts": _set(part, **values), "constants": tuple(values)}


def _ceiling(value: Callable[[GpuCosts], float]) -> Parts:
    """Another ceiling of the fraction of peak in matrix products, at most 1."""
    return {"gemm": lambda costs: replace(costs.gemm, sustained_fraction=min(1.0, value(costs)))}


class _GemmWithoutWaves(GemmModel):
    """GEMMs without wave quantisation: tiles over compute units, not rounded up."""

    def geometry(self, m: Floats, n: Floats, k: Floats, batch: Floats) -> Geometry:
        geometry = super().geometry(m, n, k, batch)
        tile = self._candidates
        tiles = np.ceil(m / tile.rows) * np.ceil(n / tile.columns) * tile.split * batch
        return geometry._replace(tile_wave_flop=2 * tiles / self.compute_units * tile.rows * tile.columns)


def _no_waves(costs: GpuCosts) -> GemmModel:
    return _GemmWithoutWaves(**{field.name: getattr(costs.gemm, field.name) for field in fields(GemmModel)})


def _fractions_of_16_bits(costs: GpuCosts) -> dict[Precision, GemmModel]:
    gpu = costs.gpu.model_copy(update={"narrow": {}})
    device = costs.topology.system.device
    return {name: costs.gemm.narrow(gpu, device, name) for name in costs.narrow}


def _no_ceiling(costs: GpuCosts) -> dict[Precision, GemmModel]:
    return {name: replace(gemm, sustained_fraction=1.0) for name, gemm in costs.narrow.items()}


def _no_bridge(costs: GpuCosts) -> CollectiveModel:
    node = costs.collectives.node
    calibration = node.nic.calibration
    if calibration is None or calibration.network is None:
        return costs.collectives
    network = calibration.network.model_copy(update={"partial_node_rank_bytes_per_s": None})
    nic = node.nic.model_copy(update={"calibration": calibration.model_copy(update={"network": network})})
    return replace(costs.collectives, node=node.model_copy(update={"nic": nic}))


def _of_newer_libraries(costs: GpuCosts) -> float:
    share = 1.0 if costs.gpu.asynchronous_attention is None else costs.framework.ceiling_share
    return costs.gemm.sustained_fraction / share


def _of_larger_memory(costs: GpuCosts) -> float:
    larger = default_catalog().load("calibration", _LARGER_MEMORY)
    if not isinstance(larger, GpuCalibration) or costs.gpu.name != _SMALLER_MEMORY:
        return costs.gemm.sustained_fraction
    return larger.sustained_fraction / costs.gpu.sustained_fraction * costs.gemm.sustained_fraction


_LOSS = {"cross_entropy": (38.0, 26.0, 2.0), "cross_entropy.backward": (14.0, 6.0, 4.0)}
"""Bytes for a logit in passes in fp32, in passes that a compiler merges, and in one kernel."""


def _loss(instead: int) -> Callable[[Kernel, GpuCosts], float]:
    """Another way to the loss, by its place in `_LOSS`, where it is fused."""

    def factor(kernel: Kernel, costs: GpuCosts) -> float:
        bytes_of = _LOSS.get(kernel.name)
        if bytes_of is None or not costs.recipe.runtime.fused_cross_entropy:
            return 1.0
        return bytes_of[instead] / bytes_of[1 if "cross_entropy_passes" in costs.framework.fused else 2]

    return factor


def _recomputed_collectives(graph: TaskGraph) -> Bools:
    """Tensor-parallel collectives after a block that is recomputed before its backward."""
    recomputes = np.array([work.category == "recompute" for work in graph.works])[graph.work]
    communicates = np.array([work.category == "tensor_communication" for work in graph.works])
    tensor = np.flatnonzero(communicates[graph.work])
    source = graph.writer[graph.reads.values[graph.reads.start[tensor]]]
    recomputed = np.zeros(len(graph), dtype=np.bool_)
    for _ in range(2):  # with sequence parallelism an all-gather follows the reduce-scatter
        recomputed[tensor] = recomputes[source] | recomputed[source]
    return recomputed


_BRIDGE = ("partial_node_rank_bytes_per_s",)
REMOVALS = (
    _Removal(_NOTHING, instead=""),
    _Removal("tensor-parallel collectives", works=("tensor_communication",)),
    _Removal("collectives of recompute", tasks=_recomputed_collectives),
    _Removal(
        "hierarchical collectives",
        "every group inside one node",
        {"group": lambda _: lambda ranks: Group.inside_node(ranks.size)},
    ),
    _Removal("data-parallel and FSDP traffic", works=("data_communication",), constants=_BRIDGE),
    _Removal("bridge of partial nodes", "every rank next to its NIC", {"collectives": _no_bridge}, _BRIDGE),
    _Removal("compute next to communication", "no slower", alone=True),
    _Removal("stage-to-stage transfers", works=("pipeline.send",)),
    _Removal(
        "host-launch floor",
        "the host takes no time",
        **_unfitted("framework", host_s_per_kernel=0.0, host_blocking_s_per_kernel=0.0),
    ),
    _Removal("waits of collectives", "none", **_unfitted("framework", collective_wait_s=0.0)),
    _Removal("memory-bound kernels", "free on the device", kernel=lambda own, _: own.op != "elementwise"),
    _Removal("gradient accumulation", kernel=lambda own, _: not own.name.endswith(".accumulate")),
    _Removal("last-level cache", "none", {"cache_bytes": lambda _: 0.0}),
    _Removal(
        "attention core",
        kernel=lambda own, _: not own.name.startswith(_ATTENTION_CORE),
        constants=("attention_fraction", "attention_half_length"),
    ),
    _Removal(
        "fused attention by length", "as in long sequences", **_unfitted("gpu", attention_half_length=0.0)
    ),
    _Removal(
        "instructions of fused attention", "all at peak", _set("gpu", attention_instruction_fraction=1.0)
    ),
    _Removal("embedding, head and loss", works=("embedding.", "head.")),
    _Removal("fused cross-entropy", "passes in fp32", kernel=_loss(0)),
    _Removal("passes of a compiled loss", "one kernel", kernel=_loss(2)),
    _Removal("optimizer", works=("optimizer",)),
    _Removal("waves of tiles", "no idle units in the last wave", {"gemm": _no_waves}),
    _Removal("matrix cores want rows of 16 bytes", "they take any", {"vector_flop_per_s": lambda _: None}),
    _Removal(
        "sustained power ceiling", "1.0 of peak", _ceiling(lambda _: 1.0), constants=("sustained_fraction",)
    ),
    _Removal(
        "tensor communication that products hide",
        "all exposed",
        {"recipe": lambda costs: costs.recipe.ran_with(overlap_tensor=False)},
        ("exchange_slowdown",),
    ),
    _Removal("waits between passes", "none", works=(WAIT_OF_HOST,), constants=("pass_s",)),
    _Removal("asynchronous attention", "the A100's instructions", _set("framework", attention="synchronous")),
    _Removal("casts as in tables", "the bytes of both copies", {"slower_cast": lambda _: {}}),
    _Removal(
        "products of experts with biases", "as fast as without", **_unfitted("framework", grouped_rate=1.0)
    ),
    _Removal("casts to fewer bits", kernel=lambda own, _: not own.name.endswith(".cast")),
    _Removal("tables of narrow products", "16 bits' fractions of peak", {"narrow": _fractions_of_16_bits}),
    _Removal("narrow power ceiling", "1.0 of peak", {"narrow": _no_ceiling}, ("narrow_sustained_fraction",)),
    _Removal(
        "libraries older than the device",
        "all of its ceiling",
        _ceiling(_of_newer_libraries),
        ("ceiling_share",),
    ),
    _Removal(
        "slowest of many GPUs",
        "all at the mean ceiling",
        _ceiling(lambda costs: costs.gpu.sustained_fraction),
    ),
    _Removal("ceiling of the A100 with 40 GB", "that with 80 GB", _ceiling(_of_larger_memory)),
)
"""Nothing, then communication, host, memory, parts of the model, and matrix products."""


def _without_each(placed: PlacedCase) -> dict[str, Scored]:
    """A placed case without each mechanism, by its key; InputError for one that is not on GPUs."""
    step = placed.step(GpuCosts(placed.on(FatTree), placed.plan.job.recipe))
    complete_s = step.run(contention=False).step_time_s
    runs = {}
    for removal in REMOVALS:
        duration_s = placed.step(_WithoutMechanism(placed, removal)).duration_s
        duration_s = np.where(removal.idle(placed.placed.graph), 0.0, duration_s)
        # A mechanism that changes no duration needs no new simulation.
        affects = not np.array_equal(duration_s, step.duration_s)
        step_s = step.run(duration_s, contention=False).step_time_s if affects else complete_s
        runs[removal.key] = Scored.of(placed.case, (1.0 if removal.alone else placed.slowed) * step_s)
    return runs


# The content of the accuracy page.


@dataclass(frozen=True)
class Removed:
    """The score of the public GPU runs without one mechanism."""

    mechanism: str
    instead: str
    summary: Mapping[str, Any]
    left_out: Mapping[str, Any]
    """The score of runs by a new fit without the mechanism and their family; empty if not requested."""


@dataclass(frozen=True)
class StepAccuracy:
    """The score of a file of step-time cases and its explanation."""

    result: Mapping[str, Any]
    removed: Sequence[Removed]
    leaving: Sequence[LeavingOut] = ()
    """Its runs as predicted without their family or release; empty if not requested."""

    @classmethod
    def of(
        cls, cases: Sequence[StepCase], result: Mapping[str, Any], catalog: Catalog, *, leaves_out: bool
    ) -> StepAccuracy:
        examined = mapped(partial(_examine, catalog=catalog, leaves_out=leaves_out), cases)
        on_gpus = [runs for runs, _ in examined if runs]
        tangents = [tangent for _, tangent in examined if tangent is not None]
        removed = []
        for removal in REMOVALS if on_gpus else ():
            runs = [run[removal.key] for run in on_gpus]
            refitted = Scored.scores(Tangent.refitted(tangents, runs, removal.constants)) if tangents else {}
            removed.append(Removed(removal.key, removal.instead, Scored.scores(runs), refitted))
        return cls(result, removed, LeavingOut.by_kind(cases, catalog, tangents) if leaves_out else [])

    @property
    def outside(self) -> Mapping[str, Any] | None:
        """`left_out` of the JSON document; None if not requested."""
        return LeavingOut.document(self.leaving)

    @property
    def left_out(self) -> list[LeftOut]:
        """Families of runs on GPUs, then all of them together."""
        return [row for part in self.leaving if part.by == "family" for row in part.rows]


def accuracy_of(
    paths: Sequence[Path], results: Sequence[Mapping[str, Any]], *, leaves_out: bool
) -> list[StepAccuracy]:
    """The step times among `results` for `paths`, in minutes; CatalogError, and InputError without SciPy."""
    catalog = default_catalog()
    return [
        StepAccuracy.of(CaseRows.read(path, StepCase, catalog).cases, result, catalog, leaves_out=leaves_out)
        for path, result in zip(paths, results, strict=True)
        if result["kind"] == "step_time"
    ]


def _examine(
    case: StepCase, catalog: Catalog, *, leaves_out: bool
) -> tuple[dict[str, Scored], Tangent | None]:
    """A run without each mechanism, and its tangent if requested; empty where it is not predicted on GPUs."""
    try:
        placed = case.placed(catalog)
        tangent = Tangent.of(placed) if leaves_out and case.scored else None
        return _without_each(placed), tangent
    except PerfsimError:
        return {}, None
