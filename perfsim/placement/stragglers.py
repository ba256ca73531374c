"""Graphs with stragglers: each slow rank apart from its peers, or together with its tensor peers.

Tensor peers wait for one another after every block, so a step with one straggler takes exactly as long if
all its tensor peers are as slow (`graph.symmetry.as_slowest_peers`). That halves the classes of ranks and
keeps their chains of tasks whole. It holds only where the peers are alike otherwise: their positions
are alike, and no peer could take its share of a link earlier than the straggler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perfsim.graph import TaskGraph
from perfsim.graph.symmetry import as_slowest_peers
from perfsim.machines import network_of
from perfsim.placement.place import Placed, place
from perfsim.strategies import Plan
from perfsim.topology import Topology

MANY_TASKS = 100_000
"""Folded tasks above which tensor peers are as slow as their straggler; below, their waiting is shown."""
TOGETHER = (
    "the straggler's tensor peers are simulated as slow as it is: the step time is the same, and their wait "
    "for it counts as compute"
)


class PlacedStragglers(NamedTuple):
    """A graph whose slow ranks have tasks of their own."""

    placed: Placed
    factors: Mapping[int, float]
    """Slow ranks as simulated, and how many times as long each one computes."""
    note: str = ""
    """A remark where peers are simulated as slow as the straggler."""


def place_stragglers(
    folded: TaskGraph,
    plan: Plan,
    factors: Mapping[int, float],
    topology: Topology | None = None,
    *,
    step_only: bool = False,
) -> PlacedStragglers:
    """Unfold the ranks of `factors`; a single straggler stays with its tensor peers where that is exact.

    That is done for large graphs, and always where only the step time matters (`step_only`). `topology` is
    the plan's unless links are degraded.
    """
    topology = topology or plan.topology
    may_join = len(factors) == 1 and plan.layout.tensor > 1 and not len(topology.edges.slow)
    if may_join and (step_only or len(folded) > MANY_TASKS):
        alike = as_slowest_peers(folded, factors)
        network = network_of(topology)
        if network.peer_places(folded.works, folded.width, shares_links=False) is None:
            placed = place(folded, topology, marks=alike)
            if not placed.links.flows or network.peers_keep_step(plan.layout):
                return PlacedStragglers(placed, alike, TOGETHER)
    return PlacedStragglers(place(folded, topology, marks=factors), factors)
