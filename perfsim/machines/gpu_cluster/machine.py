"""The kind of machine `gpu-cluster`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast

from perfsim.calibration import Calibration
from perfsim.costs.gpu import GpuCosts
from perfsim.errors import InputError
from perfsim.hardware import GpuClusterSpec
from perfsim.machines.borrowed import of_device
from perfsim.machines.gpu_cluster.explanation import GpuExplanation
from perfsim.machines.gpu_cluster.network import FatTreeNetwork
from perfsim.machines.machine import Machine, Setting, SystemLinks, Unknown
from perfsim.strategies import Plan
from perfsim.strategies.schedules import least_chunks, schedule_called
from perfsim.strategies.three_d.stages import ThreeDPlan
from perfsim.topology import FatTree
from perfsim.workload import ParallelLayout, TrainingRecipe, layers_of_stages

MOST_CHANNELS = 32
"""The most multiprocessors that a collective of NCCL occupies, one for each channel.

assumed: the library's own limit of channels (MAXCHANNELS); 16 to 24 are usual.
"""


class GpuCluster(Machine):
    """Nodes of GPUs under a fat tree."""

    kind = "gpu-cluster"
    system_type = GpuClusterSpec
    layout_type = ParallelLayout
    explanation = GpuExplanation()
    fragments_memory = True
    default_strategy = "3d"

    def topology(self, system: GpuClusterSpec, num_devices: int) -> FatTree:
        """Nodes under leaf and spine switches."""
        return FatTree(system, num_devices)

    def costs(self, topology: FatTree, recipe: TrainingRecipe) -> GpuCosts:
        """Kernels, launches and collectives."""
        return GpuCosts(topology, recipe)

    def network(self, topology: FatTree, /) -> FatTreeNetwork:
        """NVLink ports, NICs and uplinks."""
        return FatTreeNetwork(topology)

    def devices_per_node(self, system: GpuClusterSpec, /) -> int:
        """GPUs behind one NVLink switch."""
        return system.node.devices

    def links(self, system: GpuClusterSpec, /) -> SystemLinks:
        """NVLink, and the NICs."""
        return SystemLinks((system.node.scale_up,), (system.node.nic,))

    def calibrations(self, system: GpuClusterSpec, recipe: TrainingRecipe, /) -> list[Calibration]:
        """Calibrations of links and of the framework's host overhead."""
        links = (system.node.scale_up.calibration, system.node.nic.calibration)
        return [calibration for calibration in (*links, recipe.framework) if calibration is not None]

    def unknowns(
        self, system: GpuClusterSpec, _recipe: TrainingRecipe, _num_devices: int, /
    ) -> list[Unknown]:
        """Constants of another chip."""
        return list(of_device(system.device))

    def overlap_slowdown(self, system: GpuClusterSpec, /) -> float:
        """Compute on the multiprocessors that `MOST_CHANNELS` leave it.

        The traffic of a collective in memory (2 to 3 bytes for each on the wire, at the bus rate of NVLink)
        slows kernels that memory limits by no more than that.
        """
        units = system.device.compute_units
        return MOST_CHANNELS / (units - MOST_CHANNELS) if units > MOST_CHANNELS else 1.0

    def published_system(
        self,
        system: GpuClusterSpec,
        devices_per_node: int | None,
        inter_node: float | None,
        domain: int | None,
        /,
    ) -> GpuClusterSpec:
        """The system with the node size and network of the run, one NIC per device.

        A domain of several nodes is a node of that many devices, and what was a node is one of its servers.
        """
        server = devices_per_node or system.node.server or system.node.devices
        devices = domain or devices_per_node or system.node.devices
        several = server if devices > server and devices % server == 0 else None
        node = system.node.model_copy(update={"devices": devices, "server": several})
        if inter_node is not None:
            nic = node.nic.model_copy(update={"bandwidth": inter_node / server})
            shared = inter_node < server * system.node.nic.bandwidth
            node = node.model_copy(update={"nics": devices, "nic": nic, "devices_share_nics": shared})
        return system.model_copy(update={"node": node})

    def published_layout(self, settings: Mapping[str, Any], /) -> ParallelLayout:
        """The layout of the run, with the chunks that its schedule needs; other settings are left out."""
        known = {field.name for field in fields(ParallelLayout)}
        own = {name: value for name, value in settings.items() if name in known}
        own["virtual_pipeline"] = max(settings["virtual_pipeline"], least_chunks(settings["schedule"]))
        if settings["pipeline_layout"]:
            own["layers_per_stage"] = layers_of_stages(settings["pipeline_layout"])
        own["context"] = settings["context_parallel"]
        own["expert"] = settings["expert_parallel"]
        own["expert_tensor"] = settings["expert_tensor_parallel"] or 1
        own["context_exchange"] = "all_to_all" if settings["context_comm"] == "a2a" else "ring"
        return ParallelLayout(**own)

    def usual_settings(self, layout: ParallelLayout, recipe: TrainingRecipe, /) -> list[Setting]:
        """The settings that Megatron-LM's README recommends.

        These are sequence parallelism with tensor parallelism, the distributed optimizer (ZeRO 1) with data
        parallelism, and selective recompute where attention keeps its scores.
        """
        rows = [Setting("micro_batch_size", str(layout.micro_batch_size))]
        if layout.tensor > 1:
            split = layout.sequence_parallel
            rows.append(Setting("sequence_parallel", str(split).lower(), "" if split else "sp=true"))
        if layout.data > 1:
            rows.append(Setting("zero_stage", str(layout.zero_stage), "" if layout.zero_stage else "zero=1"))
        selective = recipe.attention == "standard" and layout.recompute == "none"
        rows.append(Setting("recompute", layout.recompute, "recompute=selective" if selective else ""))
        if layout.pipeline > 1:
            rows.append(Setting("schedule", layout.schedule))
        return rows

    def _completed(self, given: dict[str, Any], devices: int) -> ParallelLayout:
        """The layout; `dp` defaults to the remaining devices, `schedule` to what `vpp` needs.

        `vpp` itself follows from the stages, where these are given and no schedule.
        """
        layout, stages = ParallelLayout(**given), len(given.get("layers_per_stage") or ())
        if stages % layout.pipeline == 0 and stages > layout.pipeline > 1 and "schedule" not in given:
            layout = replace(layout, virtual_pipeline=stages // layout.pipeline)
            given = {**given, "virtual_pipeline": layout.virtual_pipeline}
        schedule_called(layout.schedule)  # LayoutError for an unknown name
        if layout.virtual_pipeline > 1 and "schedule" not in given:
            layout = replace(layout, schedule="interleaved")
        if "virtual_pipeline" not in given:
            layout = replace(layout, virtual_pipeline=least_chunks(layout.schedule))
        if "data" not in given:
            held = layout.tensor * layout.context * layout.pipeline
            layout = replace(layout, data=max(1, devices // held))
        return layout


def gpu_plan(plan: Plan) -> ThreeDPlan:
    """The plan with the types of a GPU cluster; InputError where it runs on another kind."""
    if not isinstance(plan.topology, FatTree):
        raise InputError(f"{plan.system.name} is not a GPU cluster")
    return cast(ThreeDPlan, plan)
