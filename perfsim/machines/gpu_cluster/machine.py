"""The kind `gpu-cluster`."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from perfsim.errors import InputError
from perfsim.machines.layout_text import parsed_settings
from perfsim.strategies import Plan
from perfsim.strategies.schedules import least_chunks
from perfsim.strategies.three_d.stages import ThreeDPlan
from perfsim.topology import FatTree
from perfsim.workload import ParallelLayout


class GpuCluster:
    """Nodes of GPUs under a fat tree."""

    kind = "gpu-cluster"
    default_strategy = "3d"

    def parse_layout(self, text: str, devices: int) -> ParallelLayout:
        """A missing `dp` is what the devices leave, a schedule what `vpp` asks for."""
        given = parsed_settings(text, ParallelLayout)
        layout = ParallelLayout(**given)
        if layout.virtual_pipeline > 1 and "schedule" not in given:
            layout = replace(layout, schedule="interleaved")
        if "virtual_pipeline" not in given:
            layout = replace(layout, virtual_pipeline=least_chunks(layout.schedule))
        if "data" not in given:
            layout = replace(layout, data=max(1, devices // (layout.tensor * layout.pipeline)))
        return layout

    def in_chunks(self, _layout: ParallelLayout, /) -> ParallelLayout:
        """Layers are never streamed."""
        raise InputError(f"detail chunk: no weights are streamed on a {self.kind}")


def gpu_plan(plan: Plan) -> ThreeDPlan:
    """A plan on this kind of machine, as one; InputError where it runs on another."""
    if not isinstance(plan.topology, FatTree):
        raise InputError(f"{plan.system.name} is no GPU cluster")
    return cast(ThreeDPlan, plan)
