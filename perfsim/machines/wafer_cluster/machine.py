"""The kind `wafer-cluster`."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from perfsim.errors import InputError
from perfsim.machines.layout_text import parsed_settings
from perfsim.strategies import Plan
from perfsim.strategies.streaming.blocks import StreamingPlan
from perfsim.strategies.streaming.strategy import STREAM_CHUNKS
from perfsim.topology import WaferTree
from perfsim.workload import StreamingLayout


class WaferCluster:
    """Systems that weights are streamed to, under a tree of SwarmX nodes."""

    kind = "wafer-cluster"
    default_strategy = "weight-streaming"

    def parse_layout(self, text: str, devices: int) -> StreamingLayout:
        """A missing `dp` is all systems; whoever names `recompute_layers` means full recompute."""
        given = parsed_settings(text, StreamingLayout)
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
