"""How a kind of machine explains step times: causes and remedies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.costs.price import Costs
from perfsim.costs.streaming_roof import StreamingRoof
from perfsim.graph import TaskGraph
from perfsim.strategies import Plan
from perfsim.topology import Topology

Floats = NDArray[np.float64]
HEAVY = 0.15
"""Share of the step above which recomputation, or movement inside a device, is mentioned."""
LOOK = "see in the timeline what the devices wait for"


@dataclass(frozen=True)
class Lane:
    """One part of the machine in one step."""

    name: str
    busy_s: float
    saved: float
    """Share of the step saved if it were twice as fast."""


class Explanation:
    """Causes and remedies for one kind of machine; the defaults hold for any kind.

    A *lane* is a part of the machine that moves data beside compute: a link and its servers, flash.
    """

    lanes: Mapping[str, str] = {}
    """The lane of each operation that moves data; empty where lanes are not distinguished."""
    layer_fixed_s = 0.0
    """Seconds a layer and step independent of tokens, by another fit of published runs; 0: no such fit."""
    more = "more devices"
    """What shortens a step that is bound by compute."""
    unit = "devices"
    """What its number of devices counts."""
    inputs: Mapping[str, tuple[str, ...]] = {}
    """For each cause of a step time, the fields of the system that it rests on."""

    def busy_s(self, topology: Topology, graph: TaskGraph, duration_s: Floats, lane: str) -> float:
        """Seconds a step that a lane is busy."""
        own = self.works_of(graph, lane)[graph.work]
        streams = np.zeros(len(graph.streams))
        np.add.at(streams, graph.stream[own], duration_s[own])
        return self._together_s(topology, lane, streams) / len(graph.step_ends)

    def works_of(self, graph: TaskGraph, lane: str) -> NDArray[np.bool_]:
        """Which classes of work run on a lane."""
        return np.array([self.lanes.get(work.op) == lane for work in graph.works])

    def _together_s(self, _topology: Any, _lane: str, streams_s: Floats, /) -> float:
        """Busy seconds of a lane from those of its streams, which run in parallel by default."""
        return float(streams_s.max(initial=0.0))

    def roof(
        self, _plan: Any, _graph: TaskGraph, _costs: Costs, _duration_s: Floats, /
    ) -> StreamingRoof | None:
        """Tokens needed to hide streamed weights; None where nothing streams."""
        return None

    def cause(self, _lane: Lane, wait: str, /) -> str:
        """The cause to name for a limiting lane; `wait` is the longest wait."""
        return wait

    def about_roof(self, _roof: StreamingRoof, _lane: Lane | None, /) -> str:
        """A sentence that compares a step with its roof."""
        return ""

    def wait_remedy(self, _cause: str, _plan: Any, _lane: Lane | None, _roof: StreamingRoof | None, /) -> str:
        """What shortens a step that is bound by a wait."""
        return LOOK

    def compute_remedy(self, plan: Plan, moving: float, recompute: float) -> str:
        """What shortens a step bound by compute; `moving` and `recompute` are shares of the step."""
        if recompute > max(HEAVY, moving):
            return (
                f"memory for more activations (recomputation takes {100 * recompute:.0f} % of the step), "
                f"or {self.more}"
            )
        return self._more_compute(plan, moving)

    def _more_compute(self, _plan: Plan, _moving: float, /) -> str:
        return self.more
