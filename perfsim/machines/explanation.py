"""What a machine says about why a step takes as long as it does."""

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
"""Share of the step from which recomputing, or movement inside a device, is named."""
LOOK = "find in the timeline what the devices wait for"


@dataclass(frozen=True)
class Lane:
    """One part of the machine in one step."""

    name: str
    busy_s: float
    saved: float
    """Share of the step that it would save if it were twice as fast."""


class Explanation:
    """The reasons and remedies of one kind of machine; these are of any.

    A *lane* is what one part of the machine does beside computing: a link with the servers behind it, flash.
    """

    lanes: Mapping[str, str] = {}
    """Of each operation that moves the lane that does it; empty: no part of the machine is told apart."""
    layer_fixed_s = 0.0
    """Of a layer and step whatever its tokens, by another fit of the published runs; 0: there is none."""
    more = "more devices"
    """What makes a step shorter that is bound by computing."""

    def busy_s(self, topology: Topology, graph: TaskGraph, duration_s: Floats, lane: str) -> float:
        """Seconds a step that a lane is busy."""
        own = self.works_of(graph, lane)[graph.work]
        streams = np.zeros(len(graph.streams))
        np.add.at(streams, graph.stream[own], duration_s[own])
        return self._together_s(topology, lane, streams) / len(graph.step_ends)

    def works_of(self, graph: TaskGraph, lane: str) -> NDArray[np.bool_]:
        """Which classes of work are a lane's."""
        return np.array([self.lanes.get(work.op) == lane for work in graph.works])

    def _together_s(self, _topology: Any, _lane: str, streams_s: Floats, /) -> float:
        """Streams of a lane work at once."""
        return float(streams_s.max(initial=0.0))

    def roof(
        self, _plan: Any, _graph: TaskGraph, _costs: Costs, _duration_s: Floats, /
    ) -> StreamingRoof | None:
        """Tokens under which streamed weights arrive too late; None where nothing streams."""
        return None

    def cause(self, _lane: Lane, wait: str, /) -> str:
        """The cause that a limiting lane stands for where `wait` is waited for most."""
        return wait

    def about_roof(self, _roof: StreamingRoof, _lane: Lane | None, /) -> str:
        """A sentence about how a step stands to its roof."""
        return ""

    def wait_remedy(self, _cause: str, _plan: Any, _lane: Lane | None, _roof: StreamingRoof | None, /) -> str:
        """What shortens a step that waits."""
        return LOOK

    def compute_remedy(self, plan: Plan, moving: float, again: float) -> str:
        """What shortens a step bound by computing; shares of it are movement and recomputing."""
        if again > max(HEAVY, moving):
            return (
                f"room for activations, of which making again takes {100 * again:.0f} % of the step; "
                f"or {self.more}"
            )
        return self._more_compute(plan, moving)

    def _more_compute(self, _plan: Plan, _moving: float, /) -> str:
        return self.more
