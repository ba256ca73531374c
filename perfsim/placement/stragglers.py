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
from perfsim.placement.place import Placed, place
from perfsim.placement.rank_classes import places_of_peers
from perfsim.strategies import Plan
from perfsim.strategies.schedules import schedule_called
from perfsim.topology import HEALTHY, FatTree, LinkHealth
from perfsim.workload import ParallelLayout

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
        if places_of_peers(folded, topology, shares_links=False) is None:
            placed = place(folded, topology, marks=alike)
            if not placed.links.flows or _in_step(plan):
                return PlacedStragglers(placed, alike, TOGETHER)
    return PlacedStragglers(place(folded, topology, marks=factors, health=health), factors)


def _in_step(plan: Plan) -> bool:
    """Whether tensor peers put nothing on shared links before the slowest of them could.

    They meet at the end of every block, inside a node whose leaf carries what it sends; where weight
    gradients are a pass of their own, they meet only at its end.
    """
    topology = plan.topology
    inside = topology.devices_per_node % plan.layout.tensor == 0
    thin = isinstance(topology, FatTree) and topology.is_thin({})
    layout = plan.layout
    whole = isinstance(layout, ParallelLayout) and not schedule_called(layout.schedule).splits_backward
    return inside and not thin and whole
