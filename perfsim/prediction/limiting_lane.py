"""Which part of a streaming machine limits a step: each taken twice as fast, and the step run again.

A lane is what one part of the machine does: links (with the servers behind them), flash, samples,
spilled activations, updates. Being busy longest is not yet the cause, as lanes wait for one another;
the one that limits is the one whose speed shortens the step most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfsim.costs.streams import StreamCosts
from perfsim.graph import TaskGraph
from perfsim.hardware import WaferClusterSpec
from perfsim.prediction.run import Step
from perfsim.strategies import Plan
from perfsim.topology import WaferTree

LANES = {
    "memoryx_read": "link",
    "reduce": "link",
    "reduce_part": "link",
    "reduce_in_tree": "link",
    "reduce_in_tree_part": "link",
    "flash_read": "flash",
    "flash_write": "flash",
    "samples": "input",
    "spill": "spilling",
    "fetch": "spilling",
    "memoryx_update": "update",
}
"""Of each operation that moves the part of the machine that does it."""
SPEED_UP = 2.0
LEAST_BUSY = 0.05
"""Share of the step below which a lane is not tried."""
LEAST_SAVED = 0.01
"""Share of the step below which a faster part is no remedy."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Lane:
    """One part of the machine in one step."""

    name: str
    busy_s: float
    saved: float
    """Share of the step that it would save if it were twice as fast."""


def limiting_lane(plan: Plan, step: Step) -> Lane | None:
    """The lane that shortens the step most where it is twice as fast; None where none does."""
    if not isinstance(plan.system, WaferClusterSpec):
        return None
    graph, durations = step.placed.graph, step.duration_s
    contention = bool(step.placed.links.flows)
    before_s = step.run(contention=contention).step_time_s / step.scale
    found = []
    for name, works in _works(graph).items():
        busy_s = busy_seconds(plan, graph, durations, name)
        if busy_s >= LEAST_BUSY * before_s:
            faster = np.where(works[graph.work], durations / SPEED_UP, durations)
            after_s = step.run(faster, contention=contention).step_time_s / step.scale
            found.append(Lane(name, busy_s, 1.0 - after_s / before_s))
    best = max(found, key=lambda lane: lane.saved, default=None)
    return best if best is not None and best.saved >= LEAST_SAVED else None


def _works(graph: TaskGraph) -> Mapping[str, NDArray[np.bool_]]:
    """Of each lane which classes of work are its own."""
    names = [LANES.get(work.op, "") for work in graph.works]
    return {lane: np.array([name == lane for name in names]) for lane in dict.fromkeys(LANES.values())}


def busy_seconds(plan: Plan, graph: TaskGraph, durations: Floats, lane: str) -> float:
    """Seconds a step that a lane is busy: its busiest stream, or all where they share a bandwidth."""
    own = _works(graph)[lane][graph.work]
    streams = np.zeros(len(graph.streams))
    np.add.at(streams, graph.stream[own], durations[own])
    return _together(plan, lane)(streams) / len(graph.step_ends)


def _together(plan: Plan, lane: str) -> Callable[[Floats], float]:
    """Streams that share a bandwidth take turns; with blocks on servers of their own all work at once."""
    system = plan.system
    if not isinstance(system, WaferClusterSpec):
        return lambda seconds: float(seconds.max(initial=0.0))
    servers = system.memoryx.servers if system.memoryx.placement == "by_layer" else 1
    flash = system.memoryx.server.flash
    turns = {"link": not system.swarmx.duplex, "flash": flash is not None and not flash.duplex}
    if turns.get(lane, False):
        return lambda seconds: float(seconds.sum()) / servers
    return lambda seconds: float(seconds.max(initial=0.0))


# ----------------------------------------------------------------------------------------- in words
def part_of(lane: str, plan: Plan) -> str:
    """The part of the machine that a lane is made of: what would have to be faster."""
    topology = plan.topology
    if not isinstance(topology, WaferTree):
        return lane
    system = topology.system
    if lane == "flash":
        return "MemoryX's flash"
    if lane == "update":
        return f"the {_slower_of_update(system)} of MemoryX's servers"
    feeders = system.activation_servers
    if lane in ("input", "spilling") and feeders.per_system * feeders.bandwidth <= system.io_bytes_per_s:
        return "the activation servers"
    if lane in ("input", "spilling"):
        return "the I/O ports"
    return _slowest_of_link(system, StreamCosts(topology).shares)


def _slower_of_update(system: WaferClusterSpec) -> str:
    """Of memory and arithmetic, by Adam's 28 B and 15 FLOP a parameter."""
    server = system.memoryx.server
    return "DRAM" if 28.0 / server.dram.bandwidth >= 15.0 / server.arithmetic else "arithmetic"


def _slowest_of_link(system: WaferClusterSpec, shares: int) -> str:
    """Between MemoryX and a system all that is as slow as the slowest; all of it must be faster."""
    server = system.memoryx.server
    rates = {
        "the I/O ports": system.io_bytes_per_s,
        "SwarmX": system.swarmx.bandwidth,
        "MemoryX's servers": shares * server.bandwidth,
        "their DRAM": shares * server.dram.bandwidth,
    }
    slowest = min(rates.values())
    names = [name for name, rate in rates.items() if rate < slowest * 1.001]
    *others, last = [name.replace("their", "the servers'") if len(names) == 1 else name for name in names]
    return f"{', '.join(others)} and {last}" if others else last
