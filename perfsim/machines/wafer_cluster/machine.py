"""The kind `wafer-cluster`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from perfsim.costs.price import Costs
from perfsim.costs.streamed_gpu import StreamedGpuCosts
from perfsim.costs.wafer import PEAK, WaferCosts
from perfsim.errors import InputError
from perfsim.hardware import WaferClusterSpec
from perfsim.machines.machine import Machine
from perfsim.machines.wafer_cluster.explanation import StreamingExplanation
from perfsim.machines.wafer_cluster.network import WaferNetwork
from perfsim.strategies import Plan
from perfsim.strategies.streaming.blocks import StreamingPlan
from perfsim.strategies.streaming.strategy import STREAM_CHUNKS
from perfsim.topology import LinkHealth, WaferTree
from perfsim.workload import StreamingLayout, TrainingRecipe


class WaferCluster(Machine):
    """Systems that weights are streamed to, under a tree of SwarmX nodes."""

    kind = "wafer-cluster"
    system_type = WaferClusterSpec
    layout_type = StreamingLayout
    explanation = StreamingExplanation()
    default_strategy = "weight-streaming"

    def topology(self, system: WaferClusterSpec, num_devices: int) -> WaferTree:
        """Systems under a tree of broadcast-reduce nodes."""
        return WaferTree(system, num_devices)

    def costs(self, topology: WaferTree, recipe: TrainingRecipe) -> Costs:
        """By what computes, a wafer or a GPU."""
        costs: type[WaferCosts | StreamedGpuCosts]
        costs = StreamedGpuCosts if topology.system.device.kind == "gpu" else WaferCosts
        return costs(topology, recipe)

    def network(self, topology: WaferTree, health: LinkHealth, /) -> WaferNetwork:
        """MemoryX and the tree."""
        return WaferNetwork(topology, health)

    def at_peak(self, system: WaferClusterSpec, recipe: TrainingRecipe, /) -> bool:
        """`peak` stands in the place of a software release."""
        return (recipe.software_release or system.software_release) == PEAK

    def _completed(self, given: dict[str, Any], devices: int) -> StreamingLayout:
        """A missing `dp` is all systems; whoever names `recompute_layers` means full recompute."""
        if given.get("recompute_layers"):
            given.setdefault("recompute", "full")
        return StreamingLayout(**({"data": devices} | given))

    def in_chunks(self, layout: StreamingLayout, /) -> StreamingLayout:
        """The same where it streams in chunks already."""
        return layout if layout.stream_chunks > 1 else replace(layout, stream_chunks=STREAM_CHUNKS)


def wafer_plan(plan: Plan) -> StreamingPlan:
    """A plan on this kind of machine, as one; InputError where it runs on another."""
    if not isinstance(plan.topology, WaferTree):
        raise InputError(f"{plan.system.name} is no wafer cluster")
    return cast(StreamingPlan, plan)
