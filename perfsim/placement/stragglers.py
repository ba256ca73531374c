"""Slow ranks written out: alone where that matters, with their tensor peers where it cannot be told.

Tensor peers wait for one another after every block, so a step with one straggler takes as long, to the
bit, if they are as slow (`graph.symmetry.as_slowest_peers`): half as many classes, whose chains stay whole.
That holds while nothing else tells the peers apart: where they stand, or links on which one of them, not
waiting for the straggler, would take its share earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perfsim.graph import TaskGraph
from perfsim.graph.symmetry import as_slowest_peers
from perfsim.machines import network_of
from perfsim.placement.place import Placed, place
from perfsim.strategies import Plan
from perfsim.topology import HEALTHY, LinkHealth

MANY_TASKS = 100_000
"""Folded tasks from which on a straggler's peers are written with it; below, their waiting is shown."""
TOGETHER = (
    "the straggler's tensor peers are written with it: the step takes as long, and their waiting for it "
    "counts as computing"
)


class PlacedStragglers(NamedTuple):
    """A graph with slow ranks written out."""

    placed: Placed
    factors: Mapping[int, float]
    """How many times as long every slow rank computes, as it is written."""
    note: str = ""
    """Where peers are written slow that are not."""


def place_stragglers(
    folded: TaskGraph,
    plan: Plan,
    factors: Mapping[int, float],
    health: LinkHealth = HEALTHY,
    *,
    step_only: bool = False,
) -> PlacedStragglers:
    """A folded graph with the ranks of `factors` apart; one straggler with its tensor peers if it may be.

    Unless only the time of the step is asked for (`step_only`), that is done where it is worth it.
    """
    topology = plan.topology
    one = len(factors) == 1 and plan.layout.tensor > 1 and not health.left
    if one and (step_only or len(folded) > MANY_TASKS):
        alike = as_slowest_peers(folded, factors)
        network = network_of(topology)
        if network.peer_places(folded.works, folded.width, shares_links=False) is None:
            placed = place(folded, topology, marks=alike)
            if not placed.links.flows or network.peers_keep_step(plan.layout):
                return PlacedStragglers(placed, alike, TOGETHER)
    return PlacedStragglers(place(folded, topology, marks=factors, health=health), factors)
