"""The kind of machine `wafer-cluster`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from perfsim.calibration import WaferCalibration
from perfsim.costs.price import Costs
from perfsim.costs.streamed_gpu import StreamedGpuCosts
from perfsim.costs.wafer import PEAK, WaferCosts, nearest_release
from perfsim.errors import InputError
from perfsim.hardware import WaferClusterSpec
from perfsim.machines.machine import Machine, Unknown
from perfsim.machines.wafer_cluster.explanation import StreamingExplanation
from perfsim.machines.wafer_cluster.network import WaferNetwork
from perfsim.machines.wafer_cluster.unknowns import of_job, of_release, of_systems
from perfsim.strategies import Plan
from perfsim.strategies.streaming.blocks import StreamingPlan
from perfsim.strategies.streaming.strategy import STREAM_CHUNKS
from perfsim.topology import WaferTree
from perfsim.workload import Job, StreamingLayout, TrainingRecipe


class WaferCluster(Machine):
    """Systems under a SwarmX tree, to which weights are streamed."""

    kind = "wafer-cluster"
    system_type = WaferClusterSpec
    layout_type = StreamingLayout
    explanation = StreamingExplanation()
    default_strategy = "weight-streaming"

    def topology(self, system: WaferClusterSpec, num_devices: int) -> WaferTree:
        """Systems under a tree of broadcast-reduce nodes."""
        return WaferTree(system, num_devices)

    def costs(self, topology: WaferTree, recipe: TrainingRecipe) -> Costs:
        """The cost model by the device that computes, a wafer or a GPU."""
        costs: type[WaferCosts | StreamedGpuCosts]
        costs = StreamedGpuCosts if topology.system.device.kind == "gpu" else WaferCosts
        return costs(topology, recipe)

    def network(self, topology: WaferTree, /) -> WaferNetwork:
        """Traffic on MemoryX and the tree."""
        return WaferNetwork(topology)

    def releases(self, system: WaferClusterSpec, recipe: TrainingRecipe, /) -> tuple[str, str] | None:
        """The release of the recipe or the system, and the nearest one that was measured."""
        calibration = system.device.calibration
        if not isinstance(calibration, WaferCalibration):
            return None
        wanted = recipe.software_release or system.software_release
        return wanted, nearest_release(wanted, calibration)

    def at_peak(self, system: WaferClusterSpec, recipe: TrainingRecipe, /) -> bool:
        """Whether the software release is `peak`."""
        return (recipe.software_release or system.software_release) == PEAK

    def unknowns(
        self, system: WaferClusterSpec, recipe: TrainingRecipe, num_devices: int, /
    ) -> list[Unknown]:
        """The efficiency of a release without a log, and the loss of many systems."""
        calibration = system.device.calibration
        if not isinstance(calibration, WaferCalibration):
            return list(of_systems(num_devices))
        wanted = recipe.software_release or system.software_release
        return [*of_release(wanted, calibration), *of_systems(num_devices)]

    def job_unknowns(self, job: Job, /) -> list[Unknown]:
        """Grouped queries, gated MLPs and long sequences, which no log has."""
        return list(of_job(job))

    def _completed(self, given: dict[str, Any], devices: int) -> StreamingLayout:
        """The layout; `dp` defaults to all systems, and `recompute_layers` implies full recompute."""
        if given.get("recompute_layers"):
            given.setdefault("recompute", "full")
        return StreamingLayout(**({"data": devices} | given))

    def in_chunks(self, layout: StreamingLayout, /) -> StreamingLayout:
        """The layout with layers streamed in chunks; unchanged where they are already."""
        return layout if layout.stream_chunks > 1 else replace(layout, stream_chunks=STREAM_CHUNKS)


def wafer_plan(plan: Plan) -> StreamingPlan:
    """The plan with the types of a wafer cluster; InputError where it runs on another kind."""
    if not isinstance(plan.topology, WaferTree):
        raise InputError(f"{plan.system.name} is not a wafer cluster")
    return cast(StreamingPlan, plan)
